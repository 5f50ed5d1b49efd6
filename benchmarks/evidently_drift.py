"""Peer of audits: evidently's verdicts on pairs of tables; run by the Python that has evidently.

``python evidently_drift.py JOBS RESULTS``; both are JSON. A job names two Parquet files, columns,
and how they are compared: ``default``, the drift preset as it comes; ``wasserstein``, the same one
with the statistic that it takes by itself above 1,000 rows; ``summary``, the tests that the summary
preset derives from the reference. This file imports nothing of qaeval.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from evidently import Report
from evidently.presets import DataDriftPreset, DataSummaryPreset


def verdict(
    reference: pd.DataFrame, current: pd.DataFrame, how: str
) -> dict[str, bool | list[str] | str]:
    """Return the columns of which a test failed, and whether one of the whole table did."""
    presets = {
        "default": DataDriftPreset,
        "wasserstein": lambda: DataDriftPreset(method="wasserstein"),
        "summary": DataSummaryPreset,
    }
    try:
        report = Report([presets[how]()], include_tests=True)
        tests = report.run(current, reference).dict()["tests"]
    except ValueError as error:
        return {"columns": [], "dataset": False, "error": str(error)}
    failed = [_of(test) for test in tests if str(test["status"]).endswith("FAIL")]
    return {
        "columns": sorted({own["column"] for own in failed if own.get("column")}),
        "dataset": any(not own.get("column") for own in failed),
        "methods": sorted({own["method"] for test in tests if "method" in (own := _of(test))}),
    }


def _of(test: Mapping[str, Any]) -> dict[str, Any]:
    return dict(test["metric_config"]["params"])


def main(arguments: Sequence[str]) -> None:
    jobs, results = map(Path, arguments)
    found = []
    for job in json.loads(jobs.read_text(encoding="utf-8")):
        sides = [
            pd.read_parquet(job[side], columns=job["columns"]) for side in ("reference", "current")
        ]
        found.append(verdict(sides[0], sides[1], job["how"]))
    results.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
