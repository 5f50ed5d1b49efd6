"""`ray job submit` to a running cluster: the way a job reaches one in production."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil
import pytest
from helpers import (
    REPOSITORY,
    assert_same_scores,
    qaeval,
    read_scores,
    short_sample,
    write_parquet,
)

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]

N_ROWS = 8
START_TIMEOUT_S = 90
JOB_TIMEOUT_S = 240
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Head:
    """A Ray head of this test's own, and what a client needs to speak to it."""

    dashboard: str
    environment: dict[str, str]

    def submit(self, *words: str | Path) -> tuple[int, str]:
        """Submit a job, wait for it, and return its exit code and log."""
        done = subprocess.run(
            [
                *(BIN / "ray", "job", "submit", "--address", self.dashboard),
                *("--log-color=false", "--working-dir", REPOSITORY, "--", *words),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env=self.environment,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout


def _free_ports(n: int) -> list[int]:
    """Return ports that are free now; all are held until the last is found, so they differ."""
    sockets = [socket.socket() for _ in range(n)]
    for held in sockets:
        held.bind(("127.0.0.1", 0))
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


def _wait_until_ready(process: subprocess.Popen[bytes], head: Head, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    request = urllib.request.Request(f"{head.dashboard}/api/jobs/")
    token_path = head.environment.get("RAY_AUTH_TOKEN_PATH")
    if token_path:
        request.add_header("Authorization", f"Bearer {Path(token_path).read_text()}")
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the head is not ready after {START_TIMEOUT_S} s:\n{log.read_text()}")


def _authentication(mode: str, folder: Path) -> dict[str, str]:
    if mode == "disabled":
        return {"RAY_AUTH_MODE": "disabled"}
    token = folder / "auth_token"
    token.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """End what this test started, by process: `ray stop` would end every Ray of the machine."""
    # Listed first: Ray gives some of its children groups of their own.
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=15)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=15)


def _start_words(folder: Path, dashboard_port: int) -> list[str | Path]:
    # Ports of its own for all that has a fixed default: another Ray may run on this machine.
    port, client_port, agent_port = _free_ports(3)
    return [
        *(BIN / "ray", "start", "--head", "--block", "--disable-usage-stats"),
        *("--num-cpus=4", "--num-gpus=0", "--node-ip-address=127.0.0.1"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1"),
        *(f"--port={port}", f"--dashboard-port={dashboard_port}"),
        *(f"--ray-client-server-port={client_port}", f"--dashboard-agent-listen-port={agent_port}"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--temp-dir={folder}", f"--object-store-memory={200 << 20}"),
    ]


@contextlib.contextmanager
def running_head(mode: str) -> Iterator[Head]:
    """Start a head that listens on this machine alone, and end it and nothing else."""
    # Not pytest's folder: the path of a Unix socket holds 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="qr", dir="/tmp"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= _authentication(mode, folder)
    # The `python` of a job is the one that has the project, as a cluster's set-up arranges it.
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    (dashboard_port,) = _free_ports(1)
    log = folder / "head.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _start_words(folder, dashboard_port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        head = Head(f"http://127.0.0.1:{dashboard_port}", environment)
        _wait_until_ready(process, head, log)
        yield head
    finally:
        _end_tree(process)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small input file."""
    return write_parquet(tmp_path_factory.mktemp("rows") / "input.parquet", short_sample(N_ROWS))


@pytest.fixture(scope="module")
def local_scores(
    rows: Path, artifacts_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> pl.DataFrame:
    """Scores of the same rows without Ray."""
    out = tmp_path_factory.mktemp("local")
    qaeval("score", rows, "--out", out, "--local", "--set", _artifacts(artifacts_root))
    return read_scores(out)


def _artifacts(root: Path) -> str:
    return f"models.artifacts_path={root}"


@pytest.mark.parametrize("mode", ["disabled", pytest.param("token", marks=pytest.mark.slow)])
def test_submitted_jobs_score_or_say_what_is_wrong(
    mode: str, rows: Path, local_scores: pl.DataFrame, artifacts_root: Path, tmp_path: Path
) -> None:
    """A job on a cluster gives the scores of one process, and a bad request fails the job.

    A typo would otherwise be a job that "succeeded" and scored nothing.
    """
    artifacts = _artifacts(artifacts_root)
    score = ("python", "-m", "jobs.score", rows, "--set", artifacts)
    with running_head(mode) as head:
        code, log = head.submit(*score, "--out", tmp_path / "out")
        assert code == 0, log
        wrong_code, wrong_log = head.submit(
            *score, "--out", tmp_path / "wrong", "--column", "context=contxt"
        )

    scores = read_scores(tmp_path / "out")
    assert scores.height == N_ROWS
    assert scores["qrelscore"].null_count() == 0
    assert_same_scores(scores, local_scores)

    assert wrong_code != 0, wrong_log
    assert "no column contxt; did you mean 'context'?" in wrong_log
    assert not (tmp_path / "wrong" / "scores").exists()
