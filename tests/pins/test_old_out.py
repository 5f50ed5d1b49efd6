"""An OUT of the first version is resumed by this one; what must be computed anew says why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from helpers import read_scores
from pins.old_out import FILE, OLD_OUT, settings
from qaeval_core.configure import load_config
from qaeval_core.errors import ArtifactMissingError
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.scoring.run import run_job
from tiny_artifacts import make_cross_encoder


def _resumed(folder: Path) -> tuple[dict[str, Any], int]:
    """Put the old OUT and its input into a folder; return its settings and how many commits."""
    shutil.copy(OLD_OUT / "input.parquet", folder / "input.parquet")
    server = json.loads((OLD_OUT / "server.json").read_text())
    given = {**settings(folder), "naco.base_url": server["base_url"]}
    (file,) = read_inputs(load_config(overrides=given)).files
    commits = list((OLD_OUT / "families").rglob("*.parquet"))
    for path in commits:
        kept = folder / "out" / "families" / path.parent.name
        kept.mkdir(parents=True, exist_ok=True)
        # A commit is named after its input's place and time, which are others here.
        shutil.copy(path, kept / path.name.replace(FILE, file.file_id, 1))
    return given, len(commits)


def test_an_old_out_is_resumed_without_computing(tmp_path: Path) -> None:
    """Protects from weeks of work, and money, that a new version does not recognize."""
    given, n_commits = _resumed(tmp_path)
    assert n_commits == 10
    # Graphs were exported anew with version 2: models' rows are the ones that are computed.
    make_cross_encoder(tmp_path / "artifacts" / "pair_score-gpt2-fp32")
    config = load_config(overrides=given)
    job = make_job(config, read_inputs(config), device="cpu")
    outcome = run_job(job, LocalPieceExecutor(), say=print)
    assert outcome.report is not None
    computed = {
        key.partition("-")[0]: family["this_run"]["rows"]
        for key, family in outcome.report["families"].items()
        if family.get("this_run", {}).get("rows")
    }
    assert computed == {"sas": 6}
    assert (tmp_path / "out" / "_SUCCESS").exists()
    wanted = pl.read_parquet(OLD_OUT / "scores.parquet")
    found = read_scores(tmp_path / "out")
    assert found.columns == wanted.columns
    assert found.equals(wanted)  # The made up graph is the same one.


def test_an_old_graph_is_not_run(tmp_path: Path) -> None:
    """Protects from numbers of two graphs under one name."""
    given, _ = _resumed(tmp_path)
    shutil.copytree(OLD_OUT / "exported", tmp_path / "artifacts")
    config = load_config(overrides=given)
    with pytest.raises(ArtifactMissingError, match="1.*pair_score.*2.*QA0405"):
        make_job(config, read_inputs(config), device="cpu")


def test_models_whose_graphs_are_new_say_why_they_run_again(tmp_path: Path) -> None:
    """Protects from an hour of computing that nobody asked for and nobody explains."""
    given, _ = _resumed(tmp_path)
    make_cross_encoder(tmp_path / "artifacts" / "pair_score-gpt2-fp32")
    config = load_config(overrides=given)
    job = make_job(config, read_inputs(config), device="cpu")
    run_job(job, LocalPieceExecutor(), say=print)
    # What the first version wrote of this run.
    out = tmp_path / "out"
    written = json.loads((out / "run.json").read_text())
    (key,) = (key for key in written["families"] if key.startswith("sas-"))
    line = written["families"].pop(key)
    written["families"]["sas-03e98f5ba963"] = line.replace("|graph_version:2", "")
    (out / "run.json").write_text(json.dumps(written))
    (out / "_SUCCESS").unlink()
    said: list[str] = []
    run_job(job, LocalPieceExecutor(), say=said.append)
    assert (
        "earlier sas results are ignored (this version of qaeval exports a newer graph: version "
        "2, was 1); their files are kept"
    ) in said


def test_what_was_not_committed_is_computed(tmp_path: Path) -> None:
    """The test above would pass if nothing were ever computed."""
    shutil.copy(OLD_OUT / "input.parquet", tmp_path / "input.parquet")
    make_cross_encoder(tmp_path / "artifacts" / "pair_score-gpt2-fp32")
    given = {key: value for key, value in settings(tmp_path).items() if "naco" not in key}
    config = load_config(overrides=given)
    outcome = run_job(
        make_job(config, read_inputs(config), device="cpu"), LocalPieceExecutor(), say=print
    )
    assert outcome.n_shards_run > 0
    wanted = pl.read_parquet(OLD_OUT / "scores.parquet")
    assert read_scores(tmp_path / "out")["f1"].to_list() == pytest.approx(wanted["f1"].to_list())
