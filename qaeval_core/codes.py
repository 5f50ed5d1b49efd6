"""Codes: what the codes of errors and reasons mean, as ``codes.toml`` says."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Code:
    """What a code means.

    Attributes
    ----------
    cause : str
    fix : str
        What to do.
    example : str, default ""
        A message that has it; "" of reasons.
    reasons : tuple of str, default ()
        Values of reason columns; one that ends with ``_`` is a beginning.
    """

    cause: str
    fix: str
    example: str = ""
    reasons: tuple[str, ...] = ()


@cache
def read_codes() -> Mapping[str, Code]:
    """Return all codes in order."""
    text = resources.files("qaeval_core").joinpath("codes.toml").read_text(encoding="utf-8")
    return {
        code: Code(**{**told, "reasons": tuple(told.get("reasons", ()))})
        for code, told in tomllib.loads(text).items()
    }


def code_of_reason(reason: str) -> str:
    """Return the code of a reason; "" of one that a plugin brings.

    Examples
    --------
    >>> code_of_reason("empty_candidate"), code_of_reason("null_context"), code_of_reason("dull")
    ('QA1011', 'QA1001', '')
    """
    for code, told in read_codes().items():
        for own in told.reasons:
            if reason == own or (own.endswith("_") and reason.startswith(own)):
                return code
    return ""
