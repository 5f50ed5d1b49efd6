"""Plans: what a compiled run computes: families, instances, and passes over the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.config import RunConfig
from qaeval_core.metrics.base import AnyMetric, Column, PassFacts, Read, Settings
from qaeval_core.models.artifact import Artifact, ArtifactRequest
from qaeval_core.signature import Signature

ResolveArtifact = Callable[[ArtifactRequest], Artifact]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPlan(ABC):
    """One family of a run: what to compute and the key of its commits.

    Attributes
    ----------
    after : str
        Key of the family whose counts over the corpus this one reads, or "".
    frequencies_path : str
        File of document frequencies: given, or below OUT where ``after`` makes it; "" where none
        are read.
    words : str
        How texts were split: document frequencies of other words would be wrong ones.
    """

    name: str
    options: Mapping[str, object]
    columns: Mapping[str, str]
    signature: Signature
    rows_per_shard: Mapping[str, int]  # by device
    max_shard_bytes: int | None = None  # of text; None is the run's
    after: str = ""
    frequencies_path: str = ""
    words: str = ""

    @property
    @abstractmethod
    def facts(self) -> PassFacts:
        """What a metric may know of the pass."""

    @property
    def key(self) -> str:
        """Folder name below ``families/``."""
        return f"{self.name}-{self.signature.short_hash}"

    @property
    def title(self) -> str:
        """What a progress line shows."""
        return self.name

    @property
    def shares_rows(self) -> bool:
        """Whether families of its kind that are open for the same rows share one pass."""
        return False

    @property
    def min_documents(self) -> int:
        """In how many documents an n-gram must be, for its frequency to be kept."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What families are planned from, besides what a metric says.

    Attributes
    ----------
    instance : str
        Whose families are planned.
    columns : mapping of role to column
        What the roles are read from; part of a family's signature.
    device : {"cpu", "cuda"}
        Decides the precision where it is ``auto``.
    resolve_artifact : callable
        ArtifactRequest -> Artifact; may build it.
    corpus : str
        Hash of the rows, for statistics that depend on all of them.
    """

    config: RunConfig
    instance: str
    columns: Mapping[str, str]
    device: str
    resolve_artifact: ResolveArtifact
    corpus: str

    def columns_of(self, roles: Sequence[str]) -> dict[str, str]:
        """Return the columns of some roles; those without one are left out."""
        return {role: self.columns[role] for role in roles if role in self.columns}

    def counts_path(self, counted: FamilyPlan) -> str:
        """Return where, below OUT, the counts of a family over this corpus lie."""
        return f"corpus/{counted.key}-{self.corpus}.parquet"


class Family(ABC):
    """A kind of raw statistics: constants that do not depend on a run, and how it is planned."""

    name: str  # of its commits; families of words have one name together
    version: str  # of the implementation: raise it when numbers change

    @abstractmethod
    def plan(self, read: Read, context: Context) -> tuple[FamilyPlan, ...]:
        """Return the family as a metric reads it, and before it what it waits for.

        Raises
        ------
        ConfigError
            If settings do not go together, or a file does not fit.
        """

    def requests(self, read: Read, config: RunConfig, *, device: str) -> list[ArtifactRequest]:
        """Return the artifacts that it runs."""
        return []


def pass_title(families: Sequence[FamilyPlan]) -> str:
    """Return what a progress line shows of the families of one pass."""
    return families[0].title if len(families) == 1 else families[0].name


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One metric instance of a run and the families its formula reads."""

    name: str
    metric: AnyMetric
    settings: Settings  # resolved
    families: Mapping[str, FamilyPlan]  # by the name that the metric reads them by
    signature: Signature

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that it writes, in order."""
        return self.metric.shown_columns(self.settings)

    def column(self, output: str) -> str:
        """Return the name of a column in the scores."""
        return f"{self.name}_{output}" if output else self.name

    @property
    def reason_column(self) -> str:
        """Column that says why a score is undefined."""
        return f"{self.name}_reason"

    @property
    def statistics_column(self) -> str:
        """Column of the statistics that corpus scores are summed from."""
        return f"{self.name}_statistics"


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """All families (each once) and instances of a run."""

    families: tuple[FamilyPlan, ...]
    instances: tuple[InstancePlan, ...]

    @property
    def passes(self) -> tuple[tuple[FamilyPlan, ...], ...]:
        """Families by pass over the rows: those that share rows together, each other one alone."""
        alone = [(plan,) for plan in self.families if not plan.shares_rows]
        sharing = [plan for plan in self.families if plan.shares_rows]
        first = tuple(plan for plan in sharing if not plan.after)
        second = tuple(plan for plan in sharing if plan.after)
        return (*(group for group in (first, second) if group), *alone)
