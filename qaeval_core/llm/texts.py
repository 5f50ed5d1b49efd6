"""Texts that a server sends: made of whole characters, or no table can hold them."""

from __future__ import annotations

# Of a reply's text, in UTF-8: some 16,000 tokens. Escaped it is 400 kB of the journal at most.
MAX_REPLY_BYTES = 64 << 10
_THOUGHT_ENDS = ("</think>", "</thinking>")


def whole_text(text: str) -> str:
    r"""Return a text in which each half of a surrogate pair is U+FFFD; two halves are joined.

    Servers cut a reply between the halves of an emoji, and JSON may say so: ``"\ud83d"``. Arrow,
    and every file in UTF-8, refuses such a text.

    Examples
    --------
    >>> whole_text("Ann \ud83d"), whole_text("Ann \ud83d\ude00") == "Ann \U0001f600"
    ('Ann �', True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def kept_text(text: str, *, max_bytes: int = MAX_REPLY_BYTES) -> str:
    """Return what is kept and read of a reply's text: all of it, unless it is too long.

    Of one that is too long, thoughts go first, as they do where replies are read; what is left
    ends after ``max_bytes``. So the text that was read is the text that the journal has.

    Examples
    --------
    >>> kept_text("Natürlich", max_bytes=4), kept_text("<think>Hm.</think>Ann", max_bytes=4)
    ('Nat', 'Ann')
    """
    content = text.encode("utf-8", "surrogatepass")
    if len(content) <= max_bytes:
        return text
    end = max((text.rfind(mark) + len(mark) for mark in _THOUGHT_ENDS if mark in text), default=0)
    return text[end:].encode("utf-8", "surrogatepass")[:max_bytes].decode("utf-8", "ignore")
