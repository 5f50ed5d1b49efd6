"""The index of a journal: opened from it, a journal is what reading all of it gives, but quick."""

from __future__ import annotations

import hashlib
import random
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from journals import ASKED, batches, entry, usd_of
from qaeval_core.llm.journal import Journal, JournalTotals, journal_totals
from qaeval_core.llm.journal_entry import line_of
from qaeval_core.storage.path import StoragePath, as_path
from s3_proxy import S3Proxy
from s3_server import S3Server


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> S3Server:
    store.make_bucket("bucket")
    return store


@pytest.fixture(params=["disk", "bucket"])
def folder(bucket: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    """A journal of its own for each test."""
    if request.param == "disk":
        return as_path(tmp_path / "journal")
    return as_path(bucket.uri(f"bucket/{request.node.originalname}/journal"))


def fill(folder: StoragePath, numbers: range) -> None:
    """Put replies as one more writer."""
    journal = Journal(folder, linger_s=0.05)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(journal.put, map(entry, numbers)))
    journal.close()


def index(folder: StoragePath, *, min_lines: int = 1) -> JournalTotals:
    return journal_totals(folder, writes_index=True, min_lines=min_lines)


def index_files(folder: StoragePath) -> list[str]:
    return sorted(own.name for own in (folder / "index").list())


def check(folder: StoragePath, numbers: range) -> Journal:
    """Check that a journal holds these replies and no others."""
    journal, n = Journal(folder), len(numbers)
    totals = JournalTotals(n, usd_of(numbers), 20 * n, 5 * n)
    assert journal_totals(folder) == totals and journal.notes == []
    assert (len(journal), journal.spent_usd()) == (n, totals.usd)
    assert all(journal.get(entry(i).key, ASKED) == entry(i) for i in numbers)
    assert not any(journal.knows(entry(i).key) for i in range(10**6, 10**6 + 50))
    calls = [entry(i).call_id for i in (*numbers[::7], 10**6)]
    assert {own.call_id for own in journal.of_calls(set(calls))} == set(calls[:-1])
    return journal


def test_an_opened_index_is_what_was_read(folder: StoragePath) -> None:
    fill(folder, range(100))
    before = check(folder, range(100))
    assert index(folder) == journal_totals(folder) and index_files(folder) == ["00000000.parquet"]
    check(folder, range(100))
    # What comes later is read behind it, in segments that grow and in new ones.
    before.put(entry(100))
    fill(folder, range(101, 130))
    check(folder, range(130))
    index(folder)
    assert index_files(folder) == ["00000000.parquet", "00000001.parquet"]
    before.put(entry(130))
    check(folder, range(131))
    assert before.refresh() >= 29 and len(before) == 131


def test_nothing_new_writes_nothing(folder: StoragePath) -> None:
    fill(folder, range(30))
    assert index(folder, min_lines=31).n_replies == 30 and index_files(folder) == []
    index(folder)
    index(folder)
    assert index_files(folder) == ["00000000.parquet"]


def test_many_small_files_become_one(folder: StoragePath) -> None:
    fill(folder, range(40))
    for n in range(40, 50):
        fill(folder, range(n, n + 1))
        index(folder)
        assert len(index_files(folder)) <= 8
    fill(folder, range(50, 150))
    index(folder)  # More than all before.
    assert len(index_files(folder)) == 1
    check(folder, range(150))


def test_two_runs_that_end_at_once_lose_nothing(folder: StoragePath) -> None:
    fill(folder, range(64))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: index(folder), range(4)))
    assert set(found) == {journal_totals(folder)}
    check(folder, range(64))
    fill(folder, range(64, 80))
    index(folder)
    check(folder, range(80))


def test_both_replies_to_one_request_count(folder: StoragePath) -> None:
    for text in ("first", "second"):
        journal = Journal(folder)
        journal.put(entry(1, text=text, call_id=f"call {text}"))
        journal.put(entry(2 if text == "first" else 3))
        journal.close()
    index(folder)
    again = Journal(folder)
    assert (len(again), again.spent_usd()) == (3, usd_of([1, 1, 2, 3]))
    assert {own.text for own in again.replies(entry(1).key)} == {"first", "second"}
    assert next(again.of_calls({"call second"})).text == "second"


