"""Validate and share: split rows into good and quarantined ones, and find equal texts and pairs.

Arrow columns by role in, Python texts out. An empty text is good here; nulls, wrong types and
broken UTF-8 are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Integral
from typing import Generic, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.schema import (
    ROLES,
    SPANS,
    TEXT,
    TEXT_OR_NULL,
    TEXT_OR_PASSAGES,
    TEXTS,
    TEXTS_OR_NULL,
    UNREADABLE_LINE,
    is_json,
    is_list,
    is_optional,
    is_text,
)
from qaeval_core.text.plain_columns import list_of

PASSAGE_SEPARATOR = " "
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(slots=True)
class Validated:
    """Good rows of a shard, and why the others are not.

    Attributes
    ----------
    good : list of int
        Row indices within the shard, ascending.
    values : dict of role to list
        Values of the good rows: texts, lists of texts, lists of spans, or None where a role
        takes it.
    quarantined : dict of row index to (reason, message)
    """

    good: list[int]
    values: dict[str, list[object]]
    quarantined: dict[int, tuple[str, str]] = field(default_factory=dict)


def validate_rows(
    rows: Mapping[str, Sequence[object]],
    *,
    columns: Mapping[str, str],
    joins_passages: bool = True,
) -> Validated:
    """Check every row for the roles that a family reads.

    Parameters
    ----------
    rows : mapping of role to sequence of object
        Python values, one per row; all of one length.
    columns : mapping of role to column name
        For messages.
    joins_passages : bool, default True
        Whether several passages become one text; else they stay a list, and one a list of one.

    Returns
    -------
    Validated
        Each row is in ``good`` or in ``quarantined``, never in both.
    """
    quarantined: dict[int, tuple[str, str]] = {}
    values: dict[str, list[object]] = {}
    for role, given in rows.items():
        needed = ROLES[role]
        if needed == TEXT_OR_PASSAGES and not joins_passages:
            needed = TEXTS
        values[role], unusual = _usual(given, needed)
        for i in unusual:
            values[role][i], problem = _check_value(given[i], role, needed)
            if problem and i not in quarantined:
                reason, detail = problem
                quarantined[i] = (f"{reason}_{role}", f"column {columns[role]!r}: {detail}")
    n_rows = len(next(iter(rows.values()), ()))
    if not quarantined:
        return Validated(list(range(n_rows)), values)
    good_rows = [i for i in range(n_rows) if i not in quarantined]
    kept = {role: [all_values[i] for i in good_rows] for role, all_values in values.items()}
    return Validated(good_rows, kept, quarantined)


def _usual(given: Sequence[object], needed: str) -> tuple[list[object], Iterable[int]]:
    """Return values, most of them in their role's form, and which of them are to be checked.

    Texts, and lists of texts alone, are taken without a call for each.
    """
    kinds = list(map(type, given))
    if needed == SPANS:
        return list(given), range(len(given))
    if needed not in (TEXTS, TEXTS_OR_NULL):
        return list(given), [i for i, kind in enumerate(kinds) if kind is not str]
    lists = {i: cast("list[object]", given[i]) for i, kind in enumerate(kinds) if kind is list}
    if set(map(type, chain.from_iterable(lists.values()))) <= {str}:
        good = set(lists)
    else:
        good = {i for i, own in lists.items() if set(map(type, own)) <= {str}}
    unusual = [i for i, kind in enumerate(kinds) if kind is not str and i not in good]
    return [[own] if kind is str else own for own, kind in zip(given, kinds, strict=True)], unusual


class TextTooLargeError(ValueError):
    """A text, or the texts of a list, are larger than a row may bring; kept in its place."""


class InvalidJsonError(ValueError):
    """A cell of a column of JSON that is none; kept in its place."""


class UnreadableLineError(ValueError):
    """A line of a file of text that is no row; kept in the place of each of its values."""


# What is kept in the place of a value, and the reason that it gives its row.
_REASONS: dict[type[Exception], str] = {
    UnicodeError: "invalid_utf8",
    InvalidJsonError: "invalid_json",
    TextTooLargeError: "text_too_large",
    UnreadableLineError: "unreadable_line",
}


def table_rows(
    table: pa.Table,
    *,
    columns: Mapping[str, str],
    max_bytes: int | None = None,
    has_no_answers: bool = False,
) -> dict[str, list[object]]:
    """Return the Python values of a table's role columns.

    With ``has_no_answers``, no references are the reference "": that there is no answer.

    Broken UTF-8, and a text or list of texts of more than ``max_bytes``, are kept as their errors.
    """
    values = {
        role: _python_values(table.column(column), max_bytes=max_bytes)
        for role, column in columns.items()
    }
    if UNREADABLE_LINE in table.column_names and table[UNREADABLE_LINE].null_count < table.num_rows:
        whys = table.column(UNREADABLE_LINE).to_pylist()
        lines = [(i, UnreadableLineError(why)) for i, why in enumerate(whys) if why is not None]
        for own in values.values():
            for i, line in lines:
                own[i] = line
    return with_no_answers(values) if has_no_answers else values


def with_no_answers(values: dict[str, list[object]]) -> dict[str, list[object]]:
    """Return values in which no references are the reference "": that there is no answer.

    >>> with_no_answers({"references": [["Ann"], []]})
    {'references': [['Ann'], ['']]}
    """
    if "references" not in values:
        return values
    return {**values, "references": [[""] if own == [] else own for own in values["references"]]}


def _python_values(column: pa.ChunkedArray, *, max_bytes: int | None) -> list[object]:
    if is_json(column.type):
        texts = pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
        return list(map(_json_value, _python_values(texts, max_bytes=max_bytes)))
    if is_list(column.type) and is_json(column.type.value_type):
        chunks = [list_of(chunk, chunk.flatten().storage) for chunk in column.chunks]
        texts = pa.chunked_array(chunks, pa.large_list(column.type.value_type.storage_type))
        return list(map(_json_values, _python_values(texts, max_bytes=max_bytes)))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if max_bytes is not None and column.nbytes > max_bytes:
        sizes = np.concatenate([_text_bytes(chunk) for chunk in column.chunks])
        too_large = sizes > max_bytes
        if too_large.any():
            values = _python_values(column.filter(pa.array(~too_large)), max_bytes=None)
            left = iter(values)
            return [
                TextTooLargeError(f"{size:,} bytes, more than scoring.max_text_bytes={max_bytes:,}")
                if size > max_bytes
                else next(left)
                for size in sizes.tolist()
            ]
    try:
        return [value for chunk in column.chunks for value in _chunk_values(chunk)]
    except (UnicodeDecodeError, pa.ArrowException):  # Text that is not UTF-8.
        return [_python_value(column[i]) for i in range(len(column))]


def _json_value(text: object) -> object:
    """Return what a cell of JSON says; what is no text, such as an error, stays as it is."""
    if not isinstance(text, str):
        return text
    try:
        value = json.loads(text)
        if _HALF_PAIR.search(text):  # Of two halves JSON makes a character.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return error
    except (ValueError, RecursionError) as error:
        return InvalidJsonError(f"no JSON: {error}")
    return value


def _json_values(texts: object) -> object:
    """Return what the cells of a list of JSON say, or the first error among them."""
    if not isinstance(texts, list):
        return texts
    values = list(map(_json_value, texts))
    return next((value for value in values if isinstance(value, Exception)), values)


def _text_bytes(chunk: pa.Array) -> NDArray[np.int64]:
    """Return the bytes of each row's text, or of all texts of its list; 0 for other types."""
    if is_text(chunk.type):
        return _int64(pc.binary_length(chunk))
    is_list = pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type)
    if not is_list or not is_text(chunk.type.value_type):
        return np.zeros(len(chunk), dtype=np.int64)
    # Sums up to each list's end; null lists have no values.
    sums = np.concatenate([[0], np.cumsum(_text_bytes(chunk.flatten()))])
    stops = np.concatenate([[0], np.cumsum(_int64(chunk.value_lengths()))])
    return np.asarray(np.diff(sums[stops]), dtype=np.int64)


