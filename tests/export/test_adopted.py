"""ONNX files of others become artifacts as they are, or are refused; the files are optimum's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from adopted_folders import KINDS, folder_of, request_of
from helpers import REPOSITORY, as_table
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, ExportError, ModelUnavailableError
from qaeval_core.models.artifact import ensure_artifact, find_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.planning.compile import needed_requests
from qaeval_export.build import build_artifact

pytestmark = pytest.mark.slow

each_kind = pytest.mark.parametrize("kind", KINDS)
ROWS = [
    {"candidate": "1874", "references": ["in the year 1874"]},
    {"candidate": "Anna painted the sea every day.", "references": ["灯台", "The sea. " * 30]},
    {"candidate": "Où est l'école ?", "references": ["La bibliothèque de l'école est ouverte."]},
]


def scores_of(kind: str, folder: Path, root: Path, **settings: object) -> list[float]:
    """Return the scores of some rows by a model; its artifact is built."""
    _, metric = KINDS[kind]
    role = "cross_encoder" if metric == "sas" else "encoder"
    config = load_config(
        overrides={
            "models.artifacts_path": str(root),
            f"metrics.{metric}": {"metric": metric, role: str(folder)},
            **{f"models.{role}.{name}": value for name, value in settings.items()},
        }
    )
    for request in needed_requests(config, device="cpu"):
        build_artifact(request, root)
    found = as_table(Scorer({metric: {role: str(folder)}}, config=config, n_threads=1).score(ROWS))
    return found[metric].to_pylist()


@each_kind
def test_a_file_gives_the_scores_of_the_weights_it_was_made_of(kind: str, tmp_path: Path) -> None:
    """Protects from masks, segments, positions and pooling that are not the model's."""
    traced = scores_of(kind, folder_of(kind, tmp_path, weights=True), tmp_path / "traced")
    bare = folder_of(kind, tmp_path, weights=False)
    adopted = scores_of(kind, bare, tmp_path / "adopted")
    np.testing.assert_allclose(adopted, traced, atol=1e-5)
    assert np.std(traced) > 1e-3
    record = find_artifact(tmp_path / "adopted", request_of(kind, bare)).record
    assert (record.source, record.parity, record.lossy) == ("onnx", None, False)
    other = find_artifact(tmp_path / "traced", request_of(kind, tmp_path / f"{kind}-True")).record
    for name in ("max_positions", "dim", "vocab", "n_layers", "template", "activation", "pooling"):
        assert getattr(record, name) == getattr(other, name), name


@each_kind
def test_beside_weights_a_file_is_compared_with_them(kind: str, tmp_path: Path) -> None:
    """Protects from a file that is of other weights than the folder says."""
    folder = folder_of(kind, tmp_path, weights=True)
    record = build_artifact(
        request_of(kind, folder, onnx_file="model.onnx"), tmp_path / "built"
    ).record
    assert record.source == "onnx" and record.parity is not None
    assert record.parity.passed and record.parity.max_abs_diff < 1e-4
    proto = onnx.load(folder / "model.onnx")
    largest = max(proto.graph.initializer, key=lambda own: len(own.raw_data))
    changed = numpy_helper.to_array(largest) * 1.1
    largest.CopyFrom(numpy_helper.from_array(changed, largest.name))
    onnx.save(proto, folder / "model.onnx")
    with pytest.raises(ExportError, match="QA0410"):
        build_artifact(request_of(kind, folder, onnx_file="model.onnx"), tmp_path / "again")


def test_signatures_say_where_a_graph_is_from(tmp_path: Path) -> None:
    """Protects from comparing a graph that nobody compared with one that was."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    config = load_config(
        overrides={
            "models.artifacts_path": str(tmp_path / "built"),
            "metrics.sas": {"metric": "sas", "cross_encoder": str(folder)},
        }
    )
    build_artifact(request_of("cross_encoder", folder), tmp_path / "built")
    run = Scorer({"sas": {"cross_encoder": str(folder)}}, config=config).compile(
        {"candidate": "candidate", "references": "references"}
    )
    (family,) = run.families
    assert "|parity:none|" in str(family.signature) and "source:onnx" in str(family.signature)


@each_kind
def test_it_needs_no_torch(kind: str, tmp_path: Path) -> None:
    """Protects from an image of 5 GB where 300 MB do."""
    folder = folder_of(kind, tmp_path, weights=False)
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from pathlib import Path\n"
        "from qaeval_export.build import build_artifact\n"
        "from qaeval_core.models.record import ArtifactRequest\n"
        f"build_artifact(ArtifactRequest({KINDS[kind][0]!r}, {str(folder)!r}, 'fp32'), "
        f"Path({str(tmp_path / 'built')!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    assert find_artifact(tmp_path / "built", request_of(kind, folder)).record.source == "onnx"


def test_files_are_found_where_repositories_have_them(tmp_path: Path) -> None:
    """Protects from a name that users must know, and from another file than they name."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    artifact = ensure_artifact(tmp_path / "built", request_of("cross_encoder", folder))
    assert "onnx/model.onnx" in artifact.record.model.files
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "model_O2.onnx")
    with pytest.raises(ModelUnavailableError, match=r"\*\.safetensors.*QA0403"):
        build_artifact(request_of("cross_encoder", folder), tmp_path / "other")
    misspelled = request_of("cross_encoder", folder, onnx_file="onnx/model_02.onnx")
    with pytest.raises(ModelUnavailableError, match="'onnx/model_O2.onnx'.*QA0403"):
        build_artifact(misspelled, tmp_path / "other")
    named = request_of("cross_encoder", folder, onnx_file="onnx/model_O2.onnx")
    assert "model_O2" in build_artifact(named, tmp_path / "other").folder.name
    outside = request_of("cross_encoder", folder, onnx_file="../cross_encoder-False/x.onnx")
    with pytest.raises(ModelUnavailableError, match="ONNX.*QA0403"):
        build_artifact(outside, tmp_path / "other")


