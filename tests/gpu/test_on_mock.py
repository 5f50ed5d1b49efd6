"""The CUDA provider itself, on a device that computes nothing: placement, copies, memory, actors.

Numbers are garbage there, so nothing here looks at a score. Counts are upper bounds in counts.json;
after a change of graphs: QAEVAL_RECORD_GPU_COUNTS=1 pytest -m slow tests/gpu -k counts
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import polars as pl
import pytest

import mock_gpu
from benchmarks.gpu_models import FAMILIES
from free_ports import free_ports
from gpu_numbers import SUBJECTS, Subject
from gpu_reports import assert_rates
from helpers import REPOSITORY, short_sample, write_parquet
from qaeval_core.models.artifact import ensure_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_export.precision import convert
from ray_head import BIN, ray_start

pytestmark = pytest.mark.slow

Counts = dict[str, Any]

_HERE = Path(__file__).resolve().parent
_TABLE = _HERE / "counts.json"
_SCRIPT = REPOSITORY / "tests" / "gpu_counts.py"
# Sums of a few numbers: shapes. Whatever reads rows of a batch is not among them.
_OF_SHAPES = {"Concat", "Mul", "Reshape", "Squeeze"}
_BOUNDS = ("launches", "h2d", "syncs", "arena_mib")


@pytest.fixture(scope="session")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built mock."""
    missing = mock_gpu.why_not()
    if missing:
        pytest.skip(missing)
    return mock_gpu.build(tmp_path_factory.mktemp("gpu_mock"))


def run(
    mock: Path, *words: str | Path, expect: int = 0, timeout_s: float = 300, **given: str
) -> str:
    """Run Python on the mock; return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=mock_gpu.environment(mock, **given),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == expect, f"exit {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr * bool(expect)


def counts(
    mock: Path, root: Path, subject: Subject, precision: str, folder: Path, batch: str
) -> Counts:
    """Return what one batch of a graph costs.

    In fp16 the graph that an export would save, without the export: it looks at numbers, which
    takes minutes and has tests of its own.
    """
    artifact = subject.artifact(root, "fp32")
    graph = artifact.model_path
    if precision == "fp16":
        graph = folder / "model.onnx"
        onnx.save(convert(onnx.load(artifact.model_path), precision="fp16"), graph)
    said = json.loads(run(mock, _SCRIPT, batch, f"{artifact.folder}={graph}"))
    return said[artifact.folder.name]


def recorded(name: str, found: Counts) -> Counts:
    """Return what the table has of a name; where counts are recorded, that is what was found."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    if os.environ.get("QAEVAL_RECORD_GPU_COUNTS"):
        table[name] = {key: value for key, value in found.items() if key != "to_host"}
        content = json.dumps(dict(sorted(table.items())), indent=1)
        _TABLE.write_text(content + "\n", encoding="utf-8")
    assert name in table, f"{name} is not in {_TABLE.name}: record it"
    return table[name]


# The others are long.
_COUNTED = {("relevance_matching-minilm", "fp32"), ("token_logprobs-small-gpt2", "fp16")}


@pytest.mark.parametrize(
    ("subject", "precision"),
    [
        pytest.param(
            *(subject, precision),
            id=f"{subject}-{precision}",
            marks=[] if (str(subject), precision) in _COUNTED else [pytest.mark.long],
        )
        for subject in SUBJECTS
        for precision in ("fp32", "fp16")
    ],
)
def test_counts_of_a_run(
    mock: Path, artifacts_root: Path, tmp_path: Path, subject: Subject, precision: str
) -> None:
    """A node that falls back to the CPU, or a copy in mid-graph, costs more than all kernels."""
    found = counts(mock, artifacts_root, subject, precision, tmp_path, "4x64")
    own = recorded(f"{subject}-{precision}", found)
    assert set(found["on_cpu"]) <= _OF_SHAPES
    assert found["on_cpu"] == own["on_cpu"]
    assert found["on_cuda"] > 50
    assert found["d2h"] == 1 and not found["to_host"], "the output alone comes back"
    beyond = {key: found[key] for key in _BOUNDS if found[key] > own[key]}
    assert not beyond, f"{beyond}, recorded {own}"


