"""Lock: one live run per OUT folder.

The lock file names host, process and its start time, and carries a heartbeat. A dead holder on
this host is recognised at once (process ids are re-used, start times are not); one on another
host when its heartbeat is old. A holder that was frozen for so long that another took its place
notices it at its next heartbeat, and before it writes scores.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

from qaeval_core import files
from qaeval_core.errors import LockLostError, RunError, StoreLockedError

HEARTBEAT_S = 15.0
STALE_AFTER_S = 120.0
_MAX_BYTES = 1 << 16


class RunLock:
    """Holds OUT/.lock while a run lives; a context manager.

    Parameters
    ----------
    out : Path
        The folder; made if it is not there.
    on_loss : callable, optional
        Called, in another thread, when another run has taken the lock.
    heartbeat_s : float, default 15

    Raises
    ------
    StoreLockedError
        On entry, if another run holds it.
    RunError
        On entry, if OUT cannot be written.
    """

    def __init__(
        self,
        out: Path,
        *,
        on_loss: Callable[[], None] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._path = out / ".lock"
        self._token = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._on_loss = on_loss or (lambda: None)
        self._heartbeat_s = heartbeat_s
        self._file = -1
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        try:
            files.make_folder(self._path.parent)
            self._take()
        except OSError as error:
            raise RunError(f"cannot write below {self._path.parent}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._file)
        with contextlib.suppress(OSError):  # It will be found to be dead.
            if self._holder().get("token") == self._token:
                files.delete(self._path)

    def check(self) -> None:
        """Raise LockLostError if another run has taken the lock; call it before what counts."""
        try:
            self._check_regular()
            holder = self._holder()
        except FileNotFoundError:
            holder = {}
        except StoreLockedError as error:
            raise LockLostError(str(error)) from None
        except OSError:
            return  # OUT does not answer: whoever writes there hears of it.
        if holder.get("token") == self._token:
            return
        taker = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "somebody"
        raise LockLostError(
            f"{self._path} was taken by {taker}: this run had not been heard for so long that it "
            "was held for dead. It ends here; what is committed stays"
        )

    def _take(self) -> None:
        for _ in range(2):
            if files.write_new(self._path, json.dumps(self._content()).encode()):
                # Kept open: a heartbeat touches this very file, never that of another holder.
                self._file = files.open_own(self._path, of_others=True)
                return
            self._check_regular()
            self._remove_if_dead()
        raise StoreLockedError(f"another run took {self._path} this moment")

    def _content(self) -> dict[str, object]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "token": self._token,
        }

    def _check_regular(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            why = files.why_not_own(self._path, self._path.lstat(), of_others=True)
            if why is not None:
                raise StoreLockedError(f"{why}; if no other run is at work there, delete it")

    def _holder(self) -> dict[str, object]:
        return _read(self._path)

    def _remove_if_dead(self) -> None:
        try:
            holder = self._holder()
            age_s = time.time() - self._path.stat().st_mtime
        except FileNotFoundError:
            return
        if _is_alive(holder, age_s):
            raise StoreLockedError(
                f"another run (process {holder.get('pid')} on {holder.get('host')}) is writing to "
                f"{self._path.parent}; wait for it, or choose another --out. If there is none, "
                f"delete {self._path}"
            )
        # Renamed before it is removed: of two runs that find it dead, one alone removes it.
        grave = files.temporary_path(self._path)
        try:
            files.move(self._path, grave)
        except FileNotFoundError:
            return
        buried = _read(grave)
        if buried.get("token") != holder.get("token"):
            files.link(grave, self._path)  # A third run had just taken it: give it back.
        files.delete(grave)

    def _beat(self) -> None:
        while not self._stop.wait(self._heartbeat_s):
            # Where the disk refuses, the next look tells; others take over if this lasts.
            with contextlib.suppress(OSError):
                os.utime(self._file)
            try:
                self.check()
            except LockLostError:
                self._on_loss()
                return


def _read(path: Path) -> dict[str, object]:
    """Return what a lock file says; nothing where it is none. OUT's users share its lock."""
    with files.read_own(path, of_others=True) as file:
        content = file.read(_MAX_BYTES)
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(holder: dict[str, object], age_s: float) -> bool:
    if holder.get("host") != socket.gethostname():
        return age_s < STALE_AFTER_S
    try:
        process = psutil.Process(int(str(holder.get("pid"))))
        return abs(process.create_time() - float(str(holder.get("started")))) < 1.0
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
