"""A row's score is its own: graphs whose numbers depend on the rows beside it are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from adopted_folders import folder_of, request_of
from helpers import as_table
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.errors import ExportError
from qaeval_core.models.artifact import find_artifact
from qaeval_core.planning.compile import needed_requests
from qaeval_export.batch_mates import (
    FP32_LIMIT,
    difference_by_batch_mates,
    difference_of_two_runs,
)
from qaeval_export.build import build_artifact
from qaeval_export.parity import ParityRow, Values, parity_pairs

pytestmark = pytest.mark.slow

ROWS = [ParityRow(list(range(n)), [], []) for n in (3, 40, 7, 200, 12, 90, 5, 61)]


def of_rows(value: Callable[[list[int], int], float]) -> Callable[[Any], list[Values]]:
    """Return a graph whose value of a row is a function of lengths and its place in the batch."""
    return lambda rows: [
        np.array([value([len(row.ids) for row in rows], i)]) for i in range(len(rows))
    ]


def first_is_odd(lengths: list[int], i: int) -> float:
    return lengths[i] + (1.0 if lengths[0] % 2 else 0.0) * (i > 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda lengths, i: lengths[i], 0.0),
        (lambda lengths, i: lengths[i] + 1e-3 * max(lengths), 0.197),  # its padded width
        (lambda lengths, i: lengths[i] + 1e-3 * sum(lengths[:i]), 0.352),  # a sum over rows
        (lambda lengths, i: lengths[i] + 1e-2 * len(lengths), 0.07),  # how many there are
        (first_is_odd, 1.0),  # what comes first
        (lambda lengths, i: float("nan") if len(lengths) > 1 else 1.0, float("inf")),
    ],
)
def test_whatever_a_value_takes_of_its_neighbors_is_found(
    value: Callable[[list[int], int], float], expected: float
) -> None:
    found = difference_by_batch_mates(of_rows(value), ROWS)
    assert found == pytest.approx(expected, rel=0.5)
    assert (found > FP32_LIMIT) == (expected > 0)


def test_random_numbers_are_found() -> None:
    """Beside the same rows, and alone."""
    drawn = np.random.default_rng(0)
    noisy = of_rows(lambda lengths, i: lengths[i] + drawn.normal(0, 0.01))
    assert difference_by_batch_mates(noisy, ROWS) > FP32_LIMIT
    assert difference_of_two_runs(noisy, ROWS) > FP32_LIMIT
    assert difference_of_two_runs(of_rows(lambda lengths, i: sum(lengths)), ROWS) == 0.0


def quantized(folder: Path) -> None:
    quantize_dynamic(folder / "model.onnx", folder / "q.onnx", weight_type=QuantType.QInt8)
    (folder / "q.onnx").rename(folder / "model.onnx")


def behind_logits(*nodes: onnx.NodeProto) -> Callable[[Path], None]:
    """Return what puts nodes between the logits of a file and its output."""

    def spoil(folder: Path) -> None:
        proto = onnx.load(folder / "model.onnx")
        for node in proto.graph.node:
            for i, name in enumerate(node.output):
                node.output[i] = "before" if name == "logits" else name
        proto.graph.node.extend(nodes)
        proto.graph.initializer.append(numpy_helper.from_array(np.array(0), "axis0"))
        onnx.save(proto, folder / "model.onnx")

    return spoil


noisy = behind_logits(
    helper.make_node("RandomNormalLike", ["before"], ["noise"], scale=0.01),
    helper.make_node("Add", ["before", "noise"], ["logits"]),
)
summed = behind_logits(helper.make_node("CumSum", ["before", "axis0"], ["logits"]))
POISONS = {"quantized": quantized, "noisy": noisy, "summed": summed}


@pytest.mark.parametrize("name", POISONS)
def test_an_adopted_file_that_mixes_rows_is_refused(name: str, tmp_path: Path) -> None:
    """36 rows scored together and each alone differed by up to .008, and 23 ranks changed."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    POISONS[name](folder)
    told = r"beside other rows.*\(at most 0\.0001.*QA0411"
    with pytest.raises(ExportError, match=told) as refused:
        build_artifact(request_of("cross_encoder", folder), tmp_path / "built")
    assert "models.cross_encoder.one_row_batches=true" in str(refused.value)


def test_a_file_that_draws_numbers_is_refused_one_row_a_batch_too(tmp_path: Path) -> None:
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    noisy(folder)
    request = request_of("cross_encoder", folder, one_row_batches=True)
    with pytest.raises(ExportError, match="QA0411"):
        build_artifact(request, tmp_path / "built")