def test_memory_counts_of_a_full_batch(mock: Path, artifacts_root: Path, tmp_path: Path) -> None:
    """Of four short rows the arena is weights; in 32 long ones each layer's values show.

    With patterns of allocation kept it takes 1,291 MiB, by the default order 759.
    """
    subject = Subject("relevance_matching", "minilm")
    found = counts(mock, artifacts_root, subject, "fp32", tmp_path, "32x512")
    own = recorded(f"{subject}-fp32 32x512", {"arena_mib": found["arena_mib"]})
    assert 200 < found["arena_mib"] <= own["arena_mib"]


@pytest.mark.long
def test_24_gib_hold_bert_large(
    mock: Path,
    artifacts_root: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """LRM in fp32 of all 24 layers, 32 rows of 512 tokens: memory is weights and a few layers'.

    Of 6 layers it said the 2,016 MiB that a model of 6 unlike layers took, exported as any is.
    """
    from gpu_large import N_LAYERS, save_large

    request = ArtifactRequest("relevance_matching", "minilm", "fp32")
    graph = save_large(request, tmp_path)
    own = ensure_artifact(artifacts_root, request).folder  # for its inputs
    said = json.loads(run(mock, _SCRIPT, "32x512", f"{own}={graph}", FAKE_CAP_GIB="24"))
    used = said[own.name]["arena_mib"]
    record_property("MiB", used)
    assert used < 24 * 1024
    weights, hidden, scores = 48, 64, 512  # MiB of one layer; its scores are (32, 16, 512, 512)
    share = used / N_LAYERS
    assert weights < share < weights + 4 * hidden < scores, "a layer's scores stay in memory"


def score(
    mock: Path, job: dict[str, object], out: Path, *words: str, expect: int = 0, **given: str
) -> str:
    """Run `qaeval score` on the mock."""
    settings = [f"--set={key}={value}" for key, value in job.items()]
    common = ["--out", str(out), "--set=cluster.device=cuda", *settings, *words]
    return run(mock, "-m", "qaeval.cli", "score", out.parent / "input.parquet", *common,
               expect=expect, **given)  # fmt: skip


@pytest.fixture
def job(tiny_settings: dict[str, object], tmp_path: Path) -> dict[str, object]:
    """Rows in ``input.parquet`` and small models, all in fp32: artifacts are there already."""
    write_parquet(tmp_path / "input.parquet", short_sample(24))
    precision = {f"models.{role}.precision": "fp32" for role in ("encoder", "causal_lm")}
    return {**tiny_settings, **precision}


def test_a_device_that_computes_nothing_is_refused(
    mock: Path, job: dict[str, object], tmp_path: Path
) -> None:
    """Scores of a broken card look like scores; who asks for no comparison gets them."""
    said = score(mock, job, tmp_path / "out", "--local", expect=1)
    assert "[QA0416]" in said
    unchecked = "--set=models.check_device=false"
    said = score(mock, job, tmp_path / "out", "--local", unchecked, expect=1)
    assert "[QA0520]" in said and (tmp_path / "out" / "_SUCCESS").is_file()
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    families = report["families"].values()
    assert len(families) == 2
    for family in families:
        (device,) = family["this_run"]["devices"]
        assert "nvidia-smi" in device["gpu"].get("problem", "") or device["gpu"]["name"]
        assert "parity" not in device


def test_memory_that_runs_out_halves_batches_for_a_while(
    mock: Path, artifacts_root: Path, tmp_path: Path
) -> None:
    """ONNX Runtime's arena fails as on a card; the run goes on with the same session."""
    words = [" ".join(f"mill barn {i} {k}" for k in range(18)) for i in range(400)]
    rows = {"id": range(400), "candidate": words, "references": [[w] for w in words[::-1]]}
    pl.DataFrame(rows).write_parquet(tmp_path / "input.parquet")
    job = {
        "models.artifacts_path": str(artifacts_root),
        "models.encoder.precision": "fp32",
        "models.check_device": "false",
    }
    out = tmp_path / "out"
    score(mock, job, out, "--local", "--metrics=bertscore", FAKE_CAP_GIB="0.3")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    (family,) = report["families"].values()
    assert 1 <= family["batch_halvings"] <= 6
    assert family["rows"] == 400 and report["quarantined"] == 0


_ON_A_DEVICE = "shapes and -sas-minilm-fp32 or equal or runs_out or killed"


@pytest.mark.long
def test_tests_of_a_device_run_here(mock: Path, artifacts_root: Path) -> None:
    """Their first run on a card may be the only one: placement, memory, a kill; numbers skip."""
    words = ["-m", "pytest", "-q", "-m", "gpu", "-k", _ON_A_DEVICE, "tests/gpu/test_on_gpu.py"]
    said = run(mock, *words, timeout_s=500)
    assert "3 passed, 1 skipped" in said, said
    assert "the mock device computes nothing" in said


@pytest.mark.long
def test_the_benchmark_runs_whole(mock: Path, artifacts_root: Path, tmp_path: Path) -> None:
    """Its first run on a card may be the only one; what it does on a CPU, tests/benchmarks has."""
    path = tmp_path / "gpu.json"
    words = ["--precision", "fp32", "--rows", "6", "--budgets", "1024,16384", "--repeats", "1"]
    words += ["--seconds", "0", "--no-random", "--no-check", "--end-to-end", "7"]
    words += ["--models", str(tmp_path)]
    run(mock, "-m", "benchmarks.gpu", *words, "--json", path, expect=1)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["device"] == "cuda"
    # What computes nothing has rates, and likelihoods of zero: no row has that score.
    (failure,) = found["failures"]
    assert failure.startswith("end to end, qrelscore: exit 1")
    assert failure.endswith("not one of 1 rows has a score: zero_base_likelihood")
    assert_rates({**found, "failures": []}, n_rows=7, families=FAMILIES)
    assert all("device_check" not in own for own in found["families"])
    for own in found["families"]:
        small, large = (budget["arena_peak_mib"] for budget in own["budgets"].values())
        assert 0 < small <= large
        (name, peer), *others = own["peers"].items()
        assert (name, others) == ("all", []) and "no CUDA device" in peer["skipped"]


_ARENA = """
import ctypes, json
from pathlib import Path
from benchmarks.data import load_rows
from benchmarks.gpu import measure_budget
from benchmarks.gpu_choice import Choice
from benchmarks.gpu_models import compile_family
from gpu_counts import stats
choice = Choice(repeats=2, seconds=0, precision="fp32")
plan = compile_family("sas", device="cuda", folder=Path("."), precision="fp32")
runtime = ctypes.CDLL("libcudart.so.13")
found = {}
for n_rows in (8, 400):
    runtime.fake_reset()
    before = stats(runtime)["live"]
    own = measure_budget(plan, load_rows(n_rows), choice, budget=4096, peak=None)
    found[n_rows] = [own["arena_peak_mib"], (stats(runtime)["peak"] - before) / 2**20]
print(json.dumps({"weights": plan.artifact.model_path.stat().st_size / 2**20, **found}))
"""


@pytest.mark.long
def test_the_arena_that_the_benchmark_tells_is_the_device_memory(
    mock: Path, artifacts_root: Path, tmp_path: Path
) -> None:
    """By the log of one pass: weights, values of a batch, and nothing more in those timed after."""
    (tmp_path / "arena.py").write_text(_ARENA, encoding="utf-8")
    found = json.loads(run(mock, tmp_path / "arena.py"))
    weights = found.pop("weights")
    for told, counted in found.values():
        assert told == counted
    (few, _), (many, _) = found.values()
    assert weights < few < weights + 10 < many


@pytest.mark.long
def test_the_benchmark_tells_of_a_device_that_computes_nothing(
    mock: Path, artifacts_root: Path, tmp_path: Path
) -> None:
    """Rates of a broken card are rates of nothing."""
    path = tmp_path / "gpu.json"
    words = ["--precision", "fp32", "--rows", "6", "--budgets", "1024", "--repeats", "1"]
    words += ["--seconds", "0", "--no-random", "--no-peers", "--families", "sas"]
    words += ["--end-to-end", "7", "--models", str(tmp_path)]
    run(mock, "-m", "benchmarks.gpu", *words, "--json", path, expect=1)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [failure.partition(": ")[0] for failure in found["failures"]] == [
        "sas",
        "end to end, sas",
        "end to end, qrelscore",
    ]
    for failure in found["failures"]:
        assert "[QA0416]" in failure


_LAYOUTS = """
import json, sys
import ray
from qaeval.on_ray.cluster import layout
from qaeval_core.configure import ClusterSection
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
found = {}
for given in (None, 1.5, 9.0):
    own = layout(ClusterSection(address=sys.argv[1], cpus_per_actor=given), "cuda")
    found[str(given)] = [own.n_actors, own.n_threads, own.num_cpus, own.environment]
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.ray
def test_two_actors_on_two_devices(mock: Path, job: dict[str, object], tmp_path: Path) -> None:
    """Each takes a device of its own and its share of the CPUs, and all rows are scored.

    A row group of two rows is a piece, so that both have work, and none starts before both are
    there: a device is one actor's alone.
    """
    write_parquet(tmp_path / "input.parquet", short_sample(24), row_group_size=2)
    folder = tempfile.mkdtemp(dir="/tmp")
    environment = {**mock_gpu.environment(mock), "RAY_AUTH_MODE": "disabled"}
    (port,) = free_ports(1)
    words = [
        BIN / "ray",
        "start",
        "--head",
        "--block",
        "--num-cpus=5",
        "--num-gpus=2",
        f"--port={port}",
    ]
    words += [f"--temp-dir={folder}", "--include-dashboard=false"]
    words += ["--disable-usage-stats", "--node-ip-address=127.0.0.1"]
    head = ray_start(words, environment=environment, log=Path(folder) / "head.log")
    address = f"127.0.0.1:{port}"
    try:
        job = {**job, "models.check_device": "false", "scoring.rows_per_shard": 2}
        both = {"RAY_DATA_DEFAULT_WAIT_FOR_MIN_ACTORS_S": "120", "RAY_AUTH_MODE": "disabled"}
        score(mock, job, tmp_path / "out", "--address", address, **both)
        (tmp_path / "layouts.py").write_text(_LAYOUTS, encoding="utf-8")
        said = run(mock, tmp_path / "layouts.py", address, RAY_AUTH_MODE="disabled")
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
    threads = {"RAYON_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}
    layouts = json.loads(said.splitlines()[-1])
    assert layouts["None"] == layouts["9.0"] == [2, 2, 2.0, threads]
    assert layouts["1.5"] == [2, 1, 1.5, {**threads, "RAYON_NUM_THREADS": "1"}]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["rows"] == 24 and report["quarantined"] == 0
    for family in report["families"].values():
        devices = [device["gpu"]["environment"] for device in family["this_run"]["devices"]]
        devices.sort(key=lambda given: given["CUDA_VISIBLE_DEVICES"])
        assert devices == [{"CUDA_VISIBLE_DEVICES": name, **threads} for name in ("0", "1")]
    assert pl.read_parquet(tmp_path / "out" / "scores").height == 24
