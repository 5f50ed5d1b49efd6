"""What an export writes, refuses, falls back to, and prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from tokenizers import Tokenizer

from qaeval_core.errors import ArtifactMissingError, ExportError, ModelUnavailableError
from qaeval_core.models.artifact import ArtifactRequest, ensure_artifact, find_artifact
from qaeval_core.models.record import GRAPHS
from qaeval_core.models.registry import resolve_model
from qaeval_export import build, traced, tracing
from qaeval_export.__main__ import main
from qaeval_export.eager import ORACLES
from qaeval_export.graphs import EXPORTS
from qaeval_export.loading import load_model, make_facts
from qaeval_export.parity import MIN_SPEARMAN, pair_rows, parity_pairs

pytestmark = pytest.mark.slow


def test_every_graph_has_a_module_and_an_oracle() -> None:
    """A graph that the configuration may ask for and nobody can export fails hours into a run."""
    assert EXPORTS.keys() == GRAPHS.keys() == ORACLES.keys()
    for name, graph in EXPORTS.items():
        has_bf16 = not name.startswith("relevance_")  # Rounding swaps LRM's tokens.
        assert graph.tolerance.keys() == {"fp32", "fp16", *["bf16"] * has_bf16}, name


def test_either_package_of_onnxruntime_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU the package is onnxruntime-gpu, and every export failed there."""

    def of_others(name: str) -> str:
        if name == "onnxruntime":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(build, "version", of_others)
    assert build._versions()["onnxruntime"] == onnxruntime.__version__


def test_every_declared_axis_varies(workshop: Any) -> None:
    """The exporter fixes an axis in silence; the graph then runs at one length only."""
    record = workshop.artifact("relevance_matching", "bert").record
    pairs = ("n_pairs",)
    shapes = {tensor.name: tensor.shape for tensor in (*record.inputs, *record.outputs)}
    assert shapes == {
        "input_ids": ("n_pairs", "n_tokens_padded"),
        "n_tokens": pairs,
        "n_candidate": pairs,
        "context_start": pairs,
        "n_context": pairs,
        "candidate_positions": ("n_cand",),
        "layer_precision": ("n_pairs", 2),
    }


def test_a_fixed_axis_is_an_error(workshop: Any) -> None:
    """A graph for batches of exactly three rows would pass a parity check of three rows."""
    proto = onnx.load(workshop.artifact("token_logprobs", "gpt2").model_path)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    with pytest.raises(ExportError, match=r"input_ids.*\(3.*'n_tokens_padded'\).*QA0409"):
        tracing.check_dynamic(
            proto,
            inputs=(("n_rows", "n_tokens_padded"), ("n_asked",), ("n_asked",)),
            outputs=(("n_asked",),),
        )


def test_stored_truncation_and_padding_are_removed(workshop: Any) -> None:
    """MiniLM's own file cuts every text at 128 tokens, and nothing would say so."""
    artifact = workshop.artifact("relevance_matching", "bert")
    assert Tokenizer.from_file(f"{workshop.model('bert')}/tokenizer.json").truncation
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    assert tokenizer.truncation is None
    assert tokenizer.padding is None


def test_two_exports_have_equal_hashes(workshop: Any, tmp_path: Path) -> None:
    """The hash is part of each score's signature: a rebuild must not look like a new model."""
    first = workshop.artifact("relevance_matching", "bert")
    request = ArtifactRequest("relevance_matching", workshop.model("bert"), "fp32")
    second = build.build_artifact(request, tmp_path)
    assert second.hash == first.hash
    assert str(tmp_path).encode() not in second.model_path.read_bytes()
    assert b"/site-packages/" not in second.model_path.read_bytes()


@pytest.mark.long
def test_fp16_within_the_gate_is_kept(workshop: Any) -> None:
    """A conversion that silently stays in fp32 would waste the GPU; one in fp16 halves the file."""
    fp32 = workshop.artifact("token_logprobs", "llama")
    fp16 = workshop.artifact("token_logprobs", "llama", "fp16")
    assert (fp16.record.precision, fp16.record.lossy) == ("fp16", False)
    assert fp16.model_path.stat().st_size < 0.75 * fp32.model_path.stat().st_size
    assert fp16.record.parity.spearman >= MIN_SPEARMAN
    onnx.checker.check_model(onnx.load(fp16.model_path))


