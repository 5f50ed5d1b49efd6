"""What is kept, against an oracle that sorts whole tables row by row."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filter_corpora import files_of, filtered
from qaeval_core import filter_table
from qaeval_core.filter import corpus_rows, order, row_arrays
from qaeval_core.filter.page import filter_page
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.run import filter_corpus
from qaeval_core.made import HowMade
from qaeval_core.running.range_executor import LocalRangeExecutor
from qaeval_core.schema import COLUMNS_METADATA
from qaeval_core.tables import corpus
from qaeval_core.tables import range_reader as ranges
from qaeval_core.tables.open_corpus import open_corpus


def tie(identity: object, seed: int) -> bytes:
    return hashlib.sha256(f"{identity}\0{seed}".encode()).digest()


Rows = list[tuple[float, dict[str, object]]]
Found = dict[object, tuple[str | None, object]]


def defined(rows: list[dict[str, object]], undefined: str, found: Found) -> Rows:
    left: Rows = []
    for row in rows:
        score, context = row["score"], row["context"]
        known = score is not None and np.isfinite(score)
        if undefined == "drop" and not known:
            found[row["id"]] = ("undefined_score", None)
        elif undefined == "drop" and context is None:
            found[row["id"]] = ("undefined_context", None)
        else:
            # A row without a group stands alone.
            own = row if context is not None else {**row, "context": ("alone", row["id"])}
            left.append((score if known else -np.inf, own))
    return left


def distinct(rows: Rows, found: Found) -> Rows:
    first: dict[tuple[object, ...], object] = {}
    left = []
    for rank, row in rows:
        text = str(row["question"]).lower()
        words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
        twin = first.setdefault((row["context"], *words), row["id"])
        if twin == row["id"]:
            left.append((rank, row))
        else:
            found[row["id"]] = ("duplicate", twin)
    return left


def at_most(rows: Rows, what: str, column: str, n: int, found: Found) -> Rows:
    seen: Counter[object] = Counter()
    left = []
    for rank, row in rows:
        seen[row[column]] += 1
        if seen[row[column]] > n:
            found[row["id"]] = (what, None)
        else:
            left.append((rank, row))
    return left


def oracle(
    rows: list[dict[str, object]],
    *,
    seed: int = 0,
    undefined: str = "drop",
    duplicates: bool = True,
    top_k: int | None = None,
    share: str | None = None,
    budget: int | None = None,
    quota: int | None = None,
    grouped: bool = True,
) -> Found:
    """Return the reason and twin of each id, stage by stage, over sorted rows."""
    found: Found = {}
    rows = rows if grouped else [row | {"context": "any"} for row in rows]
    left = defined(rows, undefined, found)
    left.sort(key=lambda pair: (-pair[0], tie(pair[1]["id"], seed)))
    left = distinct(left, found) if duplicates else left
    left = at_most(left, "top_k", "context", top_k, found) if top_k else left
    left = at_most(left, "quota", "topic", quota, found) if quota else left
    n = min(budget or len(left), len(left))
    if share is not None:
        n = min(max(int(Fraction(share) * len(left)), 1), len(left))
    for i, (_, row) in enumerate(left):
        found[row["id"]] = (None if i < n else "share" if share else "budget", None)
    return found


def random_rows(n: int, seed: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=n), 1).astype(object)
    for i in np.flatnonzero(rng.random(n) < 0.1):
        scores[i] = [None, np.nan, np.inf, -np.inf][rng.integers(4)]
    questions = ["Who won?", "who  won", "When?", "WHEN", "Why not_now?", "Где?", "где", "İs it?"]
    return [
        {
            "id": f"q{i}",
            "score": scores[i],
            "context": None if rng.random() < 0.02 else f"passage {rng.integers(max(n // 20, 1))}",
            "question": questions[rng.integers(len(questions))],
            "topic": f"t{rng.integers(5)}",
        }
        for i in range(n)
    ]


def frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    schema = {"id": pl.String, "score": pl.Float64, "context": pl.String, "question": pl.String,
              "topic": pl.String}  # fmt: skip
    return pl.DataFrame(rows, schema=schema, strict=False)


OPTIONS: list[dict[str, object]] = [
    {"share": "0.3"},
    {"share": "0.29", "top_k": 3},
    {"budget": 57, "undefined": "keep", "seed": 3},
    {"top_k": 2, "quota": 40},
    {"duplicates": False, "top_k": 1, "share": "1/3"},
    {"duplicates": False, "budget": 10**6},
    {"duplicates": False, "grouped": False, "share": "0.29", "seed": 1},
    {"duplicates": False, "grouped": False, "quota": 40, "budget": 99},
]


def as_request(options: dict[str, object]) -> dict[str, object]:
    own = {name: own for name, own in options.items() if name not in ("duplicates", "grouped")}
    if "quota" in own:
        own["quota"] = f"topic={own['quota']}"
    kind = "exact" if options.get("duplicates", True) else "none"
    group = "context" if options.get("grouped", True) else None
    return {"rank_by": "score", "rules": "none", "near_duplicates": kind, "group": group, **own}


def found_of(decisions: pl.DataFrame) -> dict[object, tuple[str | None, object]]:
    assert (decisions["kept"] == decisions["reason"].is_null()).all()
    pairs = zip(decisions["reason"], decisions["duplicate_of"], strict=True)
    return dict(zip(decisions["id"], pairs, strict=True))


@pytest.mark.parametrize("options", OPTIONS)
def test_random_rows_with_ties_and_nulls(options: dict[str, object]) -> None:
    rows = random_rows(3000, seed=1)
    found = filter_table(frame(rows), **as_request(options))
    expected = oracle(rows, **options)  # type: ignore[arg-type]
    assert found_of(found.decisions) == expected
    kept = [row["id"] for row in rows if expected[row["id"]][0] is None]
    assert found.kept["id"].to_list() == kept
    counts = Counter(reason for reason, _ in expected.values())
    assert found.content["kept"] == counts.pop(None) == len(kept)
    assert found.content["reasons"] == dict(counts)


@given(data=st.data(), n=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_any_few_rows(data: st.DataObject, n: int) -> None:
    rows = random_rows(n, seed=data.draw(st.integers(0, 10**6)))
    options = data.draw(st.sampled_from(OPTIONS))
    found = filter_table(frame(rows), **as_request(options))
    assert found_of(found.decisions) == oracle(rows, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_hundred_thousand_rows_by_share_and_group() -> None:
    rows = random_rows(100_000, seed=2)
    for options in ({"share": "0.17"}, {"top_k": 4, "budget": 9_999}):
        found = filter_table(frame(rows), **as_request(options))
        assert found_of(found.decisions) == oracle(rows, **options)  # type: ignore[arg-type]


def test_shuffled_rows_keep_what_a_script_in_polars_keeps() -> None:
    rows = random_rows(100_000, seed=3)
    table = frame(rows).sample(fraction=1.0, shuffle=True, seed=1)
    ties = pl.col("id").map_elements(lambda name: tie(name, 0), return_dtype=pl.Binary)
    known = pl.col("score").is_finite() & pl.col("context").is_not_null()
    words = pl.col("question").str.to_lowercase().str.extract_all(r"\w+").list.join(" ")
    best = (
        table.filter(known)
        .with_columns(tie=ties, words=words)
        .sort("score", "tie", descending=[True, False])
        .unique(["context", "words"], keep="first", maintain_order=True)
        .filter(pl.int_range(pl.len()).over("context") < 3)
    )
    best = best.head(int(Fraction("0.29") * best.height))
    found = filter_table(table, **as_request({"share": "0.29", "top_k": 3}))
    assert sorted(found.kept["id"]) == sorted(best["id"])
    assert found.kept.equals(table.filter(pl.col("id").is_in(best["id"].implode())))


def take_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk over all rows in steps as only corpora of many millions need them."""
    monkeypatch.setattr(order, "_CHUNK", 77)
    for name in ("corpus_rows", "decide", "examples", "groups", "quotas", "shares"):
        monkeypatch.setattr(f"qaeval_core.filter.{name}.STEP", 7)


