"""Graphs in bfloat16 by OpenVINO: never on a CPU that would compute them in fp32."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bf16 import HAS_BF16, stand_in
from helpers import qaeval, short_sample, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, DeviceError, ModelError
from qaeval_core.families.model_family import FamilyRunner
from qaeval_core.models import open_vino
from qaeval_core.models.artifact import Artifact, load_artifact
from qaeval_core.models.cpu import BF16_FLAGS
from qaeval_core.models.open_vino import OpenVino, bf16_engine, missing_for_bf16, openvino_version
from qaeval_core.models.session import Session
from qaeval_core.planning.compile import compile_run
from tiny_artifacts import PARITY, make_cross_encoder, write_record

ROLES = {"candidate": "candidate", "references": "references"}


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without the flag, wherever this runs."""
    monkeypatch.setattr(open_vino, "cpu_flags", lambda: frozenset(["fpu", "avx512f", "amx_tile"]))


def in_bf16(folder: Path) -> Artifact:
    """Return a tiny cross-encoder whose record says bfloat16."""
    artifact = load_artifact(make_cross_encoder(folder))
    fields = artifact.record.model_dump(mode="json")
    parity = {**PARITY, "precision": "bf16", "attempts": []}
    write_record(
        folder, {**fields, "precision": "bf16", "requested_precision": "bf16", "parity": parity}
    )
    return load_artifact(folder)


def compiled(artifact: Artifact, device: str = "cpu", **given: object) -> Any:
    return compile_run(
        load_config(
            overrides={
                "metrics.sas.metric": "sas",
                "models.cross_encoder.precision": "bf16",
                **given,
            }
        ),
        columns=ROLES,
        device=device,
        resolve_artifact=lambda _: artifact,
    )


def test_a_cpu_without_the_flag_is_refused_before_anything(lacking: None, tmp_path: Path) -> None:
    """In fp32 the same command would end well, with other numbers and at another speed."""
    path = write_parquet(tmp_path / "input.parquet", short_sample(3))
    words = ["--set=models.cross_encoder.precision=bf16", "--out", tmp_path / "out"]
    for more in ([], ["--dry-run"]):
        said = qaeval("score", path, "--metrics", "sas", *words, "--local", *more, expect=2)
        assert all(flag in said for flag in BF16_FLAGS) and "[QA0420]" in said
    assert not (tmp_path / "out").exists()


