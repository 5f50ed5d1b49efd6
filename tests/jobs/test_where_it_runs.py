"""Small inputs run in this process where no cluster is named; what takes long says that it runs."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers import short_sample, wait_until, write_parquet
from qaeval import arguments
from qaeval.cli import app
from qaeval.work import score as score_verb
from qaeval_core.configure import load_config
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.running.progress import Counts, LabelProgress, ProgressPrinter

SAS = ["--metrics", "sas"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where runs would have run."""
    found: list[str] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(score_verb, "run_local", lambda *_: found.append("here"))
    monkeypatch.setattr(score_verb, "run_on_ray", lambda *_: found.append("ray"))
    monkeypatch.setattr(arguments, "MOST_LOCAL_ROWS", 20)
    return found


@pytest.mark.parametrize(
    ("n_rows", "words", "where"),
    [
        (20, SAS, "here"),
        (21, SAS, "ray"),
        (21, [*SAS, "--limit", "5"], "here"),
        (21, [*SAS, "--local"], "here"),
        (21, [], "here"),
        (21, ["--ray"], "ray"),
        (20, ["--ray"], "ray"),
        (20, ["--address", "127.0.0.1:6379"], "ray"),
        (20, ["--set", "cluster.actors=2"], "ray"),
        (20, ["--set", "cluster.device=cpu"], "here"),
    ],
)
def test_the_size_decides_unless_told(
    ran: list[str], tmp_path: Path, n_rows: int, words: list[str], where: str
) -> None:
    path = write_parquet(tmp_path / "input.parquet", short_sample(n_rows))
    common = ["score", str(path), "--out", str(tmp_path / "out"), "--metrics", "rouge", *words]
    shown = CliRunner().invoke(app, common)
    assert shown.exit_code == 0, shown.output
    assert ran == [where]
    is_told = "--local" in words or where == "ray"
    assert ("rows are scored on this machine, without Ray" in shown.output) != is_told


def n_words(candidate: str) -> float:
    """Count words."""
    return float(len(candidate.split()))


def test_what_processes_here_cannot_do_goes_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function need not be one that can be sent."""

    config = load_config(overrides={"metrics.f1.metric": "f1", "output.path": "s3://bucket/out"})
    assert score_verb._is_spread_here(config)
    monkeypatch.setattr(score_verb, "metric_of", lambda _: FunctionMetric(n_words))
    assert not score_verb._is_spread_here(config)


def test_an_address_in_the_environment_is_a_cluster(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    path = write_parquet(tmp_path / "input.parquet", short_sample(3))
    CliRunner().invoke(app, ["score", str(path), "--out", str(tmp_path / "out"), "--metrics", "f1"])
    assert ran == ["ray"]


def printer(stream: io.StringIO, **given: Any) -> ProgressPrinter:
    return ProgressPrinter("sas", n_rows_total=10, stream=stream, **{"interval_s": 60.0, **given})


def test_a_line_comes_after_a_second_though_nobody_reports() -> None:
    """Models load for ten seconds, and a cluster starts for twenty: all of it was silent."""
    stream = io.StringIO()
    started = time.monotonic()
    with printer(stream) as own:
        wait_until(lambda: bool(stream.getvalue()))
        assert time.monotonic() - started >= 0.9
        assert stream.getvalue() == "sas: 0/10 rows (0 %), starting\n"
        own.update(Counts(5.0))
        assert stream.getvalue().count("\n") == 1  # Not before the interval has passed.
        own.update(Counts(10.0), is_last=True)
    assert "10/10 rows (100 %)" in stream.getvalue()


def test_nothing_is_printed_after_the_end_or_a_failure() -> None:
    """A printer of a run that had failed went on, and wrote to streams that were closed."""
    ended, failed = io.StringIO(), io.StringIO()
    with printer(ended, interval_s=0.2) as own:
        own.update(Counts(10.0), is_last=True)
    with pytest.raises(OSError, match="full"), printer(failed, interval_s=0.2) as own:
        raise OSError("full")
    time.sleep(0.7)
    own.update(Counts(10.0), is_last=True)
    assert ended.getvalue().count("\n") == 1
    assert failed.getvalue() == ""


def n_showing() -> int:
    return sum("_keep_showing" in thread.name for thread in threading.enumerate())


def test_labels_end_with_their_run() -> None:
    """A filter that failed went on to say how far it was, and to streams that were closed."""
    wait_until(lambda: n_showing() == 0)
    with LabelProgress(60.0) as tell:
        tell("scan", 1, 10)
        tell("ties", 1, 10)
        wait_until(lambda: n_showing() == 1)  # The other one has ended with its label.
    wait_until(lambda: n_showing() == 0)
