"""Secrets: what keys of a store look like, kept out of every message.

Clients print requests and answers whole, and stores name keys, tokens and signatures in theirs.
"""

from __future__ import annotations

import os
import re

_MAX_CHARS = 300
_LEAST_CHARS = 6
# Names of variables that may hold one.
_SECRET_NAME = re.compile(
    r"^(AWS|AZURE|GOOGLE|GCP|GCS)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIALS?|SIGNATURE)",
    re.ASCII,
)
_SHAPES = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"
    r"|(?<=[?&](?:sig|sas)=)[^&\s\"]+"
    r"|(?i:(?<=x-amz-signature=)|(?<=x-amz-credential=)|(?<=x-amz-security-token=))[^&\s\"]+"
    r"|(?i:(?<=authorization: ))[^\n\"]+"
)
_HIDDEN = "***"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


def scrubbed(text: str) -> str:
    r"""Return the first line of a client's or store's message without what is secret.

    Examples
    --------
    >>> scrubbed('PUT http://x/b?sig=abc%3D&v=1 failed: <Error><Code>AccessDenied</Code>'
    ...     '<Message>key AKIAIOSFODNN7EXAMPLE is unknown</Message></Error>\n\nDebug source: ...')
    'PUT http://x/b?sig=***&v=1 failed: AccessDenied: key *** is unknown'
    """
    text = text.partition("\n\nDebug source")[0]
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        # The rest of an answer names keys, tokens and what was signed.
        said = f"{code[1]}: {message[1]}" if message is not None else code[1]
        text = f"{text.partition('<')[0]}{said}"
    for name, value in os.environ.items():
        if _SECRET_NAME.match(name) and len(value) >= _LEAST_CHARS:
            text = text.replace(value, _HIDDEN)
    return " ".join(_SHAPES.sub(_HIDDEN, text).split())[:_MAX_CHARS]


def refusal_code(text: str) -> str:
    """Return the word by which a store says why it refuses; "" if there is none."""
    found = _CODE.search(text)
    return found[1] if found is not None else ""