def test_a_gpu_does_not_run_it(bf16: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cross_encoder.precision=bf16.*GPU.*QA0420"):
        compiled(in_bf16(tmp_path / "a"), device="cuda")


def test_openvino_is_asked_for_by_name(
    bf16: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(open_vino, "_installed", lambda: None)
    with pytest.raises(DeviceError, match=r"qaeval-bulk\[openvino\].*QA0420"):
        compiled(in_bf16(tmp_path / "a"))


@pytest.mark.skipif(HAS_BF16, reason="this CPU computes in bfloat16")
def test_fp32_is_never_taken_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """OpenVINO takes fp32 on such a CPU and says nothing: a flag that a kernel lists may lie."""
    monkeypatch.setattr(open_vino, "cpu_flags", lambda: frozenset(BF16_FLAGS))
    with pytest.raises(DeviceError, match="in f32 here, not in bf16.*QA0420"):
        Session(in_bf16(tmp_path / "a"), n_threads=1)


def test_scores_and_keys_say_which_engine(
    bf16: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another version may round elsewhere: commits of both are never mixed."""
    artifact = in_bf16(tmp_path / "a")
    (plan,) = compiled(artifact).families
    shown = str(plan.signature)
    assert (
        f"engine:openvino-{openvino_version()}-{bf16_engine().flag}" in shown
        and "precision:bf16" in shown
    )
    # All batches are exact: to ask for it changes nothing.
    assert compiled(artifact, **{"models.exact_batches": True}).families[0].key == plan.key
    monkeypatch.setattr(open_vino, "_installed", lambda: "2027.1.0")
    assert compiled(artifact).families[0].key != plan.key


def test_scores_are_those_of_the_other_engine(bf16: None, tmp_path: Path) -> None:
    artifact = in_bf16(tmp_path / "a")
    plain = load_artifact(make_cross_encoder(tmp_path / "b"))
    rows = {"candidate": ["mill", "mill mill", ""], "references": [["mill"], ["a"], ["mill"]]}
    found, expected = (
        FamilyRunner(compiled(own).families[0], n_threads=1).score(rows)
        for own in (artifact, plain)
    )
    left, right = (np.array(own.column("logit").to_pylist()[:2]) for own in (found, expected))
    np.testing.assert_allclose(left, right, rtol=1e-2 if HAS_BF16 else 1e-6)
    assert found.drop_columns(["logit"]).equals(expected.drop_columns(["logit"]))


def test_a_node_without_the_flag_or_with_another_version_is_named(
    bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bf16_engine()
    version, flag = engine
    assert missing_for_bf16(engine) == ""
    other = engine._replace(version="2025.1")
    assert missing_for_bf16(other) == f"the driver's OpenVINO 2025.1 (it has {version})"
    monkeypatch.setattr(open_vino, "_installed", lambda: None)
    assert missing_for_bf16(engine) == f"the driver's OpenVINO {version} (it has none)"
    monkeypatch.setattr(open_vino, "cpu_flags", frozenset)
    assert f"CPU flag {flag}," in missing_for_bf16(engine)


@pytest.mark.parametrize(("driver", "node"), [BF16_FLAGS, BF16_FLAGS[::-1]])
def test_other_instructions_are_another_engine(
    monkeypatch: pytest.MonkeyPatch, driver: str, node: str
) -> None:
    """Tiles and vectors add in another order: the scores of a run would be of two kinds."""
    monkeypatch.setattr(open_vino, "cpu_flags", lambda: frozenset([driver]))
    engine = bf16_engine()
    # A CPU with tiles has the vectors, too, and engines take the tiles.
    flags = BF16_FLAGS if node == BF16_FLAGS[0] else (node,)
    monkeypatch.setattr(open_vino, "cpu_flags", lambda: frozenset(flags))
    told = f"the driver's CPU flag {driver}, for bf16 (it has {node})"
    assert missing_for_bf16(engine) == told
    assert str(bf16_engine()) != str(engine)


def products(n_products: int, width: int) -> bytes:
    """Return a graph: products of square matrices, and the sum of each row."""
    values = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n_rows", width]),
        helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["n_rows"]),
    ]
    weights = np.eye(width, dtype=np.float32)
    constants = [
        numpy_helper.from_array(weights, "weights"),
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
    ]
    nodes = [helper.make_node("Cast", ["input_ids"], ["x0"], to=TensorProto.FLOAT)]
    nodes += [
        helper.make_node("MatMul", [f"x{i}", "weights"], [f"x{i + 1}"]) for i in range(n_products)
    ]
    nodes.append(helper.make_node("ReduceSum", [f"x{n_products}", "axes"], ["logit"], keepdims=0))
    return _model("products", nodes, values, constants)


def _model(name: str, nodes: list[Any], values: list[Any], constants: list[Any]) -> bytes:
    graph = helper.make_graph(nodes, name, values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def ones(n_rows: int, width: int) -> dict[str, NDArray[np.int64]]:
    return {"input_ids": np.ones((n_rows, width), np.int64)}


def test_a_batch_that_takes_too_long_is_stopped_and_the_next_one_runs(
    bf16: None, tmp_path: Path
) -> None:
    """What was stopped in its middle refused all batches of other shapes that came after it."""
    path = tmp_path / "model.onnx"
    path.write_bytes(products(400, 256))
    engine = OpenVino(path, n_threads=1, max_batch_s=0.02)
    # 3 TFLOP: seconds on any core, and stopped between two products.
    with pytest.raises(TimeoutError):
        engine.run(ones(60_000, 256))
    free = OpenVino(path, n_threads=1, max_batch_s=None)
    assert free.run(ones(2, 256)).tolist() == [256.0, 256.0]
    engine._max_batch_ms = 600_000
    assert engine.run(ones(3, 256)).tolist() == [256.0] * 3


LACK = """
import resource, sys
from pathlib import Path
import numpy as np
from qaeval_core.models import open_vino
if {patched}:
    open_vino.cpu_flags = lambda: frozenset(["amx_bf16"])
    open_vino._PRECISION = "f32"
engine = open_vino.OpenVino(Path(sys.argv[1]), n_threads=1, max_batch_s=60.0)
ones = lambda n: {{"input_ids": np.ones((n, 8), np.int64)}}
engine.run(ones(2))
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, before[1]))
try:
    engine.run(ones(50_000))  # 26 GB within
except MemoryError as error:
    print(len(str(error).splitlines()))
resource.setrlimit(resource.RLIMIT_AS, before)
print(engine.run(ones(3)).tolist())
"""


def table(width: int) -> bytes:
    """Return a graph that looks up a wide row for each id; its output is their mean."""
    values = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n_rows", 8]),
        helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["n_rows"]),
    ]
    constants = [
        numpy_helper.from_array(np.ones((9, width), np.float32), "table"),
        helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["wide"]),
        helper.make_node("ReduceMean", ["wide", "axes"], ["logit"], keepdims=0),
    ]
    return _model("table", nodes, values, constants)


def test_lack_of_memory_is_told_and_the_next_batch_runs(tmp_path: Path) -> None:
    """It is what halves a batch: any other error would end the run."""
    path = tmp_path / "model.onnx"
    path.write_bytes(table(16_384))
    done = subprocess.run(
        [sys.executable, "-c", LACK.format(patched=not HAS_BF16), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    n_lines, values = done.stdout.splitlines()
    assert n_lines == "1"
    assert [round(own, 2) for own in map(float, re.findall(r"[\d.]+", values))] == [1.0] * 3


def test_a_graph_that_fails_is_one_line(bf16: None, tmp_path: Path) -> None:
    session = Session(in_bf16(tmp_path / "a"), n_threads=1)
    ids: dict[str, Any] = {"input_ids": np.ones((2, 3), np.int64)}
    with pytest.raises(ModelError, match="QA0414") as caught:
        session.run(ids)  # Two inputs are missing.
    assert "\n" not in str(caught.value)


def test_a_damaged_graph_is_refused(bf16: None, tmp_path: Path) -> None:
    artifact = in_bf16(tmp_path / "a")
    artifact.model_path.write_bytes(b"\x08\x01nothing")
    with pytest.raises(ModelError, match="cannot be loaded.*QA0414") as caught:
        Session(artifact, n_threads=1)
    assert "\n" not in str(caught.value)


def test_another_graph_than_its_record_says_is_refused(bf16: None, tmp_path: Path) -> None:
    artifact = in_bf16(tmp_path / "a")
    proto = onnx.load(artifact.model_path)
    proto.graph.input[1].name = "lengths"
    onnx.save(proto, artifact.model_path)
    with pytest.raises(ModelError, match="lengths.*QA0415"):
        Session(artifact, n_threads=1)
