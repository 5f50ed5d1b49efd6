"""Replies that are made to keep the parser busy: their time grows with their length alone."""

from __future__ import annotations

import signal
import time

import pytest

from qaeval_core.families.chat.naco_reply import Reply, parse_reply

N_CHARS = 65_536  # What is read of a reply at most.
# The worst text of linear time takes 0.5 s here, a quadratic one above 8 s.
MAX_CPU_S = 4.0

BLANKS = " " * (N_CHARS - 40)
WORDS = (
    *("<ans>", "</ans>", "[answer]", "<think>", "</think>", "**", "`", "_", "&lt;", "<", "(", "“"),
    *("I", "I am", "step", "Step 1", "#", "- ", "1. ", "Answer:", "answer (", "the answer is"),
    *("no", "not", "not very", "without", "cannot", "does not", "is not", "no answer", "passage"),
    *("natural", "question", "verdict:", "is it a question?", "it is a", "steps:", "sentence:"),
)
SHAPES = {
    "again": lambda word: word * N_CHARS,
    "in words": lambda word: f"{word} " * N_CHARS,
    "in lines": lambda word: f"{word}\n" * N_CHARS,
    "and blanks": lambda word: f"{word}{BLANKS}x",
    "and tabs": lambda word: f"So {word}{BLANKS.replace(' ', chr(9))}x",
    "and a long word": lambda word: f"{word} {BLANKS.replace(' ', 'a')} !",
    "and blanks, again": lambda word: f"{word}{' ' * 2000}x " * 40,
    "labeled": lambda word: f"Answer: {word * N_CHARS}",
    "in a bracket": lambda word: f"answer ({word * N_CHARS}",
}


def read(text: str) -> Reply | None:
    """Return what a reply says, None if that takes too much of this process's time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    try:
        return parse_reply(text)
    except TimeoutError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("</ans>\n" * (N_CHARS // 7), id="marks that close nothing"),
        pytest.param(f"I{BLANKS}x", id="I and blanks"),
        pytest.param(f"step{BLANKS}x", id="step and blanks"),
        pytest.param(f"<ans>a</ans>{BLANKS[30:]}x<ans>b</ans>", id="blanks between two answers"),
        pytest.param(f"Is it a question?{BLANKS}x", id="question and blanks"),
        pytest.param("answer (" + "</ans>" * (N_CHARS // 6), id="a bracket and marks"),
    ],
)
def test_a_reply_of_blanks_and_marks_is_read_in_time(text: str) -> None:
    """80 kB took 12 s, and 420 kB more than a minute, in which no other call could go on."""
    assert read(text[:N_CHARS]) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        "in lines",
        *(pytest.param(own, marks=pytest.mark.long) for own in SHAPES if own != "in lines"),
    ],
)
def test_no_word_of_the_patterns_takes_quadratic_time(shape: str) -> None:
    """Two adjoining ``\\s*`` of a pattern that is added later are found here."""
    for word in WORDS:
        assert read(SHAPES[shape](word)[:N_CHARS]) is not None, word


def test_time_grows_as_the_text_does() -> None:
    """Eight times the text takes eight times as long, not sixty-four times."""

    def cpu_s(n_lines: int) -> float:
        text = "Verdict: natural\n" + "1. The passage says so.</ans>\n" * n_lines
        before_s = time.process_time()
        parse_reply(text)
        return time.process_time() - before_s

    cpu_s(10)  # Loads what the first one loads.
    assert min(cpu_s(2000) for _ in range(2)) < 24 * max(cpu_s(250) for _ in range(3))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I'm sorry, no.", "refusal"),
        ("I  'm sorry.", "refusal"),
        ("I ’m unable to.", "refusal"),
        ("I \n am not able to.", "refusal"),
        ("Iam sorry.", "no_answer"),
        ("I sorry", "no_answer"),
    ],
)
def test_a_refusal_is_still_one(text: str, problem: str) -> None:
    """The quicker pattern must say what the slow one said."""
    assert parse_reply(text).problem == problem


def test_what_is_closed_behind_a_label_is_still_an_answer() -> None:
    """The quicker search must find the line that the slow one found."""
    for text in ("Steps:\n1. a\nAnswer: Ann</ans>", "x</ans>\nAnswer: Ann</ans> so</ans>"):
        assert parse_reply(text).answer == "Ann"
    assert parse_reply("<ans>A</ans> , and ; <ans>B</ans>").answer == "A , and ; B"
