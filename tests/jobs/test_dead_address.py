"""A cluster that is gone, or an address of something else: one line that says whence it came."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers import short_sample, write_parquet
from qaeval.cli import app
from qaeval.on_ray import cluster
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import RunError

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is being started is waited for; here none is."""
    monkeypatch.setattr(cluster, "_ANSWER_S", 1.0)
    monkeypatch.setattr(cluster, "_DOOR_TIMEOUT_S", 1.0)


@contextmanager
def listener(*, says: bytes = b"") -> Iterator[str]:
    """Listen at a port as no Ray does, or in silence; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                taken.append(connection)
                if says:
                    connection.sendall(says)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


@contextmanager
def nobody(prefix: str = "") -> Iterator[str]:
    """Yield an address at which nobody listens, and nobody else will while it lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"{prefix}127.0.0.1:{bound.getsockname()[1]}"


def connect(address: str | None) -> None:
    with cluster.connected(ClusterSection(address=address)):
        pass


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (nobody, "refused"),
        (partial(nobody, "ray://"), "refused"),
        (listener, "not Ray, or hangs"),
        (partial(listener, says=b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not Ray, or hangs"),
    ],
    ids=["a closed port", "a closed port of a client", "silence", "another server"],
)
@pytest.mark.parametrize("source", ["RAY_ADDRESS", "cluster.address"])
def test_an_address_without_a_cluster_is_one_line(
    where: Callable[[], AbstractContextManager[str]],
    why: str,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray itself goes on trying for ten minutes and says nothing."""
    with where() as address:
        given = None if source == "RAY_ADDRESS" else address
        monkeypatch.setenv("RAY_ADDRESS", address if given is None else "127.0.0.1:1")
        with pytest.raises(RunError, match=f"{source}.*QA0501") as raised:
            connect(given)
    assert address in str(raised.value) and why in str(raised.value)
    assert "\n" not in str(raised.value) and "--local" in str(raised.value)


def test_scoring_through_a_client_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Data ended there in an AttributeError of Ray's own."""
    rows = write_parquet(tmp_path / "rows.parquet", short_sample(4))
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
    words = ["score", str(rows), "--out", str(tmp_path / "out"), "--metrics", "f1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "ray://127.0.0.1:1 (from RAY_ADDRESS)" in done.output and "[QA0501]" in done.output
    assert "ray job submit" in done.output
    assert not (tmp_path / "out").exists()
    assert CliRunner().invoke(app, [*words, "--local"]).exit_code == 0


def test_a_name_that_nobody_knows_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RunError, match="no-such-head.invalid:6379.*QA0501"):
        connect("no-such-head.invalid:6379")
    assert "RAY_ADDRESS" not in os.environ


@pytest.mark.parametrize(
    "given",
    [
        " ", "head", "head:", ":6379", "head:port", "head:6379:7", "head:99999", "a b:6379",
        "http://head:8265", "ray://head", "ray://head:10001/x", "ray://", "local", "Auto",
        "redis:password@head:6379",
    ],
)  # fmt: skip
@pytest.mark.parametrize("source", ["RAY_ADDRESS", "cluster.address"])
def test_what_is_no_address_is_refused_by_name(
    source: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray was given whatever it was, and some of it hung."""
    monkeypatch.setenv("RAY_ADDRESS", given)
    with pytest.raises(RunError, match=f"{source}.*Ray.*QA0501") as raised:
        connect(given if source == "cluster.address" else None)
    assert repr(given) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("around", ["{} ", " {}", "{}\n", "\t{}\r\n"])
def test_blanks_around_an_address_are_not_of_it(
    around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one behind the port nobody looked whether anybody answers."""
    with nobody() as address:
        monkeypatch.setenv("RAY_ADDRESS", around.format(address))
        with pytest.raises(RunError, match=f"{address}.*RAY_ADDRESS..*QA0501"):
            connect(None)


@pytest.mark.parametrize("source", ["RAY_ADDRESS", "cluster.address"])
def test_what_ray_itself_says_comes_with_the_source(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**given: object) -> None:
        raise ConnectionError(f"nothing at {given['address']}")

    monkeypatch.setattr(cluster.ray, "init", fail)
    monkeypatch.setenv("RAY_ADDRESS", "auto ")
    with pytest.raises(RunError, match=f"{source}.*QA0501"):
        connect("auto" if source == "cluster.address" else None)
