"""One governor for all callers of an account: limits, money, claims and pauses, through kills."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import ray

from governor_runs import Caller, Run, cpu_s, governor_processes, governor_status
from helpers import wait_until
from llm_runs import prompt
from llm_server import LlmServer, reply_text
from qaeval.on_ray.governor import leave_governor, ray_governor
from qaeval_core.errors import (
    BudgetExhaustedError,
    CallTooLargeError,
    ConfigError,
    RunError,
    StoreLockedError,
)
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Reservation
from qaeval_core.llm.governor_client import GovernorClient
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits
from wall_clock import Report, check_figures

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Both callers and the server share the machine with whatever else runs there.
WINDOW = {"requests_per_minute": 60, "window_s": 2.0}
MAX_STALL_S = 0.1

TESTS = Path(__file__).resolve().parents[1]

Result = TypeVar("Result")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A local Ray with governors of this test alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def callers() -> list[Any]:
    """Two processes that ask."""
    return [Caller.remote() for _ in range(2)]


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., GovernorClient]]:
    """Make clients of one account; all leave in the end."""
    made: list[GovernorClient] = []

    def make(
        limits: Limits | None = None, *, budget: str = "main", usd: float | None = None, **more: Any
    ) -> GovernorClient:
        made.append(
            ray_governor(
                tmp_path.name,
                limits=limits or Limits(),
                budget=Budget(budget, usd),
                folder=tmp_path,
                **more,
            )
        )
        return made[-1]

    yield make
    for client in made:
        leave(tmp_path.name, client)


def wait_for(awaited: Coroutine[Any, Any, Result]) -> Result:
    """Return the result, from an event loop that ends with it."""
    return asyncio.run(awaited)


def leave(account: str, client: GovernorClient) -> None:
    """Take leave of the governor of an account."""
    wait_for(leave_governor(account, client.run))


def governor_process() -> psutil.Process:
    """Return the governor's process; one that has ended may take a second to be gone."""
    return max(governor_processes(), key=psutil.Process.create_time)


def ask_with(callers: list[Any], run: Run, *, n_each: int) -> list[Any]:
    """Let callers ask for different prompts; return what they will say."""
    return [
        caller.ask.remote(run, number * n_each, (number + 1) * n_each)
        for number, caller in enumerate(callers)
    ]


def check_limits(
    server: LlmServer, report: Report, *, n_calls: int, least_use: float = 0.0
) -> dict[str, Any]:
    """Check that each was asked once, no window held too many, and so much of each was used."""
    stats = server.stats()
    assert stats["n_ok"] == n_calls == stats["n_calls"] - stats["n_refused"]

    def check(found: list[dict[str, Any]]) -> None:
        assert stats["n_refused"] == 0
        assert stats["max_requests_in_window"] <= WINDOW["requests_per_minute"]
        assert stats["mean_use"]["requests"] >= least_use

    check_figures(lambda: [stats], check, report, max_stall_s=MAX_STALL_S)
    return stats


def check_texts(refs: list[Any]) -> None:
    texts = [text for part in ray.get(refs) for text in part]
    assert texts == [reply_text(prompt(number)) for number in range(len(texts))]


@pytest.mark.slow
def test_callers_in_two_processes_share_one_limit(
    callers: list[Any], tmp_path: Path, record_property: Report
) -> None:
    """Each at the full limit would be twice the limit; each at half of it wastes what is paid."""
    with LlmServer(**WINDOW) as server:
        run = Run.against(server, tmp_path)
        wait_for(run.governor.status())
        started_s = cpu_s(governor_process())
        refs = ask_with(callers, run, n_each=45)
        check_texts(refs)
        # A governor that took 10 ms a request would be the limit: 100 requests/s.
        assert (cpu_s(governor_process()) - started_s) / 90 < 0.01
        stats = check_limits(server, record_property, n_calls=90, least_use=0.85)  # W / S = 0.91
        status = governor_status(run.client.account, "main")
        assert status is not None
        assert (status.n_settled, status.n_sent, status.n_open) == (90, stats["n_calls"], 0)
        assert status.spent_usd == pytest.approx(stats["billed_usd"])
        leave(run.client.account, run.governor)


