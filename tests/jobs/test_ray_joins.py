"""The end of a run on Ray: tasks join and count, die and are repeated, and change nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import processes
from qaeval.on_ray import pipeline
from qaeval.on_ray.actors import Coordinator
from qaeval.on_ray.cluster import connected
from qaeval.on_ray.news import News
from qaeval_core.configure import ClusterSection
from qaeval_core.running import document_counts
from qaeval_core.scoring import joining
from word_jobs import request, run

N_ROWS = 60_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a large file, two small ones and one without rows; some candidates are null."""
    folder = tmp_path_factory.mktemp("in")
    texts = [f"{n % 7} bees live behind mill {n % 89} of {n % 41}" for n in range(N_ROWS)]
    answers = [None if n % 501 == 0 else text for n, text in enumerate(texts[1:] + texts[:1])]
    ids = [str(n % 59_990) for n in range(N_ROWS)]
    names = ["id", "candidate", "reference"]
    table = pa.table([pa.array(own, pa.string()) for own in (ids, answers, texts)], names=names)
    pq.write_table(table, folder / "large.parquet", row_group_size=5000)
    for name, n_rows in (("small", 700), ("other", 90), ("none", 0)):
        pq.write_table(table.slice(0, n_rows), folder / f"{name}.parquet")
    return folder


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_ROWS_PER_SHARD", 5000 // 16)
    monkeypatch.setattr(document_counts, "_LEAST_BYTES_PER_RUN", 1 << 18)
    monkeypatch.setattr(document_counts, "_HASHES_PER_CUT", 1 << 15)


def words(source: Path, out: Path) -> dict[str, Any]:
    own = request(source, out, **{"metrics.cider.metric": "cider", "input.columns.id": "id"})
    return {**own, "scoring.rows_per_shard": None, "scoring.progress_s": 1.0}


def contents(out: Path) -> dict[str, bytes]:
    folders = ("scores", "quarantine", "corpus")
    found = [path for name in folders for path in (out / name).rglob("*.parquet")]
    found.append(out / "profile.parquet")
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def executor() -> pipeline.RayExecutor:
    layout = pipeline.ActorLayout(2, 1, 1.0, 0.0)
    return pipeline.RayExecutor(layout, words=layout)


@contextlib.contextmanager
def killer(title: str, *, times: int) -> Iterator[list[int]]:
    """Kill processes of Ray's tasks of a title, so many, while the block runs."""
    is_over, killed = threading.Event(), list[int]()

    def watch() -> None:
        while not is_over.is_set() and len(killed) < times:
            for own in processes(psutil.Process().pid, title=title):
                with contextlib.suppress(psutil.Error):
                    own.kill()
                    killed.append(own.pid)
                    break
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.long), True])
def test_tasks_of_ray_write_what_one_process_writes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """The same bytes, also where tasks' processes are killed; attempts are forgotten."""
    forgotten: list[int] = []
    forget = News.forget

    def noted(self: News, pieces: Any) -> None:
        forgotten.append(sum(len(own.shards) for own in pieces))
        forget(self, pieces)

    monkeypatch.setattr(News, "forget", noted)
    run(words(source, tmp_path / "local"))
    with (
        connected(ClusterSection()),
        killer("ray::qaeval join", times=2 * is_killed) as killed,
    ):
        run(words(source, tmp_path / "ray"), executor=executor())
    assert sum(forgotten) >= 10
    assert len(killed) == 2 * is_killed, "nothing was killed"
    expected = contents(tmp_path / "local")
    assert len(expected) == 4 + 3 + 1 + 1
    assert contents(tmp_path / "ray") == expected


def test_attempts_of_shards_that_are_done_are_forgotten() -> None:
    """A billion rows have a quarter of a million shards in each family."""
    own = Coordinator.__ray_metadata__.modified_class()
    assert [own.start_attempt("f1", "file", 0, 9), own.start_attempt("f1", "file", 0, 9)] == [1, 2]
    own.start_attempt("f1", "file", 9, 18)
    own.forget([("f1", "file", 0, 9), ("f1", "other", 0, 9)])
    assert own.start_attempt("f1", "file", 0, 9) == 1
    assert own.start_attempt("f1", "file", 9, 18) == 2
