"""Standings: where the scores of a row lie among those of all rows of its run, and their charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from qaeval_core.errors import UnreadableFileError
from qaeval_core.explain.parts import InstanceExplanation, Standing, number
from qaeval_core.pages import charts as svg
from qaeval_core.pages.html import (
    Passage,
    block_html,
    details,
    escaped,
    figure,
    left_out,
    within,
)
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.histogram import counted_bars
from qaeval_core.profile.run_profile import PROFILE, RunProfile, read_profile
from qaeval_core.storage.path import AnyPath, as_path

MAX_CHARTS = 24
_N_OPEN = 9
_TITLE_CHARS = 120


def standings(
    out: AnyPath, instances: Sequence[InstanceExplanation]
) -> tuple[tuple[Standing, ...], list[str]]:
    """Return where the main score of each instance lies, or the first that has one; and notes.

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
    return (() if profile is None else tuple(_find_standings(profile, instances))), []


def _find_standings(
    profile: RunProfile, instances: Sequence[InstanceExplanation]
) -> Iterator[Standing]:
    for instance in instances:
        for line in instance.main_first:
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


def standings_html(standings: Sequence[Standing]) -> str:
    """Return a histogram of all rows for each metric, in which this row is marked."""
    if not standings:
        return ""
    drawn = [
        figure(within(own.column, _TITLE_CHARS), _standing(own)) for own in standings[:MAX_CHARTS]
    ]
    charts = [
        f'<div class="charts">{"".join(own)}</div>'
        for own in (drawn[:_N_OPEN], drawn[_N_OPEN:])
        if own
    ]
    more = [*charts[1:], left_out(len(standings) - MAX_CHARTS, "distributions")]
    title = "Among all rows of the run: the dashed line is this row"
    inner = "\n".join(filter(None, more))
    folded = details(f"{len(standings) - _N_OPEN:,} more metrics", inner) if inner else ""
    return f"<h3>{escaped(title)}</h3>\n{charts[0]}{folded}"


def _standing(own: Standing) -> str:
    mark = (own.value, f"this row: {number(own.value)}")
    title = f"Distribution of {own.column} over all rows; this row has {number(own.value)}"
    chart = svg.histogram(
        own.edges, {own.column: own.counts}, title=title, is_share=False, mark=mark
    )
    said = (
        f"{own.n_lower:,} rows lower, {own.n_higher:,} higher, {own.n_beside:,} with this one "
        f"within {number(own.cell_width)}"
    )
    return chart + block_html(Passage(said, tone="soft"))
