"""A server that sends whatever bytes a test gives it, over real sockets, to whoever asks.

with HostileServer(lambda asked: [response(completion("Yes."))]) as server:
    ... server.base_url ...
    print(server.asked[0].headers["authorization"])
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

MB = 1 << 20


@dataclass(frozen=True)
class Asked:
    """One request as it came: its first line, headers by lower-case name, and body."""

    line: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def sentence(self) -> str:
        """What the last message says."""
        return str(json.loads(self.body)["messages"][-1]["content"])


def response(
    content: bytes | Mapping[str, Any], *, status: str = "200 OK", **headers: str
) -> bytes:
    """Return a response with a body of bytes or JSON; names of headers have _ for -."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    given = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


def endless(status: str = "200 OK") -> Iterable[bytes]:
    """Yield a response of 10 GB, which no test reads to its end."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {10 << 30}\r\n\r\n"
    yield head.encode() + b'{"choices": [{"message": {"content": "'
    part = b"x" * MB
    for _ in range(10 << 10):
        yield part


def completion(
    text: str, *, usage: object = None, finish_reason: object = "stop"
) -> dict[str, Any]:
    """Return the body of a chat completion."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": usage}


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128  # Of five, the kernel breaks some where more callers come at once.


class HostileServer:
    """A server in a thread of the test; ``answer`` returns the parts of what is sent back."""

    def __init__(
        self,
        answer: Callable[[Asked], Iterable[bytes]],
        *,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.asked: list[Asked] = []
        server = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                # A client that has read enough closes; so does one that trusts nobody here.
                with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                    connection = self.request
                    if context is not None:
                        connection = context.wrap_socket(connection, server_side=True)
                    stack.enter_context(connection)
                    asked = _read(stack.enter_context(connection.makefile("rb")))
                    if asked is not None:
                        server.asked.append(asked)
                        for part in answer(asked):
                            connection.sendall(part)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._scheme = "http" if context is None else "https"

    @property
    def base_url(self) -> str:
        """What a client is given."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _read(stream: Any) -> Asked | None:
    line = stream.readline().decode("latin-1").strip()
    headers: dict[str, str] = {}
    while (text := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", 0)))
    return Asked(line, headers, body) if line else None
