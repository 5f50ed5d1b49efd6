"""Suggest: the nearest known name for one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence


def nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Return a hint that names the nearest known name, or all of them if none is near.

    Examples
    --------
    >>> nearest("exponnent", ["exponent", "layers"])
    "; did you mean 'exponent'?"
    >>> nearest("zzz", ["exponent", "layers"])
    '; choose one of: exponent, layers'
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of: {', '.join(sorted(known))}"
