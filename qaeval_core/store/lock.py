"""Lock: one live run per OUT folder, as a lease that its holder renews.

The lock file names host, process and its start time, and counts heartbeats: each replaces the file
if it still is the one that the holder wrote last. A run that finds a lock takes it over in the same
way, so one of many wins, at once where the holder was a process of this machine that is dead, else
when no heartbeat has come for two minutes by the clock of the storage. A holder that was frozen for
so long finds another's token at its next heartbeat, and right before whatever its driver writes,
and ends.

But: workers do not look. What they write after that is commits, whose bytes are those that their
successors would write.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from qaeval_core.errors import LockLostError, RunError, StoreLockedError
from qaeval_core.storage import files
from qaeval_core.storage.base import Tag
from qaeval_core.storage.path import AnyPath, StoragePath, as_path
from qaeval_core.storage.probe import PROBES

HEARTBEAT_S = 15.0
STALE_AFTER_S = 120.0
_MAX_BYTES = 1 << 16
# How often somebody who waits looks whether it is free.
_LOOK_EVERY_S = 2.0
# Processes are dated from a boot whose time is in whole seconds, and moves where a clock is set.
_MAX_STEP_S = 1.5
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class LockTimes:
    """How often a holder renews its lock, and after how long without that it counts as dead."""

    heartbeat_s: float = HEARTBEAT_S
    stale_after_s: float = STALE_AFTER_S


@dataclass(frozen=True, slots=True)
class Tenure:
    """A holder's claim on a lock, as its workers look at it: they may outlive the claim.

    Attributes
    ----------
    path : StoragePath
        The lock.
    token : str
        The holder's.
    """

    path: StoragePath
    token: str

    def check(self) -> None:
        """Raise LockLostError if another run has the lock; call it right before what counts."""
        with contextlib.suppress(OSError):  # Whoever writes there hears of it.
            self.tag()

    def tag(self) -> Tag:
        """Return the lock's version; LockLostError if it is another run's, or gone."""
        try:
            _check_regular(self.path)
            holder, tag, _ = _holder(self.path)
        except FileNotFoundError:
            holder, tag = {}, ""
        except StoreLockedError as error:
            raise LockLostError(str(error)) from None
        if holder.get("token") == self.token:
            return tag
        taker = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "somebody"
        raise LockLostError(
            f"{taker} took over {self.path}, because this run did not renew it in time. Stopping; "
            "committed work is kept [QA0506]"
        )


class RunLock:
    """Holds OUT/.lock while a run lives; a context manager.

    Parameters
    ----------
    out : StoragePath, Path or str
        The folder; made if it is not there.
    on_loss : callable, optional
        Called, in another thread, when another run has taken the lock.
    look : callable, optional
        Called while it waits; raises to end the wait.
    wait_s : float, optional
        How long it waits for a run that holds the lock; 0 waits not, and says that it could have.
    is_on : bool, default True
        False holds nothing: for stores on which two runs cannot be told apart.
    times : LockTimes, optional

    Raises
    ------
    StoreLockedError
        On entry, if another run holds it for as long as it waits.
    RunError
        On entry, if OUT cannot be written.
    """

    def __init__(
        self,
        out: AnyPath,
        *,
        on_loss: Callable[[], None] | None = None,
        look: Callable[[], None] | None = None,
        wait_s: float | None = None,
        is_on: bool = True,
        times: LockTimes | None = None,
    ) -> None:
        self._path = as_path(out) / ".lock"
        token = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self.tenure = Tenure(self._path, token)
        self._on_loss = on_loss or (lambda: None)
        self._look = look or (lambda: None)
        self._wait_s = wait_s
        self._is_on = is_on
        self._times = times or LockTimes()
        self._tag: Tag = ""
        self._n_beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        if not self._is_on:
            return self
        try:
            self._take()
        except OSError as error:
            raise RunError(
                f"cannot write below {self._path.parent}: {error.strerror} [QA0508]"
            ) from None
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # It will be found to be dead.
            if _holder(self._path)[0].get("token") == self.tenure.token:
                self._path.delete()

    def check(self) -> None:
        """Raise LockLostError if another run has taken the lock; call it before what counts."""
        if self._is_on:
            self.tenure.check()

    def _take(self) -> None:
        until_s = time.monotonic() + (self._wait_s or 0.0)
        while (refusal := self._refusal()) is not None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise StoreLockedError(f"{refusal} [QA0505]")
            self._look()
            time.sleep(min(left_s, _LOOK_EVERY_S))

    def _refusal(self) -> str | None:
        """Take the lock, or return who holds it and when it may be free."""
        tag = self._path.put_new(self._content())
        if tag is None:
            _check_regular(self._path)
            try:
                holder, found, modified_s = _holder(self._path)
            except FileNotFoundError:  # Let go this moment.
                return f"another run held {self._path} this moment"
            age_s = self._now_s() - modified_s
            if age_s < self._times.stale_after_s and not is_gone(holder):
                return self._held_by(holder, age_s)
            tag = self._path.swap(self._content(), found)
            if tag is None:
                return f"another run took {self._path} this moment"
        self._tag = tag
        return None

    def _held_by(self, holder: Mapping[str, object], age_s: float) -> str:
        left_s = self._times.stale_after_s - age_s
        if age_s < -self._times.stale_after_s:
            when = "its last sign of life lies in the future"
        else:
            left_s = max(left_s, 1)
            hint = "" if self._wait_s is None else f" (--wait {left_s + 5:.0f} waits for that)"
            when = (
                f"it was heard {max(age_s, 0):.0f} s ago; if it is dead, {self._path.parent} is "
                f"free in {left_s:.0f} s{hint}"
            )
        return (
            f"another run (process {holder.get('pid')} on {holder.get('host')}) is writing to "
            f"{self._path.parent}; {when}. Wait for it, or choose another folder. If there is "
            f"none, delete {self._path}"
        )

    def _content(self) -> bytes:
        content = {**this_process(), "token": self.tenure.token, "beat": self._n_beats}
        return json.dumps(content).encode()

    def _now_s(self) -> float:
        """Return the time by the clock that dates the lock: no other one is compared with it."""
        token = uuid.uuid4().hex
        # Where what a killed process leaves is taken away: as temporary files, or as old probes.
        is_on_disk = self._path.local is not None
        out = self._path.parent
        probe = out / f".lock.{token}.tmp" if is_on_disk else out / PROBES / token
        return probe.storage.clock_s(probe.key)

    def _beat(self) -> None:
        while not self._stop.wait(self._times.heartbeat_s):
            try:
                self._renew()
            except LockLostError:
                self._on_loss()
                return
            except OSError:
                # Where the storage refuses, the next beat tells; others take over if this lasts.
                continue

    def _renew(self) -> None:
        # Two beats must not be alike: some stores know a version by its bytes alone.
        self._n_beats += 1
        tag = self._path.swap(self._content(), self._tag)
        # Refused, it still is ours where a beat before this one came through unheard.
        self._tag = tag if tag is not None else self.tenure.tag()


def _check_regular(path: StoragePath) -> None:
    """Raise StoreLockedError if a lock is no file of this user's, or a link."""
    if path.local is None:
        return
    with contextlib.suppress(FileNotFoundError):
        why = files.why_not_own(path.local, path.local.lstat(), of_others=True)
        if why is not None:
            raise StoreLockedError(f"{why}; delete it if no other run is at work there [QA0505]")


