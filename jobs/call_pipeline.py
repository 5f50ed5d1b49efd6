"""Asking: the pool of actors that call a language model, each with many calls under way."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy

from jobs.actors import Lookout, RemoteSupervisor, costs_from_json, piece_from_json, pieces_dataset
from jobs.governor import leave_governor, ray_governor
from qaeval_core.errors import LanguageModelError, QAEvalError, RunError, RunStoppedError
from qaeval_core.families.chat.family import ChatFamilyPlan
from qaeval_core.job import Job
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor_client import GovernorClient
from qaeval_core.llm.limits import Limits
from qaeval_core.planning.shards import Piece
from qaeval_core.running.call_worker import CallWorker
from qaeval_core.running.passes import OnShard
from qaeval_core.running.piece_worker import worker_store
from qaeval_core.running.sight import Sight

log = logging.getLogger(__name__)

# One actor's pieces that are open at once: the last calls of one leave nobody idle.
_PIECES_AT_ONCE = 3


class AskPieces:
    """Asks for the pieces of one family; several threads bring one each.

    Returns counts alone: statistics go to the store, shard by shard. The key is read here, on the
    actor's node; only the name of its account goes elsewhere.
    """

    def __init__(
        self,
        *,
        plan: ChatFamilyPlan,
        out: str,
        coordinator: Any,
        n_actors: int,
        run: str,
        sight: Sight,
        retry_storage_s: float,
    ) -> None:
        # It logs the address of every call.
        logging.getLogger("httpx").setLevel(logging.WARNING)

        def open_governor(account: str, limits: Limits, budget: Budget) -> GovernorClient:
            folder = plan.settings.ledger_path
            return ray_governor(account, limits=limits, budget=budget, folder=folder, run=run)

        self._lookout = Lookout(sight, coordinator)
        supervisor = RemoteSupervisor(coordinator)
        self._worker = CallWorker(
            plan,
            worker_store(Path(out), sight.mark, supervisor, retry_s=retry_storage_s),
            supervisor,
            open_governor=open_governor,
            n_actors=n_actors,
        )

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Ask for the pieces of a batch; return what each shard cost, or an error."""
        costs: list[str] = []
        error, is_family = "", False
        texts = batch.column("piece").to_pylist()
        pieces = [piece_from_json(text) for text in texts]
        if self._lookout.is_blind(pieces[0]):
            self._lookout.wait_to_give_back()
            return self._result([], given_back=texts)
        try:
            with self._lookout.at_work():
                for _, _, own in self._worker.run(pieces):
                    costs.append(json.dumps({key: asdict(stats) for key, stats in own.items()}))
        except RunStoppedError:
            pass  # The driver asked for it and says so itself.
        except QAEvalError as problem:
            # As a row: an exception would come back wrapped in the cluster's own trace.
            error, is_family = str(problem), isinstance(problem, LanguageModelError)
        except Exception as problem:
            # As a row, too: the calls of other pieces are paid for and shall end.
            log.exception("unexpected error")
            error = f"{type(problem).__name__}: {problem} (its trace is in the log of the actor)"
        return self._result(costs, error=error, is_family=is_family)

    def _result(
        self,
        costs: Sequence[str],
        *,
        error: str = "",
        is_family: bool = False,
        given_back: Sequence[str] = (),
    ) -> pa.Table:
        return pa.table(
            {
                "costs": pa.array([costs], pa.list_(pa.string())),
                "error": pa.array([error]),
                "is_family": pa.array([is_family]),
                "account": pa.array([self._worker.account], pa.string()),
                "given_back": pa.array([given_back], pa.list_(pa.string())),
            }
        )


class CallPass:
    """The pass of one family that asks: its pipelines, and its leave from the governor.

    Parameters
    ----------
    job : Job
    family : ChatFamilyPlan
    sight : Sight
        What its workers must see.
    coordinator : actor handle
    """

    def __init__(self, job: Job, family: ChatFamilyPlan, *, sight: Sight, coordinator: Any) -> None:
        self._job = job
        self._family = family
        self._sight = sight
        self._coordinator = coordinator
        self._run_name = uuid.uuid4().hex
        self._accounts: set[str] = set()

    def dataset(
        self, pieces: Sequence[Piece], *, ray_options: Mapping[str, Any]
    ) -> ray.data.Dataset:
        """Return the pipeline that asks for some pieces; built in the main thread."""
        # An actor makes one call at least: more actors than calls would exceed max_concurrent.
        cluster = self._job.config.cluster
        most = min(cluster.llm_actors, self._family.settings.max_concurrent)
        n_actors = min(most, len(pieces))
        # With few pieces the first actor that is up would take them all, into its queue even.
        n_open = min(_PIECES_AT_ONCE, -(-len(pieces) // n_actors))
        return pieces_dataset(pieces).map_batches(
            AskPieces,
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                size=n_actors,
                max_concurrent_calls_per_actor=n_open,
                max_tasks_in_flight_per_actor=n_open,
                enable_true_multi_threading=True,
            ),
            # Calls only wait: models keep the CPUs.
            num_cpus=0,
            fn_constructor_kwargs={
                "plan": self._family,
                "out": str(self._job.store.out),
                "coordinator": self._coordinator,
                "n_actors": n_actors,
                "run": self._run_name,
                "sight": self._sight,
                "retry_storage_s": self._job.config.scoring.retry_storage_s,
            },
            **ray_options,
        )

    def consume(self, dataset: ray.data.Dataset, on_shard: OnShard) -> list[Piece]:
        """Ask for all pieces of a pipeline; return those that were given back.

        Raises
        ------
        QAEvalError
            A LanguageModelError if calls cannot go on; what ``on_shard`` raises; a RunError for
            any other error of a worker. Calls that were under way have ended by then.
        """
        first: QAEvalError | None = None
        given_back: list[Piece] = []
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in batch.to_pylist():
                self._accounts.update([row["account"]] if row["account"] else [])
                given_back += [piece_from_json(text) for text in row["given_back"]]
                error = _take(row, on_shard)
                if error is not None and first is None:
                    # Others end what they have under way: those replies are paid for.
                    first = error
                    ray.get(self._coordinator.stop.remote())
        if first is not None:
            raise first
        return given_back

    def close(self) -> None:
        """Take leave of the governor."""
        for account in self._accounts:
            asyncio.run(leave_governor(account, self._run_name))


def _take(row: Mapping[str, Any], on_shard: OnShard) -> QAEvalError | None:
    """Count what a piece cost; return what went wrong."""
    try:
        for cost in row["costs"]:
            on_shard(costs_from_json(cost))
    except QAEvalError as error:
        return error
    if not row["error"]:
        return None
    return LanguageModelError(row["error"]) if row["is_family"] else RunError(row["error"])
