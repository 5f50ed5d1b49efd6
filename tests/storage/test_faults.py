"""What networks and lesser stores do: lost answers, conflicts, ignored conditions, no way in."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from qaeval_core.errors import ConfigError, InputError, OutRefusedError, StorageError
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.storage import open_uri as opening
from qaeval_core.storage.path import as_path
from qaeval_core.storage.probe import PROBES, probe
from qaeval_core.storage.retry import Outages
from s3_proxy import CONDITIONS, NOT_IMPLEMENTED, NOT_MET, S3Proxy
from s3_server import S3Server

KEY, SECRET, TOKEN = (
    "AKIAQAEVALTESTS12345",
    "a-secret-of-forty-signs-that-nobody-has",
    "a-session-token",
)


@pytest.fixture(scope="module")
def bucket(store: S3Server) -> S3Server:
    store.make_bucket("bucket")
    return store


@pytest.fixture
def proxy(bucket: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(bucket.port) as passing:
        yield passing


def test_a_lost_answer_is_a_success(proxy: S3Proxy) -> None:
    """The client asked again and was refused because of itself."""
    path = as_path(proxy.uri("bucket/lost"))
    proxy.n_swallowed = 1
    tag = path.put_new(b"of this writer")
    assert tag is not None and path.head().tag == tag
    proxy.n_swallowed = 1
    new = path.swap(b"of this writer, later", tag)
    assert new is not None and path.head().tag == new
    proxy.n_swallowed = 1
    path.put(b"whoever was there")
    assert path.read_bytes() == b"whoever was there"
    assert sum(line.startswith("PUT") for line in proxy.seen) == 6


def test_a_lost_answer_is_no_success_where_another_was_there(proxy: S3Proxy) -> None:
    path = as_path(proxy.uri("bucket/taken"))
    tag = path.put_new(b"another's")
    proxy.n_swallowed = 1
    assert path.put_new(b"mine") is None
    proxy.n_swallowed = 1
    assert path.swap(b"mine", '"00000000000000000000000000000000"') is None
    assert path.fetch()[0] == b"another's" and path.head().tag == tag


def test_a_conflict_that_came_to_nothing_is_tried_again(proxy: S3Proxy) -> None:
    """S3 answers 409 where another write is under way, whether or not that one succeeds."""
    path = as_path(proxy.uri("bucket/conflict"))
    proxy.n_conflicts = 2
    tag = path.put_new(b"one")
    assert tag is not None and path.read_bytes() == b"one"
    proxy.n_conflicts = 2
    assert path.swap(b"two", tag) is not None and path.read_bytes() == b"two"


@pytest.mark.parametrize("stripped", [CONDITIONS, CONDITIONS[:1], CONDITIONS[1:]])
def test_a_store_that_ignores_conditions_is_refused(
    proxy: S3Proxy, stripped: tuple[str, ...]
) -> None:
    out = as_path(proxy.uri("bucket/probed"))
    probe(out, Outages())
    proxy.stripped = stripped
    ignored = " and ".join(
        {"if-match": "If-Match", "if-none-match": "If-None-Match"}[s] for s in stripped
    )
    with pytest.raises(OutRefusedError, match=f"{ignored}.*--set.*output.lock=off.*QA0508"):
        probe(out, Outages())
    probe(out, Outages(), is_locked=False)
    assert not list(out.list(is_deep=True))


@pytest.mark.parametrize("header", CONDITIONS)
def test_a_store_that_knows_no_conditions_is_refused_at_once(proxy: S3Proxy, header: str) -> None:
    """Protects from minutes of trying again, and from a way out that is none."""
    out = as_path(proxy.uri(f"bucket/unknown-{header}"))
    proxy.answers = {header: (501, NOT_IMPLEMENTED)}
    with pytest.raises(OutRefusedError, match="output.lock=off.*QA0508"):
        probe(out, Outages(retry_s=60.0))
    probe(out, Outages(), is_locked=False)
    assert not list(out.list(is_deep=True))


@pytest.mark.slow
def test_a_store_that_meets_no_condition_is_refused(proxy: S3Proxy) -> None:
    """Its lease could never be renewed: a live run would be held for dead after two minutes."""
    out = as_path(proxy.uri("bucket/unmet"))
    proxy.answers = {"if-match": (412, NOT_MET)}
    with pytest.raises(OutRefusedError, match="If-Match.*output.lock=off.*QA0508"):
        probe(out, Outages(retry_s=60.0))
    assert not list(out.list(is_deep=True))


def test_the_mark_of_a_folder_is_no_file_of_it(bucket: S3Server) -> None:
    """Consoles, and PyArrow, make an object of no bytes whose name ends with a slash."""
    bucket.make_bucket("bucket/made/here")
    folder = as_path(bucket.uri("bucket/made"))
    assert list((folder / "here").list(is_deep=True)) == []
    (folder / "here" / "a").put(b"a")
    assert [own.name for own in (folder / "here").list(is_deep=True)] == ["a"]
    assert [own.name for own in (folder / "here").list(after="A")] == ["a"]


def test_what_a_killed_process_wrote_to_look_leaves_in_time(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = as_path(bucket.uri("bucket/looked"))
    (out / PROBES / "of-the-dead").put(b"first")
    probe(out, Outages())
    assert [found.name for found in out.list(is_deep=True)] == [f"{PROBES}/of-the-dead"]
    monkeypatch.setattr("qaeval_core.storage.probe.OLD_S", 0.5)
    time.sleep(1.6)  # Some stores have whole seconds.
    probe(out, Outages())
    assert not list(out.list(is_deep=True))


def test_an_outage_is_waited_for_and_then_named(bucket: S3Server) -> None:
    path = as_path(bucket.uri("bucket/out/a"))
    path.put(b"a")
    bucket.door.shut()
    try:
        with pytest.raises(OSError, match="error sending request"):
            path.read_bytes()
        with pytest.raises(StorageError, match="s3://bucket/out.*QA0507"):
            probe(path.parent, Outages(retry_s=0.1))
    finally:
        bucket.door.open()
    assert path.read_bytes() == b"a"


BAD = {
    "ftp://host/x": "ftp://host.*QA0303",
    "s4://host/x": "s4://host.*s3.*QA0303",
    "s3:///x": "QA0303",
    "s3:///x?secret_key=hidden": "QA0303",
    "s3://bucket/run#2": "s3://bucket/run.*%23.*QA0303",
    "s3://[hidden@bucket/x": "s3://....*URI.*QA0303",
    "s3://key:hidden@bucket/run#2": "URI.*QA0303",
    "s3://key:hidden@bucket/x": "s3://bucket.*URI.*QA0303",
    "s3://bucket/x?endpoint_override=https://me:hidden@host": "QA0303",
    "s3://bucket/x?endpoint_override=http://me:hidden@host": "QA0303",
    "s3://bucket/x?endpoint_override=http://[host": "URI.*QA0303",
    "s3://bucket/x?secret_key=hidden": "secret_key.*QA0303",
    "s3://bucket/x?regoin=eu": "'region'.*QA0303",
    "s3://bucket/x?endpoint_override=10.1.2.3:9000&scheme=http": "10.1.2.3:9000.*QA0303",
    "s3://bucket/x?endpoint_override=http://127.0.0.1.host": "127.0.0.1.host.*QA0303",
}


@pytest.mark.parametrize(("uri", "message"), BAD.items(), ids=BAD)
def test_a_uri_that_cannot_be_is_a_bad_request(uri: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        as_path(uri)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:hidden@bucket/x?region=us-east-1",
        "s3://bucket/x?secret_key=hidden",
        "s3://bucket/x?endpoint_override=http://me:hidden@127.0.0.1:9",
        "az://bucket/x?secret_key=hidden",
    ],
)
def test_an_input_with_a_secret_is_refused_and_does_not_show_it(uri: str) -> None:
    with pytest.raises(InputError, match="QA0303|QA0302") as refused:
        find_inputs([uri])
    assert "hidden" not in str(refused.value)


def test_plain_http_goes_where_the_environment_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "s3://bucket/x?endpoint_override=storage.internal:9000&scheme=http"
    monkeypatch.setenv(opening.ALLOW_HTTP, "1")
    assert str(as_path(uri)) == uri
    monkeypatch.delenv(opening.ALLOW_HTTP)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other.internal")
    with pytest.raises(ConfigError, match="QA0303"):
        as_path("s3://bucket-of-the-environment/x")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'qaeval-bulk\[cloud\]'.*QA0004"):
        as_path("s3://some-bucket/x")


def test_no_bucket_and_no_credentials_refuse_out(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(OutRefusedError, match="s3://nowhere.*QA0508"):
        probe(as_path(bucket.uri("nowhere/x")), Outages())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Who asks a machine for its role finds nobody there.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")
    with pytest.raises(OutRefusedError, match="s3://bucket.*QA0508"):
        probe(as_path(bucket.uri("bucket/x") + "&"), Outages())


def test_credentials_of_a_profile_are_used(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".aws").mkdir()
    text = f"[mine]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / ".aws" / "credentials").write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = as_path(bucket.uri("bucket/profile") + "&&")
    path.put(b"by a profile")
    assert path.read_bytes() == b"by a profile" and SECRET.encode() not in pickle.dumps(path)


def test_a_profile_that_is_none_is_a_bad_request(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[mine]\naws_access_key_id = {KEY}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for profile in ("other", "mine"):  # Not there, and half there.
        monkeypatch.setenv("AWS_PROFILE", profile)
        with pytest.raises(ConfigError, match="AWS.*QA0517") as refused:
            as_path(bucket.uri("bucket/profile") + "&&&")
        assert KEY not in str(refused.value)


def test_keys_are_in_no_message_and_no_pickle(
    proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG)
    path = as_path(proxy.uri("bucket/secrets/a"))
    path.put(b"a")
    said = [pickle.dumps(path).decode("latin-1"), str(path), repr(path)]
    # As S3 answers, and worse.
    proxy.refusal = (
        f"<Error><Code>InvalidAccessKeyId</Code><Message>no key {KEY} with {TOKEN}</Message>"
        f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId><Token-0>{TOKEN}</Token-0></Error>"
    )
    for action in (
        path.read_bytes,
        path.delete,
        partial(path.put, b"b"),
        partial(path.put_new, b"b"),
        lambda: list(path.parent.list()),
        lambda: probe(path.parent, Outages()),
    ):
        with pytest.raises((OSError, OutRefusedError), match="InvalidAccessKeyId|403") as refused:
            action()
        said += [str(refused.value), repr(refused.value)]
    said += [record.getMessage() for record in caplog.records]
    assert len(said) >= 15
    assert [text for text in said for secret in given.values() if secret in text] == []
    assert KEY in os.environ["AWS_ACCESS_KEY_ID"]


def add(path: str, n_times: int) -> None:
    counter = as_path(path)
    for _ in range(n_times):
        while True:
            content, found = counter.fetch()
            if counter.swap(f"{int(content) + 1}".encode(), found.tag) is not None:
                break


@pytest.mark.slow
def test_swaps_of_processes_lose_nothing(tmp_path: Path) -> None:
    """Threads share their process's locks; a disk's swaps are between processes."""
    path = as_path(tmp_path / "counter")
    path.put(b"0")
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(add, [str(path)] * 3, [40] * 3))
    assert path.read_bytes() == b"120" and [own.name for own in tmp_path.iterdir()] == ["counter"]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_input_goes_no_other_way_than_output(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyArrow's client opened what an OUT was refused for."""
    monkeypatch.delenv(opening.ALLOW_HTTP, raising=False)
    uri = f"{scheme}://bucket/x.parquet?endpoint_override=10.1.2.3:9000&scheme=http"
    with pytest.raises(InputError, match=r"10\.1\.2\.3:9000.*QA0303"):
        find_inputs([uri])
    if scheme == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other.internal")
        with pytest.raises(InputError, match="other.internal.*QA0303"):
            find_inputs(["s3://bucket/x.parquet"])
