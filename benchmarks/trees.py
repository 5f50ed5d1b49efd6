"""Trees: model passes of two checkouts in turn, for a change that must cost nothing.

Each run is a process of its own, with artifacts of its own tree's graphs; what is compared is the
time that a family's pass took by its report, not start and imports. A ratio above 1 says that this
tree is faster than the other one.

usage: python -m benchmarks.trees OTHER_CHECKOUT [--runs METRICS ...] [--rows N] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from benchmarks.data import load_rows
from benchmarks.measure import environment
from qaeval_core.models.cpu import available_cpus

_OWN = Path(__file__).resolve().parents[1]
# What single runs are asked to score: together they run all graphs.
_RUNS = (
    "qrelscore",
    "sas,bi_encoder,bertscore,moverscore",
    "kpqa --column candidate=answer",
    "roundtrip",
)


def write_rows(path: Path, n_rows: int) -> None:
    """Write rows that every metric reads: neighboring questions are each other's references."""
    rows = load_rows(n_rows)
    questions = rows.questions
    table = {
        "id": range(len(rows)),
        "question": questions,
        "context": rows.contexts,
        "answer": [
            " ".join(context.split()[i % 40 :][:12]) for i, context in enumerate(rows.contexts)
        ],
        "references": [[text] for text in [*questions[1:], *questions[:1]]],
    }
    pl.DataFrame(table).write_parquet(path)


def pass_seconds(tree: Path, source: Path, asked: str, folder: Path) -> dict[str, float]:
    """Score once in a tree; return the seconds that the model took, by family."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        out = Path(work, "out")
        words = ["score", source, "--out", out, "--local", "--metrics", *asked.split()]
        done = subprocess.run(
            [sys.executable, "-m", "qaeval.cli", *words],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(str(tree / root) for root in (".", "jobs", "export")),
                "QAEVAL_ARTIFACTS": str(folder / f"artifacts-{tree.name}"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{tree}: exit {done.returncode}\n{done.stderr}")
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {
        key.partition("-")[0]: own["this_run"]["seconds"]["run"]
        for key, own in report["families"].items()
    }


def _revision(tree: Path) -> str:
    words = ["git", "-C", tree, "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def compare(
    other: Path, *, runs: Sequence[str], n_rows: int, n_repeats: int, folder: Path
) -> dict[str, dict[str, object]]:
    """Return seconds in both trees and their ratios, pair by pair; prints them as they come."""
    source = folder / "rows.parquet"
    write_rows(source, n_rows)
    found: dict[str, dict[str, object]] = {}
    print(f"{'family':<20}{'other s':>9}{'this s':>9}  ratio, median of {n_repeats} pairs")
    for asked in runs:
        pairs: list[tuple[dict[str, float], dict[str, float]]] = []
        for number in range(n_repeats + 1):
            pair = tuple(pass_seconds(tree, source, asked, folder) for tree in (other, _OWN))
            if number:  # The first one exports, and fills caches.
                pairs.append((pair[0], pair[1]))
        for family in pairs[0][1]:
            before = [pair[0][family] for pair in pairs]
            after = [pair[1][family] for pair in pairs]
            ratios = sorted(a / b for a, b in zip(before, after, strict=True))
            found[f"{family} of {asked.partition(' ')[0]}"] = {
                "other_s": before,
                "this_s": after,
                "ratios": ratios,
            }
            print(
                f"{family:<20}{statistics.median(before):>9.2f}{statistics.median(after):>9.2f}  "
                f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
                flush=True,
            )
    return found


def main() -> None:
    """Compare, and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees")
    parser.add_argument("other", type=Path, help="another checkout, run with these packages")
    parser.add_argument("--runs", nargs="+", default=_RUNS, metavar="METRICS")
    parser.add_argument("--rows", type=int, default=200, help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    parser.add_argument("--work", type=Path, help="where artifacts stay; default a new folder")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = chosen.work or stack.enter_context(tempfile.TemporaryDirectory())
        found = compare(
            chosen.other.resolve(),
            runs=chosen.runs,
            n_rows=chosen.rows,
            n_repeats=chosen.repeats,
            folder=Path(folder),
        )
    if chosen.json:
        content = {
            "environment": environment(available_cpus()),
            "other_revision": _revision(chosen.other),
            "rows": chosen.rows,
            "families": found,
        }
        chosen.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
