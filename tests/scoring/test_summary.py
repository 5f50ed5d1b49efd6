"""The overview of joined scores: the same however rows are cut, and equal to sums over all rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from qaeval_core.pages.example_rows import MAX_EXAMPLES
from qaeval_core.scoring.summary import Overview, dyadic_cells
from qaeval_core.stats.mean_interval import SANDWICH, WILSON
from qaeval_core.text.column_hashes import hashes

RANGES = {"s": (0.0, 1.0), "free": (None, None)}


def overview() -> Overview:
    reasons = {"s": "s_reason", "free": "free_reason"}
    return Overview(RANGES, reasons=reasons, signatures={"s": "a", "free": "b"}, by=["topic"])


def rows(n: int, *, seed: int = 0) -> pa.Table:
    """Return joined rows: one column of a known range, one that grows, some undefined."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.random(n), 2)
    scores[rng.random(n) < 0.1] = np.nan
    free = rng.lognormal(sigma=3.0, size=n) * rng.choice([-1, 1], size=n)
    free[rng.random(n) < 0.1] = np.nan
    return pa.table(
        {
            "id": [f"q{i}" for i in range(n)],
            "topic": pa.array([("x", "y", "z", None)[i] for i in rng.integers(4, size=n)]),
            "s": pa.array(scores, pa.float32(), from_pandas=True),
            "s_reason": pa.array([None if x == x else "empty" for x in scores], pa.string()),
            "free": pa.array(free, from_pandas=True),
            "free_reason": pa.array([None if x == x else "empty" for x in free], pa.string()),
            "quarantine_reason": pa.nulls(n, pa.string()),
        }
    )


def counted(table: pa.Table, cuts: list[int], *, parts: bool = False) -> Overview:
    """Return the overview of rows in chunks; ``parts``: each in one of its own, added up."""
    whole = overview()
    for start, stop in zip([0, *cuts], [*cuts, len(table)], strict=True):
        own = overview() if parts else whole
        chunk = table.slice(start, stop - start)
        own.count(chunk, hashes(chunk["id"]), file="f", first_row=start)
        if parts:
            whole.add(own)
    return whole


@pytest.mark.parametrize("parts", [False, True])
def test_cuts_and_order_change_nothing(parts: bool) -> None:
    """Protects from a page that depends on how many files or chunks there are."""
    table = rows(1000)
    whole = counted(table, [])
    cut = counted(table, [1, 7, 250, 251, 900], parts=parts)
    for name in RANGES:
        mine, theirs = whole.profile.columns[name], cut.profile.columns[name]
        assert mine.cells == theirs.cells
        assert (mine.counts == theirs.counts).all()
        assert mine.moments.sum(axis=2) == pytest.approx(theirs.moments.sum(axis=2), abs=1e-6)
        assert {k: v.sum() for k, v in mine.reasons.items()} == {
            k: v.sum() for k, v in theirs.reasons.items()
        }
    assert whole.lowest == cut.lowest and whole.highest == cut.highest
    for left, right in zip(
        whole.content()["slices"]["topic"], cut.content()["slices"]["topic"], strict=True
    ):
        assert left["value"] == right["value"] and left["rows"] == right["rows"]
        for name in RANGES:
            assert left["columns"][name]["mean"] == pytest.approx(right["columns"][name]["mean"])


def test_counts_are_those_of_the_values() -> None:
    """A histogram of the values themselves, on the edges that the cells say."""
    table = rows(1000)
    profile = counted(table, [100, 300]).profile.columns["free"]
    values = table["free"].drop_null().to_numpy()
    edges = np.linspace(profile.cells.low, profile.cells.high, 513)
    expected, _ = np.histogram(values, bins=edges)
    assert profile.counts.sum(axis=(0, 1))[1:513].tolist() == expected.tolist()
    n, x, _ = profile.moments.sum(axis=(1, 2))
    assert n == len(values)
    assert profile.center + profile.half_width * x / n == pytest.approx(values.mean())


def test_means_by_slice_are_those_of_polars() -> None:
    """Means, numbers and intervals of each value, against an independent group-by."""
    from scipy import stats

    table = rows(1000)
    found = counted(table, [10, 500]).content()["slices"]["topic"]
    frame = pl.from_arrow(table)
    assert sum(one["rows"] for one in found) == 1000
    for one in found:
        own = frame.filter(pl.col("topic").eq_missing(one["value"]))
        assert one["rows"] == own.height
        values = own["s"].drop_nulls().cast(pl.Float64).to_numpy()
        expected = stats.t.interval(
            0.95, len(values) - 1, loc=values.mean(), scale=stats.sem(values)
        )
        assert one["columns"]["s"]["n"] == len(values)
        assert one["columns"]["s"]["mean"] == pytest.approx(values.mean())
        # Some rows share one of 1,024 buckets.
        assert one["columns"]["s"]["interval_95"] == pytest.approx(expected, rel=0.03)


