"""An OUT of the first version is resumed by this one, without anything computed again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from helpers import read_scores
from pins.old_out import FILE, OLD_OUT, settings

from qaeval_core.configure import load_config
from qaeval_core.job import make_job, read_inputs
from qaeval_core.run import run_job
from qaeval_core.running.local_executor import LocalExecutor


def test_an_old_out_is_resumed_without_computing(tmp_path: Path) -> None:
    """Protects from weeks of work, and money, that a new version does not recognise."""
    shutil.copy(OLD_OUT / "input.parquet", tmp_path / "input.parquet")
    shutil.copytree(OLD_OUT / "exported", tmp_path / "artifacts")
    server = json.loads((OLD_OUT / "server.json").read_text())
    config = load_config(overrides={**settings(tmp_path), "naco.base_url": server["base_url"]})
    inputs = read_inputs(config)
    (file,) = inputs.files
    commits = list((OLD_OUT / "families").rglob("*.parquet"))
    assert len(commits) == 10
    for path in commits:
        folder = tmp_path / "out" / "families" / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        # A commit is named after its input's place and time, which are others here.
        shutil.copy(path, folder / path.name.replace(FILE, file.file_id, 1))
    outcome = run_job(make_job(config, inputs, device="cpu"), LocalExecutor(), say=print)
    assert outcome.n_shards_run == 0
    assert (tmp_path / "out" / "_SUCCESS").exists()
    wanted = pl.read_parquet(OLD_OUT / "scores.parquet")
    found = read_scores(tmp_path / "out")
    assert found.columns == wanted.columns
    assert found.equals(wanted)


def test_what_was_not_committed_is_computed(tmp_path: Path) -> None:
    """The test above would pass if nothing were ever computed."""
    shutil.copy(OLD_OUT / "input.parquet", tmp_path / "input.parquet")
    shutil.copytree(OLD_OUT / "exported", tmp_path / "artifacts")
    given = {key: value for key, value in settings(tmp_path).items() if "naco" not in key}
    config = load_config(overrides=given)
    outcome = run_job(
        make_job(config, read_inputs(config), device="cpu"), LocalExecutor(), say=print
    )
    assert outcome.n_shards_run > 0
    wanted = pl.read_parquet(OLD_OUT / "scores.parquet")
    assert read_scores(tmp_path / "out")["f1"].to_list() == pytest.approx(wanted["f1"].to_list())
