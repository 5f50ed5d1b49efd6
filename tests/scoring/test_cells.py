"""Types and cells as other tools write them: equal scores, whatever holds the texts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import as_table, qaeval, read_scores, run_locally
from qaeval_core import Scorer, filter_table
from qaeval_core.configure import load_config
from qaeval_core.errors import SchemaError
from qaeval_core.explain.row import explain_row

ROWS: dict[str, list[Any]] = {
    "id": ["a", "b", "c"],
    "candidate": ["Oslo", "Rome", "in Bergen"],
    "references": [["Oslo", "in Oslo"], ["Paris"], ["Bergen"]],
    "context": [["Oslo is a town.", "Bergen too."], ["Paris is one."], ["Bergen is one."]],
    "label": ["good", "bad", "good"],
    "rating": [3, 1, 2],
}
F1 = [1.0, 0.0, 2 / 3]
SQUAD = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])


def job(folder: Path, **given: object) -> dict[str, Any]:
    return {
        "input.paths": [str(folder / "in.parquet")],
        "output.path": str(folder / "out"),
        "scoring.progress_s": 60,
        "metrics.f1.metric": "f1",
        **{key.replace("__", "."): value for key, value in given.items()},
    }


def score(folder: Path, table: pa.Table, **given: object) -> pl.DataFrame:
    """Write a table, score it, and return the scores."""
    pq.write_table(table, folder / "in.parquet")
    run_locally(job(folder, **given))
    return read_scores(folder / "out", "in.parquet")


def cast(**kinds: pa.DataType) -> pa.Table:
    """Return the rows with some columns of other types."""
    table = pa.table(ROWS)
    for name, kind in kinds.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(ROWS[name], kind))
    return table


KINDS = {
    "view": (pa.string_view(), pa.list_(pa.string_view())),
    "large": (pa.large_string(), pa.large_list(pa.large_string())),
    "list view": (pa.string_view(), pa.list_view(pa.string())),
    "large list view": (pa.string(), pa.large_list_view(pa.string_view())),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_may_have_any_type_of_text(kind: str, tmp_path: Path) -> None:
    """All was computed and joined, and then the page failed, at every repetition."""
    text, texts = KINDS[kind]
    table = cast(id=text, candidate=text, label=text, references=texts, context=texts)
    scores = score(
        tmp_path, table, output__carry=["label", "context", "rating"], input__sample_groups=3
    )
    assert scores["f1"].to_list() == pytest.approx(F1)
    assert scores["id"].to_list() == ROWS["id"]
    assert scores["label"].to_list() == ROWS["label"]
    assert scores["context"].to_list() == ROWS["context"]
    explained = explain_row(tmp_path / "out", identity="c")
    assert explained.is_equal
    out, kept = tmp_path / "out", tmp_path / "kept"
    qaeval("filter", out, "--to", kept, "--rules", "none", "--rank-by", "f1", "--share", "0.7",
           "--share-per", "label", "--local")  # fmt: skip
    decisions = pl.read_parquet(kept / "decisions" / "*.parquet")
    assert decisions.filter("kept")["id"].to_list() == ["a", "b"]  # One of each label.
    history, report = tmp_path / "history", tmp_path / "report"
    qaeval("audit", out, "--history", history, "--to", report, "--pin", "--cluster", "id")
    qaeval("correlate", out, "--human", "rating", "--auc", "label == 'good'")
    assert Scorer(["f1"]).score(table)["f1"].to_pylist() == pytest.approx(F1)


INNER: dict[str, Any] = {
    "map": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string_view())),
    "struct": pa.array(
        [{"a": "x", "b": ["y"]}, None, {"a": None, "b": []}],
        pa.struct([("a", pa.string_view()), ("b", pa.list_view(pa.string()))]),
    ),
    "lists": pa.array([[["x"]], None, [[]]], pa.list_(pa.list_view(pa.string()))),
    "json": pa.array(['{"a": 1}', None, '"x"'], pa.json_(pa.string_view())),
}


@pytest.mark.parametrize("kind", INNER)
def test_what_no_role_reads_may_hold_anything(kind: str, tmp_path: Path) -> None:
    """The run was scored, and then its filter failed while it wrote a column nobody asked for."""
    given = INNER[kind]
    scores = score(tmp_path, pa.table(ROWS).append_column("x", given), output__carry=["x"])
    assert scores["f1"].to_list() == pytest.approx(F1)
    qaeval("filter", tmp_path / "out", "--to", tmp_path / "kept", "--rules", "none", "--rank-by",
           "f1", "--share", "0.7", "--column", "question=candidate", "--local")  # fmt: skip
    (part,) = (tmp_path / "kept" / "kept").glob("*.parquet")
    kept = pq.read_table(part)
    wanted = given.storage if kind == "json" else given
    assert kept["x"].to_pylist() == [wanted[i].as_py() for i in (0, 2)]


def test_dictionaries_inside_lists_may_lie_in_many_row_groups(tmp_path: Path) -> None:
    """As polars writes lists of categories: PyArrow makes no batch of two such groups."""
    coded = pl.DataFrame(ROWS).with_columns(
        pl.col("references", "context").cast(pl.List(pl.Categorical)),
        pl.col("label").cast(pl.Categorical),
    )
    coded.write_parquet(tmp_path / "in.parquet", row_group_size=1)
    run_locally(job(tmp_path, output__carry=["references"], input__sample_groups=3))
    scores = read_scores(tmp_path / "out", "in.parquet")
    assert scores["f1"].to_list() == pytest.approx(F1)
    assert scores["quarantine_reason"].to_list() == [None] * 3
    assert explain_row(tmp_path / "out", identity="c").is_equal
    qaeval("filter", tmp_path / "out", "--to", tmp_path / "kept", "--rules", "none", "--rank-by",
           "f1", "--share", "0.7", "--column", "question=candidate", "--local")  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Scorer(["f1"]).score(coded)["f1"].to_list() == pytest.approx(F1)


def test_dictionaries_of_views_and_of_bytes_are_read(tmp_path: Path) -> None:
    coded = pa.array(ROWS["candidate"]).dictionary_encode()
    table = pa.table(ROWS)
    for values in (coded.dictionary.cast(pa.string_view()), coded.dictionary.cast(pa.binary())):
        column = pa.DictionaryArray.from_arrays(coded.indices, values)
        config = load_config(overrides={"input.binary_as_text": True})
        scorer = Scorer(["f1"], config=config)
        found = scorer.score(table.set_column(1, "candidate", column))
        assert found["f1"].to_pylist() == pytest.approx(F1)


def _json_texts(values: Any) -> pa.Array:
    return pa.array([json.dumps(value) for value in values], pa.json_())


INNER_JSON: dict[str, tuple[Any, str]] = {
    "list": (
        pa.ListArray.from_arrays([0, 2, 3, 4], _json_texts(["Oslo", "in Oslo", "Paris", "Bergen"])),
        "references",
    ),
    "struct": (
        pa.StructArray.from_arrays([_json_texts(ROWS["references"])], ["text"]),
        "references.text",
    ),
    "list of structs": (
        pa.ListArray.from_arrays(
            [0, 2, 3, 4],
            pa.StructArray.from_arrays(
                [_json_texts(["Oslo", "in Oslo", "Paris", "Bergen"])], ["text"]
            ),
        ),
        "references.text",
    ),
}


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("name", INNER_JSON)
def test_json_inside_lists_and_structs_is_read_too(
    name: str, is_stored: bool, tmp_path: Path
) -> None:
    """Where Parquet alone said what it is, quotes and escapes were compared, or nulls read."""
    column, path = INNER_JSON[name]
    table = pa.table(ROWS).set_column(2, "references", column)
    pq.write_table(table, tmp_path / "in.parquet", store_schema=is_stored)
    run_locally(job(tmp_path, input__columns={"references": path}))
    scores = read_scores(tmp_path / "out", "in.parquet")
    assert scores["f1"].to_list() == pytest.approx(F1)
    assert explain_row(tmp_path / "out", identity="c").is_equal
    columns = {"references": path}
    assert Scorer(["f1"], columns=columns).score(table)["f1"].to_pylist() == pytest.approx(F1)


def test_columns_behind_one_of_many_leaves_keep_their_types(tmp_path: Path) -> None:
    """One whose type Arrow does not look into is several of Parquet's columns all the same."""
    kind = pa.opaque(pa.struct([("x", pa.int32()), ("y", pa.string())]), "point", "tests")
    points = pa.array([{"x": 1, "y": "a"}] * 3, kind.storage_type)
    table = pa.table(
        {
            "point": pa.ExtensionArray.from_storage(kind, points),
            "references": _json_texts(ROWS["references"]),
            "candidate": ROWS["candidate"],
            "id": ROWS["id"],
        }
    )
    scores = score(tmp_path, table)
    assert scores["f1"].to_list() == pytest.approx(F1)
    assert scores["id"].to_list() == ROWS["id"]


