"""Plans: what a compiled run computes: families, instances, and passes over the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.metrics.naco_settings import NacoSettings
from qaeval_core.metrics.settings import Baseline, QRelScoreSettings, Settings
from qaeval_core.models.artifact import Artifact
from qaeval_core.scoring.families import FamilyKind
from qaeval_core.signature import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPlan:
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
    def key(self) -> str:
        """Folder name below ``families/``."""
        return f"{self.name}-{self.signature.short_hash}"

    @property
    def title(self) -> str:
        """What a progress line shows."""
        return self.name

    @property
    def min_documents(self) -> int:
        """In how many documents an n-gram must be, for its frequency to be kept."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamilyPlan(FamilyPlan):
    """A family that runs a model; it has the rows for itself."""

    kind: FamilyKind
    artifact: Artifact

    @property
    def max_unit_tokens(self) -> int:
        """Tokens of the longest unit that can occur: one window."""
        n_positions = self.artifact.record.max_positions
        return min(n_positions, int(str(self.options.get("max_window_tokens", n_positions))))


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsFamilyPlan(FamilyPlan):
    """One statistic of words; statistics that are open for the same rows share one pass."""

    statistic: str

    @property
    def title(self) -> str:
        """What a progress line shows."""
        return f"words ({self.statistic})"

    @property
    def min_documents(self) -> int:
        """In how many documents an n-gram must be: CIDEr weighs one like none."""
        return 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFamilyPlan(FamilyPlan):
    """A family that asks a language model over HTTP; it runs beside the others.

    Attributes
    ----------
    settings : NacoSettings
        The endpoint, its limits, and what is asked.
    journal_path : str or None
        Folder of paid replies; None only where nothing is asked.
    keeps_replies : bool
        Whether the journal keeps the texts of replies.
    """

    settings: NacoSettings
    journal_path: str | None
    keeps_replies: bool = True


def pass_title(families: Sequence[FamilyPlan]) -> str:
    """Return what a progress line shows of the families of one pass."""
    return families[0].title if len(families) == 1 else families[0].name


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One metric instance of a run and the families its formulas read."""

    name: str
    settings: Settings
    families: Mapping[str, FamilyPlan]  # by family name, or by statistic
    baseline: Baseline
    signature: Signature
    rescaling: tuple[float, float, float] | None = None  # BERTScore's b of P, R and F

    @property
    def outputs(self) -> tuple[str, ...]:
        """Sub-scores, in column order; an unbounded GRG is not combined, details are asked for."""
        spec = METRICS[self.settings.metric]
        outputs = spec.outputs
        if not getattr(self.settings, "show_weights", False):
            outputs = tuple(output for output in outputs if output not in spec.detail_outputs)
        if isinstance(self.settings, QRelScoreSettings) and self.settings.gain == "absolute":
            return tuple(output for output in outputs if output != "")
        return outputs

    def column(self, output: str) -> str:
        """Return the column name of a sub-score."""
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
        """Families by pass over the rows: statistics of words together, each other one alone."""
        alone = [(plan,) for plan in self.families if not isinstance(plan, WordsFamilyPlan)]
        words = [plan for plan in self.families if isinstance(plan, WordsFamilyPlan)]
        first = tuple(plan for plan in words if not plan.after)
        second = tuple(plan for plan in words if plan.after)
        return (*(group for group in (first, second) if group), *alone)
