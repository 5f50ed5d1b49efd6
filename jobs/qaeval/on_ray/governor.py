"""Governor: one for each account of a cluster, in a process of its own, and the way to it.

The actor belongs to no run: each run on the same server and key finds it by the account's name, and
it outlives the driver and the actors that made it. When the last run leaves it ends itself; a run
that died without a word has left after ten minutes of silence.

Killed, it is started again by Ray, within about a second: the ledger and the file of claims say
what it knew, and calls that it did not answer are repeated. Repeating does no harm: a reservation
is named by its caller, and a call ends once. Its errors are plain ones, as if it were local; that
the actor died is not one of them.

A request at the server is five calls here (claim, reserve, confirm, settle, release). They cost
the actor 2.1 ms of CPU at an even 130 requests/s from two callers (0.3 of a core), nearly all of
it Ray's for the messages. Where requests come faster, a caller sends what waits in one message:
0.4 ms a request with 8 under way at once, 0.17 ms with 32, which is 2,400 requests/s.

No key comes here: an account is a hash.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    RayError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from qaeval_core.errors import QAEvalError, RunError, StoreLockedError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import Call, GovernorClient
from qaeval_core.llm.leases import LeaseLog
from qaeval_core.llm.ledger import Ledger, ledger_folder
from qaeval_core.llm.limits import Limits

_NAMESPACE = "qaeval"
_SILENT_S = 600.0
_TRY_AGAIN_S = 0.1
# A governor that dies at once, again and again, must not hold up a run for ever.
_GIVE_UP_S = 120.0
# Lost to the budget if the machine dies; a flush of some milliseconds each.
_BLOCK_USD = 0.1
# A predecessor that ends itself lets go of the ledger first; one that is killed, soon after.
_LOCK_TRIES = 10
_LOCK_WAIT_S = 0.1

# Whether a call went well, and what it returned or raised.
Result = tuple[bool, Any]


def ray_governor(
    account: str,
    *,
    limits: Limits,
    budget: Budget,
    folder: str | Path | None = None,
    run: str | None = None,
    silent_s: float = _SILENT_S,
) -> GovernorClient:
    """Return the governor of an account, for a caller anywhere in the cluster.

    Used on any event loop of a process that is connected to Ray, in whatever thread; on one at a
    time.

    Parameters
    ----------
    account : str
        Name of server and key, ``ApiKey.account``.
    limits : Limits
        Of this run.
    budget : Budget
        Of this run.
    folder : str or None, default None
        Of the ledger, on the node of the first caller; None takes the user's cache.
    run : str, optional
        Name of the run, shared by all its callers; default one of its own.
    silent_s : float, default 600
        Seconds after which a run that was not heard has left; that of the first caller counts.
    """
    ledgers = None if folder is None else str(folder)
    transport = _RayTransport(account, ledgers, limits, silent_s, budget.section)
    return GovernorClient(transport, limits=limits, budget=budget, run=run or uuid.uuid4().hex)


async def leave_governor(account: str, run: str) -> None:
    """Take leave of an account's governor: the run sends no more; with the last one it ends.

    A call after it finds or makes a governor again.
    """
    until_s = time.monotonic() + _GIVE_UP_S
    while (actor := _find(account)) is not None and time.monotonic() < until_s:
        try:
            await actor.leave.remote(run)
            return
        except ActorDiedError:
            return
        except ActorUnavailableError:
            await asyncio.sleep(_TRY_AGAIN_S)


class _RayTransport:
    """Takes calls to an account's governor, which is started or made again if it died.

    Calls of a loop's tasks travel together where one is under way: it is then one message for all
    that came meanwhile.
    """

    def __init__(self, account: str, *made_of: object) -> None:
        self._account = account
        self._made_of = made_of
        self._handle: Any = None
        self._waiting: list[tuple[Call, asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def __call__(self, call: Call) -> Any:
        """Return a call's result; calls that wait for the same answer travel together."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await future

    async def _send(self) -> None:
        """Send what waits, in order, and what came meanwhile, until nothing waits."""
        while self._waiting:
            sent, self._waiting = self._waiting, []
            try:
                results = await self._results([call for call, _ in sent])
            except Exception as error:
                results = [(False, error)] * len(sent)
            for (_, future), (is_result, value) in zip(sent, results, strict=True):
                if not future.done():  # Else its caller was cancelled.
                    future.set_result(value) if is_result else future.set_exception(value)

    async def _results(self, calls: Sequence[Call]) -> list[Result]:
        """Return what came of calls, however often the actor is killed meanwhile.

        Raises
        ------
        RunError
            If it cannot be kept alive.
        """
        until_s = time.monotonic() + _GIVE_UP_S
        while True:
            if self._handle is None:
                self._handle = self._find_or_make()
            try:
                results: list[Result] = await self._handle.answer.remote(calls)
                return results
            except (ActorDiedError, ActorUnavailableError, ActorUnschedulableError) as error:
                # One that has ended itself; or one whose node is gone.
                self._handle = None
                if time.monotonic() > until_s or getattr(error, "actor_init_failed", False):
                    raise RunError(
                        "the governor, which keeps the limits of calls, does not stay alive: "
                        f"{error} [QA0608]"
                    ) from None
                await asyncio.sleep(_TRY_AGAIN_S)

    def _find_or_make(self) -> Any:
        here = ray.get_runtime_context().get_node_id()
        return GovernorActor.options(  # type: ignore[attr-defined]
            name=_actor_name(self._account),
            namespace=_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            # Where its ledger is; elsewhere only if this node is gone.
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
        ).remote(self._account, *self._made_of)


