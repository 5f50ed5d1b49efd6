"""A row of NACo explained: replies, prompts and sums, from what is committed and journaled."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import naco_jobs
from helpers import build_matches, qaeval, read_scores, run_locally, write_parquet
from journals import sealed_text
from llm_server import LlmServer
from naco_jobs import CONTEXT
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, ReconcileError
from qaeval_core.explain.page import explanation_lines, explanation_page
from qaeval_core.explain.parts import Explanation, explanation_content
from qaeval_core.explain.row import explain_row
from qaeval_core.families.chat.naco_prompt import make_prompt, reminder_prompt

ATTACK = "<script>alert('x')</script>\x1b[2J"
HACKED = f"Verdict: natural\nSteps:\n1. {ATTACK}\nAnswer: <ans>Ann <b>of</b>\x1b[1m</ans>"
RIGHT = "Verdict: natural\nSteps:\n1. It says so.\n2. That is all.\nAnswer: <ans>Ann</ans>"
REPLIES = {
    "Who keeps the bees?": [
        RIGHT,
        "Verdict: unnatural\nSteps:\n1. a\nAnswer: <ans>Ann</ans>",
        "Verdict: natural\nSteps:\n1. a\n2. b\nAnswer: <ans>unanswerable</ans>",
    ],
    "Who chatters?": ["Let us talk about the weather.", "It is mild today."],
    "Who forgets the form?": ["I would say Ann.", RIGHT],
    "Who hacks?": [HACKED],
    "The bees.": ["Verdict: not a question"],
}
KEY = "sk-right-0123456789"
# What programs read of JSON: neither kinds nor keys change.
KEYS = {
    "naco_run": [
        *("run", "n_runs", "problem", "message", "is_question", "is_natural", "n_steps"),
        *("answer", "says_unanswerable", "answer_f1", "gold_answer", "prompt", "is_reminder"),
        *("key", "reply", "finish_reason", "notes"),
    ],
    "naco_formula": [
        *("instance", "profile", "expected_complexity", "weights", "n_counted", "naturalness"),
        *("answerability", "complexity", "steps", "score", "reason"),
    ],
}


@dataclass(frozen=True)
class Scored:
    """A finished run, and the server that it asked."""

    out: Path
    server: LlmServer


def table(questions: list[str]) -> pa.Table:
    """Return rows with one context and one answer, whose ids are their questions."""
    n_rows = len(questions)
    columns = {"context": [CONTEXT] * n_rows, "answer": ["Ann"] * n_rows, "gold": ["Ann"] * n_rows}
    return pa.table({"id": questions, "question": questions, **columns})


def settings(server: LlmServer, folder: Path, rows: pa.Table, **given: Any) -> dict[str, object]:
    """Return the settings of a job of NACo and F1."""
    f1 = {"metrics__f1__metric": "f1", "input__columns__references": "gold"}
    return naco_jobs.settings(server, folder, rows, **f1, **given)


def parts_of(explanation: Explanation, kind: str) -> list[SimpleNamespace]:
    """Return what JSON has of parts of NACo, and their lines."""
    own = next(found for found in explanation.families if found.family == "naco")
    (target,) = own.targets
    return [
        SimpleNamespace(line=part.line, **part.data) for part in target.parts if part.kind == kind
    ]


def runs_of(explanation: Explanation) -> list[SimpleNamespace]:
    """Return what is shown of the runs."""
    return parts_of(explanation, "naco_run")


def shown(explanation: Explanation) -> str:
    """Return the terminal's lines."""
    return "\n".join(explanation_lines(explanation))


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scored]:
    """A run of NACo in two instances beside F1; its key is gone afterwards."""
    folder = tmp_path_factory.mktemp("naco")
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(KEY)
    with LlmServer(replies=REPLIES, latency_s=0.001, key=KEY) as server:
        rows = table([*REPLIES, " "])
        job = settings(server, folder, rows, naco__runs=3, naco__api_key_file=str(key))
        other = {name.replace("naco.", "metrics.b."): job[name] for name in job if "naco." in name}
        other |= {"metrics.b.metric": "naco", "metrics.b.profile": "authors"}
        other |= {"metrics.b.weights": {"naturalness": 2.0}, "metrics.b.expected_complexity": 4}
        run_locally({**job, **other})
        key.unlink()
        yield Scored(folder / "out", server)


