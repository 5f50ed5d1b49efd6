"""Tables in memory: what is watched, paired and refused."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from audit_runs import hashes_of, paired_columns
from qaeval_core import audit_tables
from qaeval_core.audit.compare import Alert
from qaeval_core.audit.pair_counts import MatchedCounts, MatchedPairs
from qaeval_core.audit.paired import MIN_SHARE, with_pairs
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.errors import ConfigError, SchemaError
from qaeval_core.schema import COLUMNS_METADATA
from qaeval_core.stats.paired_rows import PARITY, match_rows

N = 600


def rows(seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    passages = np.repeat(np.arange(100), 6)
    score = rng.normal(size=100)[passages] + rng.normal(size=N)
    return pl.DataFrame(
        {
            "id": [f"r{seed}.{i}" for i in range(N)],
            "context": [f"passage {seed}.{i}" for i in passages],
            "system": ["a", "b"] * (N // 2),
            "sas": score,
            "sas_truncated": np.zeros(N, np.int32),
        }
    )


def described(frame: pl.DataFrame, signature: str = "s") -> pa.Table:
    said = {"sas": {"metric": "sas", "low": -5.0, "high": 5.0, "signature": signature}}
    said["sas_truncated"] = {"metric": "sas", "signature": signature}
    return frame.to_arrow().replace_schema_metadata({COLUMNS_METADATA: json.dumps(said).encode()})


def test_kept_reads_a_column_with_a_dot_in_its_name_beside_another() -> None:
    before = pl.DataFrame({"sas": [0.0, 1.0] * 100, "bleu.1": [0.0, 1.0] * 100})
    now = before.with_columns(pl.lit(0.0).alias("bleu.1"))
    found = audit_tables(before, now, watch="sas", kept='"bleu.1" > 0.5 AND sas > 0.5', n_draws=199)
    assert [alert.kind for alert in found.alerts] == ["kept"]


def test_the_same_corpus_drawn_again_is_no_alert_and_a_spoiled_one_is() -> None:
    before, now = rows(0), rows(1)
    found = audit_tables(before, now, watch="sas", by="system", n_draws=199)
    assert found.alerts == [] and found.paired == []
    assert isinstance(found.tests, pl.DataFrame)
    assert set(found.tests["slice"]) == {"", "system=a", "system=b"}
    assert found.profiles[0].clusters.counts()[0] == 100
    worse = now.with_columns(
        sas=pl.when(pl.col("system") == "a").then(pl.col("sas") - 2).otherwise(pl.col("sas"))
    )
    found = audit_tables(before, worse, watch="sas", by="system", kept="sas > 0", n_draws=199)
    moved = {(alert.kind, alert.slice) for alert in found.alerts}
    assert {("mean", "system=a"), ("kept", "system=a")} <= moved
    assert not any(label == "system=b" for _, label in moved)


def test_described_columns_are_watched_in_the_range_they_say() -> None:
    found = audit_tables(described(rows(0)), described(rows(1)), n_draws=99)
    assert isinstance(found.tests, pa.Table)
    assert set(found.tests["column"].to_pylist()) == {"", "sas"}
    cells = found.profiles[1].columns["sas"].cells
    assert (cells.low, cells.high) == (-5.0, 5.0)
    assert {alert.kind for alert in found.alerts} == set()
    found = audit_tables(described(rows(0)), described(rows(1), "t"), n_draws=99)
    assert {alert.kind for alert in found.alerts} == {"signature_changed"}


def test_what_a_run_says_of_its_rows_is_counted() -> None:
    """Quarantined and unsampled rows are in no column; cut ones are a rate."""
    table = rows(0).with_columns(
        sas=pl.when(pl.int_range(N) < 100).then(None).otherwise(pl.col("sas")),
        sas_truncated=(pl.int_range(N) % 2).cast(pl.Int32),
        sas_reason=pl.when(pl.int_range(N) < 30).then(pl.lit("empty")),
        quarantine_reason=pl.when(pl.int_range(N).is_between(60, 99))
        .then(pl.lit("null_text"))
        .when(pl.int_range(N).is_between(30, 59))
        .then(pl.lit("not_sampled")),
    )
    found = audit_tables(table, table, watch=["sas"], n_draws=99)
    profile = found.profiles[0]
    counts = profile.columns["sas"].counts[0].sum(axis=0)
    assert (counts.sum(), counts[-1]) == (N - 70, 30)
    assert profile.columns["sas"].reasons["empty"][0].sum() == 30
    assert profile.rates["quarantined"][:, 0].sum(axis=1).tolist() == [40, N - 30]
    assert profile.rates["not_sampled"][:, 0].sum(axis=1).tolist() == [30, N]
    assert profile.rates["truncated.sas"][:, 0].sum(axis=1).tolist() == [265, N - 70]
    assert found.alerts == [] and set(found.tests["effect"].drop_nulls()) == {0.0}


def test_shared_rows_are_compared_in_pairs() -> None:
    before = rows(0)
    rng = np.random.default_rng(9)
    now = before.with_columns(sas=pl.col("sas") + rng.choice([0.0, 0.0, 0.6, -0.02], N))
    now = now.with_columns(sas=pl.when(pl.col("id") == "r0.7").then(None).otherwise(pl.col("sas")))
    now = pl.concat([now[:400], rows(1)[:200]]).sample(fraction=1.0, shuffle=True, seed=0)
    found = audit_tables(before, now, watch="sas", n_draws=199)
    (own,) = found.paired
    assert (own.n_pairs, own.n_both, own.n_vanished, own.n_appeared) == (400, 399, 1, 0)
    joined = before.join(now, on="id").with_columns(change=pl.col("sas_right") - pl.col("sas"))
    change = joined["change"].drop_nulls()
    assert own.difference == pytest.approx(change.mean())
    assert own.low < own.difference < own.high
    assert own.share_up == pytest.approx((change > PARITY).mean())
    assert own.share_down == pytest.approx((change < -PARITY).mean())
    assert len(own.largest) == 20
    assert all(each.current - each.reference == pytest.approx(0.6) for each in own.largest)
    sampling = {alert.kind for alert in found.alerts}
    assert sampling == {"paired"}, "too small for runs of other rows"
    assert audit_tables(before, now[:299], watch="sas", n_draws=99).paired == []


def test_paired_intervals_hold_the_truth() -> None:
    """Clusters that change together: 95 % of intervals hold no change, as far as 200 tell."""
    held = []
    ids = pa.chunked_array([[str(i) for i in range(300)]])
    codes = np.repeat(np.arange(60), 5)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        change = rng.normal(size=60)[codes] + rng.normal(size=300)
        before = rng.normal(size=300)
        (own,) = paired_columns(
            {"x": (before, before + change)},
            ids,
            hashes_of(codes, seed),
            AuditSettings(n_draws=199),
        )
        held.append(own.low <= 0 <= own.high)
    assert 0.89 <= np.mean(held) <= 0.98


def test_values_that_nothing_explains_are_not_reproducible() -> None:
    ids = pa.chunked_array([[str(i) for i in range(6)]])
    before = np.array([1.0, 1.0, np.nan, 1.0, np.inf, 1.0])
    now = np.array([1.0, 1.0 + 5e-6, 1.0, 1.1, np.inf, 1.1])
    same = np.array([True] * 5 + [False])
    settings = AuditSettings(n_draws=99)
    (own,) = paired_columns(
        {"x": (before, now)}, ids, hashes_of(np.arange(6)), settings, is_same={"x": same}
    )
    assert (own.n_not_reproduced, own.n_same) == (2, 5)
    assert [each.id for each in own.not_reproduced] == ["2", "3"]
    moved = Alert("mean", "x", "", "the mean of x rose")
    alert, other = with_pairs([moved], [own], settings)
    assert other is moved
    assert alert.kind == "not_reproducible"
    assert alert.text.startswith("2 of 5 values of x differ")
    assert "2 was undefined and is 1; 3 was 1 and is 1.1" in alert.text
    (own,) = paired_columns({"x": (before, now)}, ids, hashes_of(np.arange(6)), settings)
    assert with_pairs([], [own], settings) == []


@pytest.mark.parametrize(
    ("before", "now", "n_other"),
    [
        (1000.0, 1000.0 + 6e-5, 0),  # A step of float32.
        (1000.0, 1000.1, 1),
        (0.0, 2e-5, 1),
        (np.inf, -np.inf, 1),
        (1.0, np.inf, 1),
        (1.7e308, -1.7e308, 1),
        (np.nan, np.nan, 0),
    ],
)
def test_how_far_apart_the_same_values_may_be(before: float, now: float, n_other: int) -> None:
    ids = pa.chunked_array([["a", "b"]])
    values = (np.array([before, 0.5]), np.array([now, 0.5]))
    (own,) = paired_columns(
        {"x": values},
        ids,
        hashes_of(np.arange(2)),
        AuditSettings(n_draws=99),
        is_same={"x": np.ones(2, dtype=bool)},
    )
    assert own.n_not_reproduced == len(own.not_reproduced) == n_other


def test_last_digits_of_one_value_have_no_effect() -> None:
    """The standard deviation of 0.1, a thousand times, is not 0."""
    before = np.full(1000, 0.1)
    ids = pa.chunked_array([[str(i) for i in range(1000)]])
    for shift, effect in ((1e-9, 0.0), (0.01, 1.0), (-0.01, -1.0)):
        (own,) = paired_columns(
            {"x": (before, before + shift)}, ids, hashes_of(np.arange(1000)), AuditSettings()
        )
        assert own.effect == effect
        assert bool(with_pairs([], [own], AuditSettings())) == bool(effect)


@pytest.mark.parametrize("n_parts", [1, 2, 7])
def test_effects_of_parts_are_those_of_all_rows(n_parts: int) -> None:
    """Also of values whose squares are beyond all numbers, which have no spread by chance."""
    some = np.random.default_rng(0).normal(3.0, 2.0, 700)
    cases = [
        (some, 0.5, 0.5 / some.std()),
        (np.full(700, 0.1), 0.5, 1.0),
        (np.full(700, 1e200), 0.0, 0.0),
    ]
    for before, change, effect in cases:
        counts, now = MatchedCounts(AuditSettings()), before + change
        for rows in np.array_split(np.arange(700), n_parts):
            counts.add(
                MatchedPairs(
                    ids=pa.chunked_array([[str(row) for row in rows]]),
                    rows=rows,
                    clusters=hashes_of(np.arange(700))[rows],
                    values={"x": (before[rows], now[rows])},
                )
            )
        (own,) = counts.columns()
        assert own.effect == pytest.approx(effect, rel=1e-12)


def test_values_of_few_clusters_have_no_verdict_in_pairs() -> None:
    """400 clusters of rows without a value do not make eight others enough."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 400, 2000)
    before = np.where(codes < 8, rng.random(2000), np.nan)
    ids = pa.chunked_array([[str(i) for i in range(2000)]])
    values = {"x": (before, before + 0.1)}
    (own,) = paired_columns(values, ids, hashes_of(codes), AuditSettings())
    assert own.is_few and np.isnan(own.p_adjusted)
    assert with_pairs([], [own], AuditSettings()) == []