def test_of_rows_with_one_id_and_score_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from places that are counted from the start of a step."""
    take_small_steps(monkeypatch)
    table = pl.DataFrame({"id": ["one"] * 40, "score": [0.5] * 40, "n": range(40)})
    found = filter_table(table, rank_by="score", rules="none", near_duplicates="none", share="0.5")
    assert found.kept["n"].to_list() == list(range(20))


@pytest.mark.parametrize("options", OPTIONS)
def test_layout_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    """The same ids in 1 or 7 files and other ranges; the same bytes in small steps, on disk."""
    rows = random_rows(2000, seed=4)
    expected = oracle(rows, **options)  # type: ignore[arg-type]
    table = frame(rows)
    for number, n_files in enumerate((1, 7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        shuffled = table.sample(fraction=1.0, shuffle=True, seed=n_files)
        for i in range(n_files):
            path = folder / f"part{i}.parquet"
            shuffled[i::n_files].write_parquet(path, row_group_size=97)
        if n_files > 1:
            monkeypatch.setattr(corpus, "ROWS_PER_RANGE", 150)
            monkeypatch.setattr(ranges, "ROWS_PER_READ", 64)
        request = FilterRequest(**as_request(options))  # type: ignore[arg-type]
        kept = tmp_path / f"kept{number}"
        filter_corpus(request, open_corpus(folder, columns={}), kept)
        decisions = pl.concat(pl.read_parquet(path) for path in (kept / "decisions").iterdir())
        assert found_of(decisions) == expected
        for path in (kept / "decisions").iterdir():
            source = pl.read_parquet(folder / path.name)
            own = pl.read_parquet(path)
            assert own["id"].to_list() == source["id"].to_list()
            assert pl.read_parquet(kept / "kept" / path.name).equals(source.filter(own["kept"]))
    monkeypatch.setattr(corpus_rows, "_ROWS_PER_BUCKET", 100)
    monkeypatch.setattr(row_arrays, "_MAX_HELD_BYTES", 0)  # Arrays are mapped files.
    take_small_steps(monkeypatch)
    filter_corpus(request, open_corpus(folder, columns={}), tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(kept)


@pytest.mark.parametrize(
    ("n_values", "n_files", "looks"), [(2000, 1, False), (2000, 2, False), (9, 1, True)]
)
@pytest.mark.parametrize("group", [None, "context"])
def test_ids_are_hashed_where_rank_values_tie(
    tmp_path: Path, group: str | None, n_values: int, n_files: int, looks: bool
) -> None:
    """A pass over ids is the price of a cut among equals alone."""
    rng = np.random.default_rng(0)
    scores = rng.permutation(2000) % n_values / 7
    rows = [row | {"score": scores[i]} for i, row in enumerate(random_rows(2000, seed=8))]
    for i in range(n_files):
        frame(rows[i::n_files]).write_parquet(tmp_path / f"part{i}.parquet")
    told = []
    executor = LocalRangeExecutor(lambda label, done, total: told.append(label))
    request = FilterRequest(
        rank_by="score", rules="none", near_duplicates="none", group=group, share="0.5"
    )
    corpus = open_corpus(tmp_path, columns={})
    filter_corpus(request, corpus, tmp_path.with_name("kept"), executor=executor)
    assert ("ties" in told) == looks
    tables = [pl.read_parquet(path) for path in tmp_path.with_name("kept").glob("decisions/*")]
    expected = oracle(rows, duplicates=False, grouped=group is not None, share="0.5")
    assert found_of(pl.concat(tables)) == expected


def test_groups_are_counted() -> None:
    rows = random_rows(500, seed=5)
    decisions = filter_table(frame(rows), **as_request({"top_k": 2, "share": "0.5"})).decisions
    table = decisions.join(frame(rows).select("id", "context"), on="id").drop_nulls("context")
    own = table.group_by("context").agg(
        size=pl.len(), kept=pl.col("kept").sum(), told=pl.col("group_size").unique(),
        told_kept=pl.col("group_kept").unique(),
    )  # fmt: skip
    assert own["told"].list.len().max() == 1 and own["told_kept"].list.len().max() == 1
    assert own["told"].list.first().to_list() == own["size"].to_list()
    assert own["told_kept"].list.first().to_list() == own["kept"].to_list()


@pytest.mark.parametrize(
    "rank",
    [
        np.full(60, 1e17),
        2**60 + 1000 * np.arange(60),
        1.7e18 + 256 * (np.arange(60) // 30),
    ],
    ids=["one value", "beyond 2^53", "a few floats apart"],
)
def test_ranks_of_any_size_are_counted(
    tmp_path: Path, rank: np.ndarray[Any, np.dtype[Any]]
) -> None:
    """Times, hashes and counts are ranks, too: one of them ended a filter after its first pass."""
    table = pl.DataFrame({"id": [f"q{i}" for i in range(60)], "s": rank})
    table.write_parquet(tmp_path / "scores.parquet")
    options = {"near_duplicates": "none", "rank_by": "s", "share": "0.5"}
    result, _ = filtered(tmp_path / "scores.parquet", tmp_path / "kept", **options)
    found = result.content["histogram"]
    assert (sum(found["kept"]), sum(found["dropped"])) == (30, 30)
    assert len(set(found["edges"])) == 21 and np.isfinite(found["edges"]).all()
    json.dumps(result.content, allow_nan=False)


def test_rank_values_and_yields_are_exact() -> None:
    rows = random_rows(1000, seed=6)
    found = filter_table(frame(rows), **as_request({"share": "0.5"}))
    by_id = {row["id"]: row["score"] for row in rows}
    for identity, value in found.decisions.select("id", "rank_value").iter_rows():
        score = by_id[identity]
        assert value == (score if score is not None and np.isfinite(score) else None)
    reaching = found.decisions.filter(pl.col("reason").is_null() | (pl.col("reason") == "share"))
    scores = sorted(reaching["rank_value"].to_list(), reverse=True)
    # A share ends where values differ.
    cuts = sorted({scores[max(len(scores) * j // 20, 1) - 1] for j in range(1, 21)}, reverse=True)
    assert len(cuts) > 10 and len(found.content["yields"]) == len(cuts)
    for own, cut in zip(found.content["yields"], cuts, strict=True):
        n = sum(score >= cut for score in scores)
        assert (own["share"], own["rows"], own["cut"]) == (n / len(scores), n, cut)
        assert own["mean_score"] == pytest.approx(np.mean(scores[:n]), abs=1e-12)
    contexts = {row["id"]: row["context"] for row in rows}
    kept = [contexts[identity] for identity in found.kept["id"]]
    assert found.content["groups_kept"] == len(set(kept))
    own = found.content["yields"][3]
    best = {contexts[name] for name, value in found.decisions.select("id", "rank_value").iter_rows()
            if name in set(reaching["id"]) and value >= own["cut"]}  # fmt: skip
    assert own["groups"] == len(best)
    assert found.content["cut"] == min(found.kept["score"])


@pytest.mark.parametrize(("condition", "reasons"), [
    ('"bleu.1" > 0.5', [None, "keep", "undefined_bleu.1"]),
    ('peer.f1 > 0.5', ["keep", "undefined_peer", None]),
    ('peer.f1 > 0.5 OR "bleu.1" > 0.5', [None, "undefined_peer", None]),
])  # fmt: skip
def test_a_column_with_a_dot_in_its_name_is_no_struct(
    condition: str, reasons: list[str | None]
) -> None:
    """It ended with a KeyError of what stands before the dot."""
    peers = [{"f1": 0.1}, {"f1": None}, {"f1": 0.9}]
    table = pl.DataFrame({"id": list("abc"), "s": 1.0, "bleu.1": [0.9, 0.1, None], "peer": peers})
    found = filter_table(table, rank_by="s", keep=condition, rules="none")
    assert found.decisions["reason"].to_list() == reasons


def test_values_of_which_lower_ones_are_better_are_shown_as_they_are() -> None:
    """Cut, bins and means were on the scale of the column, values of rows were negatives."""
    said = {"loss": {"metric": "loss", "higher_is_better": False, "signature": "loss|v:1"}}
    table = pa.table({"id": list("abcde"), "loss": [3.0, 0.0, 2.0, None, 4.0]})
    table = table.replace_schema_metadata({COLUMNS_METADATA: json.dumps(said).encode()})
    found = filter_table(table, rank_by="loss", share="0.5", rules="none")
    assert found.kept["id"].to_pylist() == ["b", "c"] and found.content["cut"] == 2.0
    assert found.decisions["rank_value"].to_pylist() == table["loss"].to_pylist()
    assert [str(value) for value in found.decisions["rank_value"].to_pylist()][1] == "0.0"
    examples = {own["id"]: own["rank_value"] for own in found.content["examples"]}
    assert examples == {"a": 3.0, "b": 0.0, "c": 2.0, "e": 4.0}
    page = filter_page(found.content, HowMade.of(None, "kept"))
    margin = page.partition('<section id="at-the-margin">')[2]
    rows = re.findall(r"<b>(\w)</b> · loss (\S+)", margin)
    assert rows == [("c", "2"), ("b", "0"), ("a", "3"), ("e", "4")]


@pytest.mark.parametrize("options", [{"budget": 101}, {"share": "0.9"}])
def test_a_quota_divides_evenly(options: dict[str, object]) -> None:
    rows = random_rows(400, seed=7)
    rows = [row | {"topic": "rare"} if i < 3 else row for i, row in enumerate(rows)]
    request = as_request({"duplicates": False}) | {"quota": "topic=equal"} | options
    found = filter_table(frame(rows), **request)
    reaching = defaultdict(list)
    for row in rows:
        if row["score"] is not None and np.isfinite(row["score"]) and row["context"] is not None:
            reaching[row["topic"]].append((-row["score"], tie(row["id"], 0), row["id"]))
    total = sum(map(len, reaching.values()))
    size = int(Fraction(str(options["share"])) * total) if "share" in options else options["budget"]
    kept = Counter(found.kept["topic"])
    counts = {own["value"]: own for own in found.content["quota"]["values"]}
    for topic, own in reaching.items():
        best = {identity for _, _, identity in sorted(own)[: kept[topic]]}
        assert best == set(found.kept.filter(pl.col("topic") == topic)["id"])
        assert counts[topic]["n_allowed"] == size // len(reaching)
        assert kept[topic] == min(size // len(reaching), len(own))
    assert counts["rare"]["shortfall"] == size // len(reaching) - len(reaching["rare"]) > 0


def test_rows_without_a_value_are_a_value_of_a_quota() -> None:
    """Not that of rows whose value is an empty text, where both are kept."""
    topics = ["", None, "a"] * 4
    table = pl.DataFrame(
        {"id": [f"q{i}" for i in range(12)], "score": range(12), "topic": topics}
    ).cast({"score": pl.Float64})
    found = filter_table(
        table, rules="none", rank_by="score", quota="topic=2", undefined="keep", group="id"
    )
    told = found.content["quota"]["values"]
    counts = {own["value"]: (own["n_reaching"], own["n_kept"]) for own in told}
    assert counts == {"": (4, 2), "a": (4, 2), None: (4, 2)}
    assert Counter(found.kept["topic"]) == Counter(["", None, "a"] * 2)


@pytest.mark.shared_data
def test_qgeval_keeps_1081_of_exact_duplicates(shared_data: Path) -> None:
    table = pl.read_parquet(shared_data / "qgeval" / "qgeval_squad.parquet").select(
        "question", "answer", context="passage", number=-pl.int_range(pl.len())
    )
    request = {"rank_by": "number", "rules": "none"}
    found = filter_table(table, **request, near_duplicates="exact")
    assert (found.content["kept"], found.content["reasons"]) == (1081, {"duplicate": 419})
    same = {
        (context, re.sub(r"(\S)[\s?.]+$", r"\1", " ".join(question.lower().split())))
        for question, context in table.select("question", "context").iter_rows()
    }
    assert len(same) == 1081
    near = filter_table(table, **request, near_duplicates="rouge_l=0.7")
    assert near.content["kept"] == 646
    # The best of each stays, and it is its twins' twin.
    twins = near.decisions.filter(pl.col("reason") == "duplicate")["duplicate_of"]
    assert set(twins) <= set(near.decisions.filter("kept")["id"])


def test_rows_without_a_question_are_nobodys_duplicates() -> None:
    table = pl.DataFrame(
        {
            "id": ["a", "b", "c", "d"],
            "question": [None, None, "Why?", "why"],
            "context": ["x"] * 4,
            "score": [4.0, 3.0, 2.0, 1.0],
        }
    )
    for kind in ("exact", "rouge_l=0.5"):
        request = {"rank_by": "score", "rules": "none", "near_duplicates": kind}
        found = filter_table(table, **request, undefined="keep")
        assert found.decisions["reason"].to_list() == [None, None, None, "duplicate"]
        found = filter_table(table, **request)
        undefined = ["undefined_question"] * 2
        assert found.decisions["reason"].to_list() == [*undefined, None, "duplicate"]


def test_conditions_on_what_groups_and_dictionaries_hold() -> None:
    context = ["short", "a longer one", "short", "a longer one"]
    rows = {"id": ["a", "b", "c", "d"], "context": context, "score": [1.0, 2.0, 3.0, 4.0]}
    for table in (
        pl.DataFrame(rows),
        pl.DataFrame(rows).with_columns(pl.col("context").cast(pl.Categorical)),
    ):
        found = filter_table(
            table, rank_by="score", rules="none", keep="length(context) > 5", top_k=1
        )
        assert found.decisions["reason"].to_list() == ["keep", "top_k", "keep", None]
        assert found.kept.equals(table[3:])


def test_rules_of_the_paper_and_extractive_ones() -> None:
    five, six = "who was it who won", "who was it who won it"
    long = " ".join(["word"] * 31)
    rows = [
        (five, "Ann", "Ann won.", "too_short"),
        (six, "Ann", "Ann won.", None),
        (long, "Ann", "Ann won.", "too_long"),
        (six + " in Bergen", "bergen!", "In Bergen.", "answer_in_question"),
        (six + " in Bergenhus", "Bergen", "In Bergen.", None),
        (six, "Bergen Ann", "Ann, of Bergen.", "answer_not_in_context"),
        (six, "", "Ann", "answer_not_in_context"),
        (six, None, "Ann", "undefined_answer"),
        (None, "Ann", "Ann", "undefined_question"),
    ]
    table = pl.DataFrame(rows, schema=["question", "answer", "context", "said"], orient="row")
    table = table.with_columns(score=pl.lit(1.0), id=pl.int_range(pl.len()).cast(pl.String))
    request = {"rank_by": "score", "near_duplicates": "none"}
    found = filter_table(table, **request, rules="extractive")
    assert found.decisions["reason"].to_list() == table["said"].to_list()
    paper = filter_table(table, **{**request, "rules": "paper"}).decisions["reason"].to_list()
    assert paper == [None if own == "answer_not_in_context" else own for own in table["said"]]
    # The passages of a list are looked at one by one.
    lists = table.with_columns(context=pl.concat_list(pl.col("context").str.split(" ")))
    found = filter_table(
        lists[5:6].with_columns(answer=pl.lit("Ann of")), **request, rules="extractive"
    )
    assert found.decisions["reason"].to_list() == ["answer_not_in_context"]
    assert filter_table(lists[1:2], **request, rules="extractive").kept.height == 1
