"""Governor's client: the governor as a run sees it, in this process or in another.

A client names its run, budget and limits in every call that needs them, and hands each call to a
transport: ``in_process`` for a governor of this process; a job brings one that sends messages.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor, Reservation, Status
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.leases import Claim, Releases
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import End

# Runs with other keys to the same server have another governor, and may share the journal.
_LOOK_AT_ALL_S = 60.0

P = ParamSpec("P")
T = TypeVar("T")


class Call(NamedTuple):
    """A call of a governor's method, as a transport takes it."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def do(self, governor: Governor) -> Any:
        """Return what the governor returns; its errors are raised."""
        return getattr(governor, self.method)(*self.args, **self.kwargs)


# Returns what the governor returned, or raises what it raised.
Transport = Callable[[Call], Awaitable[Any]]


def in_process(governor: Governor) -> Transport:
    """Return the transport to a governor of this process; several runs may share it."""

    async def transport(call: Call) -> Any:
        return call.do(governor)

    return transport


class GovernorClient:
    """The governor of an account, for one run; used on one event loop at a time.

    Parameters
    ----------
    transport : callable
        Takes a ``Call`` to the governor, and back what came of it.
    limits : Limits
        Of this run.
    budget : Budget
        What this run pays from.
    run : str, optional
        Names the run, the same for all its callers; by default runs are told apart by budget.

    Examples
    --------
    >>> governor = Governor(Limits())
    >>> client = GovernorClient(in_process(governor), limits=Limits(), budget=Budget("audit", 1.0))
    >>> asyncio.run(client.reserve(tokens=900, usd=0.5)).is_final, governor.status("audit").n_open
    (True, 1)
    """

    def __init__(
        self, transport: Transport, *, limits: Limits, budget: Budget, run: str | None = None
    ) -> None:
        self._transport = transport
        self._limits = limits
        self._budget = budget
        self.run = run or budget.name
        self._ids = (f"{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count(1))

    async def _call(
        self, method: Callable[Concatenate[Governor, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        result: T = await self._transport(Call(method.__name__, args, kwargs))
        return result

    async def reserve(self, *, tokens: int, usd: float) -> Reservation:
        """See ``Governor.reserve``."""
        return await self._call(
            Governor.reserve,
            tokens=tokens,
            usd=usd,
            # Named here: a call that is repeated after a kill must not be reserved for twice.
            call_id=next(self._ids),
            budget=self._budget,
            limits=self._limits,
            run=self.run,
        )

    async def confirm(self, call_id: str) -> Reservation | None:
        """See ``Governor.confirm``."""
        return await self._call(Governor.confirm, call_id)

    async def settle(
        self, call_id: str, *, tokens: int, usd: float, n_admitted: int | None = None
    ) -> None:
        """See ``Governor.settle``."""
        await self._call(Governor.settle, call_id, tokens=tokens, usd=usd, n_admitted=n_admitted)

    async def failed(self, call_id: str, *, billed: bool, end: End | None = None) -> float:
        """See ``Governor.failed``."""
        return await self._call(Governor.failed, call_id, billed=billed, end=end)

    async def pause(self, seconds: float) -> None:
        """See ``Governor.pause``."""
        await self._call(Governor.pause, seconds)

    async def claim(self, key: str, *, owner: str, since: Releases | None = None) -> Claim:
        """See ``Governor.claim``."""
        return await self._call(Governor.claim, key, owner=owner, since=since)

    async def renew(self, owner: str) -> None:
        """See ``Governor.renew``; the run lives, also where it has not reserved for long."""
        known = self._call(
            Governor.register, self.run, budget_name=self._budget.name, limits=self._limits
        )
        await asyncio.gather(known, self._call(Governor.renew, owner))

    async def release(self, key: str, *, owner: str) -> None:
        """See ``Governor.release``."""
        await self._call(Governor.release, key, owner=owner)

    async def status(self) -> Status:
        """See ``Governor.status``; of this run's budget."""
        return await self._call(Governor.status, self._budget.name, run=self.run)

    async def open_calls(self) -> frozenset[str]:
        """See ``Governor.open_calls``; of all budgets."""
        return await self._call(Governor.open_calls)

    async def spent_at_least(self, usd: float) -> None:
        """See ``Governor.spent_at_least``; from this run's budget."""
        await self._call(Governor.spent_at_least, usd, budget_name=self._budget.name)


class LeaseHolder:
    """Claims requests for one asker.

    Parameters
    ----------
    governor : GovernorClient
        Who knows all claims.
    journal : Journal
        Where others, who had the claim before, left their replies.
    lease_s : float
        How long claims last after a word from here.
    """

    def __init__(self, governor: GovernorClient, journal: Journal, *, lease_s: float) -> None:
        self._governor = governor
        self._journal = journal
        self._renew_s = lease_s / 3
        # Who hears of a release knows where the replies are; holders that share a journal differ.
        self._owner = f"{journal.writer}/{uuid.uuid4().hex}"
        self._keys: set[str] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None
        # Of others: the releases that were heard of, those that were looked after, and by whom.
        self._heard: Releases | None = None
        self._seen: Releases | None = None
        self._writers: set[str] | None = None
        self._all_seen_s = -math.inf

    async def claim(self, key: str) -> bool:
        """Return whether the request is ours to ask; the journal is up to date then."""
        if key in self._keys:
            return True
        self._keys.add(key)  # Before the answer: who is cancelled meanwhile releases it.
        claim = await self._governor.claim(key, owner=self._owner, since=self._seen)
        if not claim.is_own:
            self._keys.discard(key)
            return False
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew())
            self._renewal.add_done_callback(_look_at)
        if self._is_news(claim):
            await self._refresh()
        return True

    def _is_news(self, claim: Claim) -> bool:
        """Whether others may have written what is not known here; keeps who they are."""
        is_due = time.monotonic() - self._all_seen_s > _LOOK_AT_ALL_S
        self._heard = claim.releases
        if claim.released_by is None or self._seen is None or is_due:
            self._writers = None
        elif self._writers is not None:
            self._writers |= {owner.partition("/")[0] for owner in claim.released_by}
        # Where a look costs nothing it may find a run that has another governor.
        return self._journal.is_quick or self._writers is None or bool(self._writers)

    def holds(self, key: str) -> bool:
        """Whether the request is claimed here, or about to be."""
        return key in self._keys

    async def release(self, key: str) -> None:
        """Let others ask it, if it is claimed."""
        if key in self._keys:
            self._keys.discard(key)
            await self._governor.release(key, owner=self._owner)

    async def aclose(self) -> None:
        """Renew no more."""
        for task in (self._renewal, self._refreshing, self._next):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _renew(self) -> None:
        while self._keys:
            await asyncio.sleep(self._renew_s)
            await self._governor.renew(self._owner)

    async def _refresh(self) -> None:
        """Read what others wrote until now; calls that come together share a look."""
        # A look that is under way may have begun too early: the next one is shared.
        if self._next is None:
            self._next = asyncio.create_task(self._look())
            self._next.add_done_callback(_look_at)
        await asyncio.shield(self._next)

    async def _look(self) -> int:
        if self._refreshing is not None:
            await asyncio.wait([self._refreshing])
        self._refreshing, self._next = self._next, None
        writers, heard, now_s = self._writers, self._heard, time.monotonic()
        self._writers = set()
        try:
            n_new = await asyncio.to_thread(self._journal.refresh, writers)
        except BaseException:
            self._writers = None
            raise
        self._seen = heard
        if writers is None:
            self._all_seen_s = now_s
        return n_new


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take an error out of a task that perhaps nobody awaits: the calls meet it too."""
    if not task.cancelled():
        task.exception()


async def reconcile(governor: GovernorClient, journal: Journal, *, account: str) -> int:
    """Settle calls whose replies are in the journal, after a kill; return how many.

    Calls that stay open were sent and brought no reply: what was reserved for them counts as
    spent. And no less is spent than the journal says: the ledger may be lost, and another account
    has one of its own, while the budget is the journal's.

    Parameters
    ----------
    governor : GovernorClient
        Of the account, with the journal's budget.
    journal : Journal
        May hold replies of several accounts.
    account : str
        Of the governor: calls of others are not its own to settle.

    Raises
    ------
    RunError
        If replies cannot be kept in the journal's folder.
    """
    await asyncio.to_thread(journal.check_writable)  # A store may be away for minutes.
    # The journal's sum first: what was spent by then is settled, or reserved, a moment later.
    spent_usd = journal.spent_usd()
    open_calls, n_settled = await governor.open_calls(), 0
    if open_calls:
        ended = await asyncio.to_thread(
            lambda: [entry for entry in journal.of_calls(open_calls) if entry.account == account]
        )
        for entry in ended:
            n_tokens = entry.n_prompt_tokens + entry.n_completion_tokens
            await governor.settle(entry.call_id, tokens=n_tokens, usd=entry.usd)
        n_settled = len(ended)
    await governor.spent_at_least(spent_usd)
    return n_settled
