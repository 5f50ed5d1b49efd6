"""NACo through a whole job: real HTTP, in one process; what is paid, kept, scored, and why not."""

from __future__ import annotations

import json
import math
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from helpers import (
    assert_same_scores,
    qaeval,
    read_scores,
    run_locally,
    start_qaeval,
    write_parquet,
)
from llm_server import LlmServer, reply_text

from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, LanguageModelError, TooManyQuarantinedError
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.parse import Reply, parse_reply
from qaeval_core.llm.prompt import make_prompt, reminder_prompt
from qaeval_core.scoring.families.naco import answer_f1
from qaeval_core.scoring.job import make_job, read_inputs
from qaeval_core.scoring.plans import AskedFamilyPlan

CONTEXT = "Ann has kept the bees since 1987. She sells honey at the mill."
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
TWO_STEPS = "\n".join(["Verdict: natural", "Steps:", "1. a", "2. b", "Answer: <ans>Ann</ans>"])


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    """A server that knows some questions, and replies to others by their prompt."""
    with LlmServer(replies=REPLIES, latency_s=0.002) as running:
        yield running


def table(questions: list[str | None], **columns: list[Any]) -> pa.Table:
    """Return rows with one context and one answer."""
    given = {
        "question": pa.array(questions, pa.string()),
        "context": [CONTEXT] * len(questions),
        "answer": ["Ann"] * len(questions),
    }
    return pa.table({**given, **columns})


def many(n_rows: int) -> pa.Table:
    """Return rows whose questions all differ."""
    return table([f"Who keeps bee number {i}?" for i in range(n_rows)])


def settings(server: LlmServer, folder: Path, rows: pa.Table, **given: Any) -> dict[str, object]:
    """Return the settings of a job whose journal and ledger lie in the folder."""
    source = write_parquet(folder / "input.parquet", rows)
    defaults = {
        "input.paths": [str(source)],
        "output.path": str(folder / "out"),
        "naco.base_url": server.base_url,
        "naco.model": "m",
        "naco.expected_complexity": 2,
        "naco.ledger_path": str(folder / "ledgers"),
        "scoring.progress_s": 60,
    }
    return {**defaults, **{key.replace("__", "."): value for key, value in given.items()}}


def calls(outcome: Any) -> dict[str, Any]:
    """Return what the report says of calls."""
    (family,) = (own for key, own in outcome.report["families"].items() if key.startswith("naco"))
    return family["calls"]


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


def expected_row(question: str, gold: str, *, context: str) -> list[dict[str, Any]]:
    """Return what the row may be scored: from the first reply, or, where it was lost, reminded."""
    prompt = make_prompt(question=question, passages=[context], one_shot=False)
    replies: list[Reply] = [
        parse_reply(reply_text(messages)) for messages in (prompt, reminder_prompt(prompt))
    ]
    found = []
    for reply in replies:
        if not reply.is_readable:
            continue
        n = float(bool(reply.is_natural))
        a = answer_f1(reply.answer, gold=gold) if reply.answer and n else 0.0
        c = min(reply.n_steps, 2) / max(reply.n_steps, 2)
        found.append({"naco": (n + a + c) / 3 if n and a else 0.0, "naturalness": n})
    return found


