"""Joining as tasks: the same bytes whoever joins; nothing joined twice, or lost between parts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY
from qaeval_core.errors import ReconcileError, RunStoppedError
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.running.progress import LabelProgress
from qaeval_core.running.range_executor import LocalRangeExecutor, RangeExecutor
from qaeval_core.scoring import join, joined, joining, summary
from qaeval_core.scoring.report import QUANTILES
from qaeval_core.stats.value_blocks import ValueBlocks
from qaeval_core.stats.value_counts import ValueCounts
from word_jobs import request, run

N_ROWS = 600
# A task takes two shards here: as many rows as a row group.
ROWS_PER_SHARD, GROUP = 50, 100
N_TASKS = 8  # six of the large file; three small ones with the empty one, and the other two


def table(n_rows: int = N_ROWS, *, seed: int = 0) -> pa.Table:
    """Return rows with repeated ids, rows to quarantine, contexts and a column to slice by."""
    rng = np.random.default_rng(seed)
    ids = [f"q{number}" for number in rng.integers(0, n_rows, n_rows)]
    words = [f"w{number}" for number in range(9)]
    texts = [" ".join(rng.choice(words, 4)) for _ in range(n_rows)]
    answers = [None if rng.random() < 0.05 else " ".join(rng.choice(words, 3)) for _ in texts]
    contexts = [f"passage {number // 3}" for number in range(n_rows)]
    topics = [("sea", "land")[number % 2] for number in range(n_rows)]
    names = ("id", "candidate", "reference", "context", "topic")
    columns = [pa.array(own, pa.string()) for own in (ids, answers, texts, contexts, topics)]
    return pa.table(columns, names=list(names))


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_SHARDS_PER_TASK", GROUP // ROWS_PER_SHARD)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(table(), folder / "large.parquet", row_group_size=GROUP)
    for number in range(5):
        pq.write_table(table(30, seed=number + 1), folder / f"small{number}.parquet")
    pq.write_table(table(0), folder / "empty.parquet")
    return folder


def words(source: Path, out: Path, **given: Any) -> dict[str, Any]:
    own = {
        "output.carry": ["topic"],
        "output.statistics": True,
        "metrics.bleu_4.metric": "bleu_4",
        "input.columns.id": "id",
        "scoring__rows_per_shard": ROWS_PER_SHARD,
    }
    return request(source, out, **{**own, **given})


def contents(out: Path) -> dict[str, bytes]:
    """Return the files that a run is for, by name."""
    found = [path for name in ("scores", "quarantine") for path in (out / name).rglob("*.parquet")]
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def scores_of(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "scores/*.parquet")


def report_of(out: Path) -> dict[str, Any]:
    content = json.loads((out / "report.json").read_text())
    for family in content["families"].values():
        family.pop("this_run", None)
    return {name: own for name, own in content.items() if name != "wall_s"}


def test_parts_add_up_to_what_one_task_makes(source: Path, tmp_path: Path) -> None:
    """Rows, counts, means, quantiles, ids that occur again across parts: all but row groups."""
    run(words(source, tmp_path / "parts"))
    run(words(source, tmp_path / "whole", scoring__rows_per_shard=1000))
    parts, whole = scores_of(tmp_path / "parts"), scores_of(tmp_path / "whole")
    assert parts.equals(whole) and parts.height == N_ROWS + 150
    ours, theirs = (report_of(tmp_path / name) for name in ("parts", "whole"))
    given = table()["id"].to_pylist()
    assert ours["duplicate_ids"] > N_ROWS - len(set(given)) > 0
    for family in [*ours["families"].values(), *theirs["families"].values()]:
        family.clear()  # Batches differ: they are of another size.
    assert ours == theirs
    names = {name for name in contents(tmp_path / "parts") if name.startswith("quarantine")}
    assert names == {name for name in contents(tmp_path / "whole") if name.startswith("quarantine")}
    assert "quarantine/large.parquet" in names
    for name in names:
        left, right = (pl.read_parquet(tmp_path / out / name) for out in ("parts", "whole"))
        assert left.equals(right)


def test_quantiles_are_those_of_all_scores(source: Path, tmp_path: Path) -> None:
    """Bit for bit: an independent look at all rows."""
    run(words(source, tmp_path / "out"))
    columns = report_of(tmp_path / "out")["columns"]
    scores = scores_of(tmp_path / "out")
    for name, own in columns.items():
        values = scores[name].drop_nulls().to_numpy()
        assert list(own["quantiles"].values()) == np.quantile(values, QUANTILES).tolist(), name


def test_quantiles_of_crowds_are_the_same_for_any_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cells and blocks so small that values crowd: rows have one order in whatever files."""

    def small(*ends: float) -> ValueCounts:
        return ValueCounts(*ends, most_cells=2, blocks=ValueBlocks(64, 2))

    monkeypatch.setattr(summary, "ValueCounts", small)
    alone = tmp_path / "alone"
    alone.mkdir()
    paths = sorted(source.glob("*.parquet"))
    pq.write_table(pa.concat_tables(map(pq.read_table, paths)), alone / "one.parquet")
    found = []
    for name, own, n in (("parts", source, 50), ("one", alone, 50), ("few", source, 9)):
        run(words(own, tmp_path / name, scoring__rows_per_shard=n))
        found.append(report_of(tmp_path / name)["columns"])
    for name, own in found[0].items():
        assert own["quantiles"] == found[1][name]["quantiles"] == found[2][name]["quantiles"]
    scores = scores_of(tmp_path / "parts")
    exact = {
        name: np.quantile(scores[name].drop_nulls().to_numpy(), QUANTILES).tolist()
        for name in found[0]
    }
    assert exact != {name: [*own["quantiles"].values()] for name, own in found[0].items()}


