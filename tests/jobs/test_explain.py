"""``qaeval explain`` as people use it: rows without id, changed inputs, and errors that help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from helpers import run_locally, write_parquet
from qaeval.cli import app

ROWS = [
    {"id": "q1", "candidate": "the red barn", "references": ["a red barn", "the barn"]},
    {"id": "q2", "candidate": "1874", "references": ["in 1874"]},
    {"id": "q3", "candidate": "<b>twice</b>", "references": None},
    {"id": "q2", "candidate": "twice", "references": ["once"]},
]


def make_out(
    folder: Path, rows: list[dict[str, object]], metrics: tuple[str, ...] = ("f1", "cider")
) -> Path:
    """Score rows by words alone; return OUT."""
    source = write_parquet(folder / "data" / "input.parquet", pa.Table.from_pylist(rows))
    run_locally(
        {
            "input.paths": [str(source)],
            "output.path": str(folder / "out"),
            **{f"metrics.{name}.metric": name for name in metrics},
        }
    )
    return folder / "out"


def explain(*words: str | Path, expect: int = 0) -> str:
    """Run the verb in this process; return what it printed, errors too."""
    shown = CliRunner().invoke(app, ["explain", *(str(word) for word in words)])
    assert shown.exit_code == expect, shown.output
    return shown.output


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return make_out(tmp_path, ROWS)


def test_summary_page_and_json_of_a_row(out: Path, tmp_path: Path) -> None:
    """Protects from a page or file that is asked for and not written."""
    page, data = tmp_path / "new" / "q1.html", tmp_path / "q1.json"
    shown = explain(out, "--id", "q1", "--html", page, "--json", data)
    assert "row 'q1': input.parquet, row 0" in shown
    assert "candidate: the red barn" in shown
    assert "f1: f1 1.0000" in shown
    assert "values equal the stored ones" in shown
    assert "the red barn" in page.read_text(encoding="utf-8")
    content = json.loads(data.read_text(encoding="utf-8"))
    assert content["is_equal"] is True
    assert content["texts"]["references"] == ["a red barn", "the barn"]
    assert [instance["name"] for instance in content["instances"]] == ["f1", "cider"]


def test_several_rows_have_pages_that_lead_to_each_other(out: Path, tmp_path: Path) -> None:
    """Who looks for what is wrong with a metric walks through its worst rows."""
    page, data = tmp_path / "pages" / "rows.html", tmp_path / "rows.json"
    words = ("--id", "q1", "--row", "input.parquet:3", "--id", "q3", "--name", "March")
    shown = explain(out, *words, "--html", page, "--json", data)
    names = ["rows.html", "rows-2.html", "rows-3.html"]
    assert [shown.count(f"page: {page.with_name(own)}") for own in names] == [1, 1, 1]
    texts = [page.with_name(own).read_text("utf-8") for own in names]
    assert [own["id"] for own in json.loads(data.read_text("utf-8"))] == ["q1", "q3", "q2"]
    links = [dict(re.findall('<a href="([^"#]+)">([^<]*)</a>', own)) for own in texts]
    report = {"../out/report.html": "Report of the run"}
    assert links == [
        {"rows-2.html": "Next row: q3", **report},
        {"rows.html": "Previous row: q1", "rows-3.html": "Next row: q2", **report},
        {"rows-2.html": "Previous row: q3", **report},
    ]
    assert all("qaeval explain · March" in own for own in texts)


def test_the_rows_of_lowest_score_are_those_of_the_report(out: Path, tmp_path: Path) -> None:
    report = json.loads((out / "report.json").read_text("utf-8"))
    lowest = [own["row"] for own in report["examples"]["f1"]["lowest"]]
    explain(out, "--lowest", "f1", "--json", tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text("utf-8"))
    assert [own["row"] for own in rows] == lowest and len(rows) == 3
    wrong = explain(out, "--lowest", "f2", expect=2)
    assert "choose one of: cider, f1, f1_precision" in wrong and "[QA0105]" in wrong
    for broken in ({"examples": 3}, {"instances": ["f1"], "columns": {}, "examples": {"f1": {}}}):
        (out / "report.json").write_text(json.dumps(broken))
        assert "[QA0514]" in explain(out, "--lowest", "f1", expect=2)
    (out / "report.json").unlink()
    assert "[QA0" in explain(out, "--lowest", "f1", expect=2)


def test_a_wrong_id_and_a_repeated_one_are_answered(out: Path) -> None:
    """Protects from an explanation of another row than was meant."""
    assert "the nearest are 'q1'" in explain(out, "--id", "qq1", expect=2)
    twice = explain(out, "--id", "q2", expect=2)
    assert "--row input.parquet:1" in twice and "--row input.parquet:3" in twice
    assert "candidate: twice" in explain(out, "--row", "input.parquet:3")


def test_rows_without_an_id_have_one_by_file_and_number(tmp_path: Path) -> None:
    """Protects from inputs without ids that cannot be explained at all."""
    rows = [{key: row[key] for key in ("candidate", "references")} for row in ROWS]
    out = make_out(tmp_path, rows)
    by_id = explain(out, "--id", "input.parquet#1")
    assert by_id == explain(out, "--row", "input.parquet:1")
    assert "candidate: 1874" in by_id


def test_a_quarantined_row_says_why(out: Path, tmp_path: Path) -> None:
    """Protects from a stack trace where there is nothing to compute."""
    shown = explain(out, "--id", "q3", "--html", tmp_path / "q3.html")
    assert "quarantined: null_references (column 'references': the value is null)" in shown
    assert "&lt;b&gt;twice" in (tmp_path / "q3.html").read_text(encoding="utf-8")


def test_one_instance_is_computed_again_and_the_others_shown(out: Path, tmp_path: Path) -> None:
    """Protects from loading a large model to explain a lexical metric."""
    explain(out, "--id", "q1", "--instance", "cider", "--json", tmp_path / "q1.json")
    content = json.loads((tmp_path / "q1.json").read_text(encoding="utf-8"))
    compared = {
        line["column"]: line["is_compared"]
        for instance in content["instances"]
        for line in instance["scores"]
    }
    assert compared == {"f1": False, "f1_precision": False, "f1_recall": False, "cider": True}
    assert "did you mean 'cider'" in explain(out, "--id", "q1", "--instance", "cidr", expect=2)


def test_a_changed_input_is_found_and_named(tmp_path: Path) -> None:
    """Protects from explaining a text that was never scored."""
    out = make_out(tmp_path, ROWS, metrics=("f1", "exact_match"))
    rows = [dict(row) for row in ROWS]
    rows[0]["candidate"] = "the red barn door"
    write_parquet(tmp_path / "data" / "input.parquet", pa.Table.from_pylist(rows))
    shown = explain(out, "--id", "q1", expect=1)
    assert "values differ from the stored ones" in shown
    assert "f1 0.8 now, 1 stored" in shown
    assert "input.parquet changed since the run" in shown
    # Another row of that file is as it was: it is explained, with a word about the file.
    assert "was rewritten since the run" in explain(out, "--row", "input.parquet:3")


def test_a_changed_corpus_is_named(out: Path, tmp_path: Path) -> None:
    """Protects from CIDEr by the document frequencies of another corpus."""
    write_parquet(tmp_path / "data" / "input.parquet", pa.Table.from_pylist(ROWS[:3]))
    shown = explain(out, "--id", "q1", expect=1)
    assert "is not what the run computed" in shown
    assert "input.parquet changed since the run" in shown


def test_an_input_that_is_gone_is_named(out: Path, tmp_path: Path) -> None:
    """Protects from a puzzle where an OUT was copied to another machine."""
    (tmp_path / "data" / "input.parquet").rename(tmp_path / "data" / "other.parquet")
    shown = explain(out, "--id", "q1", expect=2)
    assert "no such file or folder" in shown
    assert "relative paths start where it ran" in shown


def test_a_folder_without_a_finished_run_is_refused(out: Path, tmp_path: Path) -> None:
    """Protects from scores that another run is still writing."""
    assert "no run.json" in explain(tmp_path / "data", "--id", "q1", expect=2)
    (out / "_SUCCESS").unlink()
    assert "is not complete" in explain(out, "--id", "q1", expect=2)
