"""Table: distinct texts as ragged arrays of word ids, each text and each word split once.

Texts in, arrays out, for kernels that work on many texts at a time. Ids count from 0 in the order
in which words appear, so they mean nothing outside their table.

Most rules split inside white space alone: "the U.S." gives what "the" and "U.S." give. So texts
are split at white space once for all tables of a shard, and a table applies its rule to the
distinct pieces: of a million words of answers some 60,000 are distinct.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from qaeval_core.text.ngrams import IntArray, concat_ranges
from qaeval_core.text.tokenize import BETWEEN, Split, WordSplitter

_BETWEEN_ID = -1
_FIRST_SURROGATE = 0xD800
_N_SURROGATES = 0x800
_MAX_CHARACTERS = 0x110000 - _N_SURROGATES


class _Vocabulary(defaultdict[str, int]):
    """Word -> id, counted from 0 without a call into Python; the mark between texts is -1."""

    def __init__(self) -> None:
        super().__init__(count().__next__)
        self[BETWEEN] = _BETWEEN_ID

    def names(self, first: int = 0) -> list[str]:
        """Return words by id, from some id on."""
        return list(islice(self, first + 1, None))


class _Ragged:
    """Ids of many sequences, one after another, with the length of each."""

    def __init__(self) -> None:
        self._ids = [np.zeros(0, dtype=np.int64)]
        self._lengths = [np.zeros(0, dtype=np.int64)]

    def append(self, ids: IntArray, lengths: IntArray) -> None:
        """Add sequences."""
        self._ids.append(ids)
        self._lengths.append(lengths)

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
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def take(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return ids and lengths of some sequences."""
        lengths = self.lengths[places]
        return self.ids[concat_ranges(self.offsets[places], lengths)], lengths


class RawTexts:
    """Distinct texts of a shard, and their pieces between white space.

    Examples
    --------
    >>> raw = RawTexts()
    >>> raw.add(["a b a", "", "a b a"]).tolist()
    [0, 1, 0]
    """

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._vocabulary = _Vocabulary()
        self._pieces = _Ragged()
        self._split = WordSplitter(str.split, split_joined=str.split)
        self._held: dict[str, tuple[int, bool]] = {}  # by sign: texts seen, and the answer

    @property
    def n_texts(self) -> int:
        """Distinct texts."""
        return len(self._index)

    def add(self, texts: Iterable[str]) -> IntArray:
        """Return the number of each text."""
        index = self._index
        return np.array([index.setdefault(text, len(index)) for text in texts], dtype=np.int64)

    def texts(self, first: int = 0) -> list[str]:
        """Return texts by number, from some number on."""
        return list(islice(self._index, first, None))

    def holds(self, signs: Sequence[str]) -> bool:
        """Return whether a text holds one of some signs; each sign is looked for once."""
        for sign in signs:
            n_seen, is_held = self._held.get(sign, (0, False))
            if not is_held and n_seen < self.n_texts:
                is_held = any(sign in text for text in self.texts(n_seen))
                self._held[sign] = (self.n_texts, is_held)
            if is_held:
                return True
        return False

    def pieces(self) -> _Ragged:
        """Return the pieces of all texts, splitting those that were not split yet."""
        new = self.texts(len(self._pieces.lengths))
        if new:
            self._pieces.append(*_word_ids(self._split, new, self._vocabulary))
        return self._pieces

    def new_pieces(self, first: int) -> list[str]:
        """Return distinct pieces by id, from some id on."""
        return self._vocabulary.names(first)


