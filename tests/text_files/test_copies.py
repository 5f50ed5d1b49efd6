"""Files of text: their copies have the rows that they have, wherever they are cut."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.errors import InputError, QAEvalError
from qaeval_core.planning.text_files import blocks
from qaeval_core.planning.text_files import copies as copies_module
from qaeval_core.planning.text_files.copies import Copies
from qaeval_core.planning.text_files.kinds import kind_of
from qaeval_core.schema import UNREADABLE_LINE
from qaeval_core.storage.path import as_path

LINES = [
    {"q": "Ä", "r": ["b"], "n": 1},
    {"q": "2020-01-01", "n": None},
    {"q": "x\ny", "n": 2.5, "s": {"a": 1}},
    {"r": None, "s": {"b": "日"}},
]


def copied(
    folder: Path, content: bytes, name: str = "rows.jsonl", **options: object
) -> tuple[pa.Table, str]:
    """Return the rows of a file's copy, and its note."""
    path = folder / name
    path.write_bytes(content)
    copies = Copies(as_path(folder / "inputs"), **options)  # type: ignore[arg-type]
    kind = kind_of(name)
    assert kind is not None
    copy = copies.of(str(path), name, kind)
    assert not list((folder / "inputs").glob("*.parts"))
    return pq.read_table(str(copy.path)), copy.note


def plain(table: pa.Table) -> list[dict]:
    return table.drop_columns([UNREADABLE_LINE]).to_pylist()


def jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


ROWS = [
    {"q": "Ä", "r": ["b"], "n": 1.0, "s": None},
    {"q": "2020-01-01", "r": None, "n": None, "s": None},
    {"q": "x\ny", "r": None, "n": 2.5, "s": {"a": 1, "b": None}},
    {"q": None, "r": None, "n": None, "s": {"a": None, "b": "日"}},
]


# Every size of a block, so a cut at every position, is slow: some hundred copies.
STEPS = pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])


@STEPS
def test_lines_are_the_same_rows_wherever_they_are_cut(tmp_path: Path, step: int) -> None:
    """No line is lost, halved or doubled."""
    content = jsonl(LINES).removesuffix(b"\n")
    for n_bytes in range(1, len(content) + 2, step):
        folder = tmp_path / str(n_bytes)
        folder.mkdir()
        table, note = copied(folder, content, block_bytes=n_bytes)
        assert plain(table) == ROWS, n_bytes
        assert not note and table[UNREADABLE_LINE].null_count == 4


CSV_ROWS = [
    ["id", "question", "n", "zip", "is_good"],
    ["1", "a, b", "1", "007", "True"],
    ["2", 'say "hi"', "2.5", "12", "false"],
    ["3", "", "-3e2", "1", "true"],
    ["4", '5" pipe, é', "", "0", "FALSE"],
]
TYPED = [
    {"id": "1", "question": "a, b", "n": 1.0, "zip": "007", "is_good": True},
    {"id": "2", "question": 'say "hi"', "n": 2.5, "zip": "12", "is_good": False},
    {"id": "3", "question": None, "n": -300.0, "zip": "1", "is_good": True},
    {"id": "4", "question": '5" pipe, é', "n": None, "zip": "0", "is_good": False},
]


def written(rows: list[list[str]], **options: object) -> bytes:
    text = io.StringIO()
    csv.writer(text, **options).writerows(rows)  # type: ignore[arg-type]
    return text.getvalue().encode()


@STEPS
@pytest.mark.parametrize("has_breaks", [False, True])
def test_records_are_the_same_rows_wherever_they_are_cut(
    tmp_path: Path, has_breaks: bool, step: int
) -> None:
    """Of values with line breaks a file is not cut, and no record ends inside of one."""
    rows = [list(row) for row in CSV_ROWS]
    wanted = [dict(row) for row in TYPED]
    if has_breaks:
        rows[1][1] = wanted[0]["question"] = 'two\nlines, "one"\r\n'  # type: ignore[assignment]
        rows[4][1] = wanted[3]["question"] = '\n"'  # type: ignore[assignment]
    content = written(rows)
    for n_bytes in range(1, len(content) + 2, step):
        folder = tmp_path / str(n_bytes)
        folder.mkdir()
        table, _ = copied(
            folder, content, "rows.csv", block_bytes=n_bytes, texts=frozenset({"id", "question"})
        )
        assert plain(table) == wanted, n_bytes


