"""What several tests use: small inputs, the command line, and comparisons of score tables."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval import cli
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.distribution import PASSED_ON
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.planning.compile import needed_requests
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.running.sampling import with_sample
from qaeval_core.sample import sample_table
from qaeval_core.scoring.run import RunOutcome, run_job

REPOSITORY = Path(__file__).resolve().parents[1]
_CODE = re.compile(r" \[[A-Z]{2,}\d{4}\]$")


def short_sample(n_rows: int) -> pa.Table:
    """Return rows of the sample corpus whose contexts are short, so that tests are quick."""
    rows = [row for row in sample_table().to_pylist() if len(row["context"]) < 1_500]
    return pa.Table.from_pylist(rows[:n_rows])


def write_parquet(path: Path, table: pa.Table, **options: object) -> Path:
    """Write a table, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def start_qaeval(*words: str | Path, folder: Path = REPOSITORY) -> subprocess.Popen[str]:
    """Start a command of qaeval in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "qaeval.cli", *(str(word) for word in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def as_table(found: Any) -> Any:
    """Return rows of a `Scorer` as a table; other kinds as they are."""
    is_rows = isinstance(found, list) and all(isinstance(row, dict) for row in found)
    if is_rows and not found:
        return _NoRows()
    return pa.Table.from_pylist(found) if is_rows else found


class _NoRows(dict[str, pa.ChunkedArray]):
    """A table without rows that has any column: a list of no rows names none."""

    num_rows = 0

    def __missing__(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array([], pa.float64())


def qaeval(
    *words: str | Path, expect: int = 0, apart: bool = False, folder: Path = REPOSITORY
) -> str:
    """Run a command of qaeval and return what it printed.

    In this process, which has what each command would load for seconds; a command that names a Ray
    cluster, becomes another program or is to be ``apart``, in one of its own.
    """
    is_apart = apart or words[0] in PASSED_ON or "RAY_ADDRESS" in os.environ
    if is_apart or {"--ray", "--address"} & set(words):
        process = start_qaeval(*words, folder=folder)
        output, _ = process.communicate(timeout=300)
        code = process.returncode
    else:
        code, output = _called([str(word) for word in words], folder)
    assert code == expect, f"exit {code}, expected {expect}:\n{output}"
    assert "Traceback" not in output, output
    assert_codes(output)
    return output


def _called(words: list[str], folder: Path) -> tuple[int, str]:
    """Call the command line; return its exit code and what it printed, both streams as one."""
    printed = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    own, sys.argv = sys.argv, ["qaeval", *words]
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            cli.main()
    except SystemExit as end:
        return int(end.code or 0), printed.getvalue()
    finally:
        sys.argv = own
        gc.enable()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    raise AssertionError("the command line returned")


def assert_codes(output: str) -> None:
    """Assert that each error in what a command printed ends its line with a code."""
    for line in output.splitlines():
        assert not line.startswith("error: ") or _CODE.search(line), line


def tells(text: str, expected: str) -> bool:
    """Return whether a message has the parts of ``expected``, split at `` ... ``, in order."""
    pattern = ".*".join(map(re.escape, expected.split(" ... ")))
    return re.search(pattern, text, re.DOTALL) is not None


def read_scores(out: Path, name: str = "input.parquet") -> pl.DataFrame:
    """Return the scores of one input file."""
    return pl.read_parquet(out / "scores" / name)


def assert_same_scores(left: pl.DataFrame, right: pl.DataFrame, *, tolerance: float = 1e-5) -> None:
    """Assert equal columns, ids and reasons, and scores within a tolerance, nulls in one place."""
    assert left.columns == right.columns
    assert left.height == right.height
    for name in left.columns:
        if left[name].dtype.is_float():
            assert left[name].is_null().to_list() == right[name].is_null().to_list(), name
            a, b = (side[name].fill_null(0.0).to_numpy() for side in (left, right))
            assert float(np.abs(a - b).max(initial=0.0)) <= tolerance, name
        else:
            assert left[name].to_list() == right[name].to_list(), name


def commits(out: Path, family: str) -> dict[str, tuple[int, int]]:
    """Return path -> (inode, modification time) of the commits of families of a name."""
    return {
        f"{path.parent.name}/{path.name}": (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in out.glob(f"families/{family}-*/*.parquet")
    }


def build_needed(config: RunConfig) -> None:
    """Build the artifacts of a configuration that are missing.

    Those of small models here and not in a process of its own, which would import torch for 5 s
    more, each time; those of embedded models side by side.
    """
    root = Path(config.models.artifacts_path or default_root())
    named = []
    for request in needed_requests(config, device="cpu"):
        if not Path(request.model).is_dir():
            named.append(request)
            continue
        from qaeval_export.build import build_artifact

        build_artifact(request, root)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda request: ensure_artifact(root, request), named))


def build_matches(config: RunConfig) -> None:
    """Build the graphs that show LRM's matches: an explanation builds nothing."""
    for request in needed_requests(config, device="cpu"):
        if request.graph == "relevance_matching":
            ensure_artifact(default_root(), replace(request, graph="relevance_matches"))


def run_locally(overrides: Mapping[str, object]) -> tuple[RunOutcome, list[str]]:
    """Run a score job in this process; return its outcome and what it said."""
    config = load_config(overrides=overrides)
    build_needed(config)
    job = make_job(config, with_sample(config, read_inputs(config)), device="cpu")
    said: list[str] = []
    return run_job(job, LocalPieceExecutor(), say=said.append), said


def processes(root: int, *, title: str) -> list[psutil.Process]:
    """Return the processes below one whose titles hold a word, by Ray's process titles."""
    found = []
    for child in psutil.Process(root).children(recursive=True):
        try:
            if title in " ".join(child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_until(
    condition: Callable[[], bool],
    process: subprocess.Popen[str] | None = None,
    *,
    timeout_s: float = 120.0,
) -> None:
    """Wait for a condition, as long as a process lives."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"it did not come true in {timeout_s:.0f} s"
        time.sleep(0.02)


@contextlib.contextmanager
def full_disk(n_bytes: int = 10) -> Iterator[None]:
    """Let this process write no file beyond so many bytes, as on a disk that is full."""
    # Python ignores the signal that would come with it.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def may_hide_folders() -> bool:
    """Whether a process may have mounts of its own, as a node that does not see a folder has."""
    words = ("unshare", "-m", "true")
    return shutil.which("unshare") is not None and not subprocess.run(words, check=False).returncode
