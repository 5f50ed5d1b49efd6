"""Sharing: rows to distinct pairs and back; equal texts and pairs are computed once in a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedPairs:
    """Distinct texts, distinct (candidate, target) pairs, and which pair each row's targets are.

    A target is what the candidate is read against: the context, or one of the references.

    Attributes
    ----------
    candidates, targets : list of str
        Distinct texts.
    pair_candidate, pair_target : int ndarray of shape (n_pairs,)
        Indices into ``candidates`` and ``targets``.
    row_pair : int ndarray of shape (n_row_targets,)
        The pair of each target of each row, rows in order.
    n_targets : int ndarray of shape (n_rows,)
        Targets of each row; may be 0.
    """

    candidates: list[str]
    targets: list[str]
    pair_candidate: IntArray
    pair_target: IntArray
    row_pair: IntArray
    n_targets: IntArray


def share_pairs(candidates: Sequence[str], targets: Sequence[Sequence[str]]) -> SharedPairs:
    """Return the distinct pairs of rows.

    Parameters
    ----------
    candidates : sequence of str
        One text a row.
    targets : sequence of sequence of str
        The texts that each row's candidate is read against.

    Examples
    --------
    >>> shared = share_pairs(["a", "b", "a"], [["c"], ["c", "d"], ["c"]])
    >>> shared.targets, shared.row_pair.tolist()
    (['c', 'd'], [0, 1, 2, 0])
    """
    candidate_index: dict[str, int] = {}
    target_index: dict[str, int] = {}
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
