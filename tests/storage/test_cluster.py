"""A cluster without a shared file system: jobs on it, over a bucket, and what they give away."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from filter_corpora import files_of, questions
from helpers import REPOSITORY, qaeval
from qaeval_core.storage.path import StoragePath, as_path
from ray_head import BIN, Head, running_head
from s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

N_ROWS = 240
# Drawn anew: this file itself is what a job takes along.
SECRETS = {
    "AWS_ACCESS_KEY_ID": f"AKIA{secrets.token_hex(8).upper()}",
    "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
    "AWS_SESSION_TOKEN": secrets.token_hex(30),
}
FILTER = ("--rules", "none", "--rank-by", "f1", "--near-duplicates", "rouge_l=0.6", "--top-k", "4")


@pytest.fixture(scope="module")
def head(store: S3Server) -> Iterator[Head]:
    """A cluster whose nodes have keys in their environment."""
    store.make_bucket("bucket")
    before = {name: os.environ.get(name) for name in SECRETS}
    os.environ.update(SECRETS)
    try:
        with running_head("token") as running:
            yield running
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for i, own in enumerate((questions(N_ROWS)[:130], questions(N_ROWS)[130:])):
        own.write_parquet(folder / f"part{i}.parquet", row_group_size=20)
    return folder


def submitted(head: Head, verb: str, *words: str | Path) -> str:
    code, log = head.submit("python", "-m", "qaeval.cli", verb, *words)
    assert code == 0, log
    return log


def said_of_jobs(head: Head) -> list[bytes]:
    """Return what the cluster tells of its jobs, in each way."""
    listed = subprocess.run(
        [BIN / "ray", "job", "list", "--address", head.dashboard],
        capture_output=True,
        cwd=REPOSITORY,
        env=head.environment,
        timeout=60,
        check=True,
    )
    return [listed.stdout, listed.stderr, head.jobs().encode()]


def test_jobs_over_a_bucket_do_what_one_process_does_and_give_no_key_away(
    head: Head, store: S3Server, source: Path, tmp_path: Path
) -> None:
    bucket = as_path(store.uri("bucket/cluster"))
    score = (source, "--metrics", "f1,rouge_l", "--column", "references=reference")
    logs = [submitted(head, "score", *score, "--out", str(bucket / "out"))]
    kept = ("--to", str(bucket / "kept"), *FILTER)
    logs.append(submitted(head, "filter", str(bucket / "out"), *kept))
    audit = ("--history", str(bucket / "audits"), "--to", str(bucket / "report"), "--pin")
    logs.append(submitted(head, "audit", str(bucket / "out"), *audit, "--address", head.address))

    wrong = (source, "--metrics", "f1", "--column", "references=refrence")
    place = ("--out", str(bucket / "wrong"))
    code, log = head.submit("python", "-m", "qaeval.cli", "score", *wrong, *place)
    assert code != 0, "a typo would be a job that succeeded and scored nothing"
    assert "no column refrence; did you mean 'reference'?" in log
    assert [name for name in names(bucket / "out") if name.startswith("scores/")]
    assert not names(bucket / "wrong")

    qaeval("score", *score, "--out", tmp_path / "out", "--local")
    qaeval("filter", tmp_path / "out", "--to", tmp_path / "kept", "--local", *FILTER)
    local, own = files_of(tmp_path / "kept"), files_of(bucket / "kept")
    assert own == local and len(own) == 8, "whoever worked, the same bytes"

    written = list(files_of(bucket).values())
    session = [path.read_bytes() for path in head.folder.rglob("*") if path.is_file()]
    assert len(written) > 25 and len(session) > 20
    everywhere = [*written, *session, *said_of_jobs(head), *(log.encode() for log in logs)]
    everywhere += files_of(tmp_path).values()
    for name, secret in SECRETS.items():
        found = [content for content in everywhere if secret.encode() in content]
        assert not found, f"{name} is in {len(found)} places, such as {found[0][:300]!r}"


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_kept_unfinished_and_the_same_command_goes_on(
    head: Head, store: S3Server, source: Path
) -> None:
    """Its lock is of this machine, and its process is dead: nobody waits."""
    bucket = as_path(store.uri("bucket/killed"))
    score = (source, "--metrics", "f1", "--column", "references=reference")
    submitted(head, "score", *score, "--out", str(bucket / "out"))
    words = [BIN / "python", "-m", "qaeval.cli", "filter", str(bucket / "out"), *FILTER]
    words += ["--to", str(bucket / "kept"), "--address", head.address]
    process = subprocess.Popen(
        words, cwd=REPOSITORY, env=head.environment, stdout=subprocess.DEVNULL
    )
    while not [own for own in names(bucket / "kept") if "/ids/" in own]:
        assert process.poll() is None, "it was too quick to be met at work"
    process.kill()
    process.wait()
    assert "_SUCCESS" not in names(bucket / "kept")
    submitted(head, "filter", str(bucket / "out"), "--to", str(bucket / "kept"), *FILTER)
    submitted(head, "filter", str(bucket / "out"), "--to", str(bucket / "whole"), *FILTER)
    assert files_of(bucket / "kept") == files_of(bucket / "whole")


def names(folder: StoragePath) -> list[str]:
    return [found.name for found in folder.list(is_deep=True)]
