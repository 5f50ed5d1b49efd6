"""Batches and indexes that others wrote or a store has damaged: no wrong reply, no lost money."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journals import ASKED, batches, entry, usd_of
from qaeval_core.llm.journal import Journal, journal_totals
from qaeval_core.llm.journal_entry import line_of
from qaeval_core.storage import checksums
from qaeval_core.storage.path import StoragePath, as_path

N = 6
FLIPS = 200


@pytest.fixture(params=["disk", "bucket"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    """A journal of its own for each test, with some replies."""
    is_disk = request.param == "disk"
    name = f"{request.node.name}-{tmp_path.name}"
    made = as_path(tmp_path / "journal" if is_disk else f"memory://hostile/{name}/journal")
    journal = Journal(made, linger_s=600.0)
    stored = [journal.put_soon(entry(n)) for n in range(N)]
    journal.close()
    for done in stored:
        done.result(timeout=0)
    return made


def with_index(folder: StoragePath) -> StoragePath:
    """Write the index; return its file."""
    journal_totals(folder, writes_index=True, min_lines=1)
    (found,) = (folder / "index").list()
    return folder / "index" / found.name


def segment_of(folder: StoragePath) -> StoragePath:
    """Return the file or batch that holds the replies."""
    (name,) = batches(folder)
    return folder / name


def flipped(content: bytes, drawn: random.Random) -> bytes:
    found, at = bytearray(content), drawn.randrange(8 * len(content))
    found[at // 8] ^= 1 << at % 8
    return bytes(found)


def replies_are_true(folder: StoragePath) -> list[int]:
    """Check that no reply is another's; return which are found."""
    journal = Journal(folder)
    found = {n: journal.get(entry(n).key, ASKED) for n in range(N)}
    assert all(own in (None, entry(n)) for n, own in found.items())
    return [n for n, own in found.items() if own is not None]


@pytest.mark.parametrize("is_indexed", [False, True])
def test_no_bit_of_a_batch_turns_in_silence(folder: StoragePath, is_indexed: bool) -> None:
    if is_indexed:
        with_index(folder)
    path, drawn = segment_of(folder), random.Random(int(is_indexed))
    content, n_lost = path.read_bytes(), 0
    for _ in range(FLIPS):
        path.put(flipped(content, drawn))
        found = replies_are_true(folder)
        journal = Journal(folder)
        for n in range(N):
            journal.get(entry(n).key, ASKED)
        assert len(found) == N or journal.notes
        # An index knows what lines cost before a bit of them turned.
        assert not is_indexed or journal.spent_usd() == usd_of(range(N))
        n_lost += N - len(found)
    assert n_lost > FLIPS // 2, "a test whose flips hit nothing is worthless"


def test_an_index_whose_bits_turn_is_left_out_and_all_is_read(folder: StoragePath) -> None:
    path, drawn = with_index(folder), random.Random(3)
    content, n_left_out = path.read_bytes(), 0
    for i in range(FLIPS):
        damaged = flipped(content, drawn) if i % 2 else content[: drawn.randrange(len(content))]
        path.put(damaged)
        journal = Journal(folder)
        n_left_out += any("index/00000000.parquet is left out" in own for own in journal.notes)
        assert replies_are_true(folder) == list(range(N))
        assert journal.spent_usd() == journal_totals(folder).usd == usd_of(range(N))
    assert n_left_out == FLIPS


def forged(path: StoragePath, change: Callable[[pa.Table, dict[str, Any]], pa.Table]) -> None:
    """Write an index anew, changed and sealed: who may write can also seal."""
    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    told = json.loads(table.schema.metadata[b"qaeval.journal"])
    table = change(table, told).replace_schema_metadata(
        {b"qaeval.journal": json.dumps(told).encode(), checksums.KEY: checksums.PLACEHOLDER}
    )
    buffer = io.BytesIO()
    sink = checksums.SealedFile(buffer)
    pq.write_table(table, sink)
    sink.seal()
    path.put(buffer.getvalue())


def with_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(values, field.type))


def in_all_segments(told: dict[str, Any], place: int, value: object) -> None:
    for own in told["segments"].values():
        own[place] = value


