"""What fp16 does to LRM: the record, the page that repeats it, and what is kept in fp32."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks.fp16 import EVERYTHING, N_ROWS, VARIANTS, bounds
from benchmarks.roofline import BERT, MINILM
from helpers import REPOSITORY
from qaeval_core.models.artifact import ensure_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.planning import job

_EVIDENCE = REPOSITORY / "docs" / "evidence" / "fp16.json"
_N_LAYERS = 6
_TOKEN = "whatever decides the token: projections, products, softmax"


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """The record of the last run."""
    return json.loads(_EVIDENCE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page, its lines as one."""
    return " ".join((REPOSITORY / "docs" / "gpu-bounds.md").read_text(encoding="utf-8").split())


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _ms(measured: dict[str, Any], kept: str) -> list[float]:
    """Return what LRM takes at best with MiniLM and with BERT-base."""
    lines = {
        own["model"]: own["ms"]
        for own in measured["bounds"]["lines"]
        if own["kept_in_fp32"] == kept
    }
    return [lines[MINILM], lines[BERT]]


def _times(measured: dict[str, Any], kept: str) -> str:
    return " | ".join(f"{ms:.1f}" for ms in _ms(measured, kept))


def test_the_page_has_what_was_measured_of_lrm(measured: dict[str, Any], page: str) -> None:
    """Protects from a table that nobody can make again."""
    *attended, weighted = measured["lrm"]
    assert [own["kept_in_fp32"] for own in attended] == list(VARIANTS)
    assert {own["rows"] for own in measured["lrm"]} == {N_ROWS}
    for own in attended:
        line = f"| {own['kept_in_fp32']} | {100 * own['share_off']:.2f} % "
        line += f"| {_short(own['row_mean'])} | {_short(own['row_max'])} "
        line = f"{line}| {own['spearman']:.5f} |".replace("| 0.9", "| .9")
        assert f"{line} {_times(measured, own['kept_in_fp32'])} |" in page
    *others, last = [round(own["share_off"] * N_ROWS * _N_LAYERS) for own in attended]
    shown = f"{', '.join(map(str, others))} and {last} of {N_ROWS * _N_LAYERS:,} values"
    assert shown in page
    assert f"deviation of LRM {attended[0]['deviation']:.3f}" in page
    assert weighted["matching"] == "weighted"
    assert f"(`matching=weighted`) is off by {_short(weighted['value_max'])} at most" in page


def test_pages_have_what_lrm_takes_at_best(measured: dict[str, Any], page: str) -> None:
    """Protects from a decision by a cost that nobody can compute again."""
    assert {own["shape"] for own in measured["bounds"]["lines"]} == {"82 x 200"}
    half, token, whole = (_ms(measured, kept) for kept in ("nothing", _TOKEN, EVERYTHING))
    assert f"| everything: what runs | | | | | {_times(measured, EVERYTHING)} |" in page
    told = f"{whole[1]:.0f} ms in place of {half[1]:.1f} for 82 rows of 200 tokens of BERT-base, "
    assert f"{told}{whole[0]:.1f} in place of {half[0]:.1f} with MiniLM" in page
    least, most = (f"{a / b:.1f}" for a, b in zip(token, half, strict=True))
    assert f"alone takes {least} to {most} times the fp16 graph's time" in page
    decisions = " ".join((REPOSITORY / "DECISIONS.md").read_text(encoding="utf-8").split())
    assert f"by the bound {least} to {most} times the time" in decisions
    # A note at the start of a run says both, rounded.
    low, high = (a / b for a, b in zip(whole, half, strict=True))
    assert f"takes {low:.0f} to {high:.0f} times as long" in job._COST_OF_FP32


def test_bounds_are_those_of_the_graph(artifacts_root: Path, measured: dict[str, Any]) -> None:
    """Protects from a record of graphs that were other ones: MiniLM's own, in its random twin's."""
    request = ArtifactRequest("relevance_matching", "minilm", "fp32")
    proto = onnx.load(ensure_artifact(artifacts_root, request).model_path)
    kept = {own["kept_in_fp32"]: own["ms"] for own in bounds(MINILM, proto)}
    assert list(kept) == [*VARIANTS, EVERYTHING]
    for name, ms in kept.items():
        assert ms == pytest.approx(_ms(measured, name)[0], rel=1e-3)


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
