"""The journal in an object store: a reply whose put returned is there, whatever becomes of whom."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from journals import ASKED, batches, entry, start_writer, told, usd_of
from qaeval_core.errors import RunError, StorageError
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.storage.retry import Outages
from s3_proxy import S3Proxy
from s3_server import S3Server


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> S3Server:
    store.make_bucket("bucket")
    return store


@pytest.fixture
def folder(bucket: S3Server, request: pytest.FixtureRequest) -> StoragePath:
    """A journal of its own for each test."""
    return as_path(bucket.uri(f"bucket/{request.node.name}/journal"))


def put_at_once(journal: Journal, entries: Iterable[JournalEntry]) -> None:
    """Put replies from several threads; what lingers is written once all are there."""
    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(journal.put_soon, entries))
    journal.close()
    for own in stored:
        own.result(timeout=0)


def test_replies_that_come_together_are_one_object(folder: StoragePath) -> None:
    journal = Journal(folder, linger_s=600.0)
    put_at_once(journal, map(entry, range(20)))
    put_at_once(journal, map(entry, range(20, 25)))
    first, second = batches(folder)
    assert first == f"{journal.writer}/00000000.jsonl"
    assert second == f"{journal.writer}/00000001.jsonl"
    assert len((folder / first).read_bytes().splitlines()) == 20
    again = Journal(folder)
    assert [again.get(entry(n).key, ASKED) for n in range(25)] == [entry(n) for n in range(25)]
    assert [journal.get(entry(n).key, ASKED) for n in range(25)] == [entry(n) for n in range(25)]
    assert again.spent_usd() == journal.spent_usd() == usd_of(range(25))
    assert len(again) == len(journal) == 25 and again.notes == []
    assert sorted(own.call_id for own in again.entries()) == sorted(f"a-{n}" for n in range(25))


def test_a_put_returns_once_its_batch_is_there_and_close_does_not_wait(
    folder: StoragePath,
) -> None:
    """A reply that is used and not kept is paid for again."""
    journal = Journal(folder, linger_s=30.0)
    stored = journal.put_soon(entry(1))
    time.sleep(0.2)
    assert not stored.done() and batches(folder) == [] and journal.get(entry(1).key) is None
    journal.close()
    assert stored.done() and len(batches(folder)) == 1
    assert Journal(folder).get(entry(1).key) == journal.get(entry(1).key) == entry(1)


@pytest.mark.slow
def test_who_is_cancelled_leaves_no_trace_and_the_reply(
    folder: StoragePath, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(folder, linger_s=0.2)

    async def ask() -> None:
        waiting = asyncio.wrap_future(journal.put_soon(entry(1)))
        waiting.cancel()
        await asyncio.sleep(0)

    asyncio.run(ask())
    journal.close()
    assert caplog.records == []
    assert journal.get(entry(1).key, ASKED) == Journal(folder).get(entry(1).key) == entry(1)


def test_what_was_put_survives_a_kill(folder: StoragePath) -> None:
    for round_ in range(2):
        process = start_writer(folder, first=10_000 * round_)
        numbers = []
        for number in told(process):
            numbers.append(number)
            if len(numbers) == 40:
                process.kill()
        journal = Journal(folder)
        assert len(numbers) >= 40
        assert all(journal.get(entry(n).key, ASKED) == entry(n) for n in numbers)
        # Of eight calls under way no more than eight replies are written and not told of.
        own = [n for n in range(10_000 * round_, 10_000 * round_ + 9_999) if knows(journal, n)]
        assert len(own) - len(numbers) <= 8


def knows(journal: Journal, number: int) -> bool:
    return journal.knows(entry(number).key)


def test_two_writers_share_a_folder(folder: StoragePath) -> None:
    journal = Journal(folder)
    writers = [start_writer(folder, first=1_000 * n, n_replies=30) for n in range(2)]
    numbers = [number for writer in writers for number in told(writer)]
    assert len(numbers) == 60 and journal.get(entry(numbers[0]).key) is None
    assert (journal.refresh(), journal.refresh()) == (60, 0)
    assert all(journal.get(entry(n).key, ASKED) == entry(n) for n in numbers)
    assert journal.spent_usd() == usd_of(numbers) and journal.notes == []


def test_a_look_at_one_writer_lists_no_other(folder: StoragePath, bucket: S3Server) -> None:
    one, two = Journal(folder), Journal(folder)
    with S3Proxy(bucket.port) as proxy:
        journal = Journal(proxy.uri(folder.key and f"bucket/{folder.key}"))
        one.put(entry(1))
        two.put(entry(2))
        proxy.seen.clear()
        assert journal.refresh([one.writer]) == 1
        lists = [line for line in proxy.seen if "list-type" in line]
        assert len(lists) == 1 and one.writer in lists[0] and len(proxy.seen) == 2
        assert journal.get(entry(1).key) == entry(1) and journal.get(entry(2).key) is None
        assert journal.refresh() == 1


def test_a_lost_answer_is_no_second_batch(folder: StoragePath, bucket: S3Server) -> None:
    with S3Proxy(bucket.port) as proxy:
        journal = Journal(proxy.uri(f"bucket/{folder.key}"), linger_s=0.0)
        for number in range(3):
            proxy.n_swallowed = 1
            journal.put(entry(number))
        assert proxy.n_swallowed == 0
    assert len(batches(folder)) == 3
    again = Journal(folder)
    assert len(again) == 3 and again.spent_usd() == usd_of(range(3)) and again.notes == []


def test_an_outage_is_waited_for(folder: StoragePath, bucket: S3Server) -> None:
    journal = Journal(folder, outages=Outages(retry_s=60.0))
    journal.put(entry(0))
    bucket.door.shut()
    stored = [journal.put_soon(entry(n)) for n in range(1, 9)]
    threading.Timer(1.0, bucket.door.open).start()
    for own in stored:
        own.result()
    assert len(Journal(folder)) == 9
    # What came meanwhile went together.
    assert len(batches(folder)) <= 3


def test_a_store_that_stays_away_keeps_nothing_back(folder: StoragePath, bucket: S3Server) -> None:
    """A journal that goes on with a hole in its numbers hides what comes after from an index."""
    journal = Journal(folder, linger_s=0.0)
    journal.put(entry(0))
    bucket.door.shut()
    try:
        with pytest.raises(StorageError, match="s3://bucket.*QA0507"):
            journal.put(entry(1))
    finally:
        bucket.door.open()
    with pytest.raises(StorageError):
        journal.put(entry(2))
    assert [own.key for own in Journal(folder).entries()] == [entry(0).key]


def test_no_bucket_is_said_at_once(bucket: S3Server) -> None:
    start_s = time.monotonic()
    with pytest.raises(RunError, match=r"s3://nowhere.*\(naco.journal_path\).*QA0606"):
        Journal(bucket.uri("nowhere/j"), section="naco.", outages=Outages(retry_s=60.0))
    assert time.monotonic() - start_s < 20


def test_large_replies_are_batches_of_their_own(folder: StoragePath) -> None:
    """One request of a gigabyte is a request that fails."""
    large: list[JournalEntry] = [entry(n, text="x" * 900_000) for n in range(12)]
    put_at_once(Journal(folder, linger_s=600.0), large)
    sizes = [own.size for own in folder.list(is_deep=True)]
    assert len(sizes) == 3 and max(sizes) <= 4 << 20
    assert {len(own.text or "") for own in Journal(folder).entries()} == {900_000}