@pytest.mark.slow
def test_a_killed_governor_comes_back_with_pause_limits_and_money(
    callers: list[Any], tmp_path: Path, record_property: Report
) -> None:
    """kill -9 must not lose a call, break a limit, forget the server's pause or what was spent."""
    with LlmServer(log_path=str(tmp_path / "server.jsonl"), **WINDOW) as server:
        run = Run.against(server, tmp_path)
        refs = ask_with(callers, run, n_each=45)
        wait_until(
            lambda: server.stats()["n_calls"] >= 30 or bool(ray.wait(refs, timeout=0)[0]),
            timeout_s=20,
        )
        wait_for(run.governor.pause(3.0))
        paused_s = time.monotonic()
        governor_process().kill()
        check_texts(refs)
        stats = check_limits(server, record_property, n_calls=90)
        # Calls that had their final word are sent within the jitter; the clock is the machine's.
        since_s = [line["t_s"] - paused_s for line in server.log()]
        late_s = 0.3 + max(stats["max_stall_s"] - MAX_STALL_S, 0.0)
        assert [at_s for at_s in since_s if late_s < at_s < 2.9] == []
        assert max(since_s) > 3.0
        status = wait_for(run.governor.status())
        assert (status.n_settled, status.n_open, status.reserved_usd) == (90, 0, 0.0)
        assert status.spent_usd == pytest.approx(stats["billed_usd"])
        leave(run.client.account, run.governor)


def test_equal_requests_of_two_processes_are_asked_once(callers: list[Any], tmp_path: Path) -> None:
    """Two actors or runs that meet the same question must not both pay for it."""
    with LlmServer(latency_s=0.3) as server:
        run = Run.against(server, tmp_path)
        texts = ray.get([caller.ask.remote(run, 0, 12) for caller in callers])
        assert texts[0] == texts[1] == [reply_text(prompt(number)) for number in range(12)]
        assert server.stats()["n_calls"] == 12
        leave(run.client.account, run.governor)


def test_claims_hold_for_all_clients_and_through_a_kill(make_client: Any) -> None:
    """A request in flight must not be given away because the governor was killed meanwhile."""
    one, two = make_client(), make_client()
    assert wait_for(one.claim("0a", owner="one")).is_own
    assert wait_for(one.claim("0b", owner="one")).is_own
    assert not wait_for(two.claim("0a", owner="two")).is_own
    wait_for(one.release("0b", owner="one"))
    governor_process().kill()
    assert not wait_for(two.claim("0a", owner="two")).is_own
    assert wait_for(two.claim("0b", owner="two")).is_own
    wait_for(one.renew("one"))
    wait_for(one.release("0a", owner="one"))
    assert wait_for(two.claim("0a", owner="two")).is_own


def test_two_runs_share_a_pace_that_outlives_the_governor(make_client: Any) -> None:
    """Who did not hear the refusals would be refused as often, and so would a successor."""
    limits = Limits(requests_per_minute=60_000)
    one, two = make_client(limits), make_client(limits, budget="other")

    async def refuse(client: GovernorClient) -> None:
        for number in range(400):
            reservation = await client.reserve(tokens=1, usd=0.0)
            while not reservation.is_final:
                await asyncio.sleep(reservation.wait_s)
                reservation = await client.confirm(reservation.call_id) or reservation
            end = "refused" if number % 2 else "answered"
            await client.failed(reservation.call_id, billed=False, end=end)

    wait_for(two.status())
    wait_for(refuse(one))
    before = wait_for(two.status()).pace_factor
    assert before < 0.7
    governor_process().kill()
    assert wait_for(two.status()).pace_factor == pytest.approx(before, abs=0.1)


def test_calls_in_mid_kill_are_reserved_once(make_client: Any) -> None:
    """A call that is repeated because its answer was lost must not hold money twice."""
    client = make_client(usd=10.0)

    async def reserve_many() -> set[str]:
        reservations = [client.reserve(tokens=1, usd=0.01) for _ in range(200)]
        asked = asyncio.gather(*reservations)
        await asyncio.sleep(0.05)
        governor_process().kill()
        return {reservation.call_id for reservation in await asked}

    wait_for(client.status())
    assert len(wait_for(reserve_many())) == 200
    status = wait_for(client.status())
    assert (status.n_open, status.reserved_usd) == (200, 2.0)