def test_fp16_that_fails_the_gate_falls_back_to_fp32(workshop: Any, capsys: Any) -> None:
    """Weights beyond 65,504 are cut in fp16: wrong scores that differ by a little only."""
    workshop.artifact("relevance_matching", "overflowing_bert")
    artifact = workshop.artifact("relevance_matching", "overflowing_bert", "fp16")
    assert "parity gate failed" in capsys.readouterr().err
    record = artifact.record
    assert (record.precision, record.requested_precision, record.lossy) == ("fp32", "fp16", False)
    assert [(a.precision, a.passed) for a in record.parity.attempts] == [
        ("fp16", False),
        ("fp32", True),
    ]
    assert record.parity.attempts[0].max_abs_diff > record.parity.attempts[0].tolerance
    request = ArtifactRequest("relevance_matching", workshop.model("overflowing_bert"), "fp16")
    assert find_artifact(workshop.root, request).record.precision == "fp32"


def test_allow_lossy_keeps_fp16_and_says_so(workshop: Any) -> None:
    """A lossy graph must not answer a request that did not allow it."""
    lossy = workshop.artifact("relevance_matching", "overflowing_bert", "fp16", allow_lossy=True)
    assert (lossy.record.precision, lossy.record.lossy) == ("fp16", True)
    request = ArtifactRequest("relevance_matching", workshop.model("overflowing_bert"), "fp16")
    moved = lossy.folder.parent / "moved" / request.folder_name
    shutil.copytree(lossy.folder, moved)
    with pytest.raises(ArtifactMissingError, match="allow_lossy.*QA0405"):
        find_artifact(moved.parent, request)


