"""Replies that end early, think aloud or come in parts: no wrong number, no call for nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, read_scores, run_locally, write_parquet
from hostile_server import Asked, HostileServer, response
from qaeval_core.explain.row import explain_row
from qaeval_core.llm.journal_entry import JournalEntry, line_of
from qaeval_core.scoring.report import summary_lines
from qaeval_core.storage.path import as_path

GOOD = {
    "judge": "Rating: 4",
    "naco": "Natural.\nStep 1: Ann keeps the bees.\nAnswer: <ans>Ann</ans>",
}
READS = {"last_number": "4", "json:score": '{"score": 4}', "tag:score": "<score>4</score>"}
Job = dict[str, Any]


def body(content: object, finish_reason: str = "stop", **more: object) -> Mapping[str, Any]:
    """Return a chat completion of ten tokens."""
    own = {"role": "assistant", "content": content, **more}
    return {
        "choices": [{"index": 0, "message": own, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 10},
    }


def job_of(server: HostileServer, folder: Path, metric: str, *, n: int = 2, **given: object) -> Job:
    """Return the settings of a job with one metric that asks."""
    rows = {
        "id": [f"q{i}" for i in range(n)],
        "question": [f"Who keeps hive {i}?" for i in range(n)],
        "context": ["Ann keeps the bees."] * n,
        "answer": ["Ann"] * n,
    }
    (folder / "prompt.txt").write_text("Rate how clear it is: {candidate}", encoding="utf-8")
    own = {
        "judge": {"prompt_file": str(folder / "prompt.txt")},
        "naco": {"expected_complexity": 1},
    }[metric]
    own |= {"base_url": server.base_url, "model": "m", "ledger_path": str(folder / "ledgers")}
    return {
        "input.paths": [str(write_parquet(folder / "input.parquet", pa.table(rows)))],
        "output.path": str(folder / "out"),
        "scoring.progress_s": 60,
        **{f"{metric}.{key}": value for key, value in {**own, **given}.items()},
    }


def always(sent: Mapping[str, Any]) -> Callable[[Asked], list[bytes]]:
    return lambda _: [response(sent)]


def calls(outcome: Any) -> dict[str, Any]:
    """Return what the report says of the calls of the only family."""
    (family,) = outcome.report["families"].values()
    found: dict[str, Any] = family["calls"]
    return found


@pytest.mark.parametrize("metric", GOOD)
@pytest.mark.parametrize(
    ("finish_reason", "reason"),
    [
        ("length", "cut_reply"),
        ("MAX_TOKENS", "cut_reply"),
        ("content_filter", "filtered"),
        ("refusal", "refusal"),
        ("tool_calls", "failed_reply"),
    ],
)
def test_a_reply_that_did_not_end_by_itself_is_no_verdict(
    metric: str, finish_reason: str, reason: str, tmp_path: Path
) -> None:
    """The last number of half a sentence was the score; and none is asked for again."""
    with HostileServer(always(body(GOOD[metric], finish_reason))) as server:
        outcome, _ = run_locally(job_of(server, tmp_path, metric))
        assert len(server.asked) == 2
    scores = read_scores(tmp_path / "out")
    assert scores[metric].to_list() == [None, None]
    assert scores[f"{metric}_reason"].to_list() == [reason] * 2
    assert calls(outcome)["no_verdict"] == {reason: 2}
    assert (calls(outcome)["paid"], calls(outcome)["reminders"]) == (2, 0)
    explanation = explain_row(tmp_path / "out", identity="q0")
    run = explanation.families[0].targets[0].parts[0]
    assert explanation.is_equal and run.data["reply"] == GOOD[metric]
    assert reason in run.line and finish_reason in run.data["message"]
    assert (f"{metric}.max_tokens" in run.data["message"]) is (reason == "cut_reply")
    said = "\n".join(summary_lines(outcome.report, as_path(tmp_path / "out")))
    assert f"{reason} 2" in said
    assert (f"--set {metric}.max_tokens=N" in said) is (reason == "cut_reply")


@pytest.mark.parametrize("read", READS)
def test_whatever_reads_the_number_a_cut_reply_has_none(read: str, tmp_path: Path) -> None:
    """Also where what was asked for stands whole in it: the model had more to say."""
    with HostileServer(always(body(READS[read], "length"))) as server:
        run_locally(job_of(server, tmp_path, "judge", **{"read": read}))
    assert read_scores(tmp_path / "out")["judge_reason"].to_list() == ["cut_reply"] * 2


@pytest.mark.parametrize("metric", GOOD)
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_that_use_all_tokens_up_are_a_cut_reply(
    metric: str, field: str, tmp_path: Path
) -> None:
    """It was paid for twice, and nothing said why."""
    sent = body(None, "length", **{field: f"Let me think. {GOOD[metric]}"})
    with HostileServer(always(sent)) as server:
        run_locally(job_of(server, tmp_path, metric))
        assert len(server.asked) == 2
    assert read_scores(tmp_path / "out")[f"{metric}_reason"].to_list() == ["cut_reply"] * 2


@pytest.mark.parametrize("metric", GOOD)
@pytest.mark.parametrize("thought", ["<think>{}</think>", "[THINK]{}[/THINK]", "{}</think>"])
def test_a_verdict_is_never_taken_from_thoughts(metric: str, thought: str, tmp_path: Path) -> None:
    """Neither where they stand before the verdict nor where there is none."""
    other = {"judge": "Rating: 1", "naco": "Not a question."}[metric]
    sent = thought.format(other)

    def answer(asked: Asked) -> list[bytes]:
        return [response(body(sent + GOOD[metric] if "hive 0" in asked.sentence else sent))]

    with HostileServer(answer) as server:
        run_locally(job_of(server, tmp_path, metric))
    scores = read_scores(tmp_path / "out")
    assert scores[metric].to_list() == [{"judge": 4.0, "naco": 1.0}[metric], None]
    assert scores[f"{metric}_reason"].to_list() == [None, "unparsable_reply"]


def test_a_run_that_was_cut_does_not_count_and_others_do(tmp_path: Path) -> None:
    sent = [body("Rating: 5"), body("Rating: 1", "length"), body("Rating: 4")]

    with HostileServer(lambda _: [response(sent.pop())]) as server:
        outcome, _ = run_locally(job_of(server, tmp_path, "judge", n=1, runs=3, max_concurrent=1))
    scores = read_scores(tmp_path / "out")
    assert (scores["judge"].to_list(), scores["judge_runs"].to_list()) == ([4.5], [2])
    assert calls(outcome)["no_verdict"] == {"cut_reply": 1}


def test_replies_of_an_earlier_journal_are_looked_at_alike(tmp_path: Path) -> None:
    """A journal has the end of every reply: what was cut then is no verdict now."""
    with HostileServer(always(body("Rating: 4", "length"))) as server:
        job = job_of(server, tmp_path, "judge", journal_path=str(tmp_path / "journal"))
        run_locally(job)
        run_locally(job | {"output.path": str(tmp_path / "again"), "output.replies": False})
        assert len(server.asked) == 2
    assert read_scores(tmp_path / "again")["judge_reason"].to_list() == ["cut_reply"] * 2


def test_a_run_that_ends_for_its_server_says_what_failed(tmp_path: Path) -> None:
    """ "0 calls failed" stood there after 98 of them: no row of theirs was committed."""
    sent = {"id": "1", "choices": [], "usage": {}}
    with HostileServer(always(sent)) as server:
        job = job_of(server, tmp_path, "judge", n=30, max_outage_s=2)
        outcome, _ = run_locally(job)
        n_calls = len(server.asked)
    (why,) = outcome.stopped.values()
    assert "choices are empty" in why
    # A busy machine may break a connection, too.
    failed = {reason: int(n) for reason, n in re.findall(r"(llm_\w+) (\d+)", why)}
    assert 5 <= failed["llm_wrong_schema"] <= n_calls
    said = summary_lines(outcome.report, as_path(tmp_path / "out"))
    assert any(f"{sum(failed.values())} calls failed" in line for line in said)


def test_no_credit_ends_the_run_after_a_call_or_two(tmp_path: Path) -> None:
    """A gateway says it with status 200; asked six times a row it says it no better."""
    sent = {"error": {"message": "Insufficient credits", "code": 402}}
    with HostileServer(always(sent)) as server:
        job = job_of(server, tmp_path, "naco", n=30, max_concurrent=2)
        outcome, _ = run_locally(job)
        assert len(server.asked) <= 2
    (why,) = outcome.stopped.values()
    assert "Insufficient credits" in why and "llm_endpoint_refuses" in why


def test_rate_limits_in_a_body_slow_the_pace_and_lose_no_row(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(asked: Asked) -> list[bytes]:
        seen.append(asked.sentence)
        if len(seen) % 3 == 0:
            return [response({"choices": None, "error": {"message": "Wait", "code": 429}})]
        return [response(body(GOOD["judge"]))]

    with HostileServer(answer) as server:
        outcome, _ = run_locally(job_of(server, tmp_path, "judge", n=6))
    assert read_scores(tmp_path / "out")["judge"].to_list() == [4.0] * 6
    assert set(calls(outcome)["failed"]) == {"llm_rate_limited"}


LONG = {
    "judge": "It may be 2. " + "no wait, hmm. " * 6_000 + "The score is 5.",
    "naco": "Natural.\n1. Is it <ans>Bob</ans>?\n" + "no wait, hmm. " * 6_000
    + "\nAnswer: <ans>Ann</ans>",
}  # fmt: skip


@pytest.mark.parametrize("metric", LONG)
@pytest.mark.parametrize("keeps_replies", [True, False])
def test_a_reply_that_is_cut_here_is_no_verdict_either(
    metric: str, keeps_replies: bool, tmp_path: Path
) -> None:
    """The last number of its first 64 kB was the score; nor is it one when it is read again."""
    with HostileServer(always(body(LONG[metric]))) as server:
        job = job_of(server, tmp_path, metric, journal_path=str(tmp_path / "journal"))
        job |= {"output.replies": keeps_replies}
        run_locally(job)
        run_locally(job | {"output.path": str(tmp_path / "again")})
        assert len(server.asked) == 2
    for out in ("out", "again"):
        assert read_scores(tmp_path / out)[f"{metric}_reason"].to_list() == ["cut_reply"] * 2
        (file,) = (tmp_path / out / "families").rglob("*.parquet")
        for (said,) in pq.read_table(file)["message"].to_pylist():
            assert "64 kB" in said and "max_tokens" not in said


def test_a_torso_of_an_earlier_journal_is_no_verdict(tmp_path: Path) -> None:
    """It says that it ended by itself, and has the 64 kB that were kept."""
    with HostileServer(always(body(LONG["judge"]))) as server:
        job = job_of(server, tmp_path, "judge", n=1, journal_path=str(tmp_path / "journal"))
        run_locally(job)
        (file,) = (tmp_path / "journal").glob("replies-*")
        (line,) = file.read_text().splitlines()
        entry = json.loads(line)
        entry = {name: own for name, own in entry.items() if name in {
            field.name for field in fields(JournalEntry)}}  # fmt: skip
        file.write_text(line_of(JournalEntry(**{**entry, "finish_reason": "stop"})))
        run_locally(job | {"output.path": str(tmp_path / "again")})
        assert len(server.asked) == 1
    assert read_scores(tmp_path / "again")["judge_reason"].to_list() == ["cut_reply"]


def test_a_row_that_a_filter_keeps_back_costs_no_other_row(tmp_path: Path) -> None:
    def answer(asked: Asked) -> list[bytes]:
        if "hive 1?" not in asked.sentence:
            return [response(body("Rating: 4"))]
        flagged = {"code": 403, "message": "Input was flagged", "metadata": {"reasons": ["x"]}}
        return [response({"error": flagged})]

    with HostileServer(answer) as server:
        run_locally(job_of(server, tmp_path, "judge", n=6))
        assert len(server.asked) == 6
    scores = read_scores(tmp_path / "out")
    assert scores["judge"].to_list() == [4.0, None, 4.0, 4.0, 4.0, 4.0]
    assert scores["judge_reason"].to_list()[1] == "filtered"


def test_thoughts_alone_are_asked_for_once(tmp_path: Path) -> None:
    sent = body(None, reasoning="I think 3")
    sent["choices"][0]["finish_reason"] = None
    with HostileServer(always(sent)) as server:
        outcome, _ = run_locally(job_of(server, tmp_path, "judge"))
        assert len(server.asked) == 2
    assert calls(outcome)["no_verdict"] == {"empty_reply": 2}


def test_the_way_out_is_named_for_the_instance_that_needs_it(tmp_path: Path) -> None:
    """Who followed it set `judge.max_tokens`, and was told that there is no such instance."""
    with HostileServer(always(body("so 3", "length"))) as server:
        job = job_of(server, tmp_path, "judge")
        own = {key.replace("judge.", "metrics.clarity."): value for key, value in job.items()}
        run_locally(own | {"metrics.clarity.metric": "judge"})
    (file,) = (tmp_path / "out" / "families").rglob("*.parquet")
    for (said,) in pq.read_table(file)["message"].to_pylist():
        assert "--set clarity.max_tokens=N" in said


def test_the_command_says_how_to_get_whole_replies(tmp_path: Path) -> None:
    with HostileServer(always(body("1, 2, 3", "length"))) as server:
        job = job_of(server, tmp_path, "judge")
        path, out = job.pop("input.paths")[0], job.pop("output.path")
        given = [word for key, value in job.items() for word in ("--set", f"{key}={value}")]
        output = qaeval("score", path, "--out", out, "--local", "--metrics", "judge", *given,
                        expect=1)  # fmt: skip
    assert "cut_reply 2" in output and "judge.max_tokens=N" in output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["instances"]["judge"]["undefined_by_reason"] == {"cut_reply": 2}
