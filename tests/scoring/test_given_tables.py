"""Python objects: any table that people have goes in, and the same kind comes back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import datasets
import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from qaeval import Scorer, audit_tables, correlate_table, filter_table, score_table
from qaeval_core.errors import SchemaError
from qaeval_core.text.given_tables import given_table

ROWS: dict[str, list] = {
    "id": ["a", "b", "c"],
    "candidate": ["x y", "y", "z"],
    "references": [["x"], ["y"], ["q", "z"]],
    "more": [1.5, None, 2.0],
}
F1 = [2 / 3, 1.0, 1.0]


class Capsule:
    """Speaks Arrow's PyCapsule protocol and nothing else."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(ROWS).__arrow_c_stream__(requested_schema)


def as_numpy() -> dict[str, np.ndarray]:
    return {name: pa.array(values).to_numpy(zero_copy_only=False) for name, values in ROWS.items()}


KINDS: dict[str, tuple[Callable[[], Any], type, Callable[[Any, str], list]]] = {
    "table": (lambda: pa.table(ROWS), pa.Table, lambda t, n: t[n].to_pylist()),
    "batch": (
        lambda: pa.RecordBatch.from_pydict(ROWS), pa.RecordBatch, lambda t, n: t[n].to_pylist()),
    "polars": (lambda: pl.DataFrame(ROWS), pl.DataFrame, lambda t, n: t[n].to_list()),
    "lazy": (lambda: pl.LazyFrame(ROWS), pl.LazyFrame, lambda t, n: t.collect()[n].to_list()),
    "pandas": (
        lambda: pd.DataFrame(ROWS, index=[7, 8, 9]), pd.DataFrame, lambda t, n: t[n].tolist()),
    "datasets": (
        lambda: datasets.Dataset.from_dict(ROWS), datasets.Dataset, lambda t, n: list(t[n])),
    "columns": (lambda: ROWS, dict, lambda t, n: t[n]),
    "rows": (
        lambda: pa.table(ROWS).to_pylist(), list, lambda t, n: [row[n] for row in t]),
    "numpy": (as_numpy, dict, lambda t, n: t[n].tolist()),
    "capsule": (Capsule, pa.Table, lambda t, n: t[n].to_pylist()),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_that_goes_in_comes_back(name: str) -> None:
    make, kind, values = KINDS[name]
    scorer = Scorer(["f1"])
    found = scorer.score(make())
    assert isinstance(found, kind) and values(found, "f1") == pytest.approx(F1)
    assert values(found, "id") == ROWS["id"]
    both = scorer.score(make(), append=True)
    assert isinstance(both, kind) and values(both, "f1") == pytest.approx(F1)
    assert values(both, "candidate") == ROWS["candidate"]
    if name == "pandas":
        assert list(found.index) == list(both.index) == [7, 8, 9]
    if name == "numpy":
        assert all(isinstance(own, np.ndarray) for own in found.values())


def test_datasets_with_chosen_rows_and_none(tmp_path: Any) -> None:
    """Indices of a selection count; an empty one has columns."""
    dataset = datasets.Dataset.from_dict(ROWS)
    assert list(Scorer(["f1"]).score(dataset.select([2, 0]))["f1"]) == pytest.approx([1.0, 2 / 3])
    assert Scorer(["f1"]).score(dataset.select([])).num_rows == 0
    assert Scorer(["f1"]).score(pd.DataFrame(ROWS).iloc[:0]).shape[0] == 0


def test_columns_that_are_there_and_rows_that_differ_are_named() -> None:
    with pytest.raises(SchemaError, match="'f1'.*QA0308"):
        score_table({**ROWS, "f1": [0, 0, 0]}, ["f1"], append=True)
    with pytest.raises(SchemaError, match="'f1'.*QA0308"):
        score_table([{"candidate": "a", "references": "a", "f1": 1}], ["f1"], append=True)
    with pytest.raises(SchemaError, match="a has 1, b has 2.*QA0320"):
        given_table({"a": [1], "b": [1, 2]})
    with pytest.raises(SchemaError, match="not int.*QA0320"):
        filter_table(3, rank_by="x")


def test_one_wrong_value_costs_its_row() -> None:
    """As of lists of mappings: a column of several types is no reason to refuse all."""
    found = score_table({**ROWS, "candidate": ["x", 5, "z"]}, ["f1"])
    assert found["quarantine_reason"] == [None, "wrong_type_candidate", None]
    numbers = np.array(["x", 5, "z"], dtype=object)
    found = score_table({**as_numpy(), "candidate": numbers}, ["f1"])
    assert found["quarantine_reason"].tolist() == [None, "wrong_type_candidate", None]


MESSAGES = [
    [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "x"}],
    [{"role": "assistant", "content": "y"}],
    None,
]


