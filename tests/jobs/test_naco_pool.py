"""The pool of actors against a server that counts: limits filled and kept, faults outlived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import write_parquet
from llm_server import FAULTS, UNPARSABLE, LlmServer, reply_text
from naco_runs import NacoRun, Row, expected_scores, messages_of, questions, table_of
from qaeval_core.families.chat.naco_prompt import reminder_prompt
from qaeval_core.families.chat.naco_reply import parse_reply
from qaeval_core.llm.journal import Journal
from wall_clock import Report, Stats, check_figures

Arrival = dict[str, Any]

WINDOW_S = 4.0
LIMITS = {"requests": 160, "tokens": 100_000}
N_SHORT, N_LONG = 1200, 800  # Calls of about 440 and 860 tokens: 160 of the long ones are too many.


def use_by_window(arrivals: Sequence[Arrival]) -> dict[str, list[float]]:
    """Return the used shares of the limit that binds, of each window but the first and last.

    The limit that binds is the one that is used more.
    """
    start_s = arrivals[0]["t_s"]
    n_windows = int((arrivals[-1]["t_s"] - start_s) / WINDOW_S)
    used = {name: [0.0] * (n_windows + 1) for name in LIMITS}
    for arrival in arrivals:
        number = int((arrival["t_s"] - start_s) / WINDOW_S)
        used["requests"][number] += 1 / LIMITS["requests"]
        used["tokens"][number] += arrival["n_tokens"] / LIMITS["tokens"]
    found: dict[str, list[float]] = {name: [] for name in LIMITS}
    for number in range(1, n_windows):
        binding = max(LIMITS, key=lambda name: used[name][number])
        found[binding].append(used[binding][number])
    return found


def check_limits(stats: Stats) -> None:
    """Check that no window held too many."""
    assert stats["n_refused"] == 0
    assert stats["max_requests_in_window"] <= LIMITS["requests"]
    assert stats["max_tokens_in_window"] <= LIMITS["tokens"]


def check_use(stats: Stats) -> None:
    """Check that the limit that binds was filled."""
    for own in use_by_window(stats["log"]).values():
        assert len(own) >= 3
        assert sum(own) / len(own) >= 0.95


def run_with_two_actors(rows: Sequence[Row], source: Path, folder: Path) -> Stats:
    """Score rows and check what holds whatever the machine does; return the server's counts."""
    folder.mkdir()
    limits = {f"{name}_per_minute": limit for name, limit in LIMITS.items()}
    log_path = str(folder / "server.jsonl")
    with LlmServer(window_s=WINDOW_S, log_path=log_path, **limits) as server:
        run = NacoRun(server, source, folder, words=["--set", "cluster.llm_actors=2"])
        run.run()
        stats = server.stats()
        # Nothing is lost, and nothing is paid twice.
        assert run.scores()["id"].to_list() == [row["id"] for row in rows]
        assert set(run.scores()["naco_reason"]) <= {None, "unparsable_reply"}
        assert stats["n_after_ok"] == 0
        assert {counts["ok"] for counts in stats["requests"].values()} == {1}
        assert run.calls()["paid"] == stats["n_ok"] >= len(rows)
        assert run.ledger().of(only_budget(run)).spent == round(stats["billed_usd"] * 1e9)
        segments = [path.read_text().count("\n") for path in run.journal.glob("*.jsonl")]
        assert len(segments) == 2 and min(segments) > len(rows) / 4, segments
        return stats | {"log": server.log()}


