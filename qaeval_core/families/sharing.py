"""Sharing: rows to distinct pairs and back; equal texts and pairs are computed once in a shard."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

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
    candidate_index: dict[T, int] = {}
    target_index: dict[T, int] = {}
    pair_index: dict[tuple[int, int], int] = {}
    row_pair: list[int] = []
    for candidate, own_targets in zip(candidates, targets, strict=True):
        i = candidate_index.setdefault(candidate, len(candidate_index))
        for target in own_targets:
            j = target_index.setdefault(target, len(target_index))
            row_pair.append(pair_index.setdefault((i, j), len(pair_index)))
    pairs = np.array(list(pair_index), dtype=np.int64).reshape(-1, 2)
    return SharedPairs(
        candidates=list(candidate_index),
        targets=list(target_index),
        pair_candidate=pairs[:, 0],
        pair_target=pairs[:, 1],
        row_pair=np.array(row_pair, dtype=np.int64),
        n_targets=np.array([len(own) for own in targets], dtype=np.int64),
    )


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
    index: dict[T, int] = {}
    sides = []
    for texts, used in (
        (pairs.candidates, pairs.pair_candidate),
        (pairs.targets, pairs.pair_target),
    ):
        places = np.array([index.setdefault(text, len(index)) for text in texts], dtype=np.int64)
        sides.append(places[used])
    return SharedTexts(list(index), *sides)
