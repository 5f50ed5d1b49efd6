"""Texts that a server sends: made of whole characters, or no table can hold them."""

from __future__ import annotations


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
