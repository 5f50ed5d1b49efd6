"""Object store: the same job with OUT in a bucket of a local server and on the disk, in turn.

The server is ministack, a process of this machine: it shares its cores, and answers in
milliseconds, where a cloud takes tens of them and none of these cores. Time of words runs from a
checked request to ``_SUCCESS``, that of LRM from its first commit to its last: loading the model is
in neither side. The first pair is not counted. Run ``python -m benchmarks.object_store``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyarrow import fs

from benchmarks.data import load_rows, write_files
from benchmarks.measure import environment, ratio
from qaeval_core.configure import load_config
from qaeval_core.models.cpu import available_cpus
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.scoring.run import run_job
from qaeval_core.storage.path import as_path

_BUCKET = "bench"
_START_S = 60.0
# Nobody checks them there.
_KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
SECTIONS: dict[str, dict[str, Any]] = {
    "words": {"metrics.f1.metric": "f1", "metrics.rouge_l.metric": "rouge_l"},
    "lrm": {
        "metrics.qrelscore.metric": "qrelscore",
        # A commit a second or two, far more often than by default.
        "scoring.rows_per_shard": 64,
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the chosen sections and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--word-rows", type=int, default=100_000)
    parser.add_argument("--lrm-rows", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    chosen = parser.parse_args(arguments)
    if chosen.lrm_rows <= SECTIONS["lrm"]["scoring.rows_per_shard"]:
        parser.error(f"--lrm-rows {chosen.lrm_rows}: time is taken from the first commit on")
    os.environ.update(_KEYS)
    found: dict[str, object] = {"environment": environment(available_cpus())}
    print(f"ministack against the disk; load average {os.getloadavg()[0]:.2f} before")
    with _server() as port:
        for name in chosen.only.split(","):
            n_rows = chosen.word_rows if name == "words" else chosen.lrm_rows
            found[name] = run_section(name, n_rows, chosen.repeats, port)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=2, default=str))


def run_section(name: str, n_rows: int, n_repeats: int, port: int) -> dict[str, object]:
    """Time one section on both sides, print it, and return what was timed."""
    seconds: dict[str, list[float]] = {"disk": [], "bucket": []}
    way = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in")
        write_files(source, load_rows(n_rows), n_files=1, rows_per_file=n_rows)
        for i in range(-1, n_repeats):  # The first pair is not counted.
            outs = {
                "disk": str(Path(folder, f"out{i}")),
                "bucket": f"s3://{_BUCKET}/{name}{i}?{way}",
            }
            for side, out in outs.items():
                taken_s = _time(name, source, out)
                if i >= 0:
                    seconds[side].append(taken_s)
            _check_same(*outs.values())
    rates = {side: [n_rows / own for own in taken] for side, taken in seconds.items()}
    ratios = ratio(rates["bucket"], rates["disk"])
    print(f"{name}: {n_rows:,} rows")
    for side, own in rates.items():
        span = f"[{min(own):,.1f} .. {max(own):,.1f}]"
        print(f"  {side:<7}{statistics.median(own):12,.1f} rows/s   {span}")
    print(
        f"  bucket / disk, of medians {ratios['of_medians']:.3f}"
        f"   pairs [{ratios['lowest_pair']:.3f} .. {ratios['highest_pair']:.3f}]",
        flush=True,
    )
    return {"seconds": seconds, "ratio": ratios, "n_rows": n_rows}


def _time(name: str, source: Path, out: str) -> float:
    config = load_config(
        overrides={
            "input.paths": [str(source)],
            "input.columns.candidate": "question",
            "input.columns.references": "context",
            "output.path": out,
            "scoring.progress_s": 3600.0,
            "cluster.device": "cpu",
            **SECTIONS[name],
        }
    )
    job = make_job(config, read_inputs(config), device="cpu")
    ends = [time.perf_counter()]
    if name == "lrm":
        plan = next(plan for plan in job.run.families if plan.name == name)
        pieces = job.pieces([plan], n_actors=1)
        run = LocalPieceExecutor().make_pass(
            job, [plan], pieces, lambda _: ends.append(time.perf_counter())
        )
        run()
        return ends[-1] - ends[1]
    run_job(job, LocalPieceExecutor(), say=lambda _: None)
    return time.perf_counter() - ends[0]


def _check_same(disk: str, bucket: str) -> None:
    """Look whether both sides wrote the same commits and scores: else one did less."""
    sides = [
        {
            found.name: (as_path(out) / found.name).read_bytes()
            for found in as_path(out).list(is_deep=True)
            if found.name.startswith(("families/", "scores/"))
        }
        for out in (disk, bucket)
    ]
    assert sides[0], "nothing was written"
    assert sides[0] == sides[1], "what was written differs"


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """Run a server of its own on a free port."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("ministack")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "BIND_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(port),
                "SERVICES": "s3",
            },
            cwd=folder,
        )
        try:
            _make_bucket(port)
            yield port
        finally:
            process.terminate()
            process.wait()


def _make_bucket(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    filesystem = fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    filesystem.create_dir(_BUCKET)


if __name__ == "__main__":
    main()
