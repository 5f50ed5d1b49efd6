"""What fp16 does to LRM: the record, the page that repeats it, and what is kept in fp32."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks.fp16 import N_ROWS, VARIANTS
from helpers import REPOSITORY
from qaeval_core.models.artifact import ensure_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.planning import job

_EVIDENCE = REPOSITORY / "docs" / "evidence" / "fp16.json"
_BOUNDS = _EVIDENCE.with_name("lrm_bounds.json")
_N_LAYERS = 6


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """The record of the last run."""
    return json.loads(_EVIDENCE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page, its lines as one."""
    return " ".join((REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8").split())


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def test_the_page_has_what_was_measured_of_lrm(measured: dict[str, Any], page: str) -> None:
    """Protects from a table that nobody can make again."""
    *attended, weighted = measured["lrm"]
    assert [own["kept_in_fp32"] for own in attended] == list(VARIANTS)
    assert {own["rows"] for own in measured["lrm"]} == {N_ROWS}
    for own in attended:
        line = f"| {own['kept_in_fp32']} | {100 * own['share_off']:.2f} % "
        line += f"| {_short(own['row_mean'])} | {_short(own['row_max'])} "
        assert f"{line}| {own['spearman']:.5f} |".replace("| 0.9", "| .9") in page
    *others, last = [round(own["share_off"] * N_ROWS * _N_LAYERS) for own in attended]
    shown = f"{', '.join(map(str, others))} and {last} of {N_ROWS * _N_LAYERS:,} values"
    assert shown in page
    assert f"deviation of LRM {attended[0]['deviation']:.3f}" in page
    assert weighted["matching"] == "weighted"
    assert f"(`matching=weighted`) is off by {_short(weighted['value_max'])} at most" in page


def test_what_fp32_costs_a_gpu_is_as_it_was_computed(page: str) -> None:
    """Protects from a decision by a cost that has no source."""
    record = json.loads(_BOUNDS.read_text(encoding="utf-8"))
    ms = {(own["model"], own["kept_in_fp32"]): own["ms"] for own in record["lines"]}
    half, token, whole = (
        [ms[model, kept] for model in ("MiniLM", "BERT-base")]
        for kept in ("nothing", list(VARIANTS)[1], "everything")
    )
    low, high = sorted(f"{a / b:.0f}" for a, b in zip(whole, half, strict=True))
    assert f"takes {low} to {high} times as long" in job._COST_OF_FP32
    assert f"costs a GPU {low} to {high} times the time" in page
    least, most = (f"{a / b:.1f}" for a, b in zip(token, half, strict=True))
    decisions = " ".join((REPOSITORY / "DECISIONS.md").read_text(encoding="utf-8").split())
    assert f"at best {least} to {most} times the time" in decisions


def test_the_page_has_what_was_measured_of_the_causal_lm(
    measured: dict[str, Any], page: str
) -> None:
    """Protects from figures of other tokens than the page names."""
    own = measured["causal_lm"]
    assert f"On the {own['tokens']:,} tokens of the fixed pairs" in page
    assert f"{own['max']:.3f} nats at most" in page
    assert f"99 % are below {own['99_percent_below']:.3f}" in page
    assert f"{_short(own['median'])} at the median" in page
    assert f"a row's mean by {_short(own['row_mean'])}" in page


def test_what_is_kept_in_fp32_is_what_its_name_says(artifacts_root: Path) -> None:
    """Protects from a table of variants that a change of graphs has made all alike."""
    request = ArtifactRequest("relevance_matching", "minilm", "fp32")
    proto = onnx.load(ensure_artifact(artifacts_root, request).model_path)
    types = {node.name: node.op_type for node in proto.graph.node}
    kept = {kind: find(proto) for kind, find in VARIANTS.items()}
    nothing, token, stream, both = kept.values()
    assert not nothing and not token & stream
    assert both == token | stream
    counts = Counter(types[name] for name in token)
    # A product of all three projections a layer, of the query apart in the last, and of q k.
    assert counts["MatMul"] == 2 * _N_LAYERS + 1
    assert counts["Softmax"] == counts["ReduceMax"] == counts["ArgMax"] == _N_LAYERS
    counts = Counter(types[name] for name in stream)
    assert counts["LayerNormalization"] == 2 * _N_LAYERS + 1
    assert not counts.keys() & {"MatMul", "Attention", "Gelu", "Softmax"}
