"""Runs of NACo on one cluster: a shared key, a shared journal, a pause, and secrets kept."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import assert_same_scores, processes, wait_until, write_parquet
from llm_server import LlmServer
from naco_runs import NacoRun, Row, journaled_keys, questions, table_of
from ray_head import Head, running_head
from wall_clock import Report, check_figures

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Not what keys look like: what is scrubbed is these, not all that begins with sk-. And not written
# down here: a job brings this file along.
FILE_SECRET, NODE_SECRET, WRONG_SECRET = (secrets.token_hex(16) for _ in range(3))
LIMITS = {"requests_per_minute": 60, "window_s": 2.0}
# Every library says all that it can say, on the workers' standard error: Ray keeps it.
SITE = "import logging\nlogging.basicConfig(level=logging.DEBUG)\n"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A cluster whose nodes have a key in their environment, and log all they can."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(SITE)
    variables = {
        "PYTHONPATH": str(site),
        "RAY_BACKEND_LOG_LEVEL": "debug",
        "OPENAI_API_KEY": NODE_SECRET,
    }
    with pytest.MonkeyPatch.context() as patch, running_head("disabled", variables=variables) as up:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield up


def write_rows(path: Path, rows: list[Row]) -> Path:
    return write_parquet(path, table_of(rows))


def end(process: subprocess.Popen[str]) -> str:
    """Wait until a run has ended well; return what it printed."""
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def check_windows(server: LlmServer, report: Report) -> None:
    """Check that no window held too many, and that the runs filled it together."""

    def check(found: list[dict[str, Any]]) -> None:
        most = found[0]["max_requests_in_window"]
        assert most <= LIMITS["requests_per_minute"]
        assert found[0]["n_refused"] == 0
        # Together they use it: a half for each would do as well, but not for one that is alone.
        assert most >= 0.9 * LIMITS["requests_per_minute"]

    check_figures(lambda: [server.stats()], check, report)


def check_governor_is_gone(head: Head) -> None:
    deadline = time.monotonic() + 20
    while processes(head.pid, title="GovernorActor"):
        assert time.monotonic() < deadline, "a governor is left on the cluster"
        time.sleep(0.1)


@pytest.mark.long
def test_two_runs_on_one_key_share_its_limit(
    head: Head, tmp_path: Path, record_property: Report
) -> None:
    """Each at the full limit would be twice the limit; and nothing may stay on the cluster."""
    log_path = str(tmp_path / "server.jsonl")
    with LlmServer(key=NODE_SECRET, log_path=log_path, **LIMITS) as server:
        shared = {"ledger_path": tmp_path / "ledgers"}
        runs = []
        for number in (0, 1):
            rows = questions(150, first=1000 * number)
            source = write_rows(tmp_path / f"{number}.parquet", rows)
            words = ["--address", head.address]
            runs.append(NacoRun(server, source, tmp_path / str(number), shared, words))
        for process in [run.start() for run in runs]:
            end(process)
        # Both were asked for at the same time, not one after the other.
        keys = [set(journaled_keys(run.journal)) for run in runs]
        at_s = [[line["t_s"] for line in server.log() if line["request"] in own] for own in keys]
        overlap_s = min(own[-1] for own in at_s) - max(own[0] for own in at_s)
        assert overlap_s > 2 * LIMITS["window_s"], "they did not run at the same time"
        check_windows(server, record_property)
        stats = server.stats()
        assert stats["n_after_ok"] == 0
        admitted = server.admitted()
        assert admitted.total() == sum(run.calls()["paid"] for run in runs)
        # One ledger, a budget for each journal.
        money = runs[0].ledger().money.values()
        assert sorted(own.n_settled for own in money) == sorted(map(len, keys))
        assert sum(own.committed for own in money) == round(stats["billed_usd"] * 1e9)
    check_governor_is_gone(head)


@pytest.mark.long
def test_runs_on_one_journal_pay_once(head: Head, tmp_path: Path, record_property: Report) -> None:
    """Two people score the same rows at once; the longer run goes on when the other leaves."""
    rows = questions(200)
    log_path = str(tmp_path / "server.jsonl")
    with LlmServer(key=NODE_SECRET, log_path=log_path, latency_s=0.2, **LIMITS) as server:
        shared = {"ledger_path": tmp_path / "ledgers", "journal_path": tmp_path / "journal"}
        runs = []
        for n_rows in (120, 200):
            source = write_rows(tmp_path / f"{n_rows}.parquet", rows[:n_rows])
            words = ["--address", head.address]
            runs.append(NacoRun(server, source, tmp_path / str(n_rows), shared, words))
        for process in [run.start() for run in runs]:
            end(process)
        stats = server.stats()
        admitted = server.admitted()
        assert set(admitted.values()) == {1} and set(admitted) == set(stats["requests"])
        paid = [run.calls()["paid"] for run in runs]
        assert min(paid) > 0, "one came when the other had paid for all"
        assert sum(paid) == admitted.total() == len(journaled_keys(tmp_path / "journal"))
        assert sum(run.calls()["from_journal"] for run in runs) >= 120
        check_windows(server, record_property)
        (money,) = runs[0].ledger().money.values()
        assert money.committed == round(stats["billed_usd"] * 1e9)
    assert_same_scores(runs[0].scores(), runs[1].scores().head(120))
    check_governor_is_gone(head)


@pytest.mark.long
def test_a_pause_that_the_server_asked_for_outlives_the_governor(
    head: Head, tmp_path: Path
) -> None:
    """Whoever goes on calling after a 429 with Retry-After is shut out for longer."""
    source = write_rows(tmp_path / "input.parquet", questions(60))
    log_path = str(tmp_path / "server.jsonl")
    # It allows half of what it promised: the 41st call of eight seconds is refused.
    with LlmServer(
        key=NODE_SECRET, log_path=log_path, requests_per_minute=40, window_s=8.0
    ) as server:
        promised = {"requests_per_minute": 80}
        run = NacoRun(server, source, tmp_path, promised, ["--address", head.address])
        process = run.start()
        wait_until(lambda: server.stats()["n_refused"] > 0, process)
        (governor,) = processes(head.pid, title="GovernorActor")
        governor.kill()
        end(process)
        log = server.log()
    assert set(run.scores()["naco_reason"]) <= {None, "unparsable_reply"}
    refused = next(line for line in log if line["outcome"] == "refused")
    # What the server asked for: until its first call is eight seconds old.
    until_s = log[0]["t_s"] + 8.0
    assert until_s - refused["t_s"] > 2.0
    # Those that had their final word when it came are sent within a sixtieth of a window.
    later_s = [line["t_s"] for line in log if line["t_s"] > refused["t_s"] + 0.5]
    assert min(later_s) >= until_s - 0.05
    check_governor_is_gone(head)


def contents(*folders: Path, but: Path) -> dict[str, bytes]:
    """Return all files in folders, but for one folder."""
    found = {}
    for path in (path for folder in folders for path in folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # Ray clears up meanwhile.
            if path.is_file() and path.parent != but:
                found[str(path)] = path.read_bytes()
    return found


def test_keys_are_nowhere(head: Head, tmp_path: Path) -> None:
    """What is written, logged or told may be read by more people than may use the key."""
    source = write_rows(tmp_path / "input.parquet", questions(40))
    keys = tmp_path / "keys"
    keys.mkdir()
    for name, secret in (("right", FILE_SECRET), ("wrong", WRONG_SECRET)):
        (keys / name).touch(mode=0o600)
        (keys / name).write_text(secret)

    def make_run(name: str, server: LlmServer, **settings: object) -> NacoRun:
        return NacoRun(server, source, tmp_path / name, settings, ["--address", head.address])

    # Servers quote keys in what they say of errors; this one always does.
    faults = {"error_500": 0.2, "bad_request": 0.2}
    with LlmServer(key=FILE_SECRET, faults=faults) as server:
        run = make_run("job", server, api_key_file=keys / "right")
        code, told = head.submit("python", "-m", "qaeval.cli", "score", *run.command[1:])
        assert code == 0, told
        assert {"llm_bad_request", None} <= set(run.scores()["naco_reason"])
        assert run.calls()["failed"]["llm_server_error"] > 0

        wrong = make_run("wrong", server, api_key_file=keys / "wrong").run(expect=1)
        assert "answered 401" in wrong
        assert f"the key from the file {keys / 'wrong'} is refused" in wrong
    with LlmServer(key=NODE_SECRET, faults=faults) as server:
        told += wrong + make_run("node", server).run()

    found = contents(tmp_path, head.folder, but=keys)
    assert any("/journal/replies-" in path for path in found)
    assert any("/ledger-" in path for path in found)
    logs = [content for path, content in found.items() if "/logs/" in path]
    assert any(b"DEBUG:httpcore" in content for content in logs), "little was logged"
    jobs = head.jobs()
    assert str(keys / "right") in jobs
    found |= {"what runs printed": told.encode(), "what Ray says of jobs": jobs.encode()}
    for secret in (FILE_SECRET, NODE_SECRET, WRONG_SECRET):
        assert [path for path, content in found.items() if secret.encode() in content] == []
