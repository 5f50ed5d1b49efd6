"""Studies as tables that people paste: Markdown, LaTeX, JSON, CSV, percent and decimals."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from helpers import qaeval, read_scores, run_locally
from qaeval.cli import app
from study.test_pinned_study import write_tables

METRICS = ("f1", "rouge_l", "bleu_4", "meteor")
CRITERIA = ("fluency", "relevance", "answer_consistency")
COEFFICIENTS = ("pearson", "spearman", "kendall")
SYMBOLS = ("$r$", r"$\rho$", r"$\tau_b$")
PDFLATEX = shutil.which("pdflatex")

SMALL = (
    "--human rating,is_odd --metrics good,distance,flat --system system --auc rating>=4 "
    "--win-lose question --compare good,distance --subset near>2 --resamples 50"
)


def correlated(scores: str | Path, *words: str | Path, expect: int = 0) -> tuple[str, str]:
    """Run the command; return what it wrote to both outputs."""
    result = CliRunner().invoke(app, ["correlate", str(scores), *map(str, words)])
    assert result.exit_code == expect, result.output
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small table with a constant score, undefined values and a score where less is better."""
    return write_tables(tmp_path_factory.mktemp("small"))["scores"]


# Table 2 of the QRelScore paper, from the real data of QGEval


@pytest.fixture(scope="module")
def rated(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of 1,500 questions, with what people said of them."""
    out = tmp_path_factory.mktemp("rated") / "out"
    run_locally(
        {
            **{f"metrics.{name}.metric": name for name in METRICS},
            "input.paths": [str(shared_data / "qgeval" / "qgeval_squad.parquet")],
            "input.columns": {
                "candidate": "question", "references": "reference", "context": "passage",
            },
            "output.carry": list(CRITERIA),
            "output.path": str(out),
        }
    )  # fmt: skip
    return out


def independent(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return r, rho and tau-b by their definitions: sums, ranks counted, signs of all pairs."""

    def r(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        a, b = a - a.mean(), b - b.mean()
        return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))

    def ranks(a: NDArray[np.float64]) -> NDArray[np.float64]:
        below, equal = a[None] < a[:, None], a[None] == a[:, None]
        return np.asarray(below.sum(axis=1) + (equal.sum(axis=1) + 1) / 2, dtype=np.float64)

    sign_x, sign_y = (np.sign(a[:, None] - a[None]) for a in (x, y))
    untied = np.sqrt((sign_x != 0).sum() * float((sign_y != 0).sum()))
    return r(x, y), r(ranks(x), ranks(y)), float((sign_x * sign_y).sum() / untied)


def body_of(latex: str) -> list[list[str]]:
    """Return the cells below the rule of the head, of the first table."""
    rows = latex.split(r"\midrule")[1].split(r"\bottomrule", maxsplit=1)[0].strip().splitlines()
    assert all(row.endswith(r"\\") for row in rows)
    return [[cell.strip() for cell in row.removesuffix(r"\\").split("&")] for row in rows]


@pytest.mark.shared_data
def test_latex_has_table_2_of_a_paper_with_numbers_of_numpy(rated: Path, tmp_path: Path) -> None:
    """Every number is that of an independent computation, and every mark that of an interval."""
    words = ("--human", ",".join(CRITERIA), "--metrics", ",".join(METRICS), "--resamples", "200")
    latex, said = correlated(rated, *words, "--format", "latex", "--out", tmp_path / "study")
    assert "1,500 rows" in said and "correlate.html" in said
    assert all(line.startswith("%") or not line for line in outside_tables(latex))
    assert_form(latex, n_rows=len(METRICS), criteria=[own.replace("_", r"\_") for own in CRITERIA])
    rows = body_of(latex)
    assert [row[0] for row in rows] == [name.replace("_", r"\_") for name in METRICS]
    scores = read_scores(rated, "qgeval_squad.parquet")
    found = pl.read_parquet(tmp_path / "study" / "correlations.parquet")
    intervals = {
        (one["metric"], one["human"], one["coefficient"]): (one["low"], one["high"])
        for one in found.iter_rows(named=True)
    }
    n_checked = 0
    for metric, row in zip(METRICS, rows, strict=True):
        x = scores[metric].cast(pl.Float64).to_numpy()
        for i, criterion in enumerate(CRITERIA):
            y = scores[criterion].to_numpy()
            both = ~np.isnan(x) & ~np.isnan(y)
            expected = independent(x[both], y[both])
            for k, coefficient in enumerate(COEFFICIENTS):
                low, high = intervals[metric, criterion, coefficient]
                mark = "*" if low > 0 or high < 0 else ""
                assert row[1 + 3 * i + k] == f"{expected[k]:.3f}{mark}"
                n_checked += 1
    assert n_checked == 36
    assert "% * the 95 % interval leaves out 0" in latex
    assert "% 1,498 to 1,500 rows; rows without a score: rouge_l 2" in latex


