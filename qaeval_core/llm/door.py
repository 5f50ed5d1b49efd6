"""Governor's door: the governor as callers see it, here or in another process.

``Asker`` awaits these methods; ``LocalGovernor`` is the one for a single process, a job wraps the
handle of an actor in the same way.
"""

from __future__ import annotations

from typing import Protocol

from qaeval_core.llm.governor import Governor, Grant
from qaeval_core.llm.journal import Journal


class AsyncGovernor(Protocol):
    """A governor that may live elsewhere: the methods of ``Governor``, awaited."""

    async def reserve(self, *, tokens: int, usd: float) -> Grant: ...  # noqa: D102
    async def confirm(self, call_id: str) -> Grant | None: ...  # noqa: D102
    async def settle(self, call_id: str, *, tokens: int, usd: float) -> None: ...  # noqa: D102
    async def failed(self, call_id: str, *, billed: bool) -> None: ...  # noqa: D102
    async def pause(self, seconds: float) -> None: ...  # noqa: D102
    async def slow_down(self) -> None: ...  # noqa: D102


class LocalGovernor:
    """A governor of this process."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor

    async def reserve(self, *, tokens: int, usd: float) -> Grant:
        """See ``Governor.reserve``."""
        return self._governor.reserve(tokens=tokens, usd=usd)

    async def confirm(self, call_id: str) -> Grant | None:
        """See ``Governor.confirm``."""
        return self._governor.confirm(call_id)

    async def settle(self, call_id: str, *, tokens: int, usd: float) -> None:
        """See ``Governor.settle``."""
        self._governor.settle(call_id, tokens=tokens, usd=usd)

    async def failed(self, call_id: str, *, billed: bool) -> None:
        """See ``Governor.failed``."""
        self._governor.failed(call_id, billed=billed)

    async def pause(self, seconds: float) -> None:
        """See ``Governor.pause``."""
        self._governor.pause(seconds)

    async def slow_down(self) -> None:
        """See ``Governor.slow_down``."""
        self._governor.slow_down()


def reconcile(governor: Governor, journal: Journal, *, account: str) -> int:
    """Settle calls whose replies are in the journal, after a kill; return how many.

    Calls that stay open were sent and brought no reply: what was reserved for them counts as
    spent. And no less is spent than the journal says, should the ledger be lost.

    Parameters
    ----------
    account : str
        Of the governor: a journal may hold replies of several.
    """
    open_calls, n_settled, spent_usd = governor.open_calls, 0, 0.0
    for entry in journal.entries():
        if entry.account != account:
            continue
        spent_usd += entry.usd
        if entry.call_id in open_calls:
            n_tokens = entry.n_prompt_tokens + entry.n_completion_tokens
            governor.settle(entry.call_id, tokens=n_tokens, usd=entry.usd)
            n_settled += 1
    governor.spent_at_least(spent_usd)
    return n_settled
