"""Claims: who asks a request, so that two who need the same reply pay once.

An owner's claims last for a lease from its last word on; one that died holds others up no longer.
Keys and names in, yes or no out: nothing is asked or waited for here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LEASE_S = 20.0


@dataclass(slots=True)
class _Owner:
    until_s: float
    keys: set[str] = field(default_factory=set)


class Claims:
    """Which owner holds which key, and until when.

    Parameters
    ----------
    lease_s : float
        How long an owner may be silent.

    Examples
    --------
    >>> claims = Claims(lease_s=60.0)
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
