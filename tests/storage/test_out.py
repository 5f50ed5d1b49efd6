"""OUT in a bucket: the same scores as in a folder, whatever happens on the way."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import naco_jobs
import qaeval_core.scoring.run
from bucket_outs import is_as_local, names, scores
from helpers import REPOSITORY, write_parquet
from llm_server import LlmServer
from qaeval_core.configure import load_config
from qaeval_core.errors import (
    ConfigError,
    InputError,
    LockLostError,
    OutRefusedError,
    RunStoppedError,
    StorageError,
    StoreLockedError,
)
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running import passes
from qaeval_core.running.visibility import Sight
from qaeval_core.scoring.run import run_job
from qaeval_core.storage.path import as_path
from qaeval_core.store.lock import RunLock
from s3_proxy import CONDITIONS, NOT_IMPLEMENTED, S3Proxy
from s3_server import S3Server
from word_jobs import N_ROWS, ROWS_PER_GROUP, Watched, request, rows, run

METRICS = {"metrics.r.metric": "rouge_l", "metrics.c.metric": "cider"}


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> S3Server:
    store.make_bucket("bucket")
    return store


@pytest.fixture
def uri(bucket: S3Server, request: pytest.FixtureRequest) -> str:
    """An OUT of its own for each test."""
    return bucket.uri(f"bucket/{request.node.name}")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows of which some are quarantined."""
    table = rows().to_pylist()
    table[5]["candidate"] = table[40]["reference"] = None
    path = tmp_path / "input.parquet"
    return write_parquet(path, pa.Table.from_pylist(table), row_group_size=ROWS_PER_GROUP)


def test_a_run_into_a_bucket_is_a_run_into_a_folder(
    uri: str, source: Path, tmp_path: Path, bucket: S3Server
) -> None:
    outcome, _ = run({**request(source, uri), **METRICS, "output.carry": ["reference"]})
    assert outcome.is_new and scores(uri).num_rows == N_ROWS
    local = {**METRICS, "output.carry": ["reference"]}
    assert is_as_local(uri, source, tmp_path / "out", **local)
    # No lock, mark, probe or temporary object stays, and other tools read what is there.
    assert not [name for name in names(as_path(uri)) if name.startswith((".", "_probe"))]
    path = uri.partition("?")[0].removeprefix("s3://")
    raw = pq.read_table(f"{path}/scores/input.parquet", filesystem=bucket.make_bucket("bucket"))
    assert raw.equals(scores(uri))
    again, said = run({**request(source, uri), **local})
    assert not again.is_new and said == [f"nothing to do: {uri} is complete (64 rows)"]


def test_a_stopped_run_goes_on_and_commits_nothing_twice(uri: str, source: Path) -> None:
    def stop() -> None:
        raise RunStoppedError("stopped")

    with pytest.raises(RunStoppedError):
        run(request(source, uri), after=3, then=stop)
    out = as_path(uri)
    (key,) = {name.split("/")[1] for name in names(out) if name.startswith("families/")}
    before = {found.name: found.modified_s for found in (out / "families" / key).list()}
    assert 3 <= len(before) < 9 and not (out / "_SUCCESS").is_file()
    outcome, _ = run(request(source, uri))
    after = {found.name: found.modified_s for found in (out / "families" / key).list()}
    assert outcome.is_new and len(after) == 9 and before.items() <= after.items()


def test_an_outage_of_the_store_is_waited_for(
    uri: str, source: Path, tmp_path: Path, bucket: S3Server
) -> None:
    def shut() -> None:
        bucket.door.shut()
        threading.Timer(1.5, bucket.door.open).start()

    run(request(source, uri, scoring__retry_storage_s=60), after=2, then=shut)
    assert is_as_local(uri, source, tmp_path / "out")


