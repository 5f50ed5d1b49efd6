"""Life: a watch on the cluster that this process is connected to, which ends it in plain words.

Where the cluster's head (its GCS) or the raylet of this machine is gone, Ray's own core ends the
process without a word, the first after a minute. This thread says so before that.

But: a process that cannot be helped any more is ended at once, without its own clearing up; the
lock of OUT is free at once, for its holder is dead.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import ray

from qaeval.command import EXIT_INCOMPLETE, say_error
from qaeval.last_words import has_said

_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_STEP_S = 0.5
_ASK_EVERY_S = 2.0
_CALL_TIMEOUT_S = 10.0
# Ray's own core waits for a minute; a head that stands still for 20 s is waited for.
SILENT_AFTER_S = 25.0
# A process that was frozen has not waited all that time.
_MOST_PER_STEP_S = 1.0
_SHOW_CURSOR = "\x1b[?25h"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def ask_alive(gcs_address: str, timeout_s: float) -> grpc.Future:
    """Ask a cluster whether it is alive, on a channel of its own: one that failed waits long."""
    channel = grpc.insecure_channel(gcs_address)
    future = channel.unary_unary(_ALIVE).future(b"", timeout=timeout_s)
    future.add_done_callback(lambda _: channel.close())
    return future


def is_answer(done: grpc.Future) -> bool:
    """Whether anybody answered: any status is an answer, also that of who wants a token."""
    error = done.exception()
    silence = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return error is None or error.code() not in silence


class Silence:
    """Knows for how long a cluster has not answered, after its first answer.

    Parameters
    ----------
    ask : callable
        Returns the future of a question.
    clock : callable, optional

    Notes
    -----
    A cluster that never answers, as one that wants TLS, is not judged.
    """

    def __init__(
        self, ask: Callable[[], grpc.Future], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._asked: Any = None
        self._has_answered = False
        self._last_s = self._asked_s = clock()
        self._silent_s = 0.0

    def look(self) -> float:
        """Look whether an answer has come, ask again in time; return for how long none came."""
        now = self._clock()
        self._silent_s += min(now - self._last_s, _MOST_PER_STEP_S)
        self._last_s = now
        if self._asked is not None and self._asked.done():
            if is_answer(self._asked):
                self._has_answered, self._silent_s = True, 0.0
            self._asked = None
        if self._asked is None and now - self._asked_s >= _ASK_EVERY_S:
            self._asked, self._asked_s = self._ask(), now
        return self._silent_s if self._has_answered else 0.0


@contextlib.contextmanager
def watched(where: str) -> Iterator[None]:
    """Watch the connected cluster meanwhile, and end this process where it is gone.

    Parameters
    ----------
    where : str
        What the cluster is called in the message.
    """
    gcs_address = ray.get_runtime_context().gcs_address
    silence = Silence(lambda: ask_alive(gcs_address, _CALL_TIMEOUT_S))
    raylet = _raylet()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_STEP_S):
            if raylet is not None and _is_gone(raylet) and not is_over.is_set():
                _end(f"Ray ended on this machine ({where})")
            if silence.look() > SILENT_AFTER_S and not is_over.is_set():
                _end(f"{where} has not answered for {SILENT_AFTER_S:.0f} s")

    thread = threading.Thread(target=watch, name="life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _raylet() -> psutil.Process | None:
    """Return the raylet of this machine that this process speaks to; None where it is hidden."""
    here = ray.get_runtime_context().get_node_id()
    paths = [node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == here]
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.connect(paths[0])
            told = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return psutil.Process(_CREDENTIALS.unpack(told)[0])
    except (OSError, AttributeError, IndexError, ValueError, psutil.Error):
        return None


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _end(what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)
    say_error(f"{what}; committed work is kept; run the same command again [QA0006]")
    sys.stdout.flush()
    has_said()
    os._exit(EXIT_INCOMPLETE)
