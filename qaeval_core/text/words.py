"""Words: runs of letters and digits, with inner apostrophes; punctuation is dropped."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+(?:['’]\w+)*")


def words(text: str, *, lowercase: bool = True) -> list[str]:
    """Return the words of a text, without punctuation.

    Examples
    --------
    >>> words("Who didn't leave, in 1987?")
    ['who', "didn't", 'leave', 'in', '1987']
    """
    return _WORD.findall(text.lower() if lowercase else text)
