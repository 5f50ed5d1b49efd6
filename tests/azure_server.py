"""Azurite, a local server that speaks Azure's protocol for blobs, where node is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyarrow import fs

from free_ports import free_ports
from s3_server import _answers
from served_process import ServedProcess

_VERSION = "3.35.0"
# It is got by npm the first time.
START_TIMEOUT_S = 300.0
# The account that every copy of it has, as its documentation says.
ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def has_node() -> bool:
    """Whether it can be run here."""
    return shutil.which("npx") is not None


class AzureServer(ServedProcess):
    """The server; what it holds is gone when it ends."""

    def start(self) -> None:
        """Start the process."""
        self._folder = Path(tempfile.mkdtemp(prefix="az"))
        (self.port,) = free_ports(1)
        with (self._folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    *("npx", "--yes", "--package", f"azurite@{_VERSION}", "azurite-blob"),
                    *("--blobHost", "127.0.0.1", "--blobPort", str(self.port)),
                    *("--location", str(self._folder), "--silent", "--disableTelemetry"),
                    "--skipApiVersionCheck",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.port):
            assert self.process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        """End the process."""
        super().kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def uri(self, path: str) -> str:
        """Return the URI of a path, ``container/key``, with the way to this server."""
        way = f"endpoint_override=127.0.0.1:{self.port}/{ACCOUNT}&scheme=http&account={ACCOUNT}"
        return f"az://{path}?{way}"

    def make_bucket(self, name: str) -> None:
        """Make a container."""
        fs.AzureFileSystem(
            account_name=ACCOUNT,
            account_key=_KEY,
            blob_storage_authority=f"127.0.0.1:{self.port}",
            blob_storage_scheme="http",
            dfs_storage_authority=f"127.0.0.1:{self.port}",
            dfs_storage_scheme="http",
        ).create_dir(name)


@contextlib.contextmanager
def azure_credentials() -> Iterator[None]:
    """Let this process, and those it starts, speak to the server."""
    name = "AZURE_STORAGE_ACCOUNT_KEY"
    before = os.environ.get(name)
    os.environ[name] = _KEY
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
