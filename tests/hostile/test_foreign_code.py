"""Files of others name code to run, models to export and places to go: none of it is obeyed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from helpers import REPOSITORY, run_locally, write_parquet
from qaeval.cli import app
from qaeval_core.errors import ConfigError, ModelUnavailableError
from qaeval_core.models import artifact as artifacts
from qaeval_core.models.registry import resolve_model

_EVIL = """
from pathlib import Path
from transformers import PretrainedConfig
Path({marker!r}).write_text("code of a model ran")
class EvilConfig(PretrainedConfig):
    model_type = "evil"
"""


def evil_model(folder: Path, marker: Path) -> Path:
    """Write a model folder whose configuration names code that leaves a mark."""
    import numpy as np

    folder.mkdir(parents=True)
    named = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}
    (folder / "config.json").write_text(json.dumps(named))
    (folder / "evil.py").write_text(_EVIL.format(marker=str(marker)))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"w": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return folder


def answer_yes(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of this project whose standard input says yes."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        input="y\n" * 9,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=False,
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """OUT of a run of words alone."""
    rows = [{"id": "q1", "question": "Who?", "candidate": "a barn", "references": ["a red barn"]}]
    source = write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist(rows))
    run_locally(
        {
            "input.paths": [str(source)],
            "output.path": str(tmp_path / "out"),
            "metrics.f1.metric": "f1",
        }
    )
    return tmp_path / "out"


def forge(out: Path, **config: Any) -> None:
    """Change what an OUT says of its run's configuration."""
    content = json.loads((out / "run.json").read_text())
    for section, fields in config.items():
        content["config"][section].update(fields)
    (out / "run.json").write_text(json.dumps(content))


def explain(out: Path, *words: str) -> tuple[int, str]:
    shown = CliRunner().invoke(app, ["explain", str(out), "--id", "q1", *words], input="y\n" * 9)
    assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.exception
    return shown.exit_code, shown.output


def test_score_runs_no_code_of_a_model_folder(out: Path, tmp_path: Path) -> None:
    """A prompt of transformers was answered by whatever stood at standard input, unseen."""
    evil = evil_model(tmp_path / "evil", tmp_path / "ran")
    words = ["--local", "--metrics", "sas", "--set", f"sas.cross_encoder={evil}"]
    words += ["--set", f"models.artifacts_path={tmp_path / 'artifacts'}"]
    done = answer_yes(
        "-m", "qaeval.cli", "score", tmp_path / "input.parquet", "--out", tmp_path / "o", *words
    )
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 2, done.stderr
    assert "auto_map" in done.stderr and "never run" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_export_runs_no_code_even_if_the_folder_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is one lock, trust_remote_code=False the other: each has to hold alone."""
    evil = evil_model(tmp_path / "evil", tmp_path / "ran")
    code = (
        "from pathlib import Path; from qaeval_export.loading import load_model;"
        "from qaeval_core.models.registry import ModelSource;"
        f"load_model(ModelSource(name='evil', kind='folder', folder=Path({str(evil)!r}),"
        " gguf_file=None, revision=None, files={}), role='cross_encoder')"
    )
    assert answer_yes("-c", code).returncode != 0
    code = (
        "from pathlib import Path; from qaeval_export.training.model import check_base;"
        "from qaeval_core.models.registry import ModelSource;"
        f"check_base(ModelSource(name='evil', kind='folder', folder=Path({str(evil)!r}),"
        " gguf_file=None, revision=None, files={}), max_tokens=9)"
    )
    assert answer_yes("-c", code).returncode != 0
    assert not (tmp_path / "ran").exists()


def test_builders_have_no_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a builder asks is captured, so nobody sees it, and nobody may answer."""
    seen: list[object] = []

    def run(*_: object, **given: object) -> Any:
        seen.append(given.get("stdin"))
        return subprocess.CompletedProcess([], 1, "", "no")

    monkeypatch.setattr(subprocess, "run", run)
    request = artifacts.ArtifactRequest("pair_score", "sas-minilm", "fp32")
    with pytest.raises(Exception, match="QA0409"):
        artifacts.ensure_artifact(tmp_path, request)
    CliRunner().invoke(app, ["export", "--graph", "pair_score", "--model", "sas-minilm"])
    assert seen == [subprocess.DEVNULL] * 2


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "named", [{"auto_map": {"AutoModel": "evil.Evil"}}, {"_attn_implementation": "evil/kernel"}]
)
def test_a_folder_that_names_code_is_refused(
    tmp_path: Path, file: str, named: dict[str, object]
) -> None:
    """Protects from a tokenizer or a kernel of the hub that brings the code instead."""
    folder = evil_model(tmp_path / "evil", tmp_path / "ran")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / file).write_text(json.dumps({"model_type": "bert", **named}))
    with pytest.raises(ConfigError, match=f"{file}.*QA0407"):
        resolve_model(str(folder), role="encoder")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\udcff"])
