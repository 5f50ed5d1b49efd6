"""On a given cluster of two CPUs: nothing hangs, and a row that kills its worker is found."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

from free_ports import free_ports
from helpers import (
    REPOSITORY,
    assert_same_scores,
    processes,
    qaeval,
    read_scores,
    run_locally,
    short_sample,
    wait_until,
    write_parquet,
)
from qaeval.on_ray import pipeline
from qaeval.on_ray.actors import ScorePieces
from qaeval.on_ray.local_ray import MEMORY
from qaeval_core.configure import load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.piece_worker import PieceWorker
from qaeval_core.scoring.run import run_job
from ray_head import BIN, ray_start
from word_jobs import rows as word_rows

pytestmark = pytest.mark.ray

POISON = "deadly"
N_ROWS = 24


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A cluster of two CPUs in processes of its own, and its address."""
    (port,) = free_ports(1)
    # Short: unix socket paths end at 107 characters.
    folder = tempfile.mkdtemp(dir="/tmp")
    words = ["--head", "--block", "--num-cpus=2", f"--port={port}", f"--temp-dir={folder}"]
    words += ["--include-dashboard=false", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
    head = ray_start(
        [BIN / "ray", "start", *words],
        environment={**os.environ, "RAY_AUTH_MODE": "disabled"},
        log=Path(folder) / "head.log",
    )
    yield head, f"127.0.0.1:{port}"
    os.killpg(head.pid, signal.SIGKILL)  # SIGTERM takes half a minute.
    head.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def address(head: tuple[subprocess.Popen[bytes], str]) -> str:
    """The cluster's address."""
    return head[1]


@pytest.fixture
def job(tiny_settings: dict[str, object], tmp_path: Path) -> dict[str, object]:
    rows = short_sample(N_ROWS)
    write_parquet(tmp_path / "input.parquet", rows)
    return {
        **tiny_settings,
        "input.paths": [str(tmp_path / "input.parquet")],
        "output.path": str(tmp_path / "out"),
        "scoring.rows_per_shard": 8,
    }


@pytest.mark.slow
def test_two_cpu_cluster_scores_as_one_process_does(
    job: dict[str, object], address: str, tmp_path: Path
) -> None:
    """Protects from the deadlock of a pool that reserves every CPU."""
    words = [
        f"--set={key}={value}" for key, value in job.items() if "." in key and "path" not in key
    ]
    words += [f"--set=models.artifacts_path={job['models.artifacts_path']}"]
    out = tmp_path / "out"
    qaeval(
        "score",
        tmp_path / "input.parquet",
        "--out",
        out,
        "--address",
        address,
        *words,
        apart=True,
    )
    run_locally({**job, "output.path": str(tmp_path / "local")})
    assert_same_scores(read_scores(out), read_scores(tmp_path / "local"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "expected"), [(None, "2"), pytest.param("3", None, marks=pytest.mark.long)]
)
def test_workers_of_a_cluster_have_two_arenas_and_one_allocator(
    head: tuple[subprocess.Popen[bytes], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    expected: str | None,
) -> None:
    """With an arena for each of many threads the memory of workers grew for seven minutes."""
    for name in MEMORY:
        monkeypatch.delenv(name, raising=False)
    if given:  # As a job finds it that was submitted with this variable.
        monkeypatch.setenv("MALLOC_ARENA_MAX", given)
    node, address = head
    source = write_parquet(tmp_path / "input.parquet", word_rows(20_000), row_group_size=10)
    words = ["score", str(source), "--metrics", "f1", "--column", "references=reference"]
    words += ["--rows-per-shard", "10", "--out", str(tmp_path / "out"), "--address", address]
    process = subprocess.Popen(
        [sys.executable, "-m", "qaeval", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    wait_until(lambda: bool(processes(node.pid, title="ray::MapWorker")), process)
    seen = [one.environ() for one in processes(node.pid, title="ray::MapWorker")]
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert {one.get("MALLOC_ARENA_MAX") for one in seen} == {expected}
    assert {one.get("ARROW_DEFAULT_MEMORY_POOL") for one in seen} == {"system"}


_TWO_CLUSTERS = """
import os, sys
import ray
from qaeval.on_ray.cluster import connected
from qaeval_core.configure import ClusterSection

@ray.remote(num_cpus=0)
class Answering:
    def answer(self):
        return os.environ.get("RAY_AUTH_MODE")

for address in (None, sys.argv[1]):
    with connected(ClusterSection(address=address)):
        print(ray.get(Answering.remote().answer.remote()), end=" ")
print(os.environ.get("RAY_AUTH_MODE"), "RAY_AUTH_TOKEN" in os.environ)
"""


@pytest.mark.long
def test_a_local_cluster_leaves_no_token_to_the_next(address: str) -> None:
    """A process that asks for tokens refuses the calls of a cluster without; its actors die."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", _TWO_CLUSTERS, address],
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["token", "disabled", "None", "False"]


@pytest.mark.slow
def test_asking_for_tokens_a_cluster_without_is_refused(
    job: dict[str, object], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in the death of actors, with nothing said of tokens."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    words = ("--set=metrics.f1.metric=f1", "--out", tmp_path / "out", "--address", address)
    said = qaeval("score", tmp_path / "input.parquet", *words, expect=1, apart=True)
    assert f"the Ray cluster at {address} has no token" in said and "[QA0501]" in said
    assert "Traceback" not in said


class DeadlyPieces(ScorePieces):
    """A worker that dies, as a crash in native code does, when a marked row is tokenized."""

    def _open(self) -> PieceWorker:
        is_new = self._worker is None
        worker = super()._open()
        if is_new:
            for runner in worker._runners.values():
                layout = runner.layout
                layout.prepare = partial(_prepare_or_die, layout.prepare)
        return worker


def _prepare_or_die(
    prepare: Any, rows: Mapping[str, Sequence[object]], *others: Any, **options: Any
) -> Any:
    if any(POISON in str(text) for text in rows.get("candidate", ())):
        os.kill(os.getpid(), signal.SIGKILL)
    return prepare(rows, *others, **options)


# Ray Data warns of its own defaults while it copies its context.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
@pytest.mark.slow
def test_row_that_kills_its_worker_is_quarantined_alone(
    job: dict[str, object], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a poison row retried for ever, and from its neighbors lost with it."""
    rows = short_sample(N_ROWS).to_pylist()
    rows[11]["question"] = f"Why is this {POISON}?"
    write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist(rows))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(pipeline, "ScorePieces", DeadlyPieces)
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    try:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        # Two statistics of words share a pass: each finds the row by itself.
        words = {"metrics.f1.metric": "f1", "metrics.rouge_l.metric": "rouge_l"}
        config = load_config(overrides={**job, **words})
        made = make_job(config, read_inputs(config), device="cpu")
        executor = pipeline.RayExecutor(pipeline.ActorLayout(1, 1, 1.0, 0.0))
        outcome = run_job(made, executor, say=lambda line: None)
    finally:
        ray.shutdown()
    scores = read_scores(tmp_path / "out")
    quarantined = [reason is not None for reason in scores["quarantine_reason"].to_list()]
    assert quarantined == [i == 11 for i in range(N_ROWS)]
    assert scores["quarantine_reason"][11] == "killed_worker"
    assert outcome.report is not None
    assert outcome.report["quarantined_by_reason"] == {"killed_worker": 1}
    for name in ("qrelscore", "f1", "rouge_l"):
        assert scores[name].null_count() == 1, name
