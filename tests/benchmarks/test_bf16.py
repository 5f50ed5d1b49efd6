"""What bfloat16 does to scores: the record, the page that repeats it, and the rounding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.bf16 import N_ROWS, SUBJECTS, rounded
from helpers import REPOSITORY
from qaeval_export.graph_files import open_graph

_RECORD = REPOSITORY / "docs" / "evidence" / "bf16.json"


def line_of(own: dict[str, Any]) -> str:
    """Return the line of the page's table."""
    numbers = [
        *(_shown(own[name]) for name in ("mean", "max")),
        f"{own['spearman']:.4f}",
        f"{own['auc_fp32']:.4f}",
        f"{own['auc_bf16']:.4f}",
    ]
    shown = " | ".join(number.removeprefix("0") for number in numbers)
    return f"| `{own['column']}` | {own['set']}, {own['rows']} | {shown} |"


def _shown(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.1e}".replace("e-0", "e-")


def test_the_page_has_what_was_measured() -> None:
    """Protects from a table that nobody can make again."""
    record = json.loads(_RECORD.read_text(encoding="utf-8"))
    assert not record["is_rounded"]
    page = (REPOSITORY / "docs" / "scoring.md").read_text(encoding="utf-8")
    assert [(own["set"], own["column"]) for own in record["lines"]] == list(SUBJECTS.values())
    for own in record["lines"]:
        assert own["rows"] + own["n_undefined_in_one"] <= N_ROWS
        assert line_of(own) in page, line_of(own)


@pytest.mark.parametrize("seed", range(3))
def test_weights_and_values_are_rounded_as_a_cast_rounds_them(seed: int) -> None:
    """Its own rounding of weights is that of ONNX Runtime, ties and negative numbers, too."""
    draw = np.random.default_rng(seed)
    weights = (draw.normal(size=64) * 10.0 ** draw.integers(-6, 6, 64)).astype(np.float32)
    weights[:2] = np.array([0x3F808000, 0xBF818000], np.uint32).view(np.float32)  # ties
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Add", ["x", "w"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sum",
        [value("x", TensorProto.FLOAT, [64])],
        [value("out", TensorProto.FLOAT, [64])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (found,) = open_graph(rounded(model).SerializeToString()).run(
        None, {"x": np.zeros(64, np.float32)}
    )
    assert np.array_equal(found, _cast(weights))
    assert not np.array_equal(found, weights)


def _cast(values: np.ndarray) -> np.ndarray:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["narrow"], ["out"], to=TensorProto.FLOAT),
    ]
    ends = [value(name, TensorProto.FLOAT, [64]) for name in ("x", "out")]
    graph = helper.make_graph(nodes, "cast", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    (found,) = open_graph(model.SerializeToString()).run(None, {"x": values})
    return np.asarray(found)