@pytest.mark.parametrize("make", [dict, pa.table, pl.DataFrame, datasets.Dataset.from_dict])
def test_chats_are_taken_as_their_last_text(make: Callable) -> None:
    found = given_table(
        score_table(make({"candidate": MESSAGES, "references": ["x", "y", "z"]}), ["f1"])
    )
    assert found is not None
    assert found.table["f1"].to_pylist() == [1.0, 1.0, None]
    rows = [{"candidate": own, "references": "x"} for own in MESSAGES]
    rows.append({"candidate": [{"role": "a", "content": [{"type": "text", "text": "x"}]}],
                 "references": "x"})  # fmt: skip
    assert [row["f1"] for row in score_table(rows, ["f1"])] == [1.0, 0.0, None, 1.0]


def test_objects_are_pickled_before_and_after_use() -> None:
    scorer = Scorer(["f1", "rouge_l"])
    for _ in range(2):
        other = pickle.loads(pickle.dumps(scorer))
        assert other.score(ROWS) == scorer.score(ROWS) == copy.deepcopy(scorer)(ROWS)
    assert repr(scorer) == "Scorer(f1, rouge_l)" and "Scorer" in scorer._repr_html_()
    parts = joblib.Parallel(n_jobs=2)(
        joblib.delayed(scorer.score)({name: values[i : i + 1] for name, values in ROWS.items()})
        for i in range(3)
    )
    assert [part["f1"][0] for part in parts] == pytest.approx(F1)


def test_a_dataset_is_mapped_by_processes() -> None:
    dataset = datasets.Dataset.from_dict(ROWS)
    found = dataset.map(Scorer(["f1"]).score, batched=True, num_proc=2)
    assert list(found["f1"]) == pytest.approx(F1)
    assert list(found["candidate"]) == ROWS["candidate"]


N = 200
SCORES = {
    "id": [f"q{i}" for i in range(N)],
    "question": [f"Who is it that came home as number {i}?" for i in range(N)],
    "score": [i / N for i in range(N)],
    "rating": [float(i % 7) + i / 30 for i in range(N)],
    "is_good": [None if i % 2 else i > 60 for i in range(N)],
}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, dict, datasets.Dataset.from_dict])
def test_filter_audit_and_correlate_take_them_too(make: Callable) -> None:
    given = make(SCORES)
    found = filter_table(given, rank_by="score", share=0.5)
    assert isinstance(found.kept, type(given)) and isinstance(found.decisions, type(given))
    assert len(found.kept["id"]) == N // 2
    assert repr(found) == "FilteredTable(kept 100 of 200 rows; dropped: share 100)"
    audited = audit_tables(given, make({**SCORES, "score": [0.9] * N}), watch="score")
    assert isinstance(audited.tests, type(given))
    assert repr(audited).startswith("AuditedTables(") and len(repr(audited)) < 200
    study = correlate_table(given, "rating", metrics="score", n_resamples=20)
    assert isinstance(study.correlations, type(given)) and len(repr(study)) < 200


def test_labels_are_a_table_or_a_column() -> None:
    labels = pd.DataFrame({"id": SCORES["id"], "good": SCORES["is_good"]}).dropna()
    words: dict[str, Any] = {"rank_by": "score", "precision": 0.6, "rules": "none"}
    found = [
        filter_table(pd.DataFrame(SCORES), labels=own, **words)
        for own in (labels, pl.DataFrame(labels), "is_good")
    ]
    assert len({repr(own) for own in found}) == 1 and found[0].content["certified"]
    without_ids = {name: values for name, values in SCORES.items() if name != "id"}
    assert len(filter_table(without_ids, labels="is_good", **words).kept["score"]) == len(
        found[0].kept
    )


# Ray Data warns of its own defaults, when its context is made first in a process.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.slow
@pytest.mark.ray
def test_ray_data_maps_batches() -> None:
    """All formats of batches; as a class, too, whose actors load models once."""
    ray = pytest.importorskip("ray")
    from qaeval.on_ray.cluster import connected
    from qaeval_core.configure import ClusterSection

    with connected(ClusterSection()):
        for kind in ("numpy", "pandas", "pyarrow", "actors"):
            dataset = ray.data.from_arrow(pa.table(ROWS))
            if kind == "actors":
                options: dict[str, Any] = {"fn_constructor_args": (["f1"],), "concurrency": 1}
                mapped = dataset.map_batches(Scorer, **options)
            else:
                mapped = dataset.map_batches(Scorer(["f1"]).score, batch_format=kind)
            rows = sorted(mapped.take_all(), key=lambda row: row["id"])
            assert [row["f1"] for row in rows] == pytest.approx(F1), kind
