"""Faults that a run on a cluster meets: each kind is a function of the scene that it breaks.

A run is started as users start it, broken once or twice, and repeated until it is whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chaos_cluster import Node
from chaos_run import Run, send
from memory_groups import run_out_of_memory
from s3_server import S3Server

# After the last fault is over: a run that has not ended by then hangs.
HANG_S = 200.0
_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) {
    const char *path = getenv("CHAOS_CLOCK"); long found = 0; FILE *file;
    if (path && (file = fopen(path, "r"))) {
        if (fscanf(file, "%ld", &found) != 1) found = 0;
        fclose(file);
    }
    return found;
}
int clock_gettime(clockid_t id, struct timespec *told) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, told);
    if (id == CLOCK_REALTIME) told->tv_sec += ahead();
    return done;
}
int gettimeofday(struct timeval *told, void *zone) {
    struct timespec now; (void)zone; clock_gettime(CLOCK_REALTIME, &now);
    told->tv_sec = now.tv_sec; told->tv_usec = now.tv_nsec / 1000; return 0;
}
time_t time(time_t *told) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
"""


def clock_library(folder: Path) -> Path:
    """Build what puts the clock of a process ahead, by the seconds in the file CHAOS_CLOCK."""
    (folder / "clock.c").write_text(_CLOCK)
    made = folder / "clock.so"
    words = ["cc", "-shared", "-fPIC", "-O2", "-o", made, folder / "clock.c", "-ldl"]
    subprocess.run(words, check=True)
    return made


@dataclass(kw_only=True)
class Scene(Run):
    """One run, and what it stands on."""

    folder: Path
    disk: Path
    s3: S3Server
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    blind: list[Node] = field(default_factory=list)

    def also(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the command once more beside the first."""
        self.others.append(self.start(*more, log=self.log.with_suffix(".others.log")))
        return self.others[-1]


def _freeze(processes: Sequence[psutil.Process], seconds: float) -> None:
    send(processes, signal.SIGSTOP)
    time.sleep(seconds)
    send(processes, signal.SIGCONT)


def kill_worker(s: Scene) -> None:
    workers = s.cluster.workers()
    n_killed = send(workers[: s.drawn.randint(1, 2)], signal.SIGKILL)
    s.notes.append(f"{n_killed} of {len(workers)} workers")


def kill_workers_often(s: Scene) -> None:
    until, n_killed = time.monotonic() + 25, 0
    while time.monotonic() < until and s.is_alive():
        n_killed += send(s.cluster.workers(), signal.SIGKILL)
        time.sleep(1.5)
    s.notes.append(f"{n_killed} kills")


def kill_all_ray_processes(s: Scene) -> None:
    """Coordinator, agents, sources of artifacts and all."""
    s.notes.append(f"{send(s.cluster.named('ray::', s.cluster.head, *s.cluster.nodes), 9)} killed")


def kill_raylet(s: Scene) -> None:
    send(s.cluster.named("raylet", s.drawn.choice(s.cluster.nodes)), signal.SIGKILL)


def kill_raylets_but_head(s: Scene) -> None:
    send(s.cluster.named("raylet", *s.cluster.nodes), signal.SIGKILL)


def kill_head_raylet(s: Scene) -> None:
    send(s.cluster.named("raylet", s.cluster.head), signal.SIGKILL)


def kill_head(s: Scene) -> None:
    send(s.cluster.named("gcs_server", s.cluster.head), signal.SIGKILL)


def freeze_head_20(s: Scene) -> None:
    _freeze(s.cluster.named("gcs_server", s.cluster.head), 20)


def freeze_raylet_60(s: Scene) -> None:
    _freeze(s.cluster.named("raylet", s.cluster.nodes[0]), 60)


def freeze_node_60(s: Scene) -> None:
    """As a machine that sleeps: it is held for dead, and comes back at work."""
    _freeze(s.cluster.family(s.cluster.nodes[0]), 60)


def freeze_worker_60(s: Scene) -> None:
    _freeze(s.cluster.workers()[:1], 60)


def slow_node(s: Scene) -> None:
    """Nine tenths of a node's time are taken away."""
    until = time.monotonic() + 30
    while time.monotonic() < until and s.is_alive():
        _freeze(s.cluster.family(s.cluster.nodes[-1]), 0.9)
        time.sleep(0.1)


def node_goes_and_comes(s: Scene) -> None:
    node = s.cluster.nodes[0]
    s.cluster.family(node)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGTERM)
    time.sleep(4)
    s.cluster.add()


def late_nodes(s: Scene) -> None:
    s.cluster.add()
    s.cluster.add()
    time.sleep(8)


def late_blind_node(s: Scene) -> None:
    """It sees nothing of the disk that OUT and input lie on; it stays while the run is repeated."""
    hide = f"mount -t tmpfs none '{s.disk}' && exec \"$@\""
    s.blind.append(s.cluster.add("unshare", "-m", "sh", "-c", hide, "sh"))
    time.sleep(8)


def kill_driver(s: Scene) -> None:
    s.kill()


def kill_driver_twice(s: Scene) -> None:
    for _ in range(2):
        s.kill()
        s.driver = s.start()
        if not s.until_work(150):
            return
    s.kill()


def term_driver(s: Scene) -> None:
    assert s.driver is not None
    s.driver.send_signal(signal.SIGTERM)
    _ends_soon(s)


def interrupt_driver(s: Scene) -> None:
    assert s.driver is not None
    s.driver.send_signal(signal.SIGINT)
    _ends_soon(s)


