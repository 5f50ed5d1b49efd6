"""What the world does to a command is one line and an exit code; YAML is what it looks like."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from helpers import REPOSITORY, full_disk, run_locally, write_parquet
from qaeval.cli import app
from qaeval.command import caught
from qaeval.work import score as score_verb
from qaeval_core.configure import load_config, parse_setting
from qaeval_core.errors import ConfigError
from qaeval_core.storage import files
from qaeval_core.storage.path import read_json
from qaeval_core.yaml_files import StrictYamlError, load_yaml

BILLION_LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
DIGITS = "9" * 5_000
DEEP = "[" * 3_000 + "]" * 3_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = pa.table({"candidate": ["a", "b"], "references": [["a"], ["a"]]})
    return write_parquet(tmp_path / "in.parquet", rows)


def invoke(*words: str | Path, expect: int) -> str:
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(shown.exception, SystemExit), shown.exception
    assert shown.exit_code == expect, shown.output
    assert "Traceback" not in shown.output and "error: " in shown.output
    return shown.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BILLION_LAUGHS + "metrics: {f1: *a9}\n", "aliases"),
        ("a: &a 1\nmetrics: {f1: {language: *a}}", "aliases"),
        ("metrics: {f1: {}}\nmetrics: {rouge_l: {}}", "a key is given twice"),
        ("metrics: {f1: {language: de, language: en}}", "a key is given twice"),
        ("metrics: !!python/object/apply:os.system [id]", "constructor"),
        (f"scoring: {{rows_per_shard: {DIGITS}}}", "number or date"),
        ("output: {path: 2026-02-31}", "number or date"),
        (f"metrics: {DEEP}", "nested too deep"),
        ("metrics: {f1: {language: \udcff}}", "not UTF-8"),
        ("metrics: {\x07: 1}", "characters"),
        ("metrics: [", "line 1"),
        ("metrics: {? {a: 1} : 2}", "unhashable"),
    ],
)
def test_a_broken_configuration_is_one_message(
    tmp_path: Path, source: Path, content: str, said: str
) -> None:
    """Nine aliases hung the start; the second of two equal keys won in silence."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    words = ("score", source, "--out", tmp_path / "out", "--local", "--config", path)
    shown = invoke(*words, expect=2)
    assert "config.yaml is not YAML" in shown and said in shown
    assert len(shown) < 600


@pytest.mark.parametrize("value", [DIGITS, DEEP, "2026-02-31"])
def test_a_value_that_cannot_be_held_is_refused_on_the_command_line(
    source: Path, tmp_path: Path, value: str
) -> None:
    words = ("score", source, "--out", tmp_path / "out", "--local", "--metrics", "f1")
    shown = invoke(*words, "--set", f"f1.language={value}", expect=2)
    assert "--set f1.language: it " in shown and value not in shown


def test_a_number_of_400_digits_is_no_complexity(source: Path, tmp_path: Path) -> None:
    """It is an integer of Python, and no float: OverflowError."""
    words = ("score", source, "--out", tmp_path / "out", "--local", "--metrics", "naco")
    invoke(*words, "--set", f"naco.expected_complexity={'9' * 400}", expect=2)


def test_values_are_not_quoted(tmp_path: Path) -> None:
    """A secret in the wrong place would stand in the log of a job."""
    secret = "sk-" + "0123456789" * 5
    path = tmp_path / "config.yaml"
    for content in (f"metrics: {{f1: {secret}}}", f"{secret}: [{secret}", f"a: *{secret}"):
        path.write_text(content)
        with pytest.raises(ConfigError) as failed:
            load_config(path=path)
        assert secret not in str(failed.value)
    with pytest.raises(ConfigError) as failed:
        parse_setting(secret)
    assert secret not in str(failed.value)


