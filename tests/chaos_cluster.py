"""A Ray of several nodes on this machine, each a group of processes that faults may break.

Nodes have one CPU each, listen on the loopback, and lie on a small disk of their own, which a test
may fill. Only processes that were started here are ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from free_ports import free_ports

BIN = Path(sys.executable).parent
_START_S = 120.0
_PORTS = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
_COUNT = (
    "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR');"
    "print(sum(node['Alive'] for node in ray.nodes()))"
)

Node = subprocess.Popen[bytes]


class Cluster:
    """A head and nodes.

    Parameters
    ----------
    folder : Path
        Short: the path of a Unix socket ends at 107 bytes.
    n_nodes : int
        The head included.
    environment : mapping
    """

    def __init__(self, folder: Path, n_nodes: int, environment: Mapping[str, str]) -> None:
        self._folder, self._n_nodes = folder, n_nodes
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = {**environment, **token}
        self.head: Node | None = None
        self.nodes: list[Node] = []
        self.address = ""
        self._n_started = 0
        self._born: dict[int, float] = {}  # process -> when it was started

    def start(self) -> None:
        """Start a head and nodes, one after another: at once they spoil each other's start."""
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        words = ["--head", f"--port={port}", "--include-dashboard=false"]
        self.head = self._ray(
            *words, f"--temp-dir={self._folder / 'r'}", more=("ray-client-server",)
        )
        self.wait_for(1)
        while len(self.nodes) < self._n_nodes - 1:
            self.add()
            self.wait_for(len(self.nodes) + 1)

    def add(self, *prefix: str) -> Node:
        """Start one more node, behind words such as ``unshare``."""
        node = self._ray(f"--address={self.address}", prefix=prefix)
        self.nodes.append(node)
        return node

    def _ray(self, *words: str, prefix: Sequence[str] = (), more: Sequence[str] = ()) -> Node:
        kinds = (*_PORTS, *more)
        ports = zip(kinds, free_ports(len(kinds)), strict=True)
        self._n_started += 1
        with (self._folder / f"node{self._n_started}.log").open("wb") as log:
            return subprocess.Popen(
                [*prefix, str(BIN / "ray"), "start", "--block", "--disable-usage-stats",
                 "--num-cpus=1", "--num-gpus=0", "--node-ip-address=127.0.0.1",
                 "--min-worker-port=0", "--max-worker-port=0",
                 f"--object-store-memory={100 << 20}",
                 *(f"--{kind}-port={port}" for kind, port in ports), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                start_new_session=True,
            )  # fmt: skip

    def n_alive(self) -> int:
        """Return how many nodes the head counts; 0 where it does not answer."""
        try:
            done = subprocess.run(
                [sys.executable, "-c", _COUNT, self.address],
                capture_output=True, text=True, env=self.environment, timeout=60, check=False,
            )  # fmt: skip
            return int(done.stdout.split()[-1])
        except (IndexError, ValueError, subprocess.TimeoutExpired):
            return 0

    def wait_for(self, n_nodes: int) -> None:
        """Wait until so many nodes are alive; a node that did not start is started again."""
        until = time.monotonic() + _START_S
        while self.n_alive() < n_nodes:
            for node in [node for node in self.nodes if node.poll() is not None]:
                self.nodes.remove(node)
                self.add()
            if time.monotonic() > until:
                raise TimeoutError(f"the cluster has not {n_nodes} nodes after {_START_S:g} s")
            time.sleep(0.5)

    def family(self, *roots: Node | None) -> list[psutil.Process]:
        """Return the processes of nodes."""
        found = []
        for root in roots:
            with contextlib.suppress(psutil.Error, AttributeError):
                own = psutil.Process(root.pid)
                found += [own, *own.children(recursive=True)]
        for one in found:
            with contextlib.suppress(psutil.Error):
                self._born[one.pid] = one.create_time()
        return found

    def named(self, name: str, *roots: Node | None) -> list[psutil.Process]:
        """Return processes of nodes whose own name begins so, or whose title has the word."""
        found = []
        for one in self.family(*roots):
            with contextlib.suppress(psutil.Error):
                if one.name().startswith(name) or name in " ".join(one.cmdline()[:1]):
                    found.append(one)
        return found

    def all(self) -> list[psutil.Process]:
        """Return all processes of the cluster."""
        return self.family(self.head, *self.nodes)

    def workers(self) -> list[psutil.Process]:
        """Return the processes of actors that score, and of tasks that count or join."""
        return self.titled("MapWorker", "Pieces", "ray::qaeval ")

    def titled(self, *words: str) -> list[psutil.Process]:
        """Return Ray's processes whose titles hold one of some words."""
        found = []
        for one in self.all():
            with contextlib.suppress(psutil.Error):
                title = " ".join(one.cmdline())
                if title.startswith("ray::") and any(word in title for word in words):
                    found.append(one)
        return found

    def heal(self) -> None:
        """Bring the cluster back to its size; a head that is broken takes all with it."""
        is_whole = self.head is not None and self.head.poll() is None
        is_whole = is_whole and bool(self.named("gcs_server", self.head))
        if not is_whole or not self.named("raylet", self.head) or not self.n_alive():
            self.stop()
            self.start()
            return
        for node in list(self.nodes):
            if node.poll() is not None or not self.named("raylet", node):
                self.nodes.remove(node)
                _end(node)
        try:
            while len(self.nodes) < self._n_nodes - 1:
                self.add()
                self.wait_for(len(self.nodes) + 1)
        except TimeoutError:  # Of a head that is half dead.
            self.stop()
            self.start()

    def stop(self) -> None:
        """End what was started here."""
        self.all()
        for pid, born in self._born.items():
            with contextlib.suppress(psutil.Error):
                one = psutil.Process(pid)
                if abs(one.create_time() - born) < 2:
                    one.kill()
        for node in filter(None, [self.head, *self.nodes]):
            _end(node)
        self.head, self.nodes, self._born = None, [], {}


def _end(node: Node) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait(timeout=60)