def test_examples_are_the_first_of_the_sorted_rows() -> None:
    """Ties go to the first row: the same rows whatever the chunks."""
    table = rows(1000)
    found = counted(table, [33, 400])
    frame = pl.from_arrow(table).with_row_index("row").drop_nulls("s")
    for own, descending in ((found.lowest["s"], False), (found.highest["s"], True)):
        expected = frame.sort("s", descending=descending, maintain_order=True)[:MAX_EXAMPLES]
        assert [one.row for one in own] == expected["row"].to_list()
        assert [one.id for one in own] == expected["id"].to_list()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([str(i) for i in range(60)]),
        pa.array(["x" * 81, *["y"] * 59]),
        pa.array([[1]] * 60),
    ],
    ids=["many", "long", "lists"],
)
def test_columns_that_are_no_slices_have_none(values: pa.Array) -> None:
    """Fifty values at most; texts and lists are no names of slices."""
    table = rows(60).set_column(1, "topic", values)
    assert counted(table, [20]).content()["slices"] == {"topic": None}
    assert counted(table, [20], parts=True).content()["slices"] == {"topic": None}


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.dictionary(pa.int8(), pa.string())])
def test_slices_of_other_types(kind: pa.DataType) -> None:
    """Labels are often numbers; and null is a slice."""
    values = pa.array([0, 1, None] * 20).cast(pa.int64())
    own = values.cast(pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else values
    table = rows(60).set_column(1, "topic", own.cast(kind))
    found = counted(table, [20]).content()["slices"]["topic"]
    assert [one["rows"] for one in found] == [20, 20, 20] and found[-1]["value"] is None


def test_one_value_has_an_interval_where_the_range_is_known() -> None:
    """Cells that begin at the only value are no range: [5, 5] reads as if 5 were certain."""
    table = rows(60)
    zeros, fives = pa.array([0.0] * 60, pa.float32()), pa.array([5.0] * 60)
    constant = table.set_column(2, "s", zeros).set_column(4, "free", fives)
    found = counted(constant, [20])
    assert found.mean("s").interval_95 == pytest.approx([0, 4.0 / 64], rel=0.05)
    assert (found.mean("free").mean, found.mean("free").interval_95) == (5.0, None)
    topic = found.content()["slices"]["topic"]
    assert all(one["columns"]["free"]["interval_95"] is None for one in topic)
    # Two values are a range, also for a slice that has one of them.
    shares = pa.array([0.0 if own == "x" else float(i % 2) for i, own in enumerate(
        table["topic"].to_pylist())])  # fmt: skip
    found = counted(table.set_column(4, "free", shares), [20])
    assert found.mean("free").interval_method == WILSON
    own = next(one for one in found.content()["slices"]["topic"] if one["value"] == "x")
    low, high = own["columns"]["free"]["interval_95"]
    assert low == 0 and 0.1 < high < 0.5


@pytest.mark.parametrize("apart", [1e-12, 1e-7, 0.5])
def test_values_that_are_nearly_alike_have_an_interval(apart: float) -> None:
    """Protects from a share of 0 where a few rows differ by less than a sum can tell."""
    table = rows(200)
    for low in (0.0, 1.0 - apart):
        values = np.where(np.arange(200) % 7 == 0, low + apart, low)
        own = table.set_column(2, "s", pa.array(values)).set_column(4, "free", pa.array(values))
        cut, whole = counted(own, [33, 90], parts=True), counted(own, [])
        for name in RANGES:
            found = cut.mean(name)
            assert found.interval_95 is not None
            assert found.interval_95[0] - 1e-9 <= values.mean() <= found.interval_95[1] + 1e-9
            assert found.interval_95 == pytest.approx(whole.mean(name).interval_95, abs=1e-9)
        assert cut.mean("free").interval_method == WILSON
        assert cut.mean("s").interval_method == SANDWICH


def test_a_third_value_in_another_part_is_seen() -> None:
    """Two parts of two values each may have three or four together."""
    ones, halves = pa.array([0.0, 1.0] * 30), pa.array([0.0, 0.5] * 30)
    table = rows(120).set_column(2, "s", pa.chunked_array([ones, halves]))
    for cuts in ([], [60], [10, 70]):
        for parts in (False, True):
            assert counted(table, cuts, parts=parts).mean("s").interval_method == SANDWICH
    two = rows(60).set_column(2, "s", ones)
    assert counted(two, [1, 31], parts=True).mean("s").interval_method == WILSON


def test_awkward_values_have_an_overview() -> None:
    """Infinities, one value, no value: numbers of a page, never an exception or NaN."""
    table = rows(6)
    for values in ([np.inf, -np.inf, 1.0, 2.0, 3.0, 1e300], [5.0] * 6, [0.0] * 6, [None] * 6,
                   [-1e-320, 1e-320, 0.0, 0.0, 0.0, 0.0]):  # fmt: skip
        own = table.set_column(4, "free", pa.array(values, pa.float64()))
        found = counted(own, [2, 4])
        assert found.profile.columns["free"].counts.sum() == 6
        means = [one["columns"]["free"]["mean"] for one in found.content()["slices"]["topic"]]
        assert all(mean is None or np.isfinite(mean) for mean in means)


def test_wider_cells_begin_where_narrower_ones_do() -> None:
    """Counts can be moved exactly for that reason alone."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.normal(size=4) * 10.0 ** rng.integers(-5, 6, size=4)
        narrow = dyadic_cells(float(values[:2].min()), float(values[:2].max()))
        wide = dyadic_cells(float(values.min()), float(values.max()))
        assert wide.width >= narrow.width and (wide.width / narrow.width) % 1 == 0
        assert wide.low <= values.min() and values.max() <= wide.high
        assert ((narrow.low - wide.low) / narrow.width) % 1 == 0