def cheaper(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    in_all_segments(told, 3, 0)
    return table


def minus(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    in_all_segments(told, 3, -(10**12))
    return with_column(table, "nano_usd", [-(10**12), *[0] * (N - 1)])


def elsewhere(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    return with_column(table, "object", ["../../../etc/passwd"] * N)


def before_the_start(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    return with_column(table, "offset", [-5] * N)


def no_count(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    in_all_segments(told, 1, "all")
    return table


def no_segments(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    told["segments"] = [1, 2]
    return table


def no_order(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    return with_column(table, "key", sorted(table.column("key").to_pylist(), reverse=True))


def other_columns(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    return table.drop_columns(["call_id"])


def newer(table: pa.Table, told: dict[str, Any]) -> pa.Table:
    told["version"] = 2
    return table


@pytest.mark.parametrize(
    "change",
    [
        cheaper,
        minus,
        elsewhere,
        before_the_start,
        no_count,
        no_segments,
        no_order,
        other_columns,
        newer,
    ],
)
def test_an_index_that_says_what_cannot_be_is_left_out(
    folder: StoragePath, change: Callable[[pa.Table, dict[str, Any]], pa.Table]
) -> None:
    forged(with_index(folder), change)
    journal = Journal(folder)
    (note,) = journal.notes
    assert note.startswith("index/00000000.parquet is left out: ")
    assert replies_are_true(folder) == list(range(N))
    assert journal.spent_usd() == journal_totals(folder).usd == usd_of(range(N))


def test_an_index_too_deep_to_be_read_is_left_out(folder: StoragePath) -> None:
    path = with_index(folder)
    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    metadata = {b"qaeval.journal": b"[" * 200_000, checksums.KEY: checksums.PLACEHOLDER}
    buffer = io.BytesIO()
    sink = checksums.SealedFile(buffer)
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    sink.seal()
    path.put(buffer.getvalue())
    assert "index/00000000.parquet is left out: it is not an index" in Journal(folder).notes
    assert replies_are_true(folder) == list(range(N))


def test_an_index_that_leads_to_another_reply_gives_none(folder: StoragePath) -> None:
    """It is a hint: the line that it leads to says itself what it is a reply to."""

    def turned(table: pa.Table, told: dict[str, Any]) -> pa.Table:
        for name in ("offset", "n_bytes"):
            values = table.column(name).to_pylist()
            table = with_column(table, name, values[1:] + values[:1])
        return table

    def beyond(table: pa.Table, told: dict[str, Any]) -> pa.Table:
        return with_column(table, "offset", [2**40] * N)

    for change in (turned, beyond):
        path = with_index(folder)
        forged(path, change)
        journal = Journal(folder)
        assert [journal.get(entry(n).key, ASKED) for n in range(N)] == [None] * N
        assert journal.notes and journal.spent_usd() == usd_of(range(N))
        path.delete()


def test_an_index_of_a_segment_that_is_gone_or_shorter_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for n in range(N):
        journal.put(entry(n))
    journal.close()
    with_index(as_path(tmp_path))
    path = segment_of(as_path(tmp_path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.put(b"".join(lines[:2]))
    again = Journal(tmp_path)
    assert [again.get(entry(n).key) for n in range(N)] == [entry(0), entry(1)] + [None] * 4
    assert again.spent_usd() == usd_of(range(2))
    path.delete()
    assert len(Journal(tmp_path)) == 0


FORGED = {
    "another server": {"base_url": "http://elsewhere/v1"},
    "another model": {"model": "cheap"},
    "another run": {"run_index": 1},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED.keys())
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_forged_line_is_no_reply_to_what_is_asked(
    changes: dict[str, Any], is_indexed: bool, tmp_path: Path
) -> None:
    folder = as_path(f"memory://forged/{tmp_path.name}")
    (folder / "evil-1-a" / "00000000.jsonl").put(line_of(entry(1, **changes)).encode())
    if is_indexed:
        with_index(folder)
    journal = Journal(folder)
    assert journal.get(entry(1).key, ASKED) is None
    assert "its server, model or run is not that of its key" in journal.notes[0]


def test_what_is_no_batch_is_not_read(tmp_path: Path) -> None:
    """Torn lines, lines of nonsense, objects of other names and sizes."""
    folder = as_path(f"memory://odd/{tmp_path.name}")
    whole = line_of(entry(1)).encode()
    fields = asdict(entry(3)) | {"usd": 1e6}
    given = {
        "a-1-a/00000000.jsonl": whole + line_of(entry(2)).encode()[:-9],
        "a-1-a/00000001.jsonl": b"\x00\xff nonsense\n" * 300 + json.dumps(fields).encode() + b"\n",
        "a-1-a/00000002.jsonl": b"",
        "a-1-a/00000003.jsonl": b" " * (6 << 20),
        "a-1-a/1.jsonl": line_of(entry(4)).encode(),
        "a-1-a/b/00000000.jsonl": line_of(entry(4)).encode(),
        "a b/00000000.jsonl": line_of(entry(4)).encode(),
        "00000000.jsonl": line_of(entry(4)).encode(),
        "index/x.parquet": b"no index",
    }
    for name, content in given.items():
        (folder / name).put(content)
    journal = Journal(folder)
    assert [journal.get(entry(n).key) is not None for n in range(6)] == [False, True] + [False] * 4
    assert list(journal.entries()) == [entry(1)]
    assert len(journal.notes) == 101 and journal.notes[-1].endswith("more")
    totals = journal_totals(folder, writes_index=True, min_lines=1)
    # Of the torn line the money counts; what cannot have cost so much counts as nothing.
    assert (totals.n_replies, totals.usd) == (1, journal.spent_usd()) and totals.usd >= 0.005
    again = Journal(folder)
    assert again.spent_usd() == totals.usd and len(again) == 1
    assert any("damaged in 302 lines" in note for note in again.notes)
