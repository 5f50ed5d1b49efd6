"""Footers with flipped bits: told as no footer, or read as what they say; none ends a process."""

from __future__ import annotations

import io
import random
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.planning.footer import BYTE_ARRAY, parse_footer

N_FLIPPED = 1_000


def footer_of(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    content = sink.getvalue()
    (n_bytes,) = struct.unpack("<I", content[-8:-4])
    return content[-8 - n_bytes : -8]


def awkward_table(n_rows: int) -> pa.Table:
    """Rows with lists, structs, long texts and nulls: statistics of every kind."""
    return pa.table(
        {
            "id": pa.array(range(n_rows), pa.int32()),
            "text": [f"{'long ' * (i % 40)}{i}" for i in range(n_rows)],
            "lists": [[f"a{i}"] * (i % 3) for i in range(n_rows)],
            "pair": [{"start": i, "end": {"deep": str(i)}} for i in range(n_rows)],
            "score": pa.array([None if i % 7 == 0 else i / 9 for i in range(n_rows)]),
            "when": pa.array([i * 1_000 for i in range(n_rows)], pa.timestamp("us", "UTC")),
            "kind": pa.array(["x", "y"] * (n_rows // 2)).dictionary_encode(),
            "flag": pa.array([i % 2 == 0 for i in range(n_rows)]),
            "bytes": pa.array([b"\x00" * (i % 5) for i in range(n_rows)], pa.binary()),
            "fixed": pa.array([b"abcd"] * n_rows, pa.binary(4)),
        }
    )


FOOTERS = {
    "plain": footer_of(pa.table({"a": ["x", "y"]})),
    "awkward": footer_of(awkward_table(100), row_group_size=30),
    "no statistics": footer_of(awkward_table(40), write_statistics=False, use_dictionary=False),
    "page index": footer_of(
        awkward_table(40), write_page_index=True, store_decimal_as_integer=True
    ),
    "checksums": footer_of(awkward_table(40), write_page_checksum=True, compression="zstd"),
    "wide": footer_of(pa.table({f"column {i}": np.arange(4) for i in range(90)})),
    "bloom and metadata": footer_of(
        awkward_table(20).replace_schema_metadata({"k": "v" * 5_000}), version="1.0"
    ),
    "empty": footer_of(awkward_table(20).slice(0, 0)),
}


@pytest.mark.parametrize("content", FOOTERS.values(), ids=FOOTERS)
def test_it_says_what_pyarrow_says(content: bytes) -> None:
    """An oracle that shares no code: PyArrow's own reader of the same bytes."""
    whole = b"PAR1" + content + struct.pack("<I", len(content)) + b"PAR1"
    known = pq.read_metadata(io.BytesIO(whole))
    found = parse_footer(content)
    assert (found.n_rows, len(found.groups)) == (known.num_rows, known.num_row_groups)
    for i, group in enumerate(found.groups):
        own = known.row_group(i)
        assert (group.n_rows, group.n_bytes) == (own.num_rows, own.total_byte_size)
        for j, chunk in enumerate(group.chunks):
            column = own.column(j)
            path = column.path_in_schema.split(".")
            assert (chunk.column, chunk.is_flat) == (path[0], len(path) == 1)
            assert (chunk.n_values, chunk.n_bytes) == (
                column.num_values, column.total_uncompressed_size
            )  # fmt: skip
            starts = [column.data_page_offset, column.dictionary_page_offset]
            assert chunk.start == min((start for start in starts if start), default=0)
            assert (chunk.kind == BYTE_ARRAY) == (column.physical_type == "BYTE_ARRAY")
            assert len(chunk.encodings) == len(set(column.encodings))


@pytest.mark.parametrize("content", FOOTERS.values(), ids=FOOTERS)
def test_flipped_bits_are_told_or_read(content: bytes) -> None:
    """An abort ends this process, and the tests with it."""
    drawn = random.Random(5)
    n_told = 0
    for _ in range(N_FLIPPED // len(FOOTERS)):
        damaged = bytearray(content)
        for _ in range(drawn.choice((1, 1, 2, 8))):
            damaged[drawn.randrange(len(damaged))] ^= 1 << drawn.randrange(8)
        try:
            found = parse_footer(bytes(damaged))
        except ValueError:
            n_told += 1
        else:
            assert isinstance(found.n_rows, int)
            assert all(
                isinstance(chunk.column, str) for group in found.groups for chunk in group[2]
            )
    assert n_told > 0


@pytest.mark.parametrize("content", FOOTERS.values(), ids=FOOTERS)
def test_a_footer_that_ends_early_is_none(content: bytes) -> None:
    for n_bytes in {0, 1, 2, *range(3, len(content), max(len(content) // 60, 1))}:
        with pytest.raises(ValueError, match=r"no footer|no type|more than|a list of type"):
            parse_footer(content[:n_bytes])


@pytest.mark.parametrize(
    "content",
    [
        b"\x19" * 5_000,  # lists of lists, without end
        b"\x1c" * 5_000,  # structs in structs
        b"\x19\xf5" + b"\xff" * 9 + b"\x01",  # a list of 2^63 numbers
        b"\x19\xf1" + b"\xff" * 8 + b"\x7f" + b"\x00",  # of as many truths
        b"\x18" + b"\xff" * 8 + b"\x7f",  # a text of as many bytes
        b"\x15" + b"\xff" * 50,  # a number without end
        b"\x1b" + b"\xff" * 4 + b"\x0f\x55",  # a map of billions
        b"\x1d\x00",  # no type
    ],
)
def test_what_is_nested_or_long_without_end_is_none(content: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        parse_footer(content)
