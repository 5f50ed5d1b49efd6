"""qaeval audit as people and cron run it: exit codes, files, and what it does when things break."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from audit_weeks import N_ROWS, a_table, audited, week
from helpers import REPOSITORY, qaeval, start_qaeval
from qaeval_core.audit.profile_folder import Runs
from qaeval_core.profile.run_profile import METADATA
from qaeval_core.storage import checksums
from qaeval_core.store.store import Store
from ray_head import running_head
from scoring.test_page import assert_stands_alone


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with out1, out2 like it, and out3, spoiled in one slice."""
    folder = tmp_path_factory.mktemp("weeks")
    week(folder, 1)
    week(folder, 2)
    week(folder, 3, spoiled="bay")
    return folder


def profiles(folder: Path) -> list[Path]:
    return sorted((folder / "history").glob("*.profile.parquet"))


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_exit_code_of_the_real_command(weeks: Path, tmp_path: Path) -> None:
    given = ["--history", tmp_path / "history", "--to", tmp_path / "report"]
    report = tmp_path / "report" / "audit.json"
    said = qaeval("audit", weeks / "out1", *given, "--by", "topic", expect=1)
    assert "first_run: nothing to compare" in said
    assert json.loads(report.read_text())["status"] == "first_run"
    said = qaeval("audit", weeks / "out2", *given)
    assert "ok: no alert in" in said
    said = qaeval("audit", weeks / "out3", *given, expect=3)
    assert "alert: the mean of f1 in topic=bay fell from" in said
    assert qaeval("audit", weeks / "out2", *given, "--watch", "f1_recal", expect=2).startswith(
        "error: --watch: no column 'f1_recal'; did you mean 'f1_recall'?"
    )


def test_a_spoiled_slice_is_named_and_others_are_not(weeks: Path, tmp_path: Path) -> None:
    content, _ = audited(weeks / "out1", tmp_path, "--by", "topic", "--pin")
    assert content["status"] == "first_run" and content["reference"] is None
    content, _ = audited(weeks / "out2", tmp_path)
    assert content["status"] == "ok" and content["alerts"] == []
    content, _ = audited(weeks / "out3", tmp_path, expect=3)
    assert content["status"] == "alert"
    slices = {alert["slice"] for alert in content["alerts"]}
    assert "topic=bay" in slices and slices <= {"", "topic=bay"}
    assert [row["alert"] for row in content["tests"]] == sorted(
        (row["alert"] for row in content["tests"]), reverse=True
    )
    assert content["reference"]["id"] == profiles(tmp_path)[0].name.partition(".profile")[0]
    assert content["run"]["rows"] == N_ROWS and content["run"]["cluster"] == "context"
    assert content["run"]["clusters"] == N_ROWS // 5
    table = pl.read_parquet(tmp_path / "report" / "audit.parquet")
    assert table.to_dicts() == content["tests"]
    # The effect is that of the scores themselves.
    means = [
        pl.read_parquet(weeks / name / "scores").filter(topic="bay")["f1"].mean()
        for name in ("out1", "out3")
    ]
    own = table.filter(column="f1", slice="topic=bay", statistic="mean")
    assert own["reference"].item() == pytest.approx(means[0], abs=1e-6)
    assert own["current"].item() == pytest.approx(means[1], abs=1e-6)
    content, _ = audited(weeks / "out3", tmp_path, "--warn-only")
    assert content["status"] == "alert"
    assert len(profiles(tmp_path)) == 3


