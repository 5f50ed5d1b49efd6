"""Roundtrip against a brute force over all spans of transformers' logits, and its awkward rows."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from answer_models import AnswerModels, plain_tokenizer
from helpers import as_table, build_needed
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.text.tokenize import make_tokenizer
from workshop import save_small

N_POSITIONS = 512
N_LONGEST = 30  # tokens of an answer
CONTEXT = (
    "The lighthouse on the northern cliff was built in 1874 by two brothers. Bees need water, "
    "and the owner, an old man by then, kept the key of the mill; nobody knew why."
)
QUESTIONS = (
    "Who built the lighthouse?",
    "When?",
    "Which of the two sisters, the one who painted or the one who kept bees, moved first, and why "
    "did she move?",
)
_words = make_tokenizer("squad")


class Best(NamedTuple):
    """What a reader says, found span by span."""

    answer: str
    score: float
    log_sum: float
    null_score: float
    n_windows: int


class SpanOracle:
    """Every span of a context, one at a time, from `AutoModelForQuestionAnswering`."""

    def __init__(self, folder: Path, *, n_special: int) -> None:
        self._model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
        self._tokenizer = plain_tokenizer(folder)
        self._n_special = n_special

    def best(self, question: str, context: str) -> Best:
        """Return the best span of all windows; a span is in the one that owns its first token."""
        n_question = len(self._tokenizer.encode(question, add_special_tokens=False).ids)
        whole = self._tokenizer.encode(context, add_special_tokens=False)
        room = N_POSITIONS - self._n_special - max(n_question, 64)
        starts, stops = window_edges(len(whole.ids), room)
        spans: dict[tuple[int, int], float] = {}
        null_scores = []
        for start, stop, next_start in zip(starts, stops, [*starts[1:], None], strict=True):
            first, last, null_score = self._logits(question, whole.ids[start:stop])
            null_scores.append(null_score)
            n_owned = stop - start if next_start is None else next_start - start
            for i, j in itertools.product(range(n_owned), range(stop - start)):
                if i <= j < i + N_LONGEST:
                    assert (start + i, start + j) not in spans
                    spans[start + i, start + j] = first[i] + last[j]
        i, j = max(spans, key=lambda span: spans[span])
        (start, _), (_, stop) = (whole.word_to_chars(whole.word_ids[k]) for k in (i, j))
        return Best(
            answer=context[start:stop].strip(),
            score=spans[i, j],
            log_sum=float(torch.tensor(list(spans.values())).double().logsumexp(dim=0)),
            null_score=min(null_scores),
            n_windows=len(starts),
        )

    def _logits(self, question: str, ids: list[int]) -> tuple[list[float], list[float], float]:
        """Return both logits of a window's context tokens, and those of "no answer" together."""
        pair = self._tokenizer.encode(question, "x")
        at = pair.sequence_ids.index(1)
        n_placed = pair.sequence_ids.count(1)
        inputs = {"input_ids": [*pair.ids[:at], *ids, *pair.ids[at + n_placed :]]}
        if getattr(self._model.config, "type_vocab_size", 1) > 1:
            n_first = pair.type_ids.index(1)
            inputs["token_type_ids"] = [int(i >= n_first) for i in range(len(inputs["input_ids"]))]
        with torch.inference_mode():
            output = self._model(**{name: torch.tensor([own]) for name, own in inputs.items()})
        first, last = (own[0].double() for own in (output.start_logits, output.end_logits))
        inside = slice(at, at + len(ids))
        return first[inside].tolist(), last[inside].tolist(), float(first[0] + last[0])


def window_edges(n_tokens: int, room: int) -> tuple[list[int], list[int]]:
    """Return the fewest windows that overlap by the longest answer, of nearly equal size."""
    if n_tokens <= room:
        return [0], [n_tokens]
    n_windows = math.ceil((n_tokens - N_LONGEST) / (room - N_LONGEST))
    sizes = [len(own) for own in np.array_split(np.arange(n_tokens - N_LONGEST), n_windows)]
    starts = [0, *itertools.accumulate(sizes)][:-1]
    return starts, [start + n + N_LONGEST for start, n in zip(starts, sizes, strict=True)]


def f1_of(found: str, given: str) -> float:
    """Return token F1 by SQuAD's rule, word by word."""
    left, right = _words(found), _words(given)
    if not left or not right:
        return float(left == right)
    rest, n_common = list(right), 0
    for word in left:
        if word in rest:
            rest.remove(word)
            n_common += 1
    return 2 * n_common / (len(left) + len(right))


@pytest.fixture(scope="module")
def scorer(answer_models: AnswerModels) -> Scorer:
    """Roundtrip by a small random BERT."""
    return answer_models.scorer({"roundtrip": answer_models.settings("roundtrip")})


def reader_scorer(folder: Path, root: Path) -> Scorer:
    """Return roundtrip by a model folder; its artifact is built."""
    given = {"metric": "roundtrip", "reader": str(folder)}
    config = load_config(
        overrides={"models.artifacts_path": str(root / "built"), "metrics.roundtrip": given}
    )
    build_needed(config)
    return Scorer({"roundtrip": given}, config=config, n_threads=1)


