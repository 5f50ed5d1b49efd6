"""Encode: texts to token ids, without special tokens, truncation or padding; windows that fit.

One tokenizer.json in, integer arrays out. Templates are the caller's, and what becomes of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from qaeval_core.text.known_tokens import KnownTokens, PieceRule
from qaeval_core.text.ngrams import IntArray, concat_ranges
from qaeval_core.text.token_runs import TokenRuns
from qaeval_core.text.tokenizer_file import TokenizerFile

CharSpans = NDArray[np.int64]


class TextEncoder:
    """Token ids of texts, from one tokenizer file.

    Parameters
    ----------
    tokenizer_path : Path
        A ``tokenizer.json`` of the tokenizers library.

    Raises
    ------
    ModelError
        If it is none.
    """

    def __init__(self, tokenizer_path: Path) -> None:
        self._file = TokenizerFile(tokenizer_path)
        rule = PieceRule.of(self._file.tokenizer)
        self._reader = self._file if rule is None else KnownTokens(self._file, rule)

    def encode(self, texts: Sequence[str]) -> TokenRuns:
        """Return the token ids of each text, special tokens not added.

        Parameters
        ----------
        texts : sequence of str
            Any valid Unicode; an empty text gives an empty array.

        Returns
        -------
        TokenRuns
            One a text, in the order of ``texts``.

        Raises
        ------
        ModelError
            If the tokenizer gives up: a pattern of its own may take longer than it allows.
        """
        return self._reader.encode(texts) if texts else TokenRuns.of([])

    def encode_words(self, texts: Sequence[str]) -> tuple[TokenRuns, list[CharSpans]]:
        """Return of each text its token ids, and where the word of each token lies.

        Returns
        -------
        ids : TokenRuns
        words : list of int64 ndarray of shape (n_tokens, 2)
            The first character and the one after the last of each token's word: a span of tokens
            becomes whole words.

        Raises
        ------
        ModelError
            As `encode` does.
        """
        if not texts:
            return TokenRuns.of([]), []
        encodings = self._file.encodings(texts)
        ids = TokenRuns.of([encoding.ids for encoding in encodings])
        return ids, [_word_spans(encoding) for encoding in encodings]

    def tokens(self, ids: IntArray) -> list[str]:
        """Return the pieces that token ids stand for, as the vocabulary has them."""
        return [self._file.tokenizer.id_to_token(i) or "" for i in ids.tolist()]


def _word_spans(encoding: Encoding) -> CharSpans:
    offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    # A token of no word is one of its own.
    words = [-i - 1 if word is None else word for i, word in enumerate(encoding.word_ids)]
    _, word = np.unique(np.asarray(words, dtype=np.int64), return_inverse=True)
    start = np.full(len(words), np.iinfo(np.int64).max)
    stop = np.zeros(len(words), dtype=np.int64)
    np.minimum.at(start, word, offsets[:, 0])
    np.maximum.at(stop, word, offsets[:, 1])
    return np.stack([start[word], stop[word]], axis=1)


def equal_windows(n_tokens: int, *, max_tokens: int) -> list[tuple[int, int]]:
    """Return the fewest windows that fit, of equal length; the first ones have a token more.

    They do not overlap, and every token is in exactly one.

    Parameters
    ----------
    n_tokens : int
        Tokens of the text; 0 gives no window.
    max_tokens : int
        Tokens that fit one window; at least 1.

    Returns
    -------
    list of (int, int)
        Half-open ranges, in order, that tile 0..n_tokens.

    Examples
    --------
    >>> equal_windows(10, max_tokens=4)
    [(0, 4), (4, 7), (7, 10)]
    >>> equal_windows(4, max_tokens=4)
    [(0, 4)]
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, at least 1 is needed")
    if n_tokens == 0:
        return []
    n_windows = -(-n_tokens // max_tokens)
    size, n_larger = divmod(n_tokens, n_windows)
    edges = [i * size + min(i, n_larger) for i in range(n_windows + 1)]
    return list(pairwise(edges))


def equal_cuts(
    n_tokens: IntArray, *, max_tokens: IntArray | int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return `equal_windows` of many texts: the text, start and length of each window.

    Examples
    --------
    >>> [each.tolist() for each in equal_cuts(np.array([10, 0, 3]), max_tokens=4)]
    [[0, 0, 0, 2], [0, 4, 7, 0], [4, 3, 3, 3]]
    """
    n_windows = -(-n_tokens // max_tokens)
    text = np.repeat(np.arange(len(n_tokens)), n_windows)
    size, n_larger = np.divmod(n_tokens[text], n_windows[text])
    i = concat_ranges(np.zeros_like(n_windows), n_windows)
    return text, i * size + np.minimum(i, n_larger), size + (i < n_larger)


def overlapping_windows(
    n_tokens: int, *, max_tokens: int, n_overlap: int
) -> list[tuple[int, int, int]]:
    """Return the fewest windows that fit, each with the first tokens of the next.

    A run of up to ``n_overlap`` + 1 tokens lies whole in the window that owns its first token, and
    each token is owned by one.

    Parameters
    ----------
    max_tokens : int
        Tokens that fit one window; more than ``n_overlap``.

    Returns
    -------
    list of (int, int, int)
        Start, stop, and how many tokens from the start on the window owns.

    Examples
    --------
    >>> overlapping_windows(10, max_tokens=6, n_overlap=2)
    [(0, 6, 4), (4, 10, 6)]
    >>> overlapping_windows(4, max_tokens=6, n_overlap=2)
    [(0, 4, 4)]
    """
    if n_tokens <= max_tokens:
        return [(0, n_tokens, n_tokens)] if n_tokens else []
    owned = equal_windows(n_tokens - n_overlap, max_tokens=max_tokens - n_overlap)
    windows = [(start, stop + n_overlap, stop - start) for start, stop in owned]
    start, stop, _ = windows[-1]
    return [*windows[:-1], (start, stop, stop - start)]
