"""On a real device: numbers, ties, batch mates, memory, kills. `make gpu` runs them.

On the mock device of ../shared/gpu_mock, which computes nothing, those that look at numbers skip.
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
from typing import Any

import numpy as np
import onnxruntime as ort
import polars as pl
import pytest
from gpu_counts import feed
from helpers import REPOSITORY, assert_same_scores, read_scores, short_sample, write_parquet
from numpy.typing import NDArray
from onnx import TensorProto, helper

from benchmarks.gpu_exports import artifact_in
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.models import session as engine
from qaeval_core.models.artifact import Artifact, ensure_artifact
from qaeval_core.models.session import Session

pytestmark = pytest.mark.gpu

_GRAPHS = [
    ("relevance_matching", "minilm"),
    ("token_logprobs", "smollm2-135m"),
    ("token_vectors", "minilm"),
    ("sentence_vector", "minilm"),
    ("pair_score", "sas-minilm"),
    ("keyphrase_weights", "kpqa-minilm"),
    ("answer_span", "reader-minilm"),
]


def is_mock() -> bool:
    """Whether the CUDA runtime of this process is the one that computes nothing."""
    return hasattr(ctypes.CDLL(None), "fake_stats")


@pytest.fixture(autouse=True)
def device() -> None:
    """Skip where ONNX Runtime has no CUDA provider."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider: install qaeval[gpu]")


@pytest.fixture
def numbers() -> None:
    """Skip where the device computes nothing."""
    if is_mock():
        pytest.skip("the mock device computes nothing: its numbers are garbage")


def random_feed(artifact: Artifact, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Return a batch of random tokens."""
    given = feed(artifact)
    chance = np.random.default_rng(seed)
    given["input_ids"] = chance.integers(5, artifact.record.vocab, given["input_ids"].shape)
    return given


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("graph", "model"), _GRAPHS)
def test_each_graph_agrees_with_a_cpu(
    artifacts_root: Path, graph: str, model: str, precision: str
) -> None:
    """Fused kernels of a device are other code; the gate has compared on a CPU alone."""
    exact = artifact_in(artifacts_root, graph, model, "fp32")
    own = artifact_in(artifacts_root, graph, model, precision)
    parity = own.record.parity
    assert parity is not None
    on_device, on_cpu = Session(own, device="cuda"), Session(exact, n_threads=4)
    differences = []
    for seed in range(5):
        inputs = random_feed(own, seed)
        differences.append(np.abs(on_device.run(inputs) - on_cpu.run(inputs)).ravel())
    found = np.concatenate(differences)
    if graph == "relevance_matching" and own.record.precision == "fp16":
        # Near-ties turn: the gate of the row's LRM is the export's matter.
        assert np.median(found) <= parity.tolerance
    else:
        assert found.max() <= parity.tolerance


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
    options = engine._session_options(ort, device="cuda", n_threads=1)
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=engine._providers("cuda")
    )
    chance = np.random.default_rng(0)
    for n in (3, 31, 32, 33, 200, 512, 1500):
        x = chance.integers(0, 3, (64, n)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.argmax(axis=1))


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_batch_mates_change_no_score(artifacts_root: Path, precision: str) -> None:
    """A score that depends on its neighbours depends on how files are cut."""
    own = artifact_in(artifacts_root, "pair_score", "sas-minilm", precision)
    session, inputs = Session(own, device="cuda"), random_feed(own)
    together = session.run(inputs)
    alone = [session.run({k: v[i : i + 1] for k, v in inputs.items()}) for i in range(4)]
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    np.testing.assert_allclose(np.concatenate(alone), together, atol=tolerance)


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
        [sys.executable, "-m", "jobs.cli", "score", source, "--out", out, *options, *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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
