"""Journal's totals: what all replies of a folder cost, without an index of them in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qaeval_core.files import read_own
from qaeval_core.llm.journal import SEGMENT
from qaeval_core.llm.journal_entry import Damage, JournalEntry, entries_of


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """Sums over a journal's replies, two to one request as well: both were paid.

    ``notes`` tell what could not be read; ``usd`` holds what can be read of damaged lines' money.
    """

    n_replies: int
    usd: float
    n_prompt_tokens: int
    n_completion_tokens: int
    notes: tuple[str, ...] = ()


def journal_totals(folder: Path) -> JournalTotals:
    """Return the sums over all segments of a folder, each read once; nothing is written.

    Examples
    --------
    >>> journal_totals(Path("no/such/folder")).notes
    ('cannot read replies in no/such/folder: No such file or directory',)
    """
    notes: list[str] = []
    n_replies = nano_usd = n_prompt_tokens = n_completion_tokens = 0
    for path in _segments(folder, notes):
        for entry in _entries(path, notes):
            nano_usd += entry.nano_usd
            if isinstance(entry, Damage):
                continue
            n_replies += 1
            n_prompt_tokens += entry.n_prompt_tokens
            n_completion_tokens += entry.n_completion_tokens
    return JournalTotals(
        n_replies, nano_usd / 1e9, n_prompt_tokens, n_completion_tokens, tuple(notes)
    )


def _segments(folder: Path, notes: list[str]) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if SEGMENT.match(name))
    except OSError as error:
        notes.append(f"cannot read replies in {folder}: {error.strerror}")
        return []


def _entries(path: Path, notes: list[str]) -> Iterator[JournalEntry | Damage]:
    n_damaged = nano_usd = 0
    try:
        with read_own(path) as file:
            for _, found in entries_of(file):
                if isinstance(found, Damage):
                    n_damaged += 1
                    nano_usd += found.nano_usd
                yield found
    except OSError as error:
        notes.append(f"cannot read {path.name}: {error.strerror}")
    if n_damaged:
        what = "1 line is" if n_damaged == 1 else f"{n_damaged:,} lines are"
        cost = f"; ${nano_usd / 1e9:g} of them count as spent" if nano_usd else ""
        notes.append(f"{path.name}: {what} torn or damaged, left out{cost}")
