"""Numbers under another name than theirs, and calibrations that are none: refused at the start."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from helpers import run_locally, write_parquet
from llm_server import LlmServer
from naco_jobs import many, settings
from qaeval.cli import app
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.families.chat.naco_prompt import prompt_name
from qaeval_core.metrics.bertscore import read_rescaling
from qaeval_core.metrics.calibrated import read_baseline, read_complexity
from qaeval_core.metrics.naco import complexity_key

NOT_COMPLEXITIES = ["NaN", "Infinity", "-Infinity", "0", "0.5", "-5", "null", '"3"']


def complexity_file(path: Path, value: str, *, key: str = "k") -> Path:
    counts = dict.fromkeys(("n_questions", "n_runs", "n_unreadable", "n_failed"), 1)
    record = {"key": key, "authors": 3.0, **counts, "n_unnatural": 0, "n_steps": {}}
    text = json.dumps({"corpus": "news", "complexities": [{**record, "paper": "VALUE"}]})
    path.write_text(text.replace('"VALUE"', value))
    return path


@pytest.mark.parametrize("value", NOT_COMPLEXITIES[:-1])
def test_an_expected_complexity_is_checked_before_a_call_is_paid(
    tmp_path: Path, value: str
) -> None:
    """It was refused by the formula, once every call was made and paid."""
    with LlmServer() as server:
        given = settings(server, tmp_path, many(2))
        key = complexity_key(
            load_config(overrides=given).metrics["naco"],  # type: ignore[arg-type]
            prompt=prompt_name(one_shot=False),
        )
        path = complexity_file(tmp_path / "e.json", value, key=key)
        words = [f"--set={name}={text}" for name, text in given.items() if name != "input.paths"]
        words += [
            f"--set=naco.expected_complexity={path}",
            f"--set=input.paths={tmp_path}/*.parquet",
        ]
        shown = CliRunner().invoke(
            app, ["score", str(tmp_path / "input.parquet"), "--local", *words]
        )
        assert shown.exit_code == 2, shown.output
        assert "e.json is not a file of expected complexities" in shown.output
        assert server.stats()["n_calls"] == 0


def test_a_whole_complexity_is_read(tmp_path: Path) -> None:
    path = complexity_file(tmp_path / "e.json", "2.5")
    assert read_complexity(str(path), key="k", profile="paper", metric="naco") == (2.5, "news")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"", b"[]"])
def test_what_is_no_calibration_is_one_message(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="QA0216"):
        read_complexity(str(path), key="k", profile="paper", metric="naco")
    with pytest.raises(ConfigError, match="QA0216"):
        read_baseline(str(path), keys={"lrm": "k"})
    with pytest.raises(ConfigError, match=r"file\.json.*QA0216"):
        read_rescaling(str(path), layer=1)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A named pipe without a writer hung the run at its start."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (
        lambda: read_complexity(str(pipe), key="k", profile="paper", metric="naco"),
        lambda: read_baseline(str(pipe), keys={}),
        lambda: read_rescaling(str(pipe), layer=1),
        lambda: load_config(path=pipe),
    ):
        with pytest.raises(ConfigError, match="pipe.*(QA0216|QA0201)"):
            read()


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "-1e308", "-1.01", "1.0", "null"]
)
def test_a_baseline_is_a_cosine(tmp_path: Path, value: str) -> None:
    """-inf was accepted: every score became 1."""
    record: dict[str, Any] = {"part": "lrm", "key": "k", "n_pairs": 2, "n_dropped": 0}
    record |= {"n_undefined": 0, "interval_95": [0.1, 0.2], "value": "VALUE"}
    content = {"corpus": "c", "seed": 0, "max_bleu_1": 0.5, "baselines": [record]}
    path = tmp_path / "b.json"
    path.write_text(json.dumps(content).replace('"VALUE"', value))
    with pytest.raises(ConfigError, match=r"b\.json.*QA0216"):
        read_baseline(str(path), keys={"lrm": "k"})
    path.write_text(json.dumps(content).replace('"VALUE"', "-0.5"))
    assert read_baseline(str(path), keys={"lrm": "k"})[0].lrm == -0.5


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1e308", "-1.5", "1"])
def test_a_baseline_of_bertscore_is_a_cosine(tmp_path: Path, value: str) -> None:
    path = tmp_path / "b.csv"
    path.write_text(f"LAYER,P,R,F\n1,0.5,{value},0.5\n")
    with pytest.raises(ConfigError, match="-1.*1.*QA0216"):
        read_rescaling(str(path), layer=1)


@pytest.mark.parametrize(
    "setting", ["f1.metric=rouge_l", "metrics.f1.metric=rouge_l", "sas.metric=f1"]
)
def test_a_name_of_a_metric_means_that_metric(tmp_path: Path, setting: str) -> None:
    """A column f1 that holds ROUGE-L is a wrong number to whoever reads it."""
    rows = pa.table({"candidate": ["a b"], "references": [["a"]]})
    source = write_parquet(tmp_path / "in.parquet", rows)
    words = ["score", str(source), "--out", str(tmp_path / "out"), "--local", "--set", setting]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2
    assert "[QA0208]" in shown.output
    assert not (tmp_path / "out").exists()


def test_a_study_does_not_replace_the_report_of_a_run(tmp_path: Path) -> None:
    """`correlate OUT --out OUT` replaced report.json, and the next run found another's."""
    rows = pa.table(
        {"candidate": ["a b", "a", "b"], "references": [["a"]] * 3, "human": [1.0, 2.0, 0.0]}
    )
    source = write_parquet(tmp_path / "in.parquet", rows)
    out = tmp_path / "out"
    given: dict[str, object] = {
        "input.paths": [str(source)],
        "output.path": str(out),
        "metrics.f1.metric": "f1",
        "output.carry": ["human"],
    }
    run_locally(given)
    before = (out / "report.json").read_bytes()
    words = ["correlate", str(out), "--human", "human", "--resamples", "20", "--out", str(out)]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2 and "holds the scores of a run" in shown.output
    assert (out / "report.json").read_bytes() == before
    outcome, said = run_locally(given)
    assert not outcome.is_new and "nothing to do" in said[-1]
    shutil.rmtree(out)
