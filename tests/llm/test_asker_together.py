"""Several askers: equal requests are asked once, and what stops one row stops all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runs import MAX_TOKENS, PRICES, Run, prompt, reserved_usd
from llm_server import LlmServer, count_prompt_tokens
from qaeval_core.errors import BudgetExhaustedError, RunStoppedError
from qaeval_core.llm.asker import Answer, Asker
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.leases import LeaseTable
from qaeval_core.llm.limits import Limits
from wall_clock import cpu_s

ONE_CALL_USD = reserved_usd(999)


@pytest.fixture(scope="module")
def plain() -> Iterator[LlmServer]:
    """A server without limits or faults of its own; its counts are of all tests that use it."""
    with LlmServer(latency_s=0.05, hang_s=60.0) as server:
        yield server


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["claim", "renew", "release"]),
            st.sampled_from("xyz"),
            st.sampled_from("abc"),
            st.floats(0, 40),
        ),
        max_size=40,
    )
)
@settings(max_examples=100, deadline=None)
def test_a_claim_has_one_owner_until_it_is_silent_for_a_lease(
    steps: list[tuple[str, str, str, float]],
) -> None:
    """Two owners pay twice, a claim without end holds up a row for ever."""
    claims, now_s = LeaseTable(lease_s=60.0), 0.0
    heard_s: dict[str, float] = {}
    holders: dict[str, str] = {}
    for what, key, owner, gap_s in steps:
        now_s += gap_s
        has_lapsed = owner in heard_s and heard_s[owner] + 60.0 <= now_s
        if has_lapsed and what != "release" and owner in holders.values():
            continue  # It may have its claims back or not: nobody else had taken them.
        if what == "claim":
            holder = holders.get(key)
            is_free = holder in (None, owner) or heard_s[holder] + 60.0 <= now_s
            assert claims.claim(key, owner=owner, now_s=now_s) == is_free
            heard_s[owner] = now_s
            if is_free:
                holders[key] = owner
        elif what == "renew":
            claims.renew(owner, now_s=now_s)
            heard_s[owner] = now_s
        else:
            claims.release(key, owner=owner)
            if holders.get(key) == owner:
                del holders[key]


def test_owners_that_died_are_forgotten() -> None:
    """An actor that lives for days must not remember each caller that ever died."""
    claims = LeaseTable(lease_s=1.0)
    for number in range(100):
        assert claims.claim(f"key {number}", owner=f"owner {number}", now_s=2.0 * number)
    assert len(claims) == 1


def another_asker(run: Run, server: LlmServer, **options: float) -> Asker:
    """Return an asker with a journal of its own in the run's folder, as another process has."""
    endpoint = Endpoint(server.base_url, "m", {"max_tokens": MAX_TOKENS, "temperature": 0.7}, 2.0)
    return Asker(ChatClient(endpoint), run.client, Journal(run.folder), prices=PRICES, **options)


async def ask_all(asker: Asker, numbers: range) -> list[Answer]:
    """Ask all at once."""
    calls = [
        asker.ask(prompt(number), n_prompt_tokens=count_prompt_tokens(prompt(number)))
        for number in numbers
    ]
    answers = list(await asyncio.gather(*calls))
    await asker.aclose()
    return answers


def test_two_askers_pay_for_equal_requests_once(tmp_path: Path) -> None:
    """Two runs over the same rows at once, faults and retries included."""

    async def ask_both(run: Run, server: LlmServer) -> list[list[Answer]]:
        askers = [another_asker(run, server) for _ in range(2)]
        return list(await asyncio.gather(*(ask_all(asker, range(30)) for asker in askers)))

    server = LlmServer(latency_s=0.05, faults={"error_500": 0.2})
    with server, Run(server, tmp_path) as run:
        first, second = asyncio.run(ask_both(run, server))
        stats = server.stats()
    assert [one.entry for one in first] == [one.entry for one in second]
    assert all(one.entry for one in first)
    assert (stats["n_ok"], stats["n_after_ok"]) == (30, 0)
    assert sum(one.is_from_journal for one in first + second) == 30
    assert run.governor.status().n_settled == 30


