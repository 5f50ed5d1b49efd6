"""Contract: what a family is, what one computes in a run, and how its runner takes a shard."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.configure import ModelsSection, RunConfig
from qaeval_core.families.validate import IntArray, Validated, validate_rows
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.schema import NOT_SAMPLED, POSITION, QUARANTINE_MESSAGE, QUARANTINE_REASON
from qaeval_core.signature import Signature
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.pass_stats import PassStats

ResolveArtifact = Callable[[ArtifactRequest], Artifact]
Resources = Literal["words", "model", "calls"]
LoadFrequencies = Callable[["FamilyPlan"], "DocumentFrequencies"]


class DocumentFrequencies(Protocol):
    """In how many documents of a corpus each n-gram occurs, by its hash."""

    @property
    def n_documents(self) -> int:
        """Documents of the corpus."""

    def of(self, hashes: NDArray[np.uint64], *, absent: int = 1) -> NDArray[np.int64]:
        """Return the documents that have each n-gram; ``absent`` where it is not known."""


class ShardTexts(Protocol):
    """The texts of one shard, for all families that read them together."""

    def validate(
        self,
        rows: Mapping[str, Sequence[object]],
        *,
        columns: Mapping[str, str],
        joins_passages: bool = True,
    ) -> Validated:
        """Check the shard's rows for some roles, once for all families that read these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What runs families here.

    Attributes
    ----------
    models : ModelsSection
        Budgets of batches.
    device : {"cpu", "cuda"}
    n_threads : int or None
        Threads of one operator on the CPU.
    load_frequencies : callable or None
        Returns the document frequencies that a family reads.
    open_calls : callable or None
        Returns the runner of a family that asks a language model; None where none is asked.
    """

    models: ModelsSection
    device: Device = "cpu"
    n_threads: int | None = None
    load_frequencies: LoadFrequencies | None = None
    open_calls: Callable[[FamilyPlan], Runner] | None = None

    def frequencies(self, plan: FamilyPlan) -> DocumentFrequencies | None:
        """Return the document frequencies that a family reads; None where it reads none."""
        if not plan.frequencies_path or self.load_frequencies is None:
            return None
        return self.load_frequencies(plan)


class ShardWork(Protocol):
    """What is left to do of a shard, and once it is done, the statistics of every good row."""

    @property
    def n_units(self) -> int:
        """Units to run: sequences of a model, requests to a server."""

    @property
    def n_units_unshared(self) -> int:
        """Units, had nothing been shared."""

    @property
    def n_truncated(self) -> int:
        """Units whose text was cut."""

    def statistics(self) -> Mapping[str, pa.Array]:
        """Return the raw statistics of every good row, in row order."""


W = TypeVar("W", bound=ShardWork)


@dataclass(slots=True)
class Prepared(Generic[W]):
    """A shard that is validated and laid out."""

    n_rows: int
    validated: Validated
    work: W
    stats: PassStats


class Layout(ABC, Generic[W]):
    """The road of a shard up to what runs it: validate, share, lay out. A dry run goes no further.

    Parameters
    ----------
    plan : FamilyPlan
    """

    joins_passages = True  # whether several passages are read as one text

    def __init__(self, plan: FamilyPlan) -> None:
        self._columns = plan.columns

    @abstractmethod
    def lay_out(self, values: Mapping[str, Sequence[Any]], texts: ShardTexts | None) -> W:
        """Return the work of good rows."""

    def prepare(
        self,
        rows: Mapping[str, Sequence[object]],
        texts: ShardTexts | None = None,
        *,
        chosen: NDArray[np.bool_] | None = None,
    ) -> Prepared[W]:
        """Validate and lay out a shard; CPU work that can run beside a runner.

        Parameters
        ----------
        rows : mapping of role to values
        texts : ShardTexts, optional
            Of this shard, where other families read it too.
        chosen : bool ndarray of shape (n_rows,), optional
            Which rows of the shard these are, where a sample leaves others out.
        """
        started = time.perf_counter()
        check = validate_rows if texts is None else texts.validate
        validated = check(rows, columns=self._columns, joins_passages=self.joins_passages)
        work = self.lay_out(validated.values, texts)
        n_quarantined = len(validated.quarantined)
        stats = PassStats(
            n_rows=len(validated.good) + n_quarantined,
            n_quarantined=n_quarantined,
            n_units=work.n_units,
            n_units_unshared=work.n_units_unshared,
            n_truncated=work.n_truncated,
        )
        n_rows = stats.n_rows
        if chosen is not None:
            n_rows, validated = len(chosen), _placed(validated, np.flatnonzero(chosen))
            stats.n_not_sampled = n_rows - stats.n_rows
        stats.spend("encode", time.perf_counter() - started)
        return Prepared(n_rows, validated, work, stats)

    def quarantined(self, *, n_rows: int, reason: str, message: str) -> Prepared[W]:
        """Return a shard all of whose rows are quarantined."""
        prepared = self.prepare({role: [] for role in self._columns})
        prepared.n_rows = prepared.stats.n_rows = prepared.stats.n_quarantined = n_rows
        prepared.validated.quarantined.update(dict.fromkeys(range(n_rows), (reason, message)))
        return prepared


def _placed(validated: Validated, places: IntArray) -> Validated:
    """Return the same rows by their places in the shard."""
    rows = places.tolist()
    return Validated(
        [rows[i] for i in validated.good],
        validated.values,
        {rows[i]: why for i, why in validated.quarantined.items()},
    )


class Runner(ABC):
    """Runs one family, shard by shard; kept warm between shards."""

    plan: FamilyPlan
    layout: Layout[Any]

    @abstractmethod
    def run(self, prepared: Prepared[Any], on_batch: OnBatch | None = None) -> None:
        """Compute a shard."""

    def score(self, rows: Mapping[str, Sequence[object]], *, first_position: int = 0) -> pa.Table:
        """Return the statistics of a shard, one row per input row."""
        prepared = self.layout.prepare(rows)
        self.run(prepared)
        return statistics_table(prepared, first_position=first_position)


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
    @abstractmethod
    def resources(self) -> Resources:
        """What its pass needs; families of words that are open for the same rows share one."""

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Artifacts that it runs."""
        return ()

    def with_artifact(self, find: Callable[[Artifact], Artifact]) -> FamilyPlan:
        """Return the plan with its artifacts as this node finds them."""
        return self

    @property
    def given_files(self) -> tuple[str, ...]:
        """Files of the user that every node reads."""
        return (self.frequencies_path,) if self.frequencies_path and not self.after else ()

    @property
    def journal_folder(self) -> StoragePath | None:
        """Where replies are kept that were paid for; None where nothing is asked."""
        return None

    @property
    def counts_money(self) -> bool:
        """Whether prices of its calls are known."""
        return False

    @property
    def pending_schema(self) -> pa.Schema | None:
        """Statistics of rows that are not there yet; None where all must be."""
        return None

    @abstractmethod
    def open_layout(self, frequencies: DocumentFrequencies | None = None) -> Layout[Any]:
        """Return what validates and lays out its shards; runs nothing.

        Parameters
        ----------
        frequencies : DocumentFrequencies, optional
            Of the corpus, where the statistics that come of the work need them.
        """

    @abstractmethod
    def open_runner(self, engine: Engine) -> Runner:
        """Return what computes its statistics, kept warm between shards."""

    def describe(self) -> dict[str, str]:
        """Return what reports say of it besides its signature."""
        return {}

    @abstractmethod
    def report(self, committed: PassStats) -> dict[str, Any]:
        """Return what all its commits cost."""

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