def test_the_slice_without_which_nothing_moved_is_the_cause(weeks: Path, tmp_path: Path) -> None:
    """Who has the rows asks an audit of the others: it says what was claimed of them."""
    audited(weeks / "out1", tmp_path, "--by", "topic", "--pin", "--name", "2026-W01")
    content, said = audited(weeks / "out3", tmp_path, "--name", "2026-W03", expect=3)
    claim, runs = content["cause"], "2026-W03 (2023-12-05) against 2026-W01 (2023-11-21)"
    assert (claim["by"], claim["slice"], claim["not_apart"]) == ("topic", "topic=bay", [])
    assert claim["text"] == "only topic=bay moved; without it nothing did"
    n_alerts, n_tests = len(content["alerts"]), len(content["tests"])
    first = f"alert: {claim['text']}: {n_alerts} alerts in {n_tests} tests of {runs}"
    assert first in said.splitlines()
    lines = [line for line in said.splitlines() if line.startswith("alert: the ")]
    assert len(lines) == len(claim["columns"]) == 3 < n_alerts
    page = (tmp_path / "report" / "audit.html").read_text()
    assert page.count(">Only topic=bay moved; without it nothing did</h1>") == 1
    link = os.path.relpath(weeks / "out3" / "report.html", tmp_path / "report")
    assert f'<a href="{link}">' in page and "qaeval audit · 2026-W03" in page
    assert content["made"]["name"] == content["run"]["name"] == "2026-W03"
    assert content["run"]["id"].startswith("20231205T") and content["run"]["id"] not in said
    without = (pl.col("topic") != "bay", tmp_path / "without")
    for number, spoiled in ((1, None), (3, "bay")):
        week(without[1], number, table=a_table(number, spoiled=spoiled).filter(without[0]))
    audited(without[1] / "out1", without[1], "--by", "topic", "--pin")
    left, _ = audited(without[1] / "out3", without[1])
    assert left["status"] == "ok" and left["cause"] is None


def test_two_spoiled_slices_have_no_cause_and_names_of_runs(weeks: Path, tmp_path: Path) -> None:
    week(tmp_path, 4, spoiled="bay cod")
    audited(weeks / "out1", tmp_path, "--by", "topic", "--pin")
    content, said = audited(tmp_path / "out4", tmp_path, expect=3)
    assert content["cause"] is None and "only" not in said.partition("report:")[0]
    assert {"topic=bay", "topic=cod"} <= {alert["slice"] for alert in content["alerts"]}
    # Without --name it is that of the folder; a line for each column, and no more.
    assert "out4 (2023-12-12) against out1 (2023-11-21)" in said
    assert len([line for line in said.splitlines() if line.startswith("alert: the ")]) == 3
    without = tmp_path / "without"
    for number, spoiled in ((1, None), (4, "bay cod")):
        table = a_table(number, spoiled=spoiled).filter(pl.col("topic") != "bay")
        week(without, number, table=table)
    audited(without / "out1", without, "--by", "topic", "--pin")
    audited(without / "out4", without, expect=3)


def test_a_page_shows_the_verdict_and_rows(weeks: Path, tmp_path: Path) -> None:
    def page() -> str:
        return (tmp_path / "report" / "audit.html").read_text()

    question = pl.read_parquet(weeks / "source1" / "part0.parquet")["question"][0]
    assert question
    audited(weeks / "out1", tmp_path, "--pin", "--by", "topic", "--texts", "20")
    assert_stands_alone(page())
    assert "First run" in page() and "Lowest f1" in page()
    content, said = audited(weeks / "out3", tmp_path, expect=3)
    assert f"report: {tmp_path / 'report' / 'audit.html'}" in said
    assert_stands_alone(page())
    assert f">{len(content['alerts'])} alerts<" in page()
    assert "the mean of f1 in topic=bay fell" in page() and "quite another text" in page()
    audited(weeks / "out3", tmp_path, "--no-texts", "--warn-only")
    assert "Lowest f1" in page() and "quite another text" not in page()
    audited(weeks / "out3", tmp_path, "--no-texts", "--texts", "3", expect=2)


def test_a_page_without_the_input_says_why_it_shows_no_texts(tmp_path: Path) -> None:
    out = week(tmp_path, 1)
    shutil.rmtree(tmp_path / "source1")
    audited(out, tmp_path, "--pin", "--cluster", "topic")
    page = (tmp_path / "report" / "audit.html").read_text()
    assert "Without texts: the input of this run" in page and "Highest f1" in page


