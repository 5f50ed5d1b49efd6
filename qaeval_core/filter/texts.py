r"""Texts: what filters read of questions and answers: words, tokens, runs of tokens, hashes.

A token is a run of letters, digits and underscores of the lower-cased text (``\w+``), a word is
what stands between spaces. Vectors of polars in and out: a row costs a microsecond or two.

But: these are for choosing rows; metrics have tokenisers of their own (``text.tokenise``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.planning.columns import readable, text_of
from qaeval_core.schema import is_list, is_text

UInt64 = NDArray[np.uint64]

# No token holds one.
_SPACE = " "


def tokens(texts: pl.Series) -> pl.Series:
    """Return the tokens of texts; a list of texts a row, null where there is no text.

    Examples
    --------
    >>> tokens(pl.Series(["What's new?", "", None])).to_list()
    [['what', 's', 'new'], [], None]
    """
    return texts.str.to_lowercase().str.extract_all(r"\w+")


def joined(tokens: pl.Series) -> pl.Series:
    """Return tokens as one text, a space between them."""
    return tokens.list.join(_SPACE)


def n_words(texts: pl.Series) -> pl.Series:
    """Return how many words texts have.

    Examples
    --------
    >>> n_words(pl.Series([" Who  was it? ", "", None])).to_list()
    [3, 0, None]
    """
    return texts.str.count_matches(r"\S+")


def holds_run(texts: pl.Series, runs: pl.Series) -> pl.Series:
    """Return whether the tokens of a text hold those of another in a row; both as `joined`.

    No tokens are in no text.

    Examples
    --------
    >>> asked = pl.Series(["who won in 1990"] * 3)
    >>> holds_run(asked, pl.Series(["in 1990", "99", ""])).to_list()
    [True, False, False]
    """
    frame = pl.DataFrame({"text": _SPACE + texts + _SPACE, "run": _SPACE + runs + _SPACE})
    inside = frame.select(pl.col("text").str.contains(pl.col("run"), literal=True)).to_series()
    return inside & (runs != "")


def text_hashes(texts: Iterable[bytes | None]) -> UInt64:
    """Return 64 bits of BLAKE2b of each text, nobody's choice; 0 for null.

    Of ten million texts, two have the same ones once in 370,000 times.
    """
    blake = hashlib.blake2b
    digests = [bytes(8) if text is None else blake(text, digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def column_hashes(column: pa.ChunkedArray) -> tuple[UInt64, NDArray[np.bool_]]:
    """Return hashes of a column's values as texts, and which are there; a list is one value.

    Returns
    -------
    (uint64 ndarray, bool ndarray), both of shape (n_rows,)
    """
    if is_list(column.type) and is_text(column.type.value_type):
        rows = column.cast(pa.large_list(pa.large_binary())).to_pylist()
        # An empty passage in a list is not the same as none.
        texts = [
            None if row is None else _LIST_END.join(part or b"" for part in row) for row in rows
        ]
        return text_hashes(texts), np.array([text is not None for text in texts], dtype=bool)
    if pa.types.is_dictionary(column.type):
        return _coded_hashes(column)
    # Neighbours share contexts: each is hashed once.
    coded = text_column(column).cast(pa.large_binary()).combine_chunks().dictionary_encode()
    own = text_hashes(coded.dictionary.to_pylist())
    is_there = np.asarray(coded.is_valid())
    codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    hashes = own[codes] if len(own) else np.zeros(len(codes), np.uint64)
    return np.where(is_there, hashes, np.uint64(0)), is_there


def _coded_hashes(column: pa.ChunkedArray) -> tuple[UInt64, NDArray[np.bool_]]:
    """Return what `column_hashes` does, of a column of dictionaries."""
    found: list[UInt64] = [np.zeros(0, np.uint64)]
    for chunk in column.chunks:
        texts = text_column(pa.chunked_array([chunk.dictionary])).cast(pa.large_binary())
        own = np.append(text_hashes(texts.to_pylist()), np.uint64(0))
        # The last one stands for null.
        codes = chunk.indices.fill_null(len(own) - 1).to_numpy(zero_copy_only=False)
        found.append(own[codes])
    return np.concatenate(found), np.asarray(column.is_valid())


_LIST_END = b"\x1e"


def tie_hashes(ids: pa.ChunkedArray, seed: int) -> UInt64:
    """Return the first 64 bits of SHA-256 of each id, a zero byte and the seed; ids as texts."""
    sha = hashlib.sha256
    end = f"\0{seed}".encode()
    texts = ids.cast(pa.large_binary()).to_pylist()
    digests = b"".join([sha((text or b"") + end).digest() for text in texts])
    return np.frombuffer(digests, dtype=">u8")[::4].astype(np.uint64)


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values stand in it themselves, not in a dictionary."""
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def text_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as readable texts: ids, groups and quotas are compared as such."""
    column = decoded(column)
    kind = column.type
    if is_text(kind):
        return readable(column.cast(pa.string()) if pa.types.is_null(kind) else column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    texts = [text_of(scalar) for scalar in column]
    return pa.chunked_array([pa.array(texts, pa.string())])
