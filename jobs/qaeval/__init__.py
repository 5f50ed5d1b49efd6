"""qaeval: score question-answering and question-generation data in bulk.

``score_table`` scores rows in memory; `Scorer` keeps its models loaded between calls.
``filter_table`` chooses the rows of a table of scores that are worth training on. ``audit_tables``
tells whether scores moved from one table to the next. ``correlate_table`` compares scores with
human ratings. ``metric`` says of a function how it scores.

What extends qaeval imports from ``qaeval_core``; the modules of this package are the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import qaeval_core  # noqa: F401 - turns telemetry off, before any library is loaded

if TYPE_CHECKING:
    from qaeval_core.audit.tables import audit_tables as audit_tables
    from qaeval_core.compare.table import compare_tables as compare_tables
    from qaeval_core.errors import QAEvalError as QAEvalError
    from qaeval_core.filter.table import filter_table as filter_table
    from qaeval_core.metrics.function import metric as metric
    from qaeval_core.scorer import Scorer as Scorer
    from qaeval_core.scorer import score_table as score_table
    from qaeval_core.study.table import correlate_table as correlate_table

_MODULES = {
    "QAEvalError": "qaeval_core.errors",
    "Scorer": "qaeval_core.scorer",
    "audit_tables": "qaeval_core.audit.tables",
    "compare_tables": "qaeval_core.compare.table",
    "correlate_table": "qaeval_core.study.table",
    "filter_table": "qaeval_core.filter.table",
    "metric": "qaeval_core.metrics.function",
    "score_table": "qaeval_core.scorer",
}
__all__ = [
    "QAEvalError",
    "Scorer",
    "audit_tables",
    "compare_tables",
    "correlate_table",
    "filter_table",
    "metric",
    "score_table",
]


def __getattr__(name: str) -> object:
    # Loaded on first use: importing the package must stay cheap for `--help`.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
