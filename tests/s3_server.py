"""A local server that speaks S3, behind a door that tests open and close: stores have outages."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from free_ports import free_ports
from served_process import ServedProcess

START_TIMEOUT_S = 30.0


class S3Server(ServedProcess):
    """The server; what it holds is gone when it ends.

    ``port`` is the door's: a client of it hears nothing while the door is closed.
    """

    def start(self) -> None:
        """Start the process and open the door."""
        self._folder = Path(tempfile.mkdtemp(prefix="s3"))
        (self._server_port,) = free_ports(1)
        with (self._folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "BIND_HOST": "127.0.0.1",
                    "GATEWAY_PORT": str(self._server_port),
                    "SERVICES": "s3",
                    "IOT_MTLS_ENABLED": "0",
                },
                cwd=self._folder,
                start_new_session=True,
            )
        self._wait()

    def _command(self) -> list[str | Path]:
        return [Path(sys.executable).with_name("ministack")]

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self._server_port):
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.05)
        self.door = Door(self._server_port)
        self.port = self.door.port

    def kill(self) -> None:
        """End the process, and the door."""
        self.door.close()
        super().kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def uri(self, path: str) -> str:
        """Return the URI of a path, ``bucket/key``, with the way to this server."""
        return f"s3://{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def make_bucket(self, name: str) -> fs.S3FileSystem:
        """Make a bucket; return what reads and writes beside the code under test."""
        filesystem = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self._server_port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        filesystem.create_dir(name)
        return filesystem

    def put(self, table: pa.Table, path: str, **options: object) -> str:
        """Write a table; return its URI."""
        filesystem = self.make_bucket(path.partition("/")[0])
        pq.write_table(table, path, filesystem=filesystem, **options)
        return self.uri(path)


class MotoServer(S3Server):
    """Another one, for a second opinion."""

    def _command(self) -> list[str | Path]:
        program = Path(sys.executable).with_name("moto_server")
        return [program, "-H", "127.0.0.1", "-p", str(self._server_port)]


class Door:
    """Passes connections on to a port while it is open; closed, it resets those it has."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.is_open = True
        self.n_bytes = 0
        self._links: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def shut(self) -> None:
        """Refuse everybody from now on."""
        self.is_open = False
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Let everybody in again."""
        self.is_open = True

    def close(self) -> None:
        """End it."""
        self.shut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client:
            if not self.is_open:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                other = {client: server, server: client}
                for link in other:  # The second half of an answer waited 40 ms for the first's.
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._links |= set(other)
                try:
                    self._pump(other)
                except OSError:
                    pass
                finally:
                    self._links -= set(other)

    def _pump(self, other: dict[socket.socket, socket.socket]) -> None:
        with selectors.DefaultSelector() as waiting:
            for source in other:
                waiting.register(source, selectors.EVENT_READ)
            while self.is_open:
                for source in [key.fileobj for key, _ in waiting.select(0.2)]:
                    content = source.recv(1 << 16)
                    if not content:
                        return
                    self.n_bytes += len(content)
                    other[source].sendall(content)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        return True
    return False


@contextlib.contextmanager
def s3_credentials() -> Iterator[None]:
    """Let this process, and those it starts, speak to the server."""
    given = {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
