"""Headings: a page says what it is, how it was made, and where the pages beside it are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from helpers import qaeval
from qaeval_core.made import HowMade, date_shown
from qaeval_core.pages.heading import Tile, heading, link_to, report_links
from qaeval_core.terminal import COMMAND, SHOWN_NAME

ATTACK = "</code><b onclick=x>'\"&\u202e"


def test_a_heading_names_all_that_it_was_made_of() -> None:
    made = HowMade("2026-W03", "2026-01-18 06:00 UTC", f"qaeval score {ATTACK}", "1.2")
    shown = "".join(
        heading(
            "report",
            "9 rows",
            made,
            tiles=[Tile("Rows", "9", f"of {ATTACK}")],
            data=["a.parquet", ATTACK, "c", "d", "e"],
            links=[("Filter", "../kept/filter.html")],
        )
    )
    for own in ("qaeval report · 2026-W03", "2026-01-18 06:00 UTC", "qaeval 1.2", "2 more"):
        assert own in shown
    assert 'href="../kept/filter.html"' in shown
    assert "<b onclick" not in shown and "\u202e" not in shown


def test_what_is_not_known_is_left_out() -> None:
    shown = "".join(heading("report", "9 rows", HowMade.of(None, "out")))
    assert "qaeval report · out" in shown and "<dt>" not in shown


def test_what_others_wrote_of_a_run_breaks_no_page() -> None:
    """run.json may come from anybody: an audit reads a name from it, and a page shows it."""
    for content in (None, [], "x", 7, {}, {"name": None}):
        assert HowMade.of(content, "out").name == "out"
    long = HowMade.of({"name": "W" * 10**6, "command": ["x"]}, "out")
    assert len("".join(heading("report", "9 rows", long))) < 2_000 and len(long.tab("x")) < 5_000


def test_what_is_made_now_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the tests stands; that of users does not."""
    SHOWN_NAME.set("")  # A verb that ran in this process may have had one.
    assert HowMade.now("out") == HowMade(
        "out", "2026-01-01 00:00 UTC", COMMAND.get(), HowMade.now("").version
    )
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    before = datetime.now(UTC)
    shown = HowMade.now("out").date
    assert date_shown(before) <= shown <= date_shown(datetime.now(UTC))
    token = SHOWN_NAME.set("2026-W03")
    try:
        assert HowMade.now("out").name == "2026-W03"
    finally:
        SHOWN_NAME.reset(token)
    assert HowMade.of(HowMade.now("out").content(), "other") == HowMade.now("out")


def test_only_reports_that_are_there_are_linked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "report.html").touch()
    outs = {"A": tmp_path / "a", "table": tmp_path / "b.parquet", "bucket": "s3://b/out", "-": "-"}
    assert report_links(tmp_path / "c" / "x.html", outs) == [("A", "../a/report.html")]
    many = {f"{i}": tmp_path / "a" for i in range(500)}
    assert len(report_links(tmp_path / "x.html", many)) == 8


def test_links_are_relative_and_of_one_store(tmp_path: Path) -> None:
    assert link_to(tmp_path / "kept" / "filter.html", tmp_path / "out" / "report.html") == (
        "../out/report.html"
    )
    assert link_to("s3://b/kept/filter.html", "s3://b/out/report.html") == "../out/report.html"
    assert link_to("a #?.html", "b #?/c.html") == "b%20%23%3F/c.html"
    assert link_to("s3://b/filter.html", "s3://b/report.html") == "report.html"
    assert link_to("s3://b/kept/filter.html", "s3://other/out/report.html") is None
    assert link_to("s3://b/kept/filter.html", tmp_path / "report.html") is None


def test_a_name_that_nobody_can_read_is_refused(tmp_path: Path) -> None:
    """Neither an empty one, as of an unset variable, nor one that fills the page."""
    for name in ("", " ", "x" * 101):
        said = qaeval("score", "q.parquet", "--out", tmp_path / "out", "--name", name, expect=2)
        assert "'--name': it takes 1 to 100 characters" in said
    assert not (tmp_path / "out").exists()
