"""What ends a run of calls: a full disk, a server that refuses all, a budget that must hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llm_runs import Run, prompt, reserved_usd
from llm_server import LlmServer, count_prompt_tokens
from qaeval_core.errors import BudgetExhaustedError, EndpointRefusedError, RunError
from qaeval_core.llm.asker import Answer, Request
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import GovernorClient, in_process, reconcile
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits, Prices
from qaeval_core.llm.reply_body import ChatReply
from qaeval_core.llm.send_slot import BudgetQueue


@pytest.fixture(scope="module")
def plain() -> Iterator[LlmServer]:
    """A server without limits or faults of its own; its counts are of all tests that use it."""
    with LlmServer(latency_s=0.05) as server:
        yield server


@pytest.mark.parametrize("full", ["journal", "ledger"])
def test_a_full_disk_stops_all_calls(plain: LlmServer, tmp_path: Path, full: str) -> None:
    """Each call that is sent then is paid for and lost: a few at once, not hundreds in turn."""
    n_before = plain.stats()["n_calls"]
    with Run(plain, tmp_path, max_concurrent=8) as run:
        file = run.journal._log._own_file() if full == "journal" else run.ledger._file
        real, file._file = file._file, os.open("/dev/full", os.O_WRONLY)
        answers = asyncio.run(run.ask(range(100), wrap=True))
        os.close(file._file)
        file._file = real
        status = run.governor.status()
    said = f"cannot write {file.path}: No space left on device [QA0508]"
    assert {str(answer) for answer in answers} == {said}
    n_calls = plain.stats()["n_calls"] - n_before
    assert n_calls == (8 if full == "journal" else 0)
    # What was lost was paid for all the same.
    assert status.n_settled == n_calls


def test_a_reply_that_the_ledger_refuses_is_journaled_first(
    plain: LlmServer, tmp_path: Path
) -> None:
    """The governor may be dead, or its disk full: the reply is paid for, and must be kept."""

    async def ask(run: Run) -> list[object]:
        async def refuse(*_: object, **__: object) -> None:
            raise RunError("the governor is gone")

        run.client.settle = run.client.pause = refuse  # type: ignore[method-assign]
        return await run.ask(range(3), wrap=True)

    with Run(plain, tmp_path) as run:
        assert {str(answer) for answer in asyncio.run(ask(run))} == {"the governor is gone"}
        assert len(run.journal) == 3


def test_a_server_that_counts_twice_the_estimate_does_not_break_the_budget(tmp_path: Path) -> None:
    """An estimate is one; a budget is a promise, with 64 calls under way as well."""
    prices = Prices(prompt_usd_per_million=100.0, completion_usd_per_million=2.0)
    server = LlmServer(latency_s=0.1, prompt_usd_per_million=100.0)
    budget_usd = 6 * reserved_usd(10_000, prices)
    with (
        server,
        Run(
            server, tmp_path, budget=Budget(budget_usd=budget_usd), prices=prices, max_concurrent=64
        ) as run,
    ):
        answers = asyncio.run(
            run.ask(
                range(10_000, 10_080),
                wrap=True,
                estimate=lambda messages: count_prompt_tokens(messages) // 2,
            )
        )
        billed_usd = server.stats()["billed_usd"]
        assert billed_usd <= budget_usd
        assert billed_usd > budget_usd - reserved_usd(10_000, prices)
    ends = {type(answer) for answer in answers}
    assert ends == {Answer, BudgetExhaustedError}


def test_a_server_that_tells_no_counts_is_paid_what_was_reserved(
    plain: LlmServer, tmp_path: Path
) -> None:
    """A bill that nobody can see is as high as it can be."""

    async def keep(run: Run) -> JournalEntry:
        asker = run.asker()
        reservation = run.governor.reserve(tokens=120, usd=reserved_usd(0))
        request = Request("0f", prompt(0), n_prompt_tokens=20, run_index=0)
        reply = ChatReply("Yes.", "stop", None, None)
        entry = await asker._accounting.keep(reservation.call_id, request, reply)
        await asker.aclose()
        assert isinstance(entry, JournalEntry)
        return entry

    with Run(plain, tmp_path) as run:
        entry = asyncio.run(keep(run))
        assert (entry.n_prompt_tokens, entry.n_completion_tokens) == (20, 100)
        assert run.governor.status().spent_usd == pytest.approx(entry.usd)
        assert entry.usd == pytest.approx(reserved_usd(0))


def test_a_server_that_refuses_every_request_stops_the_family(
    plain: LlmServer, tmp_path: Path
) -> None:
    """A wrong parameter would make all rows undefined, and the run look like a success."""
    n_before = plain.stats()["n_calls"]
    with Run(plain, tmp_path, model="fault:400", max_concurrent=8) as run:
        answers = asyncio.run(run.ask(range(100), wrap=True))
    stopped = [answer for answer in answers if isinstance(answer, EndpointRefusedError)]
    undefined = [answer for answer in answers if isinstance(answer, Answer)]
    assert len(stopped) + len(undefined) == 100 and len(undefined) <= 19 + 8
    assert plain.stats()["n_calls"] - n_before <= 20 + 8
    assert "the server refused the first 20 requests" in str(stopped[0])
    assert "answered 400: on purpose" in str(stopped[0])
    said = "(20 calls failed: llm_bad_request 20) [QA0603]"
    assert str(stopped[0]).endswith(said)


def test_the_last_of_too_many_refusals_is_an_error_as_well(
    plain: LlmServer, tmp_path: Path
) -> None:
    """With as many rows as refusals nobody else is left to tell."""
    with Run(plain, tmp_path, model="fault:400") as run:
        answers = asyncio.run(run.ask(range(20), wrap=True))
    assert [type(answer) for answer in answers].count(EndpointRefusedError) == 1


@pytest.mark.parametrize("is_from_journal", [False, True])
def test_refused_requests_after_a_reply_are_their_rows_fault(
    plain: LlmServer, tmp_path: Path, is_from_journal: bool
) -> None:
    """Thirty long passages in a row are no reason to give up the thousand behind them."""

    with Run(plain, tmp_path) as run:
        asyncio.run(run.ask(range(1)))

    async def ask(run: Run, strict: LlmServer) -> list[object]:
        asker = run.asker()
        first = await asker.ask(prompt(0 if is_from_journal else 1), n_prompt_tokens=18)
        assert first.is_from_journal == is_from_journal
        asker._client._url = strict.base_url + "/chat/completions"
        later = [asker.ask(prompt(number), n_prompt_tokens=18) for number in range(10, 40)]
        answers = await asyncio.gather(*later, return_exceptions=True)
        await asker.aclose()
        return list(answers)

    with LlmServer(faults={"bad_request": 1.0}) as strict, Run(plain, tmp_path) as run:
        answers = asyncio.run(ask(run, strict))
    assert {type(answer) for answer in answers} == {Answer}


@pytest.mark.parametrize("fault", ["500", "503", "429", "reset"])
def test_a_server_that_answers_nobody_ends_the_run_and_no_row(
    plain: LlmServer, tmp_path: Path, fault: str
) -> None:
    """The commonest cause is an address with nobody behind it; it is no verdict on the rows."""
    # An outage is known once nine of ten calls that were sent have ended: of three at a time, after
    # 27. How many of nine are on their way depends on how busy this machine is.
    given = {"model": f"fault:{fault}", "max_unheard_s": 1.0, "max_concurrent": 3}
    with Run(plain, tmp_path, **given) as run:
        n_before = plain.stats()["n_calls"]
        answers = asyncio.run(run.ask(range(9), wrap=True))
        n_calls = plain.stats()["n_calls"] - n_before
    (message,) = {str(answer) for answer in answers}
    assert message.startswith("no answer for ")
    assert message.startswith("no answer for ") and "[QA0603]" in message
    # A burst until it is known, then probes.
    assert n_calls < 40


@pytest.mark.slow
def test_an_address_with_nobody_behind_it_ends_the_run(tmp_path: Path) -> None:
    """Also with one row, whose calls all fail."""
    with LlmServer() as server:
        pass
    with Run(server, tmp_path, max_unheard_s=1.0) as run:
        (answer,) = asyncio.run(run.ask([0], wrap=True))
    assert isinstance(answer, EndpointRefusedError)
    assert "ConnectError" in str(answer)


def test_another_key_on_a_journal_finds_what_its_budget_has_spent(
    plain: LlmServer, tmp_path: Path
) -> None:
    """A budget belongs to the journal: who changes the key must not start at 0."""
    with Run(plain, tmp_path / "journal") as run:
        asyncio.run(run.ask(range(5)))
        spent_usd = run.governor.status().spent_usd
        ledger = Ledger(tmp_path, "another account")
        governor = Governor(Limits(), ledger=ledger)
        client = GovernorClient(in_process(governor), limits=Limits(), budget=Budget())
        n_settled = asyncio.run(reconcile(client, run.journal, account="another account"))
        assert (n_settled, governor.status().spent_usd) == (0, spent_usd)
        assert spent_usd > 0
        ledger.close()
    again = Ledger(tmp_path, "another account")
    assert again.found.of("main").spent == round(spent_usd * 1e9)
    again.close()


def test_a_journal_that_cannot_be_written_stops_before_the_first_call(
    plain: LlmServer, tmp_path: Path
) -> None:
    """Replies of another user's journal can be read; new ones would be paid for and lost."""
    with Run(plain, tmp_path) as run:
        is_root = os.geteuid() == 0
        tmp_path.chmod(0o555)
        if is_root:  # Who may write everywhere.
            os.seteuid(65534)
        try:
            with pytest.raises(RunError, match=r"\(journal_path\).*QA0606"):
                asyncio.run(reconcile(run.client, run.journal, account=run.account))
        finally:
            if is_root:
                os.seteuid(0)
            tmp_path.chmod(0o755)


