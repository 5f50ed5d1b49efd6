"""Callers in processes of their own: what tests of a shared governor let ask."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import ray
from ray.exceptions import RayError

from helpers import processes
from llm_runs import MAX_TOKENS, PRICES, prompt
from llm_server import LlmServer, count_prompt_tokens
from qaeval.on_ray.governor import ray_governor
from qaeval_core.llm.asker import Asker
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor import Status
from qaeval_core.llm.governor_client import Call, GovernorClient
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.retry import RetryRule


@dataclass(frozen=True)
class Run:
    """One run against a server, its ledger and journal in one folder."""

    base_url: str
    folder: Path
    limits: Limits
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def against(cls, server: LlmServer, folder: Path) -> Run:
        """Return the run that uses a server's limits in full."""
        limits = Limits(
            requests_per_minute=server.settings.requests_per_minute,
            window_s=server.settings.window_s,
            jitter_share=0.1,
        )
        return cls(server.base_url, folder, limits)

    @property
    def client(self) -> ChatClient:
        """A client, for one event loop."""
        parameters = {"max_tokens": MAX_TOKENS, "temperature": 0.7}
        return ChatClient(Endpoint(self.base_url, "m", parameters, 5.0))

    @property
    def governor(self) -> GovernorClient:
        """The governor, for one process."""
        account = self.client.account
        return ray_governor(
            account, limits=self.limits, budget=self.budget, folder=self.folder, run="run"
        )

    async def ask(self, numbers: range) -> list[str | None]:
        """Ask all at once; return texts, None where there is none."""
        asker = Asker(
            self.client,
            self.governor,
            Journal(self.folder / "journal"),
            prices=PRICES,
            rule=RetryRule(first_wait_s=0.01),
            max_concurrent=8,
        )
        prompts = [prompt(number) for number in numbers]
        calls = [asker.ask(each, n_prompt_tokens=count_prompt_tokens(each)) for each in prompts]
        answers = await asyncio.gather(*calls)
        await asker.aclose()
        return [answer.entry.text if answer.entry else answer.reason for answer in answers]


@ray.remote(num_cpus=0)
class Caller:
    """An actor that asks on an event loop of its own thread, as a pool's actor does."""

    def ask(self, run: Run, start: int, stop: int) -> list[str | None]:
        """Ask for prompts start to stop."""
        texts: list[str | None] = []
        thread = threading.Thread(
            target=lambda: texts.extend(asyncio.run(run.ask(range(start, stop))))
        )
        thread.start()
        thread.join()
        return texts


def governor_processes() -> list[psutil.Process]:
    """Return the processes of governors below this one."""
    return processes(os.getpid(), title="GovernorActor")


def governor_status(account: str, budget_name: str) -> Status | None:
    """Return where an account's governor stands; None if there is none, or it is dying."""
    try:
        actor = ray.get_actor(f"qaeval-governor-{account}", namespace="qaeval")
        ((is_status, said),) = ray.get(
            actor.answer.remote([Call("status", (budget_name,), {})]), timeout=2.0
        )
        return said if is_status else None
    except (ValueError, RayError):
        return None


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)
