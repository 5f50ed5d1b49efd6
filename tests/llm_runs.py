"""Runs against the test server, in this process: what the tests of asking share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile_server import HostileServer
from llm_server import LlmServer, count_prompt_tokens
from qaeval_core.llm.asker import Asker
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import GovernorClient, in_process, reconcile
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.key import ApiKey
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.limits import Limits, Prices, most_prompt_tokens
from qaeval_core.llm.retry import RetryRule

MAX_TOKENS = 100
PRICES = Prices(prompt_usd_per_million=1.0, completion_usd_per_million=2.0)  # The server's own.


def prompt(number: int) -> list[dict[str, str]]:
    """Return a prompt of 18 tokens, of 138 from number 10,000 on, as the server counts."""
    content = f"Question {number}: what color has the house at {number} in the street?"
    content += " It is a long one." * (20 if number >= 10_000 else 0)
    return [{"role": "user", "content": content}]


def reserved_usd(number: int, prices: Prices = PRICES) -> float:
    """Return what is reserved for a call with that prompt."""
    n_prompt_tokens = most_prompt_tokens(prompt(number))
    return prices.cost_usd(n_prompt_tokens=n_prompt_tokens, n_completion_tokens=MAX_TOKENS)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Run:
    """One run against a server: its journal, ledger and governor, in this process."""

    server: LlmServer | HostileServer
    folder: Path
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    key: ApiKey | None = None
    model: str = "m"
    timeout_s: float = 2.0
    max_concurrent: int = 32
    max_refusals: int = 60
    max_given_up: int = 20
    max_outage_s: float = 60.0
    max_unheard_s: float = 60.0
    prices: Prices = PRICES
    parse: Callable[[str], dict[str, Any]] = lambda text: {"n_chars": len(text)}

    def __post_init__(self) -> None:
        parameters = {"max_tokens": MAX_TOKENS, "temperature": 0.7}
        endpoint = Endpoint(self.server.base_url, self.model, parameters, self.timeout_s)
        self.account = ChatClient(endpoint, self.key).account
        self._endpoint = endpoint
        self.ledger = Ledger(self.folder, self.account, keep_s=self.limits.span_s)
        self.use(Governor(self.limits, ledger=self.ledger))
        self.journal = Journal(self.folder)
        asyncio.run(reconcile(self.client, self.journal, account=self.account))

    def use(self, governor: Governor) -> None:
        """Ask under this governor from now on."""
        self.governor = governor
        self.client = GovernorClient(in_process(governor), limits=self.limits, budget=self.budget)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        self.ledger.close()

    def asker(self) -> Asker:
        return Asker(
            ChatClient(self._endpoint, self.key),
            self.client,
            self.journal,
            prices=self.prices,
            parse=self.parse,
            rule=RetryRule(
                first_wait_s=0.01,
                max_refusals=self.max_refusals,
                max_given_up=self.max_given_up,
                max_outage_s=self.max_outage_s,
                max_unheard_s=self.max_unheard_s,
            ),
            max_concurrent=self.max_concurrent,
        )

    async def ask(
        self,
        numbers: Sequence[int],
        *,
        n_askers: int = 1,
        wrap: bool = False,
        estimate: Callable[[Sequence[dict[str, str]]], int] = count_prompt_tokens,
    ) -> list[Any]:
        """Ask all at once, spread over askers; with ``wrap`` errors come back in place."""
        askers = [self.asker() for _ in range(n_askers)]
        calls = [
            askers[place % n_askers].ask(prompt(number), n_prompt_tokens=estimate(prompt(number)))
            for place, number in enumerate(numbers)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=wrap)
        for asker in askers:
            await asker.aclose()
        return list(answers)
