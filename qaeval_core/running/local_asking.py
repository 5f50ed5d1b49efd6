"""Local asking: calls to language models by this process, without Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from qaeval_core.errors import QAEvalError, RunStoppedError, StoreLockedError
from qaeval_core.families.chat.family import ChatFamilyPlan, ChatWork
from qaeval_core.families.contract import OnBatch, Prepared, Runner
from qaeval_core.llm.asker import Asker
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import GovernorClient, in_process
from qaeval_core.llm.ledger import Ledger, ledger_folder
from qaeval_core.llm.limits import Limits
from qaeval_core.running.call_worker import CallWorker, LoopThread
from qaeval_core.running.chat_asker import (
    OpenGovernor,
    ask_shard,
    close_asker,
    journal_folder,
    open_asker,
)
from qaeval_core.running.piece_worker import Supervisor
from qaeval_core.store.store import Store

T = TypeVar("T")


@contextmanager
def local_governors(*, ledger_path: str | None) -> Iterator[OpenGovernor]:
    """Yield what opens governors in this process; their ledgers are held until the end.

    Parameters
    ----------
    ledger_path : str or None
        Folder of ledgers; None is the default of this machine.
    """
    ledgers: list[Ledger] = []

    def open_governor(account: str, limits: Limits, budget: Budget) -> GovernorClient:
        block_usd = (budget.budget_usd or 0.0) / 100
        try:
            ledger = Ledger(
                ledger_folder(ledger_path),
                account,
                keep_s=limits.span_s,
                block_usd=block_usd,
                section=budget.section,
            )
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{error.text}: another run calls the same server with the same key. Wait for it, "
                "or run both on one Ray cluster (--address), where they share the limits [QA0607]"
            ) from None
        ledgers.append(ledger)
        governor = Governor(limits, ledger=ledger)
        return GovernorClient(in_process(governor), limits=limits, budget=budget)

    try:
        yield open_governor
    finally:
        for ledger in ledgers:
            ledger.close()


@contextmanager
def local_worker(
    plan: ChatFamilyPlan, store: Store, supervisor: Supervisor
) -> Iterator[CallWorker]:
    """Yield a worker under a governor of this process."""
    with local_governors(ledger_path=plan.settings.ledger_path) as open_governor:
        worker = CallWorker(plan, store, supervisor, open_governor=open_governor)
        try:
            yield worker
        finally:
            worker.close()


class ChatRunner(Runner):
    """Asks for rows in memory, without a store; replies are journaled all the same.

    Parameters
    ----------
    plan : ChatFamilyPlan
    stop : threading.Event, optional
        Set to stop: calls under way are waited for, and RunStoppedError is raised.

    Raises
    ------
    ConfigError
        If there is no folder for replies.
    """

    def __init__(self, plan: ChatFamilyPlan, *, stop: threading.Event | None = None) -> None:
        journal_folder(plan)
        self.plan: ChatFamilyPlan = plan
        self.layout = plan.open_layout()
        self._stop = stop or threading.Event()

    def run(self, prepared: Prepared[ChatWork], on_batch: OnBatch | None = None) -> None:
        """Ask for every row.

        Raises
        ------
        LanguageModelError
            If calls cannot go on; what was paid for is journaled, as it is for any other error.
        """
        n_rows = max(prepared.n_rows, 1)

        def on_rows(n_asked: int) -> None:
            if on_batch is not None:
                on_batch(0, 0, n_asked / n_rows)

        thread = LoopThread()
        try:
            with local_governors(ledger_path=self.plan.settings.ledger_path) as open_governor:
                opening = thread.submit(open_asker(self.plan, open_governor=open_governor))
                try:
                    asker, _, _ = _wait_for(opening, self._stop)
                except BaseException:
                    thread.cancel()  # While ledgers are held: it may be about to take one.
                    raise
                asking = thread.submit(ask_shard(asker, self.plan, prepared, on_rows))
                try:
                    _wait_for(asking, self._stop)
                except BaseException as error:
                    told: QAEvalError = RunStoppedError("interrupted [QA0005]")
                    if isinstance(error, QAEvalError):
                        told = error
                    thread.submit(_stop_asking(asker, told)).result()
                    while not asking.done():  # Calls under way are paid for.
                        wait([asking], timeout=0.2)
                    raise
                finally:
                    thread.submit(close_asker(asker)).result()
        finally:
            thread.close()


async def _stop_asking(asker: Asker, error: QAEvalError) -> None:
    asker.stop(error)


def _wait_for(future: Future[T], stop: threading.Event) -> T:
    """Return the result; waited for in short turns, or Ctrl-C would go unnoticed."""
    while not future.done():
        if stop.is_set():
            raise RunStoppedError("stopped as asked; the journal keeps what was paid for [QA0005]")
        wait([future], timeout=0.2)
    return future.result()
