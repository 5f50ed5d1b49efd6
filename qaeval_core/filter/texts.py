r"""Texts: what filters read of questions and answers: words, tokens, runs of tokens, hashes.

A token is a run of letters, digits and underscores of the lower-cased text (``\w+``), a word is
what stands between spaces. Vectors of polars in and out: a row costs a microsecond or two.

But: these are for choosing rows; metrics have tokenizers of their own (``text.tokenize``).
"""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.text.column_hashes import UInt64

# No token holds one.
_SPACE = " "
# What an ASCII letter, digit or underscore is in a token; all else stands between tokens.
_IN_TOKENS = bytes(
    byte | 32 if chr(byte).isalpha() else byte if chr(byte).isdigit() or byte == 95 else 32
    for byte in range(128)
).ljust(256)
_ROWS_PER_STEP = 4096
# Stands between passages that are looked at as one text.
BETWEEN = "\x1e"
# Signs that tell tokens apart: C++ from C, +3 from 3, $5 from 5.
_SIGN = rf"[\p{{Sm}}\p{{Sc}}\p{{So}}#%&@{BETWEEN}]"
_SIGN_ON_LETTER = r"\pL[#+♯]"
_SIGNED_TOKENS = rf"\w*{_SIGN_ON_LETTER}+|\w+|{_SIGN}"
_HYPHEN_AS_MINUS = r"(^|[^\w])-(\d)"


def token_text(texts: pl.Series) -> pl.Series:
    """Return the tokens of texts, a space between them; null where there is no text.

    Examples
    --------
    >>> token_text(pl.Series(["What's new?", "Ünter_1", "?", None])).to_list()
    ['what s new', 'ünter_1', '', None]
    """
    is_ascii = (texts.str.len_bytes() == texts.str.len_chars()).fill_null(value=True)
    if is_ascii.all():
        return _ascii_token_text(texts)
    nothing = pl.Series([None], dtype=pl.String)
    others = nothing.zip_with(is_ascii, texts)
    found = others.str.to_lowercase().str.extract_all(r"\w+").list.join(_SPACE)
    return _ascii_token_text(texts.zip_with(is_ascii, nothing)).zip_with(is_ascii, found)


def _ascii_token_text(texts: pl.Series) -> pl.Series:
    """Return what `token_text` does, of texts of ASCII: 0.2 us of a question, not 1.1."""
    column = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, places, content = column.buffers()
    if content is None:
        return texts
    offsets = np.frombuffer(places, np.int64)[column.offset :][: len(column) + 1]
    parts, sizes = [], [np.zeros(1, np.int64)]
    for start in range(0, len(column), _ROWS_PER_STEP):
        own = offsets[start : start + _ROWS_PER_STEP + 1]
        data = content.slice(int(own[0]), int(own[-1] - own[0])).to_pybytes()
        found, n_bytes = _ascii_tokens(data.translate(_IN_TOKENS), own - own[0])
        parts.append(found)
        sizes.append(n_bytes)
    made = pa.LargeStringArray.from_buffers(
        len(column),
        pa.py_buffer(np.cumsum(np.concatenate(sizes))),
        pa.py_buffer(np.concatenate([np.zeros(0, np.uint8), *parts])),
    )
    tokens = pl.Series(pl.from_arrow(made), dtype=pl.String)
    is_there = texts.is_not_null()
    return tokens if is_there.all() else tokens.zip_with(is_there, texts)


