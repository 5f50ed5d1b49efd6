"""The run lock as a lease: one winner, and a frozen holder that ends itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from helpers import REPOSITORY, write_parquet
from qaeval_core.errors import LockLostError, RunStoppedError, StoreLockedError
from qaeval_core.scoring import join
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.storage.probe import PROBES
from qaeval_core.storage.retry import Outages
from qaeval_core.store.lock import LockTimes, RunLock
from qaeval_core.store.store import Store
from s3_proxy import S3Proxy
from s3_server import S3Server
from word_jobs import request, rows, run

QUICK = LockTimes(heartbeat_s=0.2, stale_after_s=2.0)
HOLDER = """
import sys
from qaeval_core.store.lock import LockTimes, RunLock
import threading
lost = threading.Event()
with RunLock(sys.argv[1], on_loss=lost.set, times=LockTimes(0.2, 2.0)):
    print("held", flush=True)
    lost.wait(60)
    print("lost" if lost.is_set() else "kept", flush=True)
"""


@pytest.fixture(params=["disk", "bucket"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoragePath]:
    if request.param == "disk":
        return as_path(tmp_path / "out")
    store: S3Server = request.getfixturevalue("store")
    store.make_bucket("bucket")
    return as_path(store.uri(f"bucket/{request.node.originalname}"))


def put_lock(out: StoragePath, **content: object) -> None:
    """Leave the lock of a run that is gone."""
    (out / ".lock").put(json.dumps({"pid": 7, "token": "other", **content}).encode())


def test_a_second_run_is_told_who_and_until_when(out: StoragePath) -> None:
    with RunLock(out) as held:
        held.check()
        with pytest.raises(StoreLockedError, match=rf"{os.getpid()}.*1[12]\d.*QA0505"):
            RunLock(out).__enter__()
        with pytest.raises(StoreLockedError, match=r"\(--wait.*1[12]\d.*QA0505"):
            RunLock(out, wait_s=0).__enter__()
    assert not (out / ".lock").is_file()
    with RunLock(out):
        pass


def test_heartbeats_keep_it_and_are_counted(out: StoragePath) -> None:
    with RunLock(out, times=QUICK) as held:
        time.sleep(2.5)
        assert json.loads((out / ".lock").read_bytes())["beat"] > 5
        with pytest.raises(StoreLockedError, match="QA0505"):
            RunLock(out, times=QUICK).__enter__()
        held.check()


def test_a_dead_process_of_this_machine_is_taken_over_at_once(out: StoragePath) -> None:
    put_lock(out, host=socket.gethostname(), pid=2**22 + 1, started=0.0)
    with RunLock(out) as held:
        held.check()
    # A container of the same name elsewhere, whose numbers mean nothing here.
    put_lock(out, host=socket.gethostname(), pid=2**22 + 1, started=0.0, machine="other")
    with pytest.raises(StoreLockedError, match="QA0505"):
        RunLock(out).__enter__()


def test_a_process_of_this_machine_lives_though_its_clock_was_set(tmp_path: Path) -> None:
    """The time of the boot, from which processes are dated, is then a second later or earlier."""
    out = as_path(tmp_path)
    started = psutil.Process().create_time()
    for step_s in (-1.0, 0.0, 1.0):
        put_lock(out, host=socket.gethostname(), pid=os.getpid(), started=started + step_s)
        with pytest.raises(StoreLockedError, match="QA0505"):
            RunLock(out).__enter__()
    put_lock(out, host=socket.gethostname(), pid=os.getpid(), started=started - 3.0)
    with RunLock(out) as held:
        held.check()


HIDDEN = """
mount -t proc -o hidepid=$1 proc /proc || exit 9
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$2" -c "$3" "$4"
"""
TAKES = """
import sys
from qaeval_core.errors import StoreLockedError
from qaeval_core.store.lock import RunLock
try:
    RunLock(sys.argv[1]).__enter__()
    print("taken")
except StoreLockedError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a /proc that hides processes")
@pytest.mark.parametrize("hides", ["1", "2"])
def test_a_process_of_another_user_lives_where_it_cannot_be_seen(hides: str) -> None:
    """Machines that many share show a user's own processes alone; the other's run went on."""
    with tempfile.TemporaryDirectory() as name:  # Whose folders above may be entered.
        folder = Path(name)
        folder.chmod(0o777)
        put_lock(
            as_path(folder), host=socket.gethostname(), pid=os.getpid(),
            started=psutil.Process().create_time(),
        )  # fmt: skip
        (folder / ".lock").chmod(0o666)
        words = ["unshare", "--mount", "bash", "-c", HIDDEN, "bash", hides, sys.executable, TAKES]
        done = subprocess.run(
            [*words, name], capture_output=True, text=True, check=False, cwd=REPOSITORY
        )
    if done.returncode in (1, 9) and "mount" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert f"another run (process {os.getpid()} on" in done.stdout, done.stdout + done.stderr


