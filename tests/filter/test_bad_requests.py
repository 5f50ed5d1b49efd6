"""Bad requests and bad input: a clear error or a counted decision, and nothing that looks whole."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filter_corpora import filtered, score_again, scored
from helpers import tells, write_parquet
from qaeval_core.errors import (
    ConfigError,
    InputChangedError,
    InputError,
    QAEvalError,
    ReconcileError,
    RunError,
    SchemaError,
)
from qaeval_core.filter.labels import _without_escape, sheet_text
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import result_lines


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"), f1="f1", exact="exact_match")


@pytest.mark.parametrize(("options", "message"), [
    ({"share": "0"}, "--share is 0 ... QA0104"),
    ({"share": "1.01"}, "--share is 1.01 ... QA0104"),
    ({"share": "half"}, "--share is 'half' ... QA0104"),
    ({"share": "1e-999999999"}, "--share is '1e-999999999' ... QA0104"),
    ({"share": "1e-21"}, "--share is '1e-21' ... QA0104"),
    ({"share": "0." + "3" * 40}, "--share is '0.3333 ... QA0104"),
    ({"near_duplicates": "rouge_l=1e-999999999"}, "rouge_l=1e-999999999 ... QA0104"),
    ({"share": "1/0"}, "--share is '1/0' ... QA0104"),
    ({"share": "0.5", "budget": 3}, "--share and --budget ... QA0102"),
    ({"share": "0.5", "precision": 0.9, "labels": "l", "label": "g"},
     "--share and --precision ... QA0102"),
    ({"precision": 0.9}, "--precision ... --labels FILE ... QA0103"),
    ({"precision": 1.5, "labels": "l", "label": "g"}, "--precision is 1.5 ... QA0104"),
    ({"label": "g"}, "--label ... --labels FILE ... QA0103"),
    ({"labels": "l", "label": "g"}, "--labels ... --precision or --learn ... QA0102"),
    ({"learn": ("f1",)}, "--learn ... --labels FILE ... QA0103"),
    ({"learn": ("f1",), "labels": "l", "label": "g", "rank_by": "f1"},
     "--learn ... --rank-by ... QA0102"),
    ({"rules": "papper"}, "--rules: no 'papper'; did you mean 'paper'? [QA0105]"),
    ({"undefined": "dropp"}, "--undefined: no 'dropp'; did you mean 'drop'? [QA0105]"),
    ({"near_duplicates": "rouge=0.7"},
     "--near-duplicates: no 'rouge=0.7'; did you mean 'rouge_l=0.7'? [QA0105]"),
    ({"near_duplicates": "rouge_l=7"}, "--near-duplicates rouge_l=7: ... QA0104"),
    ({"near_duplicates": "rouge_l=x"}, "--near-duplicates rouge_l=x: ... QA0104"),
    ({"quota": "topic"}, "--quota ... COLUMN=N or COLUMN=equal ... --share-per COLUMN [QA0104]"),
    ({"quota": "topic=0"}, "--quota ... COLUMN=N or COLUMN=equal ... --share-per COLUMN [QA0104]"),
    ({"quota": "topic=proportional", "share": "0.5"}, "--quota ... --share-per COLUMN [QA0104]"),
    ({"quota": "topic=equal"}, "--quota topic=equal ... --share or --budget ... QA0103"),
    ({"share_per": "topic"}, "--share-per topic ... --share or --budget ... QA0103"),
    ({"share_per": "topic", "precision": 0.9, "labels": "l", "label": "g"},
     "--share-per topic ... --share or --budget ... QA0103"),
    ({"share_per": "topic", "quota": "topic=equal", "budget": 9},
     "--quota topic=equal and --share-per topic ... QA0102"),
    ({"share_per": "topic", "share": "0.5", "budget": 9}, "--share and --budget ... QA0102"),
    ({"top_k": 0}, "--top-k is 0; ... 1 or more [QA0104]"),
    ({"budget": -1}, "--budget is -1; ... 1 or more [QA0104]"),
    ({"label_sheet": 0}, "--label-sheet is 0; ... 1 or more [QA0104]"),
    ({"seed": -1}, "--seed is -1; ... 0 or more [QA0104]"),
    ({"confidence": 1.0, "share": 1}, "--confidence is 1; ... QA0104"),
    ({"confidence": 0.5, "share": 1}, "--confidence is 0.5; ... QA0104"),
    ({"columns": {"questoin": "q"}}, "'questoin'; did you mean 'question'? [QA0105]"),
])  # fmt: skip
def test_wrong_words(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        FilterRequest(**options)  # type: ignore[arg-type]
    assert tells(str(raised.value), message)


@pytest.mark.parametrize(("options", "message"), [
    ({"rank_by": "f1_recal"}, "--rank-by: no column 'f1_recal'; did you mean 'f1_recall'?"),
    ({"rank_by": "topic"},
     "--rank-by: column 'topic' of part0.parquet is large_string, not a number"),
    ({"keep": ("f1_recal > 0.5",)}, "no column 'f1_recal'; did you mean 'f1_recall'?"),
    ({"keep": ("f1",)}, "is Float64 ... QA0316"),
    ({"keep": ("f1 >",)}, "unable to parse"),
    ({"keep": ("topic > 0.5",)}, "cannot compare string with numeric type"),
    ({"keep": ("topic in ('0.5') or 1e-3 = topic",)}, "cannot compare string with numeric type"),
    ({"keep": ("f1 > avg(f1)",)}, "'avg' ... QA0316"),
    ({"keep": ("f1 > (select 1 from read_csv('/etc/passwd'))",)},
     "SELECT ... QA0316"),
    ({"keep": ("read_parquet('x') > 1",)}, "'read_parquet' ... QA0316"),
    ({"keep": ("1 = 1",)}, "'1 = 1' ... QA0316"),
    ({"keep": (" or ".join(f"id = 'q{i}'" for i in range(3_000)),)},
     "--keep ... 3,000 ... 500 ... IN ... QA0316"),
    ({"keep": ("id SIMILAR TO 'q'",)}, "expression SimilarTo is not currently supported"),
    ({"keep": ("length(lpad(id, 300000000, 'x')) > 5",)}, "LPAD and RPAD ... 9999 [QA0316]"),
    ({"keep": (f"{'replace(' * 9}id{', $q$, $qqqqqqqqqq$)' * 9} = 'a'".replace("$", "'"),)},
     "REPLACE ... 100 times ... QA0316"),
    ({"keep": ("replace(id, topic, id) = 'a'",)}, "REPLACE ... QA0316"),
    ({"group": "contxt"}, "--group: no column 'contxt'; did you mean 'context'?"),
    ({"quota": "topik=3"}, "--quota: no column 'topik'; did you mean 'topic'?"),
    ({"share_per": "contxt", "share": "0.5"},
     "--share-per: no column 'contxt'; did you mean 'context'?"),
    ({"quota": "topic=equal", "budget": 2}, "2 rows ... 3 values of topic ... QA0709"),
    ({"columns": {"question": "quesion"}},
     "no column 'quesion' for the role question; did you mean"),
    ({"columns": {"id": "topic"}}, "--column id=topic: the scores have the ids of id"),
    ({"rank_by": "combine.json"}, "--rank-by combine.json: "),
    ({"labels": "nowhere.csv", "label": "g", "precision": 0.8}, "nowhere.csv: no table there"),
])  # fmt: skip
def test_wrong_columns(out: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(QAEvalError) as raised:
        filtered(out, tmp_path / "kept", **options)
    assert tells(str(raised.value), message)
    assert not (tmp_path / "kept" / "_SUCCESS").exists()
    assert not (tmp_path / "kept" / "kept").exists()


@pytest.mark.parametrize("condition", [
    "replace(replace(id, 'q', ''), '-', ' ') <> ''", "length(lpad(lower(id), 12, '0')) = 12",
    " and ".join(f"f1 <> {i}" for i in range(2, 500)), "id in ('q1', 'q2')",
])  # fmt: skip
def test_ordinary_conditions_are_not_refused(out: Path, tmp_path: Path, condition: str) -> None:
    result, _ = filtered(out, tmp_path / "kept", keep=(condition,))
    assert result.content["kept"] > 0


def test_several_instances_need_a_rank(two: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2.*--rank-by.*f1.*QA0704"):
        filtered(two, tmp_path / "kept", share="0.5")


def test_a_run_that_is_not_complete(tmp_path: Path) -> None:
    out = scored(tmp_path, n_files=3)
    (out / "_SUCCESS").unlink()
    with pytest.raises(QAEvalError, match="_SUCCESS.*QA0512") as raised:
        filtered(out, tmp_path / "kept", share="0.5")
    assert not isinstance(raised.value, ConfigError)
    (out / "scores" / "part1.parquet").unlink()
    result, said = filtered(out, tmp_path / "kept", share="0.5", partial=True)
    assert result.content["rows"] == 80
    assert any("part1.parquet has no scores yet" in line for line in said)
    assert "is not complete" in json.dumps(result.content["notes"])


def test_input_that_changed_is_refused(tmp_path: Path) -> None:
    out = scored(tmp_path)
    path = tmp_path / "source" / "part1.parquet"
    pl.read_parquet(path).reverse().write_parquet(path)
    with pytest.raises(InputChangedError, match=r"part1\.parquet.*QA0309"):
        filtered(out, tmp_path / "kept", share="0.5")
    # Elsewhere, ids tell; and a row that is another one is found.
    shutil.move(tmp_path / "source", tmp_path / "moved")
    with pytest.raises(InputChangedError, match="ids of rows 0-.*QA0309"):
        filtered(out, tmp_path / "kept", share="0.5", inputs=(str(tmp_path / "moved"),))
    assert not (tmp_path / "kept" / "_SUCCESS").exists()


def test_input_that_was_moved_is_known_by_its_ids(tmp_path: Path) -> None:
    out = scored(tmp_path)
    filtered(out, tmp_path / "before", share="0.5")
    shutil.copytree(tmp_path / "source", tmp_path / "moved")
    shutil.rmtree(tmp_path / "source")
    with pytest.raises(InputError, match="--input.*PATH.*QA0301"):
        filtered(out, tmp_path / "kept", share="0.5")
    filtered(out, tmp_path / "kept", share="0.5", inputs=(str(tmp_path / "moved"),))
    for name in ("part0", "part1"):
        before, now = (tmp_path / k / "kept" / f"{name}.parquet" for k in ("before", "kept"))
        assert before.read_bytes() == now.read_bytes()


def test_files_that_came_or_went(tmp_path: Path) -> None:
    out = scored(tmp_path)
    source = tmp_path / "source"
    shutil.copy(source / "part0.parquet", source / "part9.parquet")
    with pytest.raises(InputError, match=r"part9\.parquet.*QA0515"):
        filtered(out, tmp_path / "kept", share="0.5")
    (source / "part9.parquet").unlink()
    (source / "part0.parquet").unlink()
    with pytest.raises(InputError, match=r"part0\.parquet.*QA0515"):
        filtered(out, tmp_path / "kept", share="0.5")


def test_scores_with_a_turned_bit(tmp_path: Path) -> None:
    out = scored(tmp_path)
    path = out / "scores" / "part0.parquet"
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    path.write_bytes(content)
    with pytest.raises(ReconcileError, match=r"part0\.parquet.*QA0510"):
        filtered(out, tmp_path / "kept", share="0.5")


def test_a_column_named_like_a_score(tmp_path: Path) -> None:
    out = scored(tmp_path)
    for path in (tmp_path / "source").iterdir():
        pl.read_parquet(path).with_columns(f1=pl.lit(1.0)).write_parquet(path)
    score_again(tmp_path)
    with pytest.raises(SchemaError, match="'f1'.*QA0308"):
        filtered(out, tmp_path / "kept", share="0.5")


def test_a_column_that_stands_there_twice(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["s", "s"])
    write_parquet(tmp_path / "table" / "t.parquet", table)
    with pytest.raises(SchemaError, match=r"t\.parquet.*'s'.*QA0308"):
        filtered(tmp_path / "table", tmp_path / "kept", rank_by="s")


def test_kept_inside_of_out_or_among_the_input(out: Path, tmp_path: Path) -> None:
    for folder in (out / "kept", out, out.parent, out / "scores"):
        with pytest.raises(ConfigError, match="QA0109"):
            filtered(out, folder, share="0.5")
    # Whatever lies there would be scored next time.
    for folder in (out.parent / "source", out.parent / "source" / "deep" / "kept"):
        with pytest.raises(ConfigError, match="QA0109"):
            filtered(out, folder, share="0.5")
    assert not (out.parent / "source" / "deep").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(ConfigError, match=r"thesis\.tex.*QA0110"):
        filtered(out, tmp_path / "mine", share="0.5")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_link_out_of_kept_is_not_followed(out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious.parquet").write_bytes(b"x")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "decisions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(QAEvalError, match="QA0508"):
        filtered(out, tmp_path / "kept", share="0.5")
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["precious.parquet"]


LABELS = [
    (lambda ids: pl.DataFrame({"id": ids[:30], "good": [2] * 30}), "holds 2 ... QA0315"),
    (lambda ids: pl.DataFrame({"id": ids[:30], "good": ["y"] * 30}), "is String ... QA0306"),
    (lambda ids: pl.DataFrame({"id": [*ids[:9], "nobody"], "good": [1] * 10}),
     "1 of 10 ids ... 'nobody' ... QA0313"),
    (lambda ids: pl.DataFrame({"id": ["q1", "q1"], "good": [1, 0]}),
     "'q1' ... QA0313"),
    (lambda ids: pl.DataFrame({"ids": ids[:9], "good": [1] * 9}),
     "labels.parquet: no column 'id'; did you mean 'ids'?"),
    (lambda ids: pl.DataFrame({"id": ids[:9], "goot": [1] * 9}),
     "no column 'good'; did you mean 'goot'?"),
    (lambda ids: pl.DataFrame({"id": ids[:9], "good": pl.Series([None] * 9, dtype=pl.Int64)}),
     "'good' ... QA0315"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), LABELS)
def test_bad_labels(out: Path, tmp_path: Path, make: object, message: str) -> None:
    ids = [f"q{i}" for i in range(120)]
    make(ids).write_parquet(tmp_path / "labels.parquet")  # type: ignore[operator]
    given = {"labels": str(tmp_path / "labels.parquet"), "label": "good"}
    for options in ({"precision": 0.8}, {"learn": ("f1",)}):
        with pytest.raises(QAEvalError) as raised:
            filtered(out, tmp_path / "kept", **given, **options)
        assert tells(str(raised.value), message)
        assert not (tmp_path / "kept" / "_SUCCESS").exists()


@pytest.mark.parametrize("value", [0, 1])
def test_labels_of_one_kind(out: Path, tmp_path: Path, value: int) -> None:
    ids = [f"q{i}" for i in range(0, 120, 5)]
    pl.DataFrame({"id": ids, "good": [value] * len(ids)}).write_csv(tmp_path / "labels.csv")
    given = {"labels": str(tmp_path / "labels.csv"), "label": "good == 1"}
    with pytest.raises(ConfigError, match=f"9 of 24 labels: {9 * value} of 9.*QA0315"):
        filtered(out, tmp_path / "kept", **given, learn=("f1",))
    # All good ones may certify; all bad ones never do.
    result, _ = filtered(out, tmp_path / "kept", **given, precision=0.5)
    assert result.is_certified == bool(value)
    assert (tmp_path / "kept" / "_SUCCESS").exists() == bool(value)


def test_another_signature_in_combine_json(out: Path, tmp_path: Path) -> None:
    ids = [f"q{i}" for i in range(120)]
    good = np.arange(120) % 3 > 0
    pl.DataFrame({"id": ids, "good": good}).write_parquet(tmp_path / "labels.parquet")
    given = {"labels": str(tmp_path / "labels.parquet"), "label": "good"}
    filtered(out, tmp_path / "kept", **given, learn=("f1", "f1_recall"), share="0.5")
    combine = tmp_path / "combine.json"
    shutil.copy(tmp_path / "kept" / "combine.json", combine)
    result, _ = filtered(out, tmp_path / "again", rank_by=str(combine), share="0.5")
    kept, again = (pl.read_parquet(tmp_path / k / "decisions") for k in ("kept", "again"))
    assert kept.equals(again) and result.content["kept"] > 0
    content = json.loads(combine.read_text())
    content["columns"][0]["signature"] = "f1|v:0"
    combine.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="'f1'.*QA0703"):
        filtered(out, tmp_path / "other", rank_by=str(combine), share="0.5")
    combine.write_text("{}")
    with pytest.raises(ConfigError, match="QA0703"):
        filtered(out, tmp_path / "other", rank_by=str(combine), share="0.5")


def test_groups_and_quotas_that_are_null(tmp_path: Path) -> None:
    out = scored(tmp_path)
    for path in (tmp_path / "source").iterdir():
        table = pl.read_parquet(path)
        is_odd = pl.int_range(pl.len()) % 2 == 1
        table.with_columns(topic=pl.when(is_odd).then("topic")).write_parquet(path)
    score_again(tmp_path)
    for options in ({"group": "topic", "top_k": 2}, {"quota": "topic=100"}):
        result, _ = filtered(out, tmp_path / "kept", near_duplicates="none", **options)
        assert result.content["reasons"]["undefined_topic"] == 60
    result, _ = filtered(out, tmp_path / "kept", group="topic", top_k=1, undefined="keep")
    # Whoever has no group stands alone; the ten words' groups have one row each.
    assert result.content["kept"] == 60 + 3
    with pytest.raises(SchemaError, match="60.*undefined_topic.*0.*part0.*QA0708"):
        filtered(out, tmp_path / "other", group="topic", top_k=1, undefined="fail")


def test_empty_files_and_empty_corpora(tmp_path: Path) -> None:
    out = scored(tmp_path, n_rows=10, n_files=3)
    empty = tmp_path / "source" / "part9.parquet"
    pl.read_parquet(tmp_path / "source" / "part0.parquet")[:0].write_parquet(empty)
    score_again(tmp_path)
    result, _ = filtered(out, tmp_path / "kept", share="0.5", near_duplicates="none")
    assert (result.content["rows"], result.content["kept"]) == (10, 5)
    names = ["part0.parquet", "part1.parquet", "part2.parquet", "part9.parquet"]
    for folder in ("kept", "decisions"):
        own = tmp_path / "kept" / folder
        assert sorted(path.name for path in own.iterdir()) == names
        assert pl.read_parquet(own / "part9.parquet").height == 0
    result, _ = filtered(out, tmp_path / "none", keep=("f1 > 2",), share="0.5")
    assert result.content["kept"] == 0 and result.content["reasons"] == {"keep": 10}
    assert pl.read_parquet(tmp_path / "none" / "kept").height == 0


@pytest.mark.parametrize("options", [
    {}, {"top_k": 2, "share": "0.5"}, {"near_duplicates": "rouge_l=0.7"}, {"quota": "topic=2"},
    {"quota": "topic=equal", "budget": 3}, {"undefined": "keep", "budget": 3}, {"label_sheet": 5},
    {"share": "0.5", "share_per": "topic"}, {"budget": 9, "share_per": "topic", "quota": "topic=2"},
])  # fmt: skip
def test_a_corpus_without_any_row(tmp_path: Path, options: dict[str, object]) -> None:
    out = scored(tmp_path, n_rows=0, n_files=1)
    result, _ = filtered(out, tmp_path / "kept", **options)
    if "label_sheet" in options:
        sheet = tmp_path / "kept" / "label_sheet.csv"
        assert sheet.read_text(encoding="utf-8-sig") == '"id","good"\n'
        return
    assert (result.content["rows"], result.content["kept"]) == (0, 0)
    assert (tmp_path / "kept" / "_SUCCESS").exists()
    for folder in ("kept", "decisions"):
        assert pl.read_parquet(tmp_path / "kept" / folder).height == 0


def test_files_whose_columns_are_of_other_kinds(tmp_path: Path) -> None:
    rows = pl.DataFrame({"id": [1, 2], "score": [0.1, 0.2], "other": [1.0, 2.0], "topic": "t"})
    (tmp_path / "rows").mkdir()
    rows.write_parquet(tmp_path / "rows" / "a.parquet")
    texts = rows.with_columns(score=pl.lit("high"), topic=pl.concat_list("topic"))
    texts.write_parquet(tmp_path / "rows" / "b.parquet")
    for options, message in (
        ({"rank_by": "score"}, "--rank-by.*'score'.*large_string.*QA0306"),
        ({"rank_by": "other", "keep": ("score > 0.1",)}, "QA0316"),
        ({"rank_by": "other", "group": "topic"}, "--group.*'topic'.*QA0306"),
        ({"rank_by": "other", "quota": "topic=1"}, "--quota.*'topic'.*QA0306"),
        ({"rank_by": "other", "share": 1, "share_per": "topic"}, "--share-per.*'topic'.*QA0306"),
    ):
        with pytest.raises((ConfigError, SchemaError), match=message):
            filtered(tmp_path / "rows", tmp_path / "kept", **options)
    assert not (tmp_path / "kept").exists()
    result, _ = filtered(tmp_path / "rows", tmp_path / "kept", share="0.5")
    assert (result.content["rank"]["name"], result.content["kept"]) == ("other", 2)
    assert set(result.content["means"]) == {"other"}


def test_kept_where_no_folder_can_be(out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "kept"):
        with pytest.raises(RunError, match="QA0508"):
            filtered(out, folder, share="0.5")
    assert (tmp_path / "file").read_text() == "mine"


def test_rows_without_a_label_are_counted(out: Path, tmp_path: Path) -> None:
    table = pl.DataFrame({"id": [f"q{i}" for i in range(60)], "good": [1] * 50 + [None] * 10})
    table.write_csv(tmp_path / "labels.csv")
    given = {"labels": str(tmp_path / "labels.csv"), "label": "good == 1", "precision": 0.5}
    result, _ = filtered(out, tmp_path / "kept", **given)
    assert result.content["certificate"]["n_labels"] == 60
    assert result.content["certificate"]["blank"]["n"] == 10
    result, _ = filtered(out, tmp_path / "left", **given, blank="ignore")
    assert result.content["certificate"]["n_labels"] == 50


def test_labels_that_changed_in_a_folder_are_read_again(out: Path, tmp_path: Path) -> None:
    """Else the certificate of the labels before stands there as that of these."""
    labels = tmp_path / "labels"
    labels.mkdir()
    given = {"labels": str(labels), "label": "good", "precision": 0.5}
    table = pl.DataFrame({"id": [f"q{i}" for i in range(60)], "good": [1] * 60})
    table.write_csv(labels / "a.csv")
    result, _ = filtered(out, tmp_path / "kept", **given)
    assert result.is_certified and not filtered(out, tmp_path / "kept", **given)[0].is_new
    table.with_columns(good=pl.lit(0)).write_csv(labels / "a.csv")
    result, _ = filtered(out, tmp_path / "kept", **given)
    assert result.is_new and not result.is_certified


def test_views_of_texts_are_texts(tmp_path: Path) -> None:
    """Arrow chooses no rows of them: the second pass ended, and named no column."""
    text, number = pa.string_view(), [float(i) for i in range(6)]
    names = ["a", "b", None, "d", "e", "f"]
    kinds = [
        text, pa.binary_view(), pa.list_(text), pa.large_list(text), pa.struct([("x", text)]),
        pa.list_(pa.struct([("x", pa.list_(text))])),
    ]  # fmt: skip
    values = [
        names, [b"\xff"] * 6, [names, None] * 3, [[]] * 6, [{"x": None}] * 6, [[{"x": names}]] * 6,
    ]  # fmt: skip
    table = pa.table(
        {
            "id": pa.array([f"q{i}" for i in range(6)], text),
            "question": pa.array(["why is it so and so?"] * 6, text),
            "context": pa.array(["c", "c", "d", "d", "e", None], text),
            "s": number,
            **{f"c{i}": pa.array(*own) for i, own in enumerate(zip(values, kinds, strict=True))},
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    options = {"rank_by": "s", "keep": ("question like 'why%'",), "quota": "context=1"}
    result, _ = filtered(tmp_path / "a.parquet", tmp_path / "kept", undefined="keep", **options)
    assert result.content["reasons"] == {"duplicate": 2}
    kept = pq.read_table(tmp_path / "kept" / "kept" / "a.parquet")
    written = pq.read_table(tmp_path / "a.parquet")
    assert kept.schema == written.schema
    assert kept.to_pylist() == [written.to_pylist()[i] for i in (1, 3, 4, 5)]


def test_a_table_has_no_other_input(tmp_path: Path) -> None:
    """It was left out without a word."""
    pl.DataFrame({"id": [1, 2], "s": [0.1, 0.2]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="--input.*OUT.*QA0102"):
        filtered(tmp_path / "a.parquet", tmp_path / "kept", inputs=("elsewhere",))


def test_a_sheet_whose_ids_are_of_several_rows_is_not_written(tmp_path: Path) -> None:
    """Labels of them were refused once people had made them."""
    ids = [f"q{i % 55}" for i in range(60)]
    table = pl.DataFrame({"id": ids, "s": np.arange(60.0), "question": "why?"})
    table.write_parquet(tmp_path / "rows.parquet")
    options = {"rank_by": "s", "near_duplicates": "none", "group": "id"}
    with pytest.raises(SchemaError, match="10.*60.*'q0'.*'q1'.*QA0313"):
        filtered(tmp_path / "rows.parquet", tmp_path / "kept", label_sheet=100, **options)
    # Rows that an earlier stage drops are looked at, too: labels name all.
    with pytest.raises(SchemaError, match="5 of 55 ids.*'q0'.*QA0313"):
        filtered(
            tmp_path / "rows.parquet",
            tmp_path / "kept",
            label_sheet=55,
            keep=("s < 55",),
            **options,
        )
    assert not (tmp_path / "kept" / "label_sheet.csv").exists()
    filtered(
        tmp_path / "rows.parquet", tmp_path / "kept", label_sheet=9, keep=("s > 4 and s < 55",),
        **options,
    )  # fmt: skip
    assert len((tmp_path / "kept" / "label_sheet.csv").read_text().splitlines()) == 10


def test_a_sheet_with_an_id_that_is_empty_is_not_written(tmp_path: Path) -> None:
    """Its label was dropped: 239 of 240 counted."""
    table = pl.DataFrame({"id": ["", "a", "b"], "s": [0.1, 0.2, 0.3], "question": "why?"})
    table.write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(SchemaError, match="1.*3.*QA0313"):
        filtered(tmp_path / "rows.parquet", tmp_path / "kept", rank_by="s", label_sheet=3)
    assert not (tmp_path / "kept" / "label_sheet.csv").exists()


@pytest.mark.parametrize(
    "before", ["", "\n", " ", "\u2028", "\u3000", "\ufeff", "\u200b", "\u202e"]
)
@pytest.mark.parametrize("sign", "=+-@\uff1d\uff0b\uff0d\uff20")
def test_no_cell_is_a_formula_once_it_is_trimmed(before: str, sign: str) -> None:
    text = f"{before}{sign}SUM(A1)"
    sheet = sheet_text([{"id": text, "question": text}])
    row = next(csv.DictReader(io.StringIO(sheet, newline="")))
    assert row["id"] == f"'{text}" and _without_escape(row["id"]) == text
    assert row["question"] == f"'{text}".replace("\u202e", "\\u202e")


@given(st.text("'=+-@\t\r\nq\"; \u2028\uff1d\u202e", min_size=1))
def test_ids_come_back_from_a_sheet_as_they_were(name: str) -> None:
    """Protects from an apostrophe of an id taken for the one that keeps spreadsheets off."""
    row = next(
        csv.DictReader(io.StringIO(sheet_text([{"id": name, "question": name}]), newline=""))
    )
    assert not row["id"].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert _without_escape(row["id"]) == name


def test_labels_of_rows_that_are_dropped_before_are_counted(out: Path, tmp_path: Path) -> None:
    table = pl.DataFrame({"id": [f"q{i}" for i in range(60)], "good": [1] * 60})
    table.write_csv(tmp_path / "labels.csv")
    given = {"labels": str(tmp_path / "labels.csv"), "label": "good", "precision": 0.5}
    result, said = filtered(out, tmp_path / "kept", keep=("topic != 'ash'",), **given)
    n_labels = result.content["certificate"]["n_labels"]
    assert 0 < n_labels < 60
    assert any(f"{60 - n_labels} of 60 labels are of rows that an earlier" in one for one in said)
    result, _ = filtered(out, tmp_path / "kept", keep=("f1 > 2",), **given)
    assert not result.is_certified and not (tmp_path / "kept" / "_SUCCESS").exists()
    assert "no label is of a row that could be kept" in "\n".join(result_lines(result.content, "k"))
