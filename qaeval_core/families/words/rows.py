"""Rows: the texts of a shard as tables of words, shared by all statistics of a pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.families.validate import Validated, validate_rows
from qaeval_core.metrics.words import MAX_ORDER
from qaeval_core.text.known_words import KnownWords
from qaeval_core.text.ngrams import GramCounts, IntArray, gram_counts
from qaeval_core.text.table import RawTexts, TokenTable
from qaeval_core.text.tokenize import Split, WordSplitter, make_tokenizer

# Its script calls two texts without words equal, whatever they were.
_SCRIPTED = "squad"
# It drops all letters but a to z.
_LATIN = "rouge"
_ASCII_LETTERS = re.compile("[A-Za-z]+")
_FOREIGN_LETTERS = re.compile(r"[^\W\d\x00-\x7f]+")
_FOREIGN = re.compile(r"[^\W\x00-\x7f]+")

TokenizerKey = tuple[str, bool, str, str]
WordStatistics = dict[str, pa.Array]
# What is left to do once all texts are tokenized.
Compute = Callable[[], WordStatistics]


class Tokenizers:
    """Makes the tokenizers of a process, each once, and keeps what they made of words."""

    def __init__(self) -> None:
        self._made: dict[TokenizerKey, WordSplitter] = {}
        self._known = KnownWords()

    def known(self) -> KnownWords:
        """Return the words that are known when a shard begins."""
        if self._known.is_full:
            self._known = KnownWords()
        return self._known

    def get(self, options: Mapping[str, Any]) -> tuple[TokenizerKey, WordSplitter]:
        """Return the tokenizer of a statistic's options, and its key."""
        key = (
            str(options["tokenizer"]),
            bool(options["lowercase"]),
            str(options["stemming"]),
            str(options.get("language", "none")),
        )
        if key not in self._made:
            self._made[key] = make_tokenizer(
                options["tokenizer"],
                lowercase=options["lowercase"],
                stemming=options["stemming"],
                language=options.get("language", "none"),
            )
        return key, self._made[key]


class WordTables:
    """The texts of one shard, tokenized once for all statistics with one tokenizer.

    Parameters
    ----------
    tokenizers : Tokenizers
    """

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        self._raw = RawTexts(tokenizers.known())
        self._tables: dict[object, TokenTable] = {}
        self._counts: dict[int, tuple[int, list[GramCounts]]] = {}  # with the texts counted
        self._numbered: dict[tuple[int, int], tuple[Any, Any, IntArray, IntArray, IntArray]] = {}
        self._validated: dict[object, Validated] = {}

    def validate(
        self,
        rows: Mapping[str, Sequence[object]],
        *,
        columns: Mapping[str, str],
        joins_passages: bool = True,
    ) -> Validated:
        """Check the shard's rows for some roles, once for all statistics that read these."""
        key = (joins_passages, *columns.items())
        if key not in self._validated:
            self._validated[key] = validate_rows(
                rows, columns=columns, joins_passages=joins_passages
            )
        return self._validated[key]

    def table(self, options: Mapping[str, Any]) -> TokenTable:
        """Return the table of a statistic's tokenizer."""
        key, tokenize = self._tokenizers.get(options)
        return self.table_of(key, tokenize)

    def table_of(self, key: object, tokenize: WordSplitter | Split) -> TokenTable:
        """Return the table of that name."""
        if key not in self._tables:
            self._tables[key] = TokenTable(tokenize, raw=self._raw, key=key)
        return self._tables[key]

    def pairs(
        self, table: TokenTable, candidates: Sequence[str], others: Sequence[Sequence[str]]
    ) -> Pairs:
        """Tokenize candidates and what each is compared with.

        Parameters
        ----------
        table : TokenTable
            Of this shard.
        candidates : sequence of str
            One a row.
        others : sequence of sequence of str
            References or other texts of each row; may be none.
        """
        key = (id(candidates), id(others))
        if key not in self._numbered:
            counts = np.fromiter(map(len, others), np.int64, count=len(others))
            numbers = self._raw.add(candidates), self._raw.add(chain.from_iterable(others))
            # The lists are kept: another list could get the place of one that is gone.
            self._numbered[key] = (candidates, others, *numbers, counts)
        _, _, candidate, other, n_others = self._numbered[key]
        return Pairs(table, table.add_numbered(candidate), table.add_numbered(other), n_others)

    def counts(self, table: TokenTable) -> list[GramCounts]:
        """Return the n-gram counts of a table; counted again where texts have been added since."""
        n_texts, found = self._counts.get(id(table), (-1, []))
        if n_texts != table.n_texts:
            found = list(gram_counts(table.ids, table.offsets, max_order=MAX_ORDER))
            self._counts[id(table)] = (table.n_texts, found)
        return found


