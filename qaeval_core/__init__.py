"""qaeval: score question-answering and question-generation data in bulk.

``score_table`` scores rows in memory; `Scorer` keeps its models loaded between calls. Jobs over
Parquet are in ``jobs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qaeval_core.scorer import Scorer, score_table

__all__ = ["Scorer", "score_table"]


def __getattr__(name: str) -> object:
    # Loaded on first use: importing the package must stay cheap for `--help`.
    if name in __all__:
        from qaeval_core import scorer

        return getattr(scorer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