def test_a_quoted_empty_cell_is_the_empty_text_and_another_none(tmp_path: Path) -> None:
    table, _ = copied(tmp_path, b'a,b\n"",1\n,2\n', "rows.csv")
    assert plain(table) == [{"a": "", "b": 1}, {"a": None, "b": 2}]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id": "x",', "it is not JSON"),
        (b"[1]", "a JSON object is needed, not list"),
        (b'{"id": "\xff"}', "it is not UTF-8"),
        (b'{"id": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_a_line_that_is_no_row_is_one_with_file_line_and_reason(
    tmp_path: Path, line: bytes, why: str
) -> None:
    """Whatever blocks it lies in; the rows around it stay as they are."""
    lines = [*jsonl(LINES[:2]).splitlines(), b"", line, *jsonl(LINES[2:]).splitlines()]
    for n_bytes in (7, 60, 1 << 20):
        folder = tmp_path / str(n_bytes)
        folder.mkdir()
        table, note = copied(folder, b"\n".join(lines), block_bytes=n_bytes)
        told = table[UNREADABLE_LINE].to_pylist()
        assert [bool(own) for own in told] == [False, False, True, False, False]
        assert told[2].startswith("rows.jsonl, line 4: ") and why in told[2]
        rows = plain(table)
        assert set(rows.pop(2).values()) == {None}
        assert rows == ROWS
        assert note.startswith("rows.jsonl: 1 line is unreadable") and "line 4" in note


def test_a_record_of_another_width_is_one_with_its_line(tmp_path: Path) -> None:
    """Lines are counted, not records."""
    content = b'id,x\n1,"a\nb"\n\n2\n3,c\n'
    for n_bytes in (4, 1 << 20):
        folder = tmp_path / str(n_bytes)
        folder.mkdir()
        table, _ = copied(folder, content, "rows.csv", block_bytes=n_bytes)
        assert table[UNREADABLE_LINE].to_pylist() == [
            None,
            "rows.csv, line 5: 1 values for 2 columns",
            None,
        ]
        assert [row["x"] for row in plain(table)] == ["a\nb", None, "c"]


def test_what_has_several_types_is_json_and_no_digit_is_lost(tmp_path: Path) -> None:
    """A number among texts costs its own row, not the file; large numbers stay exact."""
    rows = [{"a": "x", "b": 2**63 + 1, "c": 2**53 + 1}, {"a": 5, "b": 7, "c": 0.5}]
    records = written([["a", "b"], [str(2**53 + 1), "9" * 20], ["0.5", "1"]])
    for n_bytes in (1, 1 << 20):
        folder = tmp_path / str(n_bytes)
        folder.mkdir()
        table, _ = copied(folder, jsonl(rows), block_bytes=n_bytes)
        found = plain(table)
        assert [json.loads(row["a"]) for row in found] == ["x", 5]
        assert [int(str(row["b"])) for row in found] == [2**63 + 1, 7]
        assert json.loads(str(found[0]["c"])) == 2**53 + 1
        table, _ = copied(folder, records, "rows.csv", block_bytes=n_bytes)
        assert plain(table) == [{"a": str(2**53 + 1), "b": "9" * 20}, {"a": "0.5", "b": "1"}]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    """Marks are heeded; others are named."""
    given = None if encoding in ("utf-8-sig", "utf-16") else encoding
    text = 'id,question\n1,"Ä, ß"\n2,é\n'
    table, _ = copied(tmp_path, text.encode(encoding), "rows.csv", encoding=given, block_bytes=9)
    assert [row["question"] for row in plain(table)] == ["Ä, ß", "é"]
    text = '{"id": 1, "question": "Ä"}\n{"id": 2, "question": "é"}'
    table, _ = copied(tmp_path, text.encode(encoding), encoding=given, block_bytes=9)
    assert plain(table) == [{"id": 1, "question": "Ä"}, {"id": 2, "question": "é"}]


def test_windows_text_without_its_name_is_no_text(tmp_path: Path) -> None:
    """Nobody guesses what a byte means."""
    table, note = copied(tmp_path, '{"a": "Ä"}\n{"a": "b"}\n'.encode("cp1252"))
    assert [row["a"] for row in plain(table)] == [None, "b"] and "not UTF-8" in note


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [
        (b"", "rows.jsonl", "is empty"),
        (b" \n", "rows.csv", "is empty"),
        (b"a,a\n1,2\n", "rows.csv", "names 'a' twice"),
        (b"a,,b\n1,2,3\n", "rows.csv", "a column of it has no name"),
        (b'{"a": ', "rows.json", "is not JSON"),
        (b"[1, 2]", "rows.json", "holds no rows"),
        (b'{"q1": "Ann"}', "rows.json", "--predictions"),
        (b"\x1f\x8b\x08garbage", "rows.jsonl.gz", "cannot read"),
        (b"a,b\n" * 3, "rows.jsonl", None),
    ],
)
def test_files_that_are_no_data_are_named(
    tmp_path: Path, content: bytes, name: str, why: str | None
) -> None:
    if why is None:  # Lines of another kind are rows that say so.
        assert copied(tmp_path, content, name)[0][UNREADABLE_LINE].null_count == 0
        return
    with pytest.raises(QAEvalError) as caught:
        copied(tmp_path, content, name)
    assert caught.value.code in ("QA0302", "QA0304")
    assert why in str(caught.value) and name in str(caught.value)