def test_rows_that_were_not_scored_are_in_no_pair() -> None:
    """Half are quarantined now: of the others, all are in both."""
    before = rows(0)
    why = pl.when(pl.int_range(N) < N // 2).then(pl.lit("null_text"))
    now = before.with_columns(quarantine_reason=why, sas=pl.when(why.is_null()).then("sas"))
    found = audit_tables(before, now, watch="sas", n_draws=99)
    assert (found.paired[0].n_pairs, found.paired[0].n_vanished) == (N // 2, 0)
    assert "only one of the two runs has quarantined, so it is not compared" in found.notes


def test_more_values_than_slices_are_said() -> None:
    table = rows(0).with_columns(system=pl.format("s{}", pl.int_range(N) % 60))
    found = audit_tables(table, table, watch="sas", by="system", n_draws=99)
    assert found.notes == [
        "system has more than 50 values; the 100 rows of the others are in the slice system: other"
    ]


def test_an_id_that_stands_there_twice_pairs_nothing() -> None:
    ids = [pa.chunked_array([own]) for own in (["a", "a", "b", None], ["b", "a", "c", None])]
    found = match_rows(ids)
    assert [rows.tolist() for rows in found.rows] == [[2], [0]]
    assert found.n_repeated == (2, 0)
    assert found.share == 0.25
    empty = pa.chunked_array([pa.array([], pa.string())])
    assert match_rows([empty, empty]).share < MIN_SHARE


@pytest.mark.parametrize("n_rows", [0, 1])
def test_tables_of_hardly_a_row_have_a_result(n_rows: int) -> None:
    found = audit_tables(rows(0)[:n_rows], rows(0)[:n_rows], watch="sas", by="system")
    assert found.alerts == [] and found.is_too_few


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"watch": "sass"}, SchemaError, "did you mean 'sas'"),
        ({"watch": "system"}, SchemaError, "'system'.*QA0305"),
        ({}, SchemaError, "Numeric.*sas_truncated.*QA0314"),
        ({"watch": "sas", "by": "sistem"}, SchemaError, "'system'.*QA0305"),
        ({"watch": "sas", "cluster": "contexts"}, SchemaError, "'context'.*QA0305"),
        ({"watch": "sas", "kept": "sass > 0"}, ConfigError, "did you mean 'sas'"),
        ({"watch": "sas", "alfa": 0.1}, ConfigError, "'alpha'.*QA0105"),
    ],
)
def test_wrong_names_are_told_with_the_nearest(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        audit_tables(rows(0), rows(1), **options)


def test_pairs_of_many_columns_can_be_told_apart() -> None:
    """p times 40 columns would never be below alpha; those that chance moved stay quiet."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(rng.integers(0, 2**64 - 1, 200, dtype=np.uint64), 5)
    before = rng.normal(size=(40, 1000))
    now = before + rng.normal(scale=0.5, size=before.shape)
    now[:3] += 0.3
    values = {f"score{i}": (before[i], now[i]) for i in range(40)}
    ids = pa.chunked_array([pa.array(map(str, range(1000)))])
    found = paired_columns(values, ids, clusters, AuditSettings(tolerances={"mean": 0.0}))
    assert all(own.p <= own.p_adjusted for own in found)
    alerts = with_pairs([], found, AuditSettings(tolerances={"mean": 0.0}))
    assert [alert.column for alert in alerts] == ["score0", "score1", "score2"]
