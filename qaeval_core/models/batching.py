"""Batching: group sequences by length under a budget of padded tokens (numpy only)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def token_budget_batches(
    lengths: Sequence[int] | NDArray[np.int64], *, max_batch_tokens: int
) -> Iterator[list[int]]:
    """Group row indices so that rows x longest row stays within the budget.

    Longest first, so the largest allocation is the first one and a too-small device fails in
    seconds, not hours. Ties keep input order: the same lengths give the same batches.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each row, special tokens included.
    max_batch_tokens : int
        Tokens of a batch after padding; inclusive.

    Yields
    ------
    list of int
        Indices into ``lengths``; each index exactly once over all batches.

    Raises
    ------
    ValueError
        If one row alone exceeds the budget.

    Examples
    --------
    >>> list(token_budget_batches([3, 9, 4, 2], max_batch_tokens=12))
    [[1], [2, 0, 3]]
    >>> list(token_budget_batches([13], max_batch_tokens=12))
    Traceback (most recent call last):
    ...
    ValueError: row 0 has 13 tokens, max_batch_tokens is 12
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    batch: list[int] = []
    longest = 0
    for i in np.argsort(-sizes, kind="stable").tolist():
        length = int(sizes[i])
        if length > max_batch_tokens:
            raise ValueError(f"row {i} has {length} tokens, max_batch_tokens is {max_batch_tokens}")
        if batch and longest * (len(batch) + 1) > max_batch_tokens:
            yield batch
            batch = []
        if not batch:
            longest = length
        batch.append(i)
    if batch:
        yield batch


def pad(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return rows as one right-padded matrix, padding 0.

    Examples
    --------
    >>> pad([np.array([5, 6]), np.array([7])])
    array([[5, 6],
           [7, 0]])
    """
    padded = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
