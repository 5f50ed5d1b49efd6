"""Families of models: a graph runs over units that are laid out from distinct pairs of texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from qaeval_core.configure import ModelSettings, RunConfig
from qaeval_core.errors import ConfigError, DeviceMemoryError
from qaeval_core.families.contract import (
    Context,
    DocumentFrequencies,
    Engine,
    Family,
    FamilyPlan,
    Layout,
    OnBatch,
    Prepared,
    Resources,
    Runner,
    ShardTexts,
    forward_report,
)
from qaeval_core.families.device_check import check_device
from qaeval_core.families.model_units import ModelScorer, Units, Work
from qaeval_core.families.validate import IntArray, SharedPairs, share_pairs
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.batches import TokenBudget, exact_batches, token_budget_batches
from qaeval_core.models.engine import Device
from qaeval_core.models.gpu import gpu_facts
from qaeval_core.models.open_vino import bf16_engine, check_bf16
from qaeval_core.models.record import GRAPHS, ArtifactRecord, ArtifactRequest
from qaeval_core.models.session import Session
from qaeval_core.signature import Signature
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.text.encode import TextEncoder

Values = Mapping[str, Sequence[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamilyPlan(FamilyPlan):
    """A family that runs a model; it has the rows for itself."""

    family: ModelFamily
    artifact: Artifact

    @property
    def facts(self) -> PassFacts:
        """What a metric may know of the pass."""
        record = self.artifact.record
        return PassFacts(
            version=self.family.version,
            settings=pass_settings(self.artifact, self.options),
            model=record.model.name,
            n_layers=record.n_layers,
            activation=record.activation,
            tokenizer_hash=record.tokenizer_hash,
        )

    @property
    def resources(self) -> Resources:
        """What its pass needs."""
        return "model"

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifact that it runs."""
        return (self.artifact,)

    def with_artifact(self, find: Callable[[Artifact], Artifact]) -> ModelFamilyPlan:
        """Return the plan with its artifact as this node finds it."""
        return replace(self, artifact=find(self.artifact))

    def open_layout(self, frequencies: DocumentFrequencies | None = None) -> ModelLayout:
        """Return what encodes texts."""
        return ModelLayout(self, frequencies)

    def open_runner(self, engine: Engine) -> FamilyRunner:
        """Return what runs the model."""
        settings = engine.models.of(self.family.model_role)
        return FamilyRunner(
            self,
            device=engine.device,
            n_threads=engine.n_threads,
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_s=settings.max_batch_s,
            frequencies=engine.frequencies(self),
            checks_device=engine.models.check_device,
            is_exact=engine.models.exact_batches,
        )

    def describe(self) -> dict[str, str]:
        """Return the artifact and its precision."""
        return {
            "artifact": self.artifact.folder.name,
            "precision": self.artifact.record.precision,
        }

    def report(self, committed: PassStats) -> dict[str, Any]:
        """Return what all its commits cost."""
        return forward_report(committed)

    @property
    def max_unit_tokens(self) -> int:
        """Tokens of the longest unit that can occur: one window."""
        n_positions = self.artifact.record.max_positions
        return min(n_positions, int(str(self.options.get("max_window_tokens", n_positions))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily(Family):
    """One family of a model."""

    name: str
    graph: str
    model_role: str  # key of ``models.<role>``
    target_role: str  # input role that the candidate is read against
    scorer: type[ModelScorer]
    version: str  # of the implementation: raise it when numbers change
    rows_per_shard: Mapping[str, int]  # by device: 10 s of a CPU and more, 1 s of an H100
    max_batch_tokens: Mapping[str, int]  # by device
    max_shard_bytes: int | None = None  # of text; None is the run's
    runs_model: bool = True
    reads_candidate: bool = True
    reads_question: bool = False
    reads_answer: bool = False  # that the candidate, a question, was made for
    counts: ModelFamily | None = None  # what counts documents for it

    @property
    def roles(self) -> tuple[str, ...]:
        """Input roles read."""
        question = ("question",) if self.reads_question else ()
        candidate = ("candidate",) if self.reads_candidate else ()
        return (*question, *candidate, self.target_role, *["answer"] * self.reads_answer)

    def share(self, values: Values) -> SharedPairs[Any]:
        """Return the distinct pairs of good rows."""
        given: Sequence[Any] = values[self.target_role]
        targets = [own if isinstance(own, list) else (own,) for own in given]
        if not self.reads_candidate:
            return share_pairs([""] * len(targets), targets)
        candidates: Sequence[Any] = values["candidate"]
        if self.reads_answer:
            return share_pairs(list(zip(candidates, values["answer"], strict=True)), targets)
        if not self.reads_question:
            return share_pairs(candidates, targets)
        questions: Sequence[Any] = values["question"]
        return share_pairs(
            list(zip(questions, candidates, strict=True)),
            [[(q, text) for text in own] for q, own in zip(questions, targets, strict=True)],
        )

    def model_settings(self, config: RunConfig) -> ModelSettings:
        """Return how its model runs."""
        return config.models.of(self.model_role)

    def requests(self, read: Read, config: RunConfig, *, device: str) -> list[ArtifactRequest]:
        """Return the artifact that it runs."""
        return [self._request(read, config, device=device)]

    def plan(self, read: Read, context: Context) -> tuple[FamilyPlan, ...]:
        """Return the family, after the count of documents that it may wait for.

        Raises
        ------
        ConfigError
            If a batch has room for less than one window.
        """
        if context.config.models.exact_batches and context.device != "cpu":
            raise ConfigError(
                "models.exact_batches keeps the bits of scores on CPUs alone, and models run on "
                "a GPU here. Leave it out, or set cluster.device=cpu [QA0102]"
            )
        request = self._request(read, context.config, device=context.device)
        artifact = context.resolve_artifact(request)
        if not read.corpus_counts:
            return (self._plan(artifact, read.options, context),)
        counts = self.counts
        if counts is None:
            raise ConfigError(f"{self.name} counts nothing over a corpus [QA0007]")
        words = f"tokens of {artifact.record.tokenizer_hash[:12]}"
        counted = counts._plan(artifact, {}, context, words=words)
        own = self._plan(artifact, read.options, context, words=words, counted=counted)
        return (counted, own)

    def _request(self, read: Read, config: RunConfig, *, device: str) -> ArtifactRequest:
        settings = self.model_settings(config)
        precision = settings.precision
        if precision == "auto":
            precision = "fp16" if device == "cuda" else "fp32"
        if precision == "bf16":
            self._check_bf16(device)
        return ArtifactRequest(
            graph=self.graph,
            model=read.model,
            precision=precision,
            options=read.graph_options,
            allow_lossy=settings.allow_lossy,
            onnx_file=settings.onnx_file or "",
            one_row_batches=settings.one_row_batches and GRAPHS[self.graph].takes_onnx,
        )

    def _check_bf16(self, device: str) -> None:
        if device != "cpu":
            raise ConfigError(
                f"models.{self.model_role}.precision=bf16 is for CPUs, and models run on a GPU "
                "here. Leave it out, or set cluster.device=cpu [QA0420]"
            )
        if self.runs_model:
            check_bf16()

    def _plan(
        self,
        artifact: Artifact,
        options: Mapping[str, object],
        context: Context,
        *,
        words: str = "",
        counted: FamilyPlan | None = None,
    ) -> ModelFamilyPlan:
        columns = context.columns_of(self.roles)
        shown = {**pass_settings(artifact, options), "columns": columns}
        # In bf16 all batches are.
        is_bf16 = artifact.record.precision == "bf16"
        if context.config.models.exact_batches and self.runs_model and not is_bf16:
            shown["exact_batches"] = True
        if counted is not None:
            shown["corpus"] = context.corpus
        plan = ModelFamilyPlan(
            name=self.name,
            options=options,
            columns=columns,
            signature=Signature(self.name, shown, self.version),
            rows_per_shard=self.rows_per_shard,
            max_shard_bytes=self.max_shard_bytes,
            family=self,
            artifact=artifact,
            words=words,
            after=counted.key if counted is not None else "",
            frequencies_path=context.counts_path(counted) if counted is not None else "",
        )
        self._check_batch_tokens(plan, context.config)
        return plan

    def _check_batch_tokens(self, plan: ModelFamilyPlan, config: RunConfig) -> None:
        given = self.model_settings(config).max_batch_tokens
        if self.runs_model and given is not None and given < plan.max_unit_tokens:
            raise ConfigError(
                f"models.{self.model_role}.max_batch_tokens is {given}, but one window of "
                f"{plan.artifact.record.model.name} has up to {plan.max_unit_tokens} tokens "
                "[QA0419]"
            )


def pass_settings(artifact: Artifact, options: Mapping[str, object]) -> dict[str, object]:
    """Return what of a model pass decides its numbers: artifact, precision and options."""
    record = artifact.record
    return {
        **options,
        **record.options,
        "artifact": artifact.hash[:12],
        "model": record.model.name,
        "precision": record.precision,
        "lossy": record.lossy,
        **({"engine": str(bf16_engine())} if record.precision == "bf16" else {}),
        **({} if record.source == "torch" else {"source": "onnx", "parity": _compared(record)}),
        **({} if record.source == "torch" else {"batch_mates": record.batch_mates}),
        # Signatures of the first version do not name it.
        **({} if record.graph_version == 1 else {"graph_version": record.graph_version}),
    }


def _compared(record: ArtifactRecord) -> str:
    """Return what a graph that was taken as it is was compared with."""
    return "none" if record.parity is None else "torch"


def is_model(plan: FamilyPlan) -> TypeGuard[ModelFamilyPlan]:
    """Whether a family runs a model."""
    return plan.resources == "model"


log = logging.getLogger(__name__)

# A batch in bf16 holds rows of one width alone, and each costs something before it computes.
# Measured on 2 cores with AVX512-BF16: SAS is 1.09 times as fast as with the family's 512, KPQA
# 1.13, LRM 1.15, GRG 1.10; no family gained more than 1.05 times beyond.
_BF16_BATCH_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class UnitRun:
    """One unit as the graph saw it, alone in its batch, and what the graph returned."""

    inputs: Mapping[str, NDArray[np.int64]]
    output: NDArray[np.float32]


OnUnit = Callable[[UnitRun], None]


class ModelLayout(Layout[Work]):
    """Shares and encodes the texts of shards.

    Parameters
    ----------
    plan : ModelFamilyPlan
    frequencies : DocumentFrequencies, optional
        Of the corpus, for a family that weighs tokens by them.
    """

    def __init__(self, plan: ModelFamilyPlan, frequencies: DocumentFrequencies | None) -> None:
        super().__init__(plan)
        self._family = plan.family
        encoder = TextEncoder(plan.artifact.tokenizer_path)
        self._scorer = plan.family.scorer(plan.artifact, encoder, plan.options)
        self._scorer.frequencies = frequencies

    def lay_out(self, values: Values, texts: ShardTexts | None) -> Work:
        """Share and encode the texts of good rows."""
        return self._scorer.lay_out(self._family.share(values))


class FamilyRunner(Runner):
    """Runs one family; keeps its session warm.

    Parameters
    ----------
    plan : ModelFamilyPlan
    device : {"cpu", "cuda"}
    n_threads : int, optional
        Threads of one operator on the CPU.
    max_batch_tokens : int, optional
        Tokens of a batch after padding; default by family, device and precision.
    max_batch_s : float, optional
        Seconds after which a batch is stopped, and the run with it.
    frequencies : DocumentFrequencies, optional
        Of the corpus, for a family that weighs tokens by them.
    checks_device : bool, default True
        Compare some rows of the first shard with a CPU, on a GPU.
    is_exact : bool, default False
        Pad and batch units so that the bits of each are the same in any batch.
    """

    def __init__(
        self,
        plan: ModelFamilyPlan,
        *,
        device: Device = "cpu",
        n_threads: int | None = None,
        max_batch_tokens: int | None = None,
        max_batch_s: float | None = None,
        frequencies: DocumentFrequencies | None = None,
        checks_device: bool = True,
        is_exact: bool = False,
    ) -> None:
        self.plan: ModelFamilyPlan = plan
        self._is_new_device = device == "cuda" and plan.family.runs_model
        self._checks_device = checks_device
        # A product in bf16 is blocked by its shape, and its roundings show.
        is_bf16 = plan.artifact.record.precision == "bf16"
        self._is_exact = is_exact or is_bf16
        self._session = (
            Session(plan.artifact, device=device, n_threads=n_threads, max_batch_s=max_batch_s)
            if plan.family.runs_model
            else None
        )
        self.layout = plan.open_layout(frequencies)
        most = max(plan.family.max_batch_tokens[device], is_bf16 * _BF16_BATCH_TOKENS)
        self._budget = TokenBudget(
            max_batch_tokens or max(most, plan.max_unit_tokens), least=plan.max_unit_tokens
        )

    def run(
        self,
        prepared: Prepared[Work],
        on_batch: OnBatch | None = None,
        on_unit: OnUnit | None = None,
    ) -> None:
        """Run every unit of a shard; alone and in the order they are laid out, for `on_unit`.

        Raises
        ------
        DeviceMemoryError
            If a single unit does not fit the device.
        DeviceError
            If its numbers are not those of a CPU.
        """
        units, stats = prepared.work.units, prepared.stats
        if self._is_new_device and len(units.lengths):
            self._look_at_device(units, stats)
        started = time.perf_counter()
        n_total = max(int(units.lengths.sum()), 1)
        if self._is_exact:
            units.pad_exactly(self.plan.max_unit_tokens)
        batches: Iterable[IntArray]
        if on_unit is not None or self.plan.artifact.record.one_row_batches:
            batches = np.arange(len(units.lengths))[:, np.newaxis]
        else:
            batches = self._batches(units)
        for batch in batches:
            n_tokens, n_padded = self._run_batch(units, batch, stats, on_unit)
            if on_batch is not None:
                on_batch(n_tokens, n_padded, n_tokens / n_total)
        stats.spend("run", time.perf_counter() - started)

    def _look_at_device(self, units: Units, stats: PassStats) -> None:
        """Note which device this is and how far its numbers are from a CPU's."""
        assert self._session is not None
        seen: dict[str, Any] = {"gpu": gpu_facts()}
        if self._checks_device:
            seen["parity"] = check_device(self._session, units, family=self.plan.key)
        stats.devices.append(seen)
        # Not before: an actor may be handed more shards once this one has failed.
        self._is_new_device = False

    def _batches(self, units: Units) -> Iterator[IntArray]:
        """Yield batches of all units; the rest is cut anew whenever the budget changes."""
        widths = units.widths
        groups = units.groups if units.is_exact else np.zeros_like(widths)
        left = np.arange(len(widths))
        while len(left):
            budget = self._budget.n_tokens
            n_done = 0
            # Longest first, and ties in order: what is left is the tail of the sorted units.
            left = left[np.lexsort((groups[left], -widths[left]))]
            batches = (
                exact_batches(widths[left], groups[left], max_batch_tokens=budget)
                if units.is_exact
                else token_budget_batches(widths[left], max_batch_tokens=budget)
            )
            for batch in batches:
                yield left[batch]
                n_done += len(batch)
                if self._budget.n_tokens != budget:
                    break
            left = left[n_done:]

    def _run_batch(
        self, units: Units, batch: IntArray, stats: PassStats, on_unit: OnUnit | None = None
    ) -> tuple[int, int]:
        """Run a batch; where memory runs out, halve it, and keep to the smaller size a while.

        Returns its tokens, without padding and with it.
        """
        longest, n_tokens = int(units.widths[batch].max()), int(units.lengths[batch].sum())
        # A product of one row is another kernel's.
        rows = np.repeat(batch, 2) if units.is_exact and len(batch) == 1 else batch
        padded = longest * len(rows)
        try:
            assert self._session is not None
            inputs = units.make_inputs(rows)
            output = self._session.run(inputs)
        except DeviceMemoryError as error:
            if len(batch) == 1:
                raise DeviceMemoryError(
                    f"{self.plan.key}: one input of {padded} tokens does not fit the memory of the "
                    f"device: {error} [QA0413]"
                ) from None
            log.warning("out of memory with %d padded tokens; halving the batch", padded)
            stats.n_halvings += 1
            self._budget.shrink(padded)
            left = batch
            while len(left):  # By the budget of the moment: what is known not to fit is not tried.
                n_rows = min(max(self._budget.n_tokens // longest, 1), (len(batch) + 1) // 2)
                self._run_batch(units, left[:n_rows], stats)
                left = left[n_rows:]
            return n_tokens, padded
        self._budget.hold()
        units.take(rows, output)
        if on_unit is not None:
            if len(rows) > len(batch):  # Less what stood there a second time.
                inputs, output = units.make_inputs(batch), output[: len(output) // 2]
            on_unit(UnitRun(inputs, output))
        stats.n_batches += 1
        stats.n_tokens += n_tokens
        stats.n_padded_tokens += padded
        return n_tokens, padded
