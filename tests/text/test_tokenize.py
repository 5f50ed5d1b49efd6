"""Tokenizers: words of any text, and the rules of the programs they stand for."""

from __future__ import annotations

import re
import string
import unicodedata
from importlib.util import find_spec
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rouge_score import tokenizers as rouge_tokenizers

from qaeval_core.errors import ConfigError
from qaeval_core.schema import Language, TokenizerName
from qaeval_core.text.tokenize import make_tokenizer

RULES = get_args(TokenizerName)
# Signs that rules treat specially, beside any sign of Unicode.
_SPECIAL = (
    "aAtheTHE09 \t\n\r\x0b\x1c\x85\xa0\u2028\u3000\ufeff.,!?'’\"`-–()[]{}<>&;:$%/\\@#"
    "北京大学ßİΣé̈👩‍👧🏽"
)
texts = st.one_of(st.text(), st.text(st.sampled_from(_SPECIAL), max_size=60))


def _reference_squad(text: str) -> str:
    """Normalize as the script does: its four functions, from the inside out."""
    kept = "".join(sign for sign in text.lower() if sign not in set(string.punctuation))
    without_articles = re.sub(r"\b(a|an|the)\b", " ", kept)
    return " ".join(without_articles.split())


@pytest.mark.parametrize("lowercase", [True, False], ids=["lower", "cased"])
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(text=texts)
@example(text="")
@example(text="&quot;<skipped>&amp;")
@example(text="-\n")
@example(text="http://a.b/c?d=e :-) 5kg o'clock don't Ph.D. x" * 3)
@example(text="\u200b\u2060\ufeff")
def test_words_are_never_empty_and_hold_no_white_space(
    rule: TokenizerName, lowercase: bool, text: str
) -> None:
    """Protects from a text that stops a run, and from words that no other text can match."""
    for word in make_tokenizer(rule, lowercase=lowercase)(text):
        assert word
        assert not any(sign.isspace() for sign in word), (word, text)


@pytest.mark.parametrize("rule", ["squad", "spacy"])
@pytest.mark.parametrize("language", get_args(Language))
@settings(max_examples=30, deadline=None)
@given(text=texts)
def test_words_of_every_language_hold_no_white_space(
    rule: TokenizerName, language: Language, text: str
) -> None:
    """Protects from a language whose rules keep blanks or fail on the signs of another."""
    if (rule, language) == ("spacy", "vi") and find_spec("pyvi") is None:
        with pytest.raises(ConfigError, match="language=vi.*Pyvi.*QA0004"):
            make_tokenizer(rule, language=language)
        return
    words = make_tokenizer(rule, language=language)(text)
    assert all(word and not any(sign.isspace() for sign in word) for word in words)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30, deadline=None)
@given(text=texts)
def test_equal_texts_have_equal_words_whoever_made_the_tokenizer(
    rule: TokenizerName, text: str
) -> None:
    """Protects from state in a tokenizer: words that depend on what it split before."""
    used = make_tokenizer(rule)
    used("The Old mill, 北京大学 don't")
    assert used(text) == make_tokenizer(rule)(text) == used(text)


@given(texts)
@settings(max_examples=200, deadline=None)
@example("The a.n the-an theA")
@example("a\u0301n the\xa0an")
@example("İTHE ẞa ǅthe")
def test_squad_words_are_those_of_the_script(text: str) -> None:
    """Protects from exact match and F1 that differ from the leaderboard's."""
    assert " ".join(make_tokenizer("squad")(text)) == _reference_squad(text)


@pytest.mark.parametrize("has_stemmer", [False, True], ids=["plain", "stemmer"])
@settings(max_examples=150, deadline=None)
@given(text=st.one_of(texts, st.text("abcdefgilnorstuyING1 -'", max_size=80)))
def test_rouge_words_are_those_of_rouge_score(has_stemmer: bool, text: str) -> None:
    """Protects from other words or other stems than published ROUGE-L has."""
    peer = rouge_tokenizers.DefaultTokenizer(use_stemmer=has_stemmer)
    own = make_tokenizer("rouge", stemming="porter" if has_stemmer else "none")
    assert own(text) == peer.tokenize(text)


def test_articles_are_those_of_the_language() -> None:
    """Protects from English articles taken out of other languages, and theirs left in."""
    split = {
        language: make_tokenizer("squad", language=language) for language in get_args(Language)
    }
    assert split["en"]("The man, an apple, a pear") == ["man", "apple", "pear"]
    assert split["de"]("Der Mann an einer Brücke") == ["mann", "an", "brücke"]
    assert split["es"]("El perro de las casas a la una") == ["perro", "de", "casas", "a"]
    assert split["fr"]("Le chat du roi, un jour aux champs") == ["chat", "roi", "jour", "champs"]
    assert split["none"]("The man") == ["the", "man"]


def test_chinese_has_words_under_the_rules_that_know_it() -> None:
    """Protects from Chinese answers scored as empty, or as one word a sentence, in silence."""
    text = "他在1999年来到北京大学。"
    assert make_tokenizer("rouge")(text) == ["1999"]
    assert make_tokenizer("zh")(text)[-3:-1] == ["来到", "北京大学"]
    assert make_tokenizer("characters")("北京 大学") == ["北", "京", "大", "学"]
    in_signs = make_tokenizer("squad", language="zh")("他在1999年 来")
    assert in_signs == ["他", "在", "1999", "年", "来"]


def test_emoji_and_composed_letters_are_kept_whole_or_apart_by_rule() -> None:
    """Protects from signs beyond 16 bits cut in half."""
    for rule in ("whitespace", "13a", "treebank", "squad"):
        assert make_tokenizer(rule)("good 👩‍👧 day") == ["good", "👩‍👧", "day"], rule
    assert make_tokenizer("characters")("a👍") == ["a", "👍"]
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    split = make_tokenizer("whitespace")
    assert split(composed) != split(apart)  # No rule normalizes: equal words are equal signs.


def test_case_and_stems_are_settings() -> None:
    """Protects from a setting that is accepted and does nothing."""
    text = "Mills AND Millers milling"
    for rule in RULES:
        cased = make_tokenizer(rule, lowercase=False)(text)
        lower = make_tokenizer(rule)(text)
        assert "".join(cased) != "".join(lower) == "".join(cased).lower(), rule
    assert make_tokenizer("13a", stemming="porter")(text) == ["mill", "and", "miller", "mill"]
    # Words of three letters stay, as in rouge-score: Porter's rule would make "thi" and "wa".
    assert make_tokenizer("rouge", stemming="porter")("was his") == ["was", "his"]


def test_coco_is_treebank_without_punctuation() -> None:
    """Protects from punctuation that counts as a matching word in CIDEr."""
    text = "\"Isn't it (really) 5 p.m.?\" -- she asked; he didn't know: yes!"
    treebank, coco = (make_tokenizer(rule)(text) for rule in ("treebank", "coco"))
    assert {"``", "''", "?", "--", ";", ":", "!"} <= set(treebank)
    assert not {"``", "''", "?", "--", ";", ":", "!"} & set(coco)
    assert "n't" in coco and "p.m." in coco