def test_wide_decimals_beside_scores_are_no_hindrance(tmp_path: Path) -> None:
    """Whoever wanted a correlation of other columns got a line about precision."""
    wide = pa.array([1, 2, 3]).cast(pa.decimal256(50, 2))
    table = pa.table(ROWS).set_column(0, "id", wide).append_column("x", wide)
    pq.write_table(table, tmp_path / "in.parquet")
    run_locally(job(tmp_path, output__carry=["x", "rating", "label"]))
    said = qaeval("correlate", tmp_path / "out", "--human", "rating", "--auc", "label == 'good'")
    assert "f1" in said
    assert explain_row(tmp_path / "out", identity="2.00").is_equal


@pytest.mark.parametrize("path", ["references", "references.text"])
def test_half_a_character_in_json_is_its_rows_fault(path: str, tmp_path: Path) -> None:
    """It ended the run; without a path it was scored."""
    cells: list[Any] = [["Oslo"], ["\ud83d"], ["\U0001f600"]]
    if path != "references":
        cells = [{"text": own} for own in cells]
    table = pa.table({"id": list("abc"), "candidate": ["Oslo", "Oslo", "\U0001f600"],
                      "references": _json_texts(cells)})  # fmt: skip
    scores = score(tmp_path, table, input__columns={"references": path}, metrics__exact_match={})
    assert scores["exact_match"].to_list() == [1.0, None, 1.0]
    assert scores["quarantine_reason"].to_list() == [None, "invalid_utf8_references", None]
    found = Scorer(["exact_match"], columns={"references": path}).score(table)
    assert found["exact_match"].to_pylist() == [1.0, None, 1.0]


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("role", ["references", "candidate", "both"])
def test_json_is_read_as_what_it_says(role: str, is_stored: bool, tmp_path: Path) -> None:
    """It was compared as it is written: f1 0 for right answers, in silence."""
    own = ["references", "candidate"] if role == "both" else [role]
    table = pa.table(ROWS)
    for name in own:
        place = table.schema.get_field_index(name)
        cells = [json.dumps(value) for value in ROWS[name]]
        table = table.set_column(place, name, pa.array(cells, pa.json_()))
    pq.write_table(table, tmp_path / "in.parquet", store_schema=is_stored)
    run_locally(job(tmp_path, output__carry=["references"]))
    scores = read_scores(tmp_path / "out", "in.parquet")
    assert scores["f1"].to_list() == pytest.approx(F1)
    if "references" in own:  # What is copied is the text that it is.
        assert scores["references"].to_list() == [json.dumps(value) for value in ROWS["references"]]
    assert explain_row(tmp_path / "out", identity="c").is_equal
    assert Scorer(["f1"]).score(table)["f1"].to_pylist() == pytest.approx(F1)


