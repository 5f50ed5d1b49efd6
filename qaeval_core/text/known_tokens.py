"""Known tokens: what a tokenizer makes of pieces of text, kept over shards.

Some tokenizers never join what a space divides: "the red barn" has the tokens of "the", " red" and
" barn". Texts are many where pieces are few, and a lookup takes a tenth of the tokenizer's time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from qaeval_core.text.known_words import Ragged, Vocabulary
from qaeval_core.text.ngrams import IntArray
from qaeval_core.text.token_runs import TokenRuns
from qaeval_core.text.tokenizer_file import TokenizerFile

# What is known is forgotten behind the shard that brings more: some 30 MB.
_MAX_PIECES, _MAX_TOKENS = 131_072, 1_048_576

# Pieces that the tokenizer is given as one text.
_TOGETHER = 256


@dataclass(frozen=True, slots=True)
class PieceRule:
    """Where a tokenizer never looks across a space.

    Attributes
    ----------
    space : str
        What the pieces of a text begin with behind its first: a space, or nothing.
    crossing : tuple of str
        What it looks across spaces for: texts that hold one of these have no pieces.
    """

    space: str
    crossing: tuple[str, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PieceRule | None:
        """Return the rule of a tokenizer; None where it may look anywhere."""
        before, changes, model = tokenizer.pre_tokenizer, tokenizer.normalizer, tokenizer.model
        added = tokenizer.get_added_tokens_decoder().values()
        has_spaces = any(" " in token.content for token in added)
        # Its normalizer changes one character after the other; it drops white space.
        if type(before) is pre_tokenizers.BertPreTokenizer and type(model) is models.WordPiece:
            is_bert = isinstance(changes, normalizers.BertNormalizer | None) and not has_spaces
            return cls("") if is_bert else None
        # A space belongs to the word behind it.
        if type(before) is pre_tokenizers.ByteLevel and type(model) is models.BPE:
            is_plain = changes is None and not model.dropout
            if is_plain and before.use_regex and not before.add_prefix_space:
                crossing = (t for t in added if t.lstrip or t.rstrip or " " in t.content)
                return cls(" ", tuple(token.content for token in crossing))
        return None


class KnownTokens:
    """Token ids of texts, from those of their pieces.

    Parameters
    ----------
    file : TokenizerFile
    rule : PieceRule
        Of its tokenizer.
    """

    def __init__(self, file: TokenizerFile, rule: PieceRule) -> None:
        self._file = file
        self._rule = rule
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        space = self._rule.space
        self._first = _Pieces(self._file, are_alike=not space)
        self._others = _Pieces(self._file, space=space)

    def encode(self, texts: Sequence[str]) -> TokenRuns:
        """Return the token ids of each text.

        Raises
        ------
        ModelError
            If the tokenizer gives up.
        """
        signs = self._rule.crossing
        if not signs:
            return self._encode(texts)
        has_pieces = np.array([not any(sign in text for sign in signs) for text in texts])
        found = self._encode(list(compress(texts, has_pieces)))
        others = self._file.encode(list(compress(texts, ~has_pieces)))
        return TokenRuns.merged(has_pieces, found, others)

    def _encode(self, texts: Sequence[str]) -> TokenRuns:
        if not texts:
            return TokenRuns.of([])
        names, places, n_pieces = _split_at_spaces(texts, joins=bool(self._rule.space))
        stops = np.cumsum(n_pieces)
        is_first = np.zeros(len(places), dtype=bool)
        if self._rule.space:
            is_first[stops - n_pieces] = True
        with self._lock:
            if max(self._first.fullness, self._others.fullness) > 1:
                self._forget()
            first = self._first.runs(names, places[is_first])
            others = self._others.runs(names, places[~is_first])
        pieces = TokenRuns.merged(is_first, first, others)
        ends = np.concatenate([[0], np.cumsum(pieces.counts)])[stops]
        return TokenRuns.one_after_another(pieces.flat(), np.diff(ends, prepend=0))


class _Pieces:
    """Token ids of pieces that were seen.

    Parameters
    ----------
    file : TokenizerFile
    space : str, default ""
        What each begins with.
    are_alike : bool, default True
        Whether a piece behind others, and a space, has the tokens that it has here.
    """

    def __init__(self, file: TokenizerFile, *, space: str = "", are_alike: bool = True) -> None:
        self._file = file
        self._space = space
        self._are_alike = are_alike
        self._numbers = Vocabulary()
        self._ids = Ragged()

    @property
    def fullness(self) -> float:
        """How full it is; above 1 it should be forgotten."""
        return max(len(self._numbers) / _MAX_PIECES, len(self._ids.ids) / _MAX_TOKENS)

    def runs(self, names: Sequence[str], places: IntArray) -> TokenRuns:
        """Return the token ids of pieces, given by the places of their names."""
        is_used = np.zeros(len(names), dtype=bool)
        is_used[places] = True
        numbers = np.zeros(len(names), dtype=np.int64)
        numbers[is_used] = self._numbers.number(list(compress(names, is_used)))
        new = self._numbers.names[len(self._ids.lengths) :]
        if new:
            found = self._encode(new)
            self._ids.append(found.flat(), found.counts)
        own = numbers[places]
        return TokenRuns(self._ids.ids, self._ids.offsets[own], self._ids.lengths[own])

    def _encode(self, names: list[str]) -> TokenRuns:
        """Return the token ids of pieces: of many in one text, for a text alone costs more."""
        is_word = np.array([self._are_alike and name.split() == [name] for name in names])
        words = list(compress(names, is_word))
        others = self._file.encode([self._space + name for name in compress(names, ~is_word)])
        groups = [words[i : i + _TOGETHER] for i in range(0, len(words), _TOGETHER)]
        encodings = self._file.encodings([self._space + " ".join(own) for own in groups])
        ids, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for own, encoding in zip(groups, encodings, strict=True):
            stops = np.cumsum([len(word) + 1 for word in own])
            # By their ends: a token may begin with a space that is no part of its piece.
            last = np.array([stop - 1 for _, stop in encoding.offsets], dtype=np.int64)
            place = np.searchsorted(stops, last, side="right")
            ids.append(np.array(encoding.ids, dtype=np.int64))
            counts.append(np.bincount(place, minlength=len(own)))
        found = TokenRuns.one_after_another(np.concatenate(ids), np.concatenate(counts))
        return TokenRuns.merged(is_word, found, others)


def _split_at_spaces(texts: Sequence[str], *, joins: bool) -> tuple[list[str], IntArray, IntArray]:
    """Return names of pieces, which of them follow each other, and how many each text has.

    Parameters
    ----------
    joins : bool
        Whether a space is no end of a piece where no word begins behind it.

    Examples
    --------
    >>> names, places, n_pieces = _split_at_spaces(["a b  c ", "b"], joins=True)
    >>> [names[place] for place in places], n_pieces.tolist()
    (['a', 'b ', 'c ', 'b'], [3, 1])
    """
    split = pc.split_pattern(pa.array(texts, pa.large_string()), " ")
    encoded = split.values.dictionary_encode()
    names = encoded.dictionary.to_numpy(zero_copy_only=False).tolist()
    places = np.asarray(encoded.indices, dtype=np.int64)
    offsets = split.offsets.to_numpy()
    if not joins:
        return names, places, np.diff(offsets)
    is_word = np.array([name != "" and not name[0].isspace() for name in names])
    begins = is_word[places]
    begins[offsets[:-1]] = True
    starts = np.flatnonzero(begins)
    stops = np.append(starts[1:], len(places))
    whole = places[starts]
    for i in np.flatnonzero(stops - starts > 1).tolist():
        names.append(" ".join([names[place] for place in places[starts[i] : stops[i]].tolist()]))
        whole[i] = len(names) - 1
    return names, whole, np.add.reduceat(begins, offsets[:-1], dtype=np.int64)
