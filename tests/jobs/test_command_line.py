"""The command line as people use it: answers, exit codes, and errors that help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import qaeval, read_scores, short_sample, write_parquet
from qaeval.command import caught, fail
from qaeval_core.errors import (
    ConfigError,
    InputChangedError,
    ModelUnavailableError,
    QAEvalError,
    SchemaError,
    StorageError,
    StoreLockedError,
)


@pytest.fixture
def words(tiny_settings: dict[str, object], tmp_path: Path) -> list[str]:
    """Input and settings of a small local run."""
    source = write_parquet(tmp_path / "input.parquet", short_sample(20))
    settings = [f"--set={key}={value}" for key, value in tiny_settings.items()]
    return [str(source), *settings]


@pytest.mark.slow
def test_local_run_prints_counts_means_and_where_things_lie(
    words: list[str], tmp_path: Path
) -> None:
    """Protects from a run that ends without saying what it did."""
    out = tmp_path / "out"
    shown = qaeval("score", *words, "--out", out, "--local", "--carry", "label")
    assert re.search(r"^qrelscore +0\.\d+ \[.*\] +20 +0$", shown, re.MULTILINE)
    assert re.search(r"^qrelscore_lrm +0\.\d+ \[.*\] +20 +0$", shown, re.MULTILINE)
    assert str(out / "scores") in shown
    assert "label" in read_scores(out).columns
    for name in ("run.json", "plan.parquet", "report.json", "_SUCCESS"):
        assert (out / name).exists()
    report = json.loads((out / "report.json").read_text())
    assert report["columns"]["qrelscore"]["n"] == 20
    assert report["environment"]["packages"]["onnxruntime"]


def test_the_mean_of_one_row_has_no_interval(tmp_path: Path) -> None:
    """[x, x] reads as if x were certain."""
    source = write_parquet(tmp_path / "one.parquet", one_answer())
    shown = qaeval("score", source, "--metrics", "f1", "--out", tmp_path / "out", "--local")
    assert re.search(r"^f1 +0\.800 +1 +0$", shown, re.MULTILINE)
    assert "intervals:" not in shown


def one_answer() -> pa.Table:
    return pa.table({"candidate": ["a blue mill"], "references": [["the blue mill stands"]]})


@pytest.mark.slow
def test_dry_run_counts_units_and_writes_nothing(words: list[str], tmp_path: Path) -> None:
    """Protects from a look that costs something."""
    qaeval("score", *words, "--out", tmp_path / "warm", "--local")
    shown = qaeval("score", *words, "--out", tmp_path / "out", "--dry-run")
    assert "1 files, 20 rows" in shown
    assert "20 rows to score in 1 shards, 0 committed" in shown
    assert "distinct units of" in shown
    assert not (tmp_path / "out").exists()
    assert "0 rows to score in 0 shards, 20 committed" in qaeval(
        "score", *words, "--out", tmp_path / "warm", "--dry-run"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "qrelscore.exponnent=2"], "did you mean 'exponent'?"),
        (["--set", "scoring.rows_per_shards=2"], "did you mean 'rows_per_shard'?"),
        (["--set", "qrelscore.aggregate=mover"], "aggregate=mover needs matching=weighted"),
        (["--set", "qrelscore.profile=paperr"], "'paper' or 'authors'"),
        (["--metrics", "qrelscor"], "did you mean 'qrelscore'?"),
        (["--column", "contxt=x"], "did you mean 'context'?"),
        (["--column", "context=contex"], "did you mean 'context'?"),
        (["--carry", "lable"], "did you mean 'label'?"),
        (["--address", "auto"], "--local uses no cluster"),
        (["--config", "missing.yaml"], "cannot read configuration missing.yaml"),
        (["--out", "ss3://bucket/out"], "unknown kind of store; did you mean 's3'"),
        (["--set", "qrelscore.encoder=minilmm"], "minilm"),
        (["--set", "qrelscore.encoder=smollm2-135m"], "causal_lm"),
        (["--set", "models.encoder.max_batch_tokens=128"], "has up to 512 tokens"),
    ],
)
def test_bad_request_exits_2_and_names_the_nearest_word(
    words: list[str], tmp_path: Path, options: list[str], message: str
) -> None:
    """Protects from a typo that scores something else, and from traces in place of answers."""
    shown = qaeval("score", *words, "--out", tmp_path / "out", "--local", *options, expect=2)
    assert message in shown


@pytest.mark.slow
def test_unreachable_hub_gives_one_message_with_the_ways_out(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a stack trace where there is no network."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    shown = qaeval(
        *["score", *words, "--out", tmp_path / "out", "--local"],
        *["--set", "qrelscore.encoder=bert-base-cased"],
        expect=2,
    )
    assert "bert-base-cased" in shown
    assert "minilm" in shown


def test_yaml_and_overrides_agree(words: list[str], tmp_path: Path) -> None:
    """Protects from an option that one of the two ways ignores."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "metrics:\n  mine: {metric: qrelscore, layers: last}\nscoring: {rows_per_shard: 6}\n"
    )
    models = [word.replace("qrelscore.", "mine.") for word in words]
    qaeval("score", *models, "--config", path, "--out", tmp_path / "out", "--local")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["config"]["metrics"]["mine"]["layers"] == "last"
    assert "mine_lrm" in read_scores(tmp_path / "out").columns
    assert len(list((tmp_path / "out").glob("families/lrm-*/*.parquet"))) == 4


