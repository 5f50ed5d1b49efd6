"""Tables of results: the same numbers in every format, and signs that no format misreads."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from qaeval_core.errors import ConfigError
from qaeval_core.pages.printed import FORMATS, Estimate, ResultTable, check_format, printed

TABLE = ResultTable(
    "scores",
    ("system", "f1", "p", "n"),
    [
        ["a|b_c & 5 %", Estimate(0.48512, 0.4519, 0.5183, mark="*"), 0.0123456, 1300],
        ["line\nbreak", Estimate(0.5), None, 2],
        ["none", Estimate(None), float("nan"), 0],
    ],
    title="Scores",
    remarks=("p is corrected",),
)


def test_markdown_has_one_cell_a_column() -> None:
    lines = printed([TABLE], "markdown").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 5
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert r"a\|b_c & 5 %" in rows[2] and "0.485 [0.452, 0.518]*" in rows[2]
    assert "line break" in rows[3]
    assert lines[0] == "**Scores**" and lines[-1] == "p is corrected" and lines[-2] == ""


def test_latex_escapes_signs_and_has_rules_of_booktabs() -> None:
    text = printed([TABLE], "latex", percent=True, width=1)
    lines = text.splitlines()
    assert lines[0] == "% Scores" and lines[-1] == "% p is corrected"
    body = [line for line in lines if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [3] * 4
    assert r"a|b\_c \& 5 \%" in text and "48.5 [45.2, 51.8]*" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrr}"):
        assert rule in text


@pytest.mark.parametrize(("percent", "factor"), [(False, 1), (True, 100)])
def test_json_and_csv_have_plain_numbers(percent: bool, factor: int) -> None:
    rows = json.loads(printed([TABLE], "json", percent=percent))["scores"]["rows"]
    assert rows[0] == {
        "system": "a|b_c & 5 %", "f1": pytest.approx(0.48512 * factor),
        "f1_low": pytest.approx(0.4519 * factor), "f1_high": pytest.approx(0.5183 * factor),
        "p": 0.0123456, "n": 1300,
    }  # fmt: skip
    assert rows[2]["f1"] is None and rows[2]["p"] is None
    found = list(csv.DictReader(io.StringIO(printed([TABLE], "csv", percent=percent))))
    assert [list(row) for row in found] == [list(rows[0])] * 3
    assert float(found[0]["f1"]) == pytest.approx(0.48512 * factor)
    assert found[1]["system"] == "line\nbreak" and found[2]["f1"] == ""


def test_decimals_follow_the_interval_or_the_width() -> None:
    table = ResultTable("t", ("x",), [[Estimate(0.123456789, 0.1234, 0.1235)]])
    assert "0.123457 [0.123400, 0.123500]" in printed([table], "text")
    assert "0.12 [0.12, 0.12]" in printed([table], "text", width=2)
    other = ResultTable("t", ("ppl",), [[Estimate(12.5, is_share=False)]])
    assert "12.500" in printed([other], "text", percent=True)


def test_an_unknown_format_is_named_with_the_nearest() -> None:
    assert [check_format(name) for name in FORMATS] == list(FORMATS)
    with pytest.raises(ConfigError, match="QA0105"):
        check_format("latx")


def test_a_table_without_rows_has_its_head() -> None:
    empty = ResultTable("t", ("a", "b"), [])
    for form in ("text", "markdown", "latex", "csv"):
        assert "a" in printed([empty], form)


def test_headings_over_columns_are_spans_in_latex_and_words_elsewhere() -> None:
    row = ["a", Estimate(0.25), Estimate(0.5, 0.4, 0.6), Estimate(None)]
    over = ("", "is_fluent", "is_fluent", "50 %")
    table = ResultTable("t", ("metric", "pearson", "kendall", "p"), [row], over=over)
    lines = printed([table], "latex").splitlines()
    assert lines[2:5] == [
        r"\multicolumn{1}{c}{} & \multicolumn{2}{c}{is\_fluent} & \multicolumn{1}{c}{50 \%} \\",
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}",
        r"metric & $r$ & $\tau_b$ & p \\",
    ]
    for form in ("text", "markdown"):
        assert "is_fluent pearson" in printed([table], form)
    assert list(json.loads(printed([table], "json"))["t"]["rows"][0]) == [
        "metric", "is_fluent_pearson", "is_fluent_kendall", "is_fluent_kendall_low",
        "is_fluent_kendall_high", "50 %_p",
    ]  # fmt: skip
    empty = ResultTable("t", table.head, [], over=over)
    assert printed([empty], "csv") == "metric,is_fluent_pearson,is_fluent_kendall,50 %_p"


def test_tables_of_csv_stand_apart_and_no_title_breaks_a_line() -> None:
    assert len(printed([TABLE, TABLE], "csv").split("\n\n")) == 2
    table = ResultTable("t", ("a",), [["<b"]], title="x<y\nz", remarks=("of\n<b>",))
    assert printed([table], "latex").splitlines()[0] == "% x<y z"
    assert printed([table], "markdown").splitlines()[0] == r"**x\<y z**"
    assert r"\<b " in printed([table], "markdown") and r"of \<b>" in printed([table], "markdown")
