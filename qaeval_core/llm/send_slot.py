"""SendSlot: one call's way from its reservation to the moment when it is sent.

Most of the wait is slept before a connection is asked for, the rest with the connection at hand.
So a call is sent within milliseconds of its time, however long a connection takes, and there is
nothing left to delay it after the last look at the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from qaeval_core.errors import BudgetExhaustedError
from qaeval_core.llm.governor import Reservation
from qaeval_core.llm.governor_client import GovernorClient

# A connection that was idle for as long as the client keeps one, and then waits here, must be
# younger than what servers close: uvicorn after 5 s.
LEAD_S = 2.0
# Other askers may free money as well, without a word here.
_POLL_S = 1.0


class NotYetError(Exception):
    """Its time is further away than a connection can be kept: approach again."""


class SendSlot:
    """Reserves, waits and confirms for one call.

    Parameters
    ----------
    governor : GovernorClient
        Who says when.
    tokens, usd : int, float
        The most that the call can hold and cost.
    sleep : callable
        Sleeps for seconds, perhaps none; may raise, to end the wait.
    patience_s : float
        How long to wait for calls that were sent to free money.
    queue : BudgetQueue
        Of all calls that spend the same money here.
    place : int
        In that queue: lower ones go first.

    Attributes
    ----------
    call_id : str or None
        The reserved call.
    is_passed : bool
        Whether the call may have been sent.
    """

    def __init__(
        self,
        governor: GovernorClient,
        *,
        tokens: int,
        usd: float,
        sleep: Callable[[float], Awaitable[None]],
        patience_s: float,
        queue: BudgetQueue,
        place: int,
    ) -> None:
        self._governor = governor
        self._tokens = tokens
        self._usd = usd
        self._sleep = sleep
        self._patience_s = patience_s
        self._queue = queue
        self._place = place
        self._reservation: Reservation | None = None
        self._asked_s = self._at_s = 0.0
        self.is_passed = False

    @property
    def call_id(self) -> str | None:
        """Id of the reserved call."""
        return self._reservation.call_id if self._reservation is not None else None

    async def approach(self) -> None:
        """Reserve, if that was not done, and sleep until a connection should be asked for."""
        reserved = self._reservation or await self._ask()
        while not reserved.is_final and reserved.late_s > LEAD_S:
            # Due to ask again long before the call's own time, without a connection.
            await self._sleep(self._left_s())
            reserved = await self._ask()
        left_s = self._left_s()
        await self._sleep(min(left_s, left_s + reserved.late_s - LEAD_S))

    async def wait(self) -> None:
        """Return at the moment when the call is to be sent.

        Raises
        ------
        NotYetError
            If a pause, or being late, put that moment off.
        """
        reserved = self._reservation or await self._ask()
        while True:
            left_s = self._left_s()
            if left_s > LEAD_S:
                raise NotYetError
            await self._sleep(left_s)
            if reserved.is_final and self._left_s() + reserved.late_s >= 0.0:
                self.is_passed = True
                return
            reserved = await self._ask()

    def _left_s(self) -> float:
        """Seconds until the granted time, negative after it, as pessimistic as can be."""
        return self._at_s - time.monotonic()

    async def _ask(self) -> Reservation:
        # Before asking: nobody knows when, until the answer came, the governor looked.
        self._asked_s = time.monotonic()
        known = self._reservation and await self._governor.confirm(self._reservation.call_id)
        if known is None:
            self._reservation = None
            known = await self._queue.reserve(
                self._reserve,
                place=self._place,
                sleep=self._sleep,
                patience_s=self._patience_s,
            )
        self._reservation = known
        self._at_s = self._asked_s + known.wait_s
        return known

    async def _reserve(self) -> Reservation:
        self._asked_s = time.monotonic()
        return await self._governor.reserve(tokens=self._tokens, usd=self._usd)


class BudgetQueue:
    """Lets calls through by their places while money is short, and all at once while it is not.

    Else rows that come later would take what is freed, and many shards begin where few could be
    done. They come out of order, too: each looks into the journal first, in a thread.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._places = itertools.count()
        self._freed = asyncio.Event()

    def next_place(self) -> int:
        """Return the place of a call that comes now."""
        return next(self._places)

    def free(self) -> None:
        """Take notice that a call has ended, or that all is over."""
        self._freed.set()

    async def reserve(
        self,
        reserve: Callable[[], Awaitable[Reservation]],
        *,
        place: int,
        sleep: Callable[[float], Awaitable[None]],
        patience_s: float,
    ) -> Reservation:
        """Return what is reserved, as soon as there is money for it.

        Parameters
        ----------
        reserve : callable
            Reserves, or raises BudgetExhaustedError.
        place : int
            One of ``next_place``; of those that wait, the lowest goes first.
        sleep : callable
            Raises, to end the wait.
        patience_s : float
            How long to wait for calls that were sent to free money.

        Raises
        ------
        BudgetExhaustedError
            If no open call can free enough, or none did in time.
        """
        if not self._is_taken:
            try:
                return await reserve()
            except BudgetExhaustedError as error:
                if not error.may_free:
                    raise
        async with self._turn(place):
            loop = asyncio.get_running_loop()
            until_s = loop.time() + patience_s
            while True:
                await sleep(0.0)
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

    @contextlib.asynccontextmanager
    async def _turn(self, place: int) -> AsyncIterator[None]:
        if self._is_taken:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (place, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # It was its turn already.
                    self._pass_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the lowest place; it stays taken on the way there."""
        while self._waiting:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
