"""Askers whose journal is in an object store: equal requests are paid once, and looks are few."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from journals import batches
from llm_runs import MAX_TOKENS, PRICES, Run, prompt
from llm_server import LlmServer, count_prompt_tokens
from qaeval_core.errors import StorageError
from qaeval_core.llm.asker import Answer, Asker
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor_client import reconcile
from qaeval_core.llm.journal import Journal
from qaeval_core.storage.path import as_path
from s3_proxy import S3Proxy
from s3_server import S3Server


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> S3Server:
    store.make_bucket("bucket")
    return store


def asker(run: Run, server: LlmServer, uri: str) -> Asker:
    """Return an asker with a journal of its own, as another process has."""
    endpoint = Endpoint(server.base_url, "m", {"max_tokens": MAX_TOKENS, "temperature": 0.7}, 2.0)
    journal = Journal(uri, linger_s=0.05)
    return Asker(ChatClient(endpoint), run.client, journal, prices=PRICES)


async def ask_all(asker: Asker, numbers: range) -> list[Answer]:
    calls = [
        asker.ask(prompt(number), n_prompt_tokens=count_prompt_tokens(prompt(number)))
        for number in numbers
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    await asker.aclose()
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, Answer)]


def test_two_askers_pay_for_equal_requests_once(bucket: S3Server, tmp_path: Path) -> None:
    uri = bucket.uri("bucket/both/journal")

    async def ask_both(run: Run, server: LlmServer) -> list[list[Answer]]:
        askers = [asker(run, server, uri) for _ in range(2)]
        return list(await asyncio.gather(*(ask_all(one, range(40)) for one in askers)))

    server = LlmServer(latency_s=0.05, faults={"error_500": 0.2})
    with server, Run(server, tmp_path) as run:
        first, second = asyncio.run(ask_both(run, server))
        stats = server.stats()
    assert [one.entry for one in first] == [one.entry for one in second]
    assert all(one.entry for one in first)
    assert (stats["n_ok"], stats["n_after_ok"]) == (40, 0)
    assert sum(one.is_from_journal for one in first + second) == 40


def test_a_slow_store_holds_up_nothing_else_while_a_journal_is_opened(
    bucket: S3Server, tmp_path: Path
) -> None:
    n_ticks = 0

    async def tick() -> None:
        nonlocal n_ticks
        while True:
            await asyncio.sleep(0.01)
            n_ticks += 1

    async def open_journal(run: Run, journal: Journal) -> None:
        ticking = asyncio.create_task(tick())
        await reconcile(run.client, journal, account=run.account)
        ticking.cancel()

    with LlmServer() as server, Run(server, tmp_path) as run, S3Proxy(bucket.port) as proxy:
        journal = Journal(proxy.uri("bucket/slow/journal"))
        proxy.delay_s = 0.5
        asyncio.run(open_journal(run, journal))
    assert n_ticks > 20


def test_who_asks_alone_looks_once(bucket: S3Server, tmp_path: Path) -> None:
    """A look after each claim would be 100 requests for 100 calls."""
    with S3Proxy(bucket.port) as proxy, LlmServer() as server, Run(server, tmp_path) as run:
        uri = proxy.uri("bucket/alone/journal")
        answers = asyncio.run(ask_all(asker(run, server, uri), range(100)))
        lists = [line for line in proxy.seen if "list-type" in line]
        assert len(answers) == server.stats()["n_ok"] == 100
        # At the opening the index's folder and those of writers; and at the first claim.
        assert len(lists) <= 3
        assert sum(line.startswith("PUT") for line in proxy.seen) == len(batches(as_path(uri)))


def test_a_second_run_asks_nothing(bucket: S3Server, tmp_path: Path) -> None:
    with LlmServer() as server, Run(server, tmp_path) as run:
        uri = bucket.uri("bucket/again/journal")
        first = asyncio.run(ask_all(asker(run, server, uri), range(50)))
        again = asyncio.run(ask_all(asker(run, server, uri), range(50)))
        assert server.stats()["n_calls"] == 50
    assert all(own.is_from_journal for own in again)
    assert [own.entry for own in again] == [own.entry for own in first]


def test_a_reply_that_cannot_be_kept_is_not_used(bucket: S3Server, tmp_path: Path) -> None:
    """Its money is spent: the governor hears of it."""
    with LlmServer(latency_s=0.3) as server, Run(server, tmp_path) as run:
        one = asker(run, server, bucket.uri("bucket/away/journal"))

        async def ask() -> list[Answer]:
            asking = asyncio.create_task(ask_all(one, range(8)))
            await asyncio.sleep(0.15)
            bucket.door.shut()
            return await asking

        try:
            with pytest.raises(StorageError, match="QA0507"):
                asyncio.run(ask())
        finally:
            bucket.door.open()
        assert server.stats()["n_ok"] == 8 and run.governor.status().n_settled == 8
        assert len(Journal(bucket.uri("bucket/away/journal"))) == 0
