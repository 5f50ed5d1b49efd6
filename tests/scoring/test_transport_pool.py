"""Transport by several processes: the same numbers, and nobody left behind by any death."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qaeval_core.families import transport_pool
from qaeval_core.families.transport import transport_costs
from qaeval_core.families.transport_pool import _Pool, transport_costs_on_all_cpus

_LENGTHS = [1, 7, 0, 30, 12, 3, 25, 5]
_WAIT_S = 20.0


def given(n_pairs: int = 60) -> dict[str, np.ndarray]:
    """Return texts of several lengths, one of them empty, and pairs of them."""
    chance = np.random.default_rng(3)
    ends = np.cumsum(_LENGTHS)
    vectors = chance.standard_normal((ends[-1], 16)).astype(np.float32)
    return {
        "vectors": vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        "spans": np.stack([ends - _LENGTHS, ends], axis=1),
        "weights": chance.random(ends[-1]).astype(np.float32),
        "pair_left": chance.integers(0, len(_LENGTHS), n_pairs),
        "pair_right": chance.integers(0, len(_LENGTHS), n_pairs),
    }


@pytest.fixture(scope="module")
def processes() -> Iterator[_Pool]:
    """Two processes; every test leaves two, whichever it kills."""
    own = _Pool(2)
    yield own
    own.close()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, processes: _Pool) -> _Pool:
    """The pool that calls take; any work is enough for it."""
    monkeypatch.setattr(transport_pool, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(_Pool, "_one", processes)
    return processes


def test_processes_give_the_same_bytes_also_when_one_is_killed(
    pool: _Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """Chunks in another order, or a chunk lost with its process, would be scores of other rows."""
    arguments = given()
    expected = transport_costs(**arguments)
    assert np.isnan(expected).any() and np.isfinite(expected).any()
    assert transport_costs_on_all_cpus(**arguments, n_processes=2).tobytes() == expected.tobytes()
    pool._idle[-1].process.kill()
    with caplog.at_level(logging.WARNING):
        found = transport_costs_on_all_cpus(**arguments, n_processes=2)
    assert found.tobytes() == expected.tobytes()
    assert "a process for transport ended with -9" in caplog.text
    assert all(own.process.poll() is None for own in pool._idle) and len(pool._idle) == 2


def test_what_dies_while_it_solves_is_solved_here(
    pool: _Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """The vectors that it was handed are still this process's to read."""
    arguments = given()
    dying = pool._idle[-1].process
    dying.send_signal(signal.SIGSTOP)  # What it is asked is written, and never read.
    killer = threading.Timer(0.2, dying.kill)
    killer.start()
    with caplog.at_level(logging.WARNING):
        found = pool.solve(arguments)
    killer.join()
    assert found.tobytes() == transport_costs(**arguments).tobytes()
    assert "a process for transport ended with -9" in caplog.text


def test_more_than_is_held_for_a_process_is_solved_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts of thousands of tokens each: written into too little, they would end the run."""
    arguments = given()
    monkeypatch.setattr(transport_pool, "_HELD_BYTES", arguments["vectors"].nbytes - 1)
    own = _Pool(1)
    found = own.solve(arguments)
    (solver,) = own._idle
    own.close()
    assert found.tobytes() == transport_costs(**arguments).tobytes()
    assert not any(solver.held[:])


def test_processes_hold_a_chunk_of_vectors_each(
    pool: _Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard of vectors is hundreds of MB; copied for its processes at once, it is there twice."""
    monkeypatch.setattr(transport_pool, "_CHUNK_BYTES", 1 << 20)
    n_pairs, n_tokens, dim = 150, 16, 768
    vectors = np.random.default_rng(3).random((2 * n_pairs * n_tokens, dim), dtype=np.float32)
    starts = np.arange(2 * n_pairs) * n_tokens
    arguments = {
        "vectors": vectors,
        "spans": np.stack([starts, starts + n_tokens], axis=1),
        "weights": np.ones(len(vectors), dtype=np.float32),
        "pair_left": np.arange(n_pairs),
        "pair_right": np.arange(n_pairs, 2 * n_pairs),
    }
    found = transport_costs_on_all_cpus(**arguments, n_processes=2)
    assert found.tobytes() == transport_costs(**arguments).tobytes()
    pair = 2 * n_tokens * dim * 4
    held = [_shared_bytes(own.process.pid) for own in pool._idle]
    assert 0 < max(held) <= (1 << 20) + pair < vectors.nbytes / 12


def _shared_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("RssShmem"))
    return int(found) * 1024


def test_what_cannot_be_solved_leaves_the_pool_whole(
    pool: _Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is not put back is one less for all that follow, and then none."""

    def refuse(**_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(transport_pool, "transport_costs", refuse)
    for _ in range(3):
        pool._idle[-1].process.kill()
        with pytest.raises(MemoryError, match="no room"):
            pool.solve(given())
    assert len(pool._idle) == 2


def test_what_a_python_prints_as_it_starts_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Many a cluster's sitecustomize greets; read as a pickle, the greeting has no end."""
    (tmp_path / "sitecustomize.py").write_text("print('cI greet', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = _Pool(1)
    arguments = given()
    with caplog.at_level(logging.WARNING):
        found = own.solve(arguments)
    own.close()
    assert found.tobytes() == transport_costs(**arguments).tobytes() and not caplog.text


def test_little_work_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred short answers take less than a process needs to start."""
    monkeypatch.setattr(_Pool, "of", lambda n: pytest.fail("started"))
    arguments = given()
    found = transport_costs_on_all_cpus(**arguments, n_processes=2)
    assert found.tobytes() == transport_costs(**arguments).tobytes()


_PARENT = """
import sys, time
sys.path[:0] = [{tests!r}, {scoring!r}]
from qaeval_core.families import transport_pool
from test_transport_pool import given
transport_pool._MIN_SECONDS = 0.0
transport_pool.transport_costs_on_all_cpus(**given(), n_processes=2)
print(*[own.process.pid for own in transport_pool._Pool.of(2)._idle], flush=True)
time.sleep(60)
"""


def _parent_script() -> str:
    here = Path(__file__).resolve().parent
    return _PARENT.format(tests=str(here.parent), scoring=str(here))


def _has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # Ended; whoever inherited it has not looked yet.


def _wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not all(_has_ended(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} live on"
        time.sleep(0.1)


@pytest.mark.slow
def test_processes_end_with_one_that_is_killed() -> None:
    """kill -9 runs no handler: a pool that waits on a lock or a queue would wait for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", _parent_script()], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and not any(_has_ended(pid) for pid in pids)
        os.kill(parent.pid, signal.SIGKILL)
    _wait_for_end(pids)


@pytest.mark.slow
@pytest.mark.ray
def test_an_actor_of_ray_solves_by_processes_that_end_with_it() -> None:
    """A fork of Ray's worker hangs; a process that outlives its actor keeps a node's CPUs."""
    import ray

    from qaeval.on_ray.cluster import connected
    from qaeval_core.configure import ClusterSection

    class Solver:
        def solve(self, arguments: dict[str, np.ndarray]) -> tuple[bytes, list[int]]:
            transport_pool._MIN_SECONDS = 0.0
            costs = transport_costs_on_all_cpus(**arguments, n_processes=2)
            return costs.tobytes(), [own.process.pid for own in _Pool.of(2)._idle]

    with connected(ClusterSection()):
        actor = ray.remote(Solver).remote()
        costs, pids = ray.get(actor.solve.remote(given()), timeout=60)
        assert costs == transport_costs(**given()).tobytes()
        ray.kill(actor)
        _wait_for_end(pids)
