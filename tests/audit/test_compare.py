"""Compare: degenerate runs always have a result, and alerts say what they are of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from audit_runs import cells_of, clustered, hashes_of, run_of
from qaeval_core.audit.compare import AuditResult, compare
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.unusual_runs import RunMean, prediction_interval, run_means, unusual
from qaeval_core.errors import ConfigError
from qaeval_core.profile.cells import Cells
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import Slices, choose_values

QUICK = AuditSettings(n_draws=99)


def kinds(result: AuditResult) -> set[tuple[str, str, str]]:
    return {(alert.kind, alert.column, alert.slice) for alert in result.alerts}


def run(scores: list[float]) -> RunProfile:
    values, cells = np.array(scores, dtype=np.float64), Cells(0.0, 1.0, (0.0, 1.0))
    return run_of({"score": values}, hashes_of(np.arange(len(values))), {"score": cells})


def check(result: AuditResult) -> None:
    """What holds of every result."""
    table = result.table()
    assert table.num_rows == len(result.rows)
    flags = table["alert"].to_pylist()
    assert flags == sorted(flags, reverse=True)
    for row in result.rows:
        if row.low is not None:
            assert row.low - 1e-9 <= row.effect <= row.high + 1e-9 or row.statistic in (
                "mean",
                "undefined",
            )
        if row.p is not None:
            assert 0 < row.p <= 1
            assert row.p_adjusted is None or row.p <= row.p_adjusted <= 1


degenerate = st.one_of(
    st.lists(st.sampled_from([0.0, 0.3, 1.0, np.nan, np.inf, -np.inf, 1e300]), max_size=40),
    st.sampled_from([[0.5] * 60, [np.nan] * 60, [np.inf] * 60, [0.0, 1.0] * 40, [7.0] * 60]),
)


@settings(max_examples=40, deadline=None)
@given(degenerate, degenerate)
def test_there_is_always_a_result(before: list[float], now: list[float]) -> None:
    check(compare(run(before), run(now), AuditSettings(n_draws=99)))
    same = compare(run(before), run(before), AuditSettings(n_draws=99))
    check(same)
    assert {row.effect for row in same.rows} <= {0.0, None}
    assert same.alerts == []


def test_few_clusters_have_no_verdict_but_rows_are_counted() -> None:
    """One cluster, one row, none: by effect alone, and never of a distribution."""
    wide, cells = np.linspace(0, 1, 500), {"score": Cells(0.0, 1.0, (0.0, 1.0))}
    one = run_of({"score": wide}, hashes_of(np.zeros(500, int)), cells)
    for now in (one, run([0.5]), run([])):
        result = compare(one, now, QUICK)
        assert result.is_too_few
        assert {row.status for row in result.rows if row.column} <= {
            "too_few",
            "no_values",
            "shown",
        }
        assert kinds(result) == (set() if now is one else {("rows", "", "")})


def test_a_constant_column_that_moved_is_found() -> None:
    result = compare(run([0.5] * 300), run([0.6] * 300), QUICK)
    assert {"mean", "wasserstein", "psi"} <= {alert.kind for alert in result.alerts}
    assert all(np.isfinite(row.effect) for row in result.rows if row.alert)


def test_columns_that_come_and_go_are_told() -> None:
    score, clusters = clustered(60, 5)
    cells = cells_of({"score": score})["score"]
    before = run_of({"old": score, "both": score}, clusters, {"old": cells, "both": cells})
    now = run_of({"new": score, "both": score}, clusters, {"new": cells, "both": cells})
    result = compare(before, now, QUICK)
    assert kinds(result) == {("column_missing", "old", "")}
    assert result.notes == ["new is new, so there is nothing to compare it with"]
    assert {row.column for row in result.rows} == {"", "both"}


def test_other_signatures_are_not_tested() -> None:
    score, clusters = clustered(60, 5)
    cells = cells_of({"score": score})
    runs = [run_of({"score": score}, clusters, cells, signature=s) for s in ("v1", "v2")]
    result = compare(*runs, QUICK)
    assert kinds(result) == {("signature_changed", "score", "")}
    (row,) = (row for row in result.rows if row.column)
    assert (row.status, row.p, row.effect) == ("no_test", None, None)
    assert row.reference == row.current == pytest.approx(score.mean())
    other = run_of({"score": score}, clusters, {"score": Cells(-9.0, 9.0)}, signature="v1")
    assert kinds(compare(runs[0], other, QUICK)) == {("cells_changed", "score", "")}


def test_one_spoiled_slice_is_named_and_a_vanished_one_too() -> None:
    score, clusters = clustered(120, 12)
    cells = cells_of({"score": score})
    systems = np.tile(np.array(["a", "b", "c"]), len(score) // 3)
    spoiled = np.where(systems == "b", score - 1.5, score)
    before = run_of({"score": score}, clusters, cells, systems=systems, slices="abc")
    now = run_of({"score": spoiled}, clusters, cells, systems=systems, slices="abc")
    result = compare(before, now)
    found = kinds(result)
    assert ("mean", "score", "system=b") in found
    # Who reads the first line alone reads where it was: all of a slice that moved is in one.
    first, *others = result.alert_lines()
    assert first.startswith("the mean of score in system=b fell")
    assert "; the values of score in system=b moved by" in first
    assert not any("system=b" in line for line in others)
    assert not any(label in ("system=a", "system=c") for _, _, label in found)
    left = systems != "c"
    less = run_of(
        {"score": score[left]}, clusters[left], cells, systems=systems[left], slices="abc"
    )
    found = kinds(compare(before, less, QUICK))
    assert {("rows", "", ""), ("slice_missing", "", "system=c")} <= found
    assert "system=c is new, so there is nothing to compare it with" in compare(less, before).notes


def test_other_is_compared_only_where_it_is_the_same_rest() -> None:
    score, clusters = clustered(60, 5)
    cells = cells_of({"score": score})
    systems = np.tile(np.array(["a", "b", "c"]), len(score) // 3)
    runs = [
        run_of({"score": score}, clusters, cells, systems=systems, slices=values)
        for values in (["a"], ["a", "b"])
    ]
    labels = {row.slice for row in compare(runs[0], runs[0], QUICK).rows}
    assert labels == {"", "system=a", "system: other"}
    result = compare(*runs, QUICK)
    assert {row.slice for row in result.rows} == {"", "system=a"}
    assert "system: other holds other values in the two runs, and is not compared" in result.notes


def test_rates_are_told_from_chance_and_undefined_values_have_a_reason() -> None:
    import pyarrow as pa

    score, clusters = clustered(100, 10)
    cells = cells_of({"score": score})
    rng = np.random.default_rng(0)
    n = len(score)
    kept = rng.random(n) < 0.8
    empty = np.where(rng.random(n) < 0.2, "empty_context", None)
    empty[:3] = "too_long"
    now = np.where(empty == None, score, np.nan)  # noqa: E711
    runs = [
        run_of({"score": score}, clusters, cells, rates={"kept": (kept, None)}),
        run_of(
            {"score": now},
            clusters,
            cells,
            rates={
                "kept": (kept & (rng.random(n) < 0.8), None),
                "quarantined": (rng.random(n) < 0.02, None),
            },
            reasons={"score": pa.chunked_array([pa.array(empty, pa.string())])},
        ),
    ]
    result = compare(*runs, QUICK)
    assert {alert.kind for alert in result.alerts} >= {"kept", "undefined"}
    (text,) = (alert.text for alert in result.alerts if alert.kind == "undefined")
    assert text.startswith("undefined values of score rose from 0.0% to 2")
    assert text.endswith(": empty_context")


def test_quarantined_rows_alarm_by_their_share_alone() -> None:
    score, clusters = clustered(100, 10)
    cells = cells_of({"score": score})
    some = np.arange(len(score)) < 15
    runs = [
        run_of(
            {"score": score}, clusters, cells, rates={"quarantined": (own, None)}, is_scored=~own
        )
        for own in (np.zeros_like(some), some)
    ]
    assert kinds(compare(*runs, QUICK)) == {("quarantined", "", "")}


def test_a_prediction_interval_holds_the_next_run() -> None:
    """95 % of next runs, whatever they differ by; two values by hand."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(2000, 9))
    inside = [
        low <= own[8] <= high
        for own in drawn
        for low, high in [prediction_interval(own[:8], alpha=0.05)]
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)
    low, high = prediction_interval([0.0, 1.0], alpha=0.1)
    reach = stats.t.ppf(0.95, 1) * np.sqrt(0.5) * np.sqrt(1.5)
    assert (low, high) == pytest.approx((0.5 - reach, 0.5 + reach))


