"""Suggest: the nearest known name for one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from qaeval_core.terminal import visible

_MAX_NAMES = 10
_MAX_CHARS = 80


def nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Return a hint that names the nearest known name, or ten of them if none is near.

    Examples
    --------
    >>> nearest("exponnent", ["exponent", "layers"])
    "; did you mean 'exponent'?"
    >>> nearest("zzz", ["exponent", "layers"])
    '; choose one of: exponent, layers'
    >>> nearest("zzz", [f"column{i:02}" for i in range(12)]).partition(", column09")[2]
    ' and 2 more'
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {_short(close[0])!r}?"
    names = sorted(known)
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"; choose one of: {', '.join(map(_short, names[:_MAX_NAMES]))}{more}"


def _short(name: str) -> str:
    """Return a name as one line shows it: columns of others may be called anything."""
    shown = visible(name)
    return shown if len(shown) <= _MAX_CHARS else f"{shown[: _MAX_CHARS - 1]}…"
