"""On a real device: numbers, ties, batch mates, placement, memory, kills. `make gpu` runs them.

On the mock device of ../shared/gpu_mock, which computes nothing, those that look at numbers skip.
With QAEVAL_GPU_TESTS_ON=cpu these alone run, without a device: see gpu_numbers.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import polars as pl
import pytest
from onnx import TensorProto, helper

import gpu_counts
from gpu_numbers import (
    SUBJECTS,
    WHERE,
    Subject,
    alone,
    assert_near,
    in_batches,
    in_torch,
    open_session,
)
from helpers import REPOSITORY, assert_same_scores, read_scores, short_sample, write_parquet
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.models import onnx_runtime as engine
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.models.session import Session

pytestmark = pytest.mark.gpu

# Of torch's side: peft and transformers warn of each other.
_warnings_pass = pytest.mark.filterwarnings("ignore")

# What one run of each graph costs on the mock, and which operations are on the CPU there.
_COUNTS = Path(__file__).with_name("counts.json")


def is_mock() -> bool:
    """Whether the CUDA runtime of this process is the one that computes nothing."""
    return hasattr(ctypes.CDLL(None), "fake_stats")


@pytest.fixture(scope="session")
def artifacts_root() -> Path:
    """Each test exports what it takes: a model that is not there costs its own tests alone."""
    return default_root()


@pytest.fixture(scope="module")
def cuda() -> None:
    """Skip where there is no device, or none is wanted."""
    if WHERE != "cuda":
        pytest.skip("it is of a device, and the tests are told to run on a CPU")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider: install qaeval-bulk[gpu]")


@pytest.fixture(scope="module")
def numbers(request: pytest.FixtureRequest) -> None:
    """Skip where the device computes nothing."""
    if WHERE == "cuda":
        request.getfixturevalue("cuda")
        if is_mock():
            pytest.skip("the mock device computes nothing: its numbers are garbage")


@pytest.fixture(
    scope="module",
    params=[(subject, precision) for subject in SUBJECTS for precision in ("fp32", "fp16")],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def subject_session(
    request: pytest.FixtureRequest,
    numbers: None,
    artifacts_root: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Subject, Session]:
    """Each graph in each precision on the device, one after another."""
    subject, precision = request.param
    artifact = subject.artifact(artifacts_root, precision)
    return subject, open_session(artifact, tmp_path_factory.mktemp("rounded"))


@_warnings_pass
def test_each_graph_agrees_with_torch(subject_session: tuple[Subject, Session]) -> None:
    """Fused kernels of a device are other code; the gate has compared on a CPU alone.

    Torch has each row alone, the device beside longer ones: one that attends to padding fails, or
    reads another row's tokens.
    """
    subject, session = subject_session
    rows, expected = in_torch(subject)
    assert_near(in_batches(session, rows), expected, session.artifact.record)


@_warnings_pass
def test_batch_mates_change_no_number(subject_session: tuple[Subject, Session]) -> None:
    """A score that depends on its neighbors depends on how files are cut."""
    subject, session = subject_session
    rows, _ = in_torch(subject)
    assert_near(in_batches(session, rows), alone(session, rows), session.artifact.record)


@pytest.mark.usefixtures("numbers")
def test_the_first_of_equal_values_is_taken() -> None:
    """LRM takes the first position on ties, and rounding to fp16 makes many."""
    value = helper.make_tensor_value_info
    node = helper.make_node("ArgMax", ["x"], ["i"], axis=-1, keepdims=0)
    graph = helper.make_graph(
        [node],
        "ties",
        [value("x", TensorProto.FLOAT, ["rows", "n"])],
        [value("i", TensorProto.INT64, ["rows"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = engine._session_options(ort, device=WHERE, n_threads=1)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=engine._providers(WHERE)
    )
    chance = np.random.default_rng(0)
    for n in (3, 31, 32, 33, 200, 512, 1500):
        x = chance.integers(0, 3, (64, n)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.argmax(axis=1))


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_sums_of_shapes_alone_are_on_the_cpu(
    artifacts_root: Path, subject: Subject, precision: str
) -> None:
    """A node that falls back to the CPU takes its tensors there and back, in silence."""
    artifact = subject.artifact(artifacts_root, precision)
    counters = SimpleNamespace(fake_stats=lambda _: None, fake_reset=lambda: None)
    found = gpu_counts.count(artifact, artifact.model_path, runtime=counters)
    of_the_mock = json.loads(_COUNTS.read_text(encoding="utf-8")).values()
    assert set(found["on_cpu"]) <= {kind for own in of_the_mock for kind in own.get("on_cpu", ())}
    assert not found["to_host"], "the output alone comes back"
    assert found["on_cuda"] > 50


def plan_of_vectors(root: Path) -> ModelFamilyPlan:
    """Return the family of ``bertscore`` in fp32."""
    from qaeval_core.configure import load_config
    from qaeval_core.planning.compile import compile_run

    run = compile_run(
        load_config(overrides={"metrics.bertscore.metric": "bertscore"}),
        columns={"candidate": "candidate", "references": "references"},
        device="cpu",
        resolve_artifact=lambda request: ensure_artifact(root, request),
    )
    (plan,) = run.families
    assert isinstance(plan, ModelFamilyPlan)
    return plan


@pytest.mark.usefixtures("cuda")
def test_memory_that_runs_out_changes_no_score(
    artifacts_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is ONNX Runtime's own: its arena fails as it does on a full card."""
    plan = plan_of_vectors(artifacts_root)
    texts = [" ".join(f"mill barn {i} {k}" for k in range(18)) for i in range(300)]
    rows: dict[str, list[object]] = {
        "candidate": [*texts],
        "references": [[t] for t in texts[::-1]],
    }
    free = FamilyRunner(plan, device="cuda", checks_device=False)
    expected = free.score(rows)
    providers = engine._providers

    def limited(where: engine.Device) -> list[Any]:
        (name, options), *others = providers(where)
        return [(name, {**options, "gpu_mem_limit": str(300 << 20)}), *others]

    monkeypatch.setattr(engine, "_providers", limited)
    runner = FamilyRunner(plan, device="cuda", checks_device=False)
    prepared = runner.layout.prepare(rows)
    runner.run(prepared)
    assert prepared.stats.n_halvings >= 1
    if not is_mock():
        found = prepared.work.statistics()["best_candidate"].to_pylist()
        wanted = expected["best_candidate"].to_pylist()
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(wanted), atol=1e-5)


