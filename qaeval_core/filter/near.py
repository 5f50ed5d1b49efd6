"""Near-duplicates: questions of a group that say the same in nearly the same words.

Greedy, best first, as Self-Instruct does it (Wang et al. 2023, section 2.2): a question is kept if
its ROUGE-L with every kept one of its group is below a threshold. With LCS the tokens of the
longest common subsequence of two questions of n and m tokens::

    ROUGE-L (F1) = 2 LCS / (n + m)

Differs from Self-Instruct
--------------------------
- Their pool is all tasks; here it is the group.
- Best means the rank, not the order of generation.

But: quadratic in a group's questions. Exact duplicates cost a sort: `decide`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq

from qaeval_core.filter.order import sorted_rows
from qaeval_core.text.table import TokenTable


def near_duplicates(
    *,
    group: NDArray[np.uint64],
    rank: NDArray[np.float64],
    tie: NDArray[np.uint64],
    row: NDArray[np.int64],
    tokens: Sequence[str],
    threshold: Fraction,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that are near-duplicates, and the better row that each resembles first.

    Parameters
    ----------
    group, rank, tie, row : ndarrays of shape (n,)
        Of rows in ascending order; whole groups.
    tokens : sequence of str
        Tokens of each question, a space between two.
    threshold : Fraction
        In (0, 1]; exact, so that 7 of 10 are 0.7.

    Examples
    --------
    >>> numbers = np.arange(3)
    >>> near_duplicates(
    ...     group=np.zeros(3, np.uint64), rank=np.array([1.0, 3.0, 2.0]),
    ...     tie=np.zeros(3, np.uint64), row=np.array([10, 11, 12]),
    ...     tokens=["who won it", "who won", "when"], threshold=Fraction("0.7"),
    ... )
    (array([10]), array([11]))
    """
    ordered = sorted_rows(np.arange(len(row)), rank, tie, group)
    table = TokenTable(str.split)
    numbers = table.add(tokens)
    sequences = table.sequences()
    found: list[tuple[int, int]] = []
    bounds = np.flatnonzero(np.diff(group[ordered])) + 1
    for members in np.split(ordered, bounds):
        if len(members) > 1:
            own = [sequences[numbers[i]] for i in members]
            found += _within_group(members, own, threshold)
    duplicates = np.array([row[i] for i, _ in found], dtype=np.int64)
    twins = np.array([row[j] for _, j in found], dtype=np.int64)
    return duplicates, twins


def _within_group(
    members: NDArray[np.intp], questions: Sequence[Sequence[object]], threshold: Fraction
) -> Iterator[tuple[int, int]]:
    """Yield each duplicate and the kept question that it resembles, best first."""
    kept: list[int] = []
    for i, own in enumerate(questions):
        twin = next((j for j in kept if _is_near(own, questions[j], threshold)), None)
        if twin is None:
            kept.append(i)
        else:
            yield int(members[i]), int(members[twin])


def _is_near(left: Sequence[object], right: Sequence[object], threshold: Fraction) -> bool:
    # Whole numbers: no float decides a tie.
    total = threshold.numerator * (len(left) + len(right))
    needed = -(-total // (2 * threshold.denominator))
    if needed > min(len(left), len(right)):
        return False
    return int(LCSseq.similarity(left, right, score_cutoff=needed)) >= needed