def outside_tables(latex: str) -> list[str]:
    """Return the lines that are in no table."""
    return re.sub(r"\\begin\{tabular\}.*?\\end\{tabular\}", "", latex, flags=re.S).splitlines()


def assert_form(latex: str, *, n_rows: int, criteria: list[str]) -> None:
    """Raise unless the first table is balanced, has its rules, and as many cells as it says."""
    table = latex[: latex.index(r"\end{tabular}")]
    columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", table)
    assert columns and columns[1] == "l" + "r" * 3 * len(criteria)
    # Less what is escaped; dollars are those of the symbols.
    bare = re.sub(r"\\.", "", latex)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}")
    rules = [rf"\{name}" for name in ("toprule", "cmidrule", "midrule", "bottomrule")]
    assert [table.find(rule) for rule in rules] == sorted(table.find(rule) for rule in rules)
    top, head, *rows = [line for line in table.splitlines() if line.endswith(r"\\")]
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", top)]
    assert sum(spans) == len(columns[1])
    assert re.findall(r"\\multicolumn\{3\}\{c\}\{(.*?)\}", top) == criteria
    ends = [(2 + 3 * i, 4 + 3 * i) for i in range(len(criteria))]
    assert re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", table) == [
        (str(a), str(b)) for a, b in ends
    ]
    cells = [own.strip() for own in head.removesuffix(r"\\").split("&")]
    assert cells == ["metric", *SYMBOLS * len(criteria)]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [3 * len(criteria)] * n_rows


@pytest.mark.skipif(PDFLATEX is None, reason="no pdflatex in PATH; the form is tested without it")
def test_latex_compiles(small: str, tmp_path: Path) -> None:
    latex, _ = correlated(small, *SMALL.split(), "--format", "latex")
    text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{latex}"
    (tmp_path / "table.tex").write_text(text + "\n\\end{document}\n")
    subprocess.run(
        [str(PDFLATEX), "-interaction=nonstopmode", "-halt-on-error", "table.tex"],
        cwd=tmp_path, check=True, capture_output=True, timeout=120,
    )  # fmt: skip


# The same study in every format


def test_undefined_values_are_empty_cells_and_said(small: str) -> None:
    latex, _ = correlated(small, *SMALL.split(), "--format", "latex")
    assert_form(latex, n_rows=3, criteria=["rating", r"is\_odd"])
    rows = {row[0]: row[1:] for row in body_of(latex)}
    assert rows["flat"] == [""] * 6
    assert rows["distance (lower is better)"][0] == "-0.760*"
    assert "nan" not in latex.lower()
    assert "% undefined: flat (constant)" in latex
    assert "% rating: 54 to 57 rows; 3 rows without a rating left out" in latex
    assert "% no interval: fewer than 8 systems" in latex


