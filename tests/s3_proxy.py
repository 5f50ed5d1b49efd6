"""A proxy before an S3 server that does to requests what networks and lesser stores do."""

from __future__ import annotations

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

CONDITIONS = ("if-none-match", "if-match")
NOT_IMPLEMENTED = b"<Error><Code>NotImplemented</Code><Message>no such header</Message></Error>"
NOT_MET = b"<Error><Code>PreconditionFailed</Code><Message>not met</Message></Error>"
_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>"


class _Handler(BaseHTTPRequestHandler):
    proxy: S3Proxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.proxy.seen.append(f"{self.command} {self.path}")
        if self.proxy.refusal is not None:
            return self.answer(403, [], self.proxy.refusal.encode())
        time.sleep(self.proxy.delay_s)
        is_write = self.command == "PUT"
        for header, (status, told) in self.proxy.answers.items():
            if is_write and header in self.headers:
                return self.answer(status, [], told)
        if is_write and self.proxy.counts_down("n_conflicts"):
            return self.answer(409, [], _CONFLICT)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in self.proxy.stripped}
        server = http.client.HTTPConnection("127.0.0.1", self.proxy.target, timeout=30)
        server.request(self.command, self.path, body, kept)
        done = server.getresponse()
        content = done.read()
        server.close()
        if is_write and self.proxy.counts_down("n_swallowed"):
            self.close_connection = True
            return None
        return self.answer(done.status, done.getheaders(), content)

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815


class S3Proxy:
    """Passes requests on to a port of this machine.

    Attributes
    ----------
    n_swallowed : int
        How many of the next writes are done and never answered.
    n_conflicts : int
        How many of the next writes are answered 409 and not done.
    delay_s : float
        How long each request takes more.
    stripped : tuple of str
        Headers that are not passed on.
    answers : dict
        Status and content that writes with a header are answered, which are not done.
    refusal : str, optional
        What all requests are answered, with status 403.
    seen : list of str
        Methods and paths, in order.
    """

    def __init__(self, target: int) -> None:
        self.n_swallowed = self.n_conflicts = 0
        self.delay_s = 0.0
        self.refusal: str | None = None
        self.stripped: tuple[str, ...] = ()
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.seen: list[str] = []
        self.target = target
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def counts_down(self, name: str) -> bool:
        with self._lock:
            left = getattr(self, name)
            setattr(self, name, max(left - 1, 0))
        return left > 0

    def uri(self, path: str) -> str:
        """Return the URI of a path, ``bucket/key``, with the way through this proxy."""
        return f"s3://{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
