"""Workers of calls beside each other, as actors are: what they share holds for all together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llm_server import LlmServer
from naco_jobs import many, settings
from qaeval_core.configure import load_config
from qaeval_core.families.chat.family import ChatFamilyPlan
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import Call, GovernorClient
from qaeval_core.llm.limits import Limits
from qaeval_core.planning.job import Job, make_job, read_inputs
from qaeval_core.running.call_worker import CallWorker
from qaeval_core.running.local_executor import LocalSupervisor
from qaeval_core.running.progress import ProgressPrinter

LATENCY_S = 0.05
N_ROWS = 32


def ask(job: Job, plan: ChatFamilyPlan, n_workers: int) -> None:
    """Ask for all rows with so many workers under one governor."""
    governor, lock = Governor(Limits()), threading.Lock()

    async def transport(call: Call) -> Any:
        with lock:
            return call.do(governor)

    def open_governor(account: str, limits: Limits, budget: Budget) -> GovernorClient:
        return GovernorClient(transport, limits=limits, budget=budget)

    def run(pieces: Any) -> None:
        with ProgressPrinter("naco", n_rows_total=1, interval_s=60.0) as printer:
            supervisor = LocalSupervisor(threading.Event(), printer)
            worker = CallWorker(
                plan, job.store, supervisor, open_governor=open_governor, n_actors=n_workers
            )
            try:
                list(worker.run(pieces))
            finally:
                worker.close()

    pieces = job.pieces([plan], n_actors=n_workers)
    with ThreadPoolExecutor(n_workers) as pool:
        list(pool.map(run, [pieces[i::n_workers] for i in range(n_workers)]))


@pytest.mark.parametrize(("n_workers", "max_concurrent"), [(4, 5), (1, 4)])
def test_no_more_calls_are_under_way_than_all_may_make(
    tmp_path: Path, n_workers: int, max_concurrent: int
) -> None:
    """Four actors made eight calls at once where five were allowed."""
    log_path = str(tmp_path / "server.jsonl")
    with LlmServer(latency_s=LATENCY_S, log_path=log_path) as server:
        given = {"naco__max_concurrent": max_concurrent, "cluster__llm_actors": n_workers}
        rows = many(N_ROWS)
        config = load_config(
            overrides=settings(server, tmp_path, rows, scoring__rows_per_shard=4, **given)
        )
        job = make_job(config, read_inputs(config), device="cpu")
        (plan,) = job.run.families
        assert isinstance(plan, ChatFamilyPlan)
        ask(job, plan, n_workers)
        arrivals_s = sorted(call["t_s"] for call in server.log())
    assert len(arrivals_s) >= N_ROWS  # Some are reminders.
    # A call lasts for the latency at least: what arrives within one is under way at once.
    at_once = [
        sum(start_s <= other_s < start_s + LATENCY_S for other_s in arrivals_s)
        for start_s in arrivals_s
    ]
    assert max_concurrent - n_workers < max(at_once) <= max_concurrent
