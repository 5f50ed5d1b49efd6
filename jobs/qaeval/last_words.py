"""Last words: a parent process that says how a command ended, where it could not say so itself.

Ray's core ends a process at once where its store is gone, the kernel kills one that takes too much
memory, and a library may crash. The command runs in a child, which notes that it ends in an orderly
way; whatever else becomes of it is told in one line.

But: where ``QAEVAL_DEBUG`` is set there is no parent, so that a debugger has the terminal.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Callable

# Whoever sends these knows why it ends.
_WANTED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE}
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP}
_WAITED_FOR = {*_PASSED_ON, signal.SIGCHLD}
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
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    child = os.fork()
    if child == 0:
        _begin_child(parent, writing)
        command()
        return
    os.close(writing)
    status = _pass_on(child)
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)


def _pass_on(child: int) -> int:
    """Pass signals on until the child ends; return its status.

    They stay blocked and are waited for: a handler that Python has yet to call when a wait for the
    child begins would be called at the end of that wait.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)  # One that is ignored is not waited for.
    while True:
        number = signal.sigwait(_WAITED_FOR)
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif number == signal.SIGTSTP:  # The child stops first.
            os.kill(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        else:
            os.kill(child, number)


def _end_as(status: int, *, is_told: bool) -> None:
    """End as a child did; say how, unless it has or it was wanted."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in _WANTED and not is_told:
            _say(_of_signal(number))
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
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
