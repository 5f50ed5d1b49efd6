"""Batches: rows of like length together, in an order that an epoch's number and a seed decide.

The order does not depend on what ran before, so a resumed epoch meets the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

__all__ = ["EpochLoader", "LengthGroupedBatches"]

# Sorted this many batches at a time: padding is low and neighbours still change between epochs.
_N_BATCHES_SORTED = 50


class LengthGroupedBatches(Sampler):  # type: ignore[misc]
    """Yields batches of (row, epoch).

    Parameters
    ----------
    n_tokens : sequence of int
        Of each row.
    batch_size : int
    seed : int

    Examples
    --------
    >>> batches = LengthGroupedBatches([3, 9, 3, 9], batch_size=2, seed=0)
    >>> sorted(sorted(batch) for batch in batches)
    [[(0, 0), (2, 0)], [(1, 0), (3, 0)]]
    """

    def __init__(self, n_tokens: Sequence[int], *, batch_size: int, seed: int) -> None:
        self._n_tokens = np.asarray(n_tokens)
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to yield, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self._n_tokens) / self._batch_size)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        draw = np.random.default_rng([self._seed, self._epoch])
        order = draw.permutation(len(self._n_tokens))
        n_sorted = self._batch_size * _N_BATCHES_SORTED
        batches = []
        for start in range(0, len(order), n_sorted):
            rows = order[start : start + n_sorted]
            rows = rows[np.argsort(-self._n_tokens[rows], kind="stable")]
            cuts = range(self._batch_size, len(rows), self._batch_size)
            batches.extend(np.split(rows, list(cuts)))
        for index in draw.permutation(len(batches)):
            yield [(int(row), self._epoch) for row in batches[index]]


class _Rows(Dataset):  # type: ignore[misc]
    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, int]:
        return item


class EpochLoader(DataLoader):  # type: ignore[misc]
    """Loads length-grouped batches; the trainer tells it the epoch.

    Parameters
    ----------
    batches : LengthGroupedBatches
    n_rows : int
    collate : callable
        From a list of (row, epoch) to the model's input.
    """

    def __init__(
        self,
        batches: LengthGroupedBatches,
        *,
        n_rows: int,
        collate: Callable[[list[tuple[int, int]]], Any],
    ) -> None:
        super().__init__(_Rows(n_rows), batch_sampler=batches, collate_fn=collate)
        self._batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to load, from 0."""
        self._batches.set_epoch(epoch)
