"""Metric: what one module of this package has to say of its metric; the contract with the rest.

A metric names the families it reads, and makes its columns of their statistics once these are
joined. It sees numbers and settings alone: no file, model or row.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.targets import Targets

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# score, exact: numbers of 32 and 64 bits; count: integers; word: one of a few; text: another in
# each row; detail: JSON, written on request.
ColumnKind = Literal["score", "exact", "count", "word", "text", "detail"]


class Section(BaseModel):
    """A part of a configuration: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(Section):
    """Settings of one metric instance (``metrics.<instance>``)."""

    # Names of settings that change no score, and of those that name a file that does.
    without_effect: ClassVar[frozenset[str]] = frozenset()
    files: ClassVar[tuple[str, ...]] = ()

    metric: str = Field(description="name of the metric; default: the name of the instance")
    # Whose settings they are, where that is no metric of the catalog: a function or an object.
    _metric: Metric[Any] | None = PrivateAttr(None)

    @property
    def expected(self) -> tuple[str, ...]:
        """Settings that people expect in a readable signature, whatever their value."""
        return ()

    @property
    def own_metric(self) -> Metric[Any] | None:
        """The metric itself, where it was given as an object; None of one in the catalog."""
        return self._metric

    def of(self, metric: Metric[Any]) -> Self:
        """Return the same settings, of a metric that is no catalog's."""
        own = self.model_copy()
        own._metric = metric
        return own


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a metric: ``<instance>_<name>``, or ``<instance>`` where the name is empty.

    Attributes
    ----------
    name : str
    kind : str
    is_share : bool
        Whether scores lie in the metric's range, and may be shown in percent as it may be.
    """

    name: str
    kind: ColumnKind = "score"
    is_share: bool = True

    @property
    def is_score(self) -> bool:
        """Whether it holds scores."""
        return self.kind in ("score", "exact")

    @property
    def is_number(self) -> bool:
        """Whether it holds scores or counts."""
        return self.is_score or self.kind == "count"


def columns(*names: str, kind: ColumnKind = "score") -> tuple[Column, ...]:
    """Return columns of one kind."""
    return tuple(Column(name, kind) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One family that a metric reads.

    Attributes
    ----------
    family : str
        Of the table of families.
    model : str
        As the user wrote it; "" where none runs.
    roles : tuple of str
        Input roles read, where the family leaves them to the metric.
    options : mapping
        What changes the pass; part of the key of its commits.
    graph_options : mapping
        What changes the model's graph.
    corpus_counts : str
        Family whose counts over the corpus come first, or "".
    counts_file : str or None
        The same counts, given.
    settings : Settings or None
        Of the metric, for a family that has settings instead of options.
    """

    family: str
    model: str = ""
    roles: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    graph_options: Mapping[str, str] = field(default_factory=dict)
    corpus_counts: str = ""
    counts_file: str | None = None
    settings: Settings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFacts:
    """What a metric may know of a family's pass before any row is read.

    Attributes
    ----------
    version : str
        Of the family.
    settings : mapping
        What decides the numbers of the pass, but for columns.
    model : str
        Name of its model, "" where none runs; so are those below.
    n_layers : int
    activation : str or None
        Of a cross-encoder's logit.
    tokenizer_hash : str
    """

    version: str
    settings: Mapping[str, object]
    model: str = ""
    n_layers: int = 0
    activation: str | None = None
    tokenizer_hash: str = ""


Values = FloatArray | IntArray | Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Scores:
    """Columns of one instance for some rows.

    Attributes
    ----------
    columns : mapping of column name to values
        Arrays of shape (n_rows,), NaN where undefined, or as many texts.
    reasons : list of str or None
        Why a row's score is undefined; None where it is not.
    sums : float ndarray of shape (n_rows, n_statistics), optional
        What the corpus score is summed from; NaN in rows that do not count.
    """

    columns: Mapping[str, Values]
    reasons: list[str | None]
    sums: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What rows of a corpus say of the number that ``qaeval calibrate`` finds.

    Attributes
    ----------
    key : str
        What the number belongs to: model, options and formula, not columns.
    raw : float ndarray of shape (n_rows,), optional
        Scores of which it is the mean.
    record : mapping, optional
        The number itself and what it is of, where it is no mean.
    """

    key: str
    raw: FloatArray | None = None
    record: Mapping[str, Any] = field(default_factory=dict)


S = TypeVar("S", bound=Settings)


class Metric(ABC, Generic[S]):
    """One metric; its module's docstring is its definition."""

    name: str
    title: str
    source: str  # citation, with section
    version: str = "1"  # of the formula: raise it when numbers change
    settings: type[S]
    needs: ClassVar[tuple[str, ...]]  # "words", roles of models, or "endpoint"
    roles: tuple[str, ...] = ("candidate", "references")  # input roles read
    optional_roles: tuple[str, ...] = ()  # read where there is such a column
    columns: ClassVar[tuple[Column, ...]]
    low: float = 0.0
    high: float = 1.0
    higher_is_better: bool = True
    is_symmetric: ClassVar[bool] = False  # f(candidate, reference) == f(reference, candidate)
    over_references: ClassVar[str] = "max"  # "none", "max", "clip", "mean", "max of each part"
    calibrated: ClassVar[str] = ""  # the setting that ``qaeval calibrate`` finds for a corpus
    over_examples: ClassVar[str] = "mean"  # or "sum_of_statistics", and `corpus` is there

    @property
    def definition(self) -> str:
        """What the metric is, for people: the docstring of its module."""
        return inspect.getdoc(sys.modules[type(self).__module__]) or ""

    def roles_of(self, settings: S) -> tuple[str, ...]:
        """Return the input roles that an instance reads."""
        return self.roles

    def calibrated_parts(self, settings: S) -> tuple[str, ...]:
        """Return the families of which an instance's calibrated numbers are."""
        return ()

    def calibrate(self, settings: S, part: str, read: Targets, facts: PassFacts) -> Calibration:
        """Return what rows say of one of `calibrated_parts`.

        Parameters
        ----------
        read : Targets
            Statistics of the rows.
        facts : PassFacts
            Of the family.

        Raises
        ------
        ConfigError
            If the metric has nothing to calibrate.
        """
        raise ConfigError(f"{self.name} has nothing to calibrate [QA0007]")

    @abstractmethod
    def reads(self, settings: S) -> tuple[Read, ...]:
        """Return the families that an instance reads."""

    def resolve(self, settings: S, passes: Mapping[str, PassFacts]) -> S:
        """Return settings that need no file and no model any more.

        Parameters
        ----------
        passes : mapping of family to facts

        Raises
        ------
        ConfigError
            If models do not go together, or a file does not fit.
        """
        return settings

    def signed(self, settings: S) -> dict[str, object]:
        """Return what of resolved settings decides the numbers, for the signature."""
        return settings.model_dump(mode="json", exclude={"metric"})

    @abstractmethod
    def score(self, settings: S, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows.

        Parameters
        ----------
        settings : Settings
            Resolved.
        read : mapping of family to its statistics of these rows
        """

    def shown_columns(self, settings: S) -> tuple[Column, ...]:
        """Return the columns that an instance writes: details are asked for."""
        return tuple(column for column in self.columns if column.kind != "detail")

    def corpus(self, settings: S, sums: FloatArray) -> FloatArray:
        """Return the score of corpora, of shape (...), from sums of shape (..., n_statistics).

        Raises
        ------
        ConfigError
            If it is the mean of rows.
        """
        raise ConfigError(f"the corpus score of {self.name} is the mean over rows [QA0007]")


AnyMetric = Metric[Any]
