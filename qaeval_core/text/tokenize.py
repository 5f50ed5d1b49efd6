"""Tokenize: a text to words, by the rule that a setting names.

Text in, list of words out; equal settings give equal words on every machine. Rules of the field
come from the libraries that define them, where there is one.

``squad``       SQuAD's script: ASCII punctuation and articles go, split at white space; in other
                languages than English MLQA's: all punctuation goes, Chinese signs are words
``whitespace``  split at white space
``words``       runs of letters, digits and inner apostrophes, of any script
``rouge``       rouge-score: runs of a-z and 0-9 (other scripts leave no word)
``13a``         sacrebleu's mteval-v13a
``treebank``    NLTK's Treebank rules, punctuation kept
``coco``        the same with punctuation dropped, as coco-caption's evaluation does
``spacy``       spaCy's rules of the language
``zh``          Chinese words by jieba's dictionary
``characters``  every character that is not white space
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from qaeval_core.errors import ConfigError
from qaeval_core.schema import Language, Stemming, TokenizerName

Split = Callable[[str], list[str]]

# Stands between texts that are split together: no rule joins it to a word or changes it.
BETWEEN = "\x00"

# The articles that the evaluation scripts of SQuAD, MLQA and FQuAD take out, by language.
# Arabic's is a part of the word; Hindi and Chinese have none.
_ARTICLES = {
    "en": r"\b(?:a|an|the)\b",
    "ar": r"ال",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "fr": r"\b(?:le|la|les|l|du|des|au|aux|un|une)\b",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
}
# string.punctuation; str.translate takes four times as long where a text is not ASCII.
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]+")
# Runs of letters and digits, with inner apostrophes.
_WORD = r"\w+(?:['’]\w+)*"
_CHINESE_OR_RUN = re.compile(r"[一-鿿]|[^\s一-鿿]+")
_LATIN = re.compile(r"[a-z0-9]+")
_LATIN_CASED = re.compile(r"[A-Za-z0-9]+")
_LATIN_JOINED = re.compile(r"[a-z0-9]+|\x00")
_LATIN_CASED_JOINED = re.compile(r"[A-Za-z0-9]+|\x00")
# What coco-caption drops after its Penn Treebank tokenizer.
_COCO_DROPPED_LINE = "'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;"
_COCO_DROPPED = frozenset(_COCO_DROPPED_LINE.split())
# rouge-score stems words of more than so many characters.
_MIN_STEMMED_CHARS = 4
# Rules by which a run of ASCII letters and digits is a word; SQuAD's drops articles.
_PLAIN = ("13a", "rouge", "whitespace", "words")
# As Debian calls the home of users who have none.
_NO_HOME = "/nonexistent"


class WordSplitter:
    """Splits a text into words, or many texts at once.

    Parameters
    ----------
    split : callable
        Text -> words.
    split_joined : callable, optional
        The same for texts joined by ``BETWEEN``, which it keeps as a word of its own. Without one,
        texts are split one by one.
    stem : bool, default False
        Reduce words of four characters and more to their stems.
    crossing : sequence of str, default ()
        Signs in which the rule looks across white space, where it has ``split_joined``.
    split_plain : callable, optional
        The same for texts of nothing but ASCII letters, digits and white space, where that is
        quicker: white space alone then ends a word.

    Attributes
    ----------
    crossing : sequence of str or None
        Texts without these signs have the words of their pieces between white space; None where
        that can never be said.
    """

    def __init__(
        self,
        split: Split,
        *,
        split_joined: Split | None = None,
        stem: bool = False,
        crossing: Sequence[str] = (),
        split_plain: Split | None = None,
    ) -> None:
        self._split = split
        self._split_joined = split_joined
        self._stem = stem
        self._split_plain = split_plain
        self.crossing = None if split_joined is None else (BETWEEN, *crossing)

    def __call__(self, text: str) -> list[str]:
        """Return the words of a text."""
        return self._stems(self._split(text))

    def joined(self, texts: Sequence[str]) -> list[str]:
        r"""Return the words of all texts, one text after another, with ``BETWEEN`` between them.

        Examples
        --------
        >>> make_tokenizer("whitespace").joined(["a b", "", "c"])
        ['a', 'b', '\x00', '\x00', 'c']
        """
        # A rule that looks across white space must find none before the sign: a text ends there.
        whole = f" {BETWEEN} ".join([text.rstrip() for text in texts])
        if self._split_joined is not None and whole.count(BETWEEN) == len(texts) - 1:
            return self._stems(self._split_joined(whole))
        found: list[str] = []
        for i, text in enumerate(texts):
            if i:
                found.append(BETWEEN)
            # A text may hold the sign itself.
            found.extend(word if word != BETWEEN else BETWEEN * 2 for word in self._split(text))
        return self._stems(found)

    @property
    def has_plain(self) -> bool:
        """Whether a run of ASCII letters and digits is one word."""
        return self._split_plain is not None

    def plain(self, runs: Sequence[str]) -> list[str]:
        """Return the word of each run of ASCII letters and digits.

        Examples
        --------
        >>> make_tokenizer("13a").plain(["Dogs", "1987"])
        ['dogs', '1987']
        """
        assert self._split_plain is not None, "the rule may drop a run"
        return self._stems(self._split_plain(" ".join(runs)))

    def _stems(self, words: list[str]) -> list[str]:
        if not self._stem:
            return words
        return [porter_stem(word) if len(word) >= _MIN_STEMMED_CHARS else word for word in words]


def make_tokenizer(
    name: TokenizerName,
    *,
    lowercase: bool = True,
    stemming: Stemming = "none",
    language: Language = "en",
) -> WordSplitter:
    """Return what splits a text into words.

    Parameters
    ----------
    name : TokenizerName
        One of the rules above.
    lowercase : bool, default True
        Whether words are compared without case.
    stemming : {"none", "porter"}, default "none"
        Porter's stem of words of four characters and more, as rouge-score does it.
    language : Language, default "en"
        Articles of ``squad``, rules of ``spacy``.

    Raises
    ------
    ConfigError
        If a library that the rule needs is missing.

    Examples
    --------
    >>> make_tokenizer("squad")("The U.S., in 1990!")
    ['us', 'in', '1990']
    >>> make_tokenizer("rouge", stemming="porter")("Running dogs")
    ['run', 'dog']
    >>> make_tokenizer("coco")("Isn't it 5 p.m.?")
    ['is', "n't", 'it', '5', 'p.m.']
    >>> make_tokenizer("zh")("他来到北京大学")
    ['他', '来到', '北京大学']
    """
    split, split_joined = _RULES[name](lowercase, language)
    # mteval-v13a joins what a hyphen at the end of a line divides.
    # It also takes out a mark that may stand before one.
    crossing = ("-\n", "<skipped>") if name == "13a" else ()
    split_plain, _ = _whitespace(lowercase, language)
    return WordSplitter(
        split,
        split_joined=split_joined,
        stem=stemming == "porter",
        crossing=crossing,
        split_plain=split_plain if name in _PLAIN else None,
    )


# A rule returns how one text is split, and how joined texts are, where that is quicker.
_Splits = tuple[Split, Split | None]


def _squad(lowercase: bool, language: Language) -> _Splits:
    articles = re.compile(_ARTICLES[language]) if language in _ARTICLES else None
    punctuation = _PUNCTUATION if language == "en" else _all_punctuation()

    def split(text: str) -> list[str]:
        text = punctuation.sub("", text.lower() if lowercase else text)
        if language == "zh":
            return _CHINESE_OR_RUN.findall(text)
        return (articles.sub(" ", text) if articles else text).split()

    return split, split


@cache
def _all_punctuation() -> re.Pattern[str]:
    """Return a pattern of Unicode's punctuation and ASCII's, which MLQA's script takes out."""
    signs = "".join(
        chr(point)
        for point in range(sys.maxunicode + 1)
        if unicodedata.category(chr(point)).startswith("P")
    )
    return re.compile(f"[!-/:-@\\[-`{{-~{re.escape(signs)}]+")


