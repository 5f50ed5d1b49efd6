"""Asked locally: a family that asks a language model, in this process: worker and runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from qaeval_core.llm.door import LocalGovernor
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.ledger import Ledger
from qaeval_core.llm.ledger_folder import ledger_folder
from qaeval_core.llm.limits import Limits, Purse
from qaeval_core.scoring.asked_worker import AskedWorker, LoopThread
from qaeval_core.scoring.asking import OpenGovernor, ask_shard, open_asker, prepare_asked
from qaeval_core.scoring.families.naco import NacoWork
from qaeval_core.scoring.families.words.rows import ShardTexts
from qaeval_core.scoring.plans import AskedFamilyPlan
from qaeval_core.scoring.prepared import OnBatch, Prepared
from qaeval_core.scoring.store import Store
from qaeval_core.scoring.work import Supervisor


@contextmanager
def local_governors(*, ledger_path: str | None) -> Iterator[OpenGovernor]:
    """Yield what opens governors in this process; their ledgers are held until the end.

    Parameters
    ----------
    ledger_path : str or None
        Folder of ledgers; None is the default of this machine.
    """
    ledgers: list[Ledger] = []

    def open_governor(account: str, limits: Limits, purse: Purse) -> LocalGovernor:
        ledger = Ledger(
            ledger_folder(ledger_path),
            account,
            keep_s=limits.span_s,
            block_usd=(purse.budget_usd or 0.0) / 100,
        )
        ledgers.append(ledger)
        return LocalGovernor(Governor(limits, ledger=ledger), limits=limits, purse=purse)

    try:
        yield open_governor
    finally:
        for ledger in ledgers:
            ledger.close()


@contextmanager
def local_worker(
    plan: AskedFamilyPlan, store: Store, supervisor: Supervisor
) -> Iterator[AskedWorker]:
    """Yield a worker under a governor of this process."""
    with local_governors(ledger_path=plan.settings.ledger_path) as open_governor:
        worker = AskedWorker(plan, store, supervisor, open_governor=open_governor)
        try:
            yield worker
        finally:
            worker.close()


class AskedRunner:
    """Asks for rows in memory, without a store; replies are journalled all the same.

    Parameters
    ----------
    plan : AskedFamilyPlan
    """

    def __init__(self, plan: AskedFamilyPlan) -> None:
        self.plan = plan

    def prepare(
        self, rows: Mapping[str, Sequence[object]], texts: ShardTexts | None = None
    ) -> Prepared[NacoWork]:
        """Validate rows and make their prompts."""
        return prepare_asked(self.plan, rows)

    def run(self, prepared: Prepared[NacoWork], on_batch: OnBatch | None = None) -> None:
        """Ask for every row.

        Raises
        ------
        QAEvalError
            If the endpoint refuses, or the budget is used up; what was paid for is journalled.
        """
        n_rows = max(prepared.n_rows, 1)

        def on_rows(n_asked: int, n_tokens: int) -> None:
            if on_batch is not None:
                on_batch(n_tokens, 0, n_asked / n_rows)

        async def ask() -> None:
            asker, _, _ = await open_asker(self.plan, open_governor=open_governor)
            try:
                await ask_shard(asker, prepared, on_rows)
            finally:
                await asker.aclose()

        thread = LoopThread()
        try:
            with local_governors(ledger_path=self.plan.settings.ledger_path) as open_governor:
                thread.submit(ask()).result()
        finally:
            thread.close()