def test_rows_get_what_is_left_in_order(plain: LlmServer, tmp_path: Path) -> None:
    """Money that goes to whoever looks next begins every shard and completes none."""
    budget = Budget(budget_usd=6 * reserved_usd(99))
    with Run(plain, tmp_path, budget=budget) as run:
        answers = asyncio.run(run.ask(range(100), wrap=True))
    paid = [place for place, answer in enumerate(answers) if isinstance(answer, Answer)]
    assert 15 < len(paid) < 90
    assert max(paid) < len(paid) + 5


def test_a_row_that_comes_late_is_asked_in_its_place() -> None:
    """Each looks into the journal first, in a thread: which of them is ready first is chance."""

    async def served() -> list[int]:
        queue, order, n_free = BudgetQueue(), list[int](), 0
        places = [queue.next_place() for _ in range(6)]

        async def reserve(place: int) -> Any:
            nonlocal n_free
            if not n_free:
                raise BudgetExhaustedError("short", may_free=True, n_waiting=1)
            n_free -= 1
            order.append(place)

        async def one(place: int) -> None:
            await queue.reserve(
                partial(reserve, place), place=place, sleep=asyncio.sleep, patience_s=60.0
            )

        tasks = []
        for place in (3, 5, 1, 4, 0, 2):
            tasks.append(asyncio.create_task(one(places[place])))
            await asyncio.sleep(0)
        tasks[3].cancel()  # It waits: its turn goes to the next.
        for _ in range(5):
            n_free += 1
            queue.free()
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(served()) == [3, 0, 1, 2, 5]
