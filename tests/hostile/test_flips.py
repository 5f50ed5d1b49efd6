"""Flips: bits and bytes that turn in files that are read give the same scores, or an error.

Commits, scores, journals, ledgers and artifacts have tests of their own, with a thousand flips
each; here is what else is read: inputs, and the small files of OUT.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import read_scores, write_parquet
from qaeval_core.errors import QAEvalError
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.planning.shards import ReadLimits, plan_file
from qaeval_core.running.reader import ShardReader
from word_jobs import ROWS_PER_GROUP, is_whole, request, rows, run

SMALL_FILES = ["run.json", "report.json", "_SUCCESS", "plan.parquet"]


def damaged(content: bytes, *, n: int, seed: int) -> Iterator[bytes]:
    """Yield contents with a bit, a byte or a stretch that is another, cut ones, and longer ones."""
    drawn = random.Random(seed)
    for i in range(n):
        found, at = bytearray(content), drawn.randrange(len(content))
        if i % 5 == 0:
            found[at] ^= 1 << drawn.randrange(8)
        elif i % 5 == 1:
            found[at] = drawn.randrange(256)
        elif i % 5 == 2:
            found[at : at + 64] = drawn.randbytes(len(found[at : at + 64]))
        elif i % 5 == 3:
            del found[at:]
        else:
            found[at:at] = drawn.randbytes(drawn.randrange(1, 64))
        yield bytes(found)


@pytest.mark.slow
def test_damage_of_an_input_is_told_or_is_its_text(tmp_path: Path) -> None:
    """Protects from a crash, a hang or memory without end: no error but our own comes out."""
    path = write_parquet(tmp_path / "in.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    columns = ["id", "candidate", "reference"]
    n_refused = n_read = 0
    for content in damaged(path.read_bytes(), n=600, seed=1):
        path.write_bytes(content)
        reader = ShardReader(columns)
        try:
            ((file,), _) = find_inputs([str(path)])
            if not set(columns) <= set(file.schema.names):
                continue
            pieces = plan_file(
                file,
                done={"": ()},
                rows_per_shard=100,
                limits=ReadLimits(),
                n_rows=file.n_rows,
            )
            for piece in pieces:
                for shard in piece.shards:
                    tables = [table for _, table in reader.parts(piece, shard)]
                    assert sum(table.num_rows for table in tables) == shard.n_rows
            n_read += 1
        except QAEvalError:
            n_refused += 1
        finally:
            reader.close()
    assert n_refused > 200
    assert n_read > 20


@pytest.mark.parametrize("name", SMALL_FILES)
def test_damage_of_a_file_of_out_ends_a_run_plainly_or_not_at_all(
    tmp_path: Path, name: str
) -> None:
    """Protects from a run that can never go on because a small file of the last one is torn."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    out = tmp_path / "out"
    run(request(source, out))
    whole, content = read_scores(out), (out / name).read_bytes()
    n_whole = 0
    for damage in damaged(content, n=15, seed=2):
        (out / name).write_bytes(damage)
        try:
            run(request(source, out))
        except QAEvalError as error:
            assert name in str(error)  # noqa: PT017
            (out / name).write_bytes(content)
            continue
        n_whole += 1
        assert is_whole(out)
        assert read_scores(out).equals(whole)
    assert n_whole > 0
