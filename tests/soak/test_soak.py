"""Twenty minutes of one pass, a worker killed every forty seconds: nothing of ours grows."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from chaos_cluster import Cluster
from chaos_corpus import write_corpus
from chaos_run import Run, send
from helpers import REPOSITORY

pytestmark = [pytest.mark.long, pytest.mark.ray, pytest.mark.timeout(2400)]
SOAK_S = 20 * 60
WARM_S = 120
_EVERY_S = 1  # A killed worker's sockets are gone for three seconds: each quarter must see some.
_KILL_EVERY_S = 40
MOST_MB = 10
# Of words 9,000 rows a second were scored on two cores, by the model 260 beside other work.
N_ROWS = 1_000_000
N_COPIES = {"f1,rouge_l,meteor": 24, "sas": 1}


@dataclass
class Series:
    """Numbers by seconds since the run was at work."""

    at_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at_s: float, value: float) -> None:
        self.at_s.append(at_s)
        self.values.append(value)

    def warm(self) -> list[float]:
        """Return those from two minutes after the first one."""
        return [
            value
            for at_s, value in zip(self.at_s, self.values, strict=True)
            if at_s - self.at_s[0] >= WARM_S
        ]

    def grown(self) -> float:
        """Return how much more than after two minutes there was at the most."""
        return max(self.warm()) - self.warm()[0]

    def floors(self) -> tuple[float, float]:
        """Return the least of the first and of the last quarter, after two minutes.

        What is open for a moment comes and goes; what is never closed stays below all that does.
        """
        quarter = len(self.warm()) // 4
        return min(self.warm()[:quarter]), min(self.warm()[-quarter:])


@dataclass
class Watched:
    """What one process has."""

    mb: Series = field(default_factory=Series)
    descriptors: Series = field(default_factory=Series)
    threads: Series = field(default_factory=Series)
    pooled: Series = field(default_factory=Series)  # Threads of gRPC's pool, in Ray's core.

    def look(self, process: psutil.Process, at_s: float) -> None:
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            n_mb, n_files = process.memory_info().rss / 1e6, process.num_fds()
            n_threads, n_pooled = process.num_threads(), _n_pooled(process.pid)
            self.mb.add(at_s, n_mb)
            self.descriptors.add(at_s, n_files)
            self.threads.add(at_s, n_threads)
            self.pooled.add(at_s, n_pooled)

    def lived_s(self) -> float:
        return self.mb.at_s[-1] - self.mb.at_s[0] if self.mb.at_s else 0.0


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    metrics: str = request.param
    folder = Path(tempfile.mkdtemp(prefix="qs", dir="/tmp"))
    write_corpus(folder / "data", n_rows=N_ROWS, n_words=8)
    for path in list((folder / "data").iterdir()):
        for i in range(1, N_COPIES[metrics]):
            shutil.copyfile(path, path.with_stem(f"{path.stem}-{i}"))
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    own |= {
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}",
    }
    cluster = Cluster(folder, 3, own)
    words = (
        *("score", str(folder / "data"), "--out", str(folder / "out"), "--metrics", metrics),
        *("--set", "sas.cross_encoder=sas-minilm", "--column", "references=reference"),
    )
    log = folder / "log"
    log.touch()
    try:
        cluster.start()
        yield Run(cluster=cluster, words=words, environment={}, log=log, drawn=random.Random(1))
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("run", N_COPIES, indirect=True)
def test_nothing_grows_in_twenty_minutes_of_kills(run: Run) -> None:
    out = Path(run.words[3])
    run.driver = run.start()
    assert run.until_work(300), run.said()
    kept = run.cluster.workers()[0].pid  # Never killed: it shows the growth of the whole time.
    seen: dict[tuple[str, psutil.Process], Watched] = defaultdict(Watched)
    tmp, rays = Series(), Series()
    n_killed, kill_at_s = 0, _KILL_EVERY_S
    began = time.monotonic()
    while (at_s := time.monotonic() - began) < SOAK_S:
        assert run.is_alive(), run.said()[-2_000:]
        nodes = (run.cluster.head, *run.cluster.nodes)
        ours = {"command": run.processes()[:1], "driver": run.processes()[1:2]}
        ours["coordinator"] = run.cluster.named("ray::Coordinator", *nodes)
        ours["worker"] = run.cluster.workers()
        for kind, processes in ours.items():
            for one in processes:
                seen[kind, one].look(one, at_s)
        known = {one.pid for processes in ours.values() for one in processes}
        rays.add(at_s, sum(_mb(one) for one in run.cluster.all() if one.pid not in known))
        tmp.add(at_s, sum(1 for _ in out.rglob("*.tmp")))
        if at_s > kill_at_s:
            others = [one for one in ours["worker"] if one.pid != kept]
            n_killed += send(run.drawn.sample(others, min(1, len(others))), signal.SIGKILL)
            kill_at_s += _KILL_EVERY_S
        time.sleep(_EVERY_S)
    run.driver.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    code = run.driver.wait(timeout=120)
    ended_s = time.monotonic() - asked
    print(f"{n_killed} workers killed; SIGTERM ended it with {code} after {ended_s:.1f} s")
    print(f"last line: {run.said().splitlines()[-1]}")
    wrong = [] if code == 1 and run.is_told() else ["it does not say how it ended"]
    wrong += wrong_of(seen)
    first, last = tmp.floors()
    print(f".tmp files below OUT: {first:g} to {last:g}, at most {max(tmp.values):g}")
    wrong += ["files .tmp below OUT grow"] if last > first else []
    print(
        f"Ray's own: {rays.warm()[0]:,.0f} to {rays.warm()[-1]:,.0f} MB; logs {logs_mb(out):.1f} MB"
    )
    assert not wrong, wrong


def wrong_of(seen: Mapping[tuple[str, psutil.Process], Watched]) -> list[str]:
    """Print what each process had; return what grew, and what did not last."""
    wrong, lasting = [], Counter[str]()
    for (kind, _), own in seen.items():
        if own.lived_s() < WARM_S + 30:
            continue
        line = f"{kind:12} {own.lived_s():5.0f} s, {own.mb.values[-1]:4.0f} MB"
        line += f", grown {own.mb.grown():.1f} MB"
        is_good = own.mb.grown() <= MOST_MB
        if own.lived_s() > SOAK_S - WARM_S:
            lasting[kind] += 1
            for name, series in (("descriptors", own.descriptors), ("threads", own.threads)):
                first, last = series.floors()
                line += f", {name} {first:g} to {last:g}"
                is_good &= last <= first
            first, last = own.pooled.floors()
            line += f", of gRPC's pool {first:g} to {last:g}"
            minutes = own.mb.values[:: 60 // _EVERY_S]
            line += f"; MB by minutes: {' '.join(f'{mb:.0f}' for mb in minutes)}"
        print(line)
        wrong += [] if is_good else [line]
    if not lasting >= Counter(("command", "driver", "coordinator", "worker")):
        wrong.append(f"not all lasted: {lasting}")
    return wrong


def _n_pooled(pid: int) -> int:
    """Return how many threads are of gRPC's pool: it takes more where the machine is busy."""
    names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return names.count("event_engine\n")


def _mb(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return float(process.memory_info().rss / 1e6)
    return 0.0


def logs_mb(out: Path) -> float:
    """Return the size of Ray's logs, which lie beside OUT."""
    logs = (out.parent / "r").glob("session_2*/logs/**/*")
    return sum(path.stat().st_size for path in logs if path.is_file()) / 1e6
