"""Device check: some rows of a run, on its device and on a CPU, before the device is trusted.

The parity gate of an export compares on the CPU of whoever exported. A driver, a kernel or a card
may be at fault here and now, and scores of it look like scores. Stands alone: nothing of it is
needed to run a family.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import DeviceError
from qaeval_core.families.model_units import Units
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.session import Session

N_ROWS = 40
# A CPU takes some 10 s for 10,000 tokens of BERT-base: of long rows fewer are run, one at least.
MAX_TOKENS = 1500
# Of the batch, padding included: a smaller one than the run's own first.
MAX_BATCH_TOKENS = 4096
# Of values that may be beyond the tolerance, for an argmax may turn at a near-tie; of a graph that
# is beyond it on a CPU, too, and was taken all the same.
_SHARE, _SHARE_LOSSY = 0.05, 0.5
# Of a graph that was compared with nothing when it was taken.
_TOLERANCE = 1e-2
_MAX_CPU_THREADS = 8

Values = NDArray[np.float32]
DeviceFacts = dict[str, Any]


def check_device(session: Session, units: Units, *, family: str) -> DeviceFacts:
    """Return how far the device's numbers of some units are from a CPU's.

    Each unit runs alone, as on the CPU, and then beside others: a device that attends to padding
    shows it there only.

    Parameters
    ----------
    session : Session
        On the device.
    units : Units
        Of the first shard; one at least.
    family : str
        Named in the error.

    Raises
    ------
    DeviceError
        If more than 5 % of the values differ by more than the tolerance of the graph's parity
        gate, half of them where the graph did not pass it. Single values may: where an argmax
        turns at a near-tie, its cosine jumps.
    """
    started = time.perf_counter()
    record = session.artifact.record
    chosen = choose(units.lengths)
    mates = batch_mates(chosen, units.lengths)
    cpu = Session(session.artifact, n_threads=min(available_cpus(), _MAX_CPU_THREADS))
    expected = {i: cpu.run(units.make_inputs([i])) for i in chosen}
    tolerance = record.parity.tolerance if record.parity is not None else _TOLERANCE
    alone = _compare(
        [session.run(units.make_inputs([i])) for i in chosen], list(expected.values()), tolerance
    )
    of_mates = [expected[i] for i in mates]
    together = _parts(session.run(units.make_inputs(mates)), like=of_mates)
    # The longest, which nothing pads, would thin out what is wrong with the others.
    beside = _compare(together[1:], of_mates[1:], tolerance)
    for how, found in (("alone", alone), ("beside longer ones", beside)):
        beyond = found["share_beyond_tolerance"]
        if beyond > (_SHARE_LOSSY if record.lossy else _SHARE):
            raise DeviceError(
                f"{family}: the device and a CPU give different numbers. {beyond:.0%} of "
                f"{found['values']:,} values of {found['rows']} rows {how} differ by more than "
                f"{tolerance:g}, the largest by {found['max_abs_diff']:.3g}. Check the card and "
                "its driver, or skip the comparison: models.check_device=false [QA0416]"
            )
    return {
        **alone,
        "beside_longer_ones": beside,
        "tolerance": tolerance,
        "on_cpu_at_export": None if record.parity is None else record.parity.max_abs_diff,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _parts(output: Values, *, like: Sequence[Values]) -> list[Values]:
    """Return what is each unit's in the output of a batch, given what it is of each alone.

    Rows stand one after another; other axes are as long as the longest unit's, padded at the end.

    Examples
    --------
    >>> together = np.array([[1, 2, 0], [3, 4, 5]])
    >>> _parts(together, like=[np.zeros((1, 2)), np.zeros((1, 3))])
    [array([[1, 2]]), array([[3, 4, 5]])]
    """
    stops = np.cumsum([len(own) for own in like])
    return [
        part[tuple(slice(size) for size in own.shape)]
        for part, own in zip(np.split(output, stops[:-1]), like, strict=True)
    ]


def _compare(found: Sequence[Values], expected: Sequence[Values], tolerance: float) -> DeviceFacts:
    """Return how far the values of rows are apart; infinitely where one is no number."""
    differences = [np.zeros(0)]
    for left, right in zip(found, expected, strict=True):
        with np.errstate(invalid="ignore"):  # Of two infinite values.
            difference = np.abs(left.astype(np.float64) - right)
        # Both not finite is the model's matter; one of them is the device's.
        difference[~np.isfinite(left) & ~np.isfinite(right)] = 0.0
        differences.append(np.where(np.isnan(difference), np.inf, difference).ravel())
    values = np.concatenate(differences)
    return {
        "rows": len(found),
        "values": len(values),
        "max_abs_diff": float(values.max(initial=0.0)),
        "median_abs_diff": float(np.median(values)) if len(values) else 0.0,
        "share_beyond_tolerance": float((values > tolerance).mean()) if len(values) else 0.0,
    }


def choose(lengths: NDArray[np.int64]) -> list[int]:
    """Return up to 40 units of all lengths, fewer where they are long.

    Of more than half the tokens that may be run, one would leave no room for others.

    Examples
    --------
    >>> choose(np.array([2000, 10, 700, 700, 20]))
    [1, 4, 2, 3]
    >>> choose(np.array([700, 600, 10, 500]))
    [2, 3, 0]
    >>> choose(np.array([5000]))
    [0]
    """
    order = np.argsort(lengths, kind="stable")
    pool = order[: max(int((lengths <= MAX_TOKENS // 2).sum()), 1)] if len(order) else order
    for n in range(min(N_ROWS, len(pool)), 0, -1):
        chosen = pool[np.linspace(0, len(pool) - 1, n).astype(np.int64)]
        if n == 1 or lengths[chosen].sum() <= MAX_TOKENS:
            return [int(i) for i in chosen]
    return []


def batch_mates(chosen: Sequence[int], lengths: NDArray[np.int64]) -> list[int]:
    """Return which of the chosen units, ordered by length, stand in one batch; the longest does.

    Examples
    --------
    >>> batch_mates([1, 4, 2, 3], np.array([2000, 10, 700, 700, 20]))
    [3, 2, 4, 1]
    >>> batch_mates(list(range(8)), np.array([10, 20, 30, 40, 50, 60, 70, 1000]))
    [7, 5, 3, 1]
    """
    room = max(int(MAX_BATCH_TOKENS // lengths[chosen[-1]]), 1)
    return list(chosen[:: -math.ceil(len(chosen) / room)])
