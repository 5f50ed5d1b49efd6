"""Families of words: the statistics that metrics of words are computed from; no model runs.

Statistics that are open for the same rows share one pass: rows are read once, and each text is
tokenised once per tokeniser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import PassFacts, Read
from qaeval_core.scoring.families.words import bonus, counts, matches, tf_idf
from qaeval_core.scoring.families.words.frequencies import read_frequencies
from qaeval_core.scoring.plans import Context, Family, FamilyPlan
from qaeval_core.signature import Signature, hash_file

_NAME = "words"
_ROWS_PER_SHARD = 16_384
# Tokenisers by libraries: another version may split otherwise.
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
    def shares_rows(self) -> bool:
        """Whether families of its kind that are open for the same rows share one pass."""
        return True

    @property
    def min_documents(self) -> int:
        """In how many documents an n-gram must be: CIDEr weighs one like none."""
        return 2


@dataclass(frozen=True, slots=True)
class WordFamily(Family):
    """One statistic: what tokenises the texts of a shard and returns what is left to compute."""

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
        library = _LIBRARIES.get(str(options.get("tokeniser")))
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
            words=words_line(options) if "tokeniser" in options else "",
        )


_FAMILIES = (
    WordFamily("overlap", counts.overlap),
    WordFamily("ngrams", counts.ngrams),
    WordFamily("lcs", counts.lcs),
    WordFamily("alignment", matches.alignment),
    WordFamily("question_words", matches.question_words),
    WordFamily("spans", matches.spans),
    WordFamily("bonus_ngrams", bonus.bonus_ngrams),
    WordFamily("bonus_lcs", bonus.bonus_lcs),
    WordFamily("document_frequencies", tf_idf.document_frequencies),
    WordFamily("tf_idf", tf_idf.tf_idf, needs_frequencies=True),
)
WORD_FAMILIES: Mapping[str, WordFamily] = {family.statistic: family for family in _FAMILIES}


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"this tokeniser needs {library}: pip install 'qaeval[languages]'"
        ) from None


def words_line(options: Mapping[str, object]) -> str:
    """Return how texts become words, as one line.

    >>> words_line({"tokeniser": "13a", "lowercase": True, "stemming": "none", "x": 1})
    '13a, lowercase yes, stemming none'
    """
    lowercase = "yes" if options["lowercase"] else "no"
    language = f", language {options['language']}" if "language" in options else ""
    return (
        f"{options['tokeniser']}, lowercase {lowercase}, stemming {options['stemming']}{language}"
    )
