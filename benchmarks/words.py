"""Benchmark of lexical metrics: rows/s against public peers, and a million rows on Ray.

``speed``: f1, rouge_l and bleu_1 to 4 together against the sum of the peers that compute them, on
the same rows in one process on one core, in turn; equal numbers are checked. ``million``: one
million rows through `qaeval score` on a local Ray: rows/s and peak memory.

Run ``python -m benchmarks.words --only speed --json numbers.json``. It never judges a number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import environment, interleave, ratio
from benchmarks.word_peers import BLEU_SETTINGS, PEERS, Row, largest_difference
from qaeval_core import Scorer

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
METRICS = ("f1", "rouge_l", "bleu_1", "bleu_2", "bleu_3", "bleu_4")
_SAMPLE_S = 0.2


def long_rows(n_rows: int) -> tuple[str, list[Row]]:
    """Return answers of sentences: MS-MARCO's, with their references."""
    table = pl.read_parquet(DATA / "ms_marco" / "eval_dev_pairs.parquet")
    table = table.filter(pl.col("references").list.len() > 0)
    pairs = zip(table["candidate"].to_list(), table["references"].to_list(), strict=True)
    return "MS-MARCO answers", list(pairs)[:n_rows]


def short_rows(n_rows: int) -> tuple[str, list[Row]]:
    """Return answers of a few words: five systems' predictions against gold answers of SQuAD."""
    gold = pl.read_parquet(DATA / "squad" / "squad_v2_dev.parquet", columns=["id", "answers"])
    predicted = pl.read_parquet(DATA / "squad" / "squad_v11_dev_predictions.parquet")
    systems = [name for name in predicted.columns if name.startswith("pred_")]
    table = (
        predicted.unpivot(systems, index="id", value_name="candidate")
        .join(gold.filter(pl.col("answers").list.len() > 0), on="id")
        .drop_nulls("candidate")
        .sort("id", "variable")
    )
    pairs = zip(table["candidate"].to_list(), table["answers"].to_list(), strict=True)
    return "SQuAD predictions", list(pairs)[:n_rows]


def run_speed(n_rows: int, n_repeats: int) -> dict[str, object]:
    """Compare with each set of peers on each corpus."""
    # One core for every side: numpy's sorts would otherwise use what peers in Python cannot.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found: dict[str, object] = {}
    for load in (long_rows, short_rows):
        source, rows = load(n_rows)
        for name, peers in PEERS.items():
            found[f"{source}, {name}"] = _compare(source, name, rows, peers, n_repeats)
    return found


def _compare(
    source: str, name: str, rows: Sequence[Row], peers: Sequence[Any], n_repeats: int
) -> dict[str, object]:
    table = pa.table(
        {"candidate": [row[0] for row in rows], "references": [row[1] for row in rows]}
    )
    settings: dict[str, dict[str, object]] = {
        "f1": {},
        "rouge_l": {"over_references": "max"},
        **{f"bleu_{order}": dict(BLEU_SETTINGS[name]) for order in (1, 2, 3, 4)},
    }
    kept: dict[str, Any] = {}

    def ours() -> None:
        kept["ours"] = Scorer(settings).score(table)

    def theirs(peer: Callable[[Sequence[Row]], Any]) -> None:
        kept[peer.__name__] = peer(rows)

    sides: dict[str, Callable[[], object]] = {"qaeval": ours}
    sides.update({peer.__name__: partial(theirs, peer) for peer in peers})
    seconds = interleave(sides, n_repeats=n_repeats)
    theirs_s = [sum(own) for own in zip(*(seconds[peer.__name__] for peer in peers), strict=True)]
    rates = [len(rows) / own for own in seconds["qaeval"]]
    peer_rates = [len(rows) / own for own in theirs_s]
    scores = {metric: kept["ours"].column(metric).to_pylist() for metric in METRICS}
    other = {key: own for peer in peers for key, own in kept[peer.__name__].items()}
    difference = largest_difference(scores, other)
    ratios = ratio(rates, peer_rates)
    print(f"{source}, {len(rows):,} rows, BLEU as {name}'s")
    print(f"  qaeval          {statistics.median(rates):10,.0f} rows/s of one core")
    print(f"  sum of peers    {statistics.median(peer_rates):10,.0f} rows/s")
    for peer in peers:
        own = [len(rows) / second for second in seconds[peer.__name__]]
        print(f"    {peer.__name__:<22}{statistics.median(own):10,.0f} rows/s")
    print(
        f"  ratio {ratios['of_medians']:.1f} of medians "
        f"[{ratios['lowest_pair']:.1f} .. {ratios['highest_pair']:.1f}]; largest difference of any "
        f"score {difference:.1g}"
    )
    return {
        "rows": len(rows),
        "distinct_rows": len({(row[0], *row[1]) for row in rows}),
        "rates": rates,
        "peer_rates": peer_rates,
        "ratio": ratios,
        "difference": difference,
    }


