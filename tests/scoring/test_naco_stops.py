"""What ends the asking early: nothing that was paid for is lost, and the way on is said."""

from __future__ import annotations

import gc
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import (
    read_scores,
    run_locally,
    start_qaeval,
    write_parquet,
)
from llm_server import LlmServer
from naco_jobs import CONTEXT, calls, many, settings, table
from qaeval_core.configure import load_config
from qaeval_core.errors import LanguageModelError, RunStoppedError, TooManyQuarantinedError
from qaeval_core.families.chat.family import ChatFamilyPlan
from qaeval_core.llm.journal import Journal
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.local_asking import ChatRunner


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    """A server without limits or faults."""
    with LlmServer(latency_s=0.002) as running:
        yield running


def test_a_stop_before_the_first_call_leaves_nothing_behind(
    server: LlmServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C while a journal is opened left a task, and perhaps a ledger that stayed locked."""
    config = load_config(overrides=settings(server, tmp_path, many(1)))
    (plan,) = make_job(config, read_inputs(config), device="cpu").run.families
    assert isinstance(plan, ChatFamilyPlan)
    stop = threading.Event()
    stop.set()
    runner = ChatRunner(plan, stop=stop)
    asked = {"candidate": ["Who?"], "context": [CONTEXT], "answer": ["Ann"]}
    gc.collect()  # What other tests left is none of this one's.
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(RunStoppedError):
            runner.run(runner.layout.prepare(asked))
        gc.collect()
    assert [str(own.message) for own in warned] == []
    assert caplog.messages == []
    stop.clear()
    runner.run(runner.layout.prepare(asked))


def test_a_budget_stops_the_family_and_a_raised_one_goes_on(tmp_path: Path) -> None:
    """Protects from a cent too much, and from paying twice for what was kept."""
    rows = many(200)
    prices = {"naco__prices": {"prompt": 1.0, "completion": 2.0}}
    with LlmServer(latency_s=0.002) as server:
        job = settings(
            server, tmp_path, rows, naco__budget_usd=0.03, scoring__rows_per_shard=16, **prices
        )
        job["metrics.f1.metric"] = "f1"
        job["input.columns.references"] = "answer"
        outcome, said = run_locally(job)
        billed = server.stats()["billed_usd"]
        assert 0.02 < billed <= 0.03
        assert any("budget_usd" in line for line in said)
        assert list(outcome.stopped) == [key for key in outcome.report["families"] if "naco" in key]
        assert not (tmp_path / "out" / "_SUCCESS").exists()
        scores = read_scores(tmp_path / "out")
        n_pending = scores["naco_reason"].to_list().count("pending")
        assert 0 < n_pending < 200
        assert scores["f1"].null_count() == 0  # The other families do not depend on it.
        assert outcome.report["instances"]["naco"]["undefined_by_reason"]["pending"] == n_pending
        n_paid = server.stats()["n_ok"]
        assert len(Journal(tmp_path / "out" / "journal")) == n_paid

        again, _ = run_locally(job)  # The same budget: nothing more is sent.
        assert again.stopped
        assert server.stats()["n_ok"] == n_paid

        outcome, _ = run_locally({**job, "naco.budget_usd": 1.0})
        stats = server.stats()
    assert not outcome.stopped
    (family,) = (own for own in outcome.report["families"].values() if "calls" in own)
    # What was paid before the stop came from the journal for the shards of the last run.
    assert family["calls"]["paid"] < family["journal"]["replies"] == stats["n_ok"]
    assert family["journal"]["usd"] == pytest.approx(stats["billed_usd"])
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert "pending" not in read_scores(tmp_path / "out")["naco_reason"].to_list()
    assert stats["n_calls"] == stats["n_ok"]
    assert stats["n_after_ok"] == 0


def test_a_refused_key_stops_the_family_at_once(tmp_path: Path) -> None:
    """Protects from a thousand calls that cannot succeed, and from losing the other metrics."""
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("sk-wrong-0123456789\n")
    with LlmServer(key="sk-right-0123456789") as server:
        job = settings(server, tmp_path, many(300), naco__api_key_file=str(key))
        job |= {"metrics.f1.metric": "f1", "input.columns.references": "answer"}
        outcome, said = run_locally(job)
        assert server.stats()["n_calls"] == 0  # Refused before it counts.
        (message,) = outcome.stopped.values()
        assert "401" in message and str(key) in message
        assert "sk-" not in " ".join([message, *said])
        assert read_scores(tmp_path / "out")["f1"].null_count() == 0

        key.write_text("sk-right-0123456789\n")
        outcome, _ = run_locally(job)
        assert not outcome.stopped
    assert read_scores(tmp_path / "out")["naco_reason"].to_list().count("pending") == 0
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    written += list((tmp_path / "ledgers").iterdir())
    assert len(written) > 5
    # Of both keys; the digits alone are bytes that follow each other, as numbers of a table do.
    assert not [path for path in written if b"-0123456789" in path.read_bytes()]


def test_too_many_quarantined_rows_waste_no_reply(tmp_path: Path) -> None:
    """Protects from replies that are paid for and thrown away when a run is ended."""
    rows = table([None if i % 3 == 0 else f"Who is {i}?" for i in range(200)])
    with LlmServer(latency_s=0.5) as server:
        job = settings(server, tmp_path, rows, naco__max_concurrent=32, scoring__rows_per_shard=16)
        with pytest.raises(TooManyQuarantinedError):
            run_locally({**job, "scoring.max_quarantined": 0.02})
        n_billed = server.stats()["n_billed"]
    assert 0 < n_billed < 200
    assert len(Journal(tmp_path / "out" / "journal")) == n_billed


def test_what_no_call_can_be_made_with_ends_the_family_alone(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from a trace, or the loss of other metrics, for a wrong path."""
    (tmp_path / "file").write_text("no folder")
    job = settings(server, tmp_path, many(5))
    job |= {"metrics.f1.metric": "f1", "input.columns.references": "answer"}
    for key, path, said in (
        ("naco.api_key_file", "nowhere/key", "nowhere/key"),
        ("naco.journal_path", "file", "naco.journal_path"),
        ("naco.ledger_path", "file", "naco.ledger_path"),
    ):
        out = tmp_path / key
        outcome, _ = run_locally({**job, "output.path": str(out), key: str(tmp_path / path)})
        (message,) = outcome.stopped.values()
        assert said in message
        assert read_scores(out)["f1"].null_count() == 0


def test_interrupted_calibration_keeps_what_it_paid_for(tmp_path: Path) -> None:
    """Protects from calls that go on, and replies that are lost, after Ctrl-C."""
    source = write_parquet(tmp_path / "input.parquet", many(150))
    with LlmServer(latency_s=0.5) as own:
        words: list[str | Path] = [
            "calibrate",
            source,
            "--corpus",
            "c",
            "--out",
            tmp_path / "c.json",
        ]
        for setting in (f"base_url={own.base_url}", "model=m", f"ledger_path={tmp_path / 'l'}"):
            words += ["--set", f"naco.{setting}"]
        process = start_qaeval(*words)
        while not own.stats()["n_ok"]:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        n_billed = own.stats()["n_billed"]
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert n_billed < 150
    assert len(Journal(tmp_path / "c.journal")) == n_billed


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [2, 400])
def test_rows_that_met_no_server_are_pending_until_it_is_back(tmp_path: Path, n_rows: int) -> None:
    """Protects from a run that hangs, and from rows that are lost one by one, for days."""
    with LlmServer() as server:
        job = settings(server, tmp_path, many(n_rows), scoring__rows_per_shard=8)
    outcome, _ = run_locally({**job, "naco.max_outage_s": 2.0})
    (message,) = outcome.stopped.values()
    assert "no answer for " in message
    assert "ConnectError" in message
    assert read_scores(tmp_path / "out")["naco_reason"].to_list() == ["pending"] * n_rows
    with LlmServer(port=server.port):
        outcome, _ = run_locally(job)
    assert outcome.stopped == {}
    assert "pending" not in read_scores(tmp_path / "out")["naco_reason"].to_list()
    assert calls(outcome)["given_up"] == {}


def test_errors_of_calls_have_one_base() -> None:
    """Protects from a caller that must know every reason why calls can end."""
    from qaeval_core.errors import BudgetExhaustedError, EndpointRefusedError

    assert issubclass(BudgetExhaustedError, LanguageModelError)
    assert issubclass(EndpointRefusedError, LanguageModelError)
