"""Families of words: the statistics that lexical metrics are computed from; no model runs.

Statistics that are open for the same rows share one pass: rows are read once, and each text is
tokenized once per tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pyarrow as pa

from qaeval_core.errors import PackagesMissingError
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
from qaeval_core.families.words import bonus, counts, frequencies
from qaeval_core.families.words.frequencies import read_frequencies
from qaeval_core.families.words.rows import Compute, Tokenizers, WordTables
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.signature import Signature, hash_file
from qaeval_core.store.pass_stats import PassStats

_NAME = "words"
_ROWS_PER_SHARD = 16_384
# Tokenizers by libraries: another version may split otherwise.
_LIBRARIES = {
    "13a": "sacrebleu",
    "treebank": "nltk",
    "coco": "nltk",
    "spacy": "spacy",
    "zh": "rjieba",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsFamilyPlan(FamilyPlan):
    """One statistic of words."""

    family: WordFamily

    @property
    def facts(self) -> PassFacts:
        """What a metric may know of the pass."""
        return PassFacts(version=self.family.version, settings=self.options)

    @property
    def title(self) -> str:
        """What a progress line shows."""
        return f"words ({self.family.statistic})"

    @property
    def resources(self) -> Resources:
        """What its pass needs."""
        return "words"

    def open_layout(self, frequencies: DocumentFrequencies | None = None) -> WordsLayout:
        """Return what tokenizes texts."""
        return WordsLayout(self, frequencies)

    def open_runner(self, engine: Engine) -> WordsRunner:
        """Return what counts words."""
        return WordsRunner(self, self.open_layout(engine.frequencies(self)))

    def report(self, committed: PassStats) -> dict[str, Any]:
        """Return what all its commits cost."""
        return forward_report(committed)

    @property
    def min_documents(self) -> int:
        """In how many documents an n-gram must be: CIDEr weighs one like none."""
        return 2


@dataclass(frozen=True, slots=True)
class WordFamily(Family):
    """One statistic: what tokenizes the texts of a shard and returns what is left to compute."""

    statistic: str
    prepare: Callable[..., Any]
    version: str = "1"
    needs_frequencies: bool = False
    name: str = _NAME

    def plan(self, read: Read, context: Context) -> tuple[FamilyPlan, ...]:
        """Return the statistic, after the document frequencies that it may wait for."""
        columns = context.columns_of(read.roles)
        if not read.corpus_counts:
            return (self._plan(read.options, columns),)
        if read.counts_file is not None:
            read_frequencies(read.counts_file, words=words_line(read.options))
            own = self._plan(
                read.options,
                columns,
                corpus=hash_file(read.counts_file),
                frequencies_path=read.counts_file,
            )
            return (own,)
        counted = WORD_FAMILIES[read.corpus_counts]._plan(
            read.options, context.columns_of(["references"])
        )
        own = self._plan(
            read.options,
            columns,
            corpus=context.corpus,
            after=counted.key,
            frequencies_path=context.counts_path(counted),
        )
        return (counted, own)

    def _plan(
        self,
        options: Mapping[str, object],
        columns: Mapping[str, str],
        *,
        corpus: str = "",
        after: str = "",
        frequencies_path: str = "",
    ) -> WordsFamilyPlan:
        shown: dict[str, object] = {**options, "statistic": self.statistic, "columns": columns}
        library = _LIBRARIES.get(str(options.get("tokenizer")))
        if library is not None:
            shown["library"] = f"{library} {_version(library)}"
        if corpus:
            shown["corpus"] = corpus
        return WordsFamilyPlan(
            name=_NAME,
            options=dict(options),
            columns=columns,
            signature=Signature(_NAME, shown, self.version),
            rows_per_shard={"cpu": _ROWS_PER_SHARD, "cuda": _ROWS_PER_SHARD},
            family=self,
            after=after,
            frequencies_path=frequencies_path,
            words=words_line(options) if "tokenizer" in options else "",
        )


_FAMILIES = (
    WordFamily("overlap", counts.overlap),
    WordFamily("ngrams", counts.ngrams),
    WordFamily("lcs", counts.lcs),
    WordFamily("alignment", counts.alignment),
    WordFamily("question_words", counts.question_words),
    WordFamily("spans", counts.spans),
    WordFamily("bonus_ngrams", bonus.bonus_ngrams),
    WordFamily("bonus_lcs", bonus.bonus_lcs),
    WordFamily("document_frequencies", frequencies.document_frequencies),
    WordFamily("tf_idf", frequencies.tf_idf, needs_frequencies=True),
)
WORD_FAMILIES: Mapping[str, WordFamily] = {family.statistic: family for family in _FAMILIES}


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        raise PackagesMissingError(
            f"this tokenizer needs {library}: pip install {library} [QA0004]"
        ) from None


def words_line(options: Mapping[str, object]) -> str:
    """Return how texts become words, as one line.

    >>> words_line({"tokenizer": "13a", "lowercase": True, "stemming": "none", "x": 1})
    '13a, lowercase yes, stemming none'
    """
    lowercase = "yes" if options["lowercase"] else "no"
    language = f", language {options['language']}" if "language" in options else ""
    return (
        f"{options['tokenizer']}, lowercase {lowercase}, stemming {options['stemming']}{language}"
    )


class WordsWork:
    """A shard whose texts are tokenized.

    Parameters
    ----------
    compute : callable
        Returns the statistics.
    """

    n_units = n_units_unshared = n_truncated = 0

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._found: Mapping[str, pa.Array] | None = None

    def run(self) -> None:
        """Compute the statistics."""
        self._found = self._compute()

    def statistics(self) -> Mapping[str, pa.Array]:
        """Return the statistics, computing them if that was not done."""
        return self._found if self._found is not None else self._compute()


class WordsLayout(Layout[WordsWork]):
    """Tokenizes the texts of shards.

    Parameters
    ----------
    plan : WordsFamilyPlan
    frequencies : DocumentFrequencies, optional
        Of the corpus, for the statistic that needs them.
    """

    def __init__(self, plan: WordsFamilyPlan, frequencies: DocumentFrequencies | None) -> None:
        super().__init__(plan)
        self._plan = plan
        self._given: tuple[Any, ...] = ()
        if plan.family.needs_frequencies:
            if frequencies is None:
                raise ValueError(f"{plan.family.statistic} needs document frequencies")
            self._given = (frequencies,)
        self._tokenizers = Tokenizers()

    def lay_out(self, values: Mapping[str, Sequence[Any]], texts: ShardTexts | None) -> WordsWork:
        """Tokenize the texts of good rows."""
        own = texts if isinstance(texts, WordTables) else WordTables(self._tokenizers)
        prepare = self._plan.family.prepare
        return WordsWork(prepare(values, self._plan.options, own, *self._given))


class WordsRunner(Runner):
    """Computes one statistic."""

    def __init__(self, plan: WordsFamilyPlan, layout: WordsLayout) -> None:
        self.plan: WordsFamilyPlan = plan
        self.layout = layout

    def run(self, prepared: Prepared[Any], on_batch: OnBatch | None = None) -> None:
        """Compute a shard's statistics."""
        started = time.perf_counter()
        prepared.work.run()
        prepared.stats.n_batches += 1
        prepared.stats.spend("run", time.perf_counter() - started)
        if on_batch is not None:
            on_batch(0, 0, 1.0)