def start_score(
    source: Path, out: Path, settings: dict[str, object], *options: str
) -> subprocess.Popen[str]:
    """Start `qaeval score` on the device."""
    words = [f"--set={key}={value}" for key, value in settings.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "qaeval.cli", "score", source, "--out", out, *options, *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.usefixtures("cuda")
def test_a_killed_run_goes_on_from_its_commits(
    tiny_settings: dict[str, object], tmp_path: Path
) -> None:
    """kill -9 leaves an engine in mid-batch: nothing that is half done may be there."""
    write_parquet(tmp_path / "input.parquet", short_sample(60))
    settings: dict[str, object] = {
        **tiny_settings,
        "cluster.device": "cuda",
        "scoring.rows_per_shard": 2,
        "models.encoder.precision": "fp32",
        "models.causal_lm.precision": "fp32",
        "models.check_device": "false" if is_mock() else "true",
    }
    out = tmp_path / "out"
    run = start_score(tmp_path / "input.parquet", out, settings, "--local")
    deadline = time.monotonic() + 120
    while len(list(out.glob("families/**/*.parquet"))) < 5 and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    was_killed = run.poll() is None
    run.send_signal(signal.SIGKILL)
    run.communicate()
    again = start_score(tmp_path / "input.parquet", out, settings, "--local")
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert was_killed and "are committed" in said, said
    whole = start_score(tmp_path / "input.parquet", tmp_path / "whole", settings, "--local")
    said, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, said
    if not is_mock():
        assert_same_scores(read_scores(out), read_scores(tmp_path / "whole"))
    assert read_scores(out).height == 60


@pytest.mark.usefixtures("cuda")
def test_two_actors_on_two_devices(
    tiny_settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both work, each on a card of its own, and their scores are those of one."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi: it counts the GPUs")
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if found.stdout.count("GPU ") < 2:
        pytest.skip("fewer than two GPUs")
    # A row group is a piece, so that both have work; none starts before both are there.
    write_parquet(tmp_path / "input.parquet", short_sample(60), row_group_size=4)
    monkeypatch.setenv("RAY_DATA_DEFAULT_WAIT_FOR_MIN_ACTORS_S", "120")
    settings = {**tiny_settings, "cluster.device": "cuda", "scoring.rows_per_shard": 4}
    for actors in (1, 2):
        run = start_score(
            tmp_path / "input.parquet",
            tmp_path / str(actors),
            {**settings, "cluster.actors": actors},
        )
        said, _ = run.communicate(timeout=300)
        assert run.returncode == 0, said
        report = json.loads((tmp_path / str(actors) / "report.json").read_text(encoding="utf-8"))
        for family in report["families"].values():
            seen = [device["gpu"]["environment"] for device in family["this_run"]["devices"]]
            assert len(seen) == actors
            assert len({given["CUDA_VISIBLE_DEVICES"] for given in seen}) == actors
    one, two = (pl.read_parquet(tmp_path / n / "scores") for n in ("1", "2"))
    assert_same_scores(one, two)