def _int64(numbers: pa.Array) -> NDArray[np.int64]:
    return np.asarray(pc.fill_null(numbers, 0).to_numpy(), dtype=np.int64)


def _chunk_values(chunk: pa.Array) -> list[object]:
    """Return the Python values of an array; texts take a tenth of the time of ``to_pylist``."""
    if pa.types.is_string(chunk.type) or pa.types.is_large_string(chunk.type):
        return list(chunk.to_numpy(zero_copy_only=False).tolist())
    is_list = pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type)
    if not is_list or not is_text(chunk.type.value_type):
        return list(chunk.to_pylist())
    texts = _chunk_values(chunk.flatten())
    stops = np.cumsum(np.nan_to_num(chunk.value_lengths().to_numpy(zero_copy_only=False)))
    ends = stops.astype(np.int64).tolist()
    starts = [0, *ends][:-1]
    is_null = chunk.is_null().to_pylist()
    return [
        None if null else texts[start:stop]
        for start, stop, null in zip(starts, ends, is_null, strict=True)
    ]


def _python_value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _check_value(value: object, role: str, needed: str) -> tuple[object, tuple[str, str] | None]:
    """Return (value in the role's form, None) or (None, (reason, detail))."""
    if value is None:
        return None, None if is_optional(role) else ("null", "the value is null")
    if isinstance(value, Exception):
        reason = next(name for kind, name in _REASONS.items() if isinstance(value, kind))
        return None, (reason, str(value))
    if isinstance(value, str):
        if needed == SPANS:
            return None, ("wrong_type", f"str where {needed} is needed")
        return ([value] if needed in (TEXTS, TEXTS_OR_NULL) else value), None
    if needed in (TEXT, TEXT_OR_NULL) or not isinstance(value, list | tuple):
        return None, ("wrong_type", f"{type(value).__name__} where {needed} is needed")
    return _check_spans(value) if needed == SPANS else _check_texts(list(value), needed)