def _ascii_tokens(
    content: bytes, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the tokens of texts one after another, and the bytes of each text's.

    Parameters
    ----------
    content : bytes
        Characters of tokens, and spaces.
    offsets : int64 ndarray of shape (n_texts + 1,)
    """
    characters = np.frombuffer(content, np.uint8)
    in_token = characters != ord(_SPACE)
    # A space stays if a token follows in its text.
    stays = in_token.copy()
    stays[:-1] |= in_token[1:]
    has_bytes = offsets[1:] > offsets[:-1]
    last = offsets[1:][has_bytes] - 1
    stays[last] = in_token[last]
    sizes = np.zeros(len(has_bytes), np.int64)
    if len(last):
        sizes[has_bytes] = np.add.reduceat(stays, offsets[:-1][has_bytes], dtype=np.int64)
    found = characters[stays]
    # One before the first token does not.
    starts = np.cumsum(sizes) - sizes
    leads = sizes > 0
    leads[leads] = found[starts[leads]] == ord(_SPACE)
    sizes[leads] -= 1
    return np.delete(found, starts[leads]), sizes


def same_text(texts: pl.Series) -> pl.Series:
    """Return what equal texts have in common: all but case, the width of white space and one mark.

    The mark is a ? or full stop that ends the text, right behind what is neither white space nor
    such a mark. One that stands alone, or one of several, may be what is asked for.

    Examples
    --------
    >>> asked = pl.Series(["Who uses  C?", "who uses c", "Who uses C++?", "Who uses C#?", "?"])
    >>> same_text(asked).to_list()
    ['who uses c', 'who uses c', 'who uses c++', 'who uses c#', '?']
    >>> same_text(pl.Series(["operator ?", "operator ??", "operator"])).to_list()
    ['operator ?', 'operator ??', 'operator']
    """
    plain = texts.str.to_lowercase().str.replace_all(r"\s+", _SPACE).str.strip_chars()
    return plain.str.replace(r"([^\s?.。？])[?.。？]$", "$1")


def n_words(texts: pl.Series) -> pl.Series:
    """Return how many words texts have.

    Examples
    --------
    >>> n_words(pl.Series([" Who  was it? ", "", None])).to_list()
    [3, 0, None]
    """
    return texts.str.count_matches(r"\S+")


def holds_run(texts: pl.Series, runs: pl.Series) -> pl.Series:
    """Return whether the tokens of a text hold those of another in a row; both `token_text`.

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


def holds_signs(found: pl.Series, texts: pl.Series, answers: pl.Series) -> pl.Series:
    """Return what `holds_run` found of tokens, but signs count, and answers of signs alone.

    Parameters
    ----------
    found : pl.Series of bool
    texts, answers : pl.Series of str
        As they are; passages of one text stand with `BETWEEN` between them.

    Examples
    --------
    >>> texts, answers = pl.Series(["i use f", "i use f#", "a ♥"]), pl.Series(["F#", "F", "♥"])
    >>> holds_signs(pl.Series([True, True, False]), texts, answers).to_list()
    [False, False, True]
    """
    has_sign = _with_minus(answers).str.contains(_SIGN) | texts.str.contains(_SIGN_ON_LETTER)
    signed = (found & has_sign).fill_null(value=False).arg_true()
    runs = _signed_text(texts.gather(signed)), _signed_text(answers.gather(signed))
    found = found.clone().scatter(signed, holds_run(*runs))
    is_bare = answers.str.contains(r"\S") & ~answers.str.contains(r"\w")
    bare = is_bare.fill_null(value=False).arg_true()
    frame = pl.DataFrame({"text": texts.gather(bare), "answer": answers.gather(bare)})
    literal = pl.col("text").str.contains(pl.col("answer").str.strip_chars(), literal=True)
    return found.scatter(bare, frame.select(literal).to_series())


def _signed_text(texts: pl.Series) -> pl.Series:
    """Return tokens and signs of texts, a space between them."""
    found = _with_minus(texts).str.to_lowercase().str.extract_all(_SIGNED_TOKENS)
    return found.list.join(_SPACE)


def _with_minus(texts: pl.Series) -> pl.Series:
    """Return texts in which a hyphen before a number is a minus."""
    return texts.str.replace_all(_HYPHEN_AS_MINUS, "${1}\N{MINUS SIGN}${2}")


def tie_hashes(ids: pa.ChunkedArray, seed: int) -> UInt64:
    """Return the first 64 bits of SHA-256 of each id, a zero byte and the seed; ids as texts."""
    sha = hashlib.sha256
    end = f"\0{seed}".encode()
    texts = ids.cast(pa.large_binary()).to_pylist()
    digests = b"".join([sha((text or b"") + end).digest() for text in texts])
    return np.frombuffer(digests, dtype=">u8")[::4].astype(np.uint64)
