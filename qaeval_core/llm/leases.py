"""Leases: who asks a request, so that two who need the same reply pay once.

A holder's leases last from its last word on; one that died holds others up no longer. The table of
all is the governor's; a log lets it survive a kill; a holder claims and renews for one asker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qaeval_core.files import AppendFile, read_own

LEASE_S = 20.0


# Lines that are no longer true before the file is written anew.
_MAX_OLD_LINES = 10_000


@dataclass(slots=True)
class _Owner:
    until_s: float
    keys: set[str] = field(default_factory=set)


class LeaseTable:
    """Which owner holds which key, and until when.

    Parameters
    ----------
    lease_s : float
        How long an owner may be silent.

    Examples
    --------
    >>> claims = LeaseTable(lease_s=60.0)
    >>> claims.claim("0f", owner="a", now_s=0.0), claims.claim("0f", owner="b", now_s=1.0)
    (True, False)
    >>> claims.claim("0f", owner="b", now_s=61.0)
    True
    """

    def __init__(self, *, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        self._holders: dict[str, str] = {}
        self._owners: dict[str, _Owner] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def claim(self, key: str, *, owner: str, now_s: float) -> bool:
        """Return whether the key is the owner's now; all its claims last longer."""
        claimant = self._owners.get(owner)
        if claimant is None:
            self._forget_dead(now_s)
            claimant = self._owners[owner] = _Owner(0.0)
        claimant.until_s = now_s + self._lease_s
        holder = self._holders.get(key)
        if holder is not None and holder != owner:
            if self._owners[holder].until_s > now_s:
                return False
            self._owners[holder].keys.discard(key)
        self._holders[key] = owner
        claimant.keys.add(key)
        return True

    def renew(self, owner: str, *, now_s: float) -> None:
        """Make all of an owner's claims last longer, those that lapsed and are free as well."""
        if owner in self._owners:
            self._owners[owner].until_s = now_s + self._lease_s

    def release(self, key: str, *, owner: str) -> None:
        """Let others have the key, if it is the owner's."""
        if self._holders.get(key) == owner:
            del self._holders[key]
            self._owners[owner].keys.discard(key)

    def _forget_dead(self, now_s: float) -> None:
        dead = [name for name, owner in self._owners.items() if owner.until_s <= now_s]
        for name in dead:
            for key in self._owners.pop(name).keys:
                del self._holders[key]


class LeaseLog:
    """Claims of one governor's life; its caller holds the ledger's lock.

    One line of JSON for each claim and release. A governor that is started again in the place of a
    killed one has them all; without them a request in flight would be given to a second caller. A
    new governor begins with none: who made the claims of an old one is most likely dead as well,
    and the next run would wait a minute for them.

    Parameters
    ----------
    path : Path
        The file; its folder is there.
    life : str
        Names the governor, the same after it was killed and started again.

    Attributes
    ----------
    found : dict of str to str
        Key -> owner, of what was claimed when this life was interrupted.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "claims.jsonl"
    >>> kept = LeaseLog(path, life="a")
    >>> kept.claimed("0f", owner="me")
    >>> kept.claimed("1e", owner="me")
    >>> kept.released("0f", owner="me")
    >>> LeaseLog(path, life="a").found, LeaseLog(path, life="b").found
    ({'1e': 'me'}, {})
    """

    def __init__(self, path: Path, *, life: str) -> None:
        self._path = path
        self._life = life
        self._file = AppendFile(path)
        self.found = self._read()
        self._held = dict(self.found)
        self._rewrite()

    def claimed(self, key: str, *, owner: str) -> None:
        """Note who asks; nothing is written where that was known."""
        if self._held.get(key) != owner:
            self._held[key] = owner
            self._append(key, owner)

    def released(self, key: str, *, owner: str) -> None:
        """Note that the owner asks no more; another's claim is left as it is."""
        if self._held.get(key) == owner:
            del self._held[key]
            self._append(key, None)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def _append(self, key: str, owner: str | None) -> None:
        self._file.append(_line(key, owner))
        self._n_lines += 1
        if self._n_lines - len(self._held) > _MAX_OLD_LINES:
            self._rewrite()

    def _read(self) -> dict[str, str]:
        held: dict[str, str | None] = {}
        with read_own(self._path) as file:
            first, *lines = file.read().splitlines() or [b""]
        if first != _line("life", self._life).strip().encode():
            return {}
        for line in lines:
            # Torn: its caller was not answered and asks again.
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                ((key, owner),) = json.loads(line).items()
                if isinstance(owner, str | None):
                    held[key] = owner
        return {key: owner for key, owner in held.items() if owner is not None}

    def _rewrite(self) -> None:
        self._file.rewrite(
            [_line("life", self._life), *(_line(*claim) for claim in self._held.items())]
        )
        self._n_lines = len(self._held)


def _line(key: str, owner: str | None) -> str:
    return json.dumps({key: owner}, separators=(",", ":")) + "\n"


class AsyncLeases(Protocol):
    """A table of claims that may live elsewhere."""

    async def claim(self, key: str, *, owner: str) -> bool: ...  # noqa: D102
    async def renew(self, owner: str) -> None: ...  # noqa: D102
    async def release(self, key: str, *, owner: str) -> None: ...  # noqa: D102


class LeaseHolder:
    """Claims requests for one asker.

    Parameters
    ----------
    governor : AsyncLeases
        Who knows all claims.
    refresh : callable
        Reads what others, who had a claim before, left of replies; runs in a thread.
    lease_s : float
        How long claims last after a word from here.
    """

    def __init__(
        self, governor: AsyncLeases, refresh: Callable[[], int], *, lease_s: float
    ) -> None:
        self._governor = governor
        self._read_others = refresh
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
        return await asyncio.to_thread(self._read_others)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take an error out of a task that perhaps nobody awaits: the calls meet it too."""
    if not task.cancelled():
        task.exception()
