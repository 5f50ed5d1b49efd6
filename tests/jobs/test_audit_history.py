"""qaeval audit beside its history: what earlier runs say of the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit_weeks import a_table, audited, week
from qaeval_core.audit.profile_folder import Runs
from qaeval_core.store.store import Store


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with out1, out2 like it, and out3 and out4, spoiled in one slice."""
    folder = tmp_path_factory.mktemp("weeks")
    week(folder, 1)
    week(folder, 2)
    week(folder, 3, spoiled="bay")
    week(folder, 4, spoiled="bay")
    return folder


def test_a_column_that_is_not_watched_has_not_vanished(tmp_path: Path) -> None:
    """Of an OUT with two columns, watching one raised an alert for each other one."""
    week(tmp_path, 1, f1="f1", rouge_l="rouge_l")
    week(tmp_path, 2, f1="f1", rouge_l="rouge_l")
    audited(tmp_path / "out1", tmp_path, "--pin")
    for out in ("out1", "out2"):
        content, _ = audited(tmp_path / out, tmp_path, "--watch", "rouge_l")
        assert content["alerts"] == [] and list(content["columns"]) == ["rouge_l"]
        assert {row["column"] for row in content["tests"]} == {"", "rouge_l"}


def test_rows_are_compared_with_the_last_run(tmp_path: Path) -> None:
    """A corpus that grows by a tenth a week would alarm for ever against a pinned week."""
    for number, n_rows in enumerate((500, 570, 650, 740), start=1):
        week(tmp_path, number, table=a_table(number).head(n_rows))
    audited(tmp_path / "out1", tmp_path, "--pin")
    for number in (2, 3, 4):
        content, _ = audited(tmp_path / f"out{number}", tmp_path)
        (own,) = (row for row in content["tests"] if row["statistic"] == "rows")
        assert own["reference"] == {2: 500, 3: 570, 4: 650}[number]
    # Who names a reference asks about that one.
    content, _ = audited(tmp_path / "out4", tmp_path, "--reference", tmp_path / "out1", expect=3)
    assert [alert["kind"] for alert in content["alerts"]] == ["rows"]


def test_a_week_that_alarmed_says_nothing_of_the_next(weeks: Path, tmp_path: Path) -> None:
    """It widened what is usual, so that the next bad week was none; --pin takes it back in."""
    audited(weeks / "out1", tmp_path, "--pin")
    content, said = audited(weeks / "out3", tmp_path, expect=3)
    assert list((tmp_path / "history").glob("*.alert.json"))
    assert "% of years of weekly audits have a false alarm, at alpha 0.01" in said
    assert content["false_alarm_in_a_year"] == pytest.approx(1 - 0.99**52)
    # Neither a look at a column that is fine nor one beside another run takes it back in.
    audited(weeks / "out3", tmp_path, "--watch", "f1_precision", "--warn-only")
    audited(weeks / "out3", tmp_path, "--reference", weeks / "out3")
    assert list((tmp_path / "history").glob("*.alert.json"))
    audited(weeks / "out2", tmp_path, "--reference", weeks / "out3", expect=3)
    assert len(list((tmp_path / "history").glob("*.alert.json"))) == 1
    week(tmp_path, 4)
    content, _ = audited(tmp_path / "out4", tmp_path)
    assert len(content["earlier_runs"]) == 2  # out1 and out2
    assert any("1 alarmed runs; --pin accepts one" in note for note in content["notes"])
    audited(weeks / "out3", tmp_path, "--pin", expect=3)
    assert not list((tmp_path / "history").glob("*.alert.json"))
    content, _ = audited(tmp_path / "out4", tmp_path, "--reference", "last", "--warn-only")
    assert len(content["earlier_runs"]) == 3


def test_a_run_unlike_those_before_it_is_told(weeks: Path, tmp_path: Path) -> None:
    """Eight earlier runs of one mean: the next one is nowhere near."""
    audited(weeks / "out1", tmp_path, "--pin")
    runs = Runs(Store(tmp_path / "history"))
    for day in range(1, 8):
        runs.add(f"2020010{day}T000000.000000Z-{day:012x}", runs.read(runs.pinned() or ""))
    content, _ = audited(weeks / "out2", tmp_path)
    assert len(content["earlier_runs"]) == 8
    content, said = audited(weeks / "out3", tmp_path, expect=3)
    assert "unusual_run" in {alert["kind"] for alert in content["alerts"]}
    assert "after 9 earlier runs it is expected from" in said


def test_a_bad_week_does_not_hide_the_next_one(weeks: Path, tmp_path: Path) -> None:
    """One bad week among those that say what is usual widens it, until the next one is in it."""
    audited(weeks / "out1", tmp_path, "--pin")
    runs = Runs(Store(tmp_path / "history"))
    for day in range(1, 9):
        runs.add(f"2020010{day}T000000.000000Z-{day:012x}", runs.read(runs.pinned() or ""))

    def unusual(out: str) -> bool:
        content, _ = audited(weeks / out, tmp_path, expect=3)
        return any(alert["kind"] == "unusual_run" for alert in content["alerts"])

    assert unusual("out3") and unusual("out4")
    for mark in (tmp_path / "history").glob("*.alert.json"):
        mark.unlink()
    assert not unusual("out4"), "the bad week would not have hidden it"
