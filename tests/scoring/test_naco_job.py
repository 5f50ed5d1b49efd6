"""NACo through a whole job: what replies are scored, kept and shared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from helpers import (
    as_table,
    assert_same_scores,
    qaeval,
    read_scores,
    run_locally,
    write_parquet,
)
from llm_server import LlmServer, reply_text
from naco_jobs import CONTEXT, TWO_STEPS, calls, many, settings, table
from qaeval_core import Scorer
from qaeval_core.errors import ConfigError
from qaeval_core.families.chat.naco_family import NacoFamily
from qaeval_core.families.chat.naco_prompt import make_prompt
from qaeval_core.families.chat.naco_reply import Reply, parse_reply
from qaeval_core.llm.journal import Journal

REPLIES = {
    "Who keeps the bees?": [
        "Verdict: natural\nSteps:\n1. It says so.\n2. That is all.\nAnswer: <ans>Ann</ans>"
    ],
    "Who sells honey since?": [
        "Verdict: natural\nSteps:\n1. a\n2. b\n3. c\n4. d\nAnswer: <ans>Ann of mill</ans>",
        "Verdict: unnatural\nSteps:\n1. a\nAnswer: <ans>Ann</ans>",
        "Verdict: natural\nSteps:\n1. a\n2. b\nAnswer: <ans>unanswerable</ans>",
    ],
    "The bees.": ["Verdict: not a question"],
    "Who chatters?": ["Let us talk about the weather.", "It is mild today."],
    "Who forgets the form?": [
        "I would say Ann.",
        "Verdict: natural\nSteps:\n1. Ann does.\nAnswer: <ans>Ann</ans>",
    ],
}


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    """A server that knows some questions, and replies to others by their prompt."""
    with LlmServer(replies=REPLIES, latency_s=0.002) as running:
        yield running


def test_scores_are_those_of_the_replies(server: LlmServer, tmp_path: Path) -> None:
    """Protects from a verdict, answer or step count that gets lost on its way to a score."""
    questions = ["Who keeps the bees?", "Who sells honey since?", "The bees.", "Who chatters?"]
    rows = table([*questions, "Who forgets the form?", "", None])
    outcome, _ = run_locally(settings(server, tmp_path, rows, naco__runs=3))
    scores = read_scores(tmp_path / "out")
    assert scores["naco"].to_list()[0] == pytest.approx(1.0)  # (n, a, steps, e) = (1, 1, 2, 2)
    # Runs (1, F1 of "Ann of mill" = .5, 4), (0, -, -), (1, 0, 2): n 2/3, a 1/6, steps 3, c 2/3.
    expected = (2 / 3 + 1 / 6 + 2 / 3) / 3
    assert scores["naco"].to_list()[1] == pytest.approx(expected)
    assert scores["naco_steps"].to_list()[:3] == [2.0, 3.0, None]
    assert scores["naco_naturalness"].to_list()[:3] == pytest.approx([1.0, 2 / 3, 0.0])
    assert scores["naco"].to_list()[2] == 0.0
    # "forgets" alternates: two of its three runs are reminded, and one of those forgets again.
    assert scores["naco_runs"].to_list()[:5] == [3, 3, 3, 0, 2]
    assert scores["naco_predicted_answer"].to_list()[0] == "Ann"
    assert scores["naco_reason"].to_list() == [
        *[None] * 3,
        "unparsable_reply",
        None,
        "empty_candidate",
        None,
    ]
    assert scores["quarantine_reason"].to_list() == [*[None] * 6, "null_candidate"]
    assert calls(outcome)["reminders"] == 3 + 2
    assert calls(outcome)["unparsable_runs"] == 3 + 1
    report = outcome.report
    assert report is not None
    assert report["instances"]["naco"]["undefined_by_reason"] == {
        "unparsable_reply": 1,
        "empty_candidate": 1,
    }


def test_profiles_weights_and_expectations_cost_no_call(server: LlmServer, tmp_path: Path) -> None:
    """Protects from paying again for what is arithmetic."""
    unnatural = "Verdict: unnatural\nSteps:\n1. a\n2. b\nAnswer: <ans>Ann</ans>"
    with LlmServer(replies={"Who keep bees?": [unnatural]}) as own:
        job = settings(own, tmp_path, table(["Who keep bees?"]))
        run_locally(job)
        assert read_scores(tmp_path / "out")["naco"].to_list() == [0.0]
        other = {"metrics.other.metric": "naco"}
        for key, value in job.items():
            if key.startswith("naco."):
                other[key.replace("naco.", "metrics.other.")] = value
        other |= {
            "metrics.other.profile": "authors",
            "metrics.other.expected_complexity": 4,
            "metrics.other.weights": {"naturalness": 2.0},
        }
        outcome, _ = run_locally({**job, **other})
        assert own.stats()["n_calls"] == 1
    # n 0.5, a 1, c 2/4, weights 2, 1, 1.
    assert read_scores(tmp_path / "out")["other"].to_list() == [(2 * 0.5 + 1 + 0.5) / 4]
    assert outcome.report is not None and len(outcome.report["families"]) == 1


def test_equal_questions_are_asked_once_and_paid_replies_never_again(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from paying twice: within a shard, across shards, and in another run."""
    rows = table([f"Who was number {i % 10}?" for i in range(300)])
    before = server.stats()["n_calls"]
    job = settings(server, tmp_path, rows, scoring__rows_per_shard=32)
    first, _ = run_locally(job)
    n_calls = server.stats()["n_calls"] - before
    prompts = [
        make_prompt(question=f"Who was number {i}?", passages=[CONTEXT], one_shot=False)
        for i in range(10)
    ]
    n_reminded = sum(not parse_reply(reply_text(prompt)).is_readable for prompt in prompts)
    assert n_calls == calls(first)["paid"] == 10 + n_reminded
    assert len(Journal(tmp_path / "out" / "journal")) == n_calls

    other = {"output.path": str(tmp_path / "other"), "naco.runs": 1}
    second, _ = run_locally({**job, **other, "naco.journal_path": str(tmp_path / "out/journal")})
    assert server.stats()["n_calls"] - before == n_calls
    assert calls(second)["paid"] == 0
    assert_same_scores(read_scores(tmp_path / "out"), read_scores(tmp_path / "other"))


