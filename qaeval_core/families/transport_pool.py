"""Transport on all CPUs: POT holds the interpreter, so pairs are solved in processes of their own.

Stands alone because it is a program too: ``python -m qaeval_core.families.transport_pool TELLS
HELD`` solves what comes on its standard input and tells it to a pipe, by its number. Vectors, some
hundred times the rest, lie in memory that both sides map: through a pipe they take as long as a
second CPU saves. The memory has no name and is gone with the last process that maps it.

Neither a fork nor an executor of the standard library: this process runs threads, an engine and
perhaps Ray's, which a fork would freeze in mid-work; and executors leave their workers behind when
they are killed. These end when their input does.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from qaeval_core.families.transport import FloatArray, IntArray, VectorArray, transport_costs
from qaeval_core.models.cpu import available_cpus

log = logging.getLogger(__name__)

# A process needs half a second to start, and stays.
_MIN_SECONDS = 0.25
# One pair takes some 80 us and 0.1 us per pair of tokens.
_PAIR_S = 8e-5
_ELEMENT_S = 1e-7
_CHUNKS_A_PROCESS = 4
# Of vectors. One pair may have more, up to 2,000 x 2,000 tokens of 4,096 numbers: what is held but
# was never written to takes no memory.
_CHUNK_BYTES = 4 << 20
_HELD_BYTES = 64 << 20
_STDERR = 2
_THREADS_OF_ONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def transport_costs_on_all_cpus(
    *,
    vectors: VectorArray,
    spans: IntArray,
    pair_left: IntArray,
    pair_right: IntArray,
    weights: VectorArray,
    n_processes: int | None = None,
) -> FloatArray:
    """Return what `transport_costs` returns, number for number, by several processes.

    Parameters
    ----------
    vectors, spans, pair_left, pair_right, weights
        As for `transport_costs`.
    n_processes : int, optional
        Default the CPUs of this process, or ``RAYON_NUM_THREADS``: what a worker may use. Work of
        less than a quarter of a second is done here.
    """
    own: dict[str, Any] = {"vectors": vectors, "spans": spans, "weights": weights}
    seconds = _expected_s(spans, pair_left, pair_right)
    n = n_processes or usable_cpus()
    # Memory without a name is Linux's.
    if n < 2 or seconds.sum() < _MIN_SECONDS or not hasattr(os, "memfd_create"):
        return transport_costs(**own, pair_left=pair_left, pair_right=pair_right)
    sizes = (spans[:, 1] - spans[:, 0]) * vectors[:1].nbytes
    of_time = seconds * (n * _CHUNKS_A_PROCESS / seconds.sum())
    of_bytes = (sizes[pair_left] + sizes[pair_right]) / _CHUNK_BYTES
    chunks = _chunks(np.maximum(of_time, of_bytes))
    pool = _Pool.of(n)

    def solve(pairs: slice) -> FloatArray:
        return pool.solve({**own, "pair_left": pair_left[pairs], "pair_right": pair_right[pairs]})

    with ThreadPoolExecutor(n, thread_name_prefix="transport") as threads:
        return np.concatenate(list(threads.map(solve, chunks)))


def usable_cpus() -> int:
    """Return how many CPUs the work beside the model may take."""
    named = os.environ.get("RAYON_NUM_THREADS", "")
    return int(named) if named.isdecimal() and int(named) else available_cpus()


def _expected_s(spans: IntArray, pair_left: IntArray, pair_right: IntArray) -> FloatArray:
    sizes = spans[:, 1] - spans[:, 0]
    seconds: FloatArray = _PAIR_S + _ELEMENT_S * (sizes[pair_left] * sizes[pair_right])
    return seconds


def _chunks(parts: FloatArray) -> list[slice]:
    """Return stretches of pairs that are a chunk each, by what part of a chunk each pair is."""
    chunk = np.floor(np.cumsum(parts))
    cuts = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(parts)]
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


class _Pool:
    """Processes that wait for pairs; one of a process's life, made when first needed."""

    _one: _Pool | None = None
    _lock = threading.Lock()

    def __init__(self, n_processes: int) -> None:
        self._idle = [_start() for _ in range(n_processes)]
        self._free = threading.Semaphore(n_processes)

    @classmethod
    def of(cls, n_processes: int) -> _Pool:
        with cls._lock:
            if cls._one is None:
                cls._one = cls(n_processes)
                atexit.register(cls._one.close)
            return cls._one

    def solve(self, arguments: dict[str, Any]) -> FloatArray:
        """Return the costs of some pairs; solved here if the process that has them dies.

        So are pairs whose vectors are beyond what is held for a process.
        """
        chunk = _Chunk.of(arguments)
        if chunk.n_bytes > _HELD_BYTES:
            return transport_costs(**arguments)
        with self._free:
            solver = self._idle.pop()
            try:
                return _ask(solver, chunk)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
                solver.process.kill()
                _end(solver)
                log.warning(
                    "a process for transport ended with %d (%r)", solver.process.poll(), error
                )
                solver = _start()
                return transport_costs(**arguments)
            finally:
                # Whatever is raised: the next one that is let in takes a process.
                self._idle.append(solver)

    def close(self) -> None:
        """End the processes."""
        for solver in self._idle:
            _end(solver)