def test_an_owner_that_died_holds_others_up_for_a_lease(plain: LlmServer, tmp_path: Path) -> None:
    """A kill -9 releases nothing; a live owner that is slow must not lose its claim."""
    with Run(plain, tmp_path) as run:
        run.use(Governor(Limits(), lease_s=0.6))
        asker = another_asker(run, plain, lease_s=0.6)
        (alive,) = asyncio.run(ask_all(asker, range(1)))
        assert alive.entry is not None
        assert run.governor.claim(alive.entry.key, owner="dead").is_own  # It was released.
        for path in tmp_path.glob("replies-*"):
            path.unlink()
        before_s = time.monotonic()
        (answer,) = asyncio.run(ask_all(another_asker(run, plain), range(1)))
        assert answer.entry is not None
        assert 0.5 < time.monotonic() - before_s < 3.0


def test_a_claim_is_renewed_while_its_call_lasts(plain: LlmServer, tmp_path: Path) -> None:
    """A reply that takes longer than a lease must not be paid for by a second caller."""

    async def ask_and_look(run: Run) -> list[bool]:
        asker = run.asker()
        asker._claims._renew_s = 0.1
        task = asyncio.create_task(asker.ask(prompt(7), n_prompt_tokens=20))
        while not asker._claims._keys:
            await asyncio.sleep(0.01)
        held = []
        for _ in range(8):  # Longer than a lease, which is long enough for a busy machine.
            await asyncio.sleep(0.25)
            (key,) = asker._claims._keys
            held.append(not run.governor.claim(key, owner="another").is_own)
        await asker.aclose()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [*held, run.governor.claim(key, owner="another").is_own]

    with Run(plain, tmp_path, model="fault:hang", timeout_s=60.0) as run:
        run.use(Governor(Limits(), lease_s=1.5))
        assert asyncio.run(ask_and_look(run)) == [True] * 9


def test_a_stop_lets_calls_in_flight_end(plain: LlmServer, tmp_path: Path) -> None:
    """Ctrl-C must not throw away what is being paid for, nor wait for what is not sent."""

    async def ask_and_stop(run: Run) -> tuple[list[object], float, int]:
        asker = run.asker()
        calls = [asker.ask(prompt(number), n_prompt_tokens=18) for number in range(50)]
        tasks = [asyncio.create_task(call) for call in calls]
        while (await asyncio.to_thread(plain.stats))["n_calls"] == n_before:
            await asyncio.sleep(0.05)
        while asker.n_in_flight < 8:
            await asyncio.sleep(0.05)
        n_in_flight = asker.n_in_flight
        before_s = time.monotonic()
        asker.stop(RunStoppedError("enough"))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        took_s = time.monotonic() - before_s
        with pytest.raises(RunStoppedError):
            await asker.ask(prompt(99), n_prompt_tokens=18)
        await asker.aclose()
        return list(answers), took_s, n_in_flight

    n_before = plain.stats()["n_calls"]
    limits = Limits(requests_per_minute=100)  # Two at once, then one every 0.6 s.
    with Run(plain, tmp_path, limits, max_concurrent=8) as run:
        answers, took_s, n_in_flight = asyncio.run(ask_and_stop(run))
        n_calls = plain.stats()["n_calls"] - n_before
        assert 1 <= n_calls <= 10
        assert len(run.journal) == n_calls == run.governor.status().n_settled
        assert run.governor.status().n_open == 0
    assert n_in_flight == 8
    assert took_s < 1.0
    assert sum(isinstance(answer, Answer) for answer in answers) == n_calls
    assert sum(isinstance(answer, RunStoppedError) for answer in answers) == 50 - n_calls