def rows_of(contexts: list[str]) -> Iterator[dict[str, Any]]:
    """Yield each question with each context, and an answer."""
    for context, question in itertools.product(contexts, QUESTIONS):
        yield {"candidate": question, "context": context, "answer": "two brothers"}


def assert_brute_force(scorer: Scorer, oracle: SpanOracle) -> None:
    """Assert all columns, for contexts of one word to many windows."""
    rows = list(rows_of(["mill", CONTEXT, f"{CONTEXT} " * 12, f"{CONTEXT} " * 40]))
    found = as_table(scorer.score(rows)).to_pylist()
    n_windows = set()
    for row, scores in zip(rows, found, strict=True):
        best = oracle.best(row["candidate"], row["context"])
        assert scores["roundtrip_answer"] == best.answer
        assert scores["roundtrip"] == pytest.approx(f1_of(best.answer, row["answer"]), abs=1e-12)
        assert scores["roundtrip_exact"] == float(_words(best.answer) == _words(row["answer"]))
        assert scores["roundtrip_confidence"] == pytest.approx(
            math.exp(best.score - best.log_sum), abs=1e-4
        )
        assert scores["roundtrip_null_margin"] == pytest.approx(
            best.score - best.null_score, abs=1e-3
        )
        assert scores["roundtrip_windows"] == best.n_windows
        assert scores["roundtrip_reason"] is None
        n_windows.add(best.n_windows)
    assert {1} < n_windows and max(n_windows) >= 4


def test_scores_are_those_of_all_spans_of_all_windows(
    scorer: Scorer, answer_models: AnswerModels
) -> None:
    """Protects from spans that are lost, doubled or too long, where windows meet."""
    assert_brute_force(scorer, SpanOracle(answer_models.folders["reader"], n_special=3))


@pytest.mark.slow
def test_a_reader_of_the_roberta_family_is_read_alike(tmp_path: Path) -> None:
    """Four special tokens, positions from the padding's, one segment, spaces inside tokens."""
    folder = save_small("roberta_answers", tmp_path / "reader")
    assert_brute_force(reader_scorer(folder, tmp_path), SpanOracle(folder, n_special=4))


PIPELINE = Path(__file__).with_name("pipeline_readers")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_answers_are_those_of_the_pipeline_of_transformers_4(kind: str, tmp_path: Path) -> None:
    """Protects from another choice of span or words than users of that pipeline know."""
    printed = json.loads((PIPELINE / "answers.json").read_text(encoding="utf-8"))[kind]
    tokenizer = plain_tokenizer(PIPELINE / kind)
    expected = []
    for own in printed:
        encoding = tokenizer.encode(own["context"], add_special_tokens=False)
        # A piece of bytes may be a space alone: it belongs to the word behind it.
        last = own["end"] - (not own["answer"][-1].isspace())
        ends = [encoding.char_to_word(i) for i in (own["start"], last)]
        start, stop = (encoding.word_to_chars(word)[i] for i, word in enumerate(ends))
        expected.append(own["context"][start:stop].strip())
    found = as_table(
        reader_scorer(PIPELINE / kind, tmp_path).score(
            [
                {"candidate": own["question"], "context": own["context"], "answer": "-"}
                for own in printed
            ]
        )
    )
    assert found["roundtrip_answer"].to_pylist() == expected
    assert set(found["roundtrip_windows"].to_pylist()) == {1}
    assert len(set(expected)) > 15


def test_what_is_empty_is_undefined_and_says_which(scorer: Scorer) -> None:
    """Protects from an F1 of nothing; a question that is too long leaves no room."""
    whole = {"candidate": "Who?", "context": CONTEXT, "answer": "bees"}
    changes = [
        {},
        {"candidate": ""},
        {"context": ""},
        {"answer": ""},
        {"answer": " \n"},
        {"candidate": "bees " * 600},
        {"candidate": "? " * 450, "context": "mill " * 2_000},
        {"candidate": "? " * 449, "context": "mill " * 2_000},
    ]
    found = as_table(scorer.score([{**whole, **change} for change in changes])).to_pylist()
    assert [row["roundtrip_reason"] for row in found] == [
        None,
        "empty_candidate",
        "empty_context",
        "empty_answer",
        "empty_answer",
        "candidate_too_long",
        "candidate_too_long",
        None,
    ]
    assert found.pop()["roundtrip_windows"] == 66  # Each of 60 tokens, 30 of them the next one's.
    numbers = [column for column in METRICS["roundtrip"].columns if column.is_score]
    for row in found[1:]:
        names = [f"roundtrip_{own.name}".rstrip("_") for own in numbers]
        assert all(row[name] is None for name in [*names, "roundtrip_answer"])


def test_equal_questions_on_a_context_are_read_once(scorer: Scorer) -> None:
    """Protects from reading a context again for each answer that a question was made for."""
    values = {
        "candidate": ["Who?", "Who?", "Who?", "When?"],
        "context": [CONTEXT] * 4,
        "answer": ["1874", "two brothers", "", "1874"],
    }
    (plan,) = scorer.compile({role: role for role in values}).families
    work = plan.open_layout().prepare(values).work
    assert (work.n_units, work.n_units_unshared) == (2, 3)
