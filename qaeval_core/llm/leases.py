"""Leases: who asks a request, so that two who need the same reply pay once.

An owner's leases last from its last word on; one that died holds others up no longer. The table of
all is the governor's; a log lets it survive a kill.

But: who claims and renews for one asker is ``llm.governor_client``'s.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from qaeval_core.storage.files import AppendFile, read_own

LEASE_S = 20.0
# How many releases of one table there were, and the table's name.
Releases = tuple[str, int]
# Lines that are no longer true before the file is written anew.
_MAX_OLD_LINES = 10_000


class Claim(NamedTuple):
    """What a claim came to.

    Attributes
    ----------
    is_own : bool
        Whether the key is the owner's now.
    releases : Releases
        Those until now, to be named with the next claim.
    released_by : tuple of str, or None
        Other owners that have let a key go, or died, since the releases that the claim named: what
        they did with their keys is not known to its owner yet. None where that is not known: of
        all.
    """

    is_own: bool
    releases: Releases
    released_by: tuple[str, ...] | None


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
    log : LeaseLog, optional
        Keeps claims through a kill; those that it found hold from ``now_s`` on.
    now_s : float, default 0
        The clock.

    Examples
    --------
    >>> claims = LeaseTable(lease_s=60.0)
    >>> claims.claim("0f", owner="a", now_s=0.0), claims.claim("0f", owner="b", now_s=1.0)
    (True, False)
    >>> claims.claim("0f", owner="b", now_s=61.0)
    True
    """

    def __init__(
        self, *, lease_s: float = LEASE_S, log: LeaseLog | None = None, now_s: float = 0.0
    ) -> None:
        self._lease_s = lease_s
        self._log = log
        self._holders: dict[str, str] = {}
        self._owners: dict[str, _Owner] = {}
        self._name = uuid.uuid4().hex
        self._n_releases = 0
        self._last_release: dict[str, int] = {}  # of owners, the latest at the end
        for key, owner in log.found.items() if log is not None else ():
            self.claim(key, owner=owner, now_s=now_s)

    def __len__(self) -> int:
        return len(self._holders)

    def claim(self, key: str, *, owner: str, now_s: float) -> bool:
        """Return whether the key is the owner's now; all its claims last longer."""
        own = self._owners.get(owner)
        if own is None:
            self._forget_dead(now_s)
            own = self._owners[owner] = _Owner(0.0)
        own.until_s = now_s + self._lease_s
        holder = self._holders.get(key)
        if holder is not None and holder != owner:
            if self._owners[holder].until_s > now_s:
                return False
            self._owners[holder].keys.discard(key)
            self._count_release(holder)
        self._holders[key] = owner
        own.keys.add(key)
        if self._log is not None:
            self._log.claimed(key, owner=owner)
        return True

    def releases(self, owner: str, since: Releases | None) -> Claim:
        """Return what an owner that claims shall know of releases since then."""
        until = (self._name, self._n_releases)
        if since is None or since[0] != self._name:
            return Claim(True, until, None)
        others = []
        for other, number in reversed(self._last_release.items()):
            if number <= since[1]:
                break
            if other != owner:
                others.append(other)
        return Claim(True, until, tuple(others))

    def _count_release(self, owner: str) -> None:
        self._n_releases += 1
        self._last_release.pop(owner, None)
        self._last_release[owner] = self._n_releases

    def renew(self, owner: str, *, now_s: float) -> None:
        """Make all of an owner's claims last longer, those that lapsed and are free as well."""
        if owner in self._owners:
            self._owners[owner].until_s = now_s + self._lease_s

    def release(self, key: str, *, owner: str) -> None:
        """Let others have the key, if it is the owner's."""
        if self._holders.get(key) == owner:
            del self._holders[key]
            self._owners[owner].keys.discard(key)
        self._count_release(owner)
        if self._log is not None:
            self._log.released(key, owner=owner)

    def _forget_dead(self, now_s: float) -> None:
        dead = [name for name, owner in self._owners.items() if owner.until_s <= now_s]
        for name in dead:
            self._count_release(name)
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
