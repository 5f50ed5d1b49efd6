"""Profiles: what they count, and that parts add up to the whole bit for bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from qaeval_core.errors import UnreadableFileError
from qaeval_core.profile.cells import N_EQUAL, Cells, CellsFinder, choose_cells
from qaeval_core.profile.column_profile import N_BUCKETS, N_SUM_BUCKETS
from qaeval_core.profile.run_profile import METADATA, RunProfile
from qaeval_core.profile.slices import Slices

SLICES = Slices({"system": ("a", "b", None)})


def rows(n: int, seed: int = 0) -> dict[str, object]:
    """Rows with what is awkward: undefined, infinite and far values, null slices."""
    rng = np.random.default_rng(seed)
    score = rng.normal(0.5, 0.3, n)
    score[rng.random(n) < 0.1] = 1.0
    score[rng.random(n) < 0.05] = np.nan
    score[:3] = [np.inf, -np.inf, 1e30]
    system = rng.choice(np.array(["a", "b", "c", None], dtype=object), n)
    hashes = rng.integers(0, 2**64 - 1, 700, dtype=np.uint64)[rng.integers(0, 700, n)]
    return {
        "values": {"score": score, "wide": rng.standard_cauchy(n)},
        "clusters": hashes,
        "by": {"system": pa.chunked_array([pa.array(system, pa.string())])},
        "reasons": {
            "score": pa.chunked_array(
                [pa.array(np.where(np.isnan(score), "empty", None), pa.string())]
            )
        },
        "rates": {"quarantined": (rng.random(n) < 0.02, None)},
        "is_scored": rng.random(n) < 0.9,
    }


def part(given: dict[str, object], chosen: np.ndarray) -> dict[str, object]:
    """Return some of the rows."""
    own = dict(given)
    own["values"] = {name: each[chosen] for name, each in given["values"].items()}
    own["clusters"] = given["clusters"][chosen]
    own["by"] = {name: each.filter(pa.array(chosen)) for name, each in given["by"].items()}
    own["reasons"] = {n: each.filter(pa.array(chosen)) for n, each in given["reasons"].items()}
    own["rates"] = {name: (each[chosen], None) for name, (each, _) in given["rates"].items()}
    own["is_scored"] = given["is_scored"][chosen]
    return own


def profile_of(given: dict[str, object]) -> RunProfile:
    cells = {"score": Cells(0.0, 1.0, (1.0,)), "wide": Cells(-40.0, 40.0)}
    run = RunProfile.of(cells, SLICES, signatures={"score": "s"}, ranges={"score": (0.0, 1.0)})
    run.add(**given)
    return run


def assert_same(one: RunProfile, other: RunProfile) -> None:
    assert one.slices == other.slices
    assert one.columns.keys() == other.columns.keys()
    for name, own in one.columns.items():
        theirs = other.columns[name]
        assert (own.cells, own.signature, own.low) == (theirs.cells, theirs.signature, theirs.low)
        assert (own.counts == theirs.counts).all()
        assert (own.sums == theirs.sums).all()
        assert own.reasons.keys() == theirs.reasons.keys()
        assert all((own.reasons[each] == theirs.reasons[each]).all() for each in own.reasons)
    assert one.rates.keys() == other.rates.keys()
    assert all((one.rates[name] == other.rates[name]).all() for name in one.rates)
    for mine, theirs in zip(one.clusters.smallest, other.clusters.smallest, strict=True):
        assert mine.tolist() == theirs.tolist()


def test_seven_shards_added_up_are_the_whole_bit_for_bit() -> None:
    given = rows(20_000)
    shard = np.random.default_rng(1).integers(0, 7, 20_000)
    parts = [profile_of(part(given, shard == i)) for i in (3, 0, 6, 5, 1, 2, 4)]
    merged = parts[0]
    for each in parts[1:]:
        merged.merge(each)
    whole = profile_of(given)
    assert_same(merged, whole)
    assert merged.to_table().sort_by("column").equals(whole.to_table().sort_by("column"))


def test_counts_and_moments_are_those_of_a_loop_over_rows() -> None:
    given = rows(3_000)
    found = profile_of(given)
    own = found.columns["score"]
    n, total, squares = own.moments
    codes = own.cells.codes(given["values"]["score"])
    systems = given["by"]["system"].to_pylist()
    numbers = {"a": 1, "b": 2, None: 3, "c": 4}
    expected = np.zeros((5, N_BUCKETS, own.cells.n_cells), int)
    sums = np.zeros((3, 5, N_SUM_BUCKETS))
    n_empty = np.zeros((5, N_BUCKETS), int)
    for i, value in enumerate(given["values"]["score"]):
        if not given["is_scored"][i]:
            continue
        bucket = int(given["clusters"][i]) % 256
        for code in (0, numbers[systems[i]]):
            expected[code, bucket, codes[i]] += 1
            n_empty[code, bucket] += np.isnan(value)
            x = (value - 0.5) / 0.5
            if abs(x) < 1e4:
                sums[:, code, int(given["clusters"][i]) % 1024] += (1, x, x * x)
    assert (own.counts == expected).all()
    assert (own.reasons["empty"] == n_empty).all()
    assert n.tolist() == sums[0].tolist()
    assert total == pytest.approx(sums[1], abs=1e-7)
    assert squares == pytest.approx(sums[2], abs=1e-7)
    by_cells = own.counts[..., :-1].sum(axis=2)
    assert (by_cells >= own.drawn_moments[0]).all()  # What is infinite is in no sum.
    n_drawn = sums[0].reshape(5, 4, N_BUCKETS).sum(axis=1)
    assert own.drawn_moments[0].tolist() == n_drawn.tolist()
    rate = found.rates["quarantined"]
    assert rate[0, 0].sum() == given["rates"]["quarantined"][0].sum()
    assert rate[1, 0].sum() == found.rates["rows"][0, 0].sum() == 3_000
    distinct = len(set(given["clusters"][given["is_scored"]].tolist()))
    assert found.clusters.counts()[0] == pytest.approx(distinct, rel=0.2)


def test_clusters_are_counted_exactly_below_256() -> None:
    run = RunProfile.of({}, Slices({}))
    hashes = np.random.default_rng(0).integers(0, 2**64 - 1, 255, dtype=np.uint64)
    for _ in range(3):
        run.add({}, np.repeat(hashes, 4))
    assert run.clusters.counts().tolist() == [255]


def test_clusters_of_a_sample_are_those_of_the_sample() -> None:
    """A sample is the contexts of smallest hash: of 50,000 these are 2,000, and no more."""
    hashes = np.random.default_rng(0).integers(0, 2**64 - 1, 50_000, dtype=np.uint64)
    run = RunProfile.of({}, Slices({}))
    run.add({}, hashes, is_scored=hashes <= np.sort(hashes)[1_999])
    assert run.clusters.counts()[0] == pytest.approx(2_000, rel=0.2)


def test_a_profile_comes_back_from_its_table() -> None:
    whole = profile_of(rows(5_000))
    assert_same(RunProfile.from_table(whole.to_table()), whole)
    empty = RunProfile.of({"score": Cells(0.0, 1.0)}, SLICES)
    assert_same(RunProfile.from_table(empty.to_table()), empty)


def test_other_tables_are_no_profiles() -> None:
    table = profile_of(rows(100)).to_table()
    with pytest.raises(UnreadableFileError, match="QA0801"):
        RunProfile.from_table(table.replace_schema_metadata(None), "x.parquet")
    text = table.schema.metadata[METADATA]
    for old, new, message in [
        (b'"version": 2', b'"version": 1', "another version"),
        (b'"clusters"', b'"klusters"', "damaged"),
        (b'"high": 1.0, "atoms": [1.0]', b'"high": 0.0, "atoms": [1.0]', "cells"),
        (b'["a", "b", null]', b'["a"]', "damaged"),
    ]:
        assert old in text
        changed = table.replace_schema_metadata({METADATA: text.replace(old, new)})
        with pytest.raises(UnreadableFileError, match=message):
            RunProfile.from_table(changed)


def test_cells_are_in_the_order_of_values() -> None:
    cells = Cells(-1.0, 2.0, (-3.0, 0.0, 0.001, 2.0, 5.0))
    values = np.sort(np.concatenate([np.random.default_rng(0).uniform(-6, 6, 5000), cells.atoms]))
    codes = cells.codes(values)
    assert (np.diff(codes) >= 0).all()
    edges = cells.edges
    assert (edges[:, 0] <= edges[:, 1]).all()
    assert (edges[1:, 0] == edges[:-1, 1]).all()
    for value, code in zip(values, codes, strict=True):
        low, high = edges[code]
        assert low - 1e-12 <= value <= high + 1e-12
        assert (value in cells.atoms) == (low == high)
    assert cells.n_cells == N_EQUAL + 3 + 10
    assert (np.diff(cells.centers) >= 0).all()
    assert Cells.from_json(cells.to_json()) == cells


@pytest.mark.parametrize("n_atoms", [0, 1, 16, 17, 60])
def test_codes_of_few_and_many_atoms_are_those_of_a_loop_over_values(n_atoms: int) -> None:
    """Two ways to count the atoms before a value, one number."""
    rng = np.random.default_rng(n_atoms)
    atoms = np.sort(rng.uniform(-0.1, 1.1, n_atoms))
    cells, plain = Cells(0.0, 1.0, tuple(atoms)), Cells(0.0, 1.0)
    values = np.concatenate([atoms, atoms + 1e-12, rng.uniform(-1, 2, 500), [-0.0, np.inf, np.nan]])
    found = cells.codes(np.append(values, -np.inf))
    for value, code in zip(values, found, strict=False):
        before = sum(int(atom < value) + int(atom <= value) for atom in atoms)
        expected = plain.codes(np.array([value]))[0] + before
        assert code == (cells.n_ordered if np.isnan(value) else expected)
    assert found[-1] == 0


def test_atoms_are_the_values_of_one_percent_of_all_data() -> None:
    """More distinct values than are counted; 0.25 has 1 % exactly, 0.75 one row less."""
    rng = np.random.default_rng(0)
    n = 300_000
    values = np.concatenate([np.full(3_000, 0.25), np.full(2_999, 0.75), [np.nan] * 10])
    values = rng.permutation(np.concatenate([values, rng.random(n - 5_999)]))
    parts = np.array_split(values, 5)
    cells = choose_cells(lambda: parts, low=0.0, high=1.0)
    assert cells == Cells(0.0, 1.0, (0.25,))
    finders = [CellsFinder(0.0, 1.0) for _ in parts]
    for finder, part_ in zip(finders, parts, strict=True):
        finder.add(part_)
    for finder in finders[1:]:
        finders[0].merge(finder)
    assert set(finders[0].undecided) <= {0.25, 0.75}
    for part_ in parts:
        finders[0].count_again(part_)
    assert finders[0].cells() == cells


@pytest.mark.parametrize(
    ("values", "low", "high", "expected"),
    [
        ([], None, None, (0.0, 1.0)),
        ([np.nan], None, np.inf, (0.0, 1.0)),
        ([7.0, 7.0], None, None, (3.5, 10.5)),
        ([2.0, 9.0, np.inf, -np.inf, 1.7e308], None, None, (2.0, 9.0)),
        ([2.0, 9.0], 0.0, np.inf, (0.0, 9.0)),
        ([2.0, 9.0], 0.0, 1.0, (0.0, 1.0)),
        ([-2.0], 0.0, np.inf, (-3.0, 1.0)),
    ],
)
def test_ranges_are_declared_or_the_datas(
    values: list[float], low: float | None, high: float | None, expected: tuple[float, float]
) -> None:
    cells = choose_cells(lambda: [np.array(values)], low=low, high=high)
    assert (cells.low, cells.high) == expected
