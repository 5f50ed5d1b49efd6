"""Asked worker: the shards of pieces through a language model, many open at once, each committed.

An event loop in a thread of its own holds all calls; whoever brings pieces waits in another. A
shard's slowest call holds nothing up: the next shards are asked meanwhile.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from qaeval_core.errors import QAEvalError, RunError, RunStoppedError, UnreadableFileError
from qaeval_core.families.chat.family import ChatFamilyPlan, ChatWork
from qaeval_core.families.contract import Prepared, statistics_table
from qaeval_core.llm.asker import Asker
from qaeval_core.llm.governor import Status
from qaeval_core.llm.governor_client import GovernorClient
from qaeval_core.llm.limits import dollars
from qaeval_core.planning.sample import chosen_values, sampled_rows
from qaeval_core.planning.shards import Piece
from qaeval_core.running.chat_asker import (
    OpenGovernor,
    ask_shard,
    close_asker,
    open_asker,
)
from qaeval_core.running.piece_worker import UNREADABLE, Done, Supervisor, open_reader
from qaeval_core.running.reader import ShardReader
from qaeval_core.store.leftovers import remove_leftovers_of
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import Commit, Store

# Open requests for each one that may be under way: the tail of a shard leaves nobody idle.
_OPEN_PER_CALL = 3
# No row can kill a process that only waits for sockets: so many deaths are the machine's.
_MAX_DEATHS = 5
_WATCH_EVERY_S = 1.0
_RATE_OVER_S = 10.0


class CallWorker:
    """Asks for the shards of pieces, and commits each as soon as it is whole.

    Parameters
    ----------
    plan : ChatFamilyPlan
    store : Store
    supervisor : Supervisor
        Gets progress, and says when to stop: calls under way are waited for, the rest is given up.
    open_governor : callable
        Returns the governor of an account.
    n_actors : int, default 1
        Workers that share ``max_concurrent``.

    Attributes
    ----------
    account : str or None
        Name of server and key, once it is known.
    """

    def __init__(
        self,
        plan: ChatFamilyPlan,
        store: Store,
        supervisor: Supervisor,
        *,
        open_governor: OpenGovernor,
        n_actors: int = 1,
    ) -> None:
        self.plan = plan
        self._layout = plan.open_layout()
        self.account: str | None = None
        self._store = store
        self._supervisor = supervisor
        self._open_governor = open_governor
        self._n_actors = n_actors
        self._max_open = _OPEN_PER_CALL * -(-plan.settings.max_concurrent // n_actors)
        self._n_open = 0
        self._has_room = asyncio.Event()
        self._telling = asyncio.Lock()
        self._pending_rows = 0
        self._asker: Asker | None = None
        self._opening: asyncio.Task[Asker] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._shards: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self._thread = LoopThread()

    def run(self, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Commit every shard; yield each with what it cost, in the order in which they end.

        Several threads may call this at once.

        Raises
        ------
        QAEvalError
            What stopped it; whatever was paid for is in the journal by then.
        """
        done: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
        future = self._thread.submit(self._run_pieces(list(pieces), done))
        future.add_done_callback(lambda _: done.put(None))
        while (item := done.get()) is not None:
            yield item
        future.result()

    def close(self) -> None:
        """End all: calls under way are waited for, what still waits is given up."""
        self._thread.submit(self._close()).result()
        self._thread.close()

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._fail(RunStoppedError("closed [QA0005]"))
        if self._shards:
            await asyncio.wait(self._shards)
        if self._asker is not None:
            await close_asker(self._asker)

    async def _run_pieces(self, pieces: list[Piece], done: queue.SimpleQueue[Done | None]) -> None:
        asker = await self._open()
        reader = open_reader(self.plan.columns, self._store)
        own: set[asyncio.Task[None]] = set()
        try:
            todo = deque((piece, rows) for piece in pieces for rows in piece.shards)
            while todo:
                piece, planned = todo.popleft()
                if not await asyncio.to_thread(self._begin, piece, planned):
                    continue
                await self._wait_for_room()
                rows, prepared = await asyncio.to_thread(self._prepare, reader, piece, planned)
                if rows.stop < planned.stop:
                    todo.appendleft((piece, RowRange(rows.stop, planned.stop)))
                self._n_open += len(prepared.work.requests)
                shard = asyncio.create_task(self._run_shard(asker, piece, rows, prepared, done))
                for tasks in (own, self._shards):
                    tasks.add(shard)
                    shard.add_done_callback(tasks.discard)
        except Exception as error:
            self._fail(error)
        finally:
            reader.close()
        if own:
            await asyncio.wait(own)
        self._check()
        await self._tell()

    async def _open(self) -> Asker:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_once())
        return await self._opening

    async def _open_once(self) -> Asker:
        self._asker, governor, self.account = await open_asker(
            self.plan,
            open_governor=self._open_governor,
            n_actors=self._n_actors,
            outages=self._store.outages,
        )
        self._watching = asyncio.create_task(self._watch(self._asker, governor))
        return self._asker

    async def _wait_for_room(self) -> None:
        while self._n_open >= self._max_open and self._failure is None:
            self._has_room.clear()
            await self._has_room.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception) -> None:
        """Stop asking, in all shards and pieces: what failed one would fail the others."""
        if self._failure is None:
            self._failure = error
        if self._asker is not None:
            told = error if isinstance(error, QAEvalError) else RunError(f"{error!r} [QA0516]")
            self._asker.stop(told)
        self._has_room.set()

    def _begin(self, piece: Piece, rows: RowRange) -> bool:
        """Note that a shard is begun; return whether it is open, as all are the first time."""
        n_attempts = self._supervisor.start_attempt(self.plan.key, piece.file_id, rows)
        if n_attempts > 1:
            remove_leftovers_of(self._store, self.plan.key, piece.file_id, rows)
            if self._store.is_committed(self.plan.key, piece.file_id, rows):
                return False
        if n_attempts > _MAX_DEATHS:
            raise RunError(
                f"{piece.relative}: the worker of rows {rows.start} to {rows.stop} died "
                f"{n_attempts - 1} times; check the memory of the machine [QA0516]"
            )
        return True

    def _prepare(
        self, reader: ShardReader, piece: Piece, rows: RowRange
    ) -> tuple[RowRange, Prepared[ChatWork]]:
        """Read a shard, or as many of its first rows as are read at once; return which."""
        started = time.perf_counter()
        try:
            table = reader.read(piece, rows)
        except UnreadableFileError as error:
            return rows, self._layout.quarantined(
                n_rows=rows.n_rows, reason=UNREADABLE, message=str(error)
            )
        chosen = sampled_rows(table, self._store.sample)
        values = chosen_values(table, chosen, columns=self.plan.columns, piece=piece)
        prepared = self._layout.prepare(values, chosen=chosen)
        prepared.stats.spend("read", time.perf_counter() - started)
        return RowRange(rows.start, rows.start + table.num_rows), prepared

    async def _run_shard(
        self,
        asker: Asker,
        piece: Piece,
        rows: RowRange,
        prepared: Prepared[ChatWork],
        done: queue.SimpleQueue[Done | None],
    ) -> None:
        """Ask for a shard and commit it; what goes wrong is kept, for `_check` to raise."""
        n_left = len(prepared.work.requests)
        n_asked = 0

        def on_rows(n_rows: int) -> None:
            nonlocal n_left, n_asked
            n_left -= 1
            n_asked += n_rows
            self._n_open -= 1
            self._pending_rows += n_rows
            self._has_room.set()

        try:
            await ask_shard(asker, self.plan, prepared, on_rows)
            commit = await asyncio.to_thread(self._commit, piece, rows, prepared)
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._n_open -= n_left  # Of requests that failed.
            self._has_room.set()
        self._pending_rows += rows.n_rows - n_asked
        done.put([commit])

    def _commit(self, piece: Piece, rows: RowRange, prepared: Prepared[ChatWork]) -> Commit:
        started = time.perf_counter()
        commit = self._store.commit(
            self.plan.key,
            piece.file_id,
            rows,
            statistics_table(prepared, first_position=rows.start),
            signature=str(self.plan.signature),
            stats=prepared.stats,
        )
        prepared.stats.spend("commit", time.perf_counter() - started)
        return commit

    async def _watch(self, asker: Asker, governor: GovernorClient) -> None:
        """Report progress, and heed the wish to stop, also while all calls wait."""
        sent: list[tuple[float, int]] = []
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            try:
                status = await governor.status()
                now, n_sent = time.monotonic(), status.n_sent
                # A governor that was killed counts from 0 again.
                sent = [one for one in sent if one[0] > now - _RATE_OVER_S and one[1] <= n_sent]
                sent.append((now, n_sent))
                n_calls = asker.n_in_flight
                line = status_line(status, calls_per_s=_rate(sent), n_calls=n_calls)
                # A disk that does not answer has the last word.
                note = self._store.outages.note
                await self._tell(f"{line}, {note}" if note else line)
            except Exception as error:
                self._fail(error)
                return

    async def _tell(self, note: str | None = None) -> None:
        async with self._telling:  # A supervisor is spoken to by one thread at a time.
            n_rows, self._pending_rows = self._pending_rows, 0
            if note is not None:
                await asyncio.to_thread(self._supervisor.set_status, note)
            await asyncio.to_thread(self._supervisor.report, n_rows, 0, 0)