def test_prometheus_reads_the_gauges(weeks: Path, tmp_path: Path) -> None:
    topics = {"bay": 'b"a\\y\nz', "ash": "é"}
    for number in (1, 2):
        table = a_table(number, spoiled="bay" if number == 2 else None)
        table = table.with_columns(pl.col("topic").replace(topics))
        week(tmp_path, number, table=table)
    audited(tmp_path / "out1", tmp_path, "--by", "topic", "--pin")
    content, _ = audited(tmp_path / "out2", tmp_path, expect=3)
    text = (tmp_path / "report" / "audit.prom").read_text()
    # Exposition format 0.0.4: a backslash, quotes and line ends of labels are escaped.
    label = r'[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
    number = r"(?:-?\d+(?:\.\d+)?(?:e[+-]\d+)?)"
    sample = re.compile(rf"^([a-z_]+)\{{{label}(?:,{label})*\}} {number}$")
    lines = text.splitlines()
    names = {name for line in lines if not line.startswith("#") for name in [sample.match(line)[1]]}
    assert names >= {"qaeval_score_mean", "qaeval_score_undefined_share", "qaeval_audit_alerts"}
    assert {line.split()[2] for line in lines if line.startswith("# TYPE")} == names
    assert text.endswith("\n") and 'slice="topic=b\\"a\\\\y\\nz"' in text
    n_alerts = len(content["alerts"])
    assert f'qaeval_audit_alerts{{audit="history"}} {float(n_alerts)}\n' in text