@pytest.mark.parametrize("step", ["passes.read_frequencies", "run._page", "run._is_finished"])
def test_an_outage_at_any_step_is_waited_for(
    uri: str, source: Path, bucket: S3Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Protects from joining all scores anew because of one second at the end."""
    module = {"passes": passes, "run": qaeval_core.scoring.run}[step.partition(".")[0]]
    name = step.rpartition(".")[2]
    do = getattr(module, name)

    def during_an_outage(*given: Any, **more: Any) -> Any:
        bucket.door.shut()
        threading.Timer(1.5, bucket.door.open).start()
        return do(*given, **more)

    monkeypatch.setattr(module, name, during_an_outage)
    outcome, _ = run({**request(source, uri, scoring__retry_storage_s=60), **METRICS})
    assert outcome.is_new and (as_path(uri) / "_SUCCESS").is_file()


def test_a_store_that_stays_away_ends_the_run_and_nothing_false_is_committed(
    uri: str, source: Path, tmp_path: Path, bucket: S3Server
) -> None:
    with pytest.raises(StorageError, match="s3://bucket/.*QA0507"):
        run(request(source, uri, scoring__retry_storage_s=0.5), after=2, then=bucket.door.shut)
    bucket.door.open()
    assert not (as_path(uri) / "_SUCCESS").is_file()
    # Its lock is that of a live process here, which would be waited for.
    (as_path(uri) / ".lock").delete()
    run(request(source, uri))
    assert is_as_local(uri, source, tmp_path / "out")


def test_a_second_run_is_refused_and_a_robbed_one_ends(uri: str, source: Path) -> None:
    with RunLock(uri), pytest.raises(StoreLockedError, match="QA0505"):
        run(request(source, uri))

    def rob() -> None:
        (as_path(uri) / ".lock").put(b'{"host": "b", "pid": 7, "token": "other"}')

    with pytest.raises(LockLostError, match="7.*QA0506"):
        run(request(source, uri), after=8, then=rob)
    assert not [name for name in names(as_path(uri)) if name.startswith("scores/")]


@pytest.mark.parametrize("kind", ["ignores", "refuses"])
def test_a_store_without_conditions_is_for_one_run_that_says_so(
    bucket: S3Server, source: Path, kind: str
) -> None:
    with S3Proxy(bucket.port) as proxy:
        if kind == "ignores":
            proxy.stripped = CONDITIONS
        else:
            proxy.answers = dict.fromkeys(CONDITIONS, (501, NOT_IMPLEMENTED))
        uri = proxy.uri(f"bucket/unconditional-{kind}")
        with pytest.raises(OutRefusedError, match="--set.*output.lock=off.*QA0508"):
            run(request(source, uri))
        assert names(as_path(uri)) == []
        run({**request(source, uri), "output.lock": False})
        assert scores(uri).num_rows == N_ROWS


@pytest.mark.parametrize("pattern", ["*.parquet", "**/*.parquet", "*/*.parquet", "**"])
def test_a_glob_takes_the_same_files_in_a_bucket_as_in_a_folder(
    bucket: S3Server, tmp_path: Path, pattern: str
) -> None:
    """A bucket's ``*`` took the files of all folders below, and its ``**`` none of the first."""
    for name in ("a.parquet", "old/b.parquet", "old/.part/c.parquet"):
        bucket.put(rows(1), f"bucket/globs/{name}")
        write_parquet(tmp_path / name, rows(1))
    here, there = (
        [file.relative for file in find_inputs([given])[0]]
        for given in (str(tmp_path / pattern), bucket.uri(f"bucket/globs/{pattern}"))
    )
    assert here == there


@pytest.mark.parametrize("folder", ["bucket/globs/nowhere", "no-such-bucket"])
def test_a_glob_of_no_folder_is_a_bad_request(bucket: S3Server, folder: str) -> None:
    """It looked like an outage, which another try may mend."""
    bucket.put(rows(1), "bucket/globs/a.parquet")
    with pytest.raises(InputError, match=f"{folder}/.*{folder}.*QA0301"):
        find_inputs([bucket.uri(f"{folder}/*.parquet")])


def test_out_among_the_input_is_refused(bucket: S3Server) -> None:
    given = bucket.put(rows(), "bucket/data/input.parquet").replace("/input.parquet", "")
    for out in ("s3://bucket/data", "s3://bucket/data/out", bucket.uri("bucket/data/out")):
        config = load_config(
            overrides=request(Path("x"), Path("y")) | {"input.paths": [given], "output.path": out}
        )
        with pytest.raises(ConfigError, match="s3://bucket/data.*QA0109"):
            read_inputs(config)
    pattern = bucket.uri("bucket/data/**/*.parquet")
    asked = request(Path("x"), Path("y")) | {"input.paths": [pattern]}
    read_inputs(load_config(overrides=asked | {"output.path": "s3://bucket/elsewhere"}))
    with pytest.raises(ConfigError, match="s3://bucket/data/.*QA0109"):
        read_inputs(load_config(overrides=asked | {"output.path": "s3://bucket/data/out"}))


def test_out_among_the_input_is_refused_however_it_is_written(tmp_path: Path) -> None:
    """Its own scores would be rows of its next run."""
    write_parquet(tmp_path / "input.parquet", rows())
    for given, out in {
        f"file://{tmp_path}": tmp_path / "out",
        str(tmp_path): f"file://{tmp_path}/out",
        "s3://bucket//data/": "s3://bucket/data/out",
        "s3://bucket/da%74a": "s3://bucket/data//out",
    }.items():
        config = load_config(
            overrides=request(Path("x"), Path("y"))
            | {"input.paths": [given], "output.path": str(out)}
        )
        with pytest.raises(ConfigError, match="QA0109"):
            read_inputs(config)


def test_keys_are_in_nothing_that_a_run_writes_or_sends(
    uri: str, source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secrets = {
        "AWS_ACCESS_KEY_ID": "AKIAQAEVALTESTS12345",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-forty-signs-that-nobody-has",
        "AWS_SESSION_TOKEN": "a-session-token-that-nobody-has",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    sent: list[bytes] = []

    class Watching(Watched):
        def begin(self, sight: Sight) -> None:
            sent.append(pickle.dumps(sight))

    config = load_config(overrides=request(source, f"{uri}&"))  # Not opened with other keys yet.
    job = make_job(config, read_inputs(config), device="cpu")
    sent.append(pickle.dumps((config, job.files, job.run, job.store.out)))
    said: list[str] = []
    run_job(job, Watching(0, lambda: None), say=said.append)
    out = as_path(uri)
    written = [(out / name).read_bytes() for name in names(out)]
    printed = [text.encode() for text in (*capfd.readouterr(), *said)]
    assert len(written) > 12 and len(sent) == 2
    for secret in secrets.values():
        assert not [own for own in (*written, *sent, *printed) if secret.encode() in own]


def score(*words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "qaeval.cli",
        "score",
        *words,
        "--column",
        "references=reference",
    ]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, env=os.environ, check=False
    )


@pytest.mark.slow
def test_the_command_says_what_is_wrong_with_out(bucket: S3Server, source: Path) -> None:
    for out, message in {
        bucket.uri("nowhere/out"): "there is no bucket s3://nowhere",
        "s3://bucket/out?regoin=x": "did you mean 'region'",
    }.items():
        done = score(str(source), "--metrics", "f1", "--local", "--out", out)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.ray
def test_actors_open_out_by_its_uri(uri: str, source: Path, tmp_path: Path) -> None:
    words = (str(source), "--metrics", "f1", "--rows-per-shard", "8", "--out", uri)
    done = score(*words, "--set", "cluster.actors=2", "--set", "cluster.cpus_per_actor=1")
    assert done.returncode == 0, done.stderr
    assert f"scores: {as_path(uri) / 'scores'}" in done.stdout
    assert is_as_local(uri, source, tmp_path / "out")


def test_replies_lie_below_out_or_where_a_uri_says(uri: str, source: Path, tmp_path: Path) -> None:
    asking = {
        **request(source, uri),
        "metrics.naco.metric": "naco",
        "naco.base_url": "http://127.0.0.1:9/v1",
        "naco.model": "m",
        "input.columns.context": "reference",
        "input.columns.question": "id",
        "input.columns.answer": "candidate",
        "naco.expected_complexity": 2,
        "naco.requests_per_minute": 60,
        "naco.tokens_per_minute": 10_000,
    }
    for given, folder in {
        None: as_path(uri) / "journal",
        str(tmp_path / "j"): as_path(tmp_path / "j"),
        f"{uri}&": as_path(f"{uri}&"),
    }.items():
        config = load_config(overrides={**asking, "naco.journal_path": given})
        families = make_job(config, read_inputs(config), device="cpu").run.families
        assert [own.journal_folder for own in families if own.journal_folder] == [folder]
    config = load_config(overrides={**asking, "naco.journal_path": "s4://bucket/journal"})
    with pytest.raises(ConfigError, match="s4://bucket.*QA0303"):
        make_job(config, read_inputs(config), device="cpu")
    assert not names(as_path(uri)), "nothing is written before the run"


def test_a_journal_that_cannot_be_opened_ends_its_family_alone(
    bucket: S3Server, tmp_path: Path
) -> None:
    with LlmServer(latency_s=0.002) as server:
        asked = naco_jobs.settings(
            server, tmp_path, naco_jobs.many(8), naco__journal_path=bucket.uri("nowhere/j")
        )
        both = {"metrics.naco.metric": "naco", "metrics.f1.metric": "f1"}
        outcome, said = run({**asked, **both, "input.columns.references": "answer"})
        assert server.stats()["n_calls"] == 0
    assert len(outcome.stopped) == 1
    assert any("there is no bucket s3://nowhere" in line for line in said)
    assert outcome.report["instances"]["f1"]["scored"] == 8
    assert not (tmp_path / "out" / "_SUCCESS").exists()
