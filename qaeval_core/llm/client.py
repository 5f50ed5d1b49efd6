"""Client: one chat completion over HTTP, and what its outcome means.

Messages in; a reply, or a failure that says what to do about it, out. Never raises for what a
server or a network does, never logs, retries nothing: all of that is ``llm.asker``'s.

Why httpx and not the library ``openai``: its own retries would send calls that no governor has
counted, and what is needed here is one POST with its raw status, headers and body. A client for
each connection: with one for 64 of them, each call cost 4.6 ms of CPU, 0.8 ms this way, for httpx
looks at all connections again for every call.

But: what an outcome means and how much of one is read, is in ``llm.responses``.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx

from qaeval_core.errors import ConfigError
from qaeval_core.llm.chat_api import CHAT_APIS, DEFAULT_API
from qaeval_core.llm.key import ApiKey, account_name
from qaeval_core.llm.limits import Message
from qaeval_core.llm.reply_body import ChatReply
from qaeval_core.llm.responses import (
    ACCEPT,
    ChatFailure,
    Received,
    failure_of_error,
    failure_of_fault,
    outcome_of,
    receive,
)
from qaeval_core.llm.waits import Patience

# With the wait before a send (2 s) shorter than what servers keep (uvicorn 5 s): a connection that
# the server closes at the moment of a send is a call of unknown fate.
_KEEP_ALIVE_S = 2.5
_MAX_CONNECT_S = 10.0
# JSON of more bytes is read in a thread: 8 MB take a third of a second.
_MAX_BYTES_AT_ONCE = 64 << 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to ask.

    Parameters
    ----------
    base_url : str
        Up to and without the API's path, such as ``/chat/completions``.
    model : str
        The server's name for the model.
    parameters : mapping
        The rest of a request: ``temperature``, ``top_p``, ``max_tokens``, ...
    timeout_s : float, default 120
        For one call, from send to last byte.
    query : mapping of str to str
        Of the URL of each request.
    header_names : sequence of str
        Further headers that are sent, less those whose values are secrets.
    api : str, default "openai"
        Kind of the server, a key of `chat_api.CHAT_APIS`.

    Raises
    ------
    ConfigError
        If the base URL is none, or holds what could be a secret.
    """

    base_url: str
    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 120.0
    query: Mapping[str, str] = field(default_factory=dict)
    header_names: Sequence[str] = ()
    api: str = DEFAULT_API

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL:
            url = httpx.URL()
        if url.userinfo or url.query or url.fragment:
            # It goes into the journal and into messages.
            raise ConfigError("base_url must not hold a user, a password or a query [QA0601]")
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(
                f"base_url is {self.base_url!r}; it must begin with http:// or https:// [QA0601]"
            )
        if self.max_completion_tokens < 1:
            raise ConfigError(
                "parameters must hold max_tokens; without it the cost of a call is unknown [QA0609]"
            )

    @property
    def max_completion_tokens(self) -> int:
        """The most tokens that a reply can have."""
        parameters = self.parameters
        return int(parameters.get("max_tokens") or parameters.get("max_completion_tokens") or 0)

    def request_key(self, messages: Sequence[Message], *, run_index: int) -> str:
        """Return the name that the journal knows a request to this endpoint by.

        It is 64 hex digits, equal for equal requests alone; how long one is waited for is no part.

        Examples
        --------
        >>> asked = [{"role": "user", "content": "Who?"}]
        >>> endpoint = Endpoint("http://localhost/v1", "m", {"max_tokens": 9}, timeout_s=5.0)
        >>> patient = Endpoint("http://localhost/v1/", "m", {"max_tokens": 9}, timeout_s=50.0)
        >>> endpoint.request_key(asked, run_index=0) == patient.request_key(asked, run_index=0)
        True
        """
        request: dict[str, object] = {
            "base_url": self.base_url.rstrip("/"),
            "model": self.model,
            "parameters": dict(self.parameters),
            "messages": [dict(message) for message in messages],
            "run_index": run_index,
        }
        # Only where they are given: a key is the same name for ever.
        request |= {"query": dict(self.query)} if self.query else {}
        request |= {"headers": list(self.header_names)} if self.header_names else {}
        request |= {"api": self.api} if self.api != DEFAULT_API else {}
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class ChatClient:
    """Asks one endpoint; used inside one event loop.

    Parameters
    ----------
    endpoint : Endpoint
        Where and how to ask.
    key : ApiKey or None
        None sends none.
    proxy : str, optional
        Through which calls go. Variables such as ``HTTPS_PROXY`` are ignored: they differ from
        node to node, and a key goes where the configuration says, and nowhere else.
    patience : Patience, optional
        For how long the server's word is heeded.
    read_key : callable, optional
        Reads the key once more where it is refused: it may have been replaced meanwhile.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: ApiKey | None = None,
        *,
        proxy: str | None = None,
        patience: Patience | None = None,
        read_key: Callable[[], ApiKey | None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._read_key = read_key or (lambda: key)
        self._patience = patience or Patience()
        self._key = key
        self._proxy = proxy
        self._api = CHAT_APIS[endpoint.api]
        self._url = endpoint.base_url.rstrip("/") + self._api.path
        if endpoint.query:
            self._url += f"?{urlencode(endpoint.query)}"
        self._is_open = False
        self._idle: list[httpx.AsyncClient] = []
        self._stale: list[httpx.AsyncClient] = []  # of a key that was refused
        # 8 MB of brackets are 200 MB of lists: one such reply at a time.
        self._reading = asyncio.Lock()

    @functools.cached_property
    def account(self) -> str:
        """Short name of (server, key), of the key that it began with."""
        base_url = self.endpoint.base_url
        return self._key.account(base_url) if self._key else account_name(base_url)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        request_id: str = "",
        before_send: Callable[[], Awaitable[None]] | None = None,
    ) -> ChatReply | ChatFailure:
        """Send one request.

        Parameters
        ----------
        messages : sequence of mapping
            ``role`` and ``content``.
        request_id : str
            Sent along as ``X-Client-Request-Id``, for the server's own logs.
        before_send : callable, optional
            Awaited with the connection at hand, right before the request is written. What it
            raises comes out of here, and nothing was sent. It may take as long as it likes.
        """
        endpoint = self.endpoint
        body = self._api.request(endpoint.model, messages, endpoint.parameters)
        # Escaped: half a surrogate pair in a text is the server's to refuse, not an error here.
        content = json.dumps(body, default=dict).encode("ascii")
        headers = {"X-Client-Request-Id": request_id}
        await self.open()
        key = self._key
        http = self._idle.pop() if self._idle else self._connection()
        refused: list[Exception] = []  # by before_send
        is_whole = False
        try:
            async with asyncio.timeout(None) as limit:
                trace = _trace(before_send, refused, limit=limit, timeout_s=endpoint.timeout_s)
                async with http.stream(
                    "POST", self._url, content=content, headers=headers, extensions={"trace": trace}
                ) as response:
                    received = await receive(response)
            is_whole = True
            outcome = await self._outcome(received)
            if isinstance(outcome, ChatFailure) and outcome.is_of_key and self._has_new_key(key):
                return replace(outcome, kind="retry", end="faulty")
            return outcome
        except (TimeoutError, httpx.HTTPError) as error:
            return failure_of_error(error, url=self._url, timeout_s=endpoint.timeout_s)
        except Exception as error:
            if error in refused:
                raise
            # Whatever a server does to this program is one call's failure.
            return self.failure_of_fault(error)
        finally:
            if is_whole and key is self._key:  # The headers of a connection hold the key.
                self._idle.append(http)
            else:
                # A call that was cut off may leave its connection taken for ever: on a busy
                # machine all later calls, which take the last one used, waited for it in vain.
                await http.aclose()

    def _has_new_key(self, refused: ApiKey | None) -> bool:
        """Whether there is another key than the one that was refused; it is read once more."""
        if refused is self._key:
            try:
                found = self._read_key()
            except ConfigError:
                return False  # The refusal says what is wrong.
            if found is None or refused is None or found.headers == refused.headers:
                return False
            self._key, self._stale = found, [*self._stale, *self._idle]
            self._idle = []
        return True

    async def _outcome(self, received: Received) -> ChatReply | ChatFailure:
        outcome = functools.partial(
            outcome_of,
            received,
            url=self._url,
            model=self.endpoint.model,
            key=self._key,
            completion=self._api.completion,
            max_tokens=self.endpoint.max_completion_tokens,
            patience=self._patience,
        )
        if len(received.content) <= _MAX_BYTES_AT_ONCE:
            return outcome()
        async with self._reading:
            return await asyncio.to_thread(outcome)

    def failure_of_fault(self, error: Exception) -> ChatFailure:
        """Return what an error of this program means: a failure that names it without the key."""
        return failure_of_fault(error, key=self._key)

    async def open(self) -> None:
        """Load what the first call would load: it would be 0.1 to 0.2 s late otherwise."""
        if not self._is_open:
            self._is_open = True
            self._idle.append(self._connection())
            await anyio.sleep(0)  # Imports its half of the event loop.

    async def aclose(self) -> None:
        """Close all connections; none may be in use."""
        for connections in (self._idle, self._stale):
            while connections:
                await connections.pop().aclose()

    def _connection(self) -> httpx.AsyncClient:
        timeout_s = self.endpoint.timeout_s
        key_headers = self._key.headers if self._key else {}
        headers = {"Content-Type": "application/json", **ACCEPT, **key_headers}
        return httpx.AsyncClient(
            headers=headers,
            verify=_tls(),
            proxy=self._proxy,
            trust_env=False,
            timeout=httpx.Timeout(timeout_s, connect=min(_MAX_CONNECT_S, timeout_s)),
            limits=httpx.Limits(max_connections=1, keepalive_expiry=_KEEP_ALIVE_S),
        )


def _trace(
    before_send: Callable[[], Awaitable[None]] | None,
    refused: list[Exception],
    *,
    limit: asyncio.Timeout,
    timeout_s: float,
) -> Callable[[str, Any], Awaitable[None]]:
    """Return what httpx is to call at each step of a request: ``before_send`` stands before one.

    Before ``post`` it would stand too early: on a busy machine, or far from the server, a call
    was sent 0.1 s after it, when its connection had come at last.
    """

    async def step(event: str, _: Any) -> None:
        if event.endswith(".send_request_headers.started"):
            if before_send is not None:
                try:
                    await before_send()
                except Exception as error:
                    refused.append(error)
                    raise
            # That wait is not the server's fault.
            limit.reschedule(asyncio.get_running_loop().time() + timeout_s)

    return step


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # 20 ms
