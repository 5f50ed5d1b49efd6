"""Ranges of rows against sets of rows: what is done, what is open, and what is whole."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from qaeval_core.store.row_ranges import RowRange, cover, open_ranges, tiles

N_ROWS = 12
ranges_of_rows = st.lists(
    st.builds(lambda a, b: RowRange(min(a, b), max(a, b)), *[st.integers(0, N_ROWS + 2)] * 2),
    max_size=6,
)


def rows_of(ranges: list[RowRange]) -> list[int]:
    return [row for own in ranges for row in range(own.start, own.stop)]


@given(ranges_of_rows)
def test_covered_ranges_are_disjoint_and_whole(done: list[RowRange]) -> None:
    """A row that two commits hold is scored once; one beyond the sample not at all."""
    found = cover(done, n_rows=N_ROWS)
    rows = rows_of(found)
    assert rows == sorted(set(rows)) and set(rows) <= set(range(N_ROWS))
    assert set(found) <= set(done) and all(own.n_rows > 0 for own in found)
    # Of several that begin with a row the longest counts.
    kept = [own for own in done if own.n_rows and own.stop <= N_ROWS]
    assert all(own.stop == max(one.stop for one in kept if one.start == own.start) for own in found)
    # Whatever is left out would overlap, hold no row, or end too late.
    for own in set(done) - set(found):
        assert set(rows_of([own])) & set(rows) or own.n_rows == 0 or own.stop > N_ROWS


@given(ranges_of_rows, st.integers(0, N_ROWS), st.integers(1, 5))
def test_open_ranges_are_the_rows_that_are_not_done(
    done: list[RowRange], start: int, n_rows: int
) -> None:
    shard = RowRange(start, start + n_rows)
    covered = cover(done, n_rows=N_ROWS)
    found = open_ranges(shard, covered)
    assert rows_of(found) == sorted(set(rows_of([shard])) - set(rows_of(covered)))
    assert all(own.n_rows > 0 for own in found)
    assert all(one.stop < other.start for one, other in pairwise(found))


@given(ranges_of_rows)
def test_ranges_are_whole_if_they_hold_each_row_once(ranges: list[RowRange]) -> None:
    """A gap or an overlap of commits would be rows that are lost or scored twice."""
    ranges = [own for own in ranges if own.n_rows]
    assert tiles(ranges, n_rows=N_ROWS) == (rows_of(ranges) == list(range(N_ROWS)))
    whole = [*cover(ranges, n_rows=N_ROWS)]
    whole = sorted([*whole, *open_ranges(RowRange(0, N_ROWS), whole)])
    assert tiles(whole, n_rows=N_ROWS)
    for i in range(len(whole)):
        assert not tiles([*whole[:i], *whole[i + 1 :]], n_rows=N_ROWS)
        assert not tiles([*whole[: i + 1], *whole[i:]], n_rows=N_ROWS)