def test_markdown_has_intervals_and_every_table(small: str) -> None:
    text, said = correlated(
        small, *SMALL.split(), "--forward-selection", "--format", "markdown", "--percent"
    )
    assert "81.4 [" in text and "note:" in said and "note:" not in text
    titles = re.findall(r"^\*\*(.*?)[,:]", text, re.M)
    assert set(titles) == {
        "segment level", "system level", "paired bootstrap", "AUC", "win-lose", "forward selection",
    }  # fmt: skip
    for table in text.split("**\n\n")[1:]:
        rows = [row for row in table.splitlines() if row.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    head = next(line for line in text.splitlines() if line.startswith("| A "))
    assert re.findall(r"(\w+) A - B", head) == list(COEFFICIENTS)


def rendered(markdown: str) -> str:
    """Return a page of Markdown, as a renderer with tables makes it."""
    library = pytest.importorskip("markdown_it")
    body = library.MarkdownIt("commonmark").enable("table").render(markdown)
    return f'<!doctype html><meta charset="utf-8"><body>{body}</body>'


def test_markdown_is_rendered_as_tables(small: str) -> None:
    """Signs of names and conditions are read as they are, and no cell is lost."""
    words = ("--human", "rating", "--metrics", "good,flat", "--subset", "near<2 or near>3")
    page = rendered(correlated(small, *words, "--resamples", "20", "--format", "markdown")[0])
    assert page.count("<table>") == 2 and page.count("<th ") == 2 * 4
    assert page.count("<td ") == 2 * 2 * 4 and "|" not in page
    assert "near&lt;2 or near&gt;3</strong>" in page
    assert "<p>undefined: flat (constant)</p>" in page


def test_json_and_csv_have_the_numbers_that_are_written(small: str, tmp_path: Path) -> None:
    """Each format has the values, intervals, counts and reasons of the Parquet tables."""
    words = [*SMALL.split(), "--out", tmp_path]
    text, _ = correlated(small, *words, "--forward-selection", "--format", "json")
    tables = json.loads(text, parse_constant=pytest.fail)  # NaN is no JSON, and no number.
    assert list(tables) == ["correlations", "comparisons", "auc", "win_lose", "forward_selection"]
    for name, table in tables.items():
        written = pl.read_parquet(tmp_path / f"{name}.parquet").to_dicts()
        assert len(table["rows"]) == len(written)
        for own, row in zip(table["rows"], written, strict=True):
            ends = {key.rpartition("_")[2]: key for key in own if re.search("_(low|high)$", key)}
            assert {**own, **{end: own[key] for end, key in ends.items()}} == {
                **row, **{key: own[key] for key in ends.values()},
            }  # fmt: skip
    first = correlated(small, *words, "--format", "csv")[0].split("\n\n")[0]
    rows = list(csv.DictReader(io.StringIO(first)))
    assert len(rows) * 6 == len(tables["correlations"]["rows"])
    by_place = {(own["level"], own["subset"], own["metric"]): own for own in rows}
    for one in tables["correlations"]["rows"]:
        own = by_place[one["level"], one["subset"], one["metric"]]
        start = f"{one['human']}_{one['coefficient']}"
        assert [own[start], own[f"{start}_low"], own[f"{start}_high"]] == [
            as_csv(one[key]) for key in ("value", "value_low", "value_high")
        ]
        for key in ("n", "n_undefined_metric", "n_undefined_human", "reason"):
            assert own[f"{one['human']}_{key}"] == as_csv(one[key])


def as_csv(value: Any) -> str:
    """Return a value as a cell."""
    return "" if value is None else str(value)


def test_percent_scales_what_lies_on_a_scale_and_nothing_else(small: str) -> None:
    words = [*SMALL.split(), "--forward-selection"]
    plain, percent = (
        json.loads(correlated(small, *words, "--format", "json", *more)[0])
        for more in ((), ("--percent",))
    )
    for name, key, factor in (
        ("correlations", "value_low", 100), ("comparisons", "value_a", 100), ("auc", "value", 100),
        ("win_lose", "share", 100), ("forward_selection", "mse", 1), ("correlations", "n", 1),
        ("comparisons", "p_value", 1),
    ):  # fmt: skip
        for a, b in zip(plain[name]["rows"], percent[name]["rows"], strict=True):
            assert b[key] == (None if a[key] is None else pytest.approx(a[key] * factor)), name


def test_text_honors_percent_and_width(small: str) -> None:
    text, _ = correlated(small, *SMALL.split(), "--percent", "--width", "2")
    row = next(line for line in text.splitlines() if line.startswith("  good  "))
    assert re.search(r"81\.38 \[\d\d\.\d\d, \d\d\.\d\d\]", row)
    assert "undefined (constant)" in text and "note:" in text


@pytest.mark.parametrize("words", [("--format", "latx"), ("--width", "-1"), ("--width", "two")])
def test_wrong_forms_are_one_line_before_anything_is_read(words: tuple[str, ...]) -> None:
    said = qaeval("correlate", "nowhere", "--human", "rating", *words, expect=2)
    assert len(said.splitlines()) == 1 and re.search(r"\[QA010[15]\]$", said.strip())
