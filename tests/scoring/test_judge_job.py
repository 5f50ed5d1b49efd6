"""Judges through whole jobs: what replies are scored, shared, estimated and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from helpers import build_needed, qaeval, read_scores, run_locally, write_parquet
from llm_server import FAULTS, LlmServer
from qaeval_core.configure import load_config
from qaeval_core.explain.page import explanation_page
from qaeval_core.explain.row import explain_row
from qaeval_core.families.chat.judge_family import JudgeFamily
from qaeval_core.llm.journal import Journal
from qaeval_core.metrics.judge import fill
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.scoring.dry_run import dry_run_lines

PROMPT = """Rate how well the answer {answer} fits the question, from 1 to 5.

Passages:
{context}

Sentence:
{candidate}"""
CONTEXT = ["Ann has kept the bees since 1987.", "She sells honey {candidate} at the mill."]
REPLIES = {
    "Who keeps the bees?": ["It fits.\n\n5"],
    "Who sells honey?": ["4", "5", "Rating: 3/5"],
    "Who chatters?": ["Let us talk about the weather.", "It is mild today."],
    "Who exaggerates?": ["11", "5"],
}


def rows_of(*questions: str | None) -> pa.Table:
    """Return rows with one context and one answer."""
    return pa.table(
        {
            "id": [str(i) for i in range(len(questions))],
            "question": pa.array(questions, pa.string()),
            "context": [CONTEXT] * len(questions),
            "answer": ["Ann"] * len(questions),
        }
    )


def settings(server: LlmServer, folder: Path, rows: pa.Table, **given: Any) -> dict[str, object]:
    """Return the settings of a job with one judge."""
    (folder / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    own = {
        "base_url": server.base_url,
        "model": "m",
        "prompt_file": str(folder / "prompt.txt"),
        "ledger_path": str(folder / "ledgers"),
        **given,
    }
    return {
        "input.paths": [str(write_parquet(folder / "input.parquet", rows))],
        "output.path": str(folder / "out"),
        "scoring.progress_s": 60,
        **{f"judge.{key}": value for key, value in own.items()},
    }


def test_scores_are_the_means_of_numbers_on_the_scale(tmp_path: Path) -> None:
    """Protects from a number that is clipped, and from a reply without one that counts as 0."""
    rows = rows_of(*REPLIES, "", None)
    with LlmServer(replies=REPLIES, latency_s=0.002) as server:
        outcome, _ = run_locally(settings(server, tmp_path, rows, runs=3))
        n_calls = server.stats()["n_calls"]
    scores = read_scores(tmp_path / "out")
    assert scores["judge"].to_list()[:3] == [5.0, 4.0, None]
    assert scores["judge"].to_list()[3] == 5.0  # 11 is asked once more, and never is a 5.
    assert scores["judge_runs"].to_list()[:3] == [3, 3, 0]
    assert scores["judge_reason"].to_list() == [
        *[None, None, "unparsable_reply", None],
        *["empty_candidate", None],
    ]
    assert scores["quarantine_reason"].to_list() == [*[None] * 5, "null_candidate"]
    (family,) = outcome.report["families"].values()
    assert family["calls"]["paid"] == n_calls
    assert family["calls"]["reminders"] >= 3 + 1


def test_what_is_sent_is_the_prompt_with_the_rows_texts(tmp_path: Path) -> None:
    """Protects from braces of a passage that are filled, and from passages that are lost."""
    with LlmServer(replies=REPLIES) as server:
        run_locally(settings(server, tmp_path, rows_of("Who keeps the bees?")))
    explanation = explain_row(tmp_path / "out", identity="0")
    (family,) = explanation.families
    run, mean = family.targets[0].parts
    values = {
        "answer": "Ann",
        "context": "Ann has kept the bees since 1987.\n\nShe sells honey {candidate} at the mill.",
        "candidate": "Who keeps the bees?",
    }
    assert [own["content"] for own in run.data["prompt"]] == [fill(PROMPT, values)]
    assert "honey {candidate} at" in run.data["prompt"][0]["content"]
    assert (run.data["value"], run.data["reply"]) == (5.0, "It fits.\n\n5")
    assert explanation.is_equal and "(5) / 1 = 5.0000" in mean.line
    assert "honey {candidate} at" in explanation_page(explanation)


def test_two_judges_stand_side_by_side_and_pay_once_for_equal_prompts(tmp_path: Path) -> None:
    """Protects from one judge's prompt, scale or reading under another one's name."""
    with LlmServer(replies=REPLIES) as server:
        job = settings(server, tmp_path, rows_of("Who keeps the bees?", "Who sells honey?"))
        other = {key.replace("judge.", "metrics.other."): own for key, own in job.items()}
        other["metrics.other.metric"] = "judge"
        other["metrics.other.scale"] = [0, 4]
        outcome, _ = run_locally({**job, **other})
        assert server.stats()["n_calls"] == 2 + 1  # 5 is off the other scale: it asks again.
    scores = read_scores(tmp_path / "out")
    assert scores["judge"].to_list() == [5.0, 4.0]
    assert scores["other"].to_list() == [None, 4.0]
    assert len(outcome.report["families"]) == 2


def test_another_prompt_is_another_signature_and_is_asked_anew(tmp_path: Path) -> None:
    """Protects from scores of an old prompt under a file that was edited."""
    with LlmServer(replies=REPLIES) as server:
        job = settings(server, tmp_path, rows_of("Who keeps the bees?"))
        first, _ = run_locally(job)
        again, _ = run_locally(job)
        assert server.stats()["n_calls"] == 1
        (tmp_path / "prompt.txt").write_text(PROMPT.replace("Rate", "Judge"), encoding="utf-8")
        other, _ = run_locally(job)
        assert server.stats()["n_calls"] == 2
    signatures = [own.report["instances"]["judge"]["signature"] for own in (first, again, other)]
    assert signatures[0] == signatures[1] != signatures[2]


def test_a_dry_run_counts_calls_and_sends_nothing(tmp_path: Path) -> None:
    """Protects from a bill that nobody saw coming."""
    rows = rows_of(*[f"Who was number {i % 5}?" for i in range(20)])
    with LlmServer() as server:
        config = load_config(overrides=settings(server, tmp_path, rows, runs=2))
        build_needed(config)
        job = make_job(config, read_inputs(config), device="cpu")
        told = "\n".join(dry_run_lines(job))
        assert server.stats()["n_calls"] == 0
    assert "10 calls to m" in told
    assert "money: unknown without judge.prices" in told


def test_a_fifth_of_faults_is_never_a_number(tmp_path: Path) -> None:
    """A fault that became a 1 would be a verdict on a row that nobody read."""
    questions = [f"Who was number {i}?" for i in range(120)]
    with LlmServer(faults=dict.fromkeys(FAULTS, 0.2 / len(FAULTS)), hang_s=6.0) as server:
        job = settings(server, tmp_path, rows_of(*questions), timeout_s=2.0, max_concurrent=32)
        run_locally(job)
        assert server.stats()["n_after_ok"] == 0
    config = load_config(overrides=job)
    family = JudgeFamily(config.metrics["judge"])
    entries = Journal(tmp_path / "out" / "journal").entries()
    numbers = [family.read_reply(own.text or "").value for own in entries]
    scores = read_scores(tmp_path / "out")
    for value, n_runs, reason in scores.select("judge", "judge_runs", "judge_reason").iter_rows():
        if value is None:
            assert n_runs == 0
            assert reason == "unparsable_reply" or reason.startswith("llm_")
        else:
            assert (n_runs, reason) == (1, None) and 1 <= value <= 5
    assert scores.height == len(questions) and scores["judge"].drop_nulls().len() > 20
    found = sorted(scores["judge"].drop_nulls())
    assert found == sorted(number for number in numbers if number is not None)


def test_calls_that_were_given_up_are_repeated_if_asked(tmp_path: Path) -> None:
    """No row of theirs is quarantined: only what is known of the calls tells of them."""
    rows = rows_of(*(f"Who was number {i}?" for i in range(12)))
    with LlmServer(faults={"bad_request": 0.3}) as server:
        job = settings(server, tmp_path, rows)
        run_locally(job)
    first = read_scores(tmp_path / "out")
    failed = first.filter(pl.col("judge").is_null())
    assert set(failed["judge_reason"]) == {"llm_bad_request"}
    with LlmServer(port=server.port) as server:
        run_locally(job)
        assert server.stats()["n_calls"] == 0
        run_locally({**job, "scoring.retry_quarantined": True})
        assert server.stats()["n_calls"] == failed.height
    found = read_scores(tmp_path / "out")
    assert found["judge_runs"].to_list() == [1] * 12
    assert found.filter(pl.col("id").is_in(failed["id"].implode()).not_()).equals(
        first.filter(pl.col("judge").is_not_null())
    )


def test_the_command_line_says_what_is_missing(tmp_path: Path) -> None:
    """Protects from a stack trace where a setting is missing or a role is misspelled."""
    source = write_parquet(tmp_path / "input.parquet", rows_of("Who?"))
    words = ["score", source, "--out", tmp_path / "out", "--metrics", "judge", "--local"]
    given = ["--set", "judge.base_url=http://127.0.0.1:9/v1", "--set", "judge.model=m"]
    said = qaeval(*words, *given, expect=2)
    assert "metrics.judge.prompt_file is missing: --set judge.prompt_file=..." in said
    (tmp_path / "prompt.txt").write_text("Rate {anser}.")
    said = qaeval(*words, *given, "--set", f"judge.prompt_file={tmp_path}/prompt.txt", expect=2)
    assert "did you mean 'answer'" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("read", "form"), [("json:score", 'whose field "score" is one'), ("tag:score", "<score> and")]
)
def test_a_reminder_says_where_the_number_belongs(read: str, form: str, tmp_path: Path) -> None:
    """Protects from asking a second time for what was not said the first time."""
    with LlmServer(replies={"Who?": ["3"]}) as server:
        run_locally(settings(server, tmp_path, rows_of("Who?"), read=read))
        assert server.stats()["n_calls"] == 2
    assert read_scores(tmp_path / "out")["judge_reason"].to_list() == ["unparsable_reply"]
    explanation = explain_row(tmp_path / "out", identity="0")
    run, _ = explanation.families[0].targets[0].parts
    assert run.data["is_reminder"] and form in run.data["prompt"][-1]["content"]
    assert "from 1 to 5" in run.data["prompt"][-1]["content"]