def test_each_reply_is_read_once(
    server: LlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read for the journal, and once more for the score."""
    read: list[str] = []
    own = NacoFamily.read_reply

    def counted(family: NacoFamily, text: str) -> Reply:
        read.append(text)
        return own(family, text)

    monkeypatch.setattr(NacoFamily, "read_reply", counted)
    outcome, _ = run_locally(settings(server, tmp_path, many(20)))
    assert len(read) == calls(outcome)["paid"] >= 20


def test_replies_can_be_left_out_of_the_journal(server: LlmServer, tmp_path: Path) -> None:
    """Protects from texts that must not be kept, and from paying again without them."""
    job = settings(server, tmp_path, many(20), output__replies=False)
    run_locally(job)
    entries = list(Journal(tmp_path / "out" / "journal").entries())
    assert len(entries) >= 20
    assert {entry.text for entry in entries} == {None}
    assert set(entries[0].parsed or {}) == set(asdict(parse_reply(TWO_STEPS)))
    n_calls = server.stats()["n_calls"]
    journal = {"naco.journal_path": str(tmp_path / "out" / "journal")}
    run_locally({**job, "output.path": str(tmp_path / "other"), **journal})
    assert server.stats()["n_calls"] == n_calls
    assert_same_scores(read_scores(tmp_path / "out"), read_scores(tmp_path / "other"))


def test_several_passages_are_numbered_and_none_is_undefined(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from passages that run into one another, or from an empty one that counts."""
    passages = [["Ann has bees.", " ", "Bo has none."], ["", " "], [], ["Ann has bees."]]
    rows = table(["Who has bees?"] * 4, context=passages)
    run_locally(settings(server, tmp_path, rows))
    scores = read_scores(tmp_path / "out")
    assert scores["naco_reason"].to_list()[1:3] == ["empty_context"] * 2
    single = Journal(tmp_path / "out" / "journal")
    assert len(single) >= 2
    prompts = [
        make_prompt(question="Who has bees?", passages=given, one_shot=False)
        for given in (["Ann has bees.", "Bo has none."], ["Ann has bees."])
    ]
    texts = {entry.text for entry in single.entries()}
    assert {reply_text(prompt) for prompt in prompts} <= texts


def test_a_reply_with_half_a_character_is_scored(tmp_path: Path) -> None:
    """Protects from one cut emoji that keeps a run from ever ending."""
    reply = TWO_STEPS.replace("<ans>Ann", "<ans>Ann \ud83d")
    with LlmServer(replies={"Who?": [reply]}) as own:
        run_locally(settings(own, tmp_path, table(["Who?"])))
    scores = read_scores(tmp_path / "out")
    assert scores["naco"].null_count() == 0
    assert scores["naco_predicted_answer"].to_list()[0].startswith("Ann")


def test_rows_in_memory_are_asked_too(server: LlmServer, tmp_path: Path) -> None:
    """Protects from an API that knows fewer metrics than the command."""
    given = {
        "base_url": server.base_url,
        "model": "m",
        "expected_complexity": 2,
        "ledger_path": str(tmp_path / "ledgers"),
        "journal_path": str(tmp_path / "journal"),
    }
    rows = [
        {"question": "Who keeps the bees?", "context": CONTEXT, "answer": "Ann"},
        {"question": "The bees.", "context": [CONTEXT], "answer": "Ann"},
    ]
    scores = pl.from_arrow(as_table(Scorer({"naco": given}).score(rows)))
    assert scores["naco"].to_list() == [1.0, 0.0]
    del given["journal_path"]
    with pytest.raises(ConfigError, match="journal_path.*QA0207"):
        as_table(Scorer({"naco": given}).score(rows))


def test_calibration_finds_the_steps_and_scoring_takes_its_file(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from scores against the expectation of another corpus, model or prompt."""
    steps = {1: 2, 2: 5, 4: 4}
    replies, n = {}, 0
    for n_steps, n_questions in steps.items():
        for _ in range(n_questions):
            lines = [f"{i + 1}. s" for i in range(n_steps)]
            text = "\n".join(["Verdict: natural", "Steps:", *lines, "Answer: <ans>Ann</ans>"])
            replies[f"Who is {n}?"] = [text]
            n += 1
    replies["Who odd?"] = ["Verdict: unnatural\nSteps:\n1. a\nAnswer: <ans>Ann</ans>"]
    rows = pa.table(
        {
            "question": [None] * len(replies),
            "references": [[question, "Who else?"] for question in replies],
            "context": [CONTEXT] * len(replies),
        }
    )
    source = write_parquet(tmp_path / "input.parquet", rows)
    with LlmServer(replies=replies) as own:
        common = ["--set", f"naco.base_url={own.base_url}", "--set", "naco.model=m"]
        common += ["--set", f"naco.ledger_path={tmp_path / 'ledgers'}"]
        path = tmp_path / "complexity.json"
        words = ["--corpus", "bees", "--out", path, "--column", "references=references"]
        output = qaeval("calibrate", source, *words, *common)
        assert "e = 2 (profile paper)" in output
        content = json.loads(path.read_text())
        (record,) = content["complexities"]
        assert record["n_steps"] == {"1": 2, "2": 5, "4": 4}
        assert record["n_unnatural"] == 1
        assert record["authors"] == 2.0  # Median of 1 1 1 2 2 2 2 2 4 4 4 4, unnatural included.

        n_calls = own.stats()["n_calls"]
        qaeval("calibrate", source, *words, *common, "--set", "naco.model=other")
        assert own.stats()["n_calls"] == 2 * n_calls
        assert len(json.loads(path.read_text())["complexities"]) == 2

        job = settings(own, tmp_path, many(2), naco__expected_complexity=str(path))
        outcome, _ = run_locally(job)
        assert outcome.report is not None
        signature = outcome.report["instances"]["naco"]["signature"]
        assert "complexity_corpus:bees" in signature and "expected_complexity:2.0" in signature
        with pytest.raises(ConfigError, match="QA0216"):
            run_locally({**job, "naco.model": "third"})
