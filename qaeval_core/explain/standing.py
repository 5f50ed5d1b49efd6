"""Standing: where a row's scores lie among those of all rows, by the profile that the run kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from qaeval_core.errors import UnreadableFileError
from qaeval_core.explain.parts import InstanceExplanation, Standing
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.histogram import counted_bars
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.scoring.page import PROFILE
from qaeval_core.scoring.rewrite_page import read_profile
from qaeval_core.storage.path import AnyPath, as_path


def standings(
    out: AnyPath, instances: Sequence[InstanceExplanation]
) -> tuple[tuple[Standing, ...], list[str]]:
    """Return where the first score of each instance lies, and notes.

    Parameters
    ----------
    out : StoragePath, Path or str
        Of the run; a version that kept no profile has none to stand in.
    instances : sequence of InstanceExplanation
    """
    try:
        profile = read_profile(as_path(out) / PROFILE)
    except UnreadableFileError as error:
        # The row is explained all the same, and the page says what is missing.
        return (), [f"no chart of all rows: {error}"]
    return (() if profile is None else tuple(_standings(profile, instances))), []


def _standings(profile: RunProfile, instances: Sequence[InstanceExplanation]) -> Iterator[Standing]:
    for instance in instances:
        for line in instance.scores:
            own, value = profile.columns.get(line.column), line.stored
            if own is not None and isinstance(value, int | float) and math.isfinite(value):
                yield standing(line.column, float(value), own)
                break


def standing(column: str, value: float, profile: Profile) -> Standing:
    """Return where a finite value lies among those of a profile."""
    bars = counted_bars([profile])
    counts = profile.counts[0].sum(axis=0, dtype=np.int64)
    (code,) = profile.cells.codes(np.array([value]))
    return Standing(
        column=column,
        value=value,
        edges=tuple(bars.edges),
        counts=tuple(bars.counted[0].counts),
        n_lower=int(counts[:code].sum()),
        n_higher=int(counts[code + 1 : -1].sum()),
        n_beside=int(counts[code]),
        cell_width=profile.cells.width,
    )
