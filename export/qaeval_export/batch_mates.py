"""Batch mates: how far a row's values depend on the rows that are run beside it.

A graph that quantizes while it runs takes one scale for a whole batch, and one that sums over rows
mixes them: size of shards, order and number of nodes would move scores. The fixed rows are run
alone and in several batches; the largest difference of one value is what the record says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qaeval_export.parity import ParityRow, Values

# Of one value in fp32. Kernels sum in another order in another shape: some 1e-6.
FP32_LIMIT = 1e-4
# In fp16, and in a file of others too: how far a value may be from torch, of which each row has its
# own part.
FP16_LIMITS = {"pair_score": 2e-2, "sentence_vector": 2e-3}
# Padded tokens of a batch.
_BUDGETS = (2_048, 512)

RunBatch = Callable[[Sequence[ParityRow]], Sequence[Values]]


def difference_by_batch_mates(run: RunBatch, rows: Sequence[ParityRow]) -> float:
    """Return the largest difference of one value: alone, in batches, reversed, in smaller ones.

    And a second time: a graph may draw random numbers. A value that is not finite makes it
    infinite.

    Parameters
    ----------
    run : callable
        One batch of rows -> the values of each.
    rows : sequence of ParityRow
    """
    alone = _values(run, [[i] for i in range(len(rows))], rows)
    forward = list(range(len(rows)))
    large, small = _BUDGETS
    arrangements = [
        *(list(_batches(rows, order, large)) for order in (forward, forward, forward[::-1])),
        list(_batches(rows, forward, small)),
    ]
    return max(apart(alone, _values(run, batches, rows)) for batches in arrangements)


def difference_of_two_runs(run: RunBatch, rows: Sequence[ParityRow]) -> float:
    """Return the largest difference of one value between two runs of each row alone."""
    alone = [[i] for i in range(len(rows))]
    return apart(_values(run, alone, rows), _values(run, alone, rows))


def _batches(
    rows: Sequence[ParityRow], order: Sequence[int], max_tokens: int
) -> Iterator[list[int]]:
    """Yield batches in a given order; each holds at least one row."""
    batch: list[int] = []
    for i in order:
        longest = max(len(rows[j].ids) for j in [*batch, i])
        if batch and longest * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _values(
    run: RunBatch, batches: Sequence[Sequence[int]], rows: Sequence[ParityRow]
) -> list[Values]:
    """Return the values of each row, in the order of the rows."""
    found: dict[int, Values] = {}
    for batch in batches:
        found.update(zip(batch, run([rows[i] for i in batch]), strict=True))
    return [np.asarray(found[i], dtype=np.float64) for i in range(len(rows))]


def apart(left: Sequence[Values], right: Sequence[Values]) -> float:
    """Return the largest difference of one value; infinite where one is not finite."""
    found = [float(np.abs(a - b).max(initial=0.0)) for a, b in zip(left, right, strict=True)]
    return max((one if np.isfinite(one) else np.inf for one in found), default=0.0)
