"""Runner: the rows of a shard through one family's model pass, to a table of raw statistics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import DeviceMemoryError
from qaeval_core.models.batching import token_budget_batches
from qaeval_core.models.session import Device, Session
from qaeval_core.scoring.families.base import FamilyScorer, ReadsFrequencies, Work
from qaeval_core.scoring.families.words.frequencies import DocumentFrequencies
from qaeval_core.scoring.families.words.rows import ShardTexts
from qaeval_core.scoring.pass_stats import PassStats
from qaeval_core.scoring.plans import Runner
from qaeval_core.scoring.prepared import OnBatch, Prepared
from qaeval_core.scoring.validate import validate_rows
from qaeval_core.text.encode import TextEncoder

if TYPE_CHECKING:
    from qaeval_core.scoring.families.models import ModelFamilyPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnitRun:
    """One unit as the graph saw it, alone in its batch, and what the graph returned."""

    inputs: Mapping[str, NDArray[np.int64]]
    output: NDArray[np.float32]


OnUnit = Callable[[UnitRun], None]


class FamilyRunner(Runner):
    """Runs one family; keeps its session warm.

    Parameters
    ----------
    plan : ModelFamilyPlan
    device : {"cpu", "cuda"}
    n_threads : int, optional
        Threads of one operator on the CPU.
    max_batch_tokens : int, optional
        Tokens of a batch after padding; default by family and device.
    max_batch_s : float, optional
        Seconds after which a batch is stopped, and the run with it.
    frequencies : DocumentFrequencies, optional
        Of the corpus, for a family that weighs tokens by them.
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
    ) -> None:
        self.plan: ModelFamilyPlan = plan
        self._session = (
            Session(plan.artifact, device=device, n_threads=n_threads, max_batch_s=max_batch_s)
            if plan.family.runs_model
            else None
        )
        encoder = TextEncoder(plan.artifact.tokenizer_path)
        self._scorer: FamilyScorer = plan.family.scorer(plan.artifact, encoder, plan.options)
        if frequencies is not None:
            assert isinstance(self._scorer, ReadsFrequencies)
            self._scorer.use_frequencies(frequencies)
        self._max_batch_tokens = max_batch_tokens or max(
            plan.family.max_batch_tokens[device], plan.max_unit_tokens
        )

    def prepare(
        self, rows: Mapping[str, Sequence[object]], texts: ShardTexts | None = None
    ) -> Prepared[Work]:
        """Validate, share and encode a shard; CPU work that can run beside `run`."""
        started = time.perf_counter()
        prepared = prepare_rows(self.plan, self._scorer, rows)
        prepared.stats.spend("encode", time.perf_counter() - started)
        return prepared

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
        """
        work, stats = prepared.work, prepared.stats
        started = time.perf_counter()
        n_total = max(int(work.lengths.sum()), 1)
        batches: Iterable[list[int]] = self._batches(work)
        if on_unit is not None:
            batches = ([i] for i in range(len(work.lengths)))
        for batch in batches:
            self._run_batch(work, batch, stats, on_unit)
            if on_batch is not None:
                tokens = int(work.lengths[batch].sum())
                padded = int(work.lengths[batch].max()) * len(batch)
                on_batch(tokens, padded, tokens / n_total)
        stats.spend("run", time.perf_counter() - started)

    def _batches(self, work: Work) -> Iterator[list[int]]:
        """Yield batches of all units; the rest is cut anew once memory has run out."""
        left = np.arange(len(work.lengths))
        while len(left):
            budget = self._max_batch_tokens
            n_done = 0
            # Longest first, and ties in order: what is left is the tail of the sorted units.
            left = left[np.argsort(-work.lengths[left], kind="stable")]
            for batch in token_budget_batches(work.lengths[left], max_batch_tokens=budget):
                yield left[batch].tolist()
                n_done += len(batch)
                if self._max_batch_tokens < budget:
                    break
            left = left[n_done:]

    def _run_batch(
        self, work: Work, batch: list[int], stats: PassStats, on_unit: OnUnit | None = None
    ) -> None:
        """Run a batch; where memory runs out, halve it, and keep to the smaller size."""
        padded = int(work.lengths[batch].max()) * len(batch)
        try:
            assert self._session is not None
            inputs = work.make_inputs(batch)
            output = self._session.run(inputs)
        except DeviceMemoryError as error:
            if len(batch) == 1:
                raise DeviceMemoryError(
                    f"{self.plan.key}: one input of {padded} tokens does not fit the device's "
                    f"memory: {error}"
                ) from None
            log.warning("out of memory with %d padded tokens; halving the batch", padded)
            stats.n_halvings += 1
            self._max_batch_tokens = max(padded // 2, self.plan.max_unit_tokens)
            half = len(batch) // 2
            self._run_batch(work, batch[:half], stats)
            self._run_batch(work, batch[half:], stats)
            return
        work.take(batch, output)
        if on_unit is not None:
            on_unit(UnitRun(inputs, output))
        stats.n_batches += 1
        stats.n_tokens += int(work.lengths[batch].sum())
        stats.n_padded_tokens += padded


def prepare_rows(
    plan: ModelFamilyPlan, scorer: FamilyScorer, rows: Mapping[str, Sequence[object]]
) -> Prepared[Work]:
    """Validate, share and lay out rows for a family; runs no model."""
    validated = validate_rows(rows, columns=plan.columns)
    work = scorer.prepare(plan.family.share(validated.values))
    n_rows = len(validated.good) + len(validated.quarantined)
    stats = PassStats(
        n_rows=n_rows,
        n_quarantined=len(validated.quarantined),
        n_units=len(work.lengths),
        n_units_unshared=work.n_units_unshared,
        n_truncated=work.n_truncated,
    )
    return Prepared(n_rows, validated, work, stats)