def test_an_fp32_graph_that_differs_from_torch_is_not_written(
    workshop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the gate a wrong graph would be used for every score from then on."""
    strict = replace(EXPORTS["token_logprobs"], tolerance={"fp32": 0.0, "fp16": 0.0})
    monkeypatch.setattr(traced, "graph_export", {"token_logprobs": strict}.__getitem__)
    proto = onnx.load(workshop.artifact("token_logprobs", "gpt2").model_path)
    monkeypatch.setattr(traced, "trace", lambda *_: proto)
    request = ArtifactRequest("token_logprobs", workshop.model("gpt2"), "fp32")
    with pytest.raises(ExportError, match="QA0410"):
        build.build_artifact(request, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f".{request.folder_name}.lock"]


def test_unsupported_architectures_are_named(workshop: Any, tmp_path: Path) -> None:
    """A causal LM run as an encoder has no relevance to match."""
    request = ArtifactRequest("relevance_matching", workshop.model("gpt2"), "fp32")
    with pytest.raises(ExportError, match="'gpt2'.*QA0408"):
        build.build_artifact(request, tmp_path)


def test_fixed_texts_are_many_and_varied() -> None:
    """Parity on a handful of alike texts proves nothing about one-token candidates."""
    loaded = load_model(resolve_model("minilm", role="encoder"), role="encoder")
    request = ArtifactRequest("relevance_matching", "minilm", "fp32")
    rows = pair_rows(loaded.tokenizer, make_facts(loaded, request), parity_pairs())
    assert len(rows) >= 40
    assert min(len(row.candidate_ids) for row in rows) == 1
    assert max(len(row.ids) for row in rows) > 150


def test_changed_model_files_ask_for_a_new_artifact(workshop: Any, tmp_path: Path) -> None:
    """A fine-tuned model saved over the old folder would go on scoring with the old weights."""
    folder = tmp_path / "model"
    shutil.copytree(workshop.model("bert"), folder)
    request = ArtifactRequest("relevance_matching", str(folder), "fp32")
    built = workshop.artifact("relevance_matching", "bert")
    shutil.copytree(built.folder, tmp_path / request.folder_name)
    assert find_artifact(tmp_path, request).hash == built.hash
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(ArtifactMissingError, match=r"config\.json.*--force.*QA0405"):
        find_artifact(tmp_path, request)


def test_an_artifact_without_a_checksum_is_built_again(workshop: Any, tmp_path: Path) -> None:
    """Nobody knows whether its record is what was written."""
    request = ArtifactRequest("token_vectors", workshop.model("bert"), "fp32")
    built = workshop.artifact("token_vectors", "bert")
    folder = Path(shutil.copytree(built.folder, tmp_path / request.folder_name))
    (folder / "artifact.sha256").unlink()
    with pytest.raises(ArtifactMissingError, match="--graph.*token_vectors.*QA0405"):
        find_artifact(tmp_path, request)
    build.build_artifact(request, tmp_path)
    assert find_artifact(tmp_path, request).hash == built.hash


def test_two_processes_build_one_artifact_once(workshop: Any, tmp_path: Path, capsys: Any) -> None:
    """Two jobs started together would write the same folder at the same time."""
    request = ArtifactRequest("token_logprobs", workshop.model("gpt2"), "fp32")
    capsys.readouterr()  # Making the model may say something.
    hashes: list[str] = []
    threads = [
        threading.Thread(target=lambda: hashes.append(ensure_artifact(tmp_path, request).hash))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(hashes)) == 1 and len(hashes) == 2
    assert {p.name for p in tmp_path.iterdir()} == {
        request.folder_name,
        f".{request.folder_name}.lock",
    }
    # Minutes without a word look like a run that hangs.
    said = capsys.readouterr().err.splitlines()
    what = f"token_logprobs of {request.model} (fp32)"
    assert [line.partition("; this takes minutes")[0] for line in said[:2]] == [
        f"exporting {what}"
    ] * 2
    for line in said[2:]:
        assert re.fullmatch(f"exported {re.escape(what)} in [0-9]+ s", line)
    assert len(said) == 4


def test_what_killed_builds_left_is_removed(tmp_path: Path) -> None:
    """Each kill left a graph of gigabytes for good; those of other artifacts may be under way."""
    request = ArtifactRequest("token_logprobs", str(tmp_path / "none"), "fp32")
    name, root = request.folder_name, tmp_path / "root"
    others = {f".building-{name}-large-12", f".building-large-{name}-12"}
    for folder in (f".building-{name}-12", f".building-{name}-13-old", *others):
        (root / folder).mkdir(parents=True)
        (root / folder / "model.onnx").write_bytes(b"half a graph")
    with pytest.raises(ModelUnavailableError):
        build.build_artifact(request, root)
    assert {path.name for path in root.iterdir()} == {f".{name}.lock", *others}


def test_a_failed_build_shows_its_last_lines(tmp_path: Path) -> None:
    """The export runs in a process of its own; its reason must reach the user."""
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text('{"model_type": "t5"}')
    request = ArtifactRequest("token_logprobs", str(tmp_path), "fp32")
    with pytest.raises(ExportError, match=r"1\).*'t5'.*QA0408"):
        ensure_artifact(tmp_path / "root", request)


def test_the_command_prints_folder_and_parity(workshop: Any, capsys: Any) -> None:
    """The second call finds the artifact; a rebuild would take minutes for a large model."""
    artifact = workshop.artifact("token_logprobs", "gpt2")
    arguments = ["--graph", "token_logprobs", "--model", workshop.model("gpt2")]
    assert main([*arguments, "--root", str(workshop.root)]) == 0
    folder, parity = capsys.readouterr().out.splitlines()
    assert folder == str(artifact.folder)
    assert parity.startswith("fp32 against torch fp32, 40 fixed rows, on the CPU: max_abs_diff")


def test_wrong_requests_exit_with_two_and_one_line(tmp_path: Path, capsys: Any) -> None:
    """A stack trace hides the one line that helps."""
    wrong = ["--graph", "token_logprobs", "--model", "minilm", "--root", str(tmp_path)]
    assert main(wrong) == 2
    assert capsys.readouterr().err.startswith("error: model 'minilm' has the role encoder")
    assert main([*wrong, "--matching", "weighted"]) == 2
    clash = ["--graph", "relevance_matching", "--model", "minilm", "--aggregate", "average"]
    assert main(clash) == 2


def test_help_needs_no_torch() -> None:
    """--help that takes ten seconds is not read."""
    code = (
        "import sys; sys.modules['torch'] = None; from qaeval_export.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(build.__file__).parents[1])},
    )
    assert done.returncode == 0
    assert "Examples:" in done.stdout