def _rate(sent: list[tuple[float, int]]) -> float:
    """Return calls a second over the entries (seconds, calls so far)."""
    (first_s, n_first), (last_s, n_last) = sent[0], sent[-1]
    return (n_last - n_first) / (last_s - first_s) if last_s > first_s else 0.0


def status_line(status: Status, *, calls_per_s: float, n_calls: int) -> str:
    """Return where a governor stands, for a line of progress.

    Parameters
    ----------
    calls_per_s : float
        Of all callers of the governor.
    n_calls : int
        Calls of one actor that wait for their time or for a reply; as many as it may make mean that
        more at once would be quicker.
    """
    parts = [f"{calls_per_s:.1f} calls/s", f"{n_calls} under way"]
    limits = status.limits
    if limits.requests_per_minute or limits.tokens_per_minute:
        parts.append(f"{100 * status.binding_use:.0f} % of the limit in use")
    parts.append(f"{status.n_refused:,} refused (429, 503)")
    if status.silent_s > 0:
        parts.append(f"no answer for {status.silent_s:.0f} s, probing")
    elif status.pace_factor < 1:
        parts.append(f"pace cut to {100 * status.pace_factor:.0f} %")
    if status.spent_usd or status.reserved_usd:
        parts.append(f"{dollars(status.spent_usd)} spent")
    if status.paused_s > 0:
        parts.append(f"paused for {status.paused_s:.0f} s, as the server asked")
    return ", ".join(parts)


T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="calls", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def cancel(self) -> None:
        """Cancel what runs in it, and return when that has ended."""
        self.submit(_cancel_others()).result()

    def close(self) -> None:
        """End the loop; nothing may be left that runs in it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
