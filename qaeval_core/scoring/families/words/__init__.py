"""Words: the statistics that metrics of words are computed from; no model runs.

Statistics that are open for the same rows share one pass: rows are read once, and each text is
tokenised once per tokeniser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qaeval_core.scoring.families.words import bonus, counts, matches, tf_idf

__all__ = ["DOCUMENT_FREQUENCIES", "ROWS_PER_SHARD", "STATISTICS", "Statistic"]

DOCUMENT_FREQUENCIES = "document_frequencies"
ROWS_PER_SHARD: Mapping[str, int] = MappingProxyType({"cpu": 16_384, "cuda": 16_384})


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic: what tokenises the texts of a shard and returns what is left to compute."""

    prepare: Callable[..., Any]
    version: str  # of the implementation: raise it when numbers change
    needs_frequencies: bool = False


STATISTICS: Mapping[str, Statistic] = MappingProxyType(
    {
        "overlap": Statistic(counts.overlap, "1"),
        "ngrams": Statistic(counts.ngrams, "1"),
        "lcs": Statistic(counts.lcs, "1"),
        "alignment": Statistic(matches.alignment, "1"),
        "question_words": Statistic(matches.question_words, "1"),
        "spans": Statistic(matches.spans, "1"),
        "bonus_ngrams": Statistic(bonus.bonus_ngrams, "1"),
        "bonus_lcs": Statistic(bonus.bonus_lcs, "1"),
        DOCUMENT_FREQUENCIES: Statistic(tf_idf.document_frequencies, "1"),
        "tf_idf": Statistic(tf_idf.tf_idf, "1", needs_frequencies=True),
    }
)
