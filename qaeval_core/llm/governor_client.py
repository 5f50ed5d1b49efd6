"""Governor's door: the governor as callers see it, here or in another process.

``Asker`` awaits these methods; ``LocalGovernor`` is the one for a single process, a job wraps the
handle of an actor in the same way. A door knows its run's limits and budget.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor, Reservation, Status
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import End


class AsyncGovernor(Protocol):
    """A governor that may live elsewhere: the methods of ``Governor``, awaited."""

    async def reserve(self, *, tokens: int, usd: float) -> Reservation: ...  # noqa: D102
    async def confirm(self, call_id: str) -> Reservation | None: ...  # noqa: D102
    async def settle(  # noqa: D102
        self, call_id: str, *, tokens: int, usd: float, n_admitted: int | None = None
    ) -> None: ...
    async def failed(  # noqa: D102
        self, call_id: str, *, billed: bool, end: End | None = None
    ) -> float: ...
    async def pause(self, seconds: float) -> None: ...  # noqa: D102
    async def claim(self, key: str, *, owner: str) -> bool: ...  # noqa: D102
    async def renew(self, owner: str) -> None: ...  # noqa: D102
    async def release(self, key: str, *, owner: str) -> None: ...  # noqa: D102
    async def status(self) -> Status: ...  # noqa: D102
    async def open_calls(self) -> frozenset[str]: ...  # noqa: D102
    async def spent_at_least(self, usd: float) -> None: ...  # noqa: D102


class LocalGovernor:
    """A governor of this process, for one run.

    Parameters
    ----------
    governor : Governor
        Of the account; other runs may use it as well.
    limits : Limits
        Of this run.
    budget : Budget
        Whose money this run spends.
    """

    def __init__(self, governor: Governor, *, limits: Limits, budget: Budget) -> None:
        self._governor = governor
        self._limits = limits
        self._budget = budget

    async def reserve(self, *, tokens: int, usd: float) -> Reservation:
        """See ``Governor.reserve``."""
        return self._governor.reserve(
            tokens=tokens, usd=usd, budget=self._budget, limits=self._limits
        )

    async def confirm(self, call_id: str) -> Reservation | None:
        """See ``Governor.confirm``."""
        return self._governor.confirm(call_id)

    async def settle(
        self, call_id: str, *, tokens: int, usd: float, n_admitted: int | None = None
    ) -> None:
        """See ``Governor.settle``."""
        self._governor.settle(call_id, tokens=tokens, usd=usd, n_admitted=n_admitted)

    async def failed(self, call_id: str, *, billed: bool, end: End | None = None) -> float:
        """See ``Governor.failed``."""
        return self._governor.failed(call_id, billed=billed, end=end)

    async def pause(self, seconds: float) -> None:
        """See ``Governor.pause``."""
        self._governor.pause(seconds)

    async def claim(self, key: str, *, owner: str) -> bool:
        """See ``Governor.claim``."""
        return self._governor.claim(key, owner=owner)

    async def renew(self, owner: str) -> None:
        """See ``Governor.renew``."""
        self._governor.renew(owner)

    async def release(self, key: str, *, owner: str) -> None:
        """See ``Governor.release``."""
        self._governor.release(key, owner=owner)

    async def status(self) -> Status:
        """See ``Governor.status``; of this run's budget."""
        return self._governor.status(self._budget.name)

    async def open_calls(self) -> frozenset[str]:
        """See ``Governor.open_calls``; of all budgets."""
        return self._governor.open_calls

    async def spent_at_least(self, usd: float) -> None:
        """See ``Governor.spent_at_least``; from this run's budget."""
        self._governor.spent_at_least(usd, budget=self._budget.name)


async def reconcile(governor: AsyncGovernor, journal: Journal, *, account: str) -> int:
    """Settle calls whose replies are in the journal, after a kill; return how many.

    Calls that stay open were sent and brought no reply: what was reserved for them counts as
    spent. And no less is spent than the journal says: the ledger may be lost, and another account
    has one of its own, while the budget is the journal's.

    Parameters
    ----------
    governor : AsyncGovernor
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
    journal.check_writable()
    # The journal's sum first: what was spent by then is settled, or reserved, a moment later.
    spent_usd = journal.spent_usd()
    open_calls, n_settled = await governor.open_calls(), 0
    if open_calls:
        ended = await asyncio.to_thread(
            lambda: [
                entry
                for entry in journal.entries()
                if entry.account == account and entry.call_id in open_calls
            ]
        )
        for entry in ended:
            n_tokens = entry.n_prompt_tokens + entry.n_completion_tokens
            await governor.settle(entry.call_id, tokens=n_tokens, usd=entry.usd)
        n_settled = len(ended)
    await governor.spent_at_least(spent_usd)
    return n_settled
