"""Prepared: a shard that is validated and laid out, on its way to a table of statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from qaeval_core.families.pass_stats import PassStats
from qaeval_core.families.validate import Validated
from qaeval_core.schema import POSITION, QUARANTINE_MESSAGE, QUARANTINE_REASON

# Called after every batch with (useful tokens, padded tokens, share of the shard done); may raise
# RunStoppedError.
OnBatch = Callable[[int, int, float], None]


class HasStatistics(Protocol):
    """Work of a shard; once it has run, it holds the statistics of every good row."""

    def statistics(self) -> Mapping[str, pa.Array]:
        """Return the raw statistics of every row, in row order."""


W = TypeVar("W", bound=HasStatistics)


@dataclass(slots=True)
class Prepared(Generic[W]):
    """A shard that is validated and laid out."""

    n_rows: int
    validated: Validated
    work: W
    stats: PassStats


def statistics_table(prepared: Prepared[W], *, first_position: int) -> pa.Table:
    """Return one row of statistics per input row, quarantined rows with nulls."""
    validated = prepared.validated
    quarantined = validated.quarantined
    rows = range(prepared.n_rows)
    reasons = [quarantined[i][0] if i in quarantined else None for i in rows]
    messages = [quarantined[i][1] if i in quarantined else None for i in rows]
    slots = np.full(prepared.n_rows, -1, dtype=np.int64)
    slots[validated.good] = np.arange(len(validated.good))
    # Taking a null index gives a null: that is a quarantined row.
    indices = pa.array(slots, mask=slots < 0)
    columns = {
        POSITION: pa.array(np.arange(first_position, first_position + prepared.n_rows)),
        QUARANTINE_REASON: pa.array(reasons, pa.string()),
        QUARANTINE_MESSAGE: pa.array(messages, pa.string()),
    }
    for name, column in prepared.work.statistics().items():
        columns[name] = column.take(indices)
    return pa.table(columns)


def quarantine_all(prepared: Prepared[W], *, n_rows: int, reason: str, message: str) -> Prepared[W]:
    """Turn a prepared shard of no rows into one whose rows are all quarantined."""
    prepared.n_rows = prepared.stats.n_rows = prepared.stats.n_quarantined = n_rows
    prepared.validated.quarantined.update(dict.fromkeys(range(n_rows), (reason, message)))
    return prepared
