"""The end of Ray under a run: one line that says what to do, and exit code 1."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
import psutil
import pytest

from bucket_outs import commits_of
from helpers import REPOSITORY, processes, qaeval, wait_until, write_parquet
from qaeval.on_ray.life import SILENT_AFTER_S, Silence, ask_alive, is_answer
from word_jobs import is_whole, rows

_N_ROWS = 3_000


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Asked:
    """A question at a head that answers from some time on, until another."""

    def __init__(self, clock: Clock, alive: Callable[[float], bool]) -> None:
        self._clock, self._alive = clock, alive
        self._at = clock.now

    def done(self) -> bool:
        return self._alive(self._clock.now) or self._clock.now - self._at > 10.0

    def exception(self) -> grpc.RpcError | None:
        return None if self._alive(self._clock.now) else _Unheard()


class _Unheard(grpc.RpcError):  # type: ignore[misc]
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED


def silences(alive: Callable[[float], bool], *, seconds: float, step: float = 0.5) -> list[float]:
    clock = Clock()
    silence = Silence(lambda: cast(Any, Asked(clock, alive)), clock)
    found = []
    while clock.now < seconds:
        clock.now += step
        found.append(silence.look())
    return found


def test_a_head_that_is_gone_is_found_out_within_half_a_minute() -> None:
    """Ray's own core takes a minute, and says nothing then."""
    found = silences(lambda now: now < 100.0, seconds=130.0)
    assert max(found[:200]) < 5.0
    assert found[-1] > SILENT_AFTER_S


def test_a_head_that_stands_still_for_twenty_seconds_is_waited_for() -> None:
    found = silences(lambda now: not 100.0 < now < 120.0, seconds=200.0)
    assert 15.0 < max(found) < SILENT_AFTER_S
    assert found[-1] < 5.0


def test_a_cluster_that_never_answers_is_not_judged() -> None:
    """One that wants TLS answers Ray, and not this question."""
    assert max(silences(lambda now: False, seconds=300.0)) == 0.0


def test_a_process_that_was_frozen_has_not_waited() -> None:
    found = silences(lambda now: now < 10.0 or now > 4_000.0, seconds=5_000.0, step=2_000.0)
    assert max(found) < SILENT_AFTER_S


@pytest.fixture
def server() -> Iterator[str]:
    own = grpc.server(futures.ThreadPoolExecutor(1))
    port = own.add_insecure_port("127.0.0.1:0")
    own.start()
    yield f"127.0.0.1:{port}"
    own.stop(None)


def test_any_status_is_an_answer(server: str) -> None:
    """This server knows no such method, as one with tokens lets nobody in."""
    assert is_answer(ask_alive(server, 10.0))


def _is_of(kind: str, process: psutil.Process) -> bool:
    title = " ".join(process.cmdline())
    return {
        "gcs": process.name().startswith("gcs_server"),
        "raylet": process.name() == "raylet",
        "ray::": title.startswith("ray::"),
        "everything": True,
    }[kind]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("gcs", marks=pytest.mark.long),
        pytest.param("raylet", marks=pytest.mark.long),
        "ray::",
        pytest.param("everything", marks=pytest.mark.long),
    ],
)
def test_the_end_of_ray_is_one_line(tmp_path: Path, kind: str) -> None:
    """It was exit 1 behind a line of progress, three times of three."""
    source = write_parquet(tmp_path / "input.parquet", rows(_N_ROWS), row_group_size=10)
    words = ["score", str(source), "--metrics", "f1", "--column", "references=reference"]
    words += ["--rows-per-shard", "10", "--out", str(tmp_path / "out"), "--ray"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qaeval", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: len(commits_of(tmp_path / "out")) > 20, process)
    (driver,) = psutil.Process(process.pid).children()
    for one in processes(driver.pid, title=""):
        with contextlib.suppress(psutil.Error):  # Some end with those that were killed before.
            if _is_of(kind, one):
                one.kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "Traceback" not in output, output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert output.endswith(f"{line}\n")
    assert line.endswith("; committed work is kept; run the same command again [QA0006]")
    known = commits_of(tmp_path / "out")
    assert len(known) < _N_ROWS / 10
    qaeval(*words)
    done = commits_of(tmp_path / "out")
    assert {name: done[name] for name in known} == known, "a shard was computed twice"
    assert is_whole(tmp_path / "out", _N_ROWS)
