"""Claimant: one asker's claims, kept for as long as it lives, and what others wrote meanwhile."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from qaeval_core.llm.door import AsyncGovernor
from qaeval_core.llm.journal import Journal


class Claimant:
    """Claims requests for one asker.

    Parameters
    ----------
    governor : AsyncGovernor
        Who knows all claims.
    journal : Journal
        Where others, who had the claim before, left their replies.
    lease_s : float
        How long claims last after a word from here.
    """

    def __init__(self, governor: AsyncGovernor, journal: Journal, *, lease_s: float) -> None:
        self._governor = governor
        self._journal = journal
        self._renew_s = lease_s / 3
        self._owner = uuid.uuid4().hex
        self._keys: set[str] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    async def claim(self, key: str) -> bool:
        """Return whether the request is ours to ask; the journal is up to date then."""
        if key in self._keys:
            return True
        self._keys.add(key)  # Before the answer: who is cancelled meanwhile releases it.
        if not await self._governor.claim(key, owner=self._owner):
            self._keys.discard(key)
            return False
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew())
            self._renewal.add_done_callback(_look_at)
        await self._refresh()
        return True

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
        return await asyncio.to_thread(self._journal.refresh)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take an error out of a task that perhaps nobody awaits: the calls meet it too."""
    if not task.cancelled():
        task.exception()
