"""Money queue: calls of one asker that wait until others free money, first come first served.

Else rows that come later would take what is freed, and many shards begin where few could be done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qaeval_core.errors import BudgetExhaustedError

Granted = TypeVar("Granted")

# Other askers may free money as well, without a word here.
_POLL_S = 1.0


class MoneyQueue:
    """Lets calls through in order while money is short, and all at once while it is not."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    def free(self) -> None:
        """Take notice that a call has ended, or that all is over."""
        self._freed.set()

    async def reserve(
        self,
        reserve: Callable[[], Awaitable[Granted]],
        *,
        check: Callable[[], None],
        patience_s: float,
    ) -> Granted:
        """Return what is reserved, as soon as there is money for it.

        Parameters
        ----------
        reserve : callable
            Reserves, or raises BudgetExhaustedError.
        check : callable
            Raises, to end the wait.
        patience_s : float
            How long to wait for calls that were sent to free money.

        Raises
        ------
        BudgetExhaustedError
            If no open call can free enough, or none did in time.
        """
        if not self._turn.locked():
            try:
                return await reserve()
            except BudgetExhaustedError as error:
                if not error.may_free:
                    raise
        async with self._turn:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + patience_s
            while True:
                check()
                self._freed.clear()  # Before the question: what is freed meanwhile counts.
                try:
                    return await reserve()
                except BudgetExhaustedError as error:
                    if error.n_waiting:
                        until_s = loop.time() + patience_s
                    if not error.may_free or loop.time() > until_s:
                        raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_POLL_S, patience_s / 20)):
                        await self._freed.wait()
