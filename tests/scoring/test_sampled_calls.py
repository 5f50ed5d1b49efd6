"""Calls to a language model are made for the rows of a sample, and for no others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from helpers import qaeval, read_scores, run_locally, write_parquet
from llm_server import LlmServer
from naco_jobs import TWO_STEPS, calls, settings, table
from qaeval_core.calibration.complexity import (
    calibrate_complexity,
    calibration_roles,
    with_journal,
)
from qaeval_core.configure import load_config
from qaeval_core.planning.job import read_inputs
from qaeval_core.running.sampling import with_sample
from sampled_rows import NOT_SAMPLED, smallest, some

N_ROWS, N_CONTEXTS = 60, 12
QUESTIONS: list[str | None] = [f"Who keeps bee number {i}?" for i in range(N_ROWS)]
REPLIES = {str(question): [TWO_STEPS] for question in QUESTIONS}


def rows_of(contexts: list[str | None]) -> Any:
    """Return rows with questions that all differ."""
    return table(QUESTIONS, context=contexts)


def chosen(contexts: list[str | None], n_groups: int) -> list[bool]:
    """Return which rows a sample has."""
    own = smallest(contexts, n_groups)
    return [context in own for context in contexts]


def test_calls_are_made_for_sampled_rows_alone_and_paid_once(tmp_path: Path) -> None:
    """Protects from calls that nobody asked for, and from paying again when the sample grows."""
    contexts = some(N_ROWS, N_CONTEXTS)
    contexts[7] = None
    with LlmServer(replies=REPLIES) as server:
        job = settings(server, tmp_path, rows_of(contexts), scoring__rows_per_shard=16)
        for n_groups, is_new in ((2, True), (2, False), (5, True)):
            outcome, _ = run_locally({**job, "input.sample_groups": n_groups})
            is_in = chosen(contexts, n_groups)
            # Each question is its own prompt, and is asked once in all runs together.
            assert server.stats()["n_calls"] == sum(is_in)
            assert outcome.is_new == is_new
            scores = read_scores(tmp_path / "out")
            assert scores["naco"].is_not_null().to_list() == is_in
            reasons = scores["quarantine_reason"].to_list()
            assert reasons == [None if own else NOT_SAMPLED for own in is_in]
            assert scores["naco_reason"].null_count() == N_ROWS
        n_before = sum(chosen(contexts, 2))
        found = calls(outcome)
        assert (found["paid"], found["from_journal"]) == (sum(is_in) - n_before, n_before)


def test_rows_that_nobody_would_ask_are_never_pending(tmp_path: Path) -> None:
    """Protects from undefined scores of rows that the sample leaves out, where asking ends."""
    contexts = some(N_ROWS, N_CONTEXTS)
    prices = {"naco__prices": {"prompt": 1.0, "completion": 2.0}}
    is_in = chosen(contexts, 5)
    with LlmServer(replies=REPLIES) as server:
        outcome, _ = run_locally(
            settings(
                server,
                tmp_path,
                rows_of(contexts),
                input__sample_groups=5,
                naco__budget_usd=0.005,
                scoring__rows_per_shard=4,
                **prices,
            )
        )
    assert outcome.stopped
    scores = read_scores(tmp_path / "out")
    reasons = scores["quarantine_reason"].to_list()
    assert reasons == [None if own else NOT_SAMPLED for own in is_in]
    is_pending = [own == "pending" for own in scores["naco_reason"].to_list()]
    assert 0 < sum(is_pending) < sum(is_in)
    assert all(own for own, is_open in zip(is_in, is_pending, strict=True) if is_open)
    own = outcome.report["instances"]["naco"]
    assert own["undefined_by_reason"] == {"pending": sum(is_pending)}
    assert own["not_sampled"] == N_ROWS - sum(is_in)


@pytest.mark.ray
@pytest.mark.slow
def test_actors_that_ask_know_the_sample(tmp_path: Path) -> None:
    """Protects from actors that were not told of the sample, and pay for all rows."""
    contexts = some(N_ROWS, N_CONTEXTS)
    source = write_parquet(tmp_path / "input.parquet", rows_of(contexts))
    with LlmServer(replies=REPLIES) as server:
        sets = {
            "naco.base_url": server.base_url,
            "naco.model": "m",
            "naco.expected_complexity": 2,
            "naco.ledger_path": tmp_path / "ledgers",
            "input.sample_groups": 5,
        }
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        qaeval("score", source, "--out", tmp_path / "out", "--ray", "--metrics", "naco", *words)
        assert server.stats()["n_calls"] == sum(chosen(contexts, 5))
    scores = read_scores(tmp_path / "out")
    assert scores["naco"].is_not_null().to_list() == chosen(contexts, 5)


def test_a_dry_run_counts_rows_calls_and_money_of_the_sample(tmp_path: Path) -> None:
    """Protects from a price of all rows, where a few are asked."""
    contexts = some(N_ROWS, N_CONTEXTS)
    source = write_parquet(tmp_path / "input.parquet", rows_of(contexts))
    sets = {
        "naco.base_url": "http://127.0.0.1:9/v1",
        "naco.model": "m",
        "naco.expected_complexity": 2,
        "naco.prices": "{prompt: 1.0, completion: 2.0}",
        "input.sample_groups": 5,
    }
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    output = qaeval("score", source, "--dry-run", "--metrics", "naco", *words)
    n_rows = sum(chosen(contexts, 5))
    assert f"sample: {n_rows} of {N_ROWS} rows, those of 5 contexts" in output
    assert f"{n_rows} calls to m" in output
    assert "0 rows are undefined without a call" in output
    assert "estimated" not in output


@pytest.mark.parametrize("n_groups", [1, 4])
def test_calibration_asks_for_the_sample(n_groups: int, tmp_path: Path) -> None:
    """Protects from a complexity of other rows than those that it is to be compared with."""
    contexts = some(N_ROWS, N_CONTEXTS)
    log = tmp_path / "log"
    with LlmServer(replies=REPLIES, log_path=str(log)) as server:
        given = settings(server, tmp_path, rows_of(contexts), input__sample_groups=n_groups)
        given = {key: own for key, own in given.items() if "expected" not in key}
        config = with_journal(load_config(overrides=given), tmp_path / "journal")
        inputs = read_inputs(config, roles=calibration_roles(config))
        record = calibrate_complexity(
            config,
            with_sample(config, inputs),
            n_questions=1_000,
            seed=0,
            stop=threading.Event(),
        )
        n_rows = sum(chosen(contexts, n_groups))
        assert record.n_questions == server.stats()["n_calls"] == n_rows