def test_an_empty_budget_stops_all_rows_at_once(plain: LlmServer, tmp_path: Path) -> None:
    """A thousand rows that each wait for money would hold a run for hours."""
    n_before = plain.stats()["n_calls"]
    with Run(plain, tmp_path, budget=Budget(budget_usd=5 * ONE_CALL_USD), timeout_s=60.0) as run:
        before_s = time.monotonic()
        answers = asyncio.run(run.ask(range(1000), wrap=True))
        assert time.monotonic() - before_s < 10.0
        assert 4 * ONE_CALL_USD < run.governor.status().spent_usd <= 5 * ONE_CALL_USD
    n_calls = plain.stats()["n_calls"] - n_before
    assert sum(isinstance(answer, Answer) for answer in answers) == n_calls >= 5
    assert sum(isinstance(answer, BudgetExhaustedError) for answer in answers) == 1000 - n_calls


def test_what_a_server_counts_corrects_window_and_estimates(
    plain: LlmServer, tmp_path: Path
) -> None:
    """A limit is filled by the server's count; a prompt that was said to be too short is
    reserved for as the server counts from then on.
    """

    async def ask_one(run: Run, *, n_prompt_tokens: int, number: int) -> int:
        asker = run.asker()
        await asker.ask(prompt(number), n_prompt_tokens=n_prompt_tokens)
        in_use = run.governor.status().n_tokens_in_use
        call = asyncio.create_task(asker.ask(prompt(number + 1), n_prompt_tokens=9))
        while run.governor.status().n_open == 0:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.03)
        reserved = run.governor.status().n_tokens_in_use - in_use
        await call
        await asker.aclose()
        assert in_use == count_prompt_tokens(prompt(number)) + MAX_TOKENS
        return reserved - MAX_TOKENS

    with Run(plain, tmp_path) as run:
        assert asyncio.run(ask_one(run, n_prompt_tokens=25, number=0)) == 9
    with Run(plain, tmp_path / "again") as run:
        n_counted = asyncio.run(ask_one(run, n_prompt_tokens=9, number=2))
        assert n_counted == count_prompt_tokens(prompt(2))


def test_segments_that_did_not_grow_are_not_read_again(tmp_path: Path) -> None:
    """Each request looks what others wrote: thousands of old runs must not be read for it."""
    for number in range(1000):
        (tmp_path / f"replies-host-1-{number}.jsonl").write_text("{}\n")
    journal = Journal(tmp_path)
    journal._notes.clear()
    for path in tmp_path.iterdir():
        path.write_text("[]\n")  # The same size: nobody looks.

    def refresh() -> None:
        for _ in range(10):
            assert journal.refresh() == 0

    assert cpu_s(refresh) < 0.5
    assert journal.notes == ["900 more"]
    with (tmp_path / "replies-host-1-7.jsonl").open("a") as file:
        file.write("{}\n")
    journal.refresh()
    assert len(journal.notes) == 2


def test_a_claim_tells_who_let_a_key_go_since_the_last_look() -> None:
    """A look at an object store costs a request for each writer: who has no news needs none."""
    governor = Governor(Limits(), lease_s=1.0)
    first = governor.claim("0a", owner="a")
    assert first.is_own and first.released_by is None, "who has never looked looks at all"
    second = governor.claim("0b", owner="a", since=first.releases)
    assert second.released_by == ()
    governor.release("0a", owner="a")
    assert governor.claim("0c", owner="a", since=second.releases).released_by == ()
    other = governor.claim("0a", owner="b", since=second.releases)
    assert other.is_own and other.released_by == ("a",)
    assert governor.claim("0d", owner="b", since=other.releases).released_by == ()
    assert not governor.claim("0a", owner="c", since=other.releases).is_own
    # Another governor in its place has counted anew.
    again = Governor(Limits())
    assert again.claim("0e", owner="b", since=other.releases).released_by is None


def test_a_claim_tells_of_owners_that_died() -> None:
    """They released nothing, and may have left a reply."""
    claims = LeaseTable(lease_s=1.0)
    claims.claim("0a", owner="dead", now_s=0.0)
    before = claims.releases("b", None).releases
    assert claims.claim("0a", owner="b", now_s=2.0)
    assert claims.releases("b", before).released_by == ("dead",)
    claims.claim("0b", owner="gone", now_s=2.0)
    before = claims.releases("b", None).releases
    claims.claim("0c", owner="new", now_s=9.0)  # Which forgets the dead.
    assert set(claims.releases("new", before).released_by or ()) >= {"gone"}
