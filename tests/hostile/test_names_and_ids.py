"""Names and ids that cannot be written: said before any work, or written as they can be."""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, read_scores, write_parquet
from qaeval_core.errors import ConfigError, InputError, QAEvalError, SchemaError
from qaeval_core.planning.listing import MAX_NAME_BYTES
from qaeval_core.text.column_hashes import hashes, readable, text_of
from word_jobs import is_whole, request, rows, run


def long_name(folder: Path) -> None:
    write_parquet(folder / f"{'n' * 247}.parquet", rows())


def long_folder(folder: Path) -> None:
    write_parquet(folder / ("n" * 220) / "a.parquet", rows())


def no_utf8(folder: Path) -> None:
    write_parquet(folder / "a.parquet", rows()).rename(
        os.fsdecode(bytes(folder) + b"/a\xff.parquet")
    )


def no_utf8_folder(folder: Path) -> None:
    write_parquet(folder / "a" / "a.parquet", rows())
    os.rename(folder / "a", os.fsdecode(bytes(folder) + b"/a\xff"))


def both(folder: Path) -> None:
    write_parquet(folder / "one" / "a.parquet", rows())
    write_parquet(folder / "two" / "a.parquet" / "b.parquet", rows())


@pytest.mark.parametrize("pattern", ["", "/**/*.parquet"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (long_name, r"n\.\.\..*255.*200.*OUT.*QA0310"),
        (long_folder, r"n\.\.\..*220.*200.*OUT.*QA0310"),
        (no_utf8, "UTF-8.*QA0310"),
        (no_utf8_folder, "a�/a.parquet.*UTF-8.*QA0310"),
    ],
)
def test_names_that_cannot_be_written_are_refused_first(
    tmp_path: Path, make: Callable[[Path], None], said: str, pattern: str
) -> None:
    """A trace, at the join, after all is paid, at every try."""
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    with pytest.raises(InputError, match=said):
        run(request(f"{tmp_path}/in{pattern}", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_anothers_folder_is_refused_first(tmp_path: Path) -> None:
    """``a.parquet`` and ``a.parquet/b.parquet`` cannot both lie below scores/."""
    both(tmp_path)
    given = {"input.paths": [str(tmp_path / "one"), str(tmp_path / "two")]}
    with pytest.raises(InputError, match=r"a\.parquet.*QA0310"):
        run({**request("", tmp_path / "out"), **given})
    assert not (tmp_path / "out").exists()


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path) -> None:
    """Names of temporary files are longer, and those of commits do not depend on it."""
    name = "\u00e4" * ((MAX_NAME_BYTES - 8) // 2) + ".parquet"
    write_parquet(tmp_path / "in" / name, rows())
    run(request(tmp_path / "in", tmp_path / "out"))
    assert (tmp_path / "out" / "scores" / name).is_file()


def test_a_bad_name_is_a_bad_request(tmp_path: Path) -> None:
    """Exit 2, without a trace."""
    (tmp_path / "in").mkdir()
    no_utf8(tmp_path / "in")
    mapped = ["--column", "references=reference", "--metrics", "f1", "--local"]
    shown = qaeval("score", tmp_path / "in", "--out", tmp_path / "out", *mapped, expect=2)
    assert "rename it" in shown


def broken(texts: list[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return texts of any bytes."""
    return pa.array(texts, pa.binary()).view(pa.string()).cast(kind or pa.string())


BYTES = [b"a", b"b\xff", b"b\xfe", b"b\xff", None, b"\xf0\x9f\x90\x9d"]
SHOWN = ["a", "b\ufffd", "b\ufffd", "b\ufffd", None, "\U0001f41d"]


def with_ids(ids: pa.Array | pa.ChunkedArray, **columns: Any) -> pa.Table:
    """Return rows with these ids; the second one's candidate is no text."""
    given = rows(len(ids)).set_column(0, "id", ids)
    texts = [text.encode() for text in given["candidate"].to_pylist()]
    texts[1] = b"\xff"
    table = given.set_column(1, "candidate", broken(texts))
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def test_ids_that_are_no_utf8_are_compared_by_bytes_and_shown_with_replacement(
    tmp_path: Path,
) -> None:
    """A trace at the join where such a row is quarantined, after all is computed."""
    table = with_ids(broken(BYTES), label=broken([b"x", b"\xff", b"y", b"z", None, b"\xc3"]))
    source = write_parquet(tmp_path / "input.parquet", table)
    outcome, _ = run(request(source, tmp_path / "out", output__carry=["label"]))
    assert outcome.report is not None
    assert outcome.report["duplicate_ids"] == 1
    scores = read_scores(tmp_path / "out")
    assert scores["id"].cast(pl.String).to_list() == SHOWN
    assert scores["label"].to_list() == ["x", "\ufffd", "y", "z", None, "\ufffd"]
    assert scores["f1"].to_list() == [1.0, None, 1.0, 1.0, 1.0, 1.0]
    kept = pl.read_parquet(tmp_path / "out" / "quarantine" / "input.parquet")
    assert kept["id"].to_list() == ["b\ufffd"]


TIMES = pa.array([0, 1, 2, 1, None, 2**62], pa.int64())
IDS = {
    "decimal256": pa.array([decimal.Decimal(n) for n in range(6)], pa.decimal256(60, 2)),
    "unknown time zone": TIMES.view(pa.timestamp("us", "Mars/Olympus")),
    "nanoseconds": TIMES.view(pa.timestamp("ns")),
    "far time": pa.array([0, 1, 2, 3, None, 2**50]).view(pa.timestamp("s")),
    "dictionary": pa.array(["a", "b", "a", "b", None, "c"]).dictionary_encode(),
    "far date": pa.array([0, 1, 2, 3, None, 2**31 - 1], pa.int32()).view(pa.date32()),
    "duration": TIMES.view(pa.duration("s")),
    "large text": broken(BYTES, pa.large_string()),
    "bytes": pa.array(BYTES, pa.binary()),
    "uuid": pa.array([bytes(16)] * 6, pa.uuid()),
    "record": pa.array([{"a": n, "b": "x"} for n in range(6)]),
    "list": pa.array([[n] for n in range(6)]),
    "true": pa.array([True] * 6),
    "nothing": pa.nulls(6),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_of_any_type_are_copied_and_named(tmp_path: Path, ids: pa.Array) -> None:
    """Some types of ids ended the run with a trace, after all was computed."""
    source = write_parquet(tmp_path / "input.parquet", with_ids(ids))
    run(request(source, tmp_path / "out"))
    scores = pq.read_table(tmp_path / "out" / "scores" / "input.parquet")
    assert len(scores) == 6
    kept = pl.read_parquet(tmp_path / "out" / "quarantine" / "input.parquet")
    assert kept["id"].to_list() == [text_of(ids[1])]
    assert (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (
            pa.scalar(5, pa.timestamp("us", "Mars/Olympus")),
            "1970-01-01 00:00:00.000005 UTC, Mars/Olympus",
        ),
        (pa.scalar(0, pa.timestamp("s")), "1970-01-01 00:00:00"),
        (pa.scalar(decimal.Decimal("1.50"), pa.decimal256(40, 2)), "1.50"),
        (broken([b"\xffa"])[0], "\ufffda"),
        (pa.scalar(None, pa.string()), None),
        (pa.scalar(datetime.date(2026, 1, 2)), "2026-01-02"),
        (pa.StructArray.from_arrays([broken([b"\xff"])], ["a"])[0], "(struct<a: string>)"),
    ],
)
def test_an_id_is_shown(ids: pa.Scalar, said: str | None) -> None:
    """Quarantine names the row by it."""
    assert text_of(ids) == said


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_ids_of_other_bytes_differ(kind: pa.DataType) -> None:
    """Shown alike, they are two."""
    ids = pa.chunked_array([broken(BYTES).view(pa.binary()).cast(pa.binary())])
    texts = pa.chunked_array([broken(BYTES[:1], kind), broken([b"b", b"a"], kind)])
    assert len(set(hashes(ids))) == 5
    assert len(set(hashes(texts))) == 2
    assert readable(texts) is texts


def a_column_twice(tmp_path: Path) -> dict[str, Any]:
    table = rows().append_column("x", pa.array(range(64))).append_column("x", pa.array(range(64)))
    source = write_parquet(tmp_path / "input.parquet", table)
    return request(source, tmp_path / "out", output__carry=["x"])


def carried_twice(tmp_path: Path) -> dict[str, Any]:
    source = write_parquet(
        tmp_path / "input.parquet", rows().append_column("x", pa.array(range(64)))
    )
    return request(source, tmp_path / "out", output__carry=["x", "x"])


def uncomparable(tmp_path: Path) -> dict[str, Any]:
    ids = pa.array([[decimal.Decimal(n)] for n in range(64)], pa.list_(pa.decimal256(60, 2)))
    source = write_parquet(tmp_path / "input.parquet", rows().set_column(0, "id", ids))
    return request(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (a_column_twice, SchemaError, "'x'.*QA0308"),
        (carried_twice, ConfigError, "'x'.*QA0106"),
        (uncomparable, SchemaError, "'id'.*list<.*>.*QA0306"),
    ],
)
def test_what_cannot_be_copied_is_refused_first(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], kind: type[QAEvalError], said: str
) -> None:
    """A trace, after all is computed, at every try."""
    with pytest.raises(kind, match=said):
        run(make(tmp_path))
    assert not (tmp_path / "out").exists()


def test_scores_do_not_depend_on_such_ids(tmp_path: Path) -> None:
    """The usual ids: nothing has changed for them."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out"))
    assert is_whole(tmp_path / "out")
    assert read_scores(tmp_path / "out")["id"].to_list() == list(map(str, range(64)))