class Apart(LocalPieceExecutor):
    """Joins in so many processes, however few the rows are."""

    def __init__(self, n_processes: int) -> None:
        super().__init__()
        self._n = n_processes

    @contextlib.contextmanager
    def ranges(self, *, interval_s: float) -> Iterator[RangeExecutor]:
        with (
            LabelProgress(interval_s) as tell,
            contextlib.closing(LocalRangeExecutor(tell, n_processes=self._n)) as own,
        ):
            yield own


@pytest.mark.slow  # five seconds: processes that begin
def test_any_number_of_workers_writes_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of processes; Ray's tasks are in tests/jobs."""
    monkeypatch.setattr("qaeval_core.running.range_executor._ROWS_FOR_PROCESSES", 0)
    found = []
    for n in (1, 2, 3):
        run(words(source, tmp_path / f"out{n}"), executor=Apart(n))
        found.append((contents(tmp_path / f"out{n}"), report_of(tmp_path / f"out{n}")))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0]) > 8


REAL_JOIN = join.join_task


def joins(monkeypatch: pytest.MonkeyPatch, *, stop_after: int | None = None) -> list[str]:
    """Note which tasks are joined; end the run after so many."""
    done: list[str] = []
    join_task = REAL_JOIN

    def noted(task: join.JoinTask, plan: join.JoinPlan) -> None:
        if len(done) == stop_after:
            raise RunStoppedError("stopped by the test [QA0005]")
        join_task(task, plan)
        done.append(task.name)

    monkeypatch.setattr(joining, "join_task", noted)
    return done


def test_what_is_joined_is_not_joined_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from hours of joining after a driver was killed at its end."""
    out = tmp_path / "out"
    first = joins(monkeypatch, stop_after=5)
    with pytest.raises(RunStoppedError):
        run(words(source, out))
    assert len(first) == 5 and not (out / "_SUCCESS").exists()
    second = joins(monkeypatch)
    run(words(source, out))
    assert len(second) == N_TASKS - 5 and not set(first) & set(second)
    assert not (out / "joined").exists()
    run(words(source, tmp_path / "alone"))
    assert contents(out) == contents(tmp_path / "alone")
    assert report_of(out)["columns"] == report_of(tmp_path / "alone")["columns"]


@pytest.mark.parametrize("damage", ["record", "part", "gone", "short", "commits", "other"])
def test_what_does_not_fit_is_joined_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A record counts with its own bytes, its own commits and its own run alone."""
    out = tmp_path / "out"
    first = joins(monkeypatch, stop_after=5)
    with pytest.raises(RunStoppedError):
        run(words(source, out))
    name, more = first[2], {}
    part = out / "joined" / f"{name}-scores.parquet"
    if damage == "record":
        path = out / "joined" / f"{name}.npz"
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "gone":
        part.unlink()
    elif damage == "short":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "commits":
        for path in out.glob("families/*/*.parquet"):
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(1, 1))
    elif damage == "other":
        more = {"metrics.rouge_l.metric": "rouge_l"}
    elif damage == "part":
        content = bytearray(part.read_bytes())
        content[100] ^= 1
        part.write_bytes(content)
    second = joins(monkeypatch)
    if damage == "part":
        with pytest.raises(ReconcileError, match="QA0510"):
            run(words(source, out))
        part.unlink()
    run(words(source, out, **more))
    n_again = len(set(first) & set(second))
    is_all = damage in ("commits", "other")
    assert n_again == (0 if is_all else 1), "the name says what went in"
    assert len(second) == (N_TASKS if is_all else N_TASKS - len(first) + 1)
    run(words(source, tmp_path / "alone", **more))
    assert contents(out) == contents(tmp_path / "alone")


