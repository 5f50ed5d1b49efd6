"""Executor: who maps a function over ranges of rows: this process, a few, or Ray's tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import Array, c_char
from multiprocessing import get_context
from multiprocessing.synchronize import Event as ProcessEvent
from types import ModuleType
from typing import Any, Protocol, TypeVar

from qaeval_core.errors import RunError
from qaeval_core.running import outage_note, stop_sign, without_pandas
from qaeval_core.running.outage_note import OutageNote
from qaeval_core.storage.path import StoragePath

T = TypeVar("T")
R = TypeVar("R")
RETRY_S = 60.0
# Starting processes takes as long as a few hundred thousand rows.
_ROWS_FOR_PROCESSES = 500_000
_LOOK_S = 0.5


class RangeExecutor(Protocol):
    """Who works on ranges."""

    def begin(self, folder: StoragePath | None, inputs: Sequence[str]) -> None:
        """Look whether whoever works sees a folder, if there is one, and some files."""

    def map(
        self, function: Callable[[T], R], items: Sequence[T], *, label: str, n_rows: Sequence[int]
    ) -> Iterator[R]:
        """Yield what a function returns of each item, in their order."""

    def settle(self) -> None:
        """Return when nobody works any more; what has not begun is given up."""


class Processes:
    """Processes of this machine, which begin when they are first needed.

    Parameters
    ----------
    most : int
        So many at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool: ProcessPoolExecutor | None = None
        self._is_over: ProcessEvent | None = None
        self._note: OutageNote | None = None

    def begin(self, n: int) -> None:
        """Begin so many of them, where none has begun yet; others begin when they are needed."""
        if self._pool is None:
            # Not forked: threads of Arrow and polars would not be there.
            context = get_context("spawn")
            self._is_over, self._note = context.Event(), OutageNote(context)
            self._pool = ProcessPoolExecutor(
                self._most,
                mp_context=context,
                initializer=_begin,
                initargs=(
                    os.getpid(),
                    self._is_over,
                    self._note.text,
                    without_pandas.is_left_out(),
                ),
            )
            for _ in range(min(n, self._most)):
                self.submit(os.getpid)

    @property
    def note(self) -> str:
        """What one of them waits for, or ""."""
        return str(self._note or "")

    def submit(self, function: Callable[..., R], *given: object) -> Future[R]:
        """Return what a process will have returned; the first ones have begun."""
        assert self._pool is not None
        with _as_children_begin():
            return self._pool.submit(function, *given)

    def stop(self, waiting: Collection[Future[Any]]) -> None:
        """Give up what has not begun, tell the rest to stop, and wait for it."""
        for future in waiting:
            future.cancel()
        if waiting and self._is_over is not None:
            self._is_over.set()
            wait(waiting)
            self._is_over.clear()

    def close(self) -> None:
        """End them."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class LocalRangeExecutor:
    """Works in this process, or in a few of this machine's.

    Parameters
    ----------
    tell : callable, optional
        Gets the label, the rows done and all rows after each item.
    n_processes : int, default 1
        With more, processes are started where the rows are worth it.
    look : callable, optional
        Called while it waits, and before each item; raises to end the work.
    least_rows : int, default 500,000
        Of fewer rows, no processes are started.
    processes : Processes, optional
        Whose they are; else its own, until `close`.
    """

    def __init__(
        self,
        tell: Callable[[str, int, int], None] | None = None,
        *,
        n_processes: int = 1,
        look: Callable[[], None] | None = None,
        least_rows: int | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._tell = tell or (lambda label, done, total: None)
        self._look = look or (lambda: None)
        self._n_processes = n_processes
        self._least_rows = _ROWS_FOR_PROCESSES if least_rows is None else least_rows
        self._is_own = processes is None
        self._processes = processes or Processes(n_processes)
        self._waiting: deque[Future[Any]] = deque()

    def begin(self, folder: StoragePath | None, inputs: Sequence[str]) -> None:
        """See what the caller sees."""

    def map(
        self, function: Callable[[T], R], items: Sequence[T], *, label: str, n_rows: Sequence[int]
    ) -> Iterator[R]:
        """Yield what a function returns of each item, in their order."""
        done, total = 0, sum(n_rows)
        self._tell(label, 0, total)
        if self._n_processes > 1 and len(items) > 1 and total >= self._least_rows:
            results = self._map_apart(function, items)
        else:
            results = self._map_here(function, items)
        for result, n in zip(results, n_rows, strict=True):
            done += n
            self._tell(label, done, total)
            yield result

    def _map_here(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for i in range(len(items)):
            self._look()
            yield function(items[i])

    def _map_apart(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        self._processes.begin(self._n_processes)
        waiting = self._waiting = deque[Future[Any]]()
        n_started = 0
        try:
            for _ in range(len(items)):
                # One more than work: results wait here, and each is of a million rows.
                while n_started < len(items) and len(waiting) <= self._n_processes:
                    waiting.append(self._processes.submit(function, items[n_started]))
                    n_started += 1
                while not wait([waiting[0]], timeout=_LOOK_S).done:  # Until then: one to settle.
                    self._look()
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process died (out of memory, or killed); run the same command again "
                "[QA0516]"
            ) from None

    def settle(self) -> None:
        """Give up what has not begun, tell the rest to stop, and wait for it."""
        self._processes.stop(self._waiting)
        self._waiting = deque()

    def close(self) -> None:
        """End its processes, where they are its own."""
        if self._is_own:
            self._processes.close()


@contextlib.contextmanager
def _as_children_begin() -> Iterator[None]:
    """Let processes that start meanwhile not load this program's main module, nor hear Ctrl-C.

    What they are given lies in others; the command line would take each of them half a second.
    Ctrl-C is the parent's to hear: one that comes while they load would end them with a traceback.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.modules["__main__"] = main


def _begin(
    parent: int, is_over: ProcessEvent, note: Array[c_char], leaves_out_pandas: bool
) -> None:
    """Let this process end soon after its parent does, however that dies, and by nothing else."""
    if leaves_out_pandas:
        without_pandas.leave_out_pandas()
    stop_sign.hear(is_over)
    outage_note.hear(note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Also of one that begins later.

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