@pytest.mark.ray
@pytest.mark.long
def test_two_actors_fill_the_limit_that_binds_and_keep_both(
    tmp_path: Path, record_property: Report
) -> None:
    """Above a limit is a ban, below it is time that was paid for; 2,000 rows, each paid once."""
    rows = questions(N_SHORT) + questions(N_LONG, first=N_SHORT, n_contexts=6)
    source = write_parquet(tmp_path / "input.parquet", table_of(rows))
    measured: list[Stats] = []

    def measure() -> list[Stats]:
        measured.append(run_with_two_actors(rows, source, tmp_path / str(len(measured))))
        return measured[-1:]

    check_figures(
        measure, lambda found: check_limits(found[0]), record_property,
        check_use=lambda found: check_use(found[0]), n_tries=3,
    )  # fmt: skip
    for name, own in use_by_window(measured[-1]["log"]).items():
        if own:
            used = f"{sum(own) / len(own):.1%} in {len(own)} windows"
            record_property(f"{name} used where they bind", used)


def only_budget(run: NacoRun) -> str:
    """Return the name of the budget that a ledger has."""
    (name,) = run.ledger().money
    return name


def replies_of(run: NacoRun) -> dict[str, str]:
    """Return the texts of a journal by the requests' names."""
    entries = {entry.key: entry.text for entry in Journal(run.journal).entries()}
    return {key: text for key, text in entries.items() if text is not None}


def check_row(run: NacoRun, row: Row, scored: dict[str, Any], replies: dict[str, str]) -> None:
    """Check one row against the replies that the server gave, or did not give."""
    asked = messages_of(row)
    for messages in (asked, reminder_prompt(asked)):
        text = replies.get(run.key(messages))
        if text is None:
            # No reply: a reason, and no number that could be taken for a score.
            assert scored["naco_reason"].startswith("llm_"), scored
            assert scored["naco"] is scored["naco_answerability"] is None, scored
            return
        assert text in (reply_text(messages), UNPARSABLE)
        reply = parse_reply(text)
        if reply.is_readable:
            assert scored["naco_reason"] is None, scored
            for name, value in expected_scores(reply, gold=row["answer"]).items():
                found = scored[f"naco_{name}".rstrip("_")]
                assert found == (None if value is None else pytest.approx(value, abs=1e-6)), name
            return
    assert (scored["naco"], scored["naco_reason"]) == (None, "unparsable_reply")


@pytest.mark.slow
def test_a_fifth_of_faults_is_never_a_score(tmp_path: Path) -> None:
    """A fault that became a 0 would be a verdict on a question that nobody read."""
    rows = questions(400)
    source = write_parquet(tmp_path / "input.parquet", table_of(rows))
    faults = dict.fromkeys(FAULTS, 0.2 / len(FAULTS))
    with LlmServer(faults=faults, hang_s=6.0) as server:
        settings = {"timeout_s": 2.0, "max_concurrent": 64}
        run = NacoRun(server, source, tmp_path, settings, words=["--local"])
        printed = run.run()
        stats = server.stats()
    replies = replies_of(run)
    scores = run.scores().to_dicts()
    assert [scored["id"] for scored in scores] == [row["id"] for row in rows]
    for row, scored in zip(rows, scores, strict=True):
        check_row(run, row, scored, replies)

    outcomes, calls = stats["outcomes"], run.calls()
    assert set(FAULTS) < set(outcomes)
    assert calls["failed"] == {
        "llm_server_error": outcomes["error_500"],
        "llm_overloaded": outcomes["error_503"],
        "llm_timeout": outcomes["hang"],
        "llm_broken_connection": outcomes["reset"] + outcomes["short"],
        "llm_truncated_reply": outcomes["truncated"],
        "llm_wrong_schema": outcomes["wrong_schema"],
        "llm_bad_request": outcomes["bad_request"],
    }
    assert calls["paid"] == len(replies) == stats["n_ok"]
    assert calls["given_up"] == {"llm_bad_request": outcomes["bad_request"]}
    reasons = Counter(scored["naco_reason"] for scored in scores)
    assert reasons["llm_bad_request"] == outcomes["bad_request"]
    assert f"llm_bad_request {outcomes['bad_request']}" in printed
    assert stats["n_after_ok"] == 0
    # What a failed call cost is not known: its reservation is the most that it can have been.
    assert run.ledger().of(only_budget(run)).spent >= round(stats["billed_usd"] * 1e9)