def test_a_cell_that_is_no_json_is_its_rows_fault(tmp_path: Path) -> None:
    cells = pa.array(['["Oslo"]', "[Paris", "7", None], pa.json_())
    table = pa.table({"id": list("abcd"), "candidate": ["Oslo"] * 4, "references": cells})
    scores = score(tmp_path, table)
    assert scores["f1"].to_list() == [1.0, None, None, None]
    assert scores["quarantine_reason"].to_list() == [
        None, "invalid_json_references", "wrong_type_references", "null_references",
    ]  # fmt: skip


NESTED: dict[str, tuple[Any, str]] = {
    "SQuAD's struct": (
        pa.array([{"text": own, "answer_start": [0]} for own in ROWS["references"]], SQUAD),
        "references.text",
    ),
    "a list of structs": (
        pa.array([[{"text": text} for text in own] for own in ROWS["references"]]),
        "references.text",
    ),
    "structs in structs": (
        pa.array([{"gold": {"texts": own}} for own in ROWS["references"]]),
        "references.gold.texts",
    ),
    "lists in lists": (
        pa.array([[{"short": [{"text": text}]} for text in own] for own in ROWS["references"]]),
        "references.short.text",
    ),
    "JSON": (
        pa.array([json.dumps({"text": own}) for own in ROWS["references"]], pa.json_()),
        "references.text",
    ),
    "a field with a dot": (
        pa.array([{"v1.gold": {"a.b": own}} for own in ROWS["references"]]),
        "references.v1.gold.a.b",
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_path_reaches_into_structs_and_lists(name: str, tmp_path: Path) -> None:
    """The two messages led to each other: no column answers.text; answers is a struct."""
    column, path = NESTED[name]
    table = pa.table(ROWS).set_column(2, "references", column)
    scores = score(tmp_path, table, input__columns={"references": path}, output__carry=[path])
    assert scores["f1"].to_list() == pytest.approx(F1)
    assert explain_row(tmp_path / "out", identity="a").is_equal
    columns = {"references": path}
    assert Scorer(["f1"], columns=columns).score(table)["f1"].to_pylist() == pytest.approx(F1)
    if name != "JSON":
        rows = table.to_pylist()
        assert as_table(Scorer(["f1"], columns=columns).score(rows))[
            "f1"
        ].to_pylist() == pytest.approx(F1)


def test_other_roles_may_be_paths_too(tmp_path: Path) -> None:
    """Of id, candidate, context and a slice; a column of the very name goes before."""
    rows = [
        {"meta": {"id": i, "kind": kind}, "out": {"text": candidate}, "references": references,
         "out.text": candidate, "passages": [{"body": text} for text in context]}
        for i, candidate, references, context, kind in zip(*columns_of("id", "candidate",
         "references", "context", "label"), strict=True)
    ]  # fmt: skip
    columns = {"id": "meta.id", "candidate": "out.text", "context": "passages.body"}
    table = pa.Table.from_pylist(rows)
    table = table.set_column(1, "out", pa.array([{"text": "wrong"}] * 3))
    scores = score(
        tmp_path, table, input__columns=columns, output__carry=["meta.kind"],
        input__sample_groups=3,
    )  # fmt: skip
    assert scores["f1"].to_list() == pytest.approx(F1)
    assert scores["id"].to_list() == ROWS["id"]
    assert scores["meta.kind"].to_list() == ROWS["label"]
    qaeval("filter", tmp_path / "out", "--to", tmp_path / "kept", "--rules", "none", "--rank-by",
           "f1", "--share", "0.4", "--local")  # fmt: skip
    decisions = pl.read_parquet(tmp_path / "kept" / "decisions" / "*.parquet")
    assert decisions.filter("kept")["id"].to_list() == ["a"]


@pytest.mark.parametrize("kind", [list, pa.table, pl.DataFrame])
def test_a_scorers_ids_may_be_a_path(kind: Any) -> None:
    """They were left out in silence, and so were those of a column that is not there."""
    meta = [{"id": own} for own in ROWS["id"]]
    table = pa.table({**ROWS, "meta": meta})
    rows = {list: table.to_pylist(), pa.table: table, pl.DataFrame: pl.from_arrow(table)}[kind]
    found = as_table(Scorer(["f1"], columns={"id": "meta.id"}).score(rows))
    assert (
        list(found["id"].to_list() if kind is pl.DataFrame else found["id"].to_pylist())
        == (ROWS["id"])
    )
    with pytest.raises(SchemaError, match="'meta.idd'.*QA0305"):
        as_table(Scorer(["f1"], columns={"id": "meta.idd"}).score(rows))


def columns_of(*names: str) -> list[list[Any]]:
    return [ROWS[name] for name in names]


def test_a_struct_with_one_field_that_fits_is_recognized(tmp_path: Path) -> None:
    """And one with several is answered by their names."""
    table = pa.table(ROWS).set_column(2, "references", NESTED["SQuAD's struct"][0])
    scores = score(tmp_path, table)
    assert scores["f1"].to_list() == pytest.approx(F1)
    notes = json.loads((tmp_path / "out" / "report.json").read_text())["notes"]
    assert "role references reads the field references.text" in notes
    several = pa.array([{"value": own[0], "aliases": own} for own in ROWS["references"]])
    pq.write_table(pa.table(ROWS).set_column(2, "references", several), tmp_path / "in.parquet")
    said = qaeval("score", tmp_path / "in.parquet", "--out", tmp_path / "other", "--local",
                  "--metrics", "f1", expect=2)  # fmt: skip
    assert "--column references=references.value or --column references=references.aliases" in said
    said = qaeval("score", tmp_path / "in.parquet", "--out", tmp_path / "other", "--local",
                  "--metrics", "f1", "--column", "references=references.alias",
                  expect=2)  # fmt: skip
    assert "did you mean 'references.aliases'" in said


@pytest.mark.parametrize(
    "kinds",
    [
        {"candidate": pa.binary(), "references": pa.list_(pa.binary())},
        {"candidate": pa.large_binary(), "references": pa.large_list(pa.large_binary())},
        {"candidate": pa.binary_view(), "id": pa.binary(), "label": pa.binary()},
    ],
)
def test_bytes_are_texts_where_that_is_said(kinds: dict[str, pa.DataType], tmp_path: Path) -> None:
    """Impala and old Spark write them so; what is no UTF-8 is its row's fault."""
    table = pa.table(ROWS)
    for name, kind in kinds.items():
        cells: list[Any] = [
            [text.encode() for text in own] if isinstance(own, list) else own.encode()
            for own in ROWS[name]
        ]
        if name == "candidate":
            cells[1] = b"Rom\xff"
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(cells, kind))
    with pytest.raises(SchemaError, match="input.binary_as_text=true.*QA0306"):
        score(tmp_path, table)
    scores = score(tmp_path, table, input__binary_as_text=True, output__carry=["label"])
    assert scores["f1"].to_list() == [1.0, None, pytest.approx(2 / 3)]
    assert scores["quarantine_reason"].to_list() == [None, "invalid_utf8_candidate", None]
    assert scores["id"].to_list() == ROWS["id"] and scores["label"].to_list() == ROWS["label"]
    assert explain_row(tmp_path / "out", identity="c").is_equal
    qaeval("filter", tmp_path / "out", "--to", tmp_path / "kept", "--rules", "none", "--rank-by",
           "f1", "--share", "0.5", "--column", "question=candidate", "--local")  # fmt: skip
    decisions = pl.read_parquet(tmp_path / "kept" / "decisions" / "*.parquet")
    assert decisions.filter("kept")["id"].to_list() == ["a"]


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("references", ['["Oslo", "in Oslo"]', '["Paris"]', "[]"]),
        ("references", ["['Oslo' 'in Oslo']", "['Paris']", "['Bergen']"]),
        ("candidate", ["['Oslo']", "['Rome']", "['in Bergen']"]),
        ("references", ["{'text': ['Oslo']}", "{'text': ['Paris']}", "{'text': ['x']}"]),
        ("references", ["('Oslo', 'in Oslo')", "('Paris',)", "('Bergen',)"]),
        ("references", ["array(['Oslo'], dtype=object)", "array(['Paris'])", "array(['x'])"]),
        ("references", [["['Oslo']"], ["['Paris']"], ["['Bergen']"]]),
    ],
)
def test_texts_that_were_lists_get_a_note(column: str, cells: list[Any], tmp_path: Path) -> None:
    """CSV holds no lists: exact_match was 0 for right answers, and nothing said why."""
    place = pa.table(ROWS).schema.get_field_index(column)
    table = pa.table(ROWS).set_column(place, column, pa.array(cells))
    pq.write_table(table, tmp_path / "in.parquet")
    outcome, said = run_locally(job(tmp_path))
    (note,) = [line for line in said if "printed lists" in line]
    shown = cells[0] if isinstance(cells[0], str) else cells[0][0]
    assert repr(column) in note and shown[:8] in note.replace("\\", "")
    assert any("printed lists" in note for note in outcome.report["notes"])
    with pytest.warns(UserWarning, match="printed lists"):
        Scorer(["f1"]).score(table)