def _whitespace(lowercase: bool, _: Language) -> _Splits:
    split: Split = (lambda text: text.lower().split()) if lowercase else str.split
    return split, split


def _words(lowercase: bool, _: Language) -> _Splits:
    def split(text: str) -> list[str]:
        return words(text, lowercase=lowercase)

    def split_joined(text: str) -> list[str]:
        return words(text, lowercase=lowercase, also=BETWEEN)

    return split, split_joined


def _rouge(lowercase: bool, _: Language) -> _Splits:
    if not lowercase:
        return _LATIN_CASED.findall, _LATIN_CASED_JOINED.findall
    return (
        lambda text: _LATIN.findall(text.lower()),
        lambda text: _LATIN_JOINED.findall(text.lower()),
    )


def _13a(lowercase: bool, _: Language) -> _Splits:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

    rule: Callable[[str], str] = Tokenizer13a()  # type: ignore[no-untyped-call]

    def split(text: str) -> list[str]:
        # sacrebleu cuts the right end of a segment before it tokenizes it.
        found = rule((text.lower() if lowercase else text).rstrip()).split()
        # They keep 65,536 texts each; joined ones are megabytes.
        Tokenizer13a.__call__.cache_clear()
        TokenizerRegexp.__call__.cache_clear()
        return found

    return split, split


