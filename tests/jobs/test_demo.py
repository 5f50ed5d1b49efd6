"""The demo as a newcomer runs it: figures that are true, sentences that fit them, and its pace."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import psutil
import pytest

from helpers import wait_until
from qaeval.work.demo import next_steps
from qaeval_core.sample import hard_table, natural_table
from tools.picture import PICTURE, page_hash, source_of
from wall_clock import Report

COLUMNS = {"exact_match": "exact_match", "f1": "f1", "sas": "sas", "bertscore": "bertscore_f1"}
_LINE = re.compile(r"^   (\w+) +AUC (\d\.\d{3})   \S.*\.$", re.MULTILINE)


def commands(said: str) -> list[str]:
    """Return the commands that the demo ends with, but for that on the reader's own data."""
    lines = [line.strip() for line in said.splitlines()]
    return [line for line in lines if line.startswith("qaeval ") and "YOURS" not in line]


def scores_of(folder: Path, name: str) -> pl.DataFrame:
    return pl.read_parquet(folder / "demo_out" / name / "scores" / f"{name}.parquet")


def auc(scores: pl.DataFrame, column: str) -> float:
    """Return the share of pairs of a right and a wrong row that are in order; ties are halves."""
    right, wrong = (scores.filter(is_right=own)[column].to_list() for own in (1, 0))
    wins = [(a > b) + (a == b) / 2 for a in right for b in wrong]
    return sum(wins) / len(wins)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, artifacts_root: Path) -> tuple[Path, str]:
    """A folder with a finished demo, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "qaeval.cli", "demo"],
        cwd=folder, env={**os.environ, "QAEVAL_ARTIFACTS": str(artifacts_root)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_figures_are_those_of_the_scores(ran: tuple[Path, str]) -> None:
    folder, said = ran
    expected = [
        (metric, f"{auc(scores_of(folder, name), column):.3f}")
        for name in ("natural", "hard")
        for metric, column in COLUMNS.items()
    ]
    assert _LINE.findall(said) == expected
    assert said.index("Natural answers") < said.index("A small hard set")
    lines = said.rstrip().splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) < 100
    report = lines[-1].rpartition(" ")[2]
    assert (folder / report).read_text().startswith("<!doctype html>")


def test_the_picture_of_the_readme_is_of_this_page(ran: tuple[Path, str]) -> None:
    """Protects from a picture of a page that looks otherwise now."""
    page = (ran[0] / "demo_out" / "natural" / "report.html").read_text(encoding="utf-8")
    assert page_hash(page) == source_of(PICTURE), "make picture"
    # Its words and shapes count. Figures do not, nor bars, rows and machines that follow from them.
    assert page_hash(page.replace("0.3893", "0.3894")) == page_hash(page)
    bar = re.findall("<rect .*?</rect>", page)[9]
    for bars in ("", bar + bar):
        assert page_hash(page.replace(bar, bars)) == page_hash(page)
    assert page_hash(page.replace("<rect", "<g")) != page_hash(page)
    assert page_hash(page.replace("Linux", "Darwin")) == page_hash(page)
    assert page_hash(page.replace("scored", "done", 1)) != page_hash(page)
    assert page_hash(page.replace("max-width: ", "max-width: 1", 1)) != page_hash(page)


def test_sentences_fit_the_figures(ran: tuple[Path, str]) -> None:
    """A sentence beside a number that says otherwise is worse than none."""
    natural = scores_of(ran[0], "natural")
    hard = scores_of(ran[0], "hard").join(pl.from_arrow(hard_table()).select("id", "kind"), on="id")
    right, wrong = (natural.filter(is_right=own) for own in (1, 0))
    assert (right["exact_match"] == 0).mean() > 0.5
    assert auc(natural, "f1") > 0.95 and (wrong["f1"] > 0).mean() < 0.3
    assert auc(natural, "sas") > 0.85 and auc(natural, "bertscore_f1") > 0.9
    numbers = [*("p04-n1-w", "p14-n0-w", "p18-n1-w"), *("p06-n1-w", "p09-n1-w", "p01-n0-w")]
    assert wrong.filter(pl.col("id").is_in(numbers))["sas"].max() > 0.5
    by_kind = {
        column: dict(hard.group_by("kind").agg(pl.col(column).mean()).iter_rows())
        for column in COLUMNS.values()
    }
    assert hard.filter(pl.col("is_right") == 1, pl.col("kind") == "reworded").height > 83 / 2
    assert (hard.filter(is_right=1)["exact_match"] == 0).mean() > 0.5
    assert hard.filter(is_right=0)["exact_match"].sum() == 0
    assert auc(hard, "f1") < 0.45 and by_kind["f1"]["wrong"] > by_kind["f1"]["reworded"]
    assert by_kind["sas"]["number_changed"] > 0.6 > 2 * by_kind["sas"]["yes_no_flipped"]
    assert 0.45 < auc(hard, "bertscore_f1") < 0.55
    assert by_kind["bertscore_f1"]["number_changed"] > by_kind["bertscore_f1"]["reworded"]


def test_natural_rows_are_pairs_about_passages_of_the_sample() -> None:
    rows = natural_table().to_pylist()
    assert len(rows) == 80 and len({row["id"] for row in rows}) == 80
    assert [row["is_right"] for row in rows] == [1, 0] * 40
    for right, wrong in zip(rows[::2], rows[1::2], strict=True):
        assert right["question"] == wrong["question"] and right["question"].endswith("?")
        assert wrong["prediction"] not in [right["prediction"], *right["references"]]


def test_commands_to_try_next_run(ran: tuple[Path, str], artifacts_root: Path) -> None:
    folder, said = ran
    assert len(commands(said)) == 3
    for command in commands(said):
        done = subprocess.run(
            [sys.executable, "-m", "qaeval.cli", *command.split()[1:]],
            cwd=folder, env={**os.environ, "QAEVAL_ARTIFACTS": str(artifacts_root)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (folder / "row.html").exists()


def test_commands_to_try_next_name_the_folders_of_this_run(tmp_path: Path) -> None:
    """Protects from commands that end at the first space of a folder's name."""
    said = next_steps(tmp_path / "my demo")
    assert len(commands(said)) == 3
    assert said.count(f"'{tmp_path}/my demo/hard'") == 2


