"""Table: distinct texts as ragged arrays of word ids, each text and each word split once.

Texts in, arrays out, for kernels that work on many texts at a time. Ids count from 0 in the order
in which words appear, so they mean nothing outside their table.

Texts are split at white space once for all tables of a shard, and what the pieces are split into is
kept over shards (`known_words`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from qaeval_core.text.known_words import KnownWords, Ragged
from qaeval_core.text.ngrams import IntArray
from qaeval_core.text.tokenize import Split, WordSplitter

_FIRST_SURROGATE = 0xD800
_N_SURROGATES = 0x800
_MAX_CHARACTERS = 0x110000 - _N_SURROGATES


class RawTexts:
    """Distinct texts of a shard, and their pieces between white space.

    Parameters
    ----------
    known : KnownWords, optional
        Shared with other shards.

    Examples
    --------
    >>> raw = RawTexts()
    >>> raw.add(["a b a", "", "a b a"]).tolist()
    [0, 1, 0]
    """

    def __init__(self, known: KnownWords | None = None) -> None:
        self.known = known if known is not None else KnownWords()
        self._index: dict[str, int] = {}
        self._pieces = Ragged()
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
                is_held = sign in " ".join(self.texts(n_seen))  # No sign has a space.
                self._held[sign] = (self.n_texts, is_held)
            if is_held:
                return True
        return False

    def pieces(self) -> Ragged:
        """Return the pieces of all texts, splitting those that were not split yet."""
        new = self.texts(len(self._pieces.lengths))
        if new:
            self._pieces.append(*self.known.split(new))
        return self._pieces


class TokenTable:
    """Word ids of distinct texts.

    Parameters
    ----------
    tokenize : WordSplitter, or callable
        Text -> words.
    raw : RawTexts, optional
        Shared with other tables of the same texts.
    key : object, optional
        What its rule is known as.

    Examples
    --------
    >>> table = TokenTable(str.split)
    >>> table.add(["a b a", "", "b", "a b a"]).tolist()
    [0, 1, 2, 0]
    >>> table.ids.tolist(), table.offsets.tolist()
    ([0, 1, 0, 1], [0, 3, 3, 4])
    """

    def __init__(
        self, tokenize: WordSplitter | Split, *, raw: RawTexts | None = None, key: object = None
    ) -> None:
        self._raw = raw if raw is not None else RawTexts()
        self._rule = self._raw.known.rule(key, tokenize)
        self._words = np.zeros(0, dtype=np.int64)  # by id, what the rule knows them as
        self._ids = np.zeros(0, dtype=np.int64)  # the other way round; -1: not in this table
        self._texts = Ragged()
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
        with self._raw.known.lock:
            words, lengths = self._split(numbers)
            n_known = len(self._rule.vocabulary.names)
        # Ids of this table: those of all known words would make the keys of kernels large.
        n_more = n_known - len(self._ids)
        self._ids = np.concatenate([self._ids, np.full(n_more, -1, dtype=np.int64)])
        # In the order of these texts, whatever was known before: sums over words are in one order.
        first = np.full(n_known, -1, dtype=np.int64)
        first[words[::-1]] = np.arange(len(words) - 1, -1, -1)
        new = np.flatnonzero((first >= 0) & (self._ids < 0))
        new = new[np.argsort(first[new])]
        self._ids[new] = len(self._words) + np.arange(len(new))
        self._words = np.concatenate([self._words, new])
        self._texts.append(self._ids[words], lengths)

    def _split(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the words of some texts, as the rule knows them, and how many each has."""
        crossing = self._rule.splitter.crossing
        if crossing is None or self._raw.holds(crossing):
            all_texts = self._raw.texts()
            return self._rule.split([all_texts[number] for number in numbers.tolist()])
        # Pieces of the texts, one text after another, and how many each text has.
        pieces, n_pieces = self._raw.pieces().take(numbers)
        ids, lengths = self._rule.of_pieces(self._raw.known.pieces, pieces)
        # A text ends where its last piece does.
        ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(n_pieces)]
        return ids, np.diff(ends, prepend=0)

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
        names = self._rule.vocabulary.names
        return [names[i] for i in self._words.tolist()]

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
        if len(self._words) >= _MAX_CHARACTERS:
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