def test_an_open_journal_reads_no_batch_that_is_indexed(bucket: S3Server) -> None:
    with S3Proxy(bucket.port) as proxy:
        folder = as_path(proxy.uri("bucket/quiet/journal"))
        for n in range(3):
            fill(folder, range(40 * n, 40 * n + 40))
        index(folder)
        proxy.seen.clear()
        journal = Journal(folder)
        assert len(journal) == 120
        # The index, its folder, the folders of writers, and a look behind each of the three.
        assert len(proxy.seen) == 6 and not [own for own in proxy.seen if ".jsonl HTTP" in own]
        assert not [own for own in proxy.seen if own.split("?")[0].endswith(".jsonl")]
        n_before = len(proxy.seen)
        for n in range(120):
            assert journal.get(entry(n).key, ASKED) == entry(n)
        assert len(proxy.seen) - n_before == len(batches(folder)) < 40


def many_lines(n_replies: int, *, seed: int) -> Iterator[bytes]:
    """Yield lines of a real length, of random keys."""
    rng = random.Random(seed)
    # Sealed once: the checksum is that of what stands there.
    text = "Verdict: natural\nSteps:\n1. The passage says so.\nAnswer: <ans>Ann</ans>"
    made = entry(0, text=text)
    for n in range(n_replies):
        key = hashlib.sha256(rng.randbytes(16)).hexdigest()
        yield line_of(replace(made, key=key, call_id=f"{seed:08x}-{n}")).encode()


def write_many(folder: StoragePath, n_replies: int, *, n_writers: int, n_a_batch: int) -> None:
    """Write a journal of many replies, without asking for them."""
    with ThreadPoolExecutor(16) as pool:
        for writer in range(n_writers):
            lines = list(many_lines(n_replies // n_writers, seed=writer))
            if folder.local is not None:
                (folder / f"replies-host-{writer}-abc.jsonl").put(b"".join(lines))
                continue
            parts = [lines[i : i + n_a_batch] for i in range(0, len(lines), n_a_batch)]
            names = [folder / f"host-{writer}-abc" / f"{i:08d}.jsonl" for i in range(len(parts))]
            list(
                pool.map(
                    lambda pair: pair[0].put(b"".join(pair[1])), zip(names, parts, strict=True)
                )
            )


def opened(folder: StoragePath) -> tuple[Journal, float]:
    """Return a journal, and how long it took to open; printed with the memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    journal = Journal(folder)
    took_s = time.perf_counter() - started
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{len(journal):,} replies opened in {took_s:.2f} s, {more:.0f} MB more at most")
    return journal, took_s


def test_ten_thousand_replies_open_in_a_tenth_of_the_time(tmp_path: Path) -> None:
    folder = as_path(tmp_path / "journal")
    write_many(folder, 10_000, n_writers=4, n_a_batch=0)
    _, read_s = opened(folder)
    index(folder)
    tries = [opened(folder) for _ in range(5)]  # The best: another process may have the CPUs.
    assert all(len(journal) == 10_000 for journal, _ in tries)
    assert min(took_s for _, took_s in tries) < read_s / 10 + 0.05


@pytest.mark.long
def test_a_million_replies_open_in_five_seconds(folder: StoragePath) -> None:
    """50 writers; in a bucket 40,000 batches."""
    write_many(folder, 1_000_000, n_writers=50, n_a_batch=25)
    started = time.perf_counter()
    totals = index(folder)
    print(f"indexed in {time.perf_counter() - started:.1f} s")
    journal, took_s = opened(folder)
    assert took_s < 5.0
    assert len(journal) == totals.n_replies == 1_000_000
    for line in list(many_lines(1_000, seed=17))[::100]:
        key = line.split(b'"')[3].decode()
        found = journal.get(key)
        assert found is not None and line_of(found).encode() == line