def _treebank(lowercase: bool, _: Language) -> _Splits:
    rule = _nltk("nltk.tokenize").TreebankWordTokenizer()
    return lambda text: list(rule.tokenize(text.lower() if lowercase else text)), None


def _coco(lowercase: bool, language: Language) -> _Splits:
    split, _ = _treebank(lowercase, language)
    return lambda text: [word for word in split(text) if word not in _COCO_DROPPED], None


def _spacy(lowercase: bool, language: Language) -> _Splits:
    rules = _spacy_rules(language)

    def split(text: str) -> list[str]:
        with rules.memory_zone():  # Else it keeps every word it has ever seen.
            found = [token.text.strip() for token in rules.tokenizer(text)]
        return [token.lower() if lowercase else token for token in found if token]

    return split, None


@cache
def _spacy_rules(language: Language) -> Any:
    try:
        import spacy
    except ImportError:
        raise ConfigError("tokenizer=spacy needs spaCy: pip install spacy [QA0004]") from None
    try:
        return spacy.blank("xx" if language == "none" else language)
    except ImportError as error:  # Of a library that splits that language's texts.
        raise ConfigError(f"tokenizer=spacy with language={language}: {error} [QA0004]") from None


def _zh(lowercase: bool, _: Language) -> _Splits:
    try:
        import rjieba
    except ImportError:
        raise ConfigError("tokenizer=zh needs rjieba: pip install rjieba [QA0004]") from None

    def split(text: str) -> list[str]:
        found = rjieba.cut(text.lower() if lowercase else text)
        return [word for word in found if not word.isspace()]

    return split, None


def _characters(lowercase: bool, _: Language) -> _Splits:
    return lambda text: list("".join((text.lower() if lowercase else text).split())), None


_RULES: dict[str, Callable[[bool, Language], _Splits]] = {
    "squad": _squad,
    "whitespace": _whitespace,
    "words": _words,
    "rouge": _rouge,
    "13a": _13a,
    "treebank": _treebank,
    "coco": _coco,
    "spacy": _spacy,
    "zh": _zh,
    "characters": _characters,
}


def words(text: str, *, lowercase: bool = True, also: str = "") -> list[str]:
    """Return the words of a text, without punctuation; a sign ``also`` is a word of its own.

    Examples
    --------
    >>> words("Who didn't leave, in 1987?")
    ['who', "didn't", 'leave', 'in', '1987']
    """
    pattern = f"{_WORD}|{re.escape(also)}" if also else _WORD
    return re.findall(pattern, text.lower() if lowercase else text)


@lru_cache(maxsize=1 << 18)
def porter_stem(word: str) -> str:
    """Return Porter's stem of a word.

    >>> porter_stem("running")
    'run'
    """
    return str(_porter().stem(word))


@cache
def _porter() -> Any:
    return _nltk("nltk.stem.porter").PorterStemmer()


def _nltk(module: str) -> Any:
    """Return a module of NLTK; its package cannot be imported by a user without a home.

    It looks for a folder to download to. Nothing is downloaded: one that is not there will do.
    """
    is_homeless = os.path.expanduser("~") == "~"
    if is_homeless:
        os.environ["HOME"] = _NO_HOME
    try:
        return importlib.import_module(module)
    finally:
        if is_homeless:
            del os.environ["HOME"]
