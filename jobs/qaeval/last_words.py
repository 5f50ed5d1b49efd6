"""Last words: a parent process that says how a command ended, where it could not say so itself.

Ray's core ends a process at once where its store is gone, the kernel kills one that takes too much
memory, and a library may crash. The command runs in a child, which notes that it ends in an orderly
way; whatever else becomes of it is told in one line.

But: where ``QAEVAL_DEBUG`` is set there is no parent, so that a debugger has the terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

# Whoever sends these knows why it ends.
_WANTED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE}
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP}
_AGAIN = "committed work is kept; run the same command again"
_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl


class _Note:
    """What a child leaves for its parent: that it ends in an orderly way."""

    pipe: int | None = None
    pid = 0


_SAID, _HANDED_OVER = b".", b">"


def has_said() -> None:
    """Note that all was said of how this process ends."""
    _note(_SAID)


def hands_over() -> None:
    """Note that this process becomes another program, which says itself why it exits."""
    _note(_HANDED_OVER)


def _note(what: bytes) -> None:
    if _Note.pipe is not None and os.getpid() == _Note.pid:  # Of forks, the first one alone.
        os.write(_Note.pipe, what)


def run(command: Callable[[], None]) -> None:
    """Run a command in a child; say how it ended where it does not, and end as it did.

    Parameters
    ----------
    command : callable
        Nothing that starts threads may have been loaded before.
    """
    if os.environ.get("QAEVAL_DEBUG") or not hasattr(os, "fork"):
        command()
        return
    parent = os.getpid()
    reading, writing = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        _begin_child(parent, writing)
        command()
        return
    os.close(writing)
    _pass_on(child)
    _, status = os.waitpid(child, 0)
    os.set_blocking(reading, False)  # A process that outlives the child may hold the other end.
    try:
        noted = os.read(reading, 1)
    except BlockingIOError:
        noted = b""
    # Nobody can say by which signal it is killed.
    is_told = noted == _SAID or (noted == _HANDED_OVER and os.WIFEXITED(status))
    _end_as(status, is_told=is_told)


def _begin_child(parent: int, pipe: int) -> None:
    # A terminal's Ctrl-C comes from the parent alone, and once.
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    _Note.pipe, _Note.pid = pipe, os.getpid()
    atexit.register(has_said)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


def _pass_on(child: int) -> None:
    """Pass signals on; a stop stops the child first, then this process."""

    def pass_on(number: int, _: FrameType | None) -> None:
        if number != signal.SIGTSTP:
            with contextlib.suppress(ProcessLookupError):  # It has ended this moment.
                os.kill(child, number)
            return
        os.kill(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


def _end_as(status: int, *, is_told: bool) -> None:
    """End as a child did; say how, unless it has or it was wanted."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in _WANTED and not is_told:
            _say(_of_signal(number))
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
    code = os.waitstatus_to_exitcode(status)
    if not is_told:
        _say("the process ended without a message, as it does when Ray is gone")
    sys.exit(code or not is_told)


def _of_signal(number: int) -> str:
    if number == signal.SIGKILL:
        return "the process was killed (SIGKILL), often for lack of memory"
    return f"the process crashed ({signal.Signals(number).name}); please report it"


def _say(what: str) -> None:
    sys.stderr.write(f"error: {what}; {_AGAIN} [QA0006]\n")
    sys.stderr.flush()
