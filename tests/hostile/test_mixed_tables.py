"""Mixed and stale tables: no table has ids of one file beside scores of another."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers import read_scores, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import InputChangedError, ReconcileError, UnreadableFileError
from qaeval_core.planning.job import read_inputs
from qaeval_core.running.reader import check_unchanged
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Store
from qaeval_core.tables.score_tables import _read
from s3_server import S3Server
from word_jobs import ROWS_PER_GROUP, is_whole, request, rows, run


def other_rows() -> pa.Table:
    """Return rows of other ids whose candidates are wrong: in a mix, scores tell who is whose."""
    table = rows()
    ids = [f"other {id}" for id in table["id"].to_pylist()]
    wrong = [text[::-1] for text in table["candidate"].to_pylist()]
    return table.set_column(0, "id", pa.array(ids)).set_column(1, "candidate", pa.array(wrong))


def by_rename(source: Path) -> None:
    new = write_parquet(source.with_name("new"), other_rows(), row_group_size=ROWS_PER_GROUP)
    new.replace(source)


def in_place(source: Path) -> None:
    write_parquet(source, other_rows(), row_group_size=ROWS_PER_GROUP)


def with_the_old_time(source: Path) -> None:
    before = source.stat()
    by_rename(source)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncated(source: Path) -> None:
    os.truncate(source, source.stat().st_size // 2)


@pytest.mark.parametrize("replace", [by_rename, in_place, with_the_old_time, truncated])
@pytest.mark.parametrize("after", [1, 5, 8])
def test_a_file_that_is_replaced_in_mid_run_ends_the_run(
    tmp_path: Path, replace: Callable[[Path], None], after: int
) -> None:
    """One table had ids of the new file and scores of the old for 50,000 of 300,000 rows."""
    source = write_parquet(tmp_path / "input.parquet", rows(), row_group_size=ROWS_PER_GROUP)
    with pytest.raises(InputChangedError, match=r"input\.parquet.*QA0309"):
        run(request(source, tmp_path / "out"), after=after, then=lambda: replace(source))
    assert not list((tmp_path / "out" / "scores").rglob("*.parquet"))
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_file_of_another_folder_is_another_file(tmp_path: Path) -> None:
    """Same name, size and time: "nothing to do", and with one metric more, ids beside foreign
    scores."""
    plain = {"compression": "none", "use_dictionary": False}
    first = write_parquet(tmp_path / "jan" / "input.parquet", rows(), **plain)
    swapped = rows()
    texts = swapped["candidate"].to_pylist()
    swapped = swapped.set_column(1, "candidate", pa.array(texts[::-1]))
    second = write_parquet(tmp_path / "feb" / "input.parquet", swapped, **plain)
    assert second.stat().st_size == first.stat().st_size, "or the test shows nothing"
    os.utime(second, ns=(first.stat().st_atime_ns, first.stat().st_mtime_ns))
    run(request(first.parent, tmp_path / "out"))
    outcome, _ = run(request(second.parent, tmp_path / "out"))
    assert outcome.is_new
    assert read_scores(tmp_path / "out")["f1"].to_list() != [1.0] * 64
    with_more = {"metrics.exact_match.metric": "exact_match"}
    run(request(second.parent, tmp_path / "out") | with_more)
    scores = read_scores(tmp_path / "out")
    assert ((scores["f1"] == 1.0) == (scores["exact_match"] == 1.0)).all()


def test_a_file_that_was_put_in_the_place_of_another_is_another(tmp_path: Path) -> None:
    """Size and time can be kept; the footer's statistics tell."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out"))
    before = source.stat()
    table = rows()
    texts = [text.replace("Ann", "Bob") for text in table["candidate"].to_pylist()]
    write_parquet(source, table.set_column(1, "candidate", pa.array(texts)))
    assert source.stat().st_size == before.st_size
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    outcome, said = run(request(source, tmp_path / "out"))
    assert outcome.is_new
    assert not is_whole(tmp_path / "out")
    assert any("input.parquet changed since the last run" in line for line in said)


def test_an_object_that_was_put_in_the_place_of_another_is_another(
    store: S3Server, tmp_path: Path
) -> None:
    """Name, size, footer and second were the same: stores tell objects apart by their ETags."""
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    planned = read_inputs(load_config(overrides=put_and_request(store, rows(), tmp_path, plain)))
    swapped = rows()
    texts = swapped["candidate"].to_pylist()
    # Of one length: the sizes in the footer are equal.
    texts[ROWS_PER_GROUP:] = texts[: ROWS_PER_GROUP - 1 : -1]
    swapped = swapped.set_column(1, "candidate", pa.array(texts))
    now = read_inputs(load_config(overrides=put_and_request(store, swapped, tmp_path, plain)))
    before, after = planned.files[0], now.files[0]
    assert before.version.stamp
    same = replace(before.version, mtime_ns=after.version.mtime_ns)
    assert same == replace(after.version, stamp=same.stamp), "or the test shows nothing"
    with pytest.raises(InputChangedError, match=r"input\.parquet.*QA0309"):
        check_unchanged(replace(before, version=same), outages=Outages())

    def put_back() -> None:
        put_and_request(store, rows(), tmp_path, plain)

    wanted = put_and_request(store, swapped, tmp_path, plain)
    with pytest.raises(InputChangedError, match=r"input\.parquet.*QA0309"):
        run(wanted, after=1, then=put_back)
    assert not list((tmp_path / "out" / "scores").rglob("*.parquet"))


