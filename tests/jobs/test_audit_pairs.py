"""qaeval audit --reference OUT: the rows that both runs have, value by value."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from audit_weeks import N_ROWS, a_table, audited, week
from helpers import run_locally
from qaeval_core.audit.paired import PairedColumn
from qaeval_core.audit.request import AuditRequest
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.shared_rows import Side, pair_runs
from qaeval_core.audit.source import open_source
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.running.range_executor import LocalRangeExecutor
from qaeval_core.storage import checksums
from qaeval_core.tables.finished_run import read_run

UNSEEN = "not_reproducible is not checked"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with out1, scored from source1."""
    folder = tmp_path_factory.mktemp("pairs")
    week(folder, 1)
    return folder


def changed(out: Path, copy: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Path:
    """Copy an OUT with other rows of scores, sealed as a run's own are; return the copy."""
    shutil.copytree(out, copy)
    for path in (copy / "scores").glob("*"):
        before = pq.read_table(path)
        metadata = {**(before.schema.metadata or {}), checksums.KEY: checksums.PLACEHOLDER}
        table = change(pl.DataFrame(pl.from_arrow(before))).to_arrow()
        with path.open("w+b") as file:
            sink = checksums.SealedFile(file)
            pq.write_table(table.replace_schema_metadata(metadata), sink)
            sink.seal()
    return copy


def in_pairs(content: dict[str, Any], name: str = "f1") -> dict[str, Any]:
    (own,) = [one for one in content["paired"]["columns"] if one["column"] == name]
    return own


def kinds(content: dict[str, Any]) -> set[str]:
    return {alert["kind"] for alert in content["alerts"]}


def test_a_copy_of_a_run_is_the_same_row_by_row(first: Path, tmp_path: Path) -> None:
    shutil.copytree(first / "out1", tmp_path / "copy")
    content, said = audited(tmp_path / "copy", tmp_path, "--reference", first / "out1")
    assert content["status"] == "ok" and content["alerts"] == []
    assert content["paired"]["share"] == 1.0
    assert f"in pairs: {N_ROWS} rows that both runs have" in said
    assert {one["column"] for one in content["paired"]["columns"]} == set(content["columns"])
    for own in content["paired"]["columns"]:
        assert (own["difference"], own["share_up"], own["share_down"]) == (0.0, 0.0, 0.0)
        assert own["n_same"] == own["n_both"] == N_ROWS
        assert own["largest"] == own["not_reproduced"] == []
    assert not any(UNSEEN in note for note in content["notes"])
    # A profile of the same run knows no rows, and nothing is said of them.
    content, _ = audited(first / "out1", tmp_path / "other", "--pin")
    assert content["paired"] is None
    week(tmp_path, 2)
    content, _ = audited(tmp_path / "out2", tmp_path / "other")
    assert content["paired"] is None and not any("pairs" in note for note in content["notes"])


def test_a_shift_that_samples_hide_is_seen_in_pairs(first: Path, tmp_path: Path) -> None:
    """Of 0.03 standard deviations, in every row, as of a file of scores that was edited."""
    shutil.copytree(first, tmp_path / "moved")
    out = tmp_path / "moved" / "out1"
    spread = pl.read_parquet(out / "scores")["f1"].std()
    shift = pl.col("f1") + 0.03 * spread
    other = changed(out, tmp_path / "other", lambda table: table.with_columns(f1=shift))
    (tmp_path / "audit.yaml").write_text("columns: {f1: {mean: 0.02, psi: 99}}")
    words = ["--reference", out, "--config", tmp_path / "audit.yaml", "--cluster", "id"]
    content, said = audited(other, tmp_path, *words, expect=3)
    assert kinds(content) == {"paired", "not_reproducible"}
    assert "f1 rose by" in said and f"on average of {N_ROWS} rows that both runs have" in said
    own = in_pairs(content)
    assert own["effect"] == pytest.approx(0.03, rel=1e-2) and own["share_up"] == 1.0
    assert own["low"] <= own["difference"] <= own["high"]
    # Half of another tolerance is no alert, however sure.
    (tmp_path / "audit.yaml").write_text("columns: {f1: {mean: 0.06, psi: 99}}")
    content, _ = audited(other, tmp_path, *words, expect=3)
    assert kinds(content) == {"not_reproducible"}


def test_a_value_that_nothing_explains_is_named(first: Path, tmp_path: Path) -> None:
    wrong = pl.when(pl.col("id") == "q7").then(pl.col("f1") + 0.5).otherwise(pl.col("f1"))
    none = pl.when(pl.col("id") == "q8").then(None).otherwise(pl.col("f1_recall"))
    other = changed(
        first / "out1",
        tmp_path / "other",
        lambda table: table.with_columns(f1=wrong, f1_recall=none),
    )
    content, said = audited(other, tmp_path, "--reference", first / "out1", expect=3)
    assert {(one["kind"], one["column"]) for one in content["alerts"]} == {
        ("not_reproducible", "f1"),
        ("not_reproducible", "f1_recall"),
    }
    assert f"1 of {N_ROWS} values of f1 differ" in said and "q7 was" in said
    assert "q8 was" in said and "is undefined" in said
    own = in_pairs(content)
    (found,) = own["not_reproduced"]
    assert found["id"] == "q7"
    assert found["current"] - found["reference"] == pytest.approx(0.5, abs=1e-6)
    own = in_pairs(content, "f1_recall")
    assert (own["n_vanished"], own["n_appeared"], own["n_both"]) == (1, 0, N_ROWS - 1)
    assert own["not_reproduced"][0]["current"] is None and own["largest"] == []
    page = (tmp_path / "report" / "audit.html").read_text()
    assert "Both runs have 100.0% of the rows" in page
    assert "Not reproduced: f1<" in page and "Largest changes of f1<" in page


def test_another_input_explains_another_value(first: Path, tmp_path: Path) -> None:
    """Scored again with other references in a tenth of the rows; the rest must be the same."""
    is_other = pl.int_range(N_ROWS) % 10 == 0
    reference = pl.when(is_other).then(pl.lit("ash")).otherwise("reference")
    week(tmp_path, 1, table=a_table(1).with_columns(reference=reference))
    content, _ = audited(tmp_path / "out1", tmp_path, "--reference", first / "out1", expect=3)
    assert "not_reproducible" not in kinds(content)
    own = in_pairs(content)
    assert (own["n_pairs"], own["n_same"]) == (N_ROWS, N_ROWS * 9 // 10)
    assert 0 < own["share_up"] + own["share_down"] <= 0.1
    # What a metric does not read explains nothing.
    other = changed(
        first / "out1",
        tmp_path / "other",
        lambda table: table.with_columns(f1=pl.lit(0.25, pl.Float32)),
    )
    table = a_table(1).with_columns(answer=pl.lit("another"))
    week(tmp_path / "again", 1, table=table)
    words = ["--reference", tmp_path / "again" / "out1"]
    content, _ = audited(other, tmp_path / "other_history", *words, expect=3)
    assert "not_reproducible" in kinds(content) and in_pairs(content)["n_same"] == N_ROWS


@pytest.mark.parametrize("what", ["gone", "changed"])
def test_without_the_input_it_is_said_what_is_not_looked_for(
    first: Path, tmp_path: Path, what: str
) -> None:
    out = week(tmp_path, 1)
    other = changed(
        out, tmp_path / "other", lambda table: table.with_columns(f1=pl.col("f1") + 0.1)
    )
    source = tmp_path / "source1"
    if what == "gone":
        source.rename(tmp_path / "moved")
    else:
        os.utime(source / "part1.parquet")
    words = ["--reference", out, "--cluster", "id"]
    content, _ = audited(other, tmp_path, *words, expect=3)
    assert "not_reproducible" not in kinds(content) and "paired" in kinds(content)
    (note,) = [note for note in content["notes"] if UNSEEN in note]
    assert ("changed since" if what == "changed" else str(source)) in note
    assert in_pairs(content)["n_same"] == 0


def test_runs_of_other_rows_have_no_pairs(first: Path, tmp_path: Path) -> None:
    for n_shared, n_paired in ((N_ROWS // 2 - 1, 0), (N_ROWS // 2, 1)):
        ids = pl.when(pl.int_range(N_ROWS) < n_shared).then("id").otherwise(pl.col("id") + "b")
        folder = tmp_path / str(n_shared)
        week(folder, 1, table=a_table(1).with_columns(id=ids))
        content, _ = audited(folder / "out1", folder, "--reference", first / "out1")
        assert content["paired"]["share"] == n_shared / N_ROWS
        assert bool(content["paired"]["columns"]) == n_paired


def test_ids_that_name_no_row_pair_nothing(tmp_path: Path) -> None:
    """Null and repeated ids, and values that are undefined on one side."""
    row = pl.int_range(N_ROWS)
    ids = pl.when(row < 10).then(None).when(row < 20).then(pl.lit("q20")).otherwise("id")
    table = a_table(1).with_columns(id=ids, reference=pl.concat_list("reference"))
    week(tmp_path, 1, table=table)
    none = pl.when(row.is_between(30, 34)).then(pl.lit([], pl.List(pl.String)))
    week(tmp_path, 2, table=table.with_columns(reference=none.otherwise("reference")))
    content, _ = audited(tmp_path / "out2", tmp_path, "--reference", tmp_path / "out1")
    own = in_pairs(content)
    assert (own["n_pairs"], own["n_both"]) == (N_ROWS - 21, N_ROWS - 26)
    assert (own["n_vanished"], own["n_appeared"], own["n_same"]) == (5, 0, N_ROWS - 26)
    assert content["paired"]["share"] == (N_ROWS - 21) / N_ROWS


def test_rows_without_ids_are_those_of_the_same_file(tmp_path: Path) -> None:
    table = a_table(1).drop("id")
    for number in (1, 2):
        week(tmp_path, number, table=table)
    shutil.copytree(tmp_path / "out1", tmp_path / "copy")
    content, _ = audited(tmp_path / "copy", tmp_path, "--reference", tmp_path / "out1")
    assert in_pairs(content)["n_same"] == N_ROWS
    # part0.parquet#17 of another file is another row.
    content, _ = audited(tmp_path / "out2", tmp_path / "b", "--reference", tmp_path / "out1")
    assert content["paired"] == {"share": 0.0, "columns": []}


def test_rows_out_of_a_sample_have_no_part(first: Path, tmp_path: Path) -> None:
    for n_groups in (60, 80):
        run_locally(
            {
                "metrics.f1.metric": "f1",
                "input.paths": [str(first / "source1")],
                "input.columns.references": "reference",
                "input.sample_groups": n_groups,
                "output.path": str(tmp_path / f"out{n_groups}"),
            }
        )
    content, _ = audited(tmp_path / "out80", tmp_path, "--reference", tmp_path / "out60")
    assert content["paired"]["share"] == 0.75 and in_pairs(content)["n_pairs"] == 300
    assert in_pairs(content)["n_same"] == 300 and "paired" not in kinds(content)


@pytest.mark.parametrize("rows_per_part", [1, 37, 150])
def test_parts_on_disk_find_the_same_pairs(first: Path, tmp_path: Path, rows_per_part: int) -> None:
    """However few rows are in hand at once: repeated ids, gaps, ties and values that differ."""
    row = pl.int_range(N_ROWS)
    table = a_table(1).with_columns(id=pl.when(row < 3).then(pl.lit("q3")).otherwise("id"))
    table = table.with_columns(
        reference=pl.when(row % 9 == 4).then(pl.lit("ash")).otherwise("reference")
    )
    week(tmp_path, 1, table=table.reverse())
    at = pl.int_range(pl.len())
    odd = pl.when(at % 50 == 7).then(None).when(at % 7 == 0).then(0.5).otherwise(pl.col("f1"))
    out = changed(
        tmp_path / "out1", tmp_path / "now", lambda own: own.with_columns(f1=odd.cast(pl.Float32))
    )
    before, now = (read_run(own) for own in (first / "out1", out))
    sides = [Side(own, open_source(own, AuditRequest())) for own in (before, now)]
    settings, told = AuditSettings(n_draws=99), []
    whole = pair_runs(*sides, settings, LocalRangeExecutor())
    parts = pair_runs(
        *sides, settings, LocalRangeExecutor(), rows_per_part=rows_per_part,
        tell=lambda *own: told.append(own),
    )  # fmt: skip
    assert (parts.share, parts.notes) == (whole.share, whole.notes)
    assert whole.columns[0].n_not_reproduced > 20 and len(told) > 10
    for own, same in zip(parts.columns, whole.columns, strict=True):
        for name in PairedColumn.__dataclass_fields__:
            found, value = getattr(own, name), getattr(same, name)
            if isinstance(value, float):  # Sums in another order have other last digits.
                assert found == pytest.approx(value, rel=1e-9, nan_ok=True)
            else:
                assert repr(found) == repr(value), "NaN is NaN"
    assert told[0][1] == 0 and told[-1] == ("matched pairs", 2 * N_ROWS, 2 * N_ROWS)


@pytest.mark.slow  # Two processes that load what they need.
def test_processes_find_the_same_pairs(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qaeval_core.running.range_executor._ROWS_FOR_PROCESSES", 0)
    run = read_run(first / "out1")
    side = Side(run, open_source(run, AuditRequest()))
    with contextlib.closing(LocalRangeExecutor(n_processes=2)) as executor:
        apart = pair_runs(side, side, AuditSettings(n_draws=99), executor)
    assert apart == pair_runs(side, side, AuditSettings(n_draws=99), LocalRangeExecutor())
    assert [own.n_same for own in apart.columns] == [N_ROWS] * 3


@pytest.mark.parametrize(
    ("metric", "device", "why"),
    [
        ("sas", "cuda", "on a GPU the last digits"),
        ("naco", "cpu", "a language model may give another reply"),
        ("sas", "cpu", ""),
        ("f1", "cuda", ""),
    ],
)
def test_what_need_not_be_the_same_is_not_called_so(
    first: Path, metric: str, device: str, why: str
) -> None:
    """The scores stay those of words: what matters is what the run says of itself."""
    run = read_run(first / "out1")
    settings = METRICS[metric].settings(metric=metric)
    config = run.config.model_copy(update={"metrics": {"f1": settings}})
    columns = {**run.columns, "context": "context", "answer": "answer"}
    own = replace(run, config=config, device=device, columns=columns)
    source = open_source(run, AuditRequest(watch=("f1",)))
    found = pair_runs(
        Side(own, source), Side(own, source), AuditSettings(n_draws=99), LocalRangeExecutor()
    )
    (note,) = found.notes or ("",)
    assert why in note and bool(why) == bool(note)
    assert found.columns[0].n_same == (0 if why else N_ROWS)


def awkward(number: int, value: float) -> pl.DataFrame:
    """Return a week whose columns are infinite here and there, of one value, and huge."""
    row = pl.int_range(N_ROWS)
    wild = pl.when(row % 9 == 0).then(np.inf).when(row % 9 == 1).then(-np.inf)
    return a_table(number).with_columns(
        wild=wild.otherwise(row % 7 / 7),
        one=pl.lit(value),
        huge=pl.when(row % 2 == 0).then(1.7e308).otherwise(-1.7e308),
    )


def test_infinities_and_columns_of_one_value_have_a_report(tmp_path: Path) -> None:
    names = ("wild", "one", "huge")
    week(tmp_path, 1, table=awkward(1, 3.0), carry=names)
    table = awkward(1, 4.0).with_columns(
        wild=pl.when(pl.col("id") == "q0").then(-np.inf).otherwise("wild"), huge=-pl.col("huge")
    )
    week(tmp_path, 2, table=table, carry=names)
    words = ["--watch", ",".join(names), "--cluster", "id", "--reference"]
    content, _ = audited(tmp_path / "out1", tmp_path, *words, tmp_path / "out1")
    assert content["status"] == "ok" and in_pairs(content, "wild")["n_both"] == N_ROWS
    content, said = audited(tmp_path / "out2", tmp_path, *words, tmp_path / "out1", expect=3)
    assert ("mean", "one") in {(alert["kind"], alert["column"]) for alert in content["alerts"]}
    own = in_pairs(content, "one")
    assert (own["difference"], own["effect"], own["share_up"]) == (1.0, 1.0, 1.0)
    assert in_pairs(content, "wild")["largest"] == [
        {"id": "q0", "reference": "inf", "current": "-inf"}
    ]
    assert in_pairs(content, "huge")["share_up"] == 0.5
    assert f"{UNSEEN} in wild, one, huge: it is not a score of these runs" in said


def test_fifty_thousand_slices_are_fifty_and_the_rest(first: Path, tmp_path: Path) -> None:
    def spread(table: pl.DataFrame) -> pl.DataFrame:
        """Return 25,000 values that stand there once each, and 100 more rows of each of 50."""
        many = table.sample(30_000, with_replacement=True, seed=0)
        row = pl.int_range(30_000)
        start = 0 if table["id"][0] == "q0" else 25_000
        topic = pl.when(row < 25_000).then(row + start).otherwise(row % 50)
        return many.with_columns(id=pl.format("{}.{}", topic, row), topic=topic.cast(pl.String))

    out = changed(first / "out1", tmp_path / "many", spread)
    (tmp_path / "audit.yaml").write_text("draws: 99\nalpha: 0.05\n")
    words = ["--by", "topic", "--cluster", "id", "--watch", "f1"]
    words += ["--config", str(tmp_path / "audit.yaml")]
    content, said = audited(out, tmp_path, *words, "--pin")
    note = "topic has more than 50 values; the 49,950 rows of the others are in the slice"
    assert f"note: {note} topic: other" in said
    content, _ = audited(out, tmp_path / "b", *words, "--reference", out)
    slices = {row["slice"] for row in content["tests"] if row["statistic"] == "mean"}
    assert len(slices) == 52 and {"topic=0", "topic=49", "topic: other"} <= slices
    assert any(note in own for own in content["notes"])
