"""Words runner: the rows of a shard to one statistic of words; no model, one core."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from qaeval_core.scoring.families.words.family import WordsFamilyPlan
from qaeval_core.scoring.families.words.frequencies import DocumentFrequencies
from qaeval_core.scoring.families.words.rows import Compute, ShardTexts, Tokenisers
from qaeval_core.scoring.pass_stats import PassStats
from qaeval_core.scoring.prepared import OnBatch, Prepared


class WordsWork:
    """A shard whose texts are tokenised.

    Parameters
    ----------
    compute : callable
        Returns the statistics.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._found: Mapping[str, pa.Array] | None = None

    def run(self) -> None:
        """Compute the statistics."""
        self._found = self._compute()

    def statistics(self) -> Mapping[str, pa.Array]:
        """Return the statistics, computing them if that was not done."""
        return self._found if self._found is not None else self._compute()


class WordsRunner:
    """Computes one statistic.

    Parameters
    ----------
    plan : WordsFamilyPlan
    frequencies : DocumentFrequencies, optional
        Of the corpus, for the statistic that needs them.
    """

    def __init__(
        self,
        plan: WordsFamilyPlan,
        *,
        frequencies: DocumentFrequencies | None = None,
    ) -> None:
        self.plan = plan
        self._statistic = plan.family
        self._given: tuple[Any, ...] = ()
        if self._statistic.needs_frequencies:
            if frequencies is None:
                raise ValueError(f"{plan.family.statistic} needs document frequencies")
            self._given = (frequencies,)
        self._tokenisers = Tokenisers()

    def prepare(
        self, rows: Mapping[str, Sequence[object]], texts: ShardTexts | None = None
    ) -> Prepared[WordsWork]:
        """Validate a shard and tokenise its texts.

        Parameters
        ----------
        rows : mapping of role to values
        texts : ShardTexts, optional
            Of this shard, where other statistics read it too.
        """
        started = time.perf_counter()
        own = texts if texts is not None else ShardTexts(self._tokenisers)
        validated = own.validate(rows, columns=self.plan.columns)
        compute = self._statistic.prepare(validated.values, self.plan.options, own, *self._given)
        n_rows = len(validated.good) + len(validated.quarantined)
        stats = PassStats(n_rows=n_rows, n_quarantined=len(validated.quarantined))
        stats.spend("encode", time.perf_counter() - started)
        return Prepared(n_rows, validated, WordsWork(compute), stats)

    def run(self, prepared: Prepared[Any], on_batch: OnBatch | None = None) -> None:
        """Compute a shard's statistics."""
        started = time.perf_counter()
        prepared.work.run()
        prepared.stats.n_batches += 1
        prepared.stats.spend("run", time.perf_counter() - started)
        if on_batch is not None:
            on_batch(0, 0, 1.0)
