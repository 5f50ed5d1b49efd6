"""Marked texts: texts of a row as people read them, with what they look for marked in the context.

A long context is cut around the first mark: from its front the answer would often not be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from qaeval_core.pages.html import escaped, within
from qaeval_core.terminal import visible

# Texts that are looked for in the context, the one that says most first.
_MARKED = ("answer", "candidate", "references")


def marked_texts(
    row: Mapping[str, object], *, n_chars: int, n_before: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each text, and its pieces: each second one is marked; the context last.

    Parameters
    ----------
    row : mapping of role to text, or texts
    n_chars : int
        Most characters of a text.
    n_before : int
        Characters of a long context before its first mark.
    """
    looked_for = [text for role in _MARKED for text in _listed(row.get(role)) if text.strip()]
    for role in sorted(row, key=lambda own: (own == "context", [*row].index(own))):
        text = "\n\n".join(_listed(row[role]))
        if role == "context":
            yield role, pieces(text, looked_for, n_chars=n_chars, n_before=n_before)
        else:
            yield role, [_clean(text, n_chars)]


def marked_html(pieces: Sequence[str]) -> str:
    """Return pieces as HTML."""
    return "".join(
        f"<mark>{escaped(own)}</mark>" if i % 2 else escaped(own) for i, own in enumerate(pieces)
    )


def pieces(text: str, looked_for: Sequence[str], *, n_chars: int, n_before: int) -> list[str]:
    """Return a context in pieces, of which each second one is what a reader looks for.

    Examples
    --------
    >>> pieces("Ann keeps bees. Bees!", ["bees", "Oslo"], n_chars=99, n_before=9)
    ['Ann keeps ', 'bees', '. ', 'Bees', '!']
    >>> pieces("Ann keeps bees. Bees!", ["bees"], n_chars=14, n_before=6)
    ['…keeps ', 'bees', '. …']
    """
    found = next(filter(None, (_places(text, own) for own in looked_for)), [])
    if found and found[0][0] > n_before and len(text) > n_chars:
        start = found[0][0] - n_before
        text = f"…{text[start:]}"
        found = [(first - start + 1, stop - start + 1) for first, stop in found]
    parts, end = [], 0
    for first, stop in found:
        if stop > n_chars:
            break
        parts += [_clean(text[end:first], n_chars), _clean(text[first:stop], n_chars)]
        end = stop
    return [*parts, _clean(within(text[end:], max(n_chars - end, 1)), n_chars)]


def _places(text: str, looked_for: str) -> list[tuple[int, int]]:
    """Return where a text has another one, in words of its own and in any case."""
    words = r"\s+".join(map(re.escape, looked_for.split()))
    return [own.span() for own in re.finditer(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE)]


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    return [str(own) for own in value] if isinstance(value, list) else [str(value)]


def _clean(text: str, n_chars: int) -> str:
    return visible(within(text, n_chars), keep="\n\t")
