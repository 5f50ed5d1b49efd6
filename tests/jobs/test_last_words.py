"""Whatever ends a command, one line says so, and its exit code is the command's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from helpers import REPOSITORY, wait_until

# Who starts these tests in the background may have let them ignore Ctrl-C.
_RUN = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from qaeval.last_words import hands_over, run\n"
)
_AGAIN = "; committed work is kept; run the same command again [QA0006]\n"


def start(command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{_RUN}def command():\n    {command}\nrun(command)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={key: value for key, value in os.environ.items() if key != "QAEVAL_DEBUG"},
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("os._exit(1)", 1, "the process ended without a message, as it does when Ray is gone"),
        ("os._exit(0)", 1, "the process ended without a message, as it does when Ray is gone"),
        ("os.kill(os.getpid(), 9)", -9, "the process was killed (SIGKILL)"),
        ("os.kill(os.getpid(), 11)", -11, "the process crashed (SIGSEGV)"),
        ("sys.exit(2)", 2, ""),
        # As training does, which becomes another program.
        ("hands_over(); os.execv('/bin/sh', ['sh', '-c', 'exit 3'])", 3, ""),
        (
            "hands_over(); os.execv('/bin/sh', ['sh', '-c', 'kill -9 $$'])",
            -9,
            "the process was killed (SIGKILL)",
        ),
        ("pass", 0, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
        (
            # A signal just before a sleep does not shorten it: many short ones.
            "os.kill(os.getppid(), signal.SIGINT); [time.sleep(0.1) for _ in range(600)]",
            -2,
            "KeyboardInterrupt",
        ),
    ],
)
def test_an_end_without_a_word_is_told(command: str, code: int, said: str) -> None:
    """Three ends of Ray in a row were exit 1 behind a line of progress."""
    process = start(command)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert said in told
    assert (_AGAIN in told) == (said.startswith("the process")) and told.count("error:") <= 1


def test_signals_reach_the_command_once_and_it_ends_with_its_parent() -> None:
    """A second Ctrl-C ends a run at once: one that came twice would be both."""
    count = "n = []; signal.signal(2, lambda *_: n.append(1)); print('up', flush=True); "
    count += "time.sleep(1); time.sleep(1); print(len(n), flush=True); time.sleep(60)"
    process = start(count)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (child,) = psutil.Process(process.pid).children()
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: child.status() != psutil.STATUS_STOPPED)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_the_command_that_is_installed_runs_like_this() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "qaeval", "metrics"], stdout=subprocess.DEVNULL, cwd=REPOSITORY
    )
    until = time.monotonic() + 60
    children: list[psutil.Process] = []
    while not children and process.poll() is None and time.monotonic() < until:
        children = psutil.Process(process.pid).children()
    assert children
    assert process.wait(timeout=60) == 0
