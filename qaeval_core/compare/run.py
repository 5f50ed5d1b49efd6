"""Run: a comparison from its request to what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from qaeval_core.compare.counts import MAX_GROUPS, UnitCounts
from qaeval_core.compare.request import ALPHA, CompareRequest
from qaeval_core.compare.result import MetricResult, metric_results
from qaeval_core.compare.sides import ComparedSides, open_sides, texts_of
from qaeval_core.compare.units import SystemRows, read_systems
from qaeval_core.errors import ConfigError, SchemaError
from qaeval_core.profile.run_profile import N_EXACT
from qaeval_core.running.progress import Tell, no_progress
from qaeval_core.schema import ROLES
from qaeval_core.tables.row_parts import ROWS_PER_PART

# By the number of a system, and the number of a row in its corpus.
TextsOfRows = Mapping[tuple[int, int], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """What was found of systems.

    Attributes
    ----------
    n_rows : mapping of system to int
        Rows that each of them has.
    n_left_out : mapping of system to int
        Those that not all systems have, or whose id is there twice.
    unit : str
        What is paired, such as ``rows`` or ``values of topic``.
    on : str
        Column that pairs them.
    clusters : str
        What was drawn again, such as ``100 contexts``.
    sentence : str
        Which test tells differences apart.
    texts : mapping of row to mapping of role to text
        Of the units that differ most.
    """

    request: CompareRequest
    systems: Sequence[str]
    metrics: Sequence[MetricResult]
    n_units: int
    n_rows: Mapping[str, int]
    n_left_out: Mapping[str, int]
    unit: str
    on: str
    clusters: str
    sentence: str
    texts: TextsOfRows
    notes: Sequence[str]


def compare_systems(
    request: CompareRequest,
    *,
    tell: Tell = no_progress,
    rows_per_part: int = ROWS_PER_PART,
) -> SystemComparison:
    """Compare systems by the rows that all of them have.

    Parameters
    ----------
    tell : callable, optional
        Gets a label, the rows done and all rows.
    rows_per_part : int
        How many are in hand at once; more lie on disk.

    Raises
    ------
    ConfigError, InputError
        If what is asked for is not there, or systems share no row.
    RunError
        If a store does not answer.
    """
    sides, rows, counts, notes = _paired(request, tell=tell, rows_per_part=rows_per_part)
    found = metric_results(
        request, rows.systems, sides.metrics, counts, signatures=sides.signatures
    )
    unit = "rows" if rows.on is None else f"values of {rows.on}"
    if rows.on is not None and not all(side.may_show for side in sides.sides):
        found = [own.without_keys() for own in found]
    clusters = _clusters(sides, counts, unit)
    notes += _count_notes(rows, counts, sides.cluster)
    return SystemComparison(
        request=request,
        systems=rows.systems,
        metrics=found,
        n_units=counts.n_units,
        n_rows=dict(zip(rows.systems, counts.n_rows.tolist(), strict=True)),
        n_left_out=dict(
            zip(rows.systems, (counts.n_rows - counts.n_matched).tolist(), strict=True)
        ),
        unit=unit,
        on=rows.on or "id",
        clusters=clusters,
        sentence=_sentence(request, len(found), len(rows.systems), clusters, unit),
        texts=_far_texts(sides, rows, found),
        notes=notes,
    )


def _paired(
    request: CompareRequest, *, tell: Tell, rows_per_part: int
) -> tuple[ComparedSides, SystemRows, UnitCounts, list[str]]:
    """Return the counts of rows that are paired by what they have in common, and notes."""
    sides = open_sides(request)
    notes = list(sides.notes)
    with ExitStack() as stack:
        count = partial(
            _counted, request, sides=sides, stack=stack, tell=tell, rows_per_part=rows_per_part
        )
        rows, counts = count(request.on)
        if request.cluster is None and sides.cluster == "question" and counts.n_other_clusters:
            # Each system asked its own: what it asked is nothing that rows share.
            sides = replace(sides, cluster="", cluster_columns=())
            rows, counts = count(request.on, sides=sides)
        if not counts.n_units and request.on is None and len(set(sides.cluster_columns)) == 1:
            (column,) = set(sides.cluster_columns)
            rows, counts = count(column)
            notes.append(
                f"no id is in all systems, so rows are paired by {sides.cluster}: the mean of each "
                "counts once"
            )
    if not counts.n_units:
        raise SchemaError(
            f"the systems share no row: no value of {request.on or 'id'!r} is in all of "
            f"{', '.join(rows.systems)}. --on COLUMN names what rows have in common [QA0317]"
        )
    return sides, rows, counts, notes


def _counted(
    request: CompareRequest,
    on: str | None,
    *,
    sides: ComparedSides,
    stack: ExitStack,
    tell: Tell,
    rows_per_part: int,
) -> tuple[SystemRows, UnitCounts]:
    rows = read_systems(
        sides,
        stack,
        system=request.system,
        on=on,
        by=request.by,
        tell=tell,
        rows_per_part=rows_per_part,
    )
    if len(rows.systems) < 2:
        raise ConfigError(
            f"--system {request.system}: it names {len(rows.systems)} system, and a comparison "
            "needs two [QA0103]"
        )
    ranges = [(column.low, column.high) for column in sides.metrics.values()]
    counts = UnitCounts(ranges, len(rows.systems))
    for units in rows.units():
        counts.add(units)
    return rows, counts


def _count_notes(rows: SystemRows, counts: UnitCounts, cluster: str) -> Iterator[str]:
    """Yield what people should know of the rows that were counted."""
    for system, n_repeated, n_unnamed in zip(
        rows.systems, counts.n_repeated.tolist(), counts.n_unnamed.tolist(), strict=True
    ):
        if n_repeated:
            yield f"{system}: left out for ids that are there twice: {n_repeated:,}"
        if n_unnamed:
            yield f"{system}: left out without an id: {n_unnamed:,}"
    if rows.n_nameless:
        yield f"left out without the name of a system: {rows.n_nameless:,}"
    if counts.n_other_clusters:
        yield (
            f"rows whose {cluster} is another one in another system: "
            f"{counts.n_other_clusters:,}; check that ids name the same rows"
        )
    for name, own in counts.groups.items():
        if own is None:
            yield f"--by {name}: it has more than {MAX_GROUPS} values, so it has no table"


def _clusters(sides: ComparedSides, counts: UnitCounts, unit: str) -> str:
    """Return what was drawn again, such as ``100 contexts``."""
    n = int(counts.clusters.counts()[0])
    name = f"{sides.cluster}s" if sides.cluster in ROLES else f"values of {sides.cluster}"
    if not sides.cluster:
        return f"{counts.n_units:,} {unit}"
    if n >= N_EXACT:
        return f"about {int(float(f'{n:.2g}')):,} {name}"
    return f"{n:,} {name}"


def _sentence(
    request: CompareRequest, metrics: int, n_systems: int, clusters: str, unit: str
) -> str:
    """Return which test tells differences apart, in one sentence or two."""
    n_compared = n_systems - 1 if request.baseline is not None else n_systems * (n_systems - 1) // 2
    n = n_compared * metrics
    what = "1 comparison" if n == 1 else f"{n:,} comparisons"
    return (
        f"Differences are paired by {unit}. p is from {request.n_resamples:,} bootstrap draws of "
        f"{clusters}, corrected for {what} (max-T); intervals are not. * marks p <= {ALPHA:g}."
    )


def _far_texts(
    sides: ComparedSides, rows: SystemRows, metrics: Sequence[MetricResult]
) -> dict[tuple[int, int], Mapping[str, object]]:
    """Return the texts of the rows of units that differ most, by system and row."""
    found: dict[tuple[int, int], Mapping[str, object]] = {}
    for i in range(len(rows.systems)):
        side = sides.sides[i if len(sides.sides) > 1 else 0]
        far = sorted({unit.rows[i] for own in metrics for unit in own.far})
        if side.texts and far:
            found |= {(i, row): own for row, own in texts_of(side, far).items()}
    return found