def _ends_soon(s: Scene) -> None:
    """Note how long a run took to end; a minute is too long, whatever is in hand."""
    assert s.driver is not None
    asked = time.monotonic()
    s.driver.wait(timeout=60)
    s.notes.append(f"ended after {time.monotonic() - asked:.1f} s")


def interrupt_driver_twice(s: Scene) -> None:
    assert s.driver is not None
    s.driver.send_signal(signal.SIGINT)
    time.sleep(0.5)
    s.driver.send_signal(signal.SIGINT)
    s.driver.wait(timeout=10)


def freeze_driver_40(s: Scene) -> None:
    _freeze(s.processes(), 40)


def freeze_driver_and_take_over(s: Scene) -> None:
    """Held for dead after two minutes; another run takes OUT; then the first one wakes up."""
    assert s.driver is not None
    frozen = s.processes()
    send(frozen, signal.SIGSTOP)
    other = s.also("--wait", "170")
    time.sleep(128)
    send(frozen, signal.SIGCONT)
    s.notes.append(f"second: exit {other.wait(timeout=HANG_S)}")
    s.notes.append(f"first: exit {s.driver.wait(timeout=60)}")


def no_memory_for_a_node(s: Scene) -> None:
    """By the kernel, which kills workers first."""
    _no_memory(s, s.cluster.family(s.drawn.choice(s.cluster.nodes)))


def no_memory_for_the_driver(s: Scene) -> None:
    """Its parent, which tells of it, has next to no memory itself."""
    _no_memory(s, s.processes()[1:])


def _no_memory(s: Scene, processes: Sequence[psutil.Process]) -> None:
    n_killed = run_out_of_memory(f"chaos{os.getpid()}", processes)
    assert n_killed, "the kernel killed nothing"
    s.notes.append(f"the kernel killed {n_killed}")


def run_beside(s: Scene) -> None:
    s.notes.append(f"second: exit {s.also().wait(timeout=60)}")


def three_at_once(s: Scene) -> None:
    s.kill()
    runs = [s.also("--wait", "150") for _ in range(3)]
    s.notes.append(f"exits {[run.wait(timeout=HANG_S) for run in runs]}")


def _set_clock(s: Scene, *steps: int) -> None:
    path = Path(s.environment["CHAOS_CLOCK"])
    for step in steps:
        path.write_text(str(step))
        time.sleep(6)


def clock_forward_and_kill(s: Scene) -> None:
    """A worker dies after the clock went a day ahead and came back."""
    _set_clock(s, 86_400, 0)
    kill_worker(s)


def clock_forward(s: Scene) -> None:
    _set_clock(s, 86_400, 0)


def clock_back_and_forth(s: Scene) -> None:
    _set_clock(s, -7_200, 3_600, -60, 0)
    kill_worker(s)


def clock_minute_back(s: Scene) -> None:
    """For good, as by a time service at its first answer."""
    _set_clock(s, -60)


def clock_stands(s: Scene) -> None:
    """The control: the same library before the clock, and no jump."""
    _set_clock(s, 0, 0)
    kill_worker(s)


def _fill(s: Scene, seconds: float) -> None:
    for name, block in (("ballast", 1 << 20), ("ballast2", 512)):
        with contextlib.suppress(OSError), (s.disk / name).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(block))
    time.sleep(seconds)
    for name in ("ballast", "ballast2"):
        (s.disk / name).unlink(missing_ok=True)


def full_disk_8(s: Scene) -> None:
    _fill(s, 8)


def full_disk_30(s: Scene) -> None:
    """Longer than it is tried."""
    _fill(s, 30)


def s3_out_10(s: Scene) -> None:
    s.s3.door.shut()
    time.sleep(10)
    s.s3.door.open()


def s3_out_60(s: Scene) -> None:
    """Longer than it is tried."""
    s.s3.door.shut()
    time.sleep(60)
    s.s3.door.open()


def s3_frozen_20(s: Scene) -> None:
    assert s.s3.process is not None
    _freeze([psutil.Process(s.s3.process.pid)], 20)


def s3_flaps(s: Scene) -> None:
    for _ in range(8):
        s.s3.door.shut()
        time.sleep(s.drawn.uniform(0.2, 1.5))
        s.s3.door.open()
        time.sleep(s.drawn.uniform(0.2, 1.5))


def s3_out_and_worker_killed(s: Scene) -> None:
    s.s3.door.shut()
    time.sleep(2)
    kill_worker(s)
    time.sleep(8)
    s.s3.door.open()


KINDS: Mapping[str, Callable[[Scene], None]] = {
    own.__name__: own
    for own in (
        kill_worker, kill_raylet, term_driver, s3_out_10, kill_head, clock_forward_and_kill,
        late_blind_node, freeze_driver_40, kill_all_ray_processes, full_disk_8, slow_node,
        interrupt_driver_twice, freeze_node_60, s3_out_and_worker_killed, kill_driver,
        kill_head_raylet, node_goes_and_comes, clock_back_and_forth, s3_frozen_20, run_beside,
        kill_workers_often, freeze_head_20, full_disk_30, three_at_once, s3_flaps, late_nodes,
        freeze_worker_60, clock_minute_back, kill_raylets_but_head, interrupt_driver, s3_out_60,
        freeze_driver_and_take_over, kill_driver_twice, freeze_raylet_60, clock_forward,
        no_memory_for_a_node, no_memory_for_the_driver, clock_stands,
    )
}  # fmt: skip
# Done beside a first one, where the run still goes on.
SECOND_KINDS = (kill_worker, kill_raylet, node_goes_and_comes, late_nodes)
