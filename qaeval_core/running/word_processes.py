"""Word processes: pieces of a pass of words, committed by a few processes of this machine.

Words are counted by one core, and models use all: so only words are spread. Each process keeps what
it opened for a pass, such as document frequencies, and is told when the run is to stop.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from qaeval_core.configure import ModelsSection
from qaeval_core.families.contract import Engine, FamilyPlan
from qaeval_core.planning.shards import Piece
from qaeval_core.running import outage_note
from qaeval_core.running.passes import load_frequencies
from qaeval_core.running.piece_worker import Done, PieceWorker, worker_store
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.sample import Sample
from qaeval_core.store.store import Mark

# Less takes longer to spread than to count: a process is ready after a second.
_LEAST_S = 1.5


def process_count(left_s: float, n_cpus: int) -> int:
    """Return how many processes are worth it for what one would count in so many seconds.

    Examples
    --------
    >>> [process_count(left_s, 4) for left_s in (2.0, 3.0, 100.0)]
    [1, 2, 4]
    """
    return max(min(int(left_s / _LEAST_S), n_cpus), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPass:
    """What a process must know of a pass."""

    plans: Sequence[FamilyPlan]
    models: ModelsSection
    out: StoragePath
    mark: Mark | None
    sample: Sample | None
    retry_s: float
    others: Collection[str]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def open(self) -> PieceWorker:
        """Return who commits its pieces in this process."""
        supervisor = _ChildSupervisor(StopSign())
        store = worker_store(
            self.out, self.mark, supervisor, retry_s=self.retry_s, sample=self.sample
        )
        engine = Engine(
            models=self.models,
            device="cpu",
            n_threads=1,
            load_frequencies=partial(load_frequencies, store=store),
        )
        runners = {plan.key: plan.open_runner(engine) for plan in self.plans}
        return PieceWorker(runners, store, supervisor, others=self.others)


class _ChildSupervisor:
    """Hears whether to stop, and tells of outages: who waits for the pieces counts them."""

    def __init__(self, stop: StopSign) -> None:
        self._stop = stop

    def start_attempt(self, family: str, file_id: str, rows: RowRange) -> int:
        """Return 1: what kills a process ends the run."""
        return 1

    def report(self, n_rows: float, n_tokens: int, n_padded_tokens: int) -> None:
        """Raise RunStoppedError when the run shall stop."""
        self._stop.look()

    def set_status(self, note: str) -> None:
        """Tell who waits for the pieces."""
        outage_note.tell(note)


_opened: dict[str, PieceWorker] = {}


def forget_words() -> None:
    """Let go of what this process opened for passes: it has other work now."""
    _opened.clear()


def commit_piece(piece: Piece, *, given: WordPass) -> list[Done]:
    """Commit a piece; return what was committed of each shard."""
    if given.token not in _opened:
        _opened.clear()
        _opened[given.token] = given.open()
    return list(_opened[given.token].run([piece]))