def test_it_says_little_when_it_runs_again(ran: tuple[Path, str], artifacts_root: Path) -> None:
    """Protects from a note that results are ignored, which they are not."""
    done = subprocess.run(
        [sys.executable, "-m", "qaeval.cli", "demo"],
        cwd=ran[0], env={**os.environ, "QAEVAL_ARTIFACTS": str(artifacts_root)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == ran[1]
    assert "ignored" not in done.stderr


def has_begun_to_export(pid: int) -> bool:
    """Whether a child loads what it needs: the command line says so before there is one."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "qaeval_export" in child.cmdline() and child.cpu_times().user > 1.0:
                return True
    return False


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """While models are exported, too, which takes longest."""
    process = subprocess.Popen(
        [sys.executable, "-m", "qaeval.cli", "demo"],
        cwd=tmp_path, env={**os.environ, "QAEVAL_ARTIFACTS": str(tmp_path / "artifacts")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("exporting "):
            break
    wait_until(lambda: has_begun_to_export(process.pid), process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert said.rstrip().endswith(
        "error: stopped as asked; run the same command again to resume [QA0005]"
    ), said


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_first_contact(tmp_path: Path, record_property: Report) -> None:
    """Protects from a newcomer who waits: without exports, then with those that are kept."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PATH": programs}
    environment.pop("QAEVAL_ARTIFACTS", None)
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    for name, at_most_s in (("exports included", 150), ("exports kept", 100)):
        first_s, end_s = timed_demo(tmp_path, environment, out=name.replace(" ", "_"))
        record_property(f"first scores, {name}", f"{first_s:.1f} s (at most 5 if calm)")
        record_property(f"end, {name}", f"{end_s:.0f} s (at most {at_most_s} if calm), {load}")
        # Room for a machine that is not calm.
        assert first_s < 5 * 4 and end_s < at_most_s * 4


def timed_demo(folder: Path, environment: dict[str, str], *, out: str) -> tuple[float, float]:
    """Return the seconds until the first figure and until the end of a demo."""
    started = time.monotonic()
    with (
        (folder / "progress").open("w") as progress,
        subprocess.Popen(
            ["qaeval", "demo", "--out", out], cwd=folder, env=environment,
            stdout=subprocess.PIPE, stderr=progress, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        lines = [(time.monotonic() - started, line) for line in process.stdout]
    assert process.returncode == 0, (folder / "progress").read_text()
    first_s = next(at_s for at_s, line in lines if _LINE.match(line))
    return first_s, time.monotonic() - started