def test_the_last_run_that_leaves_ends_the_actor(make_client: Any, tmp_path: Path) -> None:
    """Nothing stays on a cluster of others; the next run finds what was spent."""
    account = tmp_path.name
    assert governor_status(account, "main") is None
    one, two = make_client(budget="one"), make_client(budget="two")
    reservation = wait_for(one.reserve(tokens=5, usd=0.5))
    wait_for(one.settle(reservation.call_id, tokens=5, usd=0.25))
    wait_for(two.reserve(tokens=5, usd=0.5))
    leave(account, two)
    status = governor_status(account, "one")
    assert status is not None
    assert status.spent_usd == 0.25
    leave(account, one)
    assert governor_status(account, "one") is None
    wait_until(lambda: not governor_processes(), timeout_s=20)
    # The client still has the handle of the actor that has ended.
    assert wait_for(one.status()).spent_usd == 0.25


def test_a_run_that_leaves_does_not_take_its_budget_from_others(
    make_client: Any, tmp_path: Path
) -> None:
    """Runs of one journal must not pay twice because the first of them has ended."""
    clients = [make_client() for _ in range(3)]
    for client in clients:
        reservation = wait_for(client.reserve(tokens=5, usd=0.1))
        wait_for(client.settle(reservation.call_id, tokens=5, usd=0.1))
    _, two, three = clients
    assert wait_for(two.claim("0f", owner="two")).is_own
    leave(tmp_path.name, clients[0])
    assert not wait_for(three.claim("0f", owner="three")).is_own
    assert wait_for(three.status()).n_sent == 3


def test_a_run_that_died_leaves_in_the_end(make_client: Any, tmp_path: Path) -> None:
    """A killed driver must not leave a process, or its low limits, to the cluster for ever."""
    wait_for(make_client(silent_s=0.5).reserve(tokens=5, usd=0.5))
    assert governor_processes()
    wait_until(lambda: not governor_processes(), timeout_s=20)
    assert governor_status(tmp_path.name, "main") is None


def test_errors_arrive_as_they_were_raised(make_client: Any) -> None:
    """A wrapped error would be a trace for the user, and a stop of the run for the program."""
    limits = Limits(tokens_per_minute=100)
    client = make_client(limits, usd=0.1)
    wait_for(client.reserve(tokens=5, usd=0.08))
    with pytest.raises(BudgetExhaustedError) as refused:
        wait_for(client.reserve(tokens=5, usd=0.08))
    assert type(refused.value) is BudgetExhaustedError
    assert refused.value.may_free

    async def reserve_many() -> list[Any]:
        calls = [client.reserve(tokens=n_tokens, usd=0.0) for n_tokens in (5, 101, 6, 102)]
        return await asyncio.gather(*calls, return_exceptions=True)

    # Calls that travel together fail alone.
    results = wait_for(reserve_many())
    assert [type(each) for each in results] == [Reservation, CallTooLargeError] * 2
    assert [str(error)[:20] for error in results[1::2]] == [
        "a call of 101 tokens",
        "a call of 102 tokens",
    ]
    other = dataclasses.replace(limits, window_s=30.0)
    with pytest.raises(ConfigError, match="QA0609"):
        wait_for(make_client(other, budget="other").reserve(tokens=5, usd=0.0))


def test_a_ledger_that_another_cluster_holds_is_told_plainly(
    make_client: Any, tmp_path: Path
) -> None:
    """Two governors on one key would each fill the limit."""
    ledger = Ledger(tmp_path, tmp_path.name)
    with pytest.raises(StoreLockedError, match="--address.*QA0607") as refused:
        wait_for(make_client().reserve(tokens=5, usd=0.0))
    assert type(refused.value) is StoreLockedError
    assert governor_status(tmp_path.name, "main") is None
    ledger.close()
    assert wait_for(make_client().reserve(tokens=5, usd=0.0)).wait_s < 1.0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A typo in the ledger's folder must read as one."""
    (tmp_path / "file").write_text("")
    governor = ray_governor(
        "a", limits=Limits(), budget=Budget(section="naco."), folder=tmp_path / "file" / "ledgers"
    )
    with pytest.raises(RunError, match=r"file/ledgers.*Not.*\(naco\.ledger_path\).*QA0606"):
        wait_for(governor.status())
    leave("a", governor)