def test_ordinary_yaml_is_read_as_before() -> None:
    """A stricter loader must not read another value."""
    text = "a: 1\nb: [x, 2.5, null, true]\nc: {d: 'e'}\nf: 2026-01-31\ng: |\n  text\n"
    assert load_yaml(text)["b"] == ["x", 2.5, None, True]
    assert parse_setting("input.paths=*.parquet") == ("input.paths", "*.parquet")
    assert load_yaml("<<: {a: 1}\nb: 2") == {"a": 1, "b": 2}
    with pytest.raises(StrictYamlError, match="line 2, column 4"):
        load_yaml("a: &x 1\nb: *x")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/report.json"),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES), "out/report.json"),
        pa.ArrowInvalid("Parquet magic bytes not found"),
        RecursionError("maximum recursion depth exceeded"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        MemoryError(),
    ],
)
def test_what_the_world_does_is_one_line(
    error: Exception,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Full disks and damaged files ended in forty lines of this program's own."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(score_verb, "run_job", fail)
    words = ("score", source, "--out", tmp_path / "out", "--metrics", "f1", "--local")
    shown = invoke(*words, expect=1)
    assert type(error).__name__ in shown or "out/report.json: " in shown
    assert len(shown.splitlines()) == 1
    monkeypatch.setenv("QAEVAL_DEBUG", "1")
    assert CliRunner().invoke(app, [str(word) for word in words]).exception is error


def test_faults_of_this_program_still_show_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """A net for everything would hide them."""

    @caught
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        broken()


def test_a_failed_task_of_a_cluster_is_told_by_its_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its own text is the trace of another machine."""

    class TaskError(OSError):
        cause = OSError(errno.ENOSPC, "No space left on device", "families/x")

    @caught
    def broken() -> None:
        raise TaskError("ray::ScorePieces\n  File")

    with pytest.raises(SystemExit):
        broken()
    said = capsys.readouterr().err
    assert said.startswith("error: families/x: No space left on device (")
    assert said.endswith(" [QA0001]\n") and "ScorePieces" not in said


@pytest.mark.parametrize("n_bytes", [10, 300, 2_000])
def test_a_full_disk_is_one_line_and_leaves_no_half_file(
    tmp_path: Path, source: Path, n_bytes: int
) -> None:
    """What was half written kept the disk full."""
    out = tmp_path / "out"
    words = ("score", source, "--out", out, "--metrics", "f1,rouge_l", "--local")
    with full_disk(n_bytes):
        invoke(*words, "--set", "scoring.retry_storage_s=0", expect=1)
    assert not (out / "_SUCCESS").exists()
    assert list(out.rglob("*.tmp")) == []


def test_a_file_that_is_written_once_is_not_left_half(tmp_path: Path) -> None:
    with full_disk(10), pytest.raises(OSError, match="File too large"):
        files._write_exclusively(tmp_path / "new", b"x" * 1_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run.json", "report.json", "_SUCCESS", "plan.parquet"])
@pytest.mark.parametrize("content", [b"[1]", b"{}", b'{"families": 7}'])
def test_damaged_records_of_a_run_end_in_no_traceback(
    tmp_path: Path, source: Path, name: str, content: bytes
) -> None:
    """Eight of thirteen did; the scores are written anew from what is committed."""
    out = tmp_path / "out"
    given: dict[str, object] = {
        "input.paths": [str(source)],
        "output.path": str(out),
        "metrics.f1.metric": "f1",
    }
    run_locally(given)
    (out / name).write_bytes(content)
    if name != "plan.parquet":
        assert read_json(out / name) in (None, {}, {"families": 7})
    words = ("explain", out, "--row", "in.parquet:0")
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exception is None or isinstance(shown.exception, SystemExit), shown.exception
    outcome, _ = run_locally(given)
    assert outcome.report is not None and outcome.report["rows"] == 2


def test_a_reader_that_has_seen_enough_gets_no_traceback(source: Path) -> None:
    """`qaeval metrics | head -1` complained of a broken pipe."""
    code = "import sys; from qaeval.cli import main; sys.argv = ['qaeval', 'metrics']; main()"
    done = subprocess.run(
        ["sh", "-c", f'{sys.executable} -c "{code}" | head -c 1'],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
