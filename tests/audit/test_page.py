"""audit.html of profiles: its numbers are those of the tests, and it is small and stands alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from audit_runs import cells_of, clustered, run_of
from qaeval_core.audit.compare import compare
from qaeval_core.audit.outcome import AuditOutcome, AuditStatus
from qaeval_core.audit.page import audit_page
from qaeval_core.audit.request import AuditRequest
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.unusual_runs import EarlierRun, run_means
from qaeval_core.pages.example_rows import MAX_BYTES
from qaeval_core.profile.histogram import counted_bars
from qaeval_core.profile.run_profile import RunProfile
from scoring.test_page import ATTACK, Page, assert_stands_alone


def run(n_columns: int = 2, *, n_slices: int = 3, shift: float = 0.0, seed: int = 0) -> RunProfile:
    """Return a run of slices of 40 clusters each, whose columns and slices attack pages."""
    base, hashes = clustered(40 * n_slices, 5, seed=seed, shift=shift)
    columns = [f"score{i} {ATTACK}" for i in range(n_columns)]
    values = {name: base + i for i, name in enumerate(columns)}
    values[columns[0]] = np.where(np.arange(len(base)) % 10, values[columns[0]], np.nan)
    systems = [f"{ATTACK} {i // 200}" for i in range(len(base))]
    cells = cells_of({name: np.linspace(-9, 9 + i, 99) for i, name in enumerate(columns)})
    return run_of(values, hashes, cells, systems=systems, slices=list(dict.fromkeys(systems)))


def outcome(
    before: RunProfile,
    now: RunProfile,
    *,
    n_earlier: int = 0,
    settings: AuditSettings | None = None,
) -> AuditOutcome:
    earlier = [
        EarlierRun(f"202401{i + 1:02d}T000000.000000Z-0123456789ab", run_means(before), ATTACK)
        for i in range(n_earlier)
    ]
    request = AuditRequest(settings=settings or AuditSettings())
    result = compare(before, now, request.settings, history=[one.means for one in earlier])
    return AuditOutcome(
        status="alert" if result.alerts else "ok",
        out=Path("out"),
        request=request,
        run="20240501T000000.000000Z-0123456789ab",
        reference="20240101T000000.000000Z-0123456789ab",
        profile=now,
        reference_profile=before,
        result=result,
        earlier=earlier,
        notes=(ATTACK,),
    )


def test_numbers_are_those_of_the_tests() -> None:
    own = outcome(run(), run(shift=1.0, seed=3), n_earlier=9)
    text = audit_page(own)
    assert_stands_alone(text)
    page = Page(text)
    assert "alert" in re.sub("<.*?>", "", text.partition("<h1")[2].partition("</h1>")[0])
    shown = {row[0]: row for row in page.rows if len(row) == 8}
    for test in own.result.rows:
        if test.statistic != "mean" or test.slice:
            continue
        row = next(cells for name, cells in shown.items() if name.startswith(test.column[:6]))
        # Numbers from -1 to 1 stand with their points below each other.
        assert row[3:5] == [
            f"{mean:.4f}" if abs(mean) <= 1 else f"{mean:.4g}"
            for mean in (test.current, test.reference)
        ]
        assert row[5] == f"{test.effect:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
        assert row[1].startswith("alert: ") and "unusual_run" in row[1]
    assert text.count('class="spark"') == 2
    # Where each of two columns was expected to be, and what of its slices is tolerated.
    assert text.count('<polygon class="band"') == 2 == text.count('<rect class="band"')
    assert any("after 9 earlier runs it is expected" in one for one in text.split("<"))
    # A dot for each slice that was tested, in a chart for each column.
    slices = [row for row in own.result.rows if row.slice and row.statistic == "mean"]
    assert len(slices) == 6
    for test in slices:
        said = f"{test.effect:.4g} [{test.low:.4g}, {test.high:.4g}]"
        assert any(title.endswith(said) for title in page.titles), said


def test_clusters_that_are_estimated_are_not_shown_as_counted() -> None:
    score, clusters = clustered(300, 2)
    many = run_of({"f1": score}, clusters, cells_of({"f1": score}))
    few = run_of({"f1": score[:400]}, clusters[:400], cells_of({"f1": score}))
    text = audit_page(outcome(many, few))
    n = int(many.clusters.counts()[0])
    assert f"600 rows, about {n} clusters by" in text and "400 rows, 200 clusters by" in text


def test_every_status_has_a_page() -> None:
    whole = outcome(run(), run())
    assert ">No alert<" in audit_page(whole)
    cases: list[tuple[AuditStatus, RunProfile | None, str]] = [
        ("first_run", run(), "First run"),
        ("incomplete", None, "Incomplete"),
    ]
    for status, profile, said in cases:
        own = AuditOutcome(
            status=status, out=Path("out"), request=AuditRequest(), profile=profile, why=ATTACK,
            run="20240501T000000.000000Z-0123456789ab" if profile else "",
        )  # fmt: skip
        text = audit_page(own)
        assert_stands_alone(text)
        assert said in text and (profile is None) == ("Distributions" not in text)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_runs_of_hardly_any_row_have_a_page(n_rows: int) -> None:
    values = {"f1": np.full(n_rows, np.inf)}
    cells = cells_of({"f1": np.array([0.0, 1.0])})
    few = run_of(values, np.arange(n_rows, dtype=np.uint64), cells)
    text = audit_page(outcome(few, few))
    assert_stands_alone(text)
    assert "fewer than 30 clusters" in text


def test_what_alarms_has_color_beside_zero_and_what_is_tolerated() -> None:
    before, now = run(1, n_slices=2), run(1, n_slices=2, shift=1.0, seed=3)
    settings = AuditSettings(tolerances={"mean": 0.25, "psi": 99, "wasserstein": 99})
    own = outcome(before, now, settings=settings)
    alarmed = {alert.slice for alert in own.result.alerts if alert.slice}
    page = audit_page(own).partition('id="slices"')[2].partition("</svg>")[0]
    assert "-0.25 to 0.25</title></rect>" in page and page.count('class="level"') == 1
    dots = re.findall(r'<circle class="([ab])".*?<title>(.*?)</title>', page)
    kinds = {re.findall(r" (\d): ", title)[0]: kind for kind, title in dots}
    assert kinds == {own: "b" if any(s.endswith(own) for s in alarmed) else "a" for own in "01"}
    assert sorted(kinds.values()) == ["a", "b"]
    quiet = outcome(before, run(1, n_slices=2, seed=3), settings=settings)
    assert not quiet.result.alerts
    page = audit_page(quiet).partition('id="slices"')[2].partition("</svg>")[0]
    assert re.findall(r'<circle class="([ab])"', page) == ["a", "a"]


def test_columns_of_one_value_have_a_sentence_and_no_chart() -> None:
    cells = cells_of({"f1": np.linspace(0, 1, 99), "sas": np.linspace(0, 1, 99)})
    clusters = np.arange(60, dtype=np.uint64)
    runs = [
        run_of({"f1": np.full(60, 0.5), "sas": np.full(60, one)}, clusters, cells)
        for one in (0.25, 0.75)
    ]
    text = audit_page(outcome(*runs, n_earlier=2))
    part = text.partition('id="distributions"')[2].partition("</section>")[0]
    assert "All values are 0.5, in both runs." in part and "<svg" not in part
    assert "All values were 0.25 in the reference, and are 0.75 now." in part
    part = text.partition('id="earlier-runs"')[2].partition("</section>")[0]
    assert "The mean is 0.5 in all 3 runs." in part and part.count("<svg") == 1
    # Nor is what has one value beside others that no sum holds, or beside other values.
    mixed = np.append(np.full(59, 0.5), np.inf)
    own = run_of({"f1": mixed, "sas": np.linspace(0, 1, 60)}, clusters, cells)
    part = audit_page(outcome(own, own)).partition('id="distributions"')[2]
    assert part.partition("</section>")[0].count("<svg") == 2


def test_a_history_says_which_run_a_dot_is() -> None:
    own = outcome(run(1), run(1, seed=3), n_earlier=3)
    assert own.profile is not None
    own.profile.name = "2026-W18"
    text = audit_page(own)
    assert re.search(r"<title>mean of a run, 2026-W18 \(2024-05-01\): -?0\.\d+</title>", text)
    assert text.count("<title>mean of a run, &lt;/script&gt;") == 3
    assert "this run" in text and ">2026-W18 (2024-05-01)<" in text


def large_outcome() -> AuditOutcome:
    """Return an audit of many columns and slices in which all moved."""
    before, now = run(13, n_slices=20), run(13, n_slices=20, shift=1.0, seed=5)
    return outcome(before, now, n_earlier=20, settings=AuditSettings(n_draws=99, alpha=0.05))


@pytest.mark.slow
def test_many_columns_and_slices_stay_small() -> None:
    """What has no room is left out, and that is said."""
    own = large_outcome()
    assert len(own.result.alerts) > 400
    text = audit_page(own)
    assert len(text.encode()) < MAX_BYTES
    assert_stands_alone(text)
    for what in ("lines of alerts", "distributions", "tests (audit.parquet has all)"):
        assert re.search(rf"[\d,]+ more {re.escape(what)}", text), what
    # The reader's first question is answered all the same.
    assert f"{len(own.result.alerts):,} alerts" in text


def test_bars_count_each_row_once() -> None:
    """Atoms are counted where they lie, and what is beyond the range is told."""
    values = np.concatenate(
        [np.zeros(50), np.ones(30), np.linspace(0.1, 0.9, 20), [-2.0, 5.0, np.inf, np.nan]]
    )
    cells = cells_of({"f1": values[:100]})
    assert cells["f1"].atoms[:1] == (0.0,)
    now = run_of({"f1": values}, np.arange(len(values), dtype=np.uint64), cells)
    now.columns["f1"].low, now.columns["f1"].high = 0.0, 1.0
    bars = counted_bars([now.columns["f1"]])
    (own,) = bars.counted
    expected, _ = np.histogram(values[:100], np.array(bars.edges))
    assert own.counts == expected.tolist()
    assert (own.n_below, own.n_above, own.n_undefined) == (1, 2, 1)
    assert own.n_defined == len(values) - 1
