"""NACo with OUT in a bucket, under faults, an outage and kills: what is journaled is not asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from helpers import assert_same_scores, processes, qaeval, wait_until, write_parquet
from llm_server import LlmServer
from naco_runs import NacoRun, kill_tree, questions, table_of
from qaeval_core.llm.journal import Journal, journal_totals
from qaeval_core.storage.path import StoragePath, as_path
from s3_server import S3Server

pytestmark = pytest.mark.slow

ROWS = questions(120)
N_KNOWN = 40  # replies in the journal when somebody is killed
MAX_CONCURRENT = 12
KEY = "sk-a-key-that-is-in-no-object-0123456789"
FAULTS = {"error_500": 0.05, "reset": 0.05, "truncated": 0.03, "error_503": 0.03}


class BucketRun(NacoRun):
    """A run whose OUT, journal with it, is in a bucket."""

    uri: str

    @property
    def out(self) -> StoragePath:  # type: ignore[override]
        return as_path(self.uri)

    @property
    def journal(self) -> StoragePath:  # type: ignore[override]
        return self.out / "journal"

    @property
    def given(self) -> dict[str, object]:
        # The default place: below OUT.
        return {k: v for k, v in super().given.items() if k != "journal_path"}

    def scores(self) -> pl.DataFrame:
        path = self.out / "scores" / "input.parquet"
        return pl.DataFrame(pl.from_arrow(pq.read_table(path.source())))

    def known(self) -> set[str]:
        """Return the names of all requests whose replies are journaled."""
        return {entry.key for entry in Journal(self.journal).entries()}

    def report(self) -> dict[str, object]:
        report: dict[str, object] = json.loads((self.out / "report.json").read_bytes())
        return report


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> S3Server:
    store.make_bucket("bucket")
    return store


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    return write_parquet(folder / "input.parquet", table_of(ROWS))


@pytest.fixture(scope="module")
def uninterrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The oracle: the same rows into a folder, of a server without limits and faults."""
    with LlmServer() as server:
        run = NacoRun(server, source, tmp_path_factory.mktemp("oracle"), words=["--local"])
        run.run()
    return run.scores()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LlmServer]:
    limits = {"requests_per_minute": 30, "window_s": 1.0, "latency_s": 0.1, "faults": FAULTS}
    with LlmServer(log_path=str(tmp_path / "server.jsonl"), key=KEY, **limits) as started:
        yield started


@pytest.fixture
def run(server: LlmServer, bucket: S3Server, source: Path, tmp_path: Path) -> BucketRun:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    settings = {"max_concurrent": MAX_CONCURRENT, "api_key_file": key_file}
    words = ["--local", "--rows-per-shard", "16", "--set", "scoring.retry_storage_s=60"]
    made = BucketRun(server, source, tmp_path, settings, words)
    object.__setattr__(made, "uri", bucket.uri(f"bucket/{tmp_path.name}/out"))
    return made


def with_settings(run: BucketRun, words: list[str] | None = None, **given: object) -> BucketRun:
    made = replace(run, settings={**run.settings, **given}, words=words or run.words)
    object.__setattr__(made, "uri", run.uri)
    return made


def asked_after(run: BucketRun, at_s: float) -> list[str]:
    """Return the requests that the server got later, in its own words."""
    return [line["request"] for line in run.server.log() if line["t_s"] > at_s]


def billed(run: BucketRun, *, until_s: float = 1e12) -> set[str]:
    """Return the requests that the server replied to."""
    log = run.server.log()
    return {own["request"] for own in log if own["outcome"] == "ok" and own["t_s"] <= until_s}


def outage(bucket: S3Server, seconds: float) -> None:
    bucket.door.shut()
    threading.Timer(seconds, bucket.door.open).start()


def check_done(run: BucketRun, expected: pl.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run.out / "_SUCCESS").is_file()
    assert_same_scores(run.scores(), expected)
    totals = journal_totals(run.journal)
    stats = run.server.stats()
    # Each reply that came is journaled but for those that a kill took, and no more than they.
    n_lost = stats["n_ok"] - totals.n_replies
    n_again = sum(own["ok"] > 1 for own in stats["requests"].values())
    with capsys.disabled():
        print(f"\n{totals.n_replies} replies kept, {n_lost} lost to kills, {n_again} asked again")
    assert 0 <= n_lost <= MAX_CONCURRENT and n_again <= n_lost
    for found in run.out.list(is_deep=True):
        assert KEY.encode() not in (run.out / found.name).read_bytes(), found.name