@dataclass(frozen=True, slots=True)
class _Solver:
    """A process, what it is asked by, memory of both, and a pipe of its own by which it tells.

    Not its standard output: what its Python prints as it starts would be read as a part of an
    answer, whose end never comes.
    """

    process: subprocess.Popen[bytes]
    asked: IO[bytes]
    told: IO[bytes]
    held: mmap.mmap


def _start() -> _Solver:
    """Start a process; in a session of its own, so that Ctrl-C is this one's to answer."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    told, tells = os.pipe()
    memory = os.memfd_create(__name__)
    os.ftruncate(memory, _HELD_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __spec__.name, str(tells), str(memory)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            **dict.fromkeys(_THREADS_OF_ONE, "1"),
        },
        stdin=subprocess.PIPE,
        stdout=_STDERR,
        pass_fds=(tells, memory),
        start_new_session=True,
    )
    held = mmap.mmap(memory, _HELD_BYTES)
    os.close(tells)
    os.close(memory)
    assert process.stdin is not None, "opened with a pipe"
    return _Solver(process, process.stdin, os.fdopen(told, "rb"), held)


def _end(solver: _Solver) -> None:
    """Close a process's input, and wait for its end."""
    with (
        contextlib.suppress(BrokenPipeError),  # What it was not told is still there.
        solver.told,
        solver.process,
    ):
        pass


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What some pairs need: their texts' vectors, where they lie, and all else by itself."""

    vectors: list[VectorArray]
    rest: dict[str, Any]

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> _Chunk:
        """Return what `transport_costs` needs for these pairs, without texts of others."""
        left, right = arguments["pair_left"], arguments["pair_right"]
        texts, places = np.unique(np.concatenate([left, right]), return_inverse=True)
        spans = arguments["spans"][texts]
        sizes = spans[:, 1] - spans[:, 0]
        stops = np.cumsum(sizes)
        vectors, weights = arguments["vectors"], arguments["weights"]
        rest = {
            "spans": np.stack([stops - sizes, stops], axis=1),
            "weights": np.concatenate([weights[start:stop] for start, stop in spans.tolist()]),
            "pair_left": places[: len(left)],
            "pair_right": places[len(left) :],
        }
        return cls([vectors[start:stop] for start, stop in spans.tolist()], rest)

    @property
    def n_bytes(self) -> int:
        """Of the vectors."""
        return sum(own.nbytes for own in self.vectors)


def _ask(solver: _Solver, chunk: _Chunk) -> FloatArray:
    shape = (len(chunk.rest["weights"]), chunk.vectors[0].shape[1])
    held = np.ndarray(shape, chunk.vectors[0].dtype, buffer=solver.held)
    np.concatenate(chunk.vectors, out=held)
    asked = {**chunk.rest, "shape": shape, "dtype": held.dtype}
    pickle.dump(asked, solver.asked, protocol=pickle.HIGHEST_PROTOCOL)
    solver.asked.flush()
    costs: FloatArray = pickle.load(solver.told)
    return costs


def _serve(asked: IO[bytes], told: IO[bytes], held: mmap.mmap) -> None:
    """Solve what is asked until nobody is left to ask."""
    while True:
        try:
            rest = pickle.load(asked)
        except EOFError:
            return
        vectors = np.ndarray(rest.pop("shape"), rest.pop("dtype"), buffer=held)
        costs = transport_costs(vectors=vectors, **rest)
        pickle.dump(costs, told, protocol=pickle.HIGHEST_PROTOCOL)
        told.flush()


def main() -> None:
    """Serve the process that has started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tells, memory = (int(number) for number in sys.argv[1:])
    with os.fdopen(tells, "wb") as told:
        _serve(sys.stdin.buffer, told, mmap.mmap(memory, 0))


if __name__ == "__main__":
    main()
