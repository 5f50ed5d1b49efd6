"""Text notes: what a look at some texts tells that their owner may want to know.

Texts that were lists before somebody printed them, as CSV makes everybody do; and languages that
put no space between words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# JSON, what Python prints of a list, tuple or record, and numpy's list with or without a name.
_PRINTED = re.compile(
    r"\s*(?:array\()?(?:\[\s*(?:[\"'].*)?\]|\{\s*[\"'].*\}|\(\s*([\"']).*\1\s*,?\s*\))"
    r"(?:,[^\[\]]*)?\)?\s*",
    re.DOTALL,
)
MAX_LOOKED_AT = 256  # texts, the first ones
_LEAST_SHARE = 0.5
# Thai, Lao, Burmese and Khmer; kana and Chinese signs; Hangul, whose words are mostly phrases.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"
)
_LETTER = re.compile(r"[^\W\d_]")
_MAX_SHOWN_CHARS = 60
_MAX_CHARS = 10_000


def printed_note(column: str, values: Iterable[object]) -> str | None:
    """Return a note on a column most of whose texts look like printed lists; None for others.

    Parameters
    ----------
    values : iterable of object
        Some of its values: texts, and those of lists; what is no text does not count.

    Examples
    --------
    >>> print(printed_note("references", ['["Oslo", "in Oslo"]', "[]", None]))
    column 'references' holds texts that look like printed lists, such as '["Oslo", "in Oslo"]'. \
Each is read as one text; polars' str.json_decode or json.loads make lists of them
    >>> printed_note("references", ["Oslo", "[sic]"]) is None
    True
    """
    lists = (value if isinstance(value, list) else [value] for value in values)
    texts = [text for own in lists for text in own if isinstance(text, str) and text.strip()]
    printed = [text for text in texts if _PRINTED.fullmatch(text[:_MAX_CHARS])]
    if not printed or len(printed) < _LEAST_SHARE * len(texts):
        return None
    shown = next((text for text in printed if text.strip() != "[]"), printed[0])
    return (
        f"column {column!r} holds texts that look like printed lists, such as "
        f"{shown[:_MAX_SHOWN_CHARS]!r}. Each is read as one text; polars' str.json_decode or "
        "json.loads make lists of them"
    )


def is_unspaced(values: Iterable[object]) -> bool:
    """Return whether most letters of some texts are of scripts that are not read word by word.

    Examples
    --------
    >>> is_unspaced(["ミツバチを飼うのは誰?", "Ann"]), is_unspaced(["Who keeps 蜂?"])
    (True, False)
    """
    text = "".join(value[:_MAX_CHARS] for value in values if isinstance(value, str))
    return 2 * len(_UNSPACED.findall(text)) > len(_LETTER.findall(text))