def squad(version: str = "v2.0") -> dict:
    answers = [{"text": "Ann", "answer_start": 3}, {"text": "Ann A.", "answer_start": 3}]
    questions = [
        {"id": "1", "question": "Who?", "answers": answers, "is_impossible": False},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "By Ann A.", "qas": questions}
    return {"version": version, "data": [{"title": "T", "paragraphs": [paragraph]}]}


QUESTIONS = [
    {
        "id": "1",
        "question": "Who?",
        "context": "By Ann A.",
        "answers": {"text": ["Ann", "Ann A."], "answer_start": [3, 3]},
        "is_impossible": False,
        "title": "T",
    },
    {
        "id": "2",
        "question": "Why?",
        "context": "By Ann A.",
        "answers": {"text": [], "answer_start": []},
        "is_impossible": True,
        "title": "T",
    },
]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (squad(), QUESTIONS),
        (squad()["data"][0], QUESTIONS),
        (
            [{"a": 1}, {"a": 2, "b": "2020-01-01"}],
            [{"a": 1, "b": None}, {"a": 2, "b": "2020-01-01"}],
        ),
        ({"data": [{"a": 1}]}, [{"a": 1}]),
        ({"a": [1, 2], "b": ["x", "y"]}, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        ({"a": {"0": 1, "1": 2}}, [{"a": 1}, {"a": 2}]),
    ],
)
def test_documents(tmp_path: Path, content: object, rows: list[dict]) -> None:
    table, _ = copied(tmp_path, json.dumps(content).encode(), "rows.json")
    assert plain(table) == rows


def test_json_lines_by_another_name_and_mrqa(tmp_path: Path) -> None:
    assert plain(copied(tmp_path, jsonl([{"a": 1}, {"a": 2}]), "rows.json")[0]) == [
        {"a": 1},
        {"a": 2},
    ]
    passage = {"context": "By Ann.", "qas": [{"qid": "7", "question": "Who?", "answers": ["Ann"]}]}
    content = pa.compress(
        jsonl([{"header": {"dataset": "x"}}, passage, passage]), "gzip", asbytes=True
    )
    row = {"id": "7", "question": "Who?", "context": "By Ann.", "answers": ["Ann"]}
    assert plain(copied(tmp_path, content, "mrqa.jsonl.gz")[0]) == [row, row]


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files_are_read_in_blocks(tmp_path: Path, codec: str) -> None:
    rows = [{"id": str(i), "a": "x" * i} for i in range(300)]
    suffix = {"gzip": ".gz", "zstd": ".zst"}[codec]
    packed = pa.compress(jsonl(rows), codec, asbytes=True)
    assert plain(copied(tmp_path, packed, f"a.jsonl{suffix}", block_bytes=1000)[0]) == rows
    packed = pa.compress(
        written([["id", "a"], *([r["id"], r["a"]] for r in rows)]), codec, asbytes=True
    )
    table, _ = copied(
        tmp_path, packed, f"a.csv{suffix}", block_bytes=1000, texts=frozenset({"id", "a"})
    )
    assert [row["a"] or "" for row in plain(table)] == [row["a"] for row in rows]


