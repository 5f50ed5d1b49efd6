"""Models of others that would take all time or memory: refused in one line, and soon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from adopted_folders import folder_of, request_of
from qaeval_core.errors import ExportError, ModelUnavailableError
from qaeval_core.models.artifact import ArtifactRequest, ensure_artifact
from qaeval_core.models.export_process import ExportLimits


def changed(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    proto = onnx.load(folder / "model.onnx")
    change(proto)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())


def never_ends(folder: Path) -> None:
    """Put a loop whose condition stays true behind the logits."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["goes_on"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("goes_on", TensorProto.BOOL, [])],
    )

    def change(proto: onnx.ModelProto) -> None:
        for node in proto.graph.node:
            for i, name in enumerate(node.output):
                node.output[i] = "before" if name == "logits" else name
        carried = helper.make_tensor_value_info("kept", TensorProto.FLOAT, None)
        kept = helper.make_tensor_value_info("kept_out", TensorProto.FLOAT, None)
        body.input.append(carried)
        body.output.append(kept)
        body.node.append(helper.make_node("Identity", ["kept"], ["kept_out"]))
        true = numpy_helper.from_array(np.array(True), "true")
        proto.graph.initializer.append(true)
        proto.graph.node.append(
            helper.make_node("Loop", ["", "true", "before"], ["logits"], body=body)
        )

    changed(folder, change)


def unpacks(folder: Path) -> None:
    """Let 2,000 tensors share 16 MB of a file: 32 GB in memory."""
    (folder / "model.onnx.data").write_bytes(bytes(16 << 20))

    def change(proto: onnx.ModelProto) -> None:
        for i in range(2_000):
            tensor = proto.graph.initializer.add()
            tensor.name, tensor.data_type = f"shared{i}", TensorProto.FLOAT
            tensor.dims.extend([4 << 20])
            tensor.data_location = TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = "location", "model.onnx.data"

    changed(folder, change)


def is_of_holes(folder: Path) -> None:
    with (folder / "model.onnx.data").open("wb") as file:
        file.truncate(40 << 30)


def has_a_function_with_data_elsewhere(folder: Path) -> None:
    def change(proto: onnx.ModelProto) -> None:
        tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[4])
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "../../etc/passwd"
        constant = helper.make_node("Constant", [], ["c"], value=tensor)
        function = helper.make_function(
            "com.microsoft", "f", [], ["c"], [constant], [helper.make_opsetid("", 17)]
        )
        proto.functions.append(function)

    changed(folder, change)


def has_a_huge_vocabulary(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 10**12}))


def with_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def multiplies(folder: Path) -> None:
    """Nine times each e becomes ten."""

    def change(content: dict[str, Any]) -> None:
        one = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}
        content["normalizer"] = {"type": "Sequence", "normalizers": [one] * 9}

    with_tokenizer(folder, change)


def makes_much_of_little(folder: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        one = {"type": "Replace", "pattern": {"String": "e"}, "content": "e " * 200}
        content["normalizer"] = {"type": "Sequence", "normalizers": [one]}

    with_tokenizer(folder, change)


def backtracks(folder: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        pattern = {"Regex": "(a|b|[a-z]+)+$z"}
        content["pre_tokenizer"] = {
            "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False
        }  # fmt: skip

    with_tokenizer(folder, change)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (never_ends, r"within 5 s.*models\.cross_encoder\.max_export_s.*QA0409"),
        (unpacks, r"33\.\d.*GB.*0\.0.*GB.*QA0411"),
        (has_a_function_with_data_elsewhere, "'../../etc/passwd'.*QA0411"),
        (has_a_huge_vocabulary, "Input.*10000000.*QA0411"),
        (multiplies, "may|MemoryError|memory.*QA0409"),
        (makes_much_of_little, r"tokenizer\.json.*QA0418"),
        (backtracks, r"tokenizer\.json.*QA0418"),
    ],
)
def test_an_export_ends_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    """They hung, aborted without a word, or showed the trace of a library."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    spoil(folder)
    limits = ExportLimits(max_s=5.0 if spoil is never_ends else 120.0, max_memory_gb=2.0)
    with pytest.raises(ExportError, match=said) as refused:
        ensure_artifact(tmp_path / "built", request_of("cross_encoder", folder), limits=limits)
    assert "\n" not in str(refused.value) and "Traceback" not in str(refused.value)
    assert not list((tmp_path / "built").glob("pair_score*"))


def test_a_file_of_holes_is_not_read(tmp_path: Path) -> None:
    """40 GB of zeros were hashed first."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    is_of_holes(folder)
    with pytest.raises((ExportError, ModelUnavailableError), match="0.*QA0403"):
        ensure_artifact(tmp_path / "built", request_of("cross_encoder", folder))


def test_what_an_honest_model_takes_is_allowed(tmp_path: Path) -> None:
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    limits = ExportLimits(max_memory_gb=2.0)
    artifact = ensure_artifact(
        tmp_path / "built", request_of("cross_encoder", folder), limits=limits
    )
    assert artifact.record.source == "onnx"


def test_an_adapter_counts_as_files_of_its_model(artifacts_root: Path) -> None:
    """Its files lie elsewhere, and were looked for in the folder of its base."""
    request = ArtifactRequest(graph="pair_score", model="sas-minilm", precision="fp32")
    artifact = ensure_artifact(artifacts_root, request)
    assert artifact.record.model.files.keys() > {"adapter/adapter_model.safetensors"}