def test_faults_of_every_kind_are_no_scores(tmp_path: Path) -> None:
    """Protects from a row lost, or judged 0, because of a fault."""
    kinds = ("error_500", "error_503", "hang", "reset", "truncated", "short", "wrong_schema")
    faults = {**dict.fromkeys(kinds, 0.025), "unparsable": 0.02, "bad_request": 0.02}
    rows = many(400)
    with LlmServer(faults=faults, hang_s=5.0, latency_s=0.002) as broken:
        job = settings(broken, tmp_path, rows, naco__timeout_s=1.0, naco__max_concurrent=64)
        outcome, _ = run_locally(job)
        stats = broken.stats()
    scores = read_scores(tmp_path / "out")
    assert scores.height == 400
    assert all(stats["outcomes"].get(kind, 0) > 0 for kind in faults)
    reasons = scores["naco_reason"].to_list()
    assert set(reasons) <= {None, "llm_bad_request", "unparsable_reply"}
    assert reasons.count("llm_bad_request") == stats["outcomes"]["bad_request"]
    for question, score, natural, reason in zip(
        rows["question"].to_pylist(),
        scores["naco"].to_list(),
        scores["naco_naturalness"].to_list(),
        reasons,
        strict=True,
    ):
        assert (score is None) == (reason is not None)
        if reason is None:
            allowed = expected_row(question, "Ann", context=CONTEXT)
            assert any(
                math.isclose(score, own["naco"], abs_tol=1e-6) and natural == own["naturalness"]
                for own in allowed
            )
    said = calls(outcome)
    failed = {
        "llm_server_error": stats["outcomes"]["error_500"],
        "llm_overloaded": stats["outcomes"]["error_503"],
        "llm_timeout": stats["outcomes"]["hang"],
        "llm_wrong_schema": stats["outcomes"]["wrong_schema"],
        "llm_bad_request": stats["outcomes"]["bad_request"],
    }
    assert {key: said["failed"].get(key, 0) for key in failed} == failed
    broken_kinds = sum(stats["outcomes"][kind] for kind in ("reset", "truncated", "short"))
    named = ("llm_broken_connection", "llm_truncated_reply")
    assert sum(said["failed"].get(key, 0) for key in named) == broken_kinds
    assert said["given_up"] == {"llm_bad_request": stats["outcomes"]["bad_request"]}
    assert said["paid"] == stats["n_ok"]
    assert stats["n_after_ok"] == 0


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
    assert not [path for path in written if b"0123456789" in path.read_bytes()]


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