def test_a_killed_run_asks_nothing_that_is_journaled(
    run: BucketRun,
    bucket: S3Server,
    uninterrupted: pl.DataFrame,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = run.start()
    wait_until(lambda: len(run.known()) > N_KNOWN // 2, process)
    outage(bucket, 1.5)
    time.sleep(2.0)
    wait_until(lambda: len(run.known()) > N_KNOWN, process)
    kill_tree(process)
    dead_s = time.monotonic()
    known = run.known()
    assert len(known) < len(ROWS) and not (run.out / "_SUCCESS").is_file()
    lost = billed(run, until_s=dead_s) - known
    assert len(lost) <= MAX_CONCURRENT
    run.run()
    again = asked_after(run, dead_s)
    assert again, "it was over before the kill"
    assert not known & set(again)
    check_done(run, uninterrupted, capsys)
    # What is paid and lost counts as spent: no less than the server has billed.
    (money,) = run.ledger().money.values()
    assert money.committed >= round(run.server.stats()["billed_usd"] * 1e9)


@pytest.mark.long
def test_a_budget_holds_whatever_is_killed(
    run: BucketRun, uninterrupted: pl.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    # Calls of the killed run stay reserved, and are waited for twice as long as a reply may take.
    poor = with_settings(run, budget_usd=0.06, timeout_s=4)
    process = poor.start()
    wait_until(lambda: len(run.known()) > 5, process)
    kill_tree(process)
    said = poor.run(expect=1)
    assert "budget_usd" in said, said
    stats = run.server.stats()
    assert 0.005 < stats["billed_usd"] <= 0.06
    n_known = len(run.known())
    assert 5 < n_known < len(ROWS)
    poor.run(expect=1)
    assert run.server.stats()["billed_usd"] <= 0.06
    before_s, known = time.monotonic(), run.known()
    with_settings(run, budget_usd=1.0).run()
    assert not known & set(asked_after(run, before_s))
    check_done(run, uninterrupted, capsys)


@pytest.mark.long
def test_another_run_takes_the_replies_and_explain_shows_them(
    run: BucketRun, source: Path, tmp_path: Path
) -> None:
    """A journal of its own URI, an OUT in a folder: no call, and the replies' texts."""
    run.run()
    n_calls = run.server.stats()["n_calls"]
    own = {**run.settings, "journal_path": str(run.journal)}
    other = NacoRun(run.server, source, tmp_path / "other", own, run.words)
    other.run()
    assert other.calls()["from_journal"] >= len(ROWS) and other.calls()["paid"] == 0
    assert run.server.stats()["n_calls"] == n_calls
    assert_same_scores(other.scores(), run.scores())
    assert "Verdict:" in qaeval("explain", other.out, "--id", "q3")
    new = replace(other, folder=tmp_path / "new")
    dry = qaeval(*new.command, "--dry-run")
    assert "replies are in the journal" in dry


@pytest.mark.ray
@pytest.mark.long
def test_two_actors_share_a_bucket_and_one_is_killed(
    run: BucketRun,
    bucket: S3Server,
    uninterrupted: pl.DataFrame,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--set", "cluster.llm_actors=2", "--rows-per-shard", "16"]
    run = with_settings(run, words=[*words, "--set", "scoring.retry_storage_s=60"])
    process = run.start()
    wait_until(lambda: len(run.known()) > N_KNOWN, process)
    wait_until(lambda: len(processes(process.pid, title="AskPieces")) == 2, process)
    processes(process.pid, title="AskPieces")[0].kill()
    known, killed_s = run.known(), time.monotonic()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert not known & set(asked_after(run, killed_s))
    check_done(run, uninterrupted, capsys)
    writers = {name.partition("/")[0] for name in _batches(run)}
    assert len(writers) >= 2


def _batches(run: BucketRun) -> list[str]:
    found = run.journal.list(is_deep=True)
    return [own.name for own in found if own.name.endswith(".jsonl")]
