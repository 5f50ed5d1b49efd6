"""Journal's entry: one paid reply, and the line that keeps it.

What a line says is believed as far as it can be: types, ranges, and money that its tokens may have
cost. Of a line that cannot be read the money counts, where that can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, BinaryIO, NamedTuple

from qaeval_core.llm.sealed_lines import MAX_LINE_BYTES, Line, fields_of, lines_of, sealed

_MAX_COUNT = 2**31 - 1
# A thousand times the dearest model's price of 2026, and what is paid for where a server tells no
# counts: the prompt's bytes and its template's tokens.
_MAX_USD_PER_TOKEN = 1.0
_MAX_TOKENS_PER_COUNTED = 16
_MAX_TOKENS_BESIDE = 1024
_MAX_USD = 10_000.0
_MAX_AT = 1e11  # seconds since 1970: in the year 5138
_KEY = re.compile(r"(?:[0-9a-f]{2})+", re.ASCII)
# As they stand side by side in a line, sealed or not. A text's own quotes are escaped there.
_COSTS = re.compile(
    rb'"n_prompt_tokens":(\d{1,10}),"n_completion_tokens":(\d{1,10}),"usd":([0-9.e+-]{1,24}),'
)


class Asked(NamedTuple):
    """What a reply must be to, besides its key."""

    base_url: str
    model: str
    run_index: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One paid reply.

    ``account`` names server and key (``ApiKey.account``), ``key`` the request
    (``Endpoint.request_key``). ``text`` is None where the journal keeps no texts; ``parsed`` is
    what was read from it.
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

    def answers(self, asked: Asked) -> bool:
        """Whether it says that it is a reply to this."""
        own = Asked(self.base_url.rstrip("/"), self.model, self.run_index)
        return own == asked._replace(base_url=asked.base_url.rstrip("/"))


_FIELDS = tuple(field.name for field in fields(JournalEntry))


class Damage(NamedTuple):
    """A line that is no entry, and what can be read of its cost."""

    why: str
    nano_usd: int

    def __str__(self) -> str:
        cost = f"; its ${self.nano_usd / 1e9:g} count as spent" if self.nano_usd else ""
        return f"left out ({self.why}){cost}"


def line_of(entry: JournalEntry) -> str:
    """Return the line that keeps an entry; what makes it too long to be read again is left out."""
    line = sealed(asdict(entry))
    if len(line) > MAX_LINE_BYTES and entry.text is not None:
        return line_of(replace(entry, text=None))
    if len(line) > MAX_LINE_BYTES and entry.parsed is not None:
        return line_of(replace(entry, parsed=None))
    return line


def entry_of(line: Line) -> JournalEntry:
    """Return a line as an entry; what a newer version wrote besides is left out.

    Raises
    ------
    ValueError
        If it is none: damaged, torn, without one of an entry's fields, or with one that cannot be.
    """
    found = fields_of(line)
    try:
        entry = JournalEntry(**{name: found[name] for name in _FIELDS})
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    _check_texts(entry)
    _check_numbers(entry)
    most = _most_usd(entry.n_prompt_tokens + entry.n_completion_tokens)
    if not 0 <= entry.usd <= most:
        raise ValueError(f"it cannot have cost ${entry.usd:g}")
    return entry


def _check_texts(entry: JournalEntry) -> None:
    for name in ("key", "call_id", "account", "base_url", "model"):
        if not isinstance(getattr(entry, name), str):
            raise ValueError(f"{name} is no text")
    for name in ("text", "finish_reason"):
        if not isinstance(getattr(entry, name), str | None):
            raise ValueError(f"{name} is no text")
    if not isinstance(entry.parsed, dict | None):
        raise ValueError("parsed is no object")
    if not _KEY.fullmatch(entry.key):
        raise ValueError("key is no hash")


def _check_numbers(entry: JournalEntry) -> None:
    for name in ("run_index", "n_prompt_tokens", "n_completion_tokens"):
        count = getattr(entry, name)
        if type(count) is not int or not 0 <= count <= _MAX_COUNT:
            raise ValueError(f"{name} is no count")
    for name in ("usd", "at"):
        number = getattr(entry, name)
        # NaN compares false; an int of a thousand digits is compared without being converted.
        if type(number) not in (int, float) or not abs(number) < _MAX_AT:
            raise ValueError(f"{name} is no number")


def _most_usd(n_tokens: int) -> float:
    most = _MAX_TOKENS_PER_COUNTED * n_tokens + _MAX_TOKENS_BESIDE
    return min(most * _MAX_USD_PER_TOKEN, _MAX_USD)


def entries_of(file: BinaryIO) -> Iterator[tuple[Line, JournalEntry | Damage]]:
    """Yield the lines of a segment from where it stands, with what they say."""
    for line in lines_of(file):
        try:
            yield line, entry_of(line)
        except ValueError as error:
            yield line, Damage(str(error), _nano_usd_in(line.content))


def _nano_usd_in(content: bytes) -> int:
    """Return what the replies of a damaged line cost, as far as that stands there and can be."""
    total = 0.0
    for n_prompt_tokens, n_completion_tokens, said in _COSTS.findall(content):
        try:
            usd = float(said)
        except ValueError:
            continue
        if 0 <= usd <= _most_usd(int(n_prompt_tokens) + int(n_completion_tokens)):
            total += usd
    return round(total * 1e9)