def test_who_is_killed_while_it_asks_for_the_time_leaves_what_is_taken_away(
    store: S3Server,
) -> None:
    store.make_bucket("bucket")
    with S3Proxy(store.port) as proxy:
        out = as_path(proxy.uri("bucket/asked"))
        put_lock(out, host="elsewhere")
        with pytest.raises(StoreLockedError):
            RunLock(out).__enter__()
        written = [line for line in proxy.seen if line.startswith("PUT") and ".lock" not in line]
    assert len(written) == 1 and f"/bucket/asked/{PROBES}/" in written[0]


@pytest.mark.slow
def test_ten_at_once_on_a_dead_lease_have_one_winner(out: StoragePath) -> None:
    put_lock(out, host="elsewhere")
    time.sleep(2.1 if out.local else 3.1)  # Some stores know whole seconds alone.
    locks = [RunLock(out, times=QUICK) for _ in range(10)]

    def enter(lock: RunLock) -> RunLock | None:
        try:
            return lock.__enter__()
        except StoreLockedError:
            return None

    with ThreadPoolExecutor(10) as pool:
        (winner,) = [lock for lock in pool.map(enter, locks) if lock is not None]
    time.sleep(0.5)
    winner.check()
    winner.__exit__(None, None, None)
    assert not list(out.list())


@pytest.mark.slow
def test_who_waits_gets_it_and_may_be_told_to_stop(out: StoragePath) -> None:
    put_lock(out, host="elsewhere")
    with RunLock(out, wait_s=20, times=QUICK) as held:
        held.check()
        with pytest.raises(StoreLockedError, match="QA0505"):
            RunLock(out, wait_s=0.5, times=QUICK).__enter__()

        def look() -> None:
            raise RunStoppedError("stopped as asked")

        with pytest.raises(RunStoppedError):
            RunLock(out, wait_s=20, look=look, times=QUICK).__enter__()


def test_a_lock_that_is_off_holds_nothing(out: StoragePath) -> None:
    with RunLock(out, is_on=False) as held:
        held.check()
        assert not (out / ".lock").is_file()
        with RunLock(out):
            held.check()


def test_a_holder_whose_lock_is_gone_notices(out: StoragePath) -> None:
    lost = threading.Event()
    with RunLock(out, on_loss=lost.set, times=QUICK) as held:
        (out / ".lock").delete()
        assert lost.wait(10)
        with pytest.raises(LockLostError, match="QA0506"):
            held.check()


@pytest.mark.slow
def test_a_frozen_holder_is_taken_over_and_ends_itself(out: StoragePath) -> None:
    """It woke, went on, and its heartbeats kept the lock of its successor fresh."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        frozen_s = time.monotonic()
        with RunLock(out, wait_s=30, times=QUICK) as held:
            assert time.monotonic() - frozen_s < 8
            holder.send_signal(signal.SIGCONT)
            assert holder.stdout.readline() == "lost\n"
            assert holder.wait(10) == 0
            held.check()
            time.sleep(0.5)
            held.check()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def rob(out: StoragePath) -> None:
    """Take the lock, as another run does that held its holder for dead."""
    put_lock(out, host="elsewhere")


def test_a_write_that_waited_for_the_store_looks_again(store: S3Server) -> None:
    """Protects from a marker of success in the OUT of a run that has just begun.

    An outage of two minutes and more lets the lock go stale, and both runs hear of its end.
    """
    store.make_bucket("bucket")
    out = as_path(store.uri("bucket/waited"))

    def look() -> None:
        if not store.door.is_open:
            store.door.open()
            rob(out)

    with RunLock(out) as lock:
        own = Store(out, outages=Outages(retry_s=20.0, look=look), guard=lock.check)
        own.write(out / "report.json", b"{}")
        store.door.shut()
        with pytest.raises(LockLostError, match="QA0506"):
            own.write(out / "_SUCCESS", b"{}")
    assert sorted(found.name for found in out.list()) == [".lock", "report.json"]


def test_who_is_robbed_while_it_joins_publishes_no_scores(
    out: StoragePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor may be another job, and done by then."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    check = join.check_unchanged

    def after_the_last_row(*given: object, **more: object) -> None:
        check(*given, **more)
        rob(out)

    monkeypatch.setattr(join, "check_unchanged", after_the_last_row)
    with pytest.raises(LockLostError, match="QA0506"):
        run(request(source, out))
    assert not list((out / "scores").list(is_deep=True))
    assert not (out / "_SUCCESS").exists()