class TokenTable:
    """Word ids of distinct texts.

    Parameters
    ----------
    tokenize : WordSplitter, or callable
        Text -> words.
    raw : RawTexts, optional
        Shared with other tables of the same texts.

    Examples
    --------
    >>> table = TokenTable(str.split)
    >>> table.add(["a b a", "", "b", "a b a"]).tolist()
    [0, 1, 2, 0]
    >>> table.ids.tolist(), table.offsets.tolist()
    ([0, 1, 0, 1], [0, 3, 3, 4])
    """

    def __init__(self, tokenize: WordSplitter | Split, *, raw: RawTexts | None = None) -> None:
        self._splitter = tokenize if isinstance(tokenize, WordSplitter) else WordSplitter(tokenize)
        self._raw = raw if raw is not None else RawTexts()
        self._vocabulary = _Vocabulary()
        self._texts = _Ragged()
        self._pieces = _Ragged()  # words of each piece between white space
        self._own = np.zeros(0, dtype=np.int64)  # by the texts' numbers; -1: not in this table
        self._numbers = [np.zeros(0, dtype=np.int64)]

    def add(self, texts: Iterable[str]) -> IntArray:
        """Return the index of each text, tokenizing the new ones."""
        return self.add_numbered(self._raw.add(texts))

    def add_numbered(self, numbers: IntArray) -> IntArray:
        """Return the index of each text, given by its number in the table's `RawTexts`."""
        n_more = self._raw.n_texts - len(self._own)
        self._own = np.concatenate([self._own, np.full(n_more, -1, dtype=np.int64)])
        unknown = numbers[self._own[numbers] < 0]
        if len(unknown):
            _, first = np.unique(unknown, return_index=True)
            new = unknown[np.sort(first)]
            self._own[new] = self.n_texts + np.arange(len(new))
            self._numbers.append(new)
            self._tokenize(new)
        return self._own[numbers]

    def _tokenize(self, numbers: IntArray) -> None:
        if self._splitter.crossing is None or self._raw.holds(self._splitter.crossing):
            all_texts = self._raw.texts()
            texts = [all_texts[number] for number in numbers.tolist()]
            self._texts.append(*_word_ids(self._splitter, texts, self._vocabulary))
            return
        # Pieces of the new texts, one text after another, and how many each text has.
        pieces, n_pieces = self._raw.pieces().take(numbers)
        new = self._raw.new_pieces(len(self._pieces.lengths))
        if new:
            self._pieces.append(*_word_ids(self._splitter, new, self._vocabulary))
        ids, lengths = self._pieces.take(pieces)  # lengths: words of each piece
        # A text ends where its last piece does.
        ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(n_pieces)]
        self._texts.append(ids, np.diff(ends, prepend=0))

    @property
    def n_texts(self) -> int:
        """Distinct texts."""
        return sum(len(numbers) for numbers in self._numbers)

    @property
    def texts(self) -> list[str]:
        """Distinct texts, by index."""
        all_texts = self._raw.texts()
        return [all_texts[number] for number in np.concatenate(self._numbers).tolist()]

    @property
    def words(self) -> list[str]:
        """Words, by id."""
        return self._vocabulary.names()

    @property
    def ids(self) -> IntArray:
        """Word ids of all texts, one after another."""
        return self._texts.ids

    @property
    def lengths(self) -> IntArray:
        """Words of each text."""
        return self._texts.lengths

    @property
    def offsets(self) -> IntArray:
        """Where each text's ids start in ``ids``, and the end; shape (n_texts + 1,)."""
        return self._texts.offsets

    def sequences(self) -> list[str] | list[list[int]]:
        """Return each text as a sequence of its ids, for libraries that compare sequences.

        One character a word, so that equal words are equal characters and a run of words is a
        substring; lists where there are more words than characters.
        """
        ids, spans = self.ids, pairwise(self.offsets.tolist())
        if len(self._vocabulary) > _MAX_CHARACTERS:
            numbers = ids.tolist()
            return [numbers[start:stop] for start, stop in spans]
        # Surrogates are no characters of UTF-32: step over them.
        points = np.where(ids < _FIRST_SURROGATE, ids, ids + _N_SURROGATES)
        whole = points.astype("<u4").tobytes().decode("utf-32-le")
        return [whole[start:stop] for start, stop in spans]

    def are_equal(self, left: IntArray, right: IntArray) -> NDArray[np.bool_]:
        """Return which pairs of texts, by index, have the same words in the same order."""
        found = np.asarray(self.lengths[left] == self.lengths[right], dtype=bool)
        (left_ids, lengths), (right_ids, _) = (
            self._texts.take(own[found]) for own in (left, right)
        )
        places = np.repeat(np.flatnonzero(found), lengths)
        found[places[left_ids != right_ids]] = False
        return found


def _word_ids(
    splitter: WordSplitter, texts: Sequence[str], vocabulary: _Vocabulary
) -> tuple[IntArray, IntArray]:
    """Return the word ids of texts, one after another, and the words of each text."""
    words = splitter.joined(texts)
    ids = np.fromiter(map(vocabulary.__getitem__, words), np.int64, count=len(words))
    is_between = ids == _BETWEEN_ID
    ends = np.append(np.flatnonzero(is_between), len(ids))
    lengths = np.diff(ends, prepend=-1) - 1
    if len(lengths) != len(texts):
        raise ValueError(f"{len(texts)} texts were split into {len(lengths)}")
    return ids[~is_between], lengths
