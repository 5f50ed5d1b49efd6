"""Batches: which rows run together, and how wide they are padded.

Lengths in, indices out; no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# A batch of so many tokens keeps a GPU busy: from there on it ends where rows become this much
# shorter than its longest, rather than pad them.
_FULL_ENOUGH_TOKENS = 2048
_SHORTEST_SHARE = 0.9

# Widths that are multiples of so much: kernels cut products of them into the same blocks, whatever
# runs beside. Short rows are many, and cost less in small steps; causal kernels need the large one.
_STEP, _SHORT_STEP, _SHORT_TOKENS = 16, 4, 32

# Batches that must fit before more is tried again; twice as many after each trial that failed, so
# that trials on a device that stays full cost next to nothing.
_FIRST_WAIT = 8


def exact_widths(lengths: NDArray[np.int64], *, has_short_steps: bool = True) -> NDArray[np.int64]:
    """Return how wide rows are padded whose bits shall not depend on their batch.

    Examples
    --------
    >>> exact_widths(np.array([3, 17, 32, 33, 64])).tolist()
    [4, 20, 32, 48, 64]
    >>> exact_widths(np.array([3, 17, 32, 33, 64]), has_short_steps=False).tolist()
    [16, 32, 32, 48, 64]
    """
    step = np.where((lengths <= _SHORT_TOKENS) & has_short_steps, _SHORT_STEP, _STEP)
    widths: NDArray[np.int64] = -(-lengths // step) * step
    return widths


def exact_batches(
    widths: NDArray[np.int64], groups: NDArray[np.int64], *, max_batch_tokens: int
) -> Iterator[NDArray[np.int64]]:
    """Group row indices by width and group, widest first; in even batches, so that few are alone.

    Examples
    --------
    >>> widths, groups = np.array([4, 8, 4, 4, 4]), np.array([0, 0, 1, 1, 1])
    >>> [batch.tolist() for batch in exact_batches(widths, groups, max_batch_tokens=8)]
    [[1], [0], [2, 3], [4]]
    """
    order = np.lexsort((groups, -widths))
    is_other = (np.diff(widths[order]) != 0) | (np.diff(groups[order]) != 0)
    for own in np.split(order, np.flatnonzero(is_other) + 1):
        n_rows = max(max_batch_tokens // max(int(widths[own[0]]), 1), 1)
        yield from np.array_split(own, -(-len(own) // n_rows))


def token_budget_batches(
    lengths: Sequence[int] | NDArray[np.int64], *, max_batch_tokens: int
) -> Iterator[NDArray[np.int64]]:
    """Group row indices so that rows x longest row stays within the budget.

    Longest first, so the largest allocation is the first one and a too-small device fails in
    seconds, not hours. Ties keep input order: the same lengths give the same batches. A batch that
    has 2,048 tokens ends before a row of less than 90 % of its longest.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each row, special tokens included.
    max_batch_tokens : int
        Tokens of a batch after padding; inclusive.

    Yields
    ------
    int ndarray of shape (n_rows,)
        Indices into ``lengths``; each index exactly once over all batches.

    Raises
    ------
    ValueError
        If one row alone exceeds the budget.

    Examples
    --------
    >>> [batch.tolist() for batch in token_budget_batches([3, 12, 4, 2], max_batch_tokens=12)]
    [[1], [2, 0, 3]]
    >>> lengths = [20] * 110 + [10] * 90
    >>> [len(batch) for batch in token_budget_batches(lengths, max_batch_tokens=4096)]
    [110, 90]
    >>> list(token_budget_batches([13], max_batch_tokens=12))
    Traceback (most recent call last):
    ...
    ValueError: row 0 has 13 tokens, max_batch_tokens is 12
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    shortness = -np.asarray(lengths, dtype=np.int64)[order]
    start = 0
    while start < len(order):
        longest = max(-int(shortness[start]), 1)
        if longest > max_batch_tokens:
            raise ValueError(
                f"row {order[start]} has {longest} tokens, max_batch_tokens is {max_batch_tokens}"
            )
        n_enough = -(-_FULL_ENOUGH_TOKENS // longest)
        first_short = int(np.searchsorted(shortness, -_SHORTEST_SHARE * longest, side="right"))
        stop = min(start + max_batch_tokens // longest, max(start + n_enough, first_short))
        yield order[start:stop]
        start = stop


class TokenBudget:
    """Tokens of a batch: half after memory ran out, twice again once many batches have fitted.

    Memory runs out by the longest rows, or by what another process holds for a while: one such
    batch must not halve all that follow.

    Parameters
    ----------
    most : int
        Tokens of a batch to begin with.
    least : int
        Never fewer, nor more than ``most``.

    Examples
    --------
    >>> budget = TokenBudget(1000, least=100)
    >>> budget.shrink(900)
    >>> budget.n_tokens
    450
    >>> for _ in range(8):
    ...     budget.hold()
    >>> budget.n_tokens
    900
    """

    def __init__(self, most: int, *, least: int) -> None:
        self.n_tokens = most
        self._most = most
        self._least = min(least, most)
        self._wait = _FIRST_WAIT
        self._n_held = 0
        self._has_grown = False

    def shrink(self, n_padded: int) -> None:
        """Note that a batch of so many tokens did not fit."""
        if self._has_grown:
            self._wait *= 2
        self.n_tokens = min(max(n_padded // 2, self._least), self.n_tokens)
        self._n_held, self._has_grown = 0, False

    def hold(self) -> None:
        """Note that a batch has fitted."""
        if self.n_tokens == self._most:
            return
        self._n_held += 1
        if self._n_held == self._wait:
            self._n_held, self._has_grown = 0, True
            self.n_tokens = min(2 * self.n_tokens, self._most)
