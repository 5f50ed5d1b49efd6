"""Benchmark of audits: how often an alarm is raised where nothing moved, beside evidently.

QGEval's passages are split into random halves: the same corpus twice, so that whoever alarms is
wrong. Then one column of one half is moved, or 60 % of its values are taken away: whoever is silent
is wrong. ``python -m benchmarks.false_alarms`` makes an environment of its own for evidently, with
the version below, under ``--peer``; both sides read the same Parquet files. Prints shares of splits
and never judges one; ``--json`` keeps them.

A split shares no passage between its halves. Values are taken away from a copy of a half, so that
nothing else differs. evidently is given the moved column alone: its verdicts of a column do not
depend on others. Ours is given all eight, for there they do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.measure import environment
from qaeval_core import audit_tables
from qaeval_core.storage.files import write_json

QGEVAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "qgeval" / "qgeval_squad.parquet"
COLUMNS = (
    "peer_QRelScore",
    "peer_BERTScore",
    "peer_ROUGE-L",
    "peer_BLEU-4",
    "peer_METEOR",
    "peer_BLEURT",
    "peer_BARTScore-src",
    "peer_RQUGE",
)
# Its values hardly repeat. Of QRelScore a quarter is 0: move them, and any test of shares sees it.
MOVED = "peer_BARTScore-src"
CLUSTER = "passage"
SHIFTS = (0.4, 0.8)  # in standard deviations of the column
UNDEFINED_SHARE = 0.6
ALPHAS = (0.01, 0.05)
# Version 0.7.23 does not import beside pandas 3.
PEER = ("evidently==0.7.23", "pandas==2.3.3", "numpy==2.4.6", "scipy==1.17.1", "pyarrow==26.0.1")
PEER_SIDES = {
    "default": "evidently, data drift as it comes (KS test of rows)",
    "wasserstein": "evidently, data drift by Wasserstein >= .1",
    "summary": "evidently, tests of the summary from the reference",
}
_PEER_SCRIPT = Path(__file__).with_name("evidently_drift.py")
SAME = "same"
UNDEFINED = "undefined"


def changes() -> list[str]:
    """Return the names of what is done to the current half; the first one is nothing."""
    return [SAME, *(f"+{shift}" for shift in SHIFTS), UNDEFINED]


def write_splits(folder: Path, n_splits: int, *, source: Path = QGEVAL) -> list[dict[str, str]]:
    """Write the tables of each split; return their paths: the reference, and each current one."""
    table = pl.read_parquet(source, columns=[CLUSTER, *COLUMNS])
    # Numbers instead of passages: no text is needed.
    codes = np.unique(table[CLUSTER].to_numpy(), return_inverse=True)[1]
    table = table.with_columns(pl.Series(CLUSTER, [f"passage {code}" for code in codes]))
    n_passages = int(codes.max()) + 1
    spread = float(table[MOVED].std())  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    splits = []
    for number in range(n_splits):
        half = np.isin(codes, rng.permutation(n_passages)[: n_passages // 2])
        is_left = rng.random(int(half.sum())) >= UNDEFINED_SHARE
        reference, current = table.filter(pl.Series(half)), table.filter(pl.Series(~half))
        thinned = pl.when(pl.Series(is_left)).then(pl.col(MOVED)).otherwise(float("nan"))
        tables = {
            "reference": reference,
            SAME: current,
            **{f"+{by}": current.with_columns(pl.col(MOVED) + by * spread) for by in SHIFTS},
            UNDEFINED: reference.with_columns(thinned.alias(MOVED)),
        }
        paths = {name: folder / f"{number:03d}-{name}.parquet" for name in tables}
        for name, own in tables.items():
            own.write_parquet(paths[name])
        splits.append({name: str(path) for name, path in paths.items()})
    return splits


def ours(splits: Sequence[Mapping[str, str]]) -> dict[float, dict[str, list[dict[str, Any]]]]:
    """Return the alarms of audits by alpha, change and split; draws are the same for each alpha."""
    found: dict[float, dict[str, list[dict[str, Any]]]] = {
        alpha: {change: [] for change in changes()} for alpha in ALPHAS
    }
    for paths in splits:
        reference = pl.read_parquet(paths["reference"])
        for change in changes():
            current = pl.read_parquet(paths[change])
            audited = audit_tables(
                reference, current, watch=COLUMNS, cluster=CLUSTER, alpha=max(ALPHAS)
            )
            for alpha in ALPHAS:
                alerts = audited.tests.filter(pl.col("alert") & (pl.col("p_adjusted") <= alpha))
                columns = sorted(set(alerts["column"].to_list()))
                found[alpha][change].append({"columns": columns})
    return found


def make_peer(folder: Path) -> Path:
    """Return the Python of evidently's environment, which is made unless it is there.

    Raises
    ------
    subprocess.CalledProcessError
        If packages cannot be had.
    """
    python = folder / "bin" / "python"
    done = folder / ".done"
    if not done.is_file() or done.read_text("utf-8") != str(PEER):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        subprocess.run([python, *install, *PEER], check=True)
        done.write_text(str(PEER), "utf-8")
    return python


def theirs(
    splits: Sequence[Mapping[str, str]], python: Path, folder: Path, side: str
) -> dict[str, list[dict[str, Any]]]:
    """Return the alarms of a side of evidently by change and split."""
    jobs = [
        {
            "how": side,
            "reference": paths["reference"],
            "current": paths[change],
            "columns": list(COLUMNS) if change == SAME else [MOVED],
        }
        for change in changes()
        for paths in splits
    ]
    asked, answered = folder / f"jobs-{side}.json", folder / f"results-{side}.json"
    asked.write_text(json.dumps(jobs), "utf-8")
    # Nothing is told to anybody.
    quiet = {**os.environ, "DO_NOT_TRACK": "1", "PYTHONWARNINGS": "ignore"}
    quiet.pop("PYTHONPATH", None)
    subprocess.run([python, _PEER_SCRIPT, asked, answered], check=True, env=quiet)
    results = iter(json.loads(answered.read_text("utf-8")))
    return {change: [next(results) for _ in splits] for change in changes()}


def summarize(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the shares of splits in which a side alarmed.

    Examples
    --------
    >>> quiet, loud = {"columns": [], "dataset": False}, {"columns": [MOVED], "dataset": True}
    >>> of = {name: [loud, loud] for name in changes()} | {SAME: [quiet, loud]}
    >>> summarize(of)["any"], summarize(of)["columns"], summarize(of)["moved"]["+0.4"]
    (0.5, 0.0625, 1.0)
    """
    same = found[SAME]
    summary: dict[str, Any] = {
        "any": float(np.mean([bool(own["columns"]) for own in same])),
        "columns": float(np.mean([len(own["columns"]) / len(COLUMNS) for own in same])),
    }
    if all("dataset" in own for own in same):
        summary["dataset"] = float(np.mean([own["dataset"] for own in same]))
        summary["methods"] = sorted({name for own in same for name in own.get("methods", [])})
    summary["moved"] = {
        change: float(np.mean([MOVED in own["columns"] for own in found[change]]))
        for change in changes()
    }
    errors = {own["error"] for runs in found.values() for own in runs if "error" in own}
    return summary | ({"errors": sorted(errors)} if errors else {})


