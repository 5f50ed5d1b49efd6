"""Kept claims: who was asking what when a governor was killed.

One line of JSON for each claim and release. A governor that is started again in the place of a
killed one has them all; without them a request in flight would be given to a second caller. A new
governor begins with none: who made the claims of an old one is most likely dead as well, and the
next run would wait a minute for them.

But: leases and their ends are ``llm.claims``'s; money and the last window are ``llm.ledger``'s.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from qaeval_core.files import AppendFile, read_own

# Lines that are no longer true before the file is written anew.
_MAX_OLD_LINES = 10_000


class KeptClaims:
    """Claims of one governor's life; its caller holds the ledger's lock.

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
    >>> kept = KeptClaims(path, life="a")
    >>> kept.claimed("0f", owner="me")
    >>> kept.claimed("1e", owner="me")
    >>> kept.released("0f", owner="me")
    >>> KeptClaims(path, life="a").found, KeptClaims(path, life="b").found
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