def test_texts_with_brackets_get_no_note(tmp_path: Path) -> None:
    table = pa.table({**ROWS, "candidate": ["[sic]", "['a']", "see (1)"]})
    pq.write_table(table, tmp_path / "in.parquet")
    _, said = run_locally(job(tmp_path))
    assert not [line for line in said if "printed lists" in line]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scorer(["f1"]).score(table)


def test_another_tools_table_of_bytes_has_a_way_out(tmp_path: Path) -> None:
    """There is no run whose option could say that bytes are texts."""
    table = pa.table({"id": ["a"], "question": [b"Who?"], "s": [0.5]})
    pq.write_table(table, tmp_path / "in.parquet")
    said = qaeval("filter", tmp_path / "in.parquet", "--rank-by", "s", "--dry-run", expect=2)
    assert "column 'question' is binary, no question; cast it to text" in said


def test_tables_in_memory_are_filtered_alike() -> None:
    text, texts = KINDS["view"]
    table = cast(id=text, candidate=text, references=texts, context=texts)
    table = table.append_column("score", pa.array([0.9, 0.1, 0.2]))
    found = filter_table(
        table, rank_by="score", share=0.4, rules="none", columns={"question": "candidate"}
    )
    assert found.kept["id"].to_pylist() == ["a"] and found.decisions.num_rows == 3


def test_a_run_without_one_score_ends_with_1(tmp_path: Path) -> None:
    """Exit 0 sent an empty set on its way; no rows, and nothing to do, are no fault."""
    words = ("score", tmp_path / "in.parquet", "--local", "--metrics", "f1,exact_match", "--out")
    empty = pa.table({"id": ["a", "b"], "candidate": ["x", None], "references": [[], ["y"]]},
                     schema=pa.schema([("id", pa.string()), ("candidate", pa.string()),
                                       ("references", pa.list_(pa.string()))]))  # fmt: skip
    pq.write_table(empty, tmp_path / "in.parquet")
    said = qaeval(*words, tmp_path / "out", expect=1)
    assert "QA0520" in said and "null_candidate" in said
    assert (tmp_path / "out" / "_SUCCESS").exists()
    qaeval(*words, tmp_path / "out")  # Nothing to do.
    pq.write_table(empty.slice(0, 0), tmp_path / "in.parquet")
    qaeval(*words, tmp_path / "none")
    pq.write_table(pa.table(ROWS), tmp_path / "in.parquet")
    qaeval(*words, tmp_path / "some")  # One undefined row does no harm.
