"""Request: what is to be kept, as a person says it, checked for what needs no data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.signature import hash_text
from qaeval_core.tables.corpus import ROLE_NAMES

RULES = ("paper", "extractive", "none")
UNDEFINED = ("drop", "keep", "fail")
BLANK = ("bad", "ignore")

QuotaKind: TypeAlias = Literal["equal", "most"]


@dataclass(frozen=True, slots=True)
class Quota:
    """How many rows each value of a column may have; ``most`` is ``n`` a value."""

    column: str
    kind: QuotaKind
    n: int = 0


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """Which questions of a group count as one.

    ``threshold`` is of ROUGE-L's F1, as written: a question that reaches it is a duplicate.
    """

    kind: Literal["none", "exact", "rouge_l"]
    threshold: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRequest:
    """One filter; the command line's words.

    Attributes
    ----------
    share, budget : str or float, int; optional
        The share of the rows that reach the last stage, in (0, 1], or their number.
    share_per : str, optional
        A role or column: the share is one of the rows of each of its values, the budget is divided
        over them in proportion.
    labels, label : str, optional
        A table with a column ``id``, and the column or condition that says which rows are good;
        default its column ``good``.
    blank : str
        What a row of that table without a label counts as: ``bad``, or ``ignore`` leaves it out.
    looks : tuple of int
        Numbers of labels at which certificates are planned, of this ranking or of others; they
        share what may be wrong. Empty for one look.
    within_best : str or float, optional
        The best share of the ranking that labels are drawn from; ``auto`` where ``labels`` of the
        whole ranking choose it for a sheet.
    columns : mapping of role to column
        For id, question, context and answer, where the names are others.
    encoding : str, optional
        Of tables and labels that are files of text.
    """

    rules: str = "none"
    keep: tuple[str, ...] = ()
    rank_by: str | None = None
    near_duplicates: str | None = None
    group: str | None = None
    top_k: int | None = None
    share: str | float | None = None
    budget: int | None = None
    share_per: str | None = None
    quota: str | None = None
    undefined: str = "drop"
    precision: float | None = None
    labels: str | tuple[str, ...] | None = None
    label: str | None = None
    blank: str = "bad"
    looks: tuple[int, ...] = ()
    within_best: str | float | None = None
    confidence: float = 0.95
    learn: tuple[str, ...] = ()
    label_sheet: int | None = None
    seed: int = 0
    partial: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    encoding: str | None = None

    def __post_init__(self) -> None:
        _check_choice("--rules", self.rules, RULES)
        _check_choice("--undefined", self.undefined, UNDEFINED)
        _check_choice("--blank", self.blank, BLANK)
        for role in self.columns:
            if role not in ROLE_NAMES:
                raise ConfigError(f"--column: no role {role!r}{nearest(role, ROLE_NAMES)} [QA0105]")
        for name, value in (("--top-k", self.top_k), ("--budget", self.budget)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be 1 or more [QA0104]")
        if self.label_sheet is not None and self.label_sheet < 1:
            raise ConfigError(f"--label-sheet is {self.label_sheet}; it must be 1 or more [QA0104]")
        if self.seed < 0:
            raise ConfigError(f"--seed is {self.seed}; it must be 0 or more [QA0104]")
        self._check_sizes()
        self._check_labels()
        self._check_within()
        # Whatever they raise.
        _ = self.exact_share, self.duplicates, self.quotas

    def _check_sizes(self) -> None:
        given = [
            name
            for name, value in (
                ("--share", self.share),
                ("--budget", self.budget),
                ("--precision", self.precision),
            )
            if value is not None
        ]
        # A share of each group is an earlier stage.
        if len(given) > 1 and (self.share_per is None or "--precision" not in given[1:2]):
            raise ConfigError(
                f"{' and '.join(given)} exclude each other; give one of them [QA0102]"
            )
        if self.precision is not None and not 0 < self.precision < 1:
            raise ConfigError(
                f"--precision is {self.precision:g}; it must be between 0 and 1 [QA0104]"
            )
        if not 0.5 < self.confidence < 1:
            raise ConfigError(
                f"--confidence is {self.confidence:g}; it must be above 0.5 and below 1 [QA0104]"
            )
        self._check_divided()

    def _check_divided(self) -> None:
        """Raise ConfigError unless one option at most divides a share or budget, and has one."""
        is_equal = self.quotas is not None and self.quotas.kind == "equal"
        quota, per = f"--quota {self.quota}", f"--share-per {self.share_per}"
        if is_equal and self.share_per is not None:
            raise ConfigError(
                f"{quota} and {per} both divide --share or --budget; give one of them [QA0102]"
            )
        if self.n_or_share is None and (is_equal or self.share_per is not None):
            raise ConfigError(
                f"{quota if is_equal else per} divides --share or --budget; give one of them "
                "[QA0103]"
            )

    def _check_labels(self) -> None:
        if self.labels is None and self.label is not None:
            raise ConfigError("--label says what --labels FILE means; give both [QA0103]")
        if self.precision is not None and self.labels is None and self.label_sheet is None:
            raise ConfigError("--precision needs --labels FILE [QA0103]")
        if self.learn and self.labels is None and self.label_sheet is None:
            raise ConfigError(
                "--learn needs --labels FILE; --label-sheet N draws rows to label [QA0103]"
            )
        if self.learn and self.rank_by is not None:
            raise ConfigError("--learn makes the rank; leave --rank-by out [QA0102]")
        if len(set(self.learn)) < len(self.learn):
            raise ConfigError(f"--learn names a column twice: {', '.join(self.learn)} [QA0106]")
        if self.labels is not None and self.precision is None and not self.learn:
            raise ConfigError("--labels is for --precision or --learn; give one of them [QA0102]")
        if self.label_sheet is not None and self.labels is not None and not self.is_within_auto:
            raise ConfigError(
                "--label-sheet draws rows before there are labels; leave --labels out. For a "
                "second sheet by the labels of the first one: --within-best auto [QA0102]"
            )
        if self.looks and self.precision is None:
            raise ConfigError("--looks plans certificates; give --precision [QA0103]")
        if any(n < 1 for n in self.looks):
            raise ConfigError(
                f"--looks are numbers of labels, and {min(self.looks)} is not one [QA0104]"
            )

    def _check_within(self) -> None:
        if self.within_best is None:
            return
        if self.learn:
            raise ConfigError(
                "--within-best needs a known ranking; learn first, then --rank-by combine.json "
                "[QA0102]"
            )
        if self.precision is None:
            raise ConfigError("--within-best needs --precision [QA0103]")
        if not self.is_within_auto:
            _share_of(self.within_best, "--within-best")
        elif self.label_sheet is None or self.labels is None:
            raise ConfigError(
                "--within-best auto draws a second sheet by the labels of the first; it needs "
                "--label-sheet N and --labels FILE. A certificate needs the share that it printed "
                "[QA0103]"
            )

    @property
    def label_files(self) -> tuple[str, ...]:
        """The tables of labels, of which each may be another rater's."""
        return (self.labels,) if isinstance(self.labels, str) else self.labels or ()

    @property
    def labels_name(self) -> str:
        """The tables of labels, for messages."""
        return ", ".join(self.label_files)

    @property
    def is_within_auto(self) -> bool:
        """Whether labels choose where a second sheet is drawn."""
        return str(self.within_best).strip() == "auto"

    @property
    def within(self) -> float | None:
        """The best share that labels are drawn from, as a number."""
        if self.within_best is None or self.is_within_auto:
            return None
        return float(_share_of(self.within_best, "--within-best"))

    @property
    def exact_share(self) -> Fraction | None:
        """The share as it was written: 0.29 of 100 rows are 29, whatever floats make of it."""
        return None if self.share is None else _share_of(self.share, "--share")

    @property
    def n_or_share(self) -> Fraction | int | None:
        """The share, or the budget as a number of rows; None where all are kept."""
        return self.exact_share if self.share is not None else self.budget

    @property
    def size_reason(self) -> str:
        """Why a row is dropped that a share or budget has no room for."""
        return "share" if self.budget is None else "budget"

    @property
    def is_divided(self) -> bool:
        """Whether values of a column have parts of a share or budget of their own."""
        return self.share_per is not None or (
            self.quotas is not None and self.quotas.kind == "equal"
        )

    @property
    def duplicates(self) -> NearDuplicates:
        """What counts as a duplicate; exact ones unless told."""
        text = self.near_duplicates or "exact"
        if text in ("none", "exact"):
            return NearDuplicates("none" if text == "none" else "exact")
        name, _, value = text.partition("=")
        if name != "rouge_l":
            known = ("none", "exact", "rouge_l=0.7")
            raise ConfigError(f"--near-duplicates: no {text!r}{nearest(text, known)} [QA0105]")
        try:
            threshold = _fraction(value)
        except (ValueError, ZeroDivisionError):
            threshold = Fraction(0)
        if not 0 < threshold <= 1:
            raise ConfigError(
                f"--near-duplicates {text}: it must be above 0 and at most 1 [QA0104]"
            )
        return NearDuplicates("rouge_l", threshold)

    @property
    def quotas(self) -> Quota | None:
        """How many rows a value of a column may have."""
        if self.quota is None:
            return None
        column, separator, value = self.quota.rpartition("=")
        if separator and column and value == "equal":
            return Quota(column, "equal")
        if separator and column and re.fullmatch(r"[0-9]+", value) and int(value) > 0:
            return Quota(column, "most", int(value))
        raise ConfigError(
            f"--quota is {self.quota!r}; give COLUMN=N or COLUMN=equal. For a share of each value: "
            "--share F --share-per COLUMN [QA0104]"
        )

    @property
    def delta(self) -> float:
        """How often a certificate may be wrong."""
        return round(1.0 - self.confidence, 12)  # 1 - .95 is more than .05, by rounding.

    def content(self) -> dict[str, Any]:
        """Return all that was asked for of rows, as JSON has it."""
        return {
            own.name: _plain(getattr(self, own.name))
            for own in fields(self)
            if own.name not in ("columns", "encoding")
        } | {"columns": dict(self.columns)}

    @property
    def short_hash(self) -> str:
        """Hash of all that was asked for."""
        return hash_text(repr(sorted(self.content().items())))


# A number of a thousand million digits is written in a dozen characters, and computed for ever.
_MAX_NUMBER_CHARS = 30
_EXPONENT = re.compile(r"e[+-]?0*([0-9]+)$", re.IGNORECASE)
_MAX_EXPONENT = 20


def _fraction(text: str) -> Fraction:
    """Return a number as it is written; ValueError if it is none, or none that anybody means."""
    exponent = _EXPONENT.search(text.strip())
    is_long = len(text.strip()) > _MAX_NUMBER_CHARS
    if is_long or (exponent is not None and int(exponent[1][:3]) > _MAX_EXPONENT):
        raise ValueError(f"{text} has too many digits")
    return Fraction(text)


def _share_of(value: str | float, option: str) -> Fraction:
    text = str(value).strip()
    try:
        share = _fraction(text[:-1]) / 100 if text.endswith("%") else _fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"{option} is {text!r}; it must be a number above 0 and at most 1 [QA0104]"
        ) from None
    if not 0 < share <= 1:
        raise ConfigError(f"{option} is {text}; it must be a number above 0 and at most 1 [QA0104]")
    return share


def _plain(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value):
        return value
    return list(value) if isinstance(value, tuple) else value


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{option}: no {value!r}{nearest(value, known)} [QA0105]")