def _actor_name(account: str) -> str:
    return f"qaeval-governor-{account}"


def _find(account: str) -> Any:
    """Return the handle of an account's governor, None if there is none."""
    try:
        return ray.get_actor(_actor_name(account), namespace=_NAMESPACE)
    except ValueError:
        return None


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class GovernorActor:
    """The governor of one account; it does what calls say.

    One thread: order is first come, first served.

    Parameters
    ----------
    account : str
        Name of server and key, ``ApiKey.account``.
    folder : str or None
        Of the ledger, on this node; None takes the user's cache.
    limits : Limits
        Until the first reservation says others.
    silent_s : float
        Seconds after which a run that was not heard has left.
    section : str
        Of the settings that messages name, with its dot.
    """

    def __init__(
        self, account: str, folder: str | None, limits: Limits, silent_s: float, section: str
    ) -> None:
        self._account = account
        self._folder = ledger_folder(folder)
        self._limits = limits
        self._silent_s = silent_s
        self._section = section
        self._governor: Governor | None = None
        self._ledger: Ledger | None = None
        self._lease_log: LeaseLog | None = None
        # Whoever made this actor may have no word for it yet, for as long as a run may be silent.
        self._first_until_s = time.monotonic() + silent_s
        myself = ray.get_runtime_context().current_actor
        threading.Thread(target=_sweep, args=(myself, silent_s), daemon=True).start()

    def answer(self, calls: Sequence[Call]) -> list[Result]:
        """Do calls in order, and return what came of each; an error is that of its call alone."""
        try:
            governor = self._open()
        except QAEvalError as error:
            # There is no governor: not one try to open it for each call.
            return [(False, error)] * len(calls)
        return [_result(governor, call) for call in calls]

    # Not repeated: the caller sees the actor die, as it should.
    @ray.method(max_task_retries=0)  # type: ignore[untyped-decorator]
    def leave(self, run: str) -> None:
        """Forget a run; end with the last one."""
        self._first_until_s = 0.0
        if self._governor is None or self._governor.unregister(run):
            self._end()

    @ray.method(max_task_retries=0)  # type: ignore[untyped-decorator]
    def sweep(self) -> None:
        """Forget runs that were not heard for long; end with the last one."""
        is_unused = self._governor is None or self._governor.forget_silent()
        if is_unused and time.monotonic() > self._first_until_s:
            self._end()

    def _open(self) -> Governor:
        """Return the governor, with its ledger taken; not in ``__init__``, whose errors Ray hides.

        Raises
        ------
        StoreLockedError
            If another Ray cluster of this machine has the account's governor. The next call tries
            again.
        """
        if self._governor is None:
            try:
                self._governor = self._make()
            except OSError as error:
                raise RunError(
                    f"cannot keep the record of calls in {self._folder}: {error.strerror} "
                    f"({self._section}ledger_path) [QA0606]"
                ) from None
        return self._governor

    def _make(self) -> Governor:
        self._ledger = self._ledger or self._take_ledger()
        self._lease_log = LeaseLog(
            self._folder / f"claims-{self._account}.jsonl",
            life=ray.get_runtime_context().get_actor_id(),
        )
        return Governor(
            self._limits, ledger=self._ledger, lease_log=self._lease_log, silent_s=self._silent_s
        )

    def _take_ledger(self) -> Ledger:
        for n_left in reversed(range(_LOCK_TRIES)):
            try:
                return Ledger(
                    self._folder,
                    self._account,
                    keep_s=self._limits.span_s,
                    block_usd=_BLOCK_USD,
                    section=self._section,
                )
            except StoreLockedError as error:
                if n_left == 0:
                    raise StoreLockedError(
                        f"{error.text}: another Ray of this machine calls the same server with the "
                        "same key. Join that cluster (--address) to share the limits, or wait for "
                        "its run [QA0607]"
                    ) from None
            time.sleep(_LOCK_WAIT_S)
        raise AssertionError

    def _end(self) -> None:
        # Before the end: the next one may be quicker than the death of this process.
        for file in (self._lease_log, self._ledger):
            if file is not None:
                with contextlib.suppress(QAEvalError):  # A full disk: nothing is left to be done.
                    file.close()
        ray.actor.exit_actor()


def _result(governor: Governor, call: Call) -> Result:
    try:
        return True, call.do(governor)
    except QAEvalError as error:
        return False, error


def _sweep(actor: Any, silent_s: float) -> None:
    """Remind the own actor to look for silent runs, which it does on its own thread."""
    # Subtle: waited for. An actor does not end while a call that it made itself is open.
    with contextlib.suppress(RayError):
        while True:
            time.sleep(silent_s / 10)
            ray.get(actor.sweep.remote())
