"""A server of datasets that answers as the Hugging Face Hub does, where files are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(size).decode()
        place = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {place}")
        api, resolve = f"/api/datasets/{self.server.name}", f"/datasets/{self.server.name}/resolve/"
        if place == api or place.startswith(f"{api}/revision/"):
            self._say({"_id": "1", "id": self.server.name, "sha": _COMMIT, "siblings": []})
        elif place.startswith(f"{api}/tree/"):
            folder = place.removeprefix(f"{api}/tree/").partition("/")[2]
            self._say(self.server.tree(folder))
        elif place.startswith(f"{api}/paths-info/"):
            asked = json.loads(body) if body.startswith("{") else parse_qs(body)
            self._say([own for path in asked["paths"] for own in self.server.entries(path)])
        elif place.startswith(resolve):
            self._file(place.removeprefix(resolve).partition("/")[2])
        else:
            self._say({"error": "Repository not found"}, status=404, code="RepoNotFound")

    def _say(self, content: object, *, status: int = 200, code: str = "") -> None:
        headers = {"content-type": "application/json", **({"x-error-code": code} if code else {})}
        self._send(json.dumps(content).encode(), status, headers)

    def _file(self, path: str) -> None:
        content = self.server.files.get(path)
        if content is None:
            self._say({"error": "Entry not found"}, status=404, code="EntryNotFound")
            return
        etag = {"etag": f'"{_sum(content)}"', "x-repo-commit": _COMMIT, "accept-ranges": "bytes"}
        asked = self.headers.get("range")
        if asked is None:
            self._send(content, 200, etag)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(content)) + 1, len(content))
        etag["content-range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(content[start:stop], 206, etag)

    def _send(self, content: bytes, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.files = name, dict(files)
        self.asked: list[str] = []

    def entries(self, path: str) -> list[dict[str, object]]:
        """Return what a file or folder is, as the hub describes it."""
        if path in self.files:
            content = self.files[path]
            return [{"type": "file", "path": path, "size": len(content), "oid": _sum(content)}]
        is_folder = any(name.startswith(f"{path}/") for name in self.files)
        return [{"type": "directory", "path": path, "oid": "0"}] if is_folder else []

    def tree(self, folder: str) -> list[dict[str, object]]:
        """Return all that is below a folder."""
        below = [name for name in self.files if not folder or name.startswith(f"{folder}/")]
        folders = {
            "/".join(name.split("/")[:n]) for name in below for n in range(1, name.count("/") + 1)
        }
        kept = [own for own in sorted(folders) if own.startswith(folder) and own != folder]
        return [own for path in [*kept, *below] for own in self.entries(path)]


def _sum(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def hub_of(name: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve a dataset; yield the endpoint and a list that gets what is asked."""
    server = _Server(name, files)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
