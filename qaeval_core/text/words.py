"""Words: split a text as coco-caption's evaluation does, near enough to find overlap.

Text in, lower-case words out, punctuation dropped. It is a regular expression, not the Stanford
tokenizer that coco-caption starts in Java.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+(?:['’]\w+)*")


def words(text: str) -> list[str]:
    """Return the lower-case words of a text, without punctuation.

    Examples
    --------
    >>> words("Who didn't leave, in 1987?")
    ['who', "didn't", 'leave', 'in', '1987']
    """
    return _WORD.findall(text.lower())