@pytest.fixture
def own(scored: Scored, tmp_path: Path) -> Iterator[Path]:
    """The same OUT, whose journal a test may change."""
    shutil.copytree(scored.out / "journal", tmp_path / "journal")
    yield scored.out
    shutil.rmtree(scored.out / "journal", ignore_errors=True)
    shutil.copytree(tmp_path / "journal", scored.out / "journal")


def test_every_run_shows_its_reply_reading_and_prompt(scored: Scored) -> None:
    """Protects from a score that nobody can trace to what the model said."""
    n_calls = scored.server.stats()["n_calls"]
    explanation = explain_row(scored.out, identity="Who keeps the bees?")
    assert scored.server.stats()["n_calls"] == n_calls
    runs = runs_of(explanation)
    # Runs are asked at once, so any of them may have got the first reply.
    assert sorted(str(run.reply) for run in runs) == sorted(REPLIES["Who keeps the bees?"])
    assert [run.run for run in runs] == [1, 2, 3]
    by_reply = {run.reply: run for run in runs}
    right, unnatural, unanswerable = (by_reply[text] for text in REPLIES["Who keeps the bees?"])
    assert (right.is_natural, right.n_steps, right.answer, right.answer_f1) == (True, 2, "Ann", 1)
    assert (unnatural.is_natural, unnatural.n_steps) == (False, 1)
    assert ": unnatural, 1 step, " in unnatural.line
    assert (unanswerable.answer, unanswerable.answer_f1) == (None, 0.0)
    assert unanswerable.says_unanswerable
    prompt = make_prompt(question="Who keeps the bees?", passages=[CONTEXT], one_shot=False)
    for run in runs:
        assert (run.problem, run.is_reminder, run.notes) == (None, False, ())
        assert list(run.prompt) == prompt
        assert (run.gold_answer, run.finish_reason) == ("Ann", "stop")
    lines = shown(explanation)
    assert "natural, 2 steps, answer 'Ann', F1 1.0000 with 'Ann'; reply 'Verdict: natural" in lines
    assert "says that the passages do not answer" in lines


def test_sums_of_every_instance_equal_what_is_stored(scored: Scored) -> None:
    """Protects from an explanation of a number that is not the score."""
    explanation = explain_row(scored.out, identity="Who keeps the bees?")
    naco, other = parts_of(explanation, "naco_formula")
    # n 2/3, a 1/3, s (2 + 2) / 2; of profile authors n 2.5/3, a 2/3, s 5/3, e 4.
    assert naco.score == pytest.approx((2 / 3 + 1 / 3 + 1) / 3)
    assert naco.line.endswith("; (1 × 0.6667 + 1 × 0.3333 + 1 × 1) / 3 = 0.6667")
    assert (naco.n_counted, naco.steps, naco.expected_complexity) == (3, 2.0, 2.0)
    assert (other.instance, other.profile, other.weights) == ("b", "authors", [2.0, 1.0, 1.0])
    assert other.score == pytest.approx((2 * 2.5 / 3 + 2 / 3 + 5 / 3 / 4) / 4)
    assert explanation.is_equal and explanation.max_difference < 1e-5
    stored = read_scores(scored.out).to_dicts()[0]
    for instance in explanation.instances:
        for line in instance.scores:
            assert line.is_compared
            assert line.stored == stored[line.column]
    assert explanation.notes == ()


def test_a_reminder_and_a_run_that_does_not_count_say_so(scored: Scored) -> None:
    """Protects from a reply that is shown beside a prompt it did not answer."""
    forgot = runs_of(explain_row(scored.out, identity="Who forgets the form?"))
    assert {run.is_reminder for run in forgot} == {True, False}
    prompt = make_prompt(question="Who forgets the form?", passages=[CONTEXT], one_shot=False)
    for run in forgot:
        assert list(run.prompt) == (reminder_prompt(prompt) if run.is_reminder else prompt)
        assert (run.reply == RIGHT) == (run.problem is None)
    explanation = explain_row(scored.out, identity="Who chatters?")
    for run in runs_of(explanation):
        assert (run.problem, run.message, run.is_reminder) == (
            "unparsable_reply",
            "no_answer",
            True,
        )
        assert run.reply in REPLIES["Who chatters?"]
    lines = shown(explanation)
    assert "run 1 of 3, after a reminder: does not count, unparsable_reply (no_answer)" in lines
    assert "undefined: unparsable_reply" in lines
    page = explanation_page(explanation)
    assert "This run does not count: unparsable_reply: no_answer" in page
    assert "The prompt, with the reminder" in page


