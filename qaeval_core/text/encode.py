"""Encode: texts to token ids, without special tokens, truncation or padding.

One tokenizer.json in, integer arrays out. Templates and windows are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
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