def put_and_request(
    store: S3Server, table: pa.Table, tmp_path: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Put a table in the place of the last one; return the settings of a job on it."""
    uri = store.put(table, "swaps/input.parquet", row_group_size=ROWS_PER_GROUP, **options)
    return request(uri, tmp_path / "out")


N_FLIPS = 1_000


def test_no_bit_of_a_commit_turns_in_silence(tmp_path: Path) -> None:
    """39 to 65 % of single bits that turned in commits gave other values without an error."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out", scoring__rows_per_shard=64))
    (path,) = (tmp_path / "out").glob("families/*/*.parquet")
    store = Store(tmp_path / "out")
    family = path.parent.name
    ((file_id, (shard,)),) = store.committed(family).items()
    whole = store.read(family, file_id, shard)
    content, drawn = path.read_bytes(), random.Random(7)
    for _ in range(N_FLIPS):
        flipped = bytearray(content)
        at = drawn.randrange(8 * len(content))
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(ReconcileError, match=path.name):
            store.read(family, file_id, shard)
    path.write_bytes(content)
    assert store.read(family, file_id, shard).equals(whole)


def test_no_bit_of_a_file_of_scores_turns_in_silence(tmp_path: Path) -> None:
    """Reports and correlations are read from these files, days later."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out"))
    path = tmp_path / "out" / "scores" / "input.parquet"
    store, content = Store(tmp_path / "out"), path.read_bytes()
    store.check_scores(path)
    whole, drawn = _read(path), random.Random(8)
    for _ in range(N_FLIPS):
        flipped = bytearray(content)
        at = drawn.randrange(8 * len(content))
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(ReconcileError, match=r"input\.parquet.*QA0510"):
            store.check_scores(path)
        # Whose checksum cannot be found is taken for a table of somebody else: as it was, then.
        try:
            assert _read(path).equals(whole)
        except UnreadableFileError:
            continue


def test_a_turned_bit_ends_the_join_by_name_and_the_next_run_heals_it(tmp_path: Path) -> None:
    """A score that nobody can defend stood in the table."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out"))
    (tmp_path / "out" / "_SUCCESS").unlink()
    victim = min((tmp_path / "out").glob("families/*/*.parquet"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 3] ^= 4
    victim.write_bytes(content)
    with pytest.raises(ReconcileError, match=f"{victim.name}.*QA0510"):
        run(request(source, tmp_path / "out"))
    victim.unlink()
    run(request(source, tmp_path / "out"))
    assert is_whole(tmp_path / "out")


def test_a_forged_report_is_not_believed(tmp_path: Path) -> None:
    """The means of a report.json that somebody edited were printed with "nothing to do"."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out"))
    report = tmp_path / "out" / "report.json"
    report.write_text(report.read_text().replace('"mean": 1.0', '"mean": 0.5'))
    outcome, _ = run(request(source, tmp_path / "out"))
    assert outcome.report is not None
    assert outcome.report["columns"]["f1"]["mean"] == 1.0
    for content in ("[]", "{", "\xff", "{" * 100_000, '{"columns": 7}'):
        report.write_text(content, encoding="latin-1")
        outcome, _ = run(request(source, tmp_path / "out"))
        assert outcome.report is not None
        assert outcome.report["columns"]["f1"]["mean"] == 1.0


@pytest.mark.parametrize("what", ["foreign columns", "other rows", "broken counts", "other family"])
def test_a_commit_of_something_else_is_named(tmp_path: Path, what: str) -> None:
    """A trace, or scores of another run in silence."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    run(request(source, tmp_path / "out"))
    store = Store(tmp_path / "out")
    victim = min((tmp_path / "out").glob("families/*/*.parquet"))
    family = victim.parent.name
    ((file_id, shards),) = store.committed(family).items()
    first, second = sorted(shards)[:2]
    table = store.read(family, file_id, first)
    if what == "foreign columns":
        table = table.select(["position", "quarantine_reason", "quarantine_message"])
    if what == "other rows":
        table = store.read(family, file_id, second)
    signature = table.schema.metadata[b"qaeval.signature"].decode()
    if what == "other family":
        signature = "overlap|v:0"
    path = store.commit_path(family, file_id, first)
    stats, _ = store.look_into(path, family, first)
    if what == "broken counts":
        stats.n_units = -1
    store.commit(family, file_id, first, table, signature=signature, stats=stats)
    (tmp_path / "out" / "_SUCCESS").unlink()
    with pytest.raises(ReconcileError, match="QA0510|QA0509"):
        run(request(source, tmp_path / "out"))