def test_a_run_unlike_eight_others_is_unusual() -> None:
    score, clusters = clustered(100, 10)
    cells = cells_of({"score": score})
    current = run_of({"score": score}, clusters, cells, signature="s")
    own = run_means(current)["score"]
    assert (own.mean, own.standard_deviation) == pytest.approx((score.mean(), score.std()))
    means = own.mean + 1.0 + np.linspace(-0.2, 0.2, 8)
    history = [{"score": RunMean("s", mean, 1.4, 0.0)} for mean in means]
    found = {one.statistic: one for one in unusual(history, current, QUICK)}
    assert found["mean"].is_alert and not found["undefined"].is_alert
    expected = prediction_interval(means, alpha=QUICK.alpha / 2)
    assert (found["mean"].low, found["mean"].high) == expected
    result = compare(current, current, QUICK, history=history)
    assert kinds(result) == {("unusual_run", "score", "")}
    assert unusual(history[:7], current, QUICK) == []
    others = [{"score": RunMean("t", mean, 1.4, 0.0)} for mean in means]
    assert unusual(others, current, QUICK) == []
    wide = [{"score": RunMean("s", own.mean + x, 1.4, 0.0)} for x in range(-4, 4)]
    assert not any(one.is_alert for one in unusual(wide, current, QUICK))


def test_fifty_values_have_slices_and_keep_them() -> None:
    first = choose_values({f"v{i}": i for i in range(50_000)})
    assert len(first) == 50 and first[0] == "v49999"
    assert choose_values({"new": 10**6}, first) == first
    slices = Slices({"system": first})
    assert len(slices.all) == 52


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tolerances": {"meen": 1.0}}, "'mean'.*QA0105"),
        ({"columns": {"sas": {"mean": -1.0}}}, "0.*QA0104"),
        ({"tolerances": {"psi": float("nan")}}, "0.*QA0104"),
        ({"alpha": 1e-4}, "0.0001.*999.*0.001.*QA0104"),
        ({"seed": -1}, "-1.*QA0104"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AuditSettings(**given)
