"""Local Ray: start one on this machine alone, which takes no call without a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import ray
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from qaeval.command import say
from qaeval_core.errors import RunError
from qaeval_core.models.cpu import available_cpus

# Ray gives its processes 30 s each time, and cannot be told otherwise.
_STARTS = 3
# Of the folder that holds `qaeval-<uid>`.
_MAX_BASE_BYTES = 20
# What workers find in their environment, so that their memory stays where it is: two of malloc's
# arenas, of which there would be eight a CPU, and no pool of Arrow's own. Each keeps what it had.
MEMORY = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_LOG_LEVEL_LINE = b"Set ray log level from environment variable"


def start_here(options: Mapping[str, object]) -> None:
    """Start Ray on this machine; where it is too slow to start, try again.

    Parameters
    ----------
    options : mapping
        More arguments of `ray.init`.

    Raises
    ------
    RunError
        If Ray refuses what it is given, or has not started in `_STARTS` tries.
    """
    # Inherited, as PYTHONPATH is: with a runtime_env Ray starts workers a second later.
    for name, value in MEMORY.items():
        os.environ.setdefault(name, value)
    folder = str(private_folder() / "r")
    # Logical CPUs beyond the real ones: an actor that reserves all would starve light tasks.
    own = {"include_dashboard": False, "num_cpus": available_cpus() + 2, "_temp_dir": folder}
    for n_left in reversed(range(_STARTS)):
        try:
            return init_ray({**options, **own})
        except ValueError as error:
            raise RunError(f"Ray cannot start on this machine: {error} [QA0502]") from None
        except Exception as error:  # Ray raises no narrower one.
            ray.shutdown()
            _end_started(folder)
            if not n_left:
                raise RunError(
                    f"Ray did not start on this machine in {_STARTS} tries: {error} [QA0502]"
                ) from error
            say(f"Ray did not start, perhaps on a busy machine; trying again: {error}")


def _end_started(folder: str) -> None:
    """End what Ray has started in a folder for a node that never came to be: it knows of none."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if folder in " ".join(child.cmdline()):
                child.kill()


def init_ray(options: Mapping[str, object]) -> None:
    """Call `ray.init`, without what Ray's core says of its log level before all else.

    It writes to the file descriptor, before the level holds. All other lines are passed on.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            ray.init(**options)
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            said.seek(0)
            for line in said:
                if _LOG_LEVEL_LINE not in line:
                    sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()


@contextlib.contextmanager
def requiring_token() -> Iterator[None]:
    """Let a local cluster that is started meanwhile take no call without a token.

    It listens on all interfaces: without one the network could run code here while a run lives.
    The token is known to this process and its workers alone, unless the user has given one.
    """
    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        # Subtle: Ray has read the mode when it was imported, and would start processes that ask
        # for a token which this one does not send.
        Config.initialize("")
        yield
    finally:
        # Told in words: without the variable Ray keeps the mode it has. The token goes after the
        # mode: a thread of Ray that still asks for one must find it.
        os.environ["RAY_AUTH_MODE"] = before["RAY_AUTH_MODE"] or "disabled"
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def private_folder() -> Path:
    """Return a folder of this user alone for what Ray writes, made if it is not there.

    Ray gives its folders mode 0777, and whoever may write there can take the place of a socket.
    A short path: that of a Unix socket ends at 107 bytes, and Ray adds 65.
    """
    base = tempfile.gettempdir()
    folder = Path(base if len(os.fsencode(base)) <= _MAX_BASE_BYTES else "/tmp")
    folder /= f"qaeval-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="qaeval-", dir=folder.parent))
    folder.chmod(0o700)
    return folder