@pytest.fixture
def read_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the blocks that are read into rows, as they are."""
    found: list[int] = []
    parse: Callable = blocks._parse

    def counted(reading: blocks.TextReading, data: bytes, *more: Any) -> pa.Table:
        found.append(len(data))
        return parse(reading, data, *more)

    monkeypatch.setattr(blocks, "_parse", counted)
    return found


def test_of_a_file_that_grew_what_is_new_is_read(tmp_path: Path, read_blocks: list[int]) -> None:
    """And the block that was the last; a file that is the same is not read at all."""
    rows = [{"id": str(i), "text": "x" * 20} for i in range(100)]
    n_bytes = 500
    first, _ = copied(tmp_path, jsonl(rows), block_bytes=n_bytes)
    n_blocks = len(read_blocks)
    assert n_blocks > 5
    copied_again = Copies(as_path(tmp_path / "inputs"), block_bytes=n_bytes)
    kind = kind_of("a.jsonl")
    assert kind is not None
    copied_again.of(str(tmp_path / "rows.jsonl"), "rows.jsonl", kind)
    assert len(read_blocks) == n_blocks
    more = [*rows, *({"id": str(i), "text": "y"} for i in range(100, 130))]
    table, _ = copied(tmp_path, jsonl(more), block_bytes=n_bytes)
    assert plain(table) == more and plain(first) == rows
    assert sum(read_blocks[n_blocks:]) < len(jsonl(more)) - len(jsonl(rows)) + 2 * n_bytes
    (copy,) = (tmp_path / "inputs").glob("*.parquet")  # The last one is gone.
    changed = [{"id": "0", "text": "z"}, *more[1:]]
    assert plain(copied(tmp_path, jsonl(changed), block_bytes=n_bytes)[0]) == changed
    assert not copy.exists()
    typed = [*changed, {"id": "130", "text": 5}]
    table, _ = copied(tmp_path, jsonl(typed), block_bytes=n_bytes)
    texts = [json.loads(row["text"]) for row in plain(table)]
    assert texts == [row["text"] for row in typed]


def test_a_conversion_that_was_cut_off_goes_on(
    tmp_path: Path, read_blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that were read are not read again."""
    rows = [{"id": str(i)} for i in range(200)]
    counted = blocks._parse

    def fails(reading: blocks.TextReading, data: bytes, *more: Any) -> pa.Table:
        if b'"150"' in data:
            raise MemoryError
        return counted(reading, data, *more)

    monkeypatch.setattr(blocks, "_parse", fails)
    (tmp_path / "rows.jsonl").write_bytes(jsonl(rows))
    copies = Copies(as_path(tmp_path / "inputs"), block_bytes=300)
    kind = kind_of("a.jsonl")
    assert kind is not None
    with pytest.raises(MemoryError):
        copies.of(str(tmp_path / "rows.jsonl"), "rows.jsonl", kind)
    n_read = sum(read_blocks)
    assert n_read > 0 and not list((tmp_path / "inputs").glob("*.parquet"))
    monkeypatch.setattr(blocks, "_parse", counted)
    table, _ = copied(tmp_path, jsonl(rows), block_bytes=300)
    assert plain(table) == rows
    assert sum(read_blocks) == len(jsonl(rows))


def test_another_run_may_have_put_the_parts_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversions come before a run's lock; two of the same file are one."""
    join = copies_module.join_parts

    def loses(*words: Any) -> int:
        monkeypatch.setattr(copies_module, "join_parts", join)
        copied(tmp_path, b'{"id": 1}\n')
        raise FileNotFoundError

    monkeypatch.setattr(copies_module, "join_parts", loses)
    (tmp_path / "rows.jsonl").write_bytes(b'{"id": 1}\n')
    kind = kind_of("rows.jsonl")
    assert kind is not None
    stamp = (tmp_path / "rows.jsonl").stat()
    with pytest.MonkeyPatch.context() as own:
        own.setattr(Path, "write_bytes", lambda *_: 0)  # The file stays the one that it is.
        path = str(tmp_path / "rows.jsonl")
        copy = Copies(as_path(tmp_path / "inputs")).of(path, "rows.jsonl", kind)
    assert (tmp_path / "rows.jsonl").stat() == stamp
    assert plain(pq.read_table(str(copy.path))) == [{"id": 1}]


def test_a_file_that_changes_while_it_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy is of two states of a file."""
    parse = blocks._parse

    def changes(reading: blocks.TextReading, data: bytes, *more: Any) -> pa.Table:
        with (tmp_path / "rows.jsonl").open("ab") as file:
            file.write(b'{"id": 3}\n')
        return parse(reading, data, *more)

    monkeypatch.setattr(blocks, "_parse", changes)
    with pytest.raises(QAEvalError, match="QA0309"):
        copied(tmp_path, b'{"id": 1}\n')
    assert not list((tmp_path / "inputs").glob("*.json"))
    (tmp_path / "rows.jsonl").unlink()
    kind = kind_of("rows.jsonl")
    assert kind is not None
    with pytest.raises(InputError, match="QA0302"):
        Copies(as_path(tmp_path / "inputs")).of(str(tmp_path / "rows.jsonl"), "rows.jsonl", kind)
