"""Benchmark of filter: rows/s beside a plain copy of the same rows, and beside a polars script.

Rows are generated: five questions a context, a tenth of them repeated with other case and marks,
six score columns, in files of a million rows. The command runs as people run it on one machine,
with all cores and start included. The copy is pyarrow's, by two processes that know which rows are
kept, which is all that it does not have to find out. The script is what people write with polars
where memory holds the corpus; it must keep the same ids, and is left out where values tie. Memory
is that of each size, and what it grows by a row from the smallest to the largest. Run ``python -m
benchmarks.filter --rows 1000000``. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measure import environment, ratio

ROWS_PER_FILE = 1_000_000
_ROWS_PER_GROUP = 50_000
_QUESTIONS_PER_CONTEXT = 5
_SCORES = ("rank", "sas", "f1", "rouge_l", "bertscore", "roundtrip")
_SHARE = "0.6"
_TOP_K = "2"
SECTIONS = {
    "share": ["--rank-by", "rank", "--share", _SHARE, "--rules", "none",
              "--near-duplicates", "none"],
    # At any cut many rows have one value: their order is by hashes of ids, which a pass reads.
    "ties": ["--rank-by", "roundtrip", "--share", _SHARE, "--rules", "none",
             "--near-duplicates", "none"],
    "group": ["--rank-by", "rank", "--rules", "none", "--near-duplicates", "exact",
              "--group", "context", "--top-k", _TOP_K],
}  # fmt: skip


def generate(folder: Path, *, n_rows: int, n_context_chars: int) -> None:
    """Write the corpus, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    words = _words()
    for number, start in enumerate(range(0, n_rows, ROWS_PER_FILE)):
        path = folder / f"rows-{number:03d}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng(number)
        partial = path.with_suffix(".tmp")
        n_left = min(ROWS_PER_FILE, n_rows - start)
        writer: pq.ParquetWriter | None = None
        for first in range(0, n_left, _ROWS_PER_GROUP):
            n = min(_ROWS_PER_GROUP, n_left - first)
            table = _rows(rng, words, start + first, n, n_context_chars)
            writer = writer or pq.ParquetWriter(partial, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        partial.rename(path)


def _words() -> np.ndarray:
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return np.array(["".join(rng.choice(letters, int(rng.integers(2, 9)))) for _ in range(5000)])


def _rows(
    rng: np.random.Generator, words: np.ndarray, start: int, n: int, n_chars: int
) -> pa.Table:
    n_contexts = -(-n // _QUESTIONS_PER_CONTEXT)
    contexts = [
        " ".join(own)[:n_chars]
        for own in words[rng.integers(5000, size=(n_contexts, n_chars // 6))]
    ]
    place = np.repeat(np.arange(n_contexts), _QUESTIONS_PER_CONTEXT)[:n]
    questions = [" ".join(own) for own in words[rng.integers(5000, size=(n, 10))]]
    for i in np.flatnonzero(rng.random(n) < 0.1):
        if i and place[i] == place[i - 1]:
            questions[i] = questions[i - 1].upper() + "?"
    scores = {name: rng.random(n).astype(np.float32) for name in _SCORES[1:]}
    scores["roundtrip"] = scores["roundtrip"].round(2)
    return pa.table(
        {
            "id": [f"q{start + i}" for i in range(n)],
            "question": questions,
            "context": pa.DictionaryArray.from_arrays(place, contexts).cast(pa.string()),
            "answer": words[rng.integers(5000, size=n)],
            "rank": rng.random(n),
            **scores,
        }
    )


class PeakMemory:
    """The largest memory of a process and of its descendants, while it runs, ten looks a second.

    Of a process it is what is resident (RSS) less what others may share (SHR): mapped files such
    as libraries, and Ray's object store, are not its own.
    """

    def __init__(self, pid: int) -> None:
        self.driver_bytes = self.worker_bytes = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self.driver_bytes = max(self.driver_bytes, self._own(self._process))
                for child in self._process.children(recursive=True):
                    if "spawn_main" in " ".join(child.cmdline()):
                        self.worker_bytes = max(self.worker_bytes, self._own(child))
            except psutil.Error:
                continue

    @staticmethod
    def _own(process: psutil.Process) -> int:
        found = process.memory_info()
        return int(found.rss - found.shared)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def run_filter(source: Path, kept: Path, words: Sequence[str]) -> tuple[float, PeakMemory]:
    """Run the command; return its seconds and memory."""
    shutil.rmtree(kept, ignore_errors=True)
    command = [sys.executable, "-m", "qaeval.cli", "filter", str(source), "--to", str(kept), *words]
    command.append("--local")
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    memory = PeakMemory(process.pid)
    _, said = process.communicate()
    seconds = time.perf_counter() - started
    memory.stop()
    assert process.returncode == 0, said.decode()
    return seconds, memory


def copy(source: Path, kept: Path, target: Path) -> float:
    """Copy the rows that a filter kept, by two processes; return the seconds."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    paths = sorted(source.glob("*.parquet"))
    masks = [pq.read_table(kept / "decisions" / path.name, columns=["kept"]) for path in paths]
    started = time.perf_counter()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_copy_file, paths, masks, [target / path.name for path in paths]))
    return time.perf_counter() - started


def _copy_file(path: Path, mask: pa.Table, target: Path) -> None:
    pa.set_cpu_count(1)
    kept = mask["kept"].combine_chunks()
    start = 0
    parquet = pq.ParquetFile(path)
    with pq.ParquetWriter(target, parquet.schema_arrow, compression="zstd") as writer:
        for batch in parquet.iter_batches(batch_size=1 << 16, use_threads=False):
            own = kept.slice(start, batch.num_rows)
            writer.write_batch(pc.filter(batch, own))
            start += batch.num_rows


def polars_share(source: Path) -> pl.Series:
    """Return the ids of the best share, as a script would."""
    rows = pl.scan_parquet(source / "*.parquet")
    n_rows = rows.select(pl.len()).collect().item()
    best = rows.select("id", "rank").sort("rank", descending=True).head(int(0.6 * n_rows))
    return best.select("id").collect()["id"]


def polars_group(source: Path) -> pl.Series:
    """Return the ids of the two best distinct questions of each context, as a script would."""
    rows = pl.scan_parquet(source / "*.parquet").select(
        "id",
        "rank",
        "context",
        words=pl.col("question").str.to_lowercase().str.extract_all(r"\w+").list.join(" "),
    )
    best = rows.sort("rank", descending=True).unique(
        ["context", "words"], keep="first", maintain_order=True
    )
    return best.group_by("context").head(int(_TOP_K)).select("id").collect()["id"]


def run_section(
    name: str, source: Path, folder: Path, *, n_rows: int, n_repeats: int, with_polars: bool
) -> dict[str, object]:
    """Time a section and print it."""
    kept = folder / "kept"
    scripts: dict[str, Callable[[Path], pl.Series]] = {"share": polars_share, "group": polars_group}
    ours, copies, scripted = [], [], []
    memory: list[PeakMemory] = []
    load = os.getloadavg()[0]
    for _ in range(n_repeats):
        seconds, peak = run_filter(source, kept, SECTIONS[name])
        memory.append(peak)
        ours.append(n_rows / seconds)
        copies.append(n_rows / copy(source, kept, folder / "copied"))
        if with_polars and name in scripts:
            started = time.perf_counter()
            ids = scripts[name](source)
            scripted.append(n_rows / (time.perf_counter() - started))
            own = pl.scan_parquet(kept / "kept" / "*.parquet").select("id").collect()["id"]
            assert own.sort().equals(ids.sort()), "polars keeps other rows"
    found: dict[str, object] = {
        "load_average": load,
        "rows_per_s": ours,
        "copy_rows_per_s": copies,
        "ratio_to_copy": ratio(ours, copies),
        "driver_mb": max(own.driver_bytes for own in memory) / 1e6,
        "worker_mb": max(own.worker_bytes for own in memory) / 1e6,
    }
    print(f"  {name}: {max(ours):,.0f} rows/s, copy {max(copies):,.0f}", end="")
    pairs = ratio(ours, copies)
    print(f", ratio {pairs['of_medians']:.2f}, lowest pair {pairs['lowest_pair']:.3f}", end="")
    if scripted:
        found["n_ids_as_polars"] = len(ids)
        found["polars_rows_per_s"] = scripted
        found["ratio_to_polars"] = ratio(ours, scripted)
        print(f"; polars, ids alone: {max(scripted):,.0f}, same ids", end="")
    print(f"; driver {found['driver_mb']:,.0f} MB, largest worker {found['worker_mb']:,.0f} MB")
    return found


def _show_growth(
    found: dict[str, dict[str, object]], name: str, sizes: Sequence[int], n_chars: int
) -> None:
    """Print how many bytes a row processes grow by, from the fewest rows to the most."""
    few, many = min(sizes), max(sizes)
    if few == many:
        return
    own = [found[f"{name}-{n_rows}-{n_chars}"] for n_rows in (few, many)]
    growth: dict[str, object] = {
        who: (own[1][f"{who}_mb"] - own[0][f"{who}_mb"]) * 1e6 / (many - few)  # type: ignore[index]
        for who in ("driver", "worker")
    }
    found[f"growth-{name}-{n_chars}"] = growth
    said = ", ".join(f"{who} {n_bytes:.1f}" for who, n_bytes in growth.items())
    print(f"  {name}, bytes a row from {few:,} to {many:,} rows: {said}")


def without_rates(found: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """Return what other work on the machine does not change: memory, and how many ids are equal.

    Examples
    --------
    >>> without_rates({"share-10-100": {"rows_per_s": [2.0], "ratio_to_copy": {}, "driver_mb": 3}})
    {'share-10-100': {'driver_mb': 3}}
    """
    return {
        section: {
            name: value
            for name, value in own.items()
            if not name.endswith("rows_per_s") and not name.startswith("ratio")
        }
        for section, own in found.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filter")
    parser.add_argument("--rows", default="2000000,10000000", help="default %(default)s")
    parser.add_argument("--context-chars", default="700,100", help="default %(default)s")
    parser.add_argument("--only", default="share,ties,group", help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=1, help="default %(default)s")
    parser.add_argument("--no-polars", action="store_true", help="where memory is short")
    parser.add_argument("--work", type=Path, help="folder for the corpus, 4 GB; default a new one")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--no-rates", action="store_true", help="leave them out of the file: busy")
    chosen = parser.parse_args(arguments)
    found: dict[str, dict[str, object]] = {"environment": environment(len(os.sched_getaffinity(0)))}
    print(json.dumps(found["environment"]))
    folder = chosen.work or Path(tempfile.mkdtemp(prefix="qaeval-filter-"))
    try:
        for n_chars in map(int, chosen.context_chars.split(",")):
            for n_rows in map(int, chosen.rows.split(",")):
                source = folder / f"{n_rows}-{n_chars}"
                generate(source, n_rows=n_rows, n_context_chars=n_chars)
                print(f"\n== {n_rows:,} rows, contexts of {n_chars} characters ==  load average "
                      f"{os.getloadavg()[0]:.2f}", flush=True)  # fmt: skip
                for name in chosen.only.split(","):
                    found[f"{name}-{n_rows}-{n_chars}"] = run_section(
                        name,
                        source,
                        folder,
                        n_rows=n_rows,
                        n_repeats=chosen.repeats,
                        with_polars=not chosen.no_polars,
                    )
            for name in chosen.only.split(","):
                _show_growth(found, name, [int(n) for n in chosen.rows.split(",")], n_chars)
    finally:
        if chosen.work is None:
            shutil.rmtree(folder, ignore_errors=True)
    if chosen.no_rates:
        found = without_rates(found)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
