"""filter.html: its numbers are those of the decisions, and it shows rows of whatever happened."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import polars as pl
import pytest

from filter_corpora import filtered, questions, scored
from helpers import qaeval
from qaeval_core import filter_table
from qaeval_core.filter.page import filter_page
from qaeval_core.filter.table import FilteredTable
from qaeval_core.made import HowMade
from scoring.test_page import ATTACK, assert_links_lead_nowhere_else, assert_stands_alone
from scoring.test_page import Page as Parsed

MADE = HowMade("2026-W03", "2026-01-18 06:00 UTC", "qaeval filter out", "1.0")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return scored(folder, 600, n_files=3)


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub("<.*?>", " ", page)))


def test_the_funnel_counts_every_row_once_in_the_order_of_stages(out: Path, tmp_path: Path) -> None:
    """From all rows to those kept, against the decisions of every row."""
    options = {"rules": "paper", "top_k": 3, "share": "50%", "rank_by": "f1"}
    found, _ = filtered(out, tmp_path / "kept", **options)
    page = filter_page(found.content, MADE)
    assert_stands_alone(page)
    decided = pl.read_parquet(tmp_path / "kept" / "decisions")
    counts = dict(decided["reason"].drop_nulls().value_counts().rows())
    assert {"too_short", "top_k", "share"} <= counts.keys()
    rules = ("too_short", "too_long", "answer_in_question", "answer_not_in_context")
    stages = {
        "rules": sum(counts.get(name, 0) for name in rules),
        **{name: counts[name] for name in ("duplicate", "top_k", "share") if name in counts},
    }
    left, expected = decided.height, [f"all rows: {decided.height:,} 100.0%"]
    for name, n in stages.items():
        left -= n
        own = f"after {name.replace('_', ' ')}: {left:,} {left / decided.height:.1%}"
        expected.append(f"{own} · {n:,} dropped")
    assert left == decided["kept"].sum()
    items = re.findall(r"<li>(.*?)</li>", page.partition('class="funnel"')[2].partition("</ol>")[0])
    assert [text_of(own).strip() for own in items] == expected
    shares = [float(own) for own in re.findall(r"--share:([\d.]+)", page)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(left / decided.height, abs=1e-4)


def test_bars_of_kept_and_dropped_stand_on_each_other(out: Path, tmp_path: Path) -> None:
    found, _ = filtered(out, tmp_path / "kept", share="40%", rank_by="f1")
    page = Parsed(filter_page(found.content, MADE))
    bars = [re.fullmatch(r"(kept|dropped), \S+ to \S+: ([\d,]+)", own) for own in page.titles]
    counts = {"kept": 0, "dropped": 0}
    for bar in filter(None, bars):
        counts[bar[1]] += int(bar[2].replace(",", ""))
    # Each chart stands there twice: for desks and for phones.
    defined = sum(found.content["histogram"]["dropped"])
    assert counts == {"kept": 2 * found.content["kept"], "dropped": 2 * defined}
    assert sum(title.startswith("cut 0.") for title in page.titles) == 4


def test_rows_of_each_reason_are_shown_and_what_duplicates_repeat(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "id": list("abcdef"),
            "question": [*["Who keeps the bees?"] * 3, "Who?", ATTACK, "Where do the bees live?"],
            "context": ["Ann keeps the bees in Oslo."] * 6,
            "answer": ["Ann", "Ann", "Ann", "Ann", "Ann", "Oslo"],
            "s": [0.5, 0.9, 0.4, 0.8, 0.7, None],
        }
    )
    found = filter_table(table, rank_by="s", near_duplicates="exact", top_k=2)
    reasons = found.content["reason_examples"]
    assert {name: [own["id"] for own in rows] for name, rows in reasons.items()} == {
        "undefined_s": ["f"], "duplicate": ["a", "c"], "top_k": ["e"],
    }  # fmt: skip
    repeated = [own["repeats"] for own in reasons["duplicate"]]
    assert repeated == [{"id": "b", "question": "Who keeps the bees?"}] * 2
    page = filter_page(found.content, MADE)
    assert_stands_alone(page)
    said = text_of(page)
    assert "duplicate: 2 of 2 rows" in said and "repeats b: Who keeps the bees?" in said
    assert "<mark>Ann</mark> keeps the bees" in page and "<mark>Oslo</mark>" in page


def test_rows_that_are_labeled_bad_and_kept_are_shown() -> None:
    """What the certificate allows for: whoever reads them sees what a precision of .8 is."""
    table = questions(400).with_columns(score=pl.int_range(pl.len()) / 400.0)
    good = [None if i % 2 else int(i % 10 > 0) for i in range(400)]
    labeled = table.with_columns(good=pl.Series(good, dtype=pl.Int8))
    given = {"rank_by": "score", "near_duplicates": "none", "precision": 0.6}
    found = filter_table(labeled, **given, labels="good", blank="ignore")
    kept = set(found.decisions.filter(pl.col("kept"))["id"])
    bad = [own for own, is_good in zip(table["id"], good, strict=True) if is_good == 0]
    expected = [own for own in bad if own in kept]
    told = found.content["bad_and_kept"]
    assert told["n"] == len(expected) > 20
    assert [own["id"] for own in told["rows"]] == expected[:20]
    page = filter_page(found.content, MADE)
    assert f"{len(expected):,} kept rows are labeled bad." in page
    assert "target 0.6" in page and "chosen share" in page and "kept share" in page


def large_filter() -> FilteredTable:
    """Return a filter of long texts, many columns and long names."""
    wide = {f"metric {i} {'W' * 80}": pl.int_range(pl.len()) / (i + 1) for i in range(300)}
    table = questions(300).with_columns(
        context=pl.lit('"<&>\u202e' * 20_000) + pl.col("id"),
        question=pl.col("question") + ATTACK * 400,
        **wide,
    )
    name = next(iter(wide))
    return filter_table(table, rank_by=name, near_duplicates="none", share=0.5)


def test_a_page_of_much_stays_small() -> None:
    """Below 2 MB, whatever the data."""
    found = large_filter()
    page = filter_page(found.content, MADE)
    assert len(page.encode()) < 2_000_000 and len(json.dumps(found.content)) < 2_000_000
    assert_links_lead_nowhere_else(Parsed(page).attributes)


def test_pages_beside_it_are_linked(out: Path, tmp_path: Path) -> None:
    """A sheet's page, and that of the scores; the name is the one that was given."""
    qaeval("filter", out, "--to", tmp_path / "kept", "--rank-by", "f1", "--label-sheet", "20")
    words = ["--rank-by", "f1", "--share", "0.5", "--name", "2026-W03", "--local"]
    qaeval("filter", out, "--to", tmp_path / "kept", *words)
    page = (tmp_path / "kept" / "filter.html").read_text()
    assert_stands_alone(page)
    assert "<title>2026-W03: qaeval filter</title>" in page
    addresses = re.findall(r'<a href="([^#"]+)"', page)
    assert len(addresses) == 2
    for address in addresses:
        assert (tmp_path / "kept" / address).is_file()
    assert "--name 2026-W03" in text_of(page)
