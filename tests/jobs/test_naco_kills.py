"""kill -9 in mid-run, of whatever has a part in it: nothing is lost, and nothing is paid twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from helpers import assert_same_scores, processes, wait_until, write_parquet
from llm_server import LlmServer
from naco_runs import (
    MAX_TOKENS,
    NacoRun,
    journaled_keys,
    kill_tree,
    messages_of,
    questions,
    table_of,
)
from qaeval_core.families.chat.naco_prompt import reminder_prompt
from qaeval_core.llm.limits import estimate_tokens

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROWS = questions(200)
N_KNOWN = 50  # replies in the journal when somebody is killed
MAX_CONCURRENT = 16
# Ten seconds of calls: time for both actors to be up, and to kill somebody in the middle.
LIMITS = {"requests_per_minute": 40, "window_s": 2.0, "latency_s": 0.1}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    return write_parquet(folder / "input.parquet", table_of(ROWS))


@pytest.fixture(scope="module")
def uninterrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The oracle: the same rows in one process, of a server without limits."""
    with LlmServer() as server:
        run = NacoRun(server, source, tmp_path_factory.mktemp("oracle"), words=["--local"])
        run.run()
    return run.scores()


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Iterator[NacoRun]:
    with LlmServer(log_path=str(tmp_path / "server.jsonl"), **LIMITS) as server:
        words = ["--set", "cluster.llm_actors=2", "--rows-per-shard", "32"]
        yield NacoRun(server, source, tmp_path, {"max_concurrent": MAX_CONCURRENT}, words)


def check_money(run: NacoRun, *, n_lost: int) -> None:
    """Check that the ledger has all that the server bills, and a whole call for each lost one."""
    (money,) = run.ledger().money.values()
    billed = round(run.server.stats()["billed_usd"] * 1e9)
    tokens = max(estimate_tokens(reminder_prompt(messages_of(row))) for row in ROWS)
    most = round((tokens * 1.0 + MAX_TOKENS * 2.0) * 1e3)  # Dollars per million tokens.
    assert billed <= money.committed <= billed + n_lost * most


def check_done(run: NacoRun, expected: pl.DataFrame, *, known: set[str], since_s: float) -> None:
    """Check the scores, and that no known reply was asked for again."""
    assert (run.out / "_SUCCESS").exists()
    assert_same_scores(run.scores(), expected)
    again = [line for line in run.server.log() if line["t_s"] > since_s]
    assert again, "it was over before the kill"
    assert [line for line in again if line["request"] in known] == []


@pytest.mark.long
def test_a_killed_driver_pays_for_nothing_twice(run: NacoRun, uninterrupted: pl.DataFrame) -> None:
    """The machine of a run dies; who starts it again must not pay for what the journal has."""
    process = run.start()
    wait_until(lambda: len(journaled_keys(run.journal)) > N_KNOWN, process)
    kill_tree(process)
    known, dead_s = journaled_keys(run.journal), time.monotonic()
    assert len(known) < len(ROWS)
    assert not (run.out / "_SUCCESS").exists()

    run.run()
    check_done(run, uninterrupted, known=known, since_s=dead_s)
    stats = run.server.stats()
    # Only calls that were under way are asked again.
    n_again = sum(counts["calls"] > 1 for counts in stats["requests"].values())
    assert n_again <= MAX_CONCURRENT
    check_money(run, n_lost=MAX_CONCURRENT)


@pytest.mark.long
def test_a_killed_governor_costs_no_call(run: NacoRun, uninterrupted: pl.DataFrame) -> None:
    """Calls in flight outlive it: each is settled, in a ledger that knows of it."""
    process = run.start()
    wait_until(lambda: len(journaled_keys(run.journal)) > N_KNOWN, process)
    (governor,) = processes(process.pid, title="GovernorActor")
    governor.kill()
    known, killed_s = journaled_keys(run.journal), time.monotonic()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    check_done(run, uninterrupted, known=known, since_s=killed_s)
    admitted = run.server.admitted()
    assert set(admitted.values()) == {1}
    assert len(admitted) >= len(ROWS)
    check_money(run, n_lost=0)


@pytest.mark.long
def test_a_killed_actor_is_replaced(run: NacoRun, uninterrupted: pl.DataFrame) -> None:
    """One of two dies with calls under way; they are asked again when its claims have ended."""
    process = run.start()
    wait_until(lambda: len(journaled_keys(run.journal)) > N_KNOWN, process)
    wait_until(lambda: len(processes(process.pid, title="AskPieces")) == 2, process)
    processes(process.pid, title="AskPieces")[0].kill()
    known, killed_s = journaled_keys(run.journal), time.monotonic()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    check_done(run, uninterrupted, known=known, since_s=killed_s)
    check_money(run, n_lost=MAX_CONCURRENT // 2)