def _holder(path: StoragePath) -> tuple[Mapping[str, object], Tag, float]:
    """Return what a lock says, nothing where it is none; its version and time."""
    if path.local is not None:
        # OUT's users share its lock, and a pipe or link is not waited for or followed.
        os.close(files.open_own(path.local, of_others=True))
    content, found = path.fetch()
    try:
        holder = json.loads(content[:_MAX_BYTES])
    except (ValueError, RecursionError):
        holder = {}
    return holder if isinstance(holder, dict) else {}, found.tag, found.modified_s


@functools.cache
def _machine() -> str:
    """Return what tells machines of one name apart, and containers on one: "" where nothing does.

    A number of a process means something in one boot and one space of processes alone.
    """
    try:
        return f"{_BOOT.read_text().strip()}/{os.readlink(_PROCESSES)}"
    except OSError:
        return ""


def this_process() -> dict[str, object]:
    """Return what `is_gone` knows this process by."""
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
    }


def is_gone(process: Mapping[str, object]) -> bool:
    """Return whether a process is dead for certain: nobody knows that of another machine's."""
    is_here = process.get("host") == socket.gethostname()
    # Earlier versions told hosts apart by name.
    if not is_here or process.get("machine", _machine()) != _machine():
        return False
    try:
        pid, started_s = int(str(process.get("pid"))), float(str(process.get("started")))
        return abs(psutil.Process(pid).create_time() - started_s) > _MAX_STEP_S
    except psutil.AccessDenied:
        return False
    except psutil.NoSuchProcess:
        return not _is_another_users(pid)
    except (ValueError, OverflowError):
        return True


def _is_another_users(pid: int) -> bool:
    """Return whether a process that cannot be seen is there: /proc may show a user's own alone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
