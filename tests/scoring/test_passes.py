"""Two threads of one run, models' and asking: which error is raised, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helpers import write_parquet
from naco_jobs import many
from qaeval_core.configure import load_config
from qaeval_core.errors import LanguageModelError, RunStoppedError
from qaeval_core.families.chat.family import ChatFamilyPlan
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.planning.job import Job, make_job, read_inputs
from qaeval_core.planning.shards import Piece
from qaeval_core.running.passes import OnShard, run_passes

Ends = Callable[["Scripted"], None]


class Scripted:
    """An executor whose passes end as they are told; none commits anything."""

    n_actors = 1

    def __init__(self, *, models: Ends, asking: Ends) -> None:
        self.stop = threading.Event()
        self.models_ended = threading.Event()
        self.has_asked = False
        self._models, self._asking = models, asking

    def make_pass(
        self, job: Job, families: Sequence[FamilyPlan], pieces: Sequence[Piece], on_shard: OnShard
    ) -> Callable[[], None]:
        return self._ask if isinstance(families[0], ChatFamilyPlan) else self._run_models

    def _run_models(self) -> None:
        try:
            self._models(self)
        finally:
            self.models_ended.set()

    def _ask(self) -> None:
        try:
            self._asking(self)
        finally:
            self.has_asked = True


def end(_: Scripted) -> None:
    """Come to the end of all rows."""


def fail(error: BaseException) -> Ends:
    """Fail at once."""

    def ends(_: Scripted) -> None:
        raise error

    return ends


def when_told(error: BaseException) -> Ends:
    """Work until the run is told to stop, and end with an error then."""

    def ends(executor: Scripted) -> None:
        assert executor.stop.wait(10), "nobody said so"
        raise error

    return ends


def after_the_models(error: BaseException) -> Ends:
    """Fail when the models have nothing left to do."""

    def ends(executor: Scripted) -> None:
        assert executor.models_ended.wait(10)
        raise error

    return ends


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """One pass beside another."""
    config = load_config(
        overrides={
            "input.paths": [str(write_parquet(tmp_path / "input.parquet", many(3)))],
            "input.columns.references": "answer",
            "output.path": str(tmp_path / "out"),
            "metrics.f1.metric": "f1",
            "metrics.naco.metric": "naco",
            "naco.base_url": "http://127.0.0.1:9/v1",
            "naco.model": "m",
            "naco.expected_complexity": 2,
        }
    )
    return make_job(config, read_inputs(config), device="cpu")


DISK, FAULT, STOPPED = OSError("disk full"), ValueError("a fault"), RunStoppedError("as told")


@pytest.mark.parametrize(
    ("models", "asking", "raised", "said"),
    [
        pytest.param(when_told(STOPPED), fail(DISK), DISK, [], id="asking-fails-first"),
        pytest.param(end, after_the_models(DISK), DISK, [], id="asking-fails-last"),
        pytest.param(fail(FAULT), when_told(STOPPED), FAULT, [], id="models-fail"),
        pytest.param(
            fail(FAULT),
            when_told(DISK),
            FAULT,
            ["beside it: OSError: disk full"],
            id="both-fail-models-first",
        ),
        pytest.param(
            when_told(FAULT),
            fail(DISK),
            FAULT,
            ["beside it: OSError: disk full"],
            id="both-fail-asking-first",
        ),
        pytest.param(fail(STOPPED), when_told(STOPPED), STOPPED, [], id="stopped-from-outside"),
    ],
)
def test_no_error_of_two_threads_is_lost(
    models: Ends, asking: Ends, raised: Exception, said: list[str], job: Job
) -> None:
    """Protects from a cause that hides behind "stopped", and from calls that outlive their run."""
    executor, lines = Scripted(models=models, asking=asking), list[str]()
    with pytest.raises(type(raised)) as caught:
        run_passes(job, executor, say=lines.append)
    assert caught.value is raised
    assert executor.stop.is_set()
    assert executor.has_asked
    assert [line for line in lines if "beside" in line] == said


def test_calls_that_cannot_go_on_leave_the_models_alone(job: Job) -> None:
    """Protects from an hour of scoring that is lost for a key."""
    executor = Scripted(models=end, asking=fail(LanguageModelError("refused")))
    done = run_passes(job, executor, say=lambda _: None)
    assert list(done.stopped.values()) == ["refused"]
    assert not executor.stop.is_set()


def test_who_interrupts_twice_waits_for_nobody(job: Job) -> None:
    """Protects from a second Ctrl-C that hangs on a slow server."""
    answered = threading.Event()

    def ask_slowly(_: Scripted) -> None:
        answered.wait(10)

    executor = Scripted(models=fail(KeyboardInterrupt()), asking=ask_slowly)
    with pytest.raises(KeyboardInterrupt):
        run_passes(job, executor, say=lambda _: None)
    assert not executor.has_asked
    answered.set()
