"""Lock: one live run per OUT folder.

The lock file names host, process and its start time, and carries a heartbeat. A dead holder on
this host is recognised at once (process ids are re-used, start times are not); one on another
host when its heartbeat is old.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType

import psutil

from qaeval_core.errors import StoreLockedError

HEARTBEAT_S = 15.0
STALE_AFTER_S = 120.0


class RunLock:
    """Holds OUT/.lock while a run lives; a context manager."""

    def __init__(self, out: Path) -> None:
        self._path = out / ".lock"
        self._token = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            if self._create():
                self._thread = threading.Thread(target=self._beat, daemon=True)
                self._thread.start()
                return self
            self._remove_if_dead()
        raise StoreLockedError(f"another run took {self._path} this moment")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._holder().get("token") == self._token:
            self._path.unlink(missing_ok=True)

    def _create(self) -> bool:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "token": self._token,
        }
        temporary = self._path.with_name(f".lock.{self._token}.tmp")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        try:
            os.link(temporary, self._path)  # Fails if it exists, also on NFS; never half written.
        except FileExistsError:
            return False
        except OSError:  # A file system without hard links.
            return self._create_exclusively(json.dumps(content))
        finally:
            temporary.unlink()
        return True

    def _create_exclusively(self, content: str) -> bool:
        try:
            with self._path.open("x", encoding="utf-8") as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def _holder(self) -> dict[str, object]:
        try:
            holder = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _remove_if_dead(self) -> None:
        holder = self._holder()
        try:
            age_s = time.time() - self._path.stat().st_mtime
        except FileNotFoundError:
            return
        if _is_alive(holder, age_s):
            raise StoreLockedError(
                f"another run (process {holder.get('pid')} on {holder.get('host')}) is writing to "
                f"{self._path.parent}; wait for it, or choose another --out"
            )
        # Renamed before it is removed: of two runs that find it dead, one alone removes it.
        grave = self._path.with_name(f".lock.dead.{self._token}.tmp")
        try:
            self._path.rename(grave)
        except FileNotFoundError:
            return
        buried = json.loads(grave.read_text(encoding="utf-8") or "{}")
        if buried.get("token") != holder.get("token"):
            os.link(grave, self._path)  # A third run had just taken it: give it back.
        grave.unlink()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                return


def _is_alive(holder: dict[str, object], age_s: float) -> bool:
    if holder.get("host") != socket.gethostname():
        return age_s < STALE_AFTER_S
    try:
        process = psutil.Process(int(str(holder.get("pid"))))
        return abs(process.create_time() - float(str(holder.get("started")))) < 1.0
    except (psutil.NoSuchProcess, ValueError):
        return False
