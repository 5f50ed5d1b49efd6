"""What `score` and `report` print: one line a metric, and tables that are pasted or read."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import qaeval, write_parquet
from qaeval import cli
from qaeval_core.pages.printed import FORMATS

METRICS = "f1,bleu_4"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = pa.table({
        "candidate": ["a blue mill", "the Barn", "x", "two dogs", "old"],
        "references": [["the blue mill stands"], ["a barn"], ["y"], [], ["An old"]],
        "context": ["c1", "c1", "c2", "c3", "c3"],
    })  # fmt: skip
    return write_parquet(tmp_path_factory.mktemp("printed") / "answers.parquet", table)


@pytest.fixture(scope="module")
def out(source: Path) -> Path:
    """A finished run."""
    folder = source.parent / "out"
    qaeval("score", source, "--out", folder, "--metrics", METRICS, "--local")
    return folder


def streams(*words: str | Path) -> tuple[str, str]:
    """Return what a command prints as results, and what for people."""
    shown, said = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["qaeval", *map(str, words)])
        with contextlib.suppress(SystemExit):
            cli.main()
    return shown.getvalue(), said.getvalue()


def test_one_line_a_metric_and_its_signature_below(source: Path, out: Path) -> None:
    """People paste the line and what says how it was made."""
    shown = qaeval("score", source, "--out", out, "--metrics", METRICS, "--local")
    report = json.loads((out / "report.json").read_text())
    lines = shown.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("metric "))
    assert lines[first].split() == ["metric", "score", "n", "undefined", "corpus"]
    names = [line.split()[0] for line in lines[first + 1 : first + 7]]
    f1, bleu = (report["instances"][name]["readable"] for name in ("f1", "bleu_4"))
    assert names == ["f1", "f1_precision", "f1_recall", f1, "bleu_4", bleu]
    assert f1.startswith("f1|tok:squad|lang:en|refs:max|n:4|ci:sandwich/context|version:")
    mean = report["columns"]["f1"]["mean"]
    assert re.match(rf"f1 +{mean:.3f} \[.*\] +4 +1$", lines[first + 1].rstrip())
    assert "f1: 5 rows: 4 scored, 1 undefined (no_references 1 [QA1012])" in lines
    assert "intervals: 95 %, over 3 contexts" in lines


def test_rows_that_all_have_a_score_are_in_the_table_alone(source: Path, tmp_path: Path) -> None:
    """A line a metric, not two."""
    words = ["--metrics", "f1", "--local", "--limit", "3"]
    shown = qaeval("score", source, "--out", tmp_path / "out", *words)
    assert re.search(r"^f1 .* +3 +0$", shown, re.MULTILINE)
    assert "3 rows: 3 scored" not in shown


@pytest.mark.parametrize("verb", ["score", "report"])
def test_a_program_reads_nothing_but_the_table(verb: str, source: Path, out: Path) -> None:
    """Notes on standard output were no JSON."""
    words = ["report", out] if verb == "report" else [
        "score", source, "--out", out, "--metrics", METRICS, "--local"
    ]  # fmt: skip
    shown, said = streams(*words, "--format", "json")
    rows = json.loads(shown)["scores"]["rows"]
    own = json.loads((out / "report.json").read_text())
    f1 = own["columns"]["f1"]
    assert rows[0] == {
        "metric": "f1", "score": f1["mean"], "score_low": f1["interval_95"][0],
        "score_high": f1["interval_95"][1], "n": 4, "undefined": 1, "corpus": None,
        "signature": own["instances"]["f1"]["readable"],
    }  # fmt: skip
    assert "report.html" in said
    shown, _ = streams(*words, "--format", "csv", "--percent")
    first, *_ = csv.DictReader(shown.splitlines())
    assert float(first["score"]) == pytest.approx(100 * f1["mean"])
    assert first["signature"] == rows[0]["signature"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_is_printed_again_as_it_was(form: str, source: Path, out: Path) -> None:
    """Nothing is scored for another table of the same run."""
    words = ["--format", form, "--percent", "--width", "1"]
    given = ["score", source, "--out", out, "--metrics", METRICS, "--local"]
    (out / "report.html").unlink()
    again = qaeval("report", out, *words)
    assert (out / "report.html").exists()
    mean = json.loads((out / "report.json").read_text())["columns"]["f1"]["mean"]
    assert (f"{100 * mean:.1f}" in again) or form in ("json", "csv")
    table = [line for line in again.splitlines() if "page: " not in line]
    first = qaeval(*given, *words)
    assert "\n".join(table) in first


def test_quiet_prints_the_number_alone(source: Path, out: Path, tmp_path: Path) -> None:
    """A script takes it as it comes."""
    words = ["score", source, "--out", tmp_path / "out", "--metrics", "f1", "--local"]
    shown, said = streams(*words, "-q")
    assert re.fullmatch(r"0\.\d{3}\n", shown) and said == ""
    mean = json.loads((tmp_path / "out" / "report.json").read_text())["columns"]["f1"]["mean"]
    assert streams(*words, "--quiet", "--percent", "--width", "1")[0] == f"{100 * mean:.1f}\n"
    shown, said = streams("score", source, "--out", out, "--metrics", METRICS, "--local", "-q")
    assert shown.splitlines() == [f"f1\t{mean:.3f}", "bleu_4\t0.000"] and said == ""


def test_quiet_does_not_hide_what_went_wrong(source: Path, tmp_path: Path) -> None:
    """A run without one score has no number, and says why."""
    words = ["--out", tmp_path / "out", "--metrics", "f1", "--local", "-q"]
    said = qaeval("score", tmp_path / "none.parquet", *words, expect=2)
    assert said.startswith("error: no such file")
    table = pa.table({"candidate": ["a"], "references": pa.array([[]], pa.list_(pa.string()))})
    empty = write_parquet(tmp_path / "empty.parquet", table)
    said = qaeval("score", empty, *words, expect=1)
    assert said.splitlines()[0] == "nan" and "none of 1 rows has a score" in said


def test_numbers_that_are_no_shares_are_not_in_percent(tmp_path: Path) -> None:
    """CIDEr goes to 10, and 1,000 percent say nothing."""
    table = pa.table({
        "candidate": ["a blue mill stands here", "red barns are old now"],
        "references": [["a blue mill stands here"], ["red barns are old now"]],
    })  # fmt: skip
    source = write_parquet(tmp_path / "a.parquet", table)
    words = ["score", source, "--out", tmp_path / "out", "--metrics", "cider,f1", "--local", "-q"]
    shown = qaeval(*words, "--percent", "--width", "1").splitlines()
    cider = float(shown[0].removeprefix("cider\t"))
    assert 1 < cider <= 10 and shown[1] == "f1\t100.0"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--format", "latx"], "--format: no 'latx'; did you mean 'latex'? [QA0105]"),
        (["--format", "json", "-q"], "--quiet prints numbers alone; leave --format out [QA0102]"),
        (["--width", "-1"], "[QA0101]"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], told: str, source: Path, tmp_path: Path
) -> None:
    """Before any row is read."""
    given = ["score", source, "--out", tmp_path / "out", "--metrics", "f1", "--local"]
    said = qaeval(*given, *words, expect=2)
    assert told in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    if "-q" not in words:
        said = qaeval("report", tmp_path / "out", *words, expect=2)
        assert told in said and len(said.splitlines()) == 1
