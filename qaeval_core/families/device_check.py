"""Device check: some rows of a run, on its device and on a CPU, before the device is trusted.

The parity gate of an export compares on the CPU of whoever exported. A driver, a kernel or a card
may be at fault here and now, and scores of it look like scores. Stands alone: nothing of it is
needed to run a family.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import DeviceError
from qaeval_core.families.base import Units
from qaeval_core.models.session import Session, available_cpus

N_ROWS = 40
# A CPU takes some 10 s for 10,000 tokens of BERT-base: of long rows fewer are run, one at least.
MAX_TOKENS = 1500
# Of values that may be beyond the tolerance, for an argmax may turn at a near-tie; of a graph that
# is beyond it on a CPU, too, and was taken all the same.
_SHARE, _SHARE_LOSSY = 0.05, 0.5
# Of a graph that was compared with nothing when it was taken.
_TOLERANCE = 1e-2
_MAX_CPU_THREADS = 8


def check_device(session: Session, units: Units, *, family: str) -> dict[str, Any]:
    """Return how far the device's numbers of some units are from a CPU's.

    Each unit runs alone, as on the CPU: what padding holds is nobody's number.

    Parameters
    ----------
    session : Session
        On the device.
    units : Units
        Of the first shard.
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
    cpu = Session(session.artifact, n_threads=min(available_cpus(), _MAX_CPU_THREADS))
    differences = []
    for i in chosen:
        inputs = units.make_inputs([i])
        found, expected = session.run(inputs), cpu.run(inputs)
        with np.errstate(invalid="ignore"):  # Of two infinite values.
            difference = np.abs(found.astype(np.float64) - expected)
        # Both not finite is the model's matter; one of them is the device's.
        difference[~np.isfinite(found) & ~np.isfinite(expected)] = 0.0
        differences.append(np.where(np.isnan(difference), np.inf, difference).ravel())
    values = np.concatenate([np.zeros(0), *differences])
    tolerance = record.parity.tolerance if record.parity is not None else _TOLERANCE
    beyond = float((values > tolerance).mean()) if len(values) else 0.0
    largest = float(values.max(initial=0.0))
    if beyond > (_SHARE_LOSSY if record.lossy else _SHARE):
        raise DeviceError(
            f"{family}: the device's numbers are not those of a CPU: {beyond:.0%} of "
            f"{len(values):,} values of {len(chosen)} rows differ by more than {tolerance:g}, the "
            f"largest by {largest:.3g}; look at the card and its driver, or compare nothing with "
            "models.check_device=false"
        )
    return {
        "rows": len(chosen),
        "values": len(values),
        "max_abs_diff": largest,
        "median_abs_diff": float(np.median(values)) if len(values) else 0.0,
        "share_beyond_tolerance": beyond,
        "tolerance": tolerance,
        "on_cpu_at_export": None if record.parity is None else record.parity.max_abs_diff,
        "seconds": round(time.perf_counter() - started, 3),
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
