"""Task store: OUT as a task opens it, on whatever node: what it must know of it can be sent."""

from __future__ import annotations

from dataclasses import dataclass

from qaeval_core.planning.job import Job
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.storage.path import StoragePath
from qaeval_core.storage.retry import STORAGE_SETTING, Outages
from qaeval_core.store.lock import Tenure
from qaeval_core.store.sample import Sample
from qaeval_core.store.store import Mark, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStore:
    """What a task needs to know to open OUT.

    Attributes
    ----------
    retry_s : float
        How long a store that refuses is tried.
    tenure : Tenure or None
        Of OUT; None where nobody holds it, or what is written is the same whoever writes it.
    """

    out: StoragePath
    stop: StopSign
    mark: Mark | None = None
    sample: Sample | None = None
    retry_s: float = 0.0
    tenure: Tenure | None = None

    @classmethod
    def of_job(cls, job: Job, stop: StopSign, *, tenure: Tenure | None = None) -> TaskStore:
        """Return what tasks of a job need to know."""
        return cls(
            out=job.store.out,
            stop=stop,
            mark=job.store.mark,
            sample=job.sample,
            retry_s=job.config.scoring.retry_storage_s,
            tenure=tenure,
        )

    def open(self) -> Store:
        """Return OUT."""
        outages = Outages(retry_s=self.retry_s, look=self.stop.look, setting=STORAGE_SETTING)
        guard = None if self.tenure is None else self.tenure.check
        return Store(self.out, mark=self.mark, outages=outages, sample=self.sample, guard=guard)
