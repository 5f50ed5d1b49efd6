"""Tokenise: a text to words, by the rule that a setting names.

Text in, list of words out; equal settings give equal words on every machine. Rules of the field
come from the libraries that define them, where there is one.

``squad``       SQuAD's script: ASCII punctuation and articles go, split at white space
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

import re
import string
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from qaeval_core.choices import Language, Stemming, Tokeniser
from qaeval_core.errors import ConfigError
from qaeval_core.text.words import words

Tokenise = Callable[[str], list[str]]

# The articles that the evaluation scripts of SQuAD, MLQA and FQuAD take out, by language.
_ARTICLES = {
    "en": r"\b(?:a|an|the)\b",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "fr": r"\b(?:le|la|les|l|du|des|au|aux|un|une)\b",
}
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHINESE_OR_RUN = re.compile(r"[一-鿿]|[^\s一-鿿]+")
_LATIN = re.compile(r"[a-z0-9]+")
_LATIN_CASED = re.compile(r"[A-Za-z0-9]+")
# What coco-caption drops after its Penn Treebank tokenizer.
_COCO_DROPPED = frozenset(
    [
        "''",
        "'",
        "``",
        "`",
        "-LRB-",
        "-RRB-",
        "-LCB-",
        "-RCB-",
        ".",
        "?",
        "!",
        ",",
        ":",
        "-",
        "--",
        "...",
        ";",
    ]
)
# rouge-score stems words of more than so many characters.
_MIN_STEMMED_CHARS = 4


def make_tokeniser(
    name: Tokeniser,
    *,
    lowercase: bool = True,
    stemming: Stemming = "none",
    language: Language = "en",
) -> Tokenise:
    """Return the function that splits a text into words.

    Parameters
    ----------
    name : Tokeniser
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
    >>> make_tokeniser("squad")("The U.S., in 1990!")
    ['us', 'in', '1990']
    >>> make_tokeniser("rouge", stemming="porter")("Running dogs")
    ['run', 'dog']
    >>> make_tokeniser("coco")("Isn't it 5 p.m.?")
    ['is', "n't", 'it', '5', 'p.m.']
    >>> make_tokeniser("zh")("他来到北京大学")
    ['他', '来到', '北京大学']
    """
    split = _RULES[name](lowercase, language)
    if stemming == "none":
        return split
    return lambda text: [
        porter_stem(word) if len(word) >= _MIN_STEMMED_CHARS else word for word in split(text)
    ]


def _squad(lowercase: bool, language: Language) -> Tokenise:
    articles = re.compile(_ARTICLES[language], re.UNICODE) if language in _ARTICLES else None

    def split(text: str) -> list[str]:
        text = (text.lower() if lowercase else text).translate(_NO_PUNCTUATION)
        if language == "zh":
            return _CHINESE_OR_RUN.findall(text)
        return (articles.sub(" ", text) if articles else text).split()

    return split


def _whitespace(lowercase: bool, _: Language) -> Tokenise:
    return (lambda text: text.lower().split()) if lowercase else str.split


def _words(lowercase: bool, _: Language) -> Tokenise:
    return lambda text: words(text, lowercase=lowercase)


def _rouge(lowercase: bool, _: Language) -> Tokenise:
    if lowercase:
        return lambda text: _LATIN.findall(text.lower())
    return _LATIN_CASED.findall


def _13a(lowercase: bool, _: Language) -> Tokenise:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    rule: Callable[[str], str] = Tokenizer13a()  # type: ignore[no-untyped-call]
    return lambda text: rule(text.lower() if lowercase else text).split()


def _treebank(lowercase: bool, _: Language) -> Tokenise:
    from nltk.tokenize import TreebankWordTokenizer

    rule = TreebankWordTokenizer()
    return lambda text: list(rule.tokenize(text.lower() if lowercase else text))


def _coco(lowercase: bool, language: Language) -> Tokenise:
    split = _treebank(lowercase, language)
    return lambda text: [word for word in split(text) if word not in _COCO_DROPPED]


def _spacy(lowercase: bool, language: Language) -> Tokenise:
    rule = _spacy_rules(language)

    def split(text: str) -> list[str]:
        found = (token.text.strip() for token in rule(text))
        return [token.lower() if lowercase else token for token in found if token]

    return split


@cache
def _spacy_rules(language: Language) -> Any:
    try:
        import spacy
    except ImportError:
        raise ConfigError("tokeniser=spacy needs spaCy: pip install 'qaeval[languages]'") from None
    return spacy.blank("xx" if language == "none" else language).tokenizer


def _zh(lowercase: bool, _: Language) -> Tokenise:
    try:
        import rjieba
    except ImportError:
        raise ConfigError("tokeniser=zh needs rjieba: pip install 'qaeval[languages]'") from None
    return lambda text: [
        word for word in rjieba.cut(text.lower() if lowercase else text) if not word.isspace()
    ]


def _characters(lowercase: bool, _: Language) -> Tokenise:
    return lambda text: list("".join((text.lower() if lowercase else text).split()))


_RULES: dict[str, Callable[[bool, Language], Tokenise]] = {
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


@lru_cache(maxsize=1 << 18)
def porter_stem(word: str) -> str:
    """Return Porter's stem of a word.

    >>> porter_stem("running")
    'run'
    """
    return str(_porter().stem(word))


@cache
def _porter() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()
