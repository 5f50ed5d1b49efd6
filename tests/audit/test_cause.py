"""Causes: a run without a slice is the run of the other rows, and what is said of one is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from audit_runs import cells_of, clustered
from qaeval_core.audit.cause import Cause, find_cause
from qaeval_core.audit.compare import compare
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.unusual_runs import EarlierRun, run_means
from qaeval_core.errors import UnreadableFileError
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import WHOLE, Slice, Slices

QUICK = AuditSettings(n_draws=199)
CELLS = cells_of({"score": np.linspace(-8, 8, 999), "other": np.linspace(-8, 8, 999)})
SYSTEMS = ("a", "b", "c", None)
Texts = NDArray[np.object_]
Keys = Mapping[str, Texts]


def profile(
    values: Mapping[str, NDArray[np.float64]],
    clusters: NDArray[np.uint64],
    keys: Keys,
    *,
    slices: Mapping[str, Sequence[str | None]] | None = None,
    rows: NDArray[np.bool_] | None = None,
) -> RunProfile:
    """Return the profile of some rows: every 17th is quarantined, every 13th cut."""
    rows = np.ones(len(clusters), dtype=bool) if rows is None else rows
    numbers = np.arange(len(clusters))[rows]
    known = {name: dict.fromkeys(own) for name, own in keys.items()}
    found = RunProfile.of(CELLS, Slices(slices or {name: list(own) for name, own in known.items()}))
    why = ["even" if n % 2 else "odd" for n in numbers]
    found.add(
        {name: own[rows] for name, own in values.items()},
        clusters[rows],
        by={name: pa.chunked_array([pa.array(own[rows], pa.string())])
            for name, own in keys.items()},
        reasons={
            name: pa.chunked_array([pa.array(
                [each if np.isnan(value) else None
                 for each, value in zip(why, own[rows], strict=True)], pa.string())])
            for name, own in values.items()
        },
        rates={
            "quarantined": (numbers % 17 == 0, None),
            "truncated.score": (numbers % 13 == 0, numbers % 17 != 0),
        },
        is_scored=numbers % 17 != 0,
    )  # fmt: skip
    return found


class Week:
    """A run whose rows are known: of 100 clusters a system, and of topics that share them."""

    def __init__(self, seed: int, *, shift: float = -1.5, **spoiled: str) -> None:
        base, self.clusters = clustered(400, 4, seed=seed)
        n = len(base)
        self.keys: dict[str, Texts] = {
            "system": np.array(SYSTEMS, dtype=object)[np.arange(n) // 4 % 4],
            "topic": np.array(["x", "y"], dtype=object)[np.arange(n) // 16 % 2],
        }
        moved = np.zeros(n, dtype=bool)
        for by, values in spoiled.items():
            moved |= np.isin(self.keys[by].astype(str), values.split())
        score = np.where(moved, base + shift, base)
        self.values = {"score": np.where(np.arange(n) % 11, score, np.nan), "other": -base}

    def profile(
        self, *by: str, without: Slice = WHOLE, copies_of: tuple[str, int] | None = None
    ) -> RunProfile:
        """Return the profile of the rows outside of a slice, as its rows are counted."""
        rows = np.ones(len(self.clusters), dtype=bool)
        slices: dict[str, Sequence[str | None]] = {"system": SYSTEMS, "topic": ("x", "y")}
        if without.by:
            rows = self.keys[without.by] != without.value
            slices[without.by] = [v for v in slices[without.by] if v != without.value]
        n_each = np.ones(len(rows), dtype=int)
        if copies_of is not None:
            n_each[self.keys["system"] == copies_of[0]] = copies_of[1]
        again = np.repeat(np.flatnonzero(rows), n_each[rows])
        keys = {name: self.keys[name] for name in by}
        if copies_of is None:
            return profile(
                self.values, self.clusters, keys, rows=rows,
                slices={name: slices[name] for name in by},
            )  # fmt: skip
        return profile(
            {name: own[again] for name, own in self.values.items()},
            self.clusters[again],
            {name: own[again] for name, own in keys.items()},
            slices={name: slices[name] for name in by},
        )


def cause(
    before: RunProfile, now: RunProfile, earlier: Sequence[RunProfile] = (), **given: bool
) -> Cause | None:
    """Return what is said of two runs, after some others."""
    runs = {f"run{i}": run for i, run in enumerate(earlier)}
    means = [EarlierRun(name, run_means(run)) for name, run in runs.items()]
    n_rows = earlier[-1].n_rows if earlier and given.get("is_beside_last", True) else None
    result = compare(before, now, QUICK, history=[own.means for own in means], n_rows_before=n_rows)
    return find_cause(result, (before, now), QUICK, earlier=means, read=runs.__getitem__, **given)


@pytest.mark.parametrize("value", SYSTEMS)
def test_a_run_without_a_slice_is_that_of_the_other_rows(value: str | None) -> None:
    """Each count, sum, reason, rate and cluster, as if the rows had never been there."""
    own = Slice("system", value)
    week = Week(1)
    found = week.profile("system", "topic").without(own)
    wanted = week.profile("system", without=own)
    assert found is not None
    assert found.to_table().equals(wanted.to_table(), check_metadata=True)
    assert np.array_equal(found.clusters.counts(), wanted.clusters.counts())
    assert found.clusters.counts()[0] > 256, "an estimate, of the smallest hashes of the others"


def test_rows_that_are_not_counted_apart_cannot_be_left_out() -> None:
    run = Week(1).profile("system")
    assert run.without(Slice("topic", "x")) is None
    assert run.without(Slice("system", is_other=True)) is None
    assert run.without(WHOLE) is None
    few = profile(
        Week(1).values, Week(1).clusters, Week(1).keys, slices={"system": ["a"], "topic": []}
    )
    assert few.without(Slice("system", "b")) is None, "it is among the others"
    found = run.without(Slice("system", "z"))
    assert found is not None and found.n_rows == run.n_rows, "no row has it"


@pytest.mark.parametrize("value", ["b", "None"])
def test_one_spoiled_slice_is_the_cause(value: str) -> None:
    before, now = Week(1), Week(2, system=value)
    found = cause(before.profile("system"), now.profile("system"))
    own = Slice("system", None if value == "None" else value)
    assert found is not None and found.slice == str(own) and found.columns[0] == "score"
    assert found.text == f"only {own} moved; without it nothing did" and not found.remark
    # Who has the rows says the same: with them there are alerts, without them there are none.
    assert compare(before.profile("system"), now.profile("system"), QUICK).alerts
    left = [week.profile("system", without=own) for week in (before, now)]
    assert compare(*left, QUICK).alerts == []


def test_two_spoiled_slices_are_no_cause_of_each_other() -> None:
    before, now = Week(1), Week(2, system="b c")
    assert cause(before.profile("system"), now.profile("system")) is None
    left = [week.profile("system", without=Slice("system", "b")) for week in (before, now)]
    assert compare(*left, QUICK).alerts


def test_where_nothing_or_everything_moved_there_is_none() -> None:
    same, moved = Week(2), Week(2, topic="x y")
    assert cause(Week(1).profile("system"), same.profile("system")) is None
    assert cause(Week(1).profile("system"), moved.profile("system")) is None
    assert cause(Week(1).profile(), moved.profile()) is None


def test_slices_of_two_columns_share_rows_and_that_is_said() -> None:
    """Each topic holds rows of the spoiled system, and alarms with it."""
    before, now = Week(1), Week(2, system="b", shift=-4.0)
    both = [week.profile("system", "topic") for week in (before, now)]
    alarmed = {alert.slice for alert in compare(*both, QUICK).alerts}
    assert {"system=b", "topic=x", "topic=y"} <= alarmed
    found = cause(*both)
    assert found is not None and (found.by, found.not_apart) == ("system", ("topic",))
    assert found.text == "of slices by system only system=b moved; without it the whole did not"
    assert "slices by topic share rows with it" in found.remark
    left = [week.profile("system", without=Slice("system", "b")) for week in (before, now)]
    assert compare(*left, QUICK).alerts == []


def test_without_a_verdict_nothing_is_claimed() -> None:
    """What is left has too few clusters to say that it did not move."""
    score, clusters = clustered(60, 4, seed=1)
    worse, others = clustered(60, 4, seed=2)
    systems = np.where(np.arange(len(score)) < 200, "b", "c").astype(object)
    worse = np.where(systems == "b", worse - 2, worse)
    before, now = (
        profile({"score": own, "other": own}, each, {"system": systems})
        for own, each in ((score, clusters), (worse, others))
    )
    result = compare(before, now, QUICK)
    assert {alert.slice for alert in result.alerts} == {"", "system=b"}
    assert find_cause(result, (before, now), QUICK) is None


def test_a_column_that_is_made_in_another_way_is_no_slice() -> None:
    before, now = Week(1).profile("system"), Week(2, system="b").profile("system")
    now.columns["other"].signature = "v2"
    assert cause(before, now) is None


def test_rows_are_compared_with_those_of_the_last_run_there_too() -> None:
    """Six times the rows of one slice: all rows alarm, and those of the others do not."""
    before, last = Week(1).profile("system"), Week(3).profile("system")
    now = Week(2, system="b").profile("system", copies_of=("b", 6))
    found = cause(before, now, [last])
    assert found is not None and found.slice == "system=b"
    # The last run was of twice as many rows everywhere: the others have lost half of theirs.
    twice = Week(3).profile("system")
    twice.merge(Week(3).profile("system"))
    assert cause(before, now, [twice]) is None
    assert cause(before, now, [twice], is_beside_last=False) is not None


def test_earlier_runs_are_looked_at_without_the_slice() -> None:
    earlier = [Week(seed).profile("system") for seed in range(10, 19)]
    now = Week(2, system="b").profile("system")
    result = compare(earlier[0], now, QUICK, history=[run_means(run) for run in earlier])
    assert "unusual_run" in {alert.kind for alert in result.alerts}
    found = cause(earlier[0], now, earlier)
    assert found is not None and found.slice == "system=b"
    # All were the same but for this one, which is unlike them without the slice, too.
    same = [Week(10).profile("system")] * 9
    wide = AuditSettings(n_draws=199, columns={"other": {"mean": 0.0}})
    means = [EarlierRun("run", run_means(run)) for run in same]
    result = compare(same[0], now, wide, history=[own.means for own in means])
    assert find_cause(
        result, (same[0], now), wide, earlier=means, read=lambda _: same[0]
    ) is None  # fmt: skip
    # Of runs without such slices nobody knows what they were without it.
    blank = [Week(seed).profile() for seed in range(10, 19)]
    assert cause(earlier[0], now, [*blank[:8], earlier[-1]]) is None


def test_an_earlier_run_that_cannot_be_read_again_is_no_claim() -> None:
    def gone(_: str) -> RunProfile:
        raise UnreadableFileError("gone [QA0801]")

    before, now = Week(1).profile("system"), Week(2, system="b").profile("system")
    result = compare(before, now, QUICK)
    earlier = [EarlierRun("run", run_means(before))]
    assert find_cause(result, (before, now), QUICK, earlier=earlier, read=gone) is None
    assert find_cause(result, (before, now), QUICK) is not None


def test_lines_of_alerts_are_one_a_column() -> None:
    before, now = Week(1).profile("system"), Week(2, topic="x y").profile("system")
    result = compare(before, now, QUICK)
    (line,) = result.alert_lines()
    assert len({alert.slice for alert in result.alerts}) == 5  # All rows and four systems.
    assert line.startswith(result.alerts[0].text)
    assert line.count("(mean, wasserstein, psi)") == 4 and "all rows (" in line