def scores(folder: Path, root: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the scores of rows, one row a batch, by their ids."""
    overrides = {
        "models.artifacts_path": str(root),
        "models.cross_encoder.one_row_batches": True,
        "metrics.sas": {"metric": "sas", "cross_encoder": str(folder)},
    }
    config = load_config(overrides=overrides)
    for request in needed_requests(config, device="cpu"):
        build_artifact(request, root)
    scorer = Scorer({"sas": {"cross_encoder": str(folder)}}, config=config, n_threads=1)
    found = as_table(
        scorer.score([{key: row[key] for key in ("candidate", "references")} for row in rows])
    )
    return dict(zip([row["id"] for row in rows], found["sas"].to_pylist(), strict=True))


def test_one_row_a_batch_scores_each_row_as_if_alone(tmp_path: Path) -> None:
    """The way to use a quantized file: no neighbor, no order, no other shard moves a score."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    quantized(folder)
    rows = [
        {"id": str(i), "candidate": candidate, "references": [context]}
        for i, (candidate, context) in enumerate(parity_pairs())
    ]
    together = scores(folder, tmp_path / "built", rows)
    assert scores(folder, tmp_path / "built", rows[::-1]) == together
    for row in rows[:6]:
        assert scores(folder, tmp_path / "built", [row]) == {row["id"]: together[row["id"]]}
    record = find_artifact(
        tmp_path / "built", request_of("cross_encoder", folder, one_row_batches=True)
    ).record
    assert record.one_row_batches
    assert record.batch_difference is not None and record.batch_difference > FP32_LIMIT


@pytest.mark.parametrize(("alone", "shown"), [(False, "1e-05"), (True, "none")])
def test_record_and_signature_say_how_far_values_move(
    tmp_path: Path, alone: bool, shown: str
) -> None:
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    build_artifact(request_of("cross_encoder", folder, one_row_batches=alone), tmp_path / "built")
    record = find_artifact(
        tmp_path / "built", request_of("cross_encoder", folder, one_row_batches=alone)
    ).record
    assert record.batch_difference is not None and record.batch_difference < 1e-5
    overrides = {
        "models.artifacts_path": str(tmp_path / "built"),
        "models.cross_encoder.one_row_batches": alone,
        "metrics.sas": {"metric": "sas", "cross_encoder": str(folder)},
    }
    config = load_config(overrides=overrides)
    scorer = Scorer({"sas": {"cross_encoder": str(folder)}}, config=config)
    (family,) = scorer.compile({"candidate": "candidate", "references": "references"}).families
    assert f"|batch_mates:{shown}|" in str(family.signature)


def test_a_file_in_fp16_may_differ_as_far_as_from_torch(tmp_path: Path) -> None:
    """Its roundings depend on shapes; what they add is within what fp16 itself does."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    proto = onnx.load(folder / "model.onnx")
    from onnxruntime.transformers import float16

    converted = float16.convert_float_to_float16(proto, keep_io_types=True)
    onnx.save(converted, folder / "model.onnx")
    record = build_artifact(request_of("cross_encoder", folder), tmp_path / "built").record
    assert record.precision == "fp16"
    assert record.batch_difference is not None and record.batch_difference <= 2e-2


@pytest.mark.parametrize("graph", ["pair_score", "sentence_vector", "token_logprobs"])
def test_our_own_graphs_are_held_to_the_same_limit(graph: str, workshop: Any) -> None:
    models = {"pair_score": "bert_pairs", "sentence_vector": "bert", "token_logprobs": "gpt2"}
    record = workshop.artifact(graph, models[graph]).record
    assert 0 <= record.batch_difference <= FP32_LIMIT


def test_a_graph_of_ours_that_mixes_rows_is_not_written(
    workshop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qaeval_core.models.record import ArtifactRequest
    from qaeval_export import traced

    proto = onnx.load(workshop.artifact("token_logprobs", "gpt2").model_path)
    monkeypatch.setattr(traced, "trace", lambda *_: proto)
    monkeypatch.setattr(traced, "difference_by_batch_mates", lambda *_: 2e-4)
    request = ArtifactRequest("token_logprobs", workshop.model("gpt2"), "fp32")
    with pytest.raises(ExportError, match=r"2\.0e-04.*QA0410"):
        build_artifact(request, tmp_path)
    assert not (tmp_path / request.folder_name).exists()
