"""Quotas and shares of each value of a column, against oracles that sort whole lists of rows."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_corpora import filtered
from qaeval_core import filter_table
from qaeval_core.filter import corpus_rows, quotas, values
from qaeval_core.filter.page import filter_page
from qaeval_core.filter.quotas import largest_remainders, n_of
from qaeval_core.filter.result import result_lines
from qaeval_core.filter.values import RowValues, ValueCodes
from qaeval_core.made import HowMade
from qaeval_core.running.range_executor import LocalRangeExecutor
from qaeval_core.tables import corpus
from qaeval_core.tables import range_reader as ranges

MASK = (1 << 64) - 1


def place(value: str, seed: int) -> int:
    """Return what decides between values of equal remainders: splitmix64 of BLAKE2b and seed."""
    own = int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
    own = (own + seed * 0x9E3779B97F4A7C15) & MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        own = ((own ^ (own >> shift)) * factor) & MASK
    return own ^ (own >> 31)


def remainders(each: Fraction, sizes: dict[Any, int], n: int, order: dict[Any, int]) -> Any:
    """Return the parts of values, one row at a time."""
    parts = {value: int(each * size) for value, size in sizes.items()}
    rest = {value: each * size - parts[value] for value, size in sizes.items()}
    for value in sorted(sizes, key=lambda own: (-rest[own], order[own])):
        if sum(parts.values()) == n:
            break
        parts[value] += 1
    return parts


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    share=st.fractions(Fraction(1, 97), 1, max_denominator=97),
    budget=st.none() | st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=300, deadline=None)
def test_parts_are_those_of_the_largest_remainders(
    sizes: list[int], share: Fraction, budget: int | None, seed: int
) -> None:
    total = sum(sizes)
    n = n_of(share if budget is None else budget, total)
    each = share if budget is None else Fraction(n, max(total, 1))
    order = np.random.default_rng(seed).permutation(len(sizes)).astype(np.uint64)
    found = largest_remainders(each, np.array(sizes), n, order=order)
    expected = remainders(each, dict(enumerate(sizes)), n, dict(enumerate(order.tolist())))
    assert found.tolist() == [expected[i] for i in range(len(sizes))]
    assert found.sum() == n and (found <= sizes).all()


def rows_of(n: int, n_groups: int, *, seed: int = 0) -> pl.DataFrame:
    """Return rows of few rank values, most of them tied, in groups of very different sizes."""
    rng = np.random.default_rng(seed)
    group = (n_groups * rng.random(n) ** 2).astype(int)
    return pl.DataFrame(
        {
            "id": [f"q{i}" for i in range(n)],
            "context": [f"passage {i}" for i in group],
            "topic": [f"t{i}" for i in rng.integers(4, size=n)],
            "score": np.round(rng.random(n), 1),
        }
    )


def tie(identity: str, seed: int) -> bytes:
    return hashlib.sha256(f"{identity}\0{seed}".encode()).digest()


def best(table: pl.DataFrame, column: str, allowed: Any, seed: int) -> pl.DataFrame:
    """Return the best rows of each value, as many as it may have."""
    groups: dict[str, list[tuple[float, bytes, str]]] = defaultdict(list)
    for row in table.iter_rows(named=True):
        groups[row[column]].append((-row["score"], tie(row["id"], seed), row["id"]))
    sizes = {value: len(own) for value, own in groups.items()}
    parts = allowed(sizes)
    kept = [name for value, own in groups.items() for *_, name in sorted(own)[: parts[value]]]
    return table.filter(pl.col("id").is_in(kept))


def oracle(
    table: pl.DataFrame,
    *,
    share_per: str = "context",
    share: str | None = None,
    budget: int | None = None,
    quota: tuple[str, int] | None = None,
    top_k: tuple[str, int] | None = None,
    seed: int = 0,
) -> set[str]:
    if top_k is not None:
        table = best(table, top_k[0], lambda sizes: dict.fromkeys(sizes, top_k[1]), seed)
    if quota is not None:
        table = best(table, quota[0], lambda sizes: dict.fromkeys(sizes, quota[1]), seed)
    size = Fraction(share) if share is not None else budget
    assert size is not None
    n = n_of(size, table.height)
    each = size if isinstance(size, Fraction) else Fraction(n, table.height)

    def parts(sizes: dict[str, int]) -> Any:
        return remainders(each, sizes, n, {value: place(value, seed) for value in sizes})

    kept = best(table, share_per, parts, seed)
    assert kept.height == n
    return set(kept["id"])


OPTIONS: list[dict[str, Any]] = [
    {"share": "0.6"},
    {"share": "1/3", "seed": 5},
    {"share": "0.0001"},
    {"share": "1"},
    {"budget": 333},
    {"share": "0.37", "share_per": "topic"},
    {"share": "0.6", "quota": ("topic", 200)},
    {"budget": 100, "quota": ("context", 2), "seed": 1},
    {"share": "0.6", "top_k": ("topic", 300)},
    {"share": "0.6", "top_k": ("context", 4), "seed": 3},
]


def as_request(options: dict[str, Any]) -> dict[str, Any]:
    own = {"share_per": "context", "rank_by": "score", "near_duplicates": "none", **options}
    if "quota" in own:
        own["quota"] = "{}={}".format(*own["quota"])
    if "top_k" in own:  # Hashes of ids are known of equals in a group alone.
        own["group"], own["top_k"] = own["top_k"]
    return own


@pytest.mark.parametrize("options", OPTIONS)
def test_each_value_keeps_its_best_rows_and_all_together_the_share(
    options: dict[str, Any],
) -> None:
    table = rows_of(1500, 300)
    found = filter_table(table, **as_request(options))
    assert set(found.kept["id"]) == oracle(table, **options)
    counts = found.content["share_per"]
    every = [*counts["values"], counts["others"]]
    assert sum(own["n_kept"] for own in every) == found.content["kept"] == found.kept.height
    reason = "budget" if "budget" in options else "share"
    assert set(found.content["reasons"]) - {"top_k", "quota"} <= {reason}
    assert found.content["cut"] is None


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[5], *OPTIONS[7:]])
@pytest.mark.parametrize("n_files", [1, 7])
def test_layout_and_workers_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], n_files: int
) -> None:
    table = rows_of(1500, 300)
    folder = tmp_path / "rows"
    folder.mkdir()
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=n_files)
    for i in range(n_files):
        shuffled[i::n_files].write_parquet(folder / f"part{i}.parquet", row_group_size=97)
    if n_files > 1:
        monkeypatch.setattr(corpus, "ROWS_PER_RANGE", 150)
        monkeypatch.setattr(ranges, "ROWS_PER_READ", 64)
        monkeypatch.setattr(corpus_rows, "_ROWS_PER_BUCKET", 40)
        monkeypatch.setattr(values, "_MAX_SHORT", 100)
        monkeypatch.setattr(quotas, "STEP", 77)
    executor = LocalRangeExecutor(n_processes=1 if n_files > 1 else 2)
    result, _ = filtered(folder, tmp_path / "kept", executor=executor, **as_request(options))
    kept = pl.read_parquet(tmp_path / "kept" / "kept" / "*.parquet")
    assert set(kept["id"]) == oracle(table, **options)
    told = {own["value"]: own["n_reaching"] for own in result.content["share_per"]["values"]}
    whole = filter_table(table, **as_request(options)).content["share_per"]
    assert told == {own["value"]: own["n_reaching"] for own in whole["values"]}


def test_one_row_a_passage_is_a_share_of_the_passages() -> None:
    """The share of each passage, one row at least, was all of them; of seven rows it was .57."""
    for n_rows, n_kept in ((1, 60), (2, 120), (7, 420)):
        table = pl.DataFrame(
            {
                "id": [f"q{i}" for i in range(100 * n_rows)],
                "context": [f"p{i // n_rows}" for i in range(100 * n_rows)],
                "score": np.arange(100.0 * n_rows),
            }
        )
        found = filter_table(table, rank_by="score", share=".6", share_per="context")
        assert found.kept.height == found.content["asked"] == n_kept
        own = found.kept.group_by("context").len()["len"]
        assert set(own) <= {int(0.6 * n_rows), int(0.6 * n_rows) + 1}


def test_a_share_of_each_value_comes_before_a_certificate(tmp_path: Path) -> None:
    table = rows_of(1500, 40)
    labels = table.select("id", good=pl.lit(1))
    labels.write_csv(tmp_path / "labels.csv")
    options = {"share": "0.5", "share_per": "context", "rank_by": "score"}
    found = filter_table(
        table, near_duplicates="none", precision=0.8, labels=str(tmp_path / "labels.csv"),
        group="id", **options,
    )  # fmt: skip
    assert found.content["certified"] and found.content["certificate"]["n_labels"] == 750
    assert found.content["eligible"] == 750 and found.content["reasons"]["share"] == 750
    assert found.content["asked"] is None and found.content["cut"] is not None
    assert set(found.kept["id"]) <= oracle(table, share="0.5")


# What is known of a value


@given(
    parts=st.lists(st.lists(st.integers(0, 30), max_size=20), min_size=1, max_size=6),
    most=st.integers(1, 40),
)
@settings(deadline=None)
def test_values_have_numbers_whatever_comes_first(parts: list[list[int]], most: int) -> None:
    whole = np.array([value for part in parts for value in part], np.uint64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(values, "_MAX_SHORT", most)
        found, start = RowValues(lambda kind: np.zeros(len(whole), kind)), 0
        for part in parts:
            found.put(start, ValueCodes.of(np.array(part, np.uint64)))
            start += len(part)
    assert len(found) == len(set(whole.tolist()))
    assert found.code.dtype == (np.uint16 if len(found) <= most else np.uint32)
    assert found.hashes()[found.code].tolist() == whole.tolist()
    joined = ValueCodes.joined([ValueCodes.of(np.array(part, np.uint64)) for part in parts])
    assert joined.hashes[joined.code].tolist() == whole.tolist()


def test_more_values_than_sixteen_bits_count() -> None:
    n = 70_000
    table = pl.DataFrame(
        {"id": range(2 * n), "topic": [*range(n), *range(n)], "score": np.arange(2.0 * n)}
    )
    found = filter_table(table, rank_by="score", near_duplicates="none", quota="topic=1")
    assert found.kept["id"].to_list() == list(range(n, 2 * n))
    assert found.content["quota"]["n_values"] == n


def test_what_is_told_of_many_values_is_bounded() -> None:
    """Each had its own entry and row: 20,000 passages made a page of 18 MB."""
    n = 20_000
    sizes = np.r_[np.full(60, 5), np.ones(n - 60, int)]
    passage = np.repeat(np.arange(n), sizes)
    table = pl.DataFrame(
        {
            "id": range(len(passage)),
            "context": [f"passage {i} " + "of many words " * 40 for i in passage],
            "score": np.arange(float(len(passage))),
        }
    )
    found = filter_table(table, rank_by="score", near_duplicates="none", quota="context=3")
    own = found.content["quota"]
    assert (own["n_values"], own["n_short"], own["shortfall"]) == (n, n - 60, 2 * (n - 60))
    assert len(own["values"]) == 50 and {one["n_reaching"] for one in own["values"]} == {5}
    assert all(len(one["value"]) == 203 for one in own["values"])
    assert own["others"] == {
        "n_values": n - 50, "n_reaching": len(passage) - 250, "n_allowed": 3 * (n - 50),
        "n_kept": 30 + n - 60, "shortfall": 2 * (n - 60),
    }  # fmt: skip
    assert (
        len(json.dumps(found.content)) < 100_000
        and len(filter_page(found.content, HowMade.of(None, "kept"))) < 100_000
    )
    lines = list(result_lines(found.content, "kept"))
    assert f"  {n - 60:,} more values: {2 * (n - 60):,} below their quota" in lines
    note = f"note: {n - 60:,} of {n:,} values of context have fewer rows than their quota"
    assert any(line.startswith(note) for line in lines)


def test_ten_values_below_their_quota_are_named() -> None:
    table = pl.DataFrame({"id": range(30), "topic": range(30), "score": np.arange(30.0)})
    found = filter_table(table, rank_by="score", near_duplicates="none", quota="topic=2")
    lines = list(result_lines(found.content, "kept"))
    assert sum(line.endswith(": 1 rows, 1 below its quota") for line in lines) == 10
    assert "  20 more values: 20 below their quota" in lines


@pytest.mark.parametrize("undefined", ["drop", "keep"])
def test_passages_of_a_list_are_one_value(undefined: str) -> None:
    contexts = [["a", "b"], ["a"], ["a", "b"], None, None, ["a"]]
    table = pa.table(
        {
            "id": [f"q{i}" for i in range(6)],
            "context": pa.array(contexts, pa.list_(pa.string())),
            "score": np.arange(6.0),
        }
    )
    found = filter_table(
        table, rank_by="score", near_duplicates="none", share="0.5", share_per="context",
        undefined=undefined,
    )  # fmt: skip
    expected = ["q2", "q5"] if undefined == "drop" else ["q2", "q4", "q5"]
    assert found.kept["id"].to_pylist() == expected
    told = {own["value"]: own["n_kept"] for own in found.content["share_per"]["values"]}
    assert told == {"a b": 1, "a": 1} | ({None: 1} if undefined == "keep" else {})