def test_a_damaged_configuration_of_a_model_is_one_message(tmp_path: Path, text: str) -> None:
    folder = evil_model(tmp_path / "evil", tmp_path / "ran")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelUnavailableError, match=r"config\.json.*QA0403"):
        resolve_model(str(folder), role="encoder")


def test_explain_of_a_foreign_folder_builds_and_runs_nothing(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT of a stranger named a model folder, and explaining a row of it ran that folder's code."""
    evil = evil_model(tmp_path / "evil", tmp_path / "ran")
    sas = {"sas": {"metric": "sas", "cross_encoder": str(evil)}}
    forge(out, metrics=sas, models={"artifacts_path": str(tmp_path / "artifacts"), "build": True})
    monkeypatch.setenv("QAEVAL_ARTIFACTS", str(tmp_path / "cache"))
    done = answer_yes("-m", "qaeval.cli", "explain", out, "--id", "q1")
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 2, done.stderr
    assert "explain builds no model: no artifact in" in done.stderr
    assert "qaeval export" in done.stderr and "--artifacts" in done.stderr
    assert list(tmp_path.glob("artifacts/*")) == [] and list(tmp_path.glob("cache/*")) == []


def test_explain_takes_artifacts_of_the_user_alone(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign run.json names a folder with a model of its own; its numbers would be shown."""
    asked: list[Path] = []

    def find(root: Path, request: object, *, compare_model: bool = True) -> Any:
        asked.append(root)
        assert not compare_model, "no file of a model that a stranger names is read"
        raise artifacts.ArtifactMissingError("not there")

    monkeypatch.setattr("qaeval_core.explain.stored_row.find_artifact", find)
    monkeypatch.setenv("QAEVAL_ARTIFACTS", str(tmp_path / "cache"))
    forge(out, metrics={"sas": {"metric": "sas"}}, models={"artifacts_path": "/foreign"})
    code, shown = explain(out)
    assert code == 2 and "the run had its artifacts in /foreign" in shown
    explain(out, "--artifacts", str(tmp_path / "mine"))
    assert asked == [tmp_path / "cache", tmp_path / "mine"]


def test_explain_goes_to_no_server_that_a_file_names(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URI with an endpoint of its own would be asked with the user's credentials."""
    forge(out, input={"paths": ["s3://bucket/q.parquet?endpoint_override=127.0.0.1:9"]})
    code, shown = explain(out)
    assert code == 2 and "the input address stored in OUT is not used" in shown
    code, shown = explain(out, "--input", str(tmp_path / "input.parquet"))
    assert code == 0 and "values equal the stored ones" in shown


def test_explain_reads_the_folder_that_it_was_given(out: Path, tmp_path: Path) -> None:
    """run.json names another OUT: commits of that one would be compared."""
    forge(out, output={"path": str(tmp_path / "elsewhere")})
    code, shown = explain(out)
    assert code == 0 and "values equal the stored ones" in shown
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"config": []},
        {"families": 7},
        {"instances": "x"},
        {"device": ["cpu"]},
        {"device": "tpu"},
        {"config": {"metrics": [1]}},
        {"config": {"metrics": {"f1": {"metric": ["f1"]}}}},
    ],
)
def test_a_damaged_run_file_is_one_message(out: Path, change: dict[str, object]) -> None:
    """Structure that is not there ended in a traceback."""
    content = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**content, **change}))
    code, shown = explain(out)
    assert code == 2 and shown.startswith("error: "), shown


def test_a_damaged_plan_is_one_message(out: Path) -> None:
    (out / "plan.parquet").write_bytes(b"PAR1 and no more")
    code, shown = explain(out)
    assert code == 2 and "plan.parquet is damaged" in shown