def test_graphs_that_reduce_inside_are_not_made_of_files(tmp_path: Path) -> None:
    """Protects from vectors of another layer than was asked for."""
    folder = folder_of("sentence_encoder", tmp_path, weights=False)
    with pytest.raises(ExportError, match="token_vectors.*QA0411"):
        build_artifact(ArtifactRequest("token_vectors", str(folder), "fp32"), tmp_path / "built")
    with pytest.raises(ConfigError, match="pair_score, sentence_vector.*QA0417"):
        ArtifactRequest("token_vectors", str(folder), "fp32", onnx_file="model.onnx")
    embedded = ArtifactRequest("pair_score", "sas-minilm", "fp32", onnx_file="model.onnx")
    with pytest.raises(ConfigError, match="QA0401"):
        build_artifact(embedded, tmp_path / "built")


def reads_more(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n"]))


def returns_other_names(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "pooler_output"
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == "logits":
                node.output[i] = "pooler_output"


def has_two_classes(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == "logits":
                node.output[i] = "one"
    proto.graph.node.append(helper.make_node("Concat", ["one", "one"], ["logits"], axis=1))


def names_code(proto: onnx.ModelProto) -> None:
    proto.opset_import.append(helper.make_opsetid("com.somebody", 1))


def is_old(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 11


def has_data_elsewhere(proto: onnx.ModelProto) -> None:
    weight = max(proto.graph.initializer, key=lambda own: len(own.raw_data))
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "../secret.bin"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (reads_more, "input_ids.*attention_mask.*token_type_ids.*QA0411"),
        (returns_other_names, "pooler_output.*QA0411"),
        (has_two_classes, "QA0411"),
        (names_code, "'com.somebody'.*QA0411"),
        (is_old, "11.*13.*QA0411"),
        (has_data_elsewhere, "'../secret.bin'.*QA0411"),
    ],
)
def test_what_is_no_such_model_is_refused(
    spoil: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path
) -> None:
    """Protects from numbers of something else, and from reading what the model does not own."""
    folder = folder_of("cross_encoder", tmp_path, weights=False)
    (tmp_path / "secret.bin").write_bytes(b"secret" * 10_000)
    proto = onnx.load(folder / "model.onnx")
    spoil(proto)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ExportError, match=message):
        build_artifact(request_of("cross_encoder", folder), tmp_path / "built")
    assert not (tmp_path / "built" / request_of("cross_encoder", folder).folder_name).exists()


def test_a_file_that_is_no_onnx_and_a_configuration_without_sizes_are_named(
    tmp_path: Path,
) -> None:
    """Protects from a stack trace of protobuf."""
    folder = folder_of("sentence_encoder", tmp_path, weights=False)
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=r"config\.json.*QA0411"):
        build_artifact(request_of("sentence_encoder", folder), tmp_path / "built")
    (folder / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(ExportError, match="ONNX.*QA0411"):
        build_artifact(request_of("sentence_encoder", folder), tmp_path / "built")


@pytest.mark.parametrize("mode", ["cls", "max"])
def test_pooling_is_that_of_the_configuration(mode: str, tmp_path: Path) -> None:
    """Protects from the mean where the model was trained with another pooling."""
    pooling = {"word_embedding_dimension": 16, f"pooling_mode_{mode}_tokens": True}
    if mode == "cls":
        pooling = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True}
    scores = []
    for weights in (True, False):
        folder = folder_of("sentence_encoder", tmp_path, weights=weights)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        scores.append(scores_of("sentence_encoder", folder, tmp_path / f"built {weights}"))
    np.testing.assert_allclose(*scores, atol=1e-5)


@each_kind
def test_a_repository_of_the_hub_is_taken_from_the_cache(kind: str, tmp_path: Path) -> None:
    """Protects from a repository of ONNX files alone, which had no weights for us."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "home" / "hub" / "models--somebody--tiny"
    snapshot = repository / "snapshots" / commit
    shutil.copytree(folder_of(kind, tmp_path, weights=False), snapshot)
    (snapshot / "onnx").mkdir()
    (snapshot / "model.onnx").rename(snapshot / "onnx" / "model.onnx")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    words = [
        sys.executable,
        "-m",
        "qaeval_export",
        "--graph",
        KINDS[kind][0],
        "--model",
        "somebody/tiny",
    ]
    done = subprocess.run(
        [*words, "--root", str(tmp_path / "built")],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "taken as it is: no weights to compare it with" in done.stdout
    request = ArtifactRequest(KINDS[kind][0], "somebody/tiny", "fp32")
    record = find_artifact(tmp_path / "built", request).record
    assert (record.model.kind, record.model.revision, record.source) == ("hub", commit, "onnx")
    assert "onnx/model.onnx" in record.model.files