def run_million(n_rows: int, _: int) -> dict[str, object]:
    """Score a million rows through the command line on a local Ray."""
    with tempfile.TemporaryDirectory() as folder:
        path, source = _write_many(Path(folder), n_rows)
        words = ["score", str(path), "--out", f"{folder}/out", "--metrics", ",".join(METRICS)]
        started = time.perf_counter()
        memory = _run_watched(words)
        wall_s = time.perf_counter() - started
        report = json.loads((Path(folder) / "out" / "report.json").read_text("utf-8"))
    families = report["families"].values()
    pass_s = max(family["this_run"]["wall_s"] for family in families)
    print(f"{report['rows']:,} rows of {source}, {', '.join(METRICS)}")
    print(
        f"  {report['rows'] / pass_s:,.0f} rows/s in the pass, {report['rows'] / wall_s:,.0f} "
        f"from start to end ({wall_s:.0f} s)"
    )
    for name, (half, whole) in memory.items():
        print(f"  {name}: peak {whole / 2**30:.2f} GB, {half / 2**30:.2f} GB by half time")
    return {"wall_s": wall_s, "pass_s": pass_s, "memory_bytes": memory, "rows": report["rows"]}


def _write_many(folder: Path, n_rows: int) -> tuple[Path, str]:
    """Write rows in row groups of 65,536; a number in front keeps repeats from being equal."""
    source, rows = long_rows(n_rows)
    short_source, short = short_rows(n_rows)
    both = [*rows, *short]
    path = folder / "many.parquet"
    schema = pa.schema({"candidate": pa.string(), "references": pa.list_(pa.string())})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, 65_536):
            numbers = range(start, min(start + 65_536, n_rows))
            chosen = [both[i % len(both)] for i in numbers]
            texts = [f"{i} {row[0]}" for i, row in zip(numbers, chosen, strict=True)]
            writer.write_table(pa.table([texts, [row[1] for row in chosen]], schema=schema))
    return path, f"{source} and {short_source}"


def _run_watched(words: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Run the command; return peak memory by half time and in all, of driver and workers."""
    process = psutil.Popen([sys.executable, "-m", "qaeval.cli", *words], stdout=-3)
    samples: list[dict[str, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            samples.append(_memory(process))

    thread = threading.Thread(target=watch)
    thread.start()
    code = process.wait()
    done.set()
    thread.join()
    if code:
        raise RuntimeError(f"qaeval ended with {code}")
    half = samples[: len(samples) // 2]
    names = {name for sample in samples for name in sample}
    return {
        name: tuple(max(one.get(name, 0) for one in part) for part in (half, samples))
        for name in sorted(names)
    }


def _memory(process: psutil.Process) -> dict[str, int]:
    """Return resident bytes of the driver and of the largest scoring worker."""
    found: dict[str, int] = {}
    try:
        found["driver"] = process.memory_info().rss
        for child in process.children(recursive=True):
            name = " ".join(child.cmdline()[:1])
            if "ScorePieces" in name or "MapWorker" in name:
                found["worker"] = max(found.get("worker", 0), child.memory_info().rss)
    except psutil.Error:
        pass  # It ended between two looks.
    return found


SECTIONS = {"speed": (run_speed, 10_000), "million": (run_million, 1_000_000)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.words")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections; default all")
    parser.add_argument("--rows", type=int, help="default 10,000 and 1,000,000")
    parser.add_argument("--repeats", type=int, default=5, help="timed passes; default %(default)s")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found = environment(1)
    print(f"cpu {found['cpu']}, {found['cores']} cores; revision {found['revision']}")
    print(f"load {found['load_average'][0]:.2f}")
    results = {}
    # The million first: the other section keeps its process to one core.
    for name in sorted(chosen.only.split(","), key=lambda name: name != "million"):
        run, n_rows = SECTIONS[name]
        print(f"\n== {name} ==", flush=True)
        results[name] = run(chosen.rows or n_rows, chosen.repeats)
    if chosen.json:
        content = {"environment": found, "sections": results}
        chosen.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