@dataclass(frozen=True, slots=True)
class Pairs:
    """Candidates and what each is compared with, as texts of one table.

    Attributes
    ----------
    candidate : int ndarray of shape (n_rows,)
    other : int ndarray of shape (n_row_others,)
        The references (or contexts) of all rows, rows in order.
    n_others : int ndarray of shape (n_rows,)
    """

    table: TokenTable
    candidate: IntArray
    other: IntArray
    n_others: IntArray

    @property
    def row(self) -> IntArray:
        """The row of each other text."""
        return np.repeat(np.arange(len(self.candidate)), self.n_others)

    @property
    def own_candidate(self) -> IntArray:
        """The candidate of each other text."""
        return np.repeat(self.candidate, self.n_others)

    def distinct(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return distinct pairs, as (candidate, other), and which of them each pair is."""
        n_texts = max(self.table.n_texts, 1)
        keys, places = np.unique(self.own_candidate * n_texts + self.other, return_inverse=True)
        return keys // n_texts, keys % n_texts, places

    def no_words(self, options: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Return where of both texts no words are left, or few, though one of them is not blank.

        A tokenizer that knows no word of a script would call any two texts of it equal, and two
        that share a year as well, be it with a text of that year alone.
        """
        if options["tokenizer"] == _SCRIPTED:
            return np.zeros(len(self.other), dtype=bool)
        is_wordless = self.table.lengths == 0
        is_blank = np.zeros(len(is_wordless), dtype=bool)
        texts = self.table.texts
        for i in np.flatnonzero(is_wordless).tolist():
            is_blank[i] = not texts[i].strip()
        left, right = self.own_candidate, self.other
        lost = is_wordless[left] & is_wordless[right] & ~(is_blank[left] & is_blank[right])
        if options["tokenizer"] == _LATIN:
            # Of texts beyond ASCII alone: of all it would take as long as counting words.
            is_ascii = "".join(texts).isascii()
            beyond = [] if is_ascii else [i for i, own in enumerate(texts) if not own.isascii()]
            is_foreign = np.zeros(len(texts), dtype=bool)
            is_foreign[beyond] = [_is_foreign(texts[i]) for i in beyond]
            lost |= is_foreign[left] & is_foreign[right]
            lost |= self._differ_where_dropped(texts, beyond, lowercase=bool(options["lowercase"]))
        return np.asarray(lost, dtype=bool)

    def _differ_where_dropped(
        self, texts: Sequence[str], beyond: Sequence[int], *, lowercase: bool
    ) -> NDArray[np.bool_]:
        """Return where texts have the same words, and differ in letters that are in no word."""
        numbers = {"": 0}
        own = np.zeros(len(texts), dtype=np.int64)
        for i in beyond:
            own[i] = numbers.setdefault(_dropped(texts[i], lowercase=lowercase), len(numbers))
        left, right = self.own_candidate, self.other
        found = own[left] != own[right]
        found[found] = self.table.are_equal(left[found], right[found])
        return np.asarray(found, dtype=bool)


def _is_foreign(text: str) -> bool:
    """Return whether most letters of a text are none of a to z.

    >>> [_is_foreign(text) for text in ("東京 2020", "l'été à Évian", "x 東京")]
    [True, False, True]
    """
    n_foreign = sum(map(len, _FOREIGN_LETTERS.findall(text)))
    return n_foreign > 0 and n_foreign > sum(map(len, _ASCII_LETTERS.findall(text)))


def _dropped(text: str, *, lowercase: bool) -> str:
    """Return the letters and digits of a text that are none of a to z and 0 to 9.

    >>> _dropped("Évian, 東京 2020", lowercase=True)
    'é東京'
    """
    return "".join(_FOREIGN.findall(text.lower() if lowercase else text))


def lists(values: NDArray[Any], counts: IntArray) -> pa.Array:
    """Return a list column: flat values, and how many each row has; integers take 32 bits."""
    if values.dtype.kind == "i":
        values = values.astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def numbers(values: IntArray) -> pa.Array:
    """Return a column of counts."""
    return pa.array(values.astype(np.int32))