@pytest.mark.slow  # some seconds a kill
@pytest.mark.parametrize("place", ["join", "assemble", "record", "check"])
def test_kills_while_joining(source: Path, tmp_path: Path, place: str) -> None:
    """The process dies in the middle of a task, of a file, between both, and at the end."""
    out = tmp_path / "out"
    targets = {
        "join": ("join", "score_rows", 4), "record": ("join", "to_bytes", 4),
        "assemble": ("join", "join_parts", 1), "check": ("joining", "check_file", 3),
    }  # fmt: skip
    module, name, n = targets[place]
    code = (
        "import os, sys\n"
        f"from qaeval_core.scoring import joining, {module} as module\n"
        f"joining._SHARDS_PER_TASK = {GROUP // ROWS_PER_SHARD}\n"
        f"own, left = module.{name}, [{n}]\n"
        "def killed(*given, **options):\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os.kill(os.getpid(), 9)\n"
        "    return own(*given, **options)\n"
        f"module.{name} = killed\n"
        "from qaeval import cli\n"
        "cli.main()\n"
    )
    command = [
        "score", str(source), "--out", str(out), "--local", "--metrics", "f1,bleu_4",
        "--column", "references=reference", "--carry", "topic",
        "--set", f"scoring.rows_per_shard={ROWS_PER_SHARD}", "--set", "output.statistics=true",
    ]  # fmt: skip
    environment = {**os.environ, "QAEVAL_DEBUG": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=REPOSITORY, env=environment,
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "_SUCCESS").exists()
    run(words(source, out))
    run(words(source, tmp_path / "alone"))
    assert contents(out) == contents(tmp_path / "alone")
    ours, theirs = (report_of(tmp_path / name) for name in ("out", "alone"))
    assert ours["columns"] == theirs["columns"] and ours["duplicate_ids"] == theirs["duplicate_ids"]


def test_records_are_the_same_after_a_round(source: Path, tmp_path: Path) -> None:
    """What a run says must not depend on whether it was killed: every count comes back."""
    kept: list[joined.Joined] = []
    plans: list[join.JoinPlan] = []
    to_bytes, join_task = joined.to_bytes, join.join_task

    def planned(task: join.JoinTask, plan: join.JoinPlan) -> None:
        plans.append(plan)
        join_task(task, plan)

    def noted(own: joined.Joined) -> bytes:
        kept.append(own)
        return to_bytes(own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "to_bytes", noted)
        patch.setattr(joining, "join_task", planned)
        run(words(source, tmp_path / "out"))
    for own in kept:
        again = joined.from_bytes(to_bytes(own), plans[0].overview())
        for name in ("n_rows", "n_duplicate_ids", "quarantined", "undefined", "n_scored", "texts"):
            assert getattr(again.totals, name) == getattr(own.totals, name), name
        assert {name: found.tolist() for name, found in again.totals.sums.items()} == {
            name: found.tolist() for name, found in own.totals.sums.items()
        }
        assert again.files == own.files and again.lost == own.lost
        assert again.overview.content() == own.overview.content()
        assert again.overview.ends == own.overview.ends
        assert again.overview.profile.to_table().equals(own.overview.profile.to_table())
        for name, counts in own.overview.values.items():
            assert again.overview.values[name].n == counts.n
            if counts.n:
                found = again.overview.values[name].quantiles(QUANTILES)
                assert all(map(math.isfinite, found)) and found == counts.quantiles(QUANTILES)
