"""qaeval: score question-answering and question-generation data in bulk.

``score_table`` scores rows in memory; `Scorer` keeps its models loaded between calls.
``filter_table`` chooses the rows of a table of scores that are worth training on. ``audit_tables``
tells whether scores moved from one table to the next. Jobs over Parquet are in ``qaeval``.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

# What engines, hubs and Ray tell their makers of a machine is off, in this process and in those it
# starts. Here, for ONNX Runtime begins as it is loaded: nobody loads it before this package.
for _name, _off in (
    ("ORT_DISABLE_TELEMETRY", "1"),
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _off)

if TYPE_CHECKING:
    from qaeval_core.audit.tables import audit_tables
    from qaeval_core.filter.table import filter_table
    from qaeval_core.scorer import Scorer, score_table


__all__ = ["Scorer", "audit_tables", "filter_table", "score_table"]

_MODULES = {
    "audit_tables": "qaeval_core.audit.tables",
    "filter_table": "qaeval_core.filter.table",
}


def __getattr__(name: str) -> object:
    # Loaded on first use: importing the package must stay cheap for `--help`.
    if name in __all__:
        module = importlib.import_module(_MODULES.get(name, "qaeval_core.scorer"))
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
