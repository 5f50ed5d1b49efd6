"""Ports for servers of tests, which no client and no other test takes before the server does."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Ray gives its workers 10002 to 19999 where nobody says otherwise.
_FIRST = 20_000
_MOST_WORKERS = 16
_given: set[int] = set()


def free_ports(n: int) -> list[int]:
    """Return ports that are free now, each once a process.

    The system gives any free port of its own range to whatever connects, at any time: between the
    look here and a server's start too. So they lie below that range, and each of pytest's workers
    has its share of them.
    """
    own = [port for port in range(_FIRST, _first_of_the_system()) if port not in _given]
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = [port for port in own if port % _MOST_WORKERS == worker % _MOST_WORKERS]
    random.SystemRandom().shuffle(own)
    found = []
    while len(found) < n:
        port = own.pop()  # IndexError: none is left
        if _is_free(port):
            found.append(port)
    _given.update(found)
    return found


def _first_of_the_system() -> int:
    if _RANGE_FILE.exists():
        first = int(_RANGE_FILE.read_text().split()[0])
        if first > _FIRST + 1000:
            return first
    return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # Some servers listen on all addresses.
        except OSError:
            return False
    return True
