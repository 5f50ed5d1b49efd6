"""Governor: the door to an account's governor, from anywhere in a cluster.

The governor is an actor (``jobs.governor_actor``). ``RayGovernor`` has the methods of
``AsyncGovernor``, on any event loop of a process that is connected to Ray, in whatever thread. Its
errors are plain ones, as if the governor were local; that the actor died is not one of them: it is
started again, or made again, and the call repeated.

No key comes here: an account is a hash.
"""

from __future__ import annotations

import asyncio
import itertools
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
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.governor_actor import Call, GovernorActor, Result
from qaeval_core.errors import RunError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Reservation, Status
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import End

__all__ = ["GovernorActor", "RayGovernor"]

_NAMESPACE = "qaeval"
_SILENT_S = 600.0
_TRY_AGAIN_S = 0.1
# A governor that dies at once, again and again, must not hold up a run for ever.
_GIVE_UP_S = 120.0


class RayGovernor:
    """The governor of an account, for a caller anywhere in the cluster.

    Used on one event loop at a time. Calls of its tasks travel together where one is under way: it
    is then one message for all that came meanwhile.

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

    def __init__(
        self,
        account: str,
        *,
        limits: Limits,
        budget: Budget,
        folder: str | Path | None = None,
        run: str | None = None,
        silent_s: float = _SILENT_S,
    ) -> None:
        self._account = account
        self._folder = None if folder is None else str(folder)
        self._limits = limits
        self._budget = budget
        self._run = run or uuid.uuid4().hex
        self._silent_s = silent_s
        self._handle: Any = None
        self._waiting: list[tuple[str, tuple[Any, ...], asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None
        self._ids = (f"{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count(1))

    async def reserve(self, *, tokens: int, usd: float) -> Reservation:
        """See ``Governor.reserve``."""
        # Named here: a call that is repeated after a kill must not be reserved for twice.
        call_id = next(self._ids)
        reservation: Reservation = await self._call(
            "reserve", tokens, usd, call_id, self._budget, self._limits, self._run
        )
        return reservation

    async def confirm(self, call_id: str) -> Reservation | None:
        """See ``Governor.confirm``."""
        reservation: Reservation | None = await self._call("confirm", call_id)
        return reservation

    async def settle(
        self, call_id: str, *, tokens: int, usd: float, n_admitted: int | None = None
    ) -> None:
        """See ``Governor.settle``."""
        await self._call("settle", call_id, tokens, usd, n_admitted)

    async def failed(self, call_id: str, *, billed: bool, end: End | None = None) -> float:
        """See ``Governor.failed``."""
        silent_s: float = await self._call("failed", call_id, billed, end)
        return silent_s

    async def pause(self, seconds: float) -> None:
        """See ``Governor.pause``."""
        await self._call("pause", seconds)

    async def claim(self, key: str, *, owner: str) -> bool:
        """See ``Governor.claim``."""
        is_ours: bool = await self._call("claim", key, owner)
        return is_ours

    async def renew(self, owner: str) -> None:
        """See ``Governor.renew``."""
        await self._call("renew", owner, self._budget.name, self._run)

    async def release(self, key: str, *, owner: str) -> None:
        """See ``Governor.release``."""
        await self._call("release", key, owner)

    async def status(self) -> Status:
        """See ``Governor.status``."""
        status: Status = await self._call("status", self._budget.name, self._run)
        return status

    async def open_calls(self) -> frozenset[str]:
        """See ``Governor.open_calls``."""
        calls: frozenset[str] = await self._call("open_calls")
        return calls

    async def spent_at_least(self, usd: float) -> None:
        """See ``Governor.spent_at_least``."""
        await self._call("spent_at_least", usd, self._budget.name)

    async def leave(self) -> None:
        """Take leave of the governor: this run sends no more; with the last one it ends.

        A call after it finds or makes a governor again.
        """
        self._handle = None
        until_s = time.monotonic() + _GIVE_UP_S
        while (actor := _find(self._account)) is not None and time.monotonic() < until_s:
            try:
                await actor.leave.remote(self._run)
                return
            except ActorDiedError:
                return
            except ActorUnavailableError:
                await asyncio.sleep(_TRY_AGAIN_S)

    async def _call(self, method: str, *arguments: object) -> Any:
        """Return a method's result; calls that wait for the same answer travel together."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((method, arguments, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await future

    async def _send(self) -> None:
        """Send what waits, in order, and what came meanwhile, until nothing waits."""
        while self._waiting:
            sent, self._waiting = self._waiting, []
            try:
                results = await self._results([(method, given) for method, given, _ in sent])
            except Exception as error:
                results = [(False, error)] * len(sent)
            for (_, _, future), (is_result, value) in zip(sent, results, strict=True):
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
                    raise RunError(f"the governor of the calls does not stay up: {error}") from None
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
        ).remote(self._account, self._folder, self._limits, self._silent_s)


def _actor_name(account: str) -> str:
    return f"qaeval-governor-{account}"


def _find(account: str) -> Any:
    """Return the handle of an account's governor, None if there is none."""
    try:
        return ray.get_actor(_actor_name(account), namespace=_NAMESPACE)
    except ValueError:
        return None