def test_dry_run_tells_calls_tokens_money_and_time_and_sends_nothing(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from a surprise on the bill."""
    rows = table([*(f"Who is {i}?" for i in range(60)), *["Who is 1?"] * 40, None])
    source = write_parquet(tmp_path / "input.parquet", rows)
    before = server.stats()["n_calls"]
    words: list[str | Path] = ["score", source, "--metrics", "naco", "--dry-run"]
    for setting in (
        f"base_url={server.base_url}",
        "model=m",
        "expected_complexity=2",
        "requests_per_minute=60",
        "tokens_per_minute=1000000",
        "prices={prompt: 1, completion: 2}",
        "budget_usd=0.01",
        "runs=2",
        "max_tokens=100",
    ):
        words += ["--set", f"naco.{setting}"]
    output = qaeval(*words, "--out", tmp_path / "out")
    assert "120 calls to m" in output
    assert "80 equal ones are asked once" in output
    assert "1 rows to quarantine" in output
    assert "12,000 of replies at most" in output
    assert "2m00s at least, by requests_per_minute" in output
    assert "it may stop before the end" in output
    assert server.stats()["n_calls"] == before
    assert not (tmp_path / "out").exists()


def test_progress_tells_calls_limit_refusals_money_and_time(
    server: LlmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects from hours in which nobody knows whether the limit is used, or what it costs."""
    job = settings(
        server,
        tmp_path,
        many(60),
        naco__requests_per_minute=1200,
        naco__prices={"prompt": 1.0, "completion": 2.0},
    )
    run_locally({**job, "scoring.progress_s": 1.0})
    lines = [line for line in capsys.readouterr().err.splitlines() if "calls/s" in line]
    assert len(lines) >= 2
    shown = r"naco: \d+/60 rows .* rows/s, ETA \d+s, [\d.]+ calls/s, \d+ under way, "
    shown += r"\d+ % of the limit in use, 0 refused \(429\), \$0\.\d+ spent"
    assert re.fullmatch(shown, lines[1]), lines[1]


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        ("naco.base_url", "--set naco.base_url"),
        ("naco.model", "--set naco.model"),
        ("naco.expected_complexity", "qaeval calibrate"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_paid(
    server: LlmServer, tmp_path: Path, missing: str, hint: str
) -> None:
    """Protects from a bill for scores that cannot be computed."""
    before = server.stats()["n_calls"]
    job = settings(server, tmp_path, many(3))
    del job[missing]
    config = load_config(overrides=job)
    with pytest.raises(ConfigError, match=hint):
        make_job(config, read_inputs(config), device="cpu")
    assert server.stats()["n_calls"] == before


def test_two_instances_on_one_account_must_agree_on_its_limits(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from two budgets for one purse, of which neither holds."""
    job = settings(server, tmp_path, many(3))
    other = {key.replace("naco.", "metrics.b."): job[key] for key in job if "naco." in key}
    other |= {"metrics.b.metric": "naco", "metrics.b.one_shot": True}
    config = load_config(overrides={**job, **other, "metrics.b.requests_per_minute": 5})
    with pytest.raises(ConfigError, match="requests_per_minute"):
        make_job(config, read_inputs(config), device="cpu")


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
        with pytest.raises(ConfigError, match="calibrated for another model"):
            run_locally({**job, "naco.model": "third"})


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
    scores = pl.from_arrow(Scorer({"naco": given}).score(rows))
    assert scores["naco"].to_list() == [1.0, 0.0]
    del given["journal_path"]
    with pytest.raises(ConfigError, match="journal_path"):
        Scorer({"naco": given}).score(rows)


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


@pytest.mark.parametrize("given", ["sk-0123456789", "AIzaSyD4x9secret0123456789"])
def test_a_key_in_the_place_of_its_file_is_not_repeated(given: str) -> None:
    """Protects from a key in a terminal's history, a log, and run.json."""
    with pytest.raises(ConfigError, match="not the key") as refused:
        load_config(overrides={"naco.api_key_file": given})
    assert given not in str(refused.value)


def test_paths_are_those_of_who_submits(
    server: LlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a journal that lies wherever a worker happens to run."""
    monkeypatch.chdir(tmp_path)
    job = settings(server, tmp_path, many(2), naco__api_key_file="./key", naco__ledger_path="l")
    for out in ("out", f"file://{tmp_path}/out"):
        config = load_config(overrides={**job, "output.path": out})
        made = make_job(config, read_inputs(config), device="cpu")
        (plan,) = made.run.families
        assert isinstance(plan, AskedFamilyPlan)
        assert plan.journal_path == str(tmp_path / "out" / "journal")
        assert plan.settings.api_key_file == str(tmp_path / "key")
        assert plan.settings.ledger_path == str(tmp_path / "l")


def test_a_reply_with_half_a_character_is_scored(tmp_path: Path) -> None:
    """Protects from one cut emoji that keeps a run from ever ending."""
    reply = TWO_STEPS.replace("<ans>Ann", "<ans>Ann \ud83d")
    with LlmServer(replies={"Who?": [reply]}) as own:
        run_locally(settings(own, tmp_path, table(["Who?"])))
    scores = read_scores(tmp_path / "out")
    assert scores["naco"].null_count() == 0
    assert scores["naco_predicted_answer"].to_list()[0].startswith("Ann")


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


@pytest.mark.slow  # Six tries a row, further and further apart.
def test_rows_that_met_no_server_are_undefined_and_can_be_asked_again(tmp_path: Path) -> None:
    """Protects from a run that hangs, and from scores that stay lost when the server is back."""
    with LlmServer() as server:
        job = settings(server, tmp_path, many(2))
    outcome, _ = run_locally(job)
    assert read_scores(tmp_path / "out")["naco_reason"].to_list() == ["llm_no_connection"] * 2
    assert calls(outcome)["given_up"] == {"llm_no_connection": 2}
    with LlmServer(port=server.port):
        outcome, _ = run_locally({**job, "scoring.retry_quarantined": True})
    assert read_scores(tmp_path / "out")["naco"].null_count() == 0
    assert calls(outcome)["given_up"] == {}


@pytest.mark.slow
def test_a_server_that_is_down_stops_the_family(tmp_path: Path) -> None:
    """Protects from a million rows that are lost one by one, for days."""
    with LlmServer() as server:
        job = settings(server, tmp_path, many(400), scoring__rows_per_shard=8)
    outcome, _ = run_locally(job)
    (message,) = outcome.stopped.values()
    assert "20 requests in a row were given up" in message
    assert "ConnectError" in message
    reasons = read_scores(tmp_path / "out")["naco_reason"].to_list()
    assert reasons.count("pending") >= 350


def test_errors_of_calls_have_one_base() -> None:
    """Protects from a caller that must know every reason why calls can end."""
    from qaeval_core.errors import BudgetExhaustedError, EndpointRefusedError

    assert issubclass(BudgetExhaustedError, LanguageModelError)
    assert issubclass(EndpointRefusedError, LanguageModelError)