def test_rows_that_were_not_asked_or_ask_nothing_are_explained(scored: Scored) -> None:
    """Protects from a trace, or an empty page, where there is no reply or no sum."""
    empty = explain_row(scored.out, identity=" ")
    assert runs_of(empty) == []
    assert empty.is_equal
    assert "naco of naco, b: undefined, empty_candidate" in shown(empty)
    assert "Undefined: empty_candidate" in explanation_page(empty)
    nothing = explain_row(scored.out, identity="The bees.")
    assert "run 1 of 3: not a question; reply" in shown(nothing)
    assert "0, because n = 0" in shown(nothing)


def test_a_reply_that_is_a_script_is_shown_and_never_run(scored: Scored) -> None:
    """Protects from a model, or who wrote its passages, that takes over page or terminal."""
    explanation = explain_row(scored.out, identity="Who hacks?")
    page = explanation_page(explanation)
    assert "<script" not in page and "<b>" not in page and "\x1b" not in page
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;␛[2J") == 3
    assert "\x1b" not in shown(explanation)
    content = json.loads(json.dumps(explanation_content(explanation), allow_nan=False))
    family = next(own for own in content["families"] if own["family"] == "naco")
    parts = family["targets"][0]["parts"]
    assert [part["kind"] for part in parts] == ["naco_run"] * 3 + ["naco_formula"] * 2
    assert {part["kind"]: sorted(part.keys() - {"kind"}) for part in parts} == {
        kind: sorted(keys) for kind, keys in KEYS.items()
    }
    assert parts[0]["reply"] == HACKED


def test_a_journal_that_is_gone_leaves_what_is_committed(own: Path) -> None:
    """Protects from an explanation that needs what people delete first."""
    shutil.rmtree(own / "journal")
    explanation = explain_row(own, identity="Who keeps the bees?")
    assert not (own / "journal").exists()
    assert explanation.is_equal
    for run in runs_of(explanation):
        assert run.reply is None and run.n_steps
        assert "journal" in run.notes[0] and "is gone" in run.notes[0]
    assert "is gone" in shown(explanation) and "is gone" in explanation_page(explanation)


def edited(path: Path) -> str:
    """Return a segment with another text of a reply."""
    lines = re.sub(r',"crc32":"[0-9a-f]{8}"}', "}", path.read_text())
    lines = lines.replace("2. That is all.", "2. That.\\n3. Is all.")
    return "".join(map(sealed_text, lines.splitlines()))


def test_another_reading_of_a_kept_reply_is_a_note(own: Path) -> None:
    """Protects from a new parser that makes old runs inexplicable."""
    for path in (own / "journal").glob("replies-*.jsonl"):
        path.write_text(edited(path))
    runs = runs_of(explain_row(own, identity="Who keeps the bees?"))
    (note,) = (note for run in runs for note in run.notes)
    assert note == "this version reads the reply differently: n_steps 3, committed 2"
    assert sorted(run.n_steps for run in runs if run.n_steps) == [1, 2, 2]


def test_of_two_replies_to_one_request_that_one_is_shown_which_was_read(own: Path) -> None:
    """Protects from the reply of another writer, who asked the same at the same time."""
    (path,) = (own / "journal").glob("replies-*.jsonl")
    lines = edited(path)
    (own / "journal" / "replies-0-earlier.jsonl").write_text(lines)
    for run in runs_of(explain_row(own, identity="Who keeps the bees?")):
        assert run.notes == ()
        assert run.reply in REPLIES["Who keeps the bees?"]


def test_runs_without_texts_and_refused_requests_are_explained(tmp_path: Path) -> None:
    """Protects from --no-replies, and from a run that has neither reply nor key."""
    with LlmServer(replies=REPLIES, latency_s=0.001) as server:
        job = settings(server, tmp_path, table(["The bees.", "Who chatters?"]))
        run_locally({**job, "output.replies": False})
        for question in ("The bees.", "Who chatters?"):
            explanation = explain_row(tmp_path / "out", identity=question)
            (run,) = runs_of(explanation)
            assert explanation.is_equal
            assert (run.reply, run.finish_reason) == (None, "stop")
            assert run.notes == ("no reply to show: the run did not keep the texts of replies",)
        run_locally({**job, "naco.model": "fault:bad_request"})
    explanation = explain_row(tmp_path / "out", identity="Who chatters?")
    (run,) = runs_of(explanation)
    assert (run.problem, run.reply, run.key) == ("llm_bad_request", None, None)
    assert (run.is_reminder, run.answer_f1, run.notes) == (False, None, ())
    assert run.message and run.message in shown(explanation)
    assert "llm_bad_request" in explanation_page(explanation)


def test_pending_rows_of_a_run_that_ended_early_are_explained(tmp_path: Path) -> None:
    """Protects from having to pay for the rest before the first row can be looked at."""
    questions = [f"Who keeps bee number {i}?" for i in range(64)]
    with LlmServer(latency_s=0.001) as server:
        prices = {"naco__prices": {"prompt": 1.0, "completion": 2.0}, "naco__budget_usd": 0.015}
        job = settings(server, tmp_path, table(questions), scoring__rows_per_shard=4, **prices)
        outcome, _ = run_locally({**job, "naco.max_concurrent": 4})
        assert outcome.stopped
        reasons = read_scores(tmp_path / "out")["naco_reason"].to_list()
        pending = explain_row(tmp_path / "out", identity=questions[reasons.index("pending")])
        done = explain_row(tmp_path / "out", identity=questions[reasons.index(None)])
        # Resumed, and killed before scores were written: they do not say what is committed.
        before = (tmp_path / "out" / "scores" / "input.parquet").read_bytes()
        report = (tmp_path / "out" / "report.json").read_bytes()
        run_locally({**job, "naco.budget_usd": 1.0})
        assert explain_row(tmp_path / "out", identity=questions[-1]).is_equal
    assert runs_of(pending) == []
    assert "naco of naco: undefined, pending" in shown(pending)
    assert any("ended early" in note and "budget_usd" in note for note in pending.notes)
    assert pending.is_equal and done.is_equal
    assert runs_of(done)[0].reply
    (tmp_path / "out" / "_SUCCESS").unlink()
    (tmp_path / "out" / "scores" / "input.parquet").write_bytes(before)
    with pytest.raises(ConfigError, match="QA0512"):
        explain_row(tmp_path / "out", identity=questions[0])
    (tmp_path / "out" / "report.json").write_bytes(report)
    with pytest.raises(ReconcileError, match="QA0518"):
        explain_row(tmp_path / "out", identity=questions[reasons.index("pending")])


def test_another_question_or_answer_than_was_asked_is_an_error(tmp_path: Path) -> None:
    """Protects from a reply beside a question that it does not answer."""
    with LlmServer(replies=REPLIES, latency_s=0.001) as server:
        rows = table(["Who keeps the bees?", "The bees."])
        run_locally(settings(server, tmp_path, rows))
    for column in ("question", "answer"):
        other = rows.set_column(
            rows.column_names.index(column), column, pa.array(["Who sells honey?"] * 2)
        )
        write_parquet(tmp_path / "input.parquet", other)
        with pytest.raises(ReconcileError, match="QA0518"):
            explain_row(tmp_path / "out", identity="Who keeps the bees?")


@pytest.mark.slow  # It starts a Python of its own.
def test_the_command_explains_without_a_key(scored: Scored, tmp_path: Path) -> None:
    """Protects from a verb that asks for a secret it does not need."""
    page = tmp_path / "row.html"
    output = qaeval("explain", scored.out, "--row", "input.parquet:0", "--html", page)
    assert "profile paper: n 0.6667, a 0.3333, c 1, s 2, e 2;" in output
    assert "values equal the stored ones" in output
    assert "asked at" in page.read_text() and KEY not in page.read_text()


@pytest.mark.slow  # It loads two models.
def test_models_and_replies_of_a_row_are_explained_together(
    tmp_path: Path, artifacts_root: Path
) -> None:
    """Protects from one family that hides another."""
    with LlmServer(replies=REPLIES, latency_s=0.001) as server:
        job = settings(server, tmp_path, table(["Who keeps the bees?"]))
        job = {**job, "metrics.qrelscore.metric": "qrelscore"}
        run_locally(job)
    build_matches(load_config(overrides=job))
    explanation = explain_row(tmp_path / "out", identity="Who keeps the bees?")
    assert {found.family for found in explanation.families} == {"lrm", "grg", "naco"}
    assert explanation.is_equal and explanation.notes == ()
    assert all(line.is_compared for own in explanation.instances for line in own.scores)
    assert "by layer" in shown(explanation) and "run 1 of 1: natural" in shown(explanation)