def table(record: Mapping[str, Any]) -> str:
    """Return the shares as the page shows them."""
    lines = [
        f"| | any column | columns | dataset | `{MOVED.removeprefix('peer_')}` alone "
        "| + .4 sd | + .8 sd | 60 % undefined |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, own in record["sides"].items():
        figures = [own["any"], own["columns"], own.get("dataset"), *own["moved"].values()]
        shown = ["" if each is None else f"{each:.2f}".removeprefix("0") for each in figures]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def run(python: Path, n_splits: int) -> dict[str, Any]:
    """Return what both sides said of the same splits."""
    began_on = environment(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as beside:
        splits = write_splits(Path(name), n_splits)
        peer = {
            side: beside.submit(theirs, splits, python, Path(name), side) for side in PEER_SIDES
        }
        own = {f"qaeval, alpha {alpha:g}": runs for alpha, runs in ours(splits).items()}
        sides = {PEER_SIDES[side]: runs.result() for side, runs in peer.items()} | own
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": began_on,
        "peer": list(PEER),
        "n_splits": n_splits,
        "columns": list(COLUMNS),
        "moved": MOVED,
        "sides": {side: summarize(runs) for side, runs in sides.items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms")
    parser.add_argument("--splits", type=int, default=100, help="default %(default)s")
    parser.add_argument(
        "--peer",
        type=Path,
        default=Path("build/evidently"),
        help="folder of evidently's environment, 1 GB; made if it is not there",
    )
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    record = run(make_peer(chosen.peer.absolute()), chosen.splits)
    print(json.dumps(record["environment"]))
    print(table(record))
    if chosen.json:
        write_json(chosen.json, record)


if __name__ == "__main__":
    main()
