"""A Ray head of a test's own, on ports of its own: what a cluster is to jobs and drivers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from free_ports import free_ports
from helpers import REPOSITORY

START_TIMEOUT_S = 90
# Ray gives a node 30 s to start, which a busy machine may not keep.
N_STARTS = 3
JOB_TIMEOUT_S = 240
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Head:
    """A running head, and what a client needs to speak to it.

    ``folder`` has its logs; ``address`` is for drivers, ``dashboard`` for jobs.
    """

    pid: int
    folder: Path
    address: str
    dashboard: str
    environment: dict[str, str]

    def submit(
        self, *words: str | Path, working_dir: Path = REPOSITORY, options: Sequence[str] = ()
    ) -> tuple[int, str]:
        """Submit a job, wait for it, and return its exit code and log."""
        return self.ray_job("submit", "--working-dir", working_dir, *options, "--", *words)

    def ray_job(self, verb: str, *words: str | Path) -> tuple[int, str]:
        """Run a verb of ``ray job``; return its exit code and what it printed."""
        return self._run(
            *(BIN / "ray", "job", verb, "--address", self.dashboard, "--log-color=false"), *words
        )

    def drive(self, *words: str | Path) -> tuple[int, str]:
        """Run a command of qaeval here, on this cluster; return its exit code and output."""
        return self._run(sys.executable, "-m", "qaeval", *words, "--address", self.address)

    def _run(self, *words: str | Path) -> tuple[int, str]:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env=self.environment,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def jobs(self) -> str:
        """Return what the dashboard says of all jobs, as it says it."""
        return self._get("/api/jobs/")

    def actors(self) -> list[dict[str, Any]]:
        """Return what Ray lists of all actors, dead ones as well."""
        found = json.loads(self._get("/api/v0/actors?limit=1000"))
        return list(found["data"]["result"]["result"])

    def n_nodes(self) -> int:
        """Return how many nodes are alive."""
        found = json.loads(self._get("/api/v0/nodes?limit=1000"))
        return sum(node["state"] == "ALIVE" for node in found["data"]["result"]["result"])

    def _get(self, path: str) -> str:
        request = urllib.request.Request(f"{self.dashboard}{path}")
        token_path = self.environment.get("RAY_AUTH_TOKEN_PATH")
        if token_path:
            request.add_header("Authorization", f"Bearer {Path(token_path).read_text()}")
        with urllib.request.urlopen(request, timeout=5) as reply:
            return str(reply.read(), "utf-8")


def ray_start(
    words: Sequence[str | Path], *, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a node, and return its process, which leads a group, once the node is up.

    Parameters
    ----------
    words : sequence of str or Path
        A command that becomes ``ray start --block``.
    environment : mapping
    log : Path
        Of what it prints.
    """
    for _ in range(N_STARTS):
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            if "Ray runtime started" in log.read_text(errors="replace"):
                return process
            time.sleep(0.1)
        _end_tree(process)
    pytest.fail(f"a node is not up after {N_STARTS} tries:\n{log.read_text(errors='replace')}")


def _wait_for_dashboard(head: Head) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            head.jobs()
        except OSError:
            assert time.monotonic() < deadline, f"no dashboard after {START_TIMEOUT_S} s"
            time.sleep(0.5)
        else:
            return


def _authentication(mode: str, folder: Path) -> dict[str, str]:
    if mode == "disabled":
        return {"RAY_AUTH_MODE": "disabled"}
    token = folder / "auth_token"
    token.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """End what this test started, by process: `ray stop` would end every Ray of the machine.

    At once, and not as asked: a node that is asked to end waits 10 s for its agents.
    """
    # Listed first: Ray gives some of its children groups of their own.
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait(timeout=15)
    deadline = time.monotonic() + 15
    while any(map(_is_running, family)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _start_words(
    folder: Path, *, python: Path, port: int, dashboard_port: int, takes_jobs: bool
) -> list[str | Path]:
    # Ports of its own for all that has a fixed default, or that Ray looks for before it is taken.
    names = ("ray-client-server", "dashboard-agent-listen", "dashboard-agent-grpc",
             "runtime-env-agent", "metrics-export")  # fmt: skip
    ports = zip(names, free_ports(len(names)), strict=True)
    return [
        *(python, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        "--disable-usage-stats",
        *("--num-cpus=4", "--num-gpus=0", "--node-ip-address=127.0.0.1"),
        *(f"--include-dashboard={str(takes_jobs).lower()}", "--dashboard-host=127.0.0.1"),
        *(f"--port={port}", f"--dashboard-port={dashboard_port}"),
        *(f"--{name}-port={own}" for name, own in ports),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--temp-dir={folder}", f"--object-store-memory={200 << 20}"),
    ]


@contextlib.contextmanager
def running_head(
    mode: str,
    *,
    variables: Mapping[str, str] | None = None,
    python: Path = BIN / "python",
    takes_jobs: bool = True,
) -> Iterator[Head]:
    """Start a head that listens on this machine alone, and end it and nothing else.

    Parameters
    ----------
    mode : {"disabled", "token"}
        Of authentication.
    variables : mapping, optional
        More variables of its environment, and so of its workers'.
    python : Path, optional
        Of the environment that its workers have; default this one.
    takes_jobs : bool, default True
        Whether it has a dashboard: drivers alone need none, and it takes seconds.
    """
    # Not pytest's folder: the path of a Unix socket holds 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="qr", dir="/tmp"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= _authentication(mode, folder) | dict(variables or {})
    # The `python` of a job is the one that has the project, as a cluster's set-up arranges it.
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    port, dashboard_port = free_ports(2)
    words = _start_words(
        folder, python=python, port=port, dashboard_port=dashboard_port, takes_jobs=takes_jobs
    )
    process = ray_start(words, environment=environment, log=folder / "head.log")
    try:
        dashboard = f"http://127.0.0.1:{dashboard_port}"
        head = Head(process.pid, folder, f"127.0.0.1:{port}", dashboard, environment)
        if takes_jobs:
            _wait_for_dashboard(head)
        yield head
    finally:
        _end_tree(process)
        shutil.rmtree(folder, ignore_errors=True)