@pytest.mark.slow
def test_calibrated_baseline_is_used_and_belongs_to_its_options(
    words: list[str], tmp_path: Path
) -> None:
    """Protects from a baseline of other models or options rescaling scores."""
    path = tmp_path / "baseline.json"
    shown = qaeval("calibrate", *words, "--corpus", "sample", "--out", path, "--n-pairs", "30")
    assert "b_lrm = " in shown
    assert "b_grg = " in shown
    baselines = {item["part"]: item for item in json.loads(path.read_text())["baselines"]}
    with_baseline = ["--set", f"qrelscore.baseline={path}", "--local"]
    qaeval("score", *words, "--out", tmp_path / "out", *with_baseline)
    scores = read_scores(tmp_path / "out")
    b = baselines["lrm"]["value"]
    raw, rescaled = scores["qrelscore_lrm_raw"][0], scores["qrelscore_lrm"][0]
    assert rescaled == pytest.approx(min(max((raw - b) / (1 - b), 0.0), 1.0), abs=1e-6)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "baseline_corpus:sample" in report["columns"]["qrelscore"]["signature"]
    refused = qaeval(
        *["score", *words, "--out", tmp_path / "other", *with_baseline],
        *["--set", "qrelscore.layers=last"],
        expect=2,
    )
    assert "calibrated for other models or options" in refused


@pytest.mark.slow
def test_calibrate_says_what_has_nothing_to_calibrate(words: list[str]) -> None:
    told = qaeval("calibrate", *words, "--corpus", "sample", "--metrics", "f1", expect=2)
    assert "f1 has nothing to calibrate" in told
    assert "qrelscore" in told
    told = qaeval("calibrate", *words, "--corpus", "sample", "--metrics", "naco,sas", expect=2)
    assert "sas has nothing to calibrate" in told
    both = "naco,qrelscore"
    told = qaeval("calibrate", *words, "--corpus", "sample", "--metrics", both, expect=2)
    assert "expected_complexity or baseline" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scor"], "No such command 'scor'. Did you mean 'score'? (qaeval --help"),
        (["score", "--metrcs", "f1"], "No such option: --metrcs (Possible options: --metrics"),
        (["score", "--rows-per-shard", "x"], "Invalid value for '--rows-per-shard'"),
        (["report"], "Missing argument 'OUT'. (qaeval report --help"),
        (["train", "kpqa", "--squad", "a"], "Missing option '--out'. (qaeval train --help"),
        (["export", "--graph", "x", "--model", "m"], "argument --graph: invalid choice: 'x'"),
    ],
)
def test_unknown_words_are_one_line_with_a_code(words: list[str], said: str) -> None:
    shown = qaeval(*words, expect=2)
    assert shown.startswith("error: ") and shown.endswith(" shows examples) [QA0101]\n")
    assert said in shown and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(28, "No space left on device", "a"), "a: No space left on device {} [QA0001]"),
        (MemoryError(), "MemoryError {} [QA0003]"),
        (UnicodeError("bad"), "UnicodeError: bad {} [QA0002]"),
        (StorageError("no answer [QA0507]"), "StorageError: no answer {} [QA0507]"),
    ],
)
def test_what_fails_outside_has_a_code(
    error: Exception, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        caught(command)()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {shown.format('(QAEVAL_DEBUG=1 shows where)')}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("it did not answer"), 1),
        (StoreLockedError("another run writes there"), 1),
        (InputChangedError("another file than before"), 1),
        (ConfigError("no such setting"), 2),
        (SchemaError("no such column"), 2),
        (ModelUnavailableError("no such model"), 2),
    ],
)
def test_what_may_go_well_next_time_is_no_bad_request(error: QAEvalError, code: int) -> None:
    """A scheduler tries again after 1; after 2 somebody must change the command."""
    with pytest.raises(SystemExit) as ended:
        fail(error)
    assert ended.value.code == code