def _check_texts(texts: list[object], needed: str) -> tuple[object, tuple[str, str] | None]:
    if any(text is None for text in texts) and needed != TEXTS_OR_NULL:
        return None, ("null_in_list", "a text of the list is null")
    if not all(isinstance(text, str | None) for text in texts):
        return None, ("wrong_type", f"a list with other than texts where {needed} is needed")
    if needed in (TEXTS, TEXTS_OR_NULL):
        return texts, None
    return PASSAGE_SEPARATOR.join(str(text) for text in texts), None


def _check_spans(given: Sequence[object]) -> tuple[object, tuple[str, str] | None]:
    """Return spans as pairs of integers, or why they are none."""
    spans = []
    for span in given:
        pair = (span.get("start"), span.get("end")) if isinstance(span, Mapping) else span
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None, ("wrong_type", f"{span!r} where a [start, end) pair is needed")
        start, end = pair
        if not isinstance(start, Integral) or not isinstance(end, Integral):
            return None, ("wrong_type", f"{span!r} where two integers are needed")
        if start < 0 or end < start:
            return None, ("invalid_span", f"{span!r} ends before it starts, or starts below 0")
        spans.append((int(start), int(end)))
    return spans, None


IntArray = NDArray[np.int64]
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SharedPairs(Generic[T]):
    """Distinct texts, distinct (candidate, target) pairs, and which pair each row's targets are.

    A target is what the candidate is read against: the context, or one of the references. A text
    may be a tuple of texts that a model reads together.

    Attributes
    ----------
    candidates, targets : list of T
        Distinct texts.
    pair_candidate, pair_target : int ndarray of shape (n_pairs,)
        Indices into ``candidates`` and ``targets``.
    row_pair : int ndarray of shape (n_row_targets,)
        The pair of each target of each row, rows in order.
    n_targets : int ndarray of shape (n_rows,)
        Targets of each row; may be 0.
    """

    candidates: list[T]
    targets: list[T]
    pair_candidate: IntArray
    pair_target: IntArray
    row_pair: IntArray
    n_targets: IntArray

    def pairs(self) -> list[tuple[int, int]]:
        """Return the indices of each distinct pair's candidate and target."""
        return list(zip(self.pair_candidate.tolist(), self.pair_target.tolist(), strict=True))


def share_pairs(candidates: Sequence[T], targets: Sequence[Sequence[T]]) -> SharedPairs[T]:
    """Return the distinct pairs of rows.

    Parameters
    ----------
    candidates : sequence of T
        One text a row.
    targets : sequence of sequence of T
        The texts that each row's candidate is read against.

    Examples
    --------
    >>> shared = share_pairs(["a", "b", "a"], [["c"], ["c", "d"], ["c"]])
    >>> shared.targets, shared.row_pair.tolist()
    (['c', 'd'], [0, 1, 2, 0])
    """
    n_targets = np.fromiter(map(len, targets), np.int64, len(targets))
    distinct, candidate = _numbered(candidates)
    distinct_targets, target = _numbered(list(chain.from_iterable(targets)))
    width = max(len(distinct_targets), 1)
    keys = np.repeat(candidate, n_targets) * width + target
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)  # Pairs as they come.
    pairs = keys[first[order]]
    return SharedPairs(
        candidates=distinct,
        targets=distinct_targets,
        pair_candidate=pairs // width,
        pair_target=pairs % width,
        row_pair=np.argsort(order)[place],
        n_targets=n_targets,
    )


def _numbered(texts: Sequence[T]) -> tuple[list[T], IntArray]:
    """Return distinct texts as they come, and which of them each text is."""
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(index), np.fromiter(map(index.__getitem__, texts), np.int64, len(texts))


@dataclass(frozen=True, slots=True)
class SharedTexts(Generic[T]):
    """Distinct texts of both sides of distinct pairs: each is run once, whichever side it is on.

    ``left`` and ``right``, of shape (n_pairs,): which text each pair's candidate and target are.
    """

    texts: list[T]
    left: IntArray
    right: IntArray


def share_texts(pairs: SharedPairs[T]) -> SharedTexts[T]:
    """Return the distinct texts of pairs.

    Examples
    --------
    >>> shared = share_texts(share_pairs(["a", "b"], [["b"], ["b"]]))
    >>> shared.texts, shared.left.tolist(), shared.right.tolist()
    (['a', 'b'], [0, 1], [1, 1])
    """
    texts, places = _numbered([*pairs.candidates, *pairs.targets])
    n_candidates = len(pairs.candidates)
    return SharedTexts(
        texts, places[pairs.pair_candidate], places[n_candidates + pairs.pair_target]
    )
