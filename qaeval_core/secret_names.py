"""Secret names: whether a header, or a field of a request, lets requests in, by its name alone.

Values are not looked at: a secret may look like anything. What is named here goes into files of its
own, which are private; what is not is kept in settings and signatures.
"""

from __future__ import annotations

import re
from typing import Any

# A whole word of a header's name, or the end of one, such as in `authtoken`. X-Author is none, and
# a session is a secret only where the name ends with it: X-Session-Affinity says which node.
_WORD_OF_HEADER = re.compile(
    r"\w*?(?:auth|oauth2?|authorization|authentication|key|token|secret|cookie2?|password|passwd"
    r"|credentials?|signature|jwt)"
)
_SESSION = re.compile(r"session(?:[^a-z]?id)?\Z")
# Compared in small letters and without signs. max_tokens, pad_token and prompt_cache_key are none.
_FIELD = (
    r"(?:.*(?:api|access|auth|bearer|session|security|refresh|user|hf))?token"
    r"|.*(?:api|access|secret|private|user|subscription|master|auth|account)key"
    r"|.*(?:secret|password|passwd|authorization|credentials?|cookie)|x?auth|.*oauth2?|bearer|sas"
)
_OF_BODY = re.compile(_FIELD)
_OF_QUERY = re.compile(rf"{_FIELD}|.*(?:key|token)|sig|signature|code")


def is_secret_header(name: str) -> bool:
    """Whether a header's value lets requests in, by its name.

    >>> [is_secret_header(name) for name in ("api-key", "X-AuthToken", "OpenAI-Organization")]
    [True, True, False]
    >>> [is_secret_header(name) for name in ("X-Session-Id", "X-Session-Affinity", "X-Author")]
    [True, False, False]
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    return any(map(_WORD_OF_HEADER.fullmatch, words)) or bool(_SESSION.search(name.lower()))


def secret_name_in(given: Any, *, is_query: bool = False, are_headers: bool = False) -> str | None:
    """Return the first name in mappings and lists, however deep, that may be a secret's.

    Examples
    --------
    >>> secret_name_in({"models": [{"id": "m", "apiKey": "x"}]})
    'apiKey'
    >>> secret_name_in({"extra_headers": {"X-Title": "x", "X-Auth": "x"}})
    'X-Auth'
    >>> secret_name_in({"max_tokens": 5, "token_budget": 5, "author": "x", "tokenizer": "x"})
    """
    if isinstance(given, list | tuple):
        found = (secret_name_in(one, is_query=is_query, are_headers=are_headers) for one in given)
        return next(filter(None, found), None)
    if not isinstance(given, dict):
        return None
    for name, value in given.items():
        plain = re.sub(r"[^a-z0-9]", "", str(name).lower())
        is_field = (_OF_QUERY if is_query else _OF_BODY).fullmatch(plain) is not None
        if is_field or (are_headers and is_secret_header(str(name))):
            return str(name)
        below = secret_name_in(value, is_query=is_query, are_headers=plain.endswith("headers"))
        if below is not None:
            return below
    return None
