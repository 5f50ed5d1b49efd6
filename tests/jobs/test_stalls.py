"""A pass in which nothing happens any more: starting the remaining work again, once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from helpers import write_parquet
from qaeval.on_ray import pipeline
from qaeval.on_ray.actors import ScorePieces
from qaeval.on_ray.worker_signs import DEAD_AFTER_S, STILL_AFTER_S, WorkerSigns
from qaeval_core.configure import ClusterSection, load_config
from qaeval_core.errors import RunError
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.scoring.run import run_job
from word_jobs import is_whole, n_quarantined, request, rows


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signs(clock: Clock) -> WorkerSigns:
    return WorkerSigns(clock)


def is_stalled(signs: WorkerSigns, *, has_room: bool = True, most_idle_s: float = 600.0) -> bool:
    work = SimpleNamespace(_most_idle_s=most_idle_s, has_room=lambda: has_room)
    return pipeline._Pass._is_stalled(cast(Any, work), signs.standing())


def test_a_pass_stalls_when_nobody_has_been_at_work_for_too_long(
    signs: WorkerSigns, clock: Clock
) -> None:
    signs.take("a", 0)
    signs.take("b", 2)
    clock.now = 30.0
    signs.take("b", 1)
    clock.now += DEAD_AFTER_S
    assert signs.standing().n_at_work == 1
    clock.now += 1.0  # Silent for too long: it died with a piece in hand.
    assert signs.standing().n_at_work == 0 and not is_stalled(signs)
    clock.now = 30.0 + 600.0
    assert not is_stalled(signs)
    clock.now += 1.0
    assert is_stalled(signs)
    signs.heard()
    assert not is_stalled(signs)


def test_a_worker_that_gives_signs_may_take_its_time(signs: WorkerSigns, clock: Clock) -> None:
    """A batch that takes an hour, or a server that pauses for two, is no standstill."""
    for _ in range(1_000):
        signs.take("a", 1)
        clock.now += 10.0
    assert signs.standing().n_at_work == 1 and not is_stalled(signs)


def test_a_pass_that_waits_for_room_does_not_stall(signs: WorkerSigns, clock: Clock) -> None:
    """A run may wait for a GPU for hours; one whose workers have come up may not."""
    clock.now = 86_400.0
    assert not is_stalled(signs, has_room=False)
    assert is_stalled(signs, has_room=True)
    signs.take("a", 0)
    clock.now += 601.0
    assert is_stalled(signs, has_room=False)
    signs.begin()  # The next pipeline has none yet.
    clock.now += 601.0
    assert not is_stalled(signs, has_room=False)


def test_workers_are_still_a_moment_after_their_last_sign(signs: WorkerSigns, clock: Clock) -> None:
    signs.take("a", 1)
    clock.now += STILL_AFTER_S + 1
    assert not signs.standing().is_still
    signs.take("a", 0)
    clock.now += STILL_AFTER_S
    assert not signs.standing().is_still
    clock.now += 0.1
    assert signs.standing().is_still


def test_ten_minutes_are_the_default() -> None:
    assert ClusterSection().no_progress_s == 600.0


def test_a_node_is_not_asked_again_in_the_pass_that_it_gave_pieces_back_in() -> None:
    """It may see all that is asked for but one file: the pass would begin anew for ever."""
    left_out: list[dict[str, str]] = []
    nodes = SimpleNamespace(leave_out=left_out.append, ray_options=dict)
    news = SimpleNamespace(blind=lambda: {"a": "no file"}, begin_pipeline=lambda: None)
    rounds = [["piece"], []]
    work = SimpleNamespace(
        consume=lambda *_: rounds.pop(0), dataset=lambda pieces, *, ray_options: pieces
    )
    executor = SimpleNamespace(nodes=nodes, stop=threading.Event(), _say=print)
    pipeline.RayExecutor._run_rounds(
        cast(Any, executor), cast(Any, work), cast(Any, None), [], cast(Any, news), lambda _: None
    )
    assert left_out == [{"a": "no file"}] and not rounds


_N_ROWS = 400


class StuckPieces(ScorePieces):
    """Workers that begin nothing, as where Ray hands out no work: after some pieces, once."""

    def __call__(self, batch: Any) -> Any:
        folder = Path(self._store.out).parent
        number = batch.column("number")[0].as_py()
        times = int((folder / "times").read_text())
        if number >= 3 and len(list(folder.glob("stuck-*"))) < times:
            (folder / f"stuck-{time.time_ns()}").touch()
            time.sleep(1_000)
        return super().__call__(batch)


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from qaeval.on_ray.cluster import connected

    monkeypatch.setattr(pipeline, "ScorePieces", StuckPieces)
    with connected(ClusterSection()):
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield


def stuck_run(
    folder: Path, *, times: int, monkeypatch: pytest.MonkeyPatch, may_stall: bool = True
) -> list[str]:
    """Run a job whose only worker gets stuck so many times; return what was said."""
    (folder / "times").write_text(str(times))
    source = write_parquet(folder / "input.parquet", rows(_N_ROWS), row_group_size=8)
    config = load_config(overrides=request(source, folder / "out"))
    job = make_job(config, read_inputs(config), device="cpu")
    layout = pipeline.ActorLayout(1, 1, 1.0, 0.0)
    said: list[str] = []
    executor = pipeline.RayExecutor(layout, words=layout, say=said.append)
    is_stalled, n_stalls = pipeline._Pass._is_stalled, [0]

    def impatient(self: Any, standing: Any) -> bool:
        # Only once the worker is stuck: on a busy machine it takes its time to start.
        is_stuck = len(list(folder.glob("stuck-*"))) > n_stalls[0]
        self._most_idle_s = 5.0 if is_stuck and may_stall else 1_000.0
        found = is_stalled(self, standing)
        n_stalls[0] += found
        return found

    monkeypatch.setattr(pipeline._Pass, "_is_stalled", impatient)
    run_job(job, executor, say=said.append)
    return said


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
class TestOnRay:
    """Protects from a run that shows the same line of progress for ever."""

    def test_what_is_left_begins_anew(
        self, local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = stuck_run(tmp_path, times=1, monkeypatch=monkeypatch)
        (line,) = [line for line in said if "no worker made progress for " in line]
        assert line.endswith("pieces)") and "starting the remaining work again" in line
        assert is_whole(tmp_path / "out", _N_ROWS)
        assert n_quarantined(tmp_path / "out") == 0

    @pytest.mark.long
    def test_the_second_time_it_is_an_error(
        self, local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(
            RunError, match=r"no worker made progress .* again; committed work is kept.*QA0516"
        ):
            stuck_run(tmp_path, times=2, monkeypatch=monkeypatch)
        assert len(list((tmp_path / "out").glob("families/*/*.parquet"))) >= 3

    @pytest.mark.long
    def test_a_run_that_is_stuck_can_be_stopped(
        self, local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker that is handed a piece and never says so holds up nobody who wants to end."""
        began = threading.Event()
        consume = pipeline._Pass.consume

        def stop_soon(self: Any, *given: Any) -> Any:
            threading.Timer(8.0, self._executor.stop.set).start()
            began.set()
            return consume(self, *given)

        monkeypatch.setattr(pipeline._Pass, "consume", stop_soon)
        started = time.monotonic()
        with pytest.raises(RunError, match="QA0005"):
            stuck_run(tmp_path, times=9, monkeypatch=monkeypatch, may_stall=False)
        assert began.is_set() and time.monotonic() - started < 120
