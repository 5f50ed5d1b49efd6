"""Words: runs of letters and digits, with inner apostrophes; punctuation is dropped."""

from __future__ import annotations

import re

_WORD = r"\w+(?:['’]\w+)*"


def words(text: str, *, lowercase: bool = True, also: str = "") -> list[str]:
    """Return the words of a text, without punctuation; a sign ``also`` is a word of its own.

    Examples
    --------
    >>> words("Who didn't leave, in 1987?")
    ['who', "didn't", 'leave', 'in', '1987']
    """
    pattern = f"{_WORD}|{re.escape(also)}" if also else _WORD
    return re.findall(pattern, text.lower() if lowercase else text)
