"""Journal's entry: one paid reply, the line that keeps it, and the name of what was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One paid reply.

    ``account`` names server and key (``ApiKey.account``), ``key`` the request (``request_key``).
    ``text`` is None where the journal keeps no texts; ``parsed`` is what was read from it.
    """

    key: str
    call_id: str
    account: str
    base_url: str
    model: str
    run_index: int
    text: str | None
    parsed: Mapping[str, Any] | None
    finish_reason: str | None
    n_prompt_tokens: int
    n_completion_tokens: int
    usd: float
    at: float  # seconds since 1970

    @property
    def nano_usd(self) -> int:
        """What it cost, in billionths of a dollar: sums of integers are exact."""
        return round(self.usd * 1e9)


_FIELDS = tuple(field.name for field in fields(JournalEntry))


def entry_of(line: bytes) -> JournalEntry:
    """Return a line as an entry; what a newer version wrote besides is left out.

    Raises
    ------
    ValueError
        If it is none: damaged, torn, or without one of an entry's fields.
    """
    if not line.endswith(b"\n"):
        raise ValueError("a line of a journal without its end")
    try:
        found = json.loads(line)
        entry = JournalEntry(**{name: found[name] for name in _FIELDS})
        bytes.fromhex(entry.key)
        _ = entry.nano_usd
    except (LookupError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"no entry of a journal: {type(error).__name__}") from None
    return entry


def request_key(
    *,
    base_url: str,
    model: str,
    parameters: Mapping[str, object],
    messages: Sequence[Mapping[str, str]],
    run_index: int,
) -> str:
    """Return the name of a request: 64 hex digits, equal for equal requests alone.

    Examples
    --------
    >>> asked = {"model": "m", "parameters": {"temperature": 0.7}, "run_index": 0,
    ...          "messages": [{"role": "user", "content": "Who?"}]}
    >>> key = request_key(base_url="http://localhost/v1/", **asked)
    >>> key == request_key(base_url="http://localhost/v1", **asked), len(key)
    (True, 64)
    """
    request = {
        "base_url": base_url.rstrip("/"),
        "model": model,
        "parameters": dict(parameters),
        "messages": [dict(message) for message in messages],
        "run_index": run_index,
    }
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
