"""Encode: texts to token ids, without special tokens, truncation or padding; windows that fit.

One tokenizer.json in, integer arrays out. Templates are the caller's, and what becomes of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qaeval_core.errors import ModelError

TokenIds = NDArray[np.int64]


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
        self._path = tokenizer_path
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_path))
        except BaseException as error:
            raise _refused(tokenizer_path, error) from None
        # Subtle: files carry truncation at 128 and padding to 128; both would be silent loss.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of each text, special tokens not added.

        Parameters
        ----------
        texts : sequence of str
            Any Unicode; an empty text gives an empty array.

        Returns
        -------
        list of int64 ndarray of shape (n_tokens,)
            In the order of ``texts``.

        Raises
        ------
        ModelError
            If the tokenizer gives up: a pattern of its own may take longer than it allows.
        """
        if not texts:
            return []
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            raise _refused(self._path, error) from None
        return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]

    def tokens(self, ids: TokenIds) -> list[str]:
        """Return the pieces that token ids stand for, as the vocabulary has them."""
        return [self._tokenizer.id_to_token(i) or "" for i in ids.tolist()]


def _refused(path: Path, error: BaseException) -> BaseException:
    """Return what to raise: a panic of the library is no Exception, nor is Ctrl-C."""
    is_panic = type(error).__name__ == "PanicException"
    if not isinstance(error, Exception) and not is_panic:
        return error
    if isinstance(error, MemoryError):
        return error
    return ModelError(f"{path} cannot be used: {next(iter(str(error).splitlines()), '')[:300]}")


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