def forward_report(committed: PassStats) -> dict[str, Any]:
    """Return what all commits of a family that computes cost."""
    padded = committed.n_padded_tokens
    return {
        "rows": committed.n_rows,
        "forward_sequences": committed.n_units,
        "forward_sequences_avoided": committed.n_units_unshared - committed.n_units,
        "batches": committed.n_batches,
        "tokens": committed.n_tokens,
        "padding_share": round(1 - committed.n_tokens / padded, 4) if padded else 0.0,
        "truncated": committed.n_truncated,
        "batch_halvings": committed.n_halvings,
    }


# Called after every batch with (useful tokens, padded tokens, share of the shard done); may raise
# RunStoppedError.
OnBatch = Callable[[int, int, float], None]


def statistics_table(prepared: Prepared[W], *, first_position: int) -> pa.Table:
    """Return one row of statistics per input row; nulls where it is quarantined or not sampled."""
    validated = prepared.validated
    reasons = np.full(prepared.n_rows, NOT_SAMPLED, dtype=object)
    messages = np.full(prepared.n_rows, None, dtype=object)
    reasons[validated.good] = None
    for i, why in validated.quarantined.items():
        reasons[i], messages[i] = why
    slots = np.full(prepared.n_rows, -1, dtype=np.int64)
    slots[validated.good] = np.arange(len(validated.good))
    # Taking a null index gives a null.
    indices = pa.array(slots, mask=slots < 0)
    columns = {
        POSITION: pa.array(np.arange(first_position, first_position + prepared.n_rows)),
        QUARANTINE_REASON: pa.array(reasons, pa.string()),
        QUARANTINE_MESSAGE: pa.array(messages, pa.string()),
    }
    for name, column in prepared.work.statistics().items():
        columns[name] = column.take(indices)
    return pa.table(columns)