def test_undefined_scores_raise_an_alert(tmp_path: Path) -> None:
    """Evidently and NannyML drop them before they test: 0 to 60 % is no drift there."""
    table = a_table(1).with_columns(pl.concat_list("reference"))
    week(tmp_path, 1, table=table)
    has_none = pl.int_range(N_ROWS) % 10 < 6
    none = pl.lit([], dtype=pl.List(pl.String))
    spoiled = pl.when(has_none).then(none).otherwise("reference")
    week(tmp_path, 2, table=table.with_columns(reference=spoiled))
    audited(tmp_path / "out1", tmp_path, "--pin")
    content, said = audited(tmp_path / "out2", tmp_path, expect=3)
    assert {"undefined"} <= {alert["kind"] for alert in content["alerts"]}
    assert "from 0.0% to 60.0%" in said
    assert "no_references" in said
    own = content["columns"]["f1"]
    assert own["undefined_by_reason"] == {"no_references": N_ROWS * 6 // 10}
    assert own["bounds"] == pytest.approx([own["mean"] * 0.4, own["mean"] * 0.4 + 0.6])


def test_a_run_that_is_not_complete_has_a_report(weeks: Path, tmp_path: Path) -> None:
    shutil.copytree(weeks / "out1", tmp_path / "out")
    (tmp_path / "out" / "_SUCCESS").unlink()
    content, said = audited(tmp_path / "out", tmp_path, expect=1)
    assert content["status"] == "incomplete" and "no _SUCCESS" in content["why"]
    assert "incomplete:" in said and not profiles(tmp_path)
    assert 'status="incomplete"} 1.0' in (tmp_path / "report" / "audit.prom").read_text()
    audited(weeks / "out2", tmp_path, "--pin")
    content, _ = audited(weeks / "out1", tmp_path, "--reference", tmp_path / "out", expect=1)
    assert content["status"] == "incomplete"
    assert "no run.json" in audited(tmp_path, tmp_path, expect=2)[1]


def test_references_as_people_name_them(weeks: Path, tmp_path: Path) -> None:
    spoiled, first = weeks / "out3", weeks / "out1"
    content, _ = audited(spoiled, tmp_path, "--reference", spoiled)
    assert content["status"] == "ok" and {row["effect"] for row in content["tests"]} == {0.0}
    content, _ = audited(spoiled, tmp_path, "--reference", first, expect=3)
    assert content["reference"]["id"] == str(first)
    audited(first, tmp_path / "other", "--pin")
    content, _ = audited(
        spoiled, tmp_path, "--reference", profiles(tmp_path / "other")[0], expect=3
    )
    assert content["reference"]["rows"] == N_ROWS
    said = audited(spoiled, tmp_path, "--reference", "pined", expect=2)[1]
    assert "did you mean 'pinned'" in said
    # Alone in its history it has no reference, whatever is asked for.
    assert audited(spoiled, tmp_path, expect=1)[0]["status"] == "first_run"
    assert audited(spoiled, tmp_path, "--reference", "last", expect=1)[0]["status"] == "first_run"
    audited(weeks / "out2", tmp_path, expect=3)
    content, _ = audited(weeks / "out2", tmp_path, "--reference", "pinned", expect=1)
    assert content["status"] == "incomplete" and "nothing is pinned" in content["why"]


def test_a_history_of_another_version_is_named(weeks: Path, tmp_path: Path) -> None:
    audited(weeks / "out1", tmp_path, "--pin")
    audited(weeks / "out2", tmp_path)
    for path in profiles(tmp_path):
        table = pq.read_table(path)
        metadata = {METADATA: table.schema.metadata[METADATA]}
        metadata[METADATA] = metadata[METADATA].replace(b'"version": 2', b'"version": 1')
        pq.write_table(table.replace_schema_metadata(metadata), path)
    pinned = tmp_path / "history" / "pinned.json"
    told = {**json.loads(pinned.read_text()), "sha256": sha256_of(profiles(tmp_path)[0])}
    pinned.write_text(json.dumps(told))
    content, _ = audited(weeks / "out3", tmp_path, expect=1)
    assert content["status"] == "incomplete"
    assert str(profiles(tmp_path)[0]) in content["why"] and "another version" in content["why"]
    # A reference that can be read does not need the others, but says that they are left out.
    content, _ = audited(weeks / "out3", tmp_path, "--reference", weeks / "out2", expect=1)
    (tmp_path / "history" / "pinned.json").unlink()
    profiles(tmp_path)[0].unlink()
    audited(weeks / "out1", tmp_path / "other", "--pin")
    content, _ = audited(
        weeks / "out3", tmp_path, "--reference", profiles(tmp_path / "other")[0], expect=3
    )
    assert any("skipped in the history" in note for note in content["notes"])


def test_a_pinned_reference_is_the_profile_that_was_pinned(weeks: Path, tmp_path: Path) -> None:
    """A copy of the run that alarmed, under the name of the pinned one, ended an audit for ever."""
    audited(weeks / "out1", tmp_path, "--pin")
    (pinned,) = profiles(tmp_path)
    audited(weeks / "out3", tmp_path, expect=3)
    (bad,) = set(profiles(tmp_path)) - {pinned}
    good = pinned.read_bytes()
    pinned.write_bytes(bad.read_bytes())
    content, _ = audited(weeks / "out3", tmp_path, expect=1)
    assert content["status"] == "incomplete" and "the file that was pinned" in content["why"]
    # Nor as a reference that nobody pinned: a profile says whose it is.
    pin = tmp_path / "history" / "pinned.json"
    pin.unlink()
    content, _ = audited(weeks / "out3", tmp_path, expect=1)
    assert f"is the profile of another run ({bad.name.partition('.')[0]}" in content["why"]
    pinned.write_bytes(good)
    audited(weeks / "out3", tmp_path, expect=3)


def test_a_reference_that_equals_the_run_is_told(weeks: Path, tmp_path: Path) -> None:
    shutil.copytree(weeks / "out1", tmp_path / "copy")
    audited(weeks / "out1", tmp_path, "--pin")
    content, said = audited(weeks / "out1", tmp_path, "--reference", tmp_path / "copy")
    (note,) = [note for note in content["notes"] if "has the same counts as this run" in note]
    assert f"note: {note}" in said
    content, _ = audited(weeks / "out2", tmp_path)
    assert not [note for note in content["notes"] if "has the same counts as this run" in note]


@pytest.mark.parametrize("kind", ["pipe", "endless", "large"])
def test_a_profile_that_is_none_holds_nobody_up(weeks: Path, tmp_path: Path, kind: str) -> None:
    """A pipe in a history hung the audit, and a link to /dev/zero took 6 GB."""
    for name in ("out1", "out2"):
        audited(weeks / name, tmp_path, *(["--pin"] if name == "out1" else []))
    path = tmp_path / "history" / "20200101T000000.000000Z-aaaaaaaaaaaa.profile.parquet"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    given = ["--history", tmp_path / "history", "--to", tmp_path / "report"]
    said = qaeval("audit", weeks / "out2", *given)
    assert "skipped in the history: " in said and "aaaaaaaaaaaa.profile.parquet is not" in said
    (tmp_path / "history" / "pinned.json").unlink()
    content, _ = audited(weeks / "out2", tmp_path, expect=1)
    assert content["status"] == "incomplete" and "is not a profile" in content["why"]


@pytest.mark.parametrize("broken", ["pinned.json", "profile", "gone"])
def test_a_reference_that_cannot_be_read_can_be_replaced(
    weeks: Path, tmp_path: Path, broken: str
) -> None:
    """What the error advises works: to pin another run."""
    audited(weeks / "out1", tmp_path, "--pin")
    (reference,) = profiles(tmp_path)
    pinned = tmp_path / "history" / "pinned.json"
    if broken == "gone":
        reference.unlink()
    else:
        path = pinned if broken == "pinned.json" else reference
        path.write_bytes(path.read_bytes()[:-9])
    content, said = audited(weeks / "out2", tmp_path, expect=1)
    assert content["status"] == "incomplete"
    assert "--pin makes this run the reference" in content["why"]
    content, said = audited(weeks / "out2", tmp_path, "--pin")
    assert content["status"] == "first_run" and content["notes"]
    assert f"note: {content['notes'][0]}" in said and str(tmp_path / "history") in said
    content, _ = audited(weeks / "out3", tmp_path, expect=3)
    assert content["reference"]["id"] == json.loads(pinned.read_text())["run"]
    assert content["reference"]["id"] == content["earlier_runs"][-1]


def test_slices_and_columns_come_and_go(tmp_path: Path) -> None:
    week(tmp_path, 1, f1="f1", rouge_l="rouge_l")
    table = a_table(2).filter(pl.col("topic") != "ash")
    table = pl.concat([table, table.with_columns(topic=pl.lit("new"))])[:N_ROWS]
    week(tmp_path, 2, table=table, f1="f1", meteor="meteor")
    audited(tmp_path / "out1", tmp_path, "--by", "topic", "--pin")
    content, _ = audited(tmp_path / "out2", tmp_path, expect=3)
    kinds = {(alert["kind"], alert["column"], alert["slice"]) for alert in content["alerts"]}
    assert ("slice_missing", "", "topic=ash") in kinds
    assert ("column_missing", "rouge_l", "") in kinds
    assert any("meteor is new" in note for note in content["notes"])
    assert any("topic=new is new" in note for note in content["notes"])
    assert content["signatures"]["meteor"]["reference"] is None


def test_a_run_without_score_columns_has_its_rows_audited(weeks: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        shutil.copytree(weeks / f"out{number}", tmp_path / f"out{number}")
        for path in (tmp_path / f"out{number}" / "scores").glob("*"):
            table = pq.read_table(path).slice(0, 450 if number == 1 else 100)
            table = table.replace_schema_metadata({checksums.KEY: checksums.PLACEHOLDER})
            with path.open("w+b") as file:
                sink = checksums.SealedFile(file)
                pq.write_table(table, sink)
                sink.seal()
    content, said = audited(tmp_path / "out1", tmp_path, "--cluster", "topic", "--pin")
    assert "no column is described as a score" in said and content["columns"] == {}
    content, _ = audited(tmp_path / "out2", tmp_path, expect=3)
    assert [alert["kind"] for alert in content["alerts"]] == ["rows"]


def test_turned_bits_in_the_scores_are_seen(weeks: Path, tmp_path: Path) -> None:
    shutil.copytree(weeks / "out1", tmp_path / "out")
    path = tmp_path / "out" / "scores" / "part1.parquet"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    found, _ = audited(tmp_path / "out", tmp_path, "--cluster", "topic", expect=1)
    assert found["status"] == "incomplete" and f"{path} is damaged" in found["why"]
    assert not profiles(tmp_path)


def test_without_the_input_another_cluster_is_offered(tmp_path: Path) -> None:
    out = week(tmp_path, 1)
    shutil.move(tmp_path / "source1", tmp_path / "moved")
    said = audited(out, tmp_path, "--cluster", "context", expect=2)[1]
    assert str(tmp_path / "source1") in said and "--cluster topic" in said and "--input" in said
    assert not profiles(tmp_path)
    content, _ = audited(out, tmp_path, "--input", tmp_path / "moved", "--pin")
    assert (content["run"]["cluster"], content["run"]["clusters"]) == ("context", N_ROWS // 5)
    said = audited(out, tmp_path, "--cluster", "topic", expect=2)[1]
    assert "has the clusters context" in said and "[QA0804]" in said
    content, _ = audited(out, tmp_path / "other", "--cluster", "topic", "--pin")
    assert content["run"]["clusters"] == 3 and not content["too_few"]
    content, said = audited(out, tmp_path / "other", expect=1)
    assert content["status"] == "too_few" and "fewer than 30 clusters" in said
    assert content["too_few"] and {row["status"] for row in content["tests"]} >= {"too_few"}
    content, _ = audited(out, tmp_path / "ids", "--cluster", "id", "--pin")
    assert content["run"]["clusters"] == pytest.approx(N_ROWS, rel=0.2)


def test_the_share_of_kept_rows_is_audited(weeks: Path, tmp_path: Path) -> None:
    words = ["--kept", "f1 >= 0.4", "--by", "topic"]
    audited(weeks / "out1", tmp_path, *words, "--pin")
    content, _ = audited(weeks / "out3", tmp_path, *words, expect=3)
    own = [row for row in content["tests"] if row["statistic"] == "kept" and not row["slice"]]
    scores = [pl.read_parquet(weeks / name / "scores")["f1"] for name in ("out1", "out3")]
    assert [own[0]["reference"], own[0]["current"]] == [(each >= 0.4).mean() for each in scores]
    assert ("kept", "topic=bay") in {(one["kind"], one["slice"]) for one in content["alerts"]}
    # Shares of two conditions say nothing of each other.
    content, _ = audited(weeks / "out2", tmp_path, "--kept", "f1 >= 0.1")
    assert not [row for row in content["tests"] if row["statistic"] == "kept"]
    assert any("only one of the two runs has kept.f1 >= 0.4" in note for note in content["notes"])


def test_settings_of_a_file(weeks: Path, tmp_path: Path) -> None:
    path = tmp_path / "audit.yaml"
    audited(weeks / "out1", tmp_path, "--pin")
    path.write_text("tolerances: {mean: 9, wasserstein: 9, psi: 9}\nalpha: 0.05\ndraws: 199\n")
    content, _ = audited(weeks / "out3", tmp_path, "--config", path)
    assert content["settings"]["draws"] == 199 and content["settings"]["alpha"] == 0.05
    for text, hint in (
        ("alhpa: 0.1", "unknown key 'alhpa'; did you mean 'alpha'?"),
        ("tolerances: {means: 1}", "no statistic 'means'; did you mean 'mean'? [QA0105]"),
        ("columns: {f1_recal: {mean: 1}}", "no such column is audited; did you mean 'f1_recall'"),
        ("columns: {f1: {mean: -1}}", "QA0104"),
        ("alpha: 0.001\ndraws: 99", "alpha is 0.001"),
        ("- 1", "must hold a mapping"),
    ):
        path.write_text(text)
        assert hint in audited(weeks / "out3", tmp_path, "--config", path, expect=2)[1]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--by", "topc"], "did you mean 'topic'"),
        (["--by", "topic", "--by", "topic"], "--by names 'topic' twice"),
        (["--cluster", "contxt"], "did you mean 'context'"),
        (["--watch", "topic"], "QA0306"),
        (["--kept", "f1_recal > 1"], "no column 'f1_recal'; did you mean 'f1_recall'"),
        (["--kept", "avg(f1) > 1"], "--kept"),
    ],
)
def test_bad_requests(weeks: Path, tmp_path: Path, words: list[str], hint: str) -> None:
    assert hint in audited(weeks / "out1", tmp_path, *words, expect=2)[1]
    assert not (tmp_path / "history").exists() and not (tmp_path / "report").exists()


@pytest.mark.parametrize("option", ["--history", "--to"])
def test_a_file_in_place_of_a_folder_is_named_by_its_option(
    weeks: Path, tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").touch()
    said = audited(weeks / "out1", tmp_path, option, tmp_path / "file", expect=2)[1]
    assert f"error: {option} {tmp_path / 'file'} is a file; name a folder [QA0111]" in said
    said = audited(weeks / "out1", tmp_path, option, "ftp://bucket/audits", expect=2)[1]
    assert "error: ftp://bucket: unknown kind of store" in said


@pytest.mark.parametrize("option", ["--history", "--to"])
def test_a_bucket_without_credentials_is_refused_at_once(
    weeks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Protects from a minute of trying what no time heals."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    # Who asks a machine for its role finds nobody there.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")
    # A bucket that nobody else opens in this process, where stores keep their credentials.
    said = audited(weeks / "out1", tmp_path, option, "s3://no-keys/audits", expect=2)[1]
    assert f"error: {option} s3://no-keys/audits: no credentials for s3://no-keys" in said


def test_slices_may_be_named_by_a_role(tmp_path: Path) -> None:
    table = a_table(1).rename({"context": "passage"}).with_columns(passage=pl.lit("the one"))
    own = {"table": table, "carry": ("topic", "passage"), "columns": {"context": "passage"}}
    out = week(tmp_path, 1, **own)
    said = audited(out, tmp_path, "--dry-run", "--by", "context", "--cluster", "topic")[1]
    assert "slices: passage; clusters: topic" in said


def test_a_dry_run_writes_nothing(weeks: Path, tmp_path: Path) -> None:
    said = audited(weeks / "out1", tmp_path, "--dry-run", "--by", "topic")[1]
    assert f"{N_ROWS:,} rows of 2 files, in 2 tasks" in said and "clusters: context" in said
    assert "reference: none: this would be a first run" in said
    assert not list(tmp_path.iterdir())


def test_two_audits_at_once_keep_both_profiles(weeks: Path, tmp_path: Path) -> None:
    given = ["--history", tmp_path / "history"]
    running = [
        start_qaeval("audit", weeks / f"out{i}", *given, "--to", tmp_path / f"report{i}", "--pin")
        for i in (1, 2)
    ]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    runs = Runs(Store(tmp_path / "history"))
    assert len(runs.ids()) == 2 and runs.pinned() in runs.ids()
    assert all(runs.read(run).rates["rows"][0].sum() == N_ROWS for run in runs.ids())


KILLED = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv.pop(1))
def dying(action):
    def act(*given, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return action(*given, **named)
    return act
for name in ("replace", "rename", "unlink"):
    setattr(Path, name, dying(getattr(Path, name)))
os.link = dying(os.link)
from qaeval.cli import main
main()
"""


def killed_at(number: int, out: Path, folder: Path) -> bool:
    """Run an audit that dies right before its N-th change of names; return whether it did."""
    words = ["audit", out, "--history", folder / "history", "--to", folder / "report", "--pin"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(number), *map(str, words)],
        capture_output=True, text=True, check=False,
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


def check_kill(weeks: Path, folder: Path, number: int) -> bool:
    audited(weeks / "out1", folder, "--pin")
    was_killed = killed_at(number, weeks / "out2", folder)
    runs = Runs(Store(folder / "history"))
    assert runs.pinned() in runs.ids()
    assert all(runs.read(run).rates["rows"][0].sum() == N_ROWS for run in runs.ids())
    assert json.loads((folder / "report" / "audit.json").read_text())["status"] in (
        "first_run",
        "ok",
    )
    audited(weeks / "out2", folder, "--pin")
    assert len(profiles(folder)) == 2
    return was_killed


@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_while_the_history_is_written_leaves_nothing_that_counts(
    weeks: Path, tmp_path: Path, number: int
) -> None:
    assert check_kill(weeks, tmp_path, number)


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_anywhere_leaves_nothing_that_counts(weeks: Path, tmp_path: Path, step: int) -> None:
    number = 1
    while check_kill(weeks, tmp_path / str(number), number):
        number += step
    assert number > 6


@pytest.mark.ray
@pytest.mark.long  # A cluster of its own, and jobs that start in it.
@pytest.mark.timeout(420)
def test_a_submitted_job_counts_the_same_on_ray(weeks: Path, tmp_path: Path) -> None:
    given = ["--history", tmp_path / "history", "--to", tmp_path / "report", "--address", "auto"]
    audit = ("python", "-m", "qaeval.cli", "audit")
    with running_head("token") as head:
        code, log = head.submit(*audit, weeks / "out1", *given, "--pin", "--by", "topic")
        assert code == 0, log
        code, log = head.submit(*audit, weeks / "out3", *given)
    # Ray makes 1 of every exit code but 0; that of the driver is in its message and the report.
    assert code != 0 and "exit code 3" in log, log
    assert json.loads((tmp_path / "report" / "audit.json").read_text())["status"] == "alert"
    audited(weeks / "out1", tmp_path / "here", "--pin", "--by", "topic")
    assert profiles(tmp_path)[0].read_bytes() == profiles(tmp_path / "here")[0].read_bytes()
