"""Facts: what a filter must know of each row, from a few columns of some rows.

The first pass over a corpus: 33 bytes a row come out, and what needs the row alone is decided
here, in the order of the stages: not sampled, quarantined, undefined, rules, keep.

But: duplicates, top-k, quotas and shares need all rows: `decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.errors import RunError
from qaeval_core.filter import texts
from qaeval_core.filter.request import NearDuplicates
from qaeval_core.filter.values import ValueCodes
from qaeval_core.schema import NOT_SAMPLED, QUARANTINE_REASON, is_list
from qaeval_core.tables.conditions import select_rows
from qaeval_core.tables.score_tables import column_of, flat_columns, numbers
from qaeval_core.text.column_hashes import column_hashes, decoded, readable, text_column

# Wang et al. 2022 (QRelScore), section 3.3: questions of 6 to 30 words are kept.
MIN_WORDS, MAX_WORDS = 6, 30
KEPT = 0
NO_DUPLICATES = NearDuplicates("none")


class Rank(Protocol):
    """What "best" means."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads."""

    @property
    def name(self) -> str:
        """What reasons and pages call it."""

    @property
    def higher_is_better(self) -> bool:
        """Whether values that people see are the better the higher they are."""

    def values(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return a value of each row, higher is better; NaN where it is undefined."""


@dataclass(frozen=True, slots=True)
class ColumnRank:
    """One column, or its negative where lower is better."""

    name: str
    higher_is_better: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.name,)

    def values(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return its numbers; infinite ones are undefined."""
        own = numbers(frame, self.name)
        return own if self.higher_is_better else -own


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What is decided of rows, with the columns it is decided by.

    Attributes
    ----------
    question, context, answer : str, optional
        Columns of the roles, where there are any.
    rules : tuple of str
        Names of `RULE_REASONS` that hold.
    aliases : mapping of role to column
        Names that conditions may use beside those of columns.
    group, quota, share_per : str, optional
        Columns whose equal values belong together; None where nothing is grouped.
    seed : int
        Of the hashes that break ties.
    salt : int
        Of the hashes of questions: who makes questions does not know it.
    has_ties : bool
        Whether the hashes that break ties are wanted of every row; otherwise of those that have
        an equal in their group, as far as one range of rows tells.
    """

    rank: Rank
    undefined: str = "drop"
    aliases: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    keep_columns: tuple[str, ...] = ()
    duplicates: NearDuplicates = NO_DUPLICATES
    group: str | None = None
    quota: str | None = None
    share_per: str | None = None
    question: str | None = None
    context: str | None = None
    answer: str | None = None
    seed: int = 0
    salt: int = 0
    has_ties: bool = True
    last: str = "share"

    @property
    def counted(self) -> tuple[str, ...]:
        """Columns whose values are counted."""
        return tuple(dict.fromkeys(name for name in (self.quota, self.share_per) if name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the first pass reads, without the id."""
        wanted = [*self.rank.columns, *self.keep_columns, self.group, *self.counted]
        if self.rules or self.duplicates.kind != "none":
            wanted.append(self.question)
        if {"answer_in_question", "answer_not_in_context"} & set(self.rules):
            wanted.append(self.answer)
        if "answer_not_in_context" in self.rules:
            wanted.append(self.context)
        return tuple(dict.fromkeys(name for name in wanted if name))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons by code; the first is that of kept rows."""
        undefined = dict.fromkeys(f"undefined_{name}" for name in (self.rank.name, *self.columns))
        rules = RULE_REASONS if self.rules else ()
        return (
            "",
            NOT_SAMPLED,
            "quarantined",
            *undefined,
            *rules,
            "keep",
            *LATE_REASONS,
        )

    def code(self, reason: str) -> int:
        """Return the code of a reason."""
        return self.reasons.index(reason)


RULE_REASONS = ("too_short", "too_long", "answer_in_question", "answer_not_in_context")
LATE_REASONS = ("duplicate", "top_k", "quota", "share", "budget", "precision")


@dataclass(slots=True)
class Facts:
    """What is known of some neighboring rows; arrays of shape (n_rows,), None if not asked for.

    Attributes
    ----------
    reason : uint8 ndarray
        Codes of ``Stages.reasons``; 0 of rows that later stages decide.
    rank : float64 ndarray
        -inf where it is undefined.
    tie, group, question : uint64 ndarray, optional
        Hashes of id, group and the question's tokens; a 0 in ``tie`` is not known.
    values : mapping of column to ValueCodes
        Of columns whose values are counted; rows without a value share one.
    tokens : pl.Series, optional
        Of questions, as one text; where these are compared.
    """

    reason: NDArray[np.uint8]
    rank: NDArray[np.float64]
    tie: NDArray[np.uint64] | None = None
    group: NDArray[np.uint64] | None = None
    question: NDArray[np.uint64] | None = None
    values: dict[str, ValueCodes] = field(default_factory=dict)
    tokens: pl.Series | None = None


def row_facts(table: pa.Table, ids: pa.ChunkedArray, stages: Stages, *, first_row: int) -> Facts:
    """Return what is known of rows.

    Parameters
    ----------
    table : pyarrow.Table
        With the columns of the stages, and ``quarantine_reason`` where there is one.
    ids : pyarrow.ChunkedArray
        Ids as texts; empty where hashes of them are not wanted.
    stages : Stages
    first_row : int
        Number of the first row over the whole corpus.

    Raises
    ------
    ConfigError
        If a condition cannot be told of these rows.
    """
    decided = _Decided(table, stages)
    frame = _numbers_and_texts(table, stages)
    rank = decided.rank(frame)
    question = _tokens(table, stages.question) if stages.question in stages.columns else None
    if QUARANTINE_REASON in table.column_names:
        why = table[QUARANTINE_REASON]
        decided.drop(NOT_SAMPLED, np.asarray(pc.equal(why, NOT_SAMPLED).fill_null(False)))
        decided.drop("quarantined", np.asarray(why.is_valid()))
    decided.undefined(stages.rank.name, np.isneginf(rank))
    roles = (stages.question, stages.answer, stages.context)
    for name in (*roles, stages.group, *stages.counted):
        if name in stages.columns:
            decided.undefined(name, ~np.asarray(table[name].is_valid()))
    kept = _conditions(frame, stages, decided)
    _apply_rules(table, question, stages, decided)
    decided.drop("keep", ~kept)
    facts = Facts(decided.reason, rank)
    # Of rows without a group or question: two share such a hash by chance only.
    alone = pl.int_range(first_row, first_row + table.num_rows, eager=True).hash(stages.salt)
    if stages.has_ties:
        facts.tie = texts.tie_hashes(ids, stages.seed)
    _hash_values(facts, table, stages, alone)
    if stages.duplicates.kind != "none" and question is not None:
        own = question
        if stages.duplicates.kind == "exact":
            own = texts.same_text(_texts(table, str(stages.question)))
        hashes = own.hash(stages.salt).to_numpy()
        facts.question = np.where(question.is_null().to_numpy(), alone, hashes)
        if stages.duplicates.kind == "rouge_l":
            facts.tokens = question
    return facts


def _hash_values(facts: Facts, table: pa.Table, stages: Stages, alone: pl.Series) -> None:
    """Put the hashes of groups and of counted values among the facts."""
    for name in dict.fromkeys((stages.group, *stages.counted)):
        if name is None:
            continue
        hashes, is_there = column_hashes(table[name])
        if name == stages.group:
            facts.group = np.where(is_there, hashes, alone)
        if name in stages.counted:
            facts.values[name] = ValueCodes.of(hashes)


class _Decided:
    """Reasons of rows so far: the first one that is found of a row stays."""

    def __init__(self, table: pa.Table, stages: Stages) -> None:
        self._stages = stages
        self.reason = np.zeros(table.num_rows, np.uint8)

    def drop(self, reason: str, chosen: NDArray[np.bool_]) -> None:
        """Drop rows that are not dropped yet."""
        self.reason[chosen & (self.reason == KEPT)] = self._stages.code(reason)

    def undefined(self, name: str, chosen: NDArray[np.bool_]) -> None:
        """Do with rows that lack a value what the user said."""
        if self._stages.undefined != "keep":
            self.drop(f"undefined_{name}", chosen)

    def rank(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return rank values; rows without one come after all others, if they are kept at all."""
        values = self._stages.rank.values(frame)
        return np.where(np.isnan(values), -np.inf, values)


def _numbers_and_texts(table: pa.Table, stages: Stages) -> pl.DataFrame:
    """Return the columns that ranks and conditions read."""
    names = dict.fromkeys((*stages.rank.columns, *stages.keep_columns))
    columns = {name: readable(decoded(table[name])) for name in names}
    if not columns:
        return pl.DataFrame({"": np.zeros(table.num_rows)})
    return flat_columns(pl.DataFrame(pl.from_arrow(pa.table(columns))))


def _conditions(frame: pl.DataFrame, stages: Stages, decided: _Decided) -> NDArray[np.bool_]:
    """Return which rows fulfill all conditions; what SQL calls unknown is undefined, not false."""
    kept = np.ones(frame.height, dtype=bool)
    roles = [
        pl.col(name).alias(role) for role, name in stages.aliases.items() if name in frame.columns
    ]
    beside = frame.with_columns(roles)
    for expression in stages.keep:
        try:
            chosen = select_rows(beside, expression, "--keep")
        except pl.exceptions.PolarsError as error:
            raise RunError(f"--keep {expression!r}: {error} [QA0316]") from None
        is_unknown = chosen.is_null().to_numpy()
        for name in stages.keep_columns:
            own = [
                column for column in frame.columns if column_of(column, stages.keep_columns) == name
            ]
            is_null = frame.select(pl.any_horizontal(pl.col(own).is_null())).to_series().to_numpy()
            decided.undefined(name, is_unknown & is_null)
        kept &= chosen.fill_null(stages.undefined == "keep").to_numpy()
    return kept


def _tokens(table: pa.Table, name: str | None, *, is_shared: bool = False) -> pl.Series:
    """Return tokens as one text a row; no run of them spans two passages of a list.

    Texts that neighbors share are looked at once.
    """
    assert name is not None
    column = table[name]
    if is_shared and not is_list(column.type):
        codes = _texts(table, name).to_arrow().dictionary_encode()
        distinct = pl.Series(pl.from_arrow(codes.dictionary), dtype=pl.String)
        own = texts.token_text(distinct)
        return own.gather(pl.Series(pl.from_arrow(codes.indices)))
    if not is_list(column.type):
        return texts.token_text(_texts(table, name))
    parts = _passages(column)
    own = pl.Series([text for row in parts for text in row], dtype=pl.String)
    flat = iter(texts.token_text(own).to_list())
    return pl.Series([" \n ".join(next(flat) for _ in row) for row in parts], dtype=pl.String)


def _passages(column: pa.ChunkedArray) -> list[list[str]]:
    # As bytes: what is no UTF-8 may be in there, too.
    rows = column.cast(pa.large_list(pa.large_binary())).to_pylist()
    return [[(part or b"").decode("utf-8", "replace") for part in row or ()] for row in rows]


def _whole_texts(table: pa.Table, name: str) -> pl.Series:
    """Return texts as they are; passages of a list are parted by a sign that no token holds."""
    column = table[name]
    if not is_list(column.type):
        return _texts(table, name)
    rows = [f" {texts.BETWEEN} ".join(row) for row in _passages(column)]
    return pl.Series(rows, dtype=pl.String)


def _texts(table: pa.Table, name: str) -> pl.Series:
    # In one piece: for each chunk polars would build its patterns anew.
    return pl.Series(pl.from_arrow(text_column(table[name]))).cast(pl.String).rechunk()


def _holds(
    table: pa.Table, name: str, tokens: pl.Series, *, answers: pl.Series, run: pl.Series
) -> pl.Series:
    """Return whether texts of a column hold their answers, of which ``run`` is the tokens."""
    return texts.holds_signs(texts.holds_run(tokens, run), _whole_texts(table, name), answers)


def _apply_rules(
    table: pa.Table, question: pl.Series | None, stages: Stages, decided: _Decided
) -> None:
    if not stages.rules or question is None or stages.question is None:
        return
    n_words = texts.n_words(_texts(table, stages.question))
    found = {"too_short": n_words < MIN_WORDS, "too_long": n_words > MAX_WORDS}
    if stages.answer is not None and stages.answer in stages.columns:
        answer = _tokens(table, stages.answer)
        holds = partial(_holds, table, answers=_whole_texts(table, stages.answer), run=answer)
        found["answer_in_question"] = holds(stages.question, question)
        if "answer_not_in_context" in stages.rules and stages.context is not None:
            context = _tokens(table, stages.context, is_shared=True)
            found["answer_not_in_context"] = ~holds(stages.context, context)
    for reason, chosen in found.items():
        if reason in stages.rules:
            decided.drop(reason, chosen.fill_null(False).to_numpy())
