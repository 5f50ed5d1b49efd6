"""Journal's totals: what all replies of a folder cost, without an index of them in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qaeval_core.llm.journal import SEGMENT
from qaeval_core.llm.journal_entry import JournalEntry, entry_of


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """Sums over a journal's replies, two to one request as well: both were paid.

    ``notes`` tell what could not be read.
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
            n_replies += 1
            nano_usd += entry.nano_usd
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


def _entries(path: Path, notes: list[str]) -> Iterator[JournalEntry]:
    n_damaged = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield entry_of(line)
                except ValueError:
                    n_damaged += 1
    except OSError as error:
        notes.append(f"cannot read {path.name}: {error.strerror}")
    if n_damaged:
        what = "1 line is" if n_damaged == 1 else f"{n_damaged:,} lines are"
        notes.append(f"{path.name}: {what} torn or damaged, left out")
