"""Explain: what an explanation holds, as plain records, and what JSON has of them.

What a family says is a `Part`: raw data for JSON, a line for the terminal, and for the page blocks
of four kinds (`Strip`, `Table`, `Fields`, `Passage`). Page and terminal know blocks and lines, and
no family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from qaeval_core.pages.html import Block
from qaeval_core.terminal import visible

_MAX_TEXT_CHARS = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that a family says of a target, such as a window's matches.

    Attributes
    ----------
    kind, data
        What JSON has: ``kind``, and the keys of ``data`` beside it.
    line : str
        What the terminal shows.
    blocks : sequence of Block
        What the page shows, below ``title``.
    folded : sequence of Block
        What the page shows when somebody opens ``folded_title``.
    """

    kind: str
    data: Mapping[str, object]
    line: str
    blocks: Sequence[Block]
    title: str = ""
    folded_title: str = ""
    folded: Sequence[Block] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts:
    """What one family says of the candidate against one target (the context, or a reference).

    ``statistics``: what is stored of the target, where the family has no tokens to show.
    """

    target: int
    reason: str | None
    parts: tuple[Part, ...]
    statistics: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyExplanation:
    """One family of a row: which tokens, or replies, its numbers come from.

    ``artifact`` is None of a model that was asked over HTTP, ``endpoint`` of any other. ``note``:
    why there are no tokens to show, where there could be.
    """

    key: str
    family: str
    signature: str
    model: str
    artifact: str | None
    endpoint: str | None = None
    instances: tuple[str, ...]
    target_role: str
    targets: tuple[TargetParts, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """One score column of a row; values are None where the score is undefined."""

    column: str
    stored: float | int | str | None
    now: float | int | str | None
    is_compared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceExplanation:
    """The scores of one instance of a row."""

    name: str
    metric: str
    signature: str
    reason: str | None
    scores: tuple[ScoreLine, ...]

    @property
    def main_first(self) -> list[ScoreLine]:
        """The scores, the one that says most first: its own name's, else its F1."""
        main = (self.name, f"{self.name}_f1")
        return sorted(self.scores, key=lambda line: line.column not in main)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a score of the row lies among those of all rows of the run.

    Attributes
    ----------
    edges, counts : tuple of float, tuple of int
        Bars of the distribution; edges are one more than counts.
    n_lower, n_higher, n_beside : int
        Rows of a lower and of a higher score, and, the row included, those of the same cell of
        the run's profile.
    cell_width : float
        How far scores of the same cell may be apart.
    """

    column: str
    value: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    n_lower: int
    n_higher: int
    n_beside: int
    cell_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One row of a finished run, explained.

    Attributes
    ----------
    texts : mapping of role to value
        As the input has them.
    is_equal : bool
        Whether all recomputed values equal the stored ones; None where nothing was recomputed.
    standings : tuple of Standing
        Of the first scores of the instances; () where the run kept no profile of its scores.
    """

    out: str
    file: str
    row: int
    id: str | None
    texts: dict[str, object]
    instances: tuple[InstanceExplanation, ...]
    families: tuple[FamilyExplanation, ...]
    quarantine_reason: str | None
    quarantine_message: str | None
    is_equal: bool | None
    n_compared: int
    max_difference: float
    tolerance: float
    notes: tuple[str, ...]
    environment: dict[str, object]
    standings: tuple[Standing, ...] = ()


def explanation_content(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data for JSON: NaN and infinity are null."""
    content: dict[str, Any] = _plain(explanation)
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Part):
        return _plain({"kind": value.kind, **value.data})
    if is_dataclass(value):
        return {own.name: _plain(getattr(value, own.name)) for own in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    return value


def number(value: float) -> str:
    """Return a number as people read it: four significant digits.

    Examples
    --------
    >>> number(0.123456), number(-512.25), number(3e-8), number(0.0)
    ('0.1235', '-512.2', '3e-08', '0')
    """
    return f"{value:.4g}"


def short(value: object) -> str:
    r"""Return the start of a text, or of the first of several, as one line of a terminal.

    Examples
    --------
    >>> short(["one\n two\x1b[2J", "three"])
    'one two␛[2J (+ 1 more)'
    """
    texts = value if isinstance(value, list) else [value]
    first = on_one_line(str(texts[0])) if texts else ""
    if len(first) > _MAX_TEXT_CHARS:
        first = first[: _MAX_TEXT_CHARS - 1] + "…"
    return first if len(texts) <= 1 else f"{first} (+ {len(texts) - 1} more)"


def on_one_line(text: str) -> str:
    """Return a text as a terminal can show it."""
    return visible(" ".join(text.split()))
