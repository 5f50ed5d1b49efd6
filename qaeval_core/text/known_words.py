"""Known words: what pieces of text between white space are split into, kept over shards.

Most rules split inside white space alone: "the U.S." gives what "the" and "U.S." give. So texts
are split at white space once for all rules, and a rule is applied to a piece when it is first
seen. Words are few where texts are many: most pieces of a shard are known from those before it.

But: numbers of pieces and words say in which order they were seen, so they mean nothing elsewhere.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, compress, count, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qaeval_core.text.ngrams import IntArray, concat_ranges
from qaeval_core.text.tokenize import BETWEEN, Split, WordSplitter

_MARK_ID = -1
# What is known is forgotten behind the shard that brings more: some 30 MB for each rule.
_MAX_KNOWN = 131_072


class Vocabulary(defaultdict[str, int]):
    """Word -> id, counted from 0 without a call into Python.

    Parameters
    ----------
    *marks : str
        Signs that are no words: -1.

    Attributes
    ----------
    names : list of str
        Words by id. It only grows, so another thread may read what it has.
    """

    def __init__(self, *marks: str) -> None:
        super().__init__(count().__next__)
        self.update(dict.fromkeys(marks, _MARK_ID))
        self._n_marks = len(marks)
        self.names: list[str] = []

    def number(self, words: Sequence[str]) -> IntArray:
        """Return the id of each word; new ones are added."""
        ids = np.fromiter(map(self.__getitem__, words), np.int64, count=len(words))
        n_new = len(self) - self._n_marks - len(self.names)
        self.names += list(islice(reversed(self), n_new))[::-1]
        return ids


class Ragged:
    """Ids of many sequences, one after another, with the length of each."""

    def __init__(self) -> None:
        self._ids = [np.zeros(0, dtype=np.int64)]
        self._lengths = [np.zeros(0, dtype=np.int64)]
        self._offsets: IntArray | None = None

    def append(self, ids: IntArray, lengths: IntArray) -> None:
        """Add sequences."""
        self._ids.append(ids)
        self._lengths.append(lengths)
        self._offsets = None

    @property
    def ids(self) -> IntArray:
        """All ids."""
        if len(self._ids) > 1:
            self._ids = [np.concatenate(self._ids)]
        return self._ids[0]

    @property
    def lengths(self) -> IntArray:
        """Length of each sequence."""
        if len(self._lengths) > 1:
            self._lengths = [np.concatenate(self._lengths)]
        return self._lengths[0]

    @property
    def offsets(self) -> IntArray:
        """Where each sequence starts, and the end of the last."""
        if self._offsets is None:
            self._offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        return self._offsets

    def take(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return ids and lengths of some sequences."""
        lengths = self.lengths[places]
        return self.ids[concat_ranges(self.offsets[places], lengths)], lengths


class RuleWords:
    """Words of all known pieces by one rule.

    Parameters
    ----------
    rule : WordSplitter, or callable
        Text -> words.
    """

    def __init__(self, rule: WordSplitter | Split) -> None:
        self.splitter = rule if isinstance(rule, WordSplitter) else WordSplitter(rule)
        self.vocabulary = Vocabulary(BETWEEN)
        self._pieces = Ragged()

    def split(self, texts: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return the word ids of texts, one after another, and the words of each text."""
        if not texts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        ids = self.vocabulary.number(self.splitter.joined(texts))
        is_between = ids == _MARK_ID
        ends = np.append(np.flatnonzero(is_between), len(ids))
        lengths = np.diff(ends, prepend=-1) - 1
        if len(lengths) != len(texts):
            raise ValueError(f"{len(texts)} texts were split into {len(lengths)}")
        return ids[~is_between], lengths

    def of_pieces(self, known: Sequence[str], pieces: IntArray) -> tuple[IntArray, IntArray]:
        """Return the word ids of some pieces, and the words of each; see `KnownWords`."""
        new = known[len(self._pieces.lengths) :]
        if new:
            self._pieces.append(*self._split_pieces(new))
        return self._pieces.take(pieces)

    def _split_pieces(self, pieces: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return what `split` does, with rules applied where they can do something alone."""
        if not self.splitter.has_plain:
            return self.split(pieces)
        is_plain = np.array([own.isalnum() and own.isascii() for own in pieces], dtype=bool)
        lengths = np.ones(len(pieces), dtype=np.int64)
        others, lengths[~is_plain] = self.split(list(compress(pieces, ~is_plain)))
        is_run = np.repeat(is_plain, lengths)
        ids = np.zeros(len(is_run), dtype=np.int64)
        ids[is_run] = self.vocabulary.number(self.splitter.plain(list(compress(pieces, is_plain))))
        ids[~is_run] = others
        return ids, lengths


class KnownWords:
    """Pieces that were seen, and what rules make of them.

    Attributes
    ----------
    lock : threading.Lock
        To be held by whoever adds.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._pieces = Vocabulary()
        self._rules: dict[object, RuleWords] = {}

    def __reduce__(self) -> tuple[type[KnownWords], tuple[()]]:
        """Begin anew in another process."""
        return KnownWords, ()

    @property
    def is_full(self) -> bool:
        """Whether no other shard should add to it."""
        vocabularies = [self._pieces, *(own.vocabulary for own in self._rules.values())]
        return max(map(len, vocabularies)) > _MAX_KNOWN

    @property
    def pieces(self) -> list[str]:
        """Distinct pieces, by number."""
        return self._pieces.names

    def rule(self, key: object, rule: WordSplitter | Split) -> RuleWords:
        """Return the words by the rule of that name."""
        if key not in self._rules:
            self._rules[key] = RuleWords(rule)
        return self._rules[key]

    def split(self, texts: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return the pieces of texts, one text after another, and how many each has.

        An empty piece stands where white space begins or ends a text: it has no words.
        """
        pieces, places, n_pieces = _split_at_space(texts)
        return self._pieces.number(pieces)[places], n_pieces


def _split_at_space(texts: Sequence[str]) -> tuple[list[str], IntArray, IntArray]:
    """Return distinct pieces, which of them follow each other, and how many each text has.

    >>> pieces, places, n_pieces = _split_at_space(["a b a", "b"])
    >>> pieces, places.tolist(), n_pieces.tolist()
    (['a', 'b'], [0, 1, 0, 1], [3, 1])
    """
    try:
        column = pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # Half of a pair: a text of Python's may hold it, none of Arrow's.
        lists = [text.split() for text in texts]
        index = {piece: i for i, piece in enumerate(dict.fromkeys(chain.from_iterable(lists)))}
        places = [index[piece] for piece in chain.from_iterable(lists)]
        return list(index), np.array(places, np.int64), np.array(list(map(len, lists)), np.int64)
    # The same white space as Python's: all characters are tested.
    split = pc.utf8_split_whitespace(column)
    encoded = split.values.dictionary_encode()
    pieces = encoded.dictionary.to_numpy(zero_copy_only=False).tolist()
    return pieces, np.asarray(encoded.indices, np.int64), np.diff(split.offsets.to_numpy())
