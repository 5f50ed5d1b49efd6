"""A chat server on loopback that counts, limits and breaks: what the LLM tests talk to.

Real HTTP in a process of its own, so that it can be killed and knows nothing of its callers. It
counts each arrival, charges prompt and ``max_tokens`` at admission over a sliding window, answers
429 above a limit, and spoils replies by seed, or as the model's name says: ``fault:<kind>``,
``fault:<status>``. Replies depend on the prompt alone.

    with LlmServer(folder, requests_per_minute=100, window_s=2.0) as server:
        ... server.base_url ...
        print(server.stats()["max_requests_in_window"])
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import re
import socket
import struct
import subprocess
import sys
import urllib.request
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from served_process import ServedProcess

FAULTS = (
    "error_500",
    "error_503",
    "hang",
    "reset",
    "truncated",
    "short",
    "wrong_schema",
    "unparsable",
    "bad_request",
)
# The server has done the work: it is paid, whatever arrives.
BILLED = frozenset({"ok", "hang", "reset", "truncated", "short", "wrong_schema", "unparsable"})
UNPARSABLE = "I am sorry, but let us talk about the weather instead. It is mild today."


@dataclass(frozen=True)
class ServerSettings:
    """What the server allows and how it misbehaves; shares of admitted calls, by kind of fault."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    window_s: float = 60.0
    faults: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    latency_s: float = 0.01
    hang_s: float = 5.0
    key: str | None = None
    log_path: str | None = None
    port: int = 0
    prompt_usd_per_million: float = 1.0
    completion_usd_per_million: float = 2.0
    # What to reply to a sentence, first to last as its prompt comes again; reminders count alone.
    replies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Prompts with one of these words make the server fail, each time.
    poison: Sequence[str] = ()
    # (from, until, share): in these windows since the first call so much of the limit is allowed;
    # with a share of 0 the server is down: it answers 503, whatever the limit.
    capacity: Sequence[tuple[float, float, float]] = ()
    # Whether 429 says when to come again; for how long 503 does.
    says_when: bool = True
    retry_after_s: float | None = None


def count_prompt_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Return this server's count of a prompt: a word or sign each, and three a message."""
    return sum(3 + len(re.findall(r"\w+|[^\w\s]", message["content"])) for message in messages)


def reply_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the reply to a prompt: the JSON that it names, or as NACo's.

    That is a verdict, one to four steps, and a word of the prompt.
    """
    digest = hashlib.sha256(json.dumps(list(messages), sort_keys=True).encode()).digest()
    if '{"score"' in messages[-1]["content"]:
        return f'In part. {{"score": {digest[1] % 11}}}'
    if digest[0] < 16:
        return "Verdict: not a question; it asks nothing"
    words = re.findall(r"\w+", messages[-1]["content"]) or ["nothing"]
    steps = [f"{n + 1}. The passage says so in part {n + 1}." for n in range(1 + digest[1] % 4)]
    verdict = "unnatural; its grammar is off" if digest[0] < 32 else "natural; it asks one thing"
    answer = words[int.from_bytes(digest[2:6], "big") % len(words)]
    return "\n".join([f"Verdict: {verdict}", "Steps:", *steps, f"Answer: <ans>{answer}</ans>"])


class Window:
    """Arrivals with their tokens, and the most that any window held."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._admitted: deque[tuple[float, int]] = deque()
        self.arrivals: list[tuple[float, int]] = []

    def admit(self, now_s: float, n_tokens: int) -> float | None:
        """Admit an arrival, or return after how long it would be."""
        limits = self._settings
        self.arrivals.append((now_s, n_tokens))
        share = self.capacity(now_s)
        while self._admitted and self._admitted[0][0] <= now_s - limits.window_s:
            self._admitted.popleft()
        n_requests = len(self._admitted) + 1
        n_tokens_sum = sum(tokens for _, tokens in self._admitted) + n_tokens
        most_requests = share * (limits.requests_per_minute or math.inf) if share else math.inf
        if n_requests <= most_requests and n_tokens_sum <= (limits.tokens_per_minute or math.inf):
            self._admitted.append((now_s, n_tokens))
            return None
        oldest_s = self._admitted[0][0] if self._admitted else now_s
        return max(oldest_s + limits.window_s - now_s, 0.001)

    def capacity(self, now_s: float) -> float:
        """Return the share of the limit that is allowed at a time after the first arrival."""
        at = (now_s - self.arrivals[0][0]) / self._settings.window_s
        shares = [share for from_, until, share in self._settings.capacity if from_ <= at < until]
        return shares[0] if shares else 1.0

    def headers(self) -> dict[str, str]:
        """Return what remains, as servers tell it."""
        limits, headers = self._settings, {}
        used = {
            "requests": (limits.requests_per_minute, len(self._admitted)),
            "tokens": (limits.tokens_per_minute, sum(tokens for _, tokens in self._admitted)),
        }
        for name, (limit, in_use) in used.items():
            if limit is not None:
                headers[f"x-ratelimit-limit-{name}"] = str(limit)
                headers[f"x-ratelimit-remaining-{name}"] = str(limit - in_use)
                headers[f"x-ratelimit-reset-{name}"] = f"{limits.window_s / limit * 1000:.0f}ms"
        return headers

    def largest(self, *, without_s: float = 0.0) -> tuple[int, int]:
        """Return the most requests and tokens that arrived in any window, admitted or not.

        Of a window shorter by ``without_s``, if that is given.
        """
        window_s = self._settings.window_s - without_s
        inside: deque[tuple[float, int]] = deque()
        most_requests = most_tokens = n_tokens = 0
        for now_s, tokens in self.arrivals:
            inside.append((now_s, tokens))
            n_tokens += tokens
            while inside[0][0] <= now_s - window_s:
                n_tokens -= inside.popleft()[1]
            most_requests = max(most_requests, len(inside))
            most_tokens = max(most_tokens, n_tokens)
        return most_requests, most_tokens

    def mean_use(self) -> dict[str, float]:
        """Return the share of each limit that was used between first and last arrival."""
        if len(self.arrivals) < 2:
            return {}
        n_windows = (self.arrivals[-1][0] - self.arrivals[0][0]) / self._settings.window_s
        used = {
            "requests": (self._settings.requests_per_minute, len(self.arrivals) - 1),
            "tokens": (
                self._settings.tokens_per_minute,
                sum(tokens for _, tokens in self.arrivals[:-1]),
            ),
        }
        return {name: n / limit / n_windows for name, (limit, n) in used.items() if limit}


class ChatServer:
    """The server's state and its handlers."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.window = Window(settings)
        self.outcomes: Counter[str] = Counter()
        self.requests: dict[str, dict[str, Any]] = {}
        self.billed_usd = 0.0
        self.n_after_ok = 0
        self._n_asked: Counter[str] = Counter()
        self.max_stall_s = 0.0
        self._log_path = Path(settings.log_path) if settings.log_path else None

    async def chat(self, request: Any) -> Any:
        """Answer one chat completion, or misbehave."""
        from aiohttp import web

        now_s = asyncio.get_running_loop().time()
        if (
            self.settings.key
            and request.headers.get("Authorization") != f"Bearer {self.settings.key}"
        ):
            said = request.headers.get("Authorization", "")
            message = f"Incorrect API key provided: {said}"
            return web.json_response({"error": {"message": message}}, status=401)
        body = await request.json()
        n_prompt = count_prompt_tokens(body["messages"])
        n_tokens = n_prompt + int(body.get("max_tokens", 16))
        name = request.headers.get("X-Client-Request-Id") or _digest(body["messages"])
        known = self.requests.setdefault(
            name, {"calls": 0, "ok": 0, "prompt": _digest(body["messages"])}
        )
        wait_s = self.window.admit(now_s, n_tokens)
        outcome = "refused"
        if wait_s is None:
            forced = str(body["model"]).removeprefix("fault:")
            outcome = forced if forced != body["model"] else self._outcome(known)
            if any(word in body["messages"][-1]["content"] for word in self.settings.poison):
                outcome = "error_500"
            if self.window.capacity(now_s) == 0:
                outcome = "error_503"
        self._note(now_s, name=name, n_tokens=n_tokens, outcome=outcome)
        if wait_s is not None:
            headers = {
                "Retry-After": str(math.ceil(wait_s)),
                "retry-after-ms": f"{wait_s * 1000:.0f}",
            }
            headers = self.window.headers() | headers if self.settings.says_when else {}
            error = {"error": {"message": "too many", "code": "rate_limit_exceeded"}}
            return web.json_response(error, status=429, headers=headers)
        text = self._text(body["messages"])
        reply = self._completion(body, text, n_prompt=n_prompt, outcome=outcome)
        if outcome in BILLED:
            self._bill(reply["usage"])
        return await self._send(request, outcome, reply, known)

    def _outcome(self, known: Mapping[str, Any]) -> str:
        """Return ok or a fault, by seed, prompt and attempt: the same in every run of a test."""
        drawn = random.Random(f"{self.settings.seed} {known['prompt']} {known['calls']}").random()
        for fault, share in self.settings.faults.items():
            drawn -= share
            if drawn < 0:
                return fault
        return "ok"

    def _note(self, now_s: float, *, name: str, n_tokens: int, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.requests[name]["calls"] += 1
        self.n_after_ok += self.requests[name]["ok"] > 0
        if self._log_path is not None:
            line = {"t_s": now_s, "request": name, "n_tokens": n_tokens, "outcome": outcome}
            with self._log_path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return what is said to a prompt that came so often before."""
        asked = messages[-1]["content"].rpartition("Sentence:\n")[2]
        for sentence, texts in self.settings.replies.items():
            if asked.split("\n\n")[0] == sentence:
                n_asked = self._n_asked[asked]
                self._n_asked[asked] += 1
                return texts[n_asked % len(texts)]
        return reply_text(messages)

    def _completion(
        self, body: Mapping[str, Any], text: str, *, n_prompt: int, outcome: str
    ) -> dict[str, Any]:
        text = UNPARSABLE if outcome == "unparsable" else text
        n_completion = min(len(text.split()), int(body.get("max_tokens", 16)))
        message = {"role": "assistant", "content": text}
        return {
            "id": "chatcmpl-test",
            "object": "chat.completion",
            "model": body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": n_prompt,
                "completion_tokens": n_completion,
                "total_tokens": n_prompt + n_completion,
            },
        }

    def _bill(self, usage: Mapping[str, int]) -> None:
        self.billed_usd += usage["prompt_tokens"] * self.settings.prompt_usd_per_million / 1e6
        self.billed_usd += (
            usage["completion_tokens"] * self.settings.completion_usd_per_million / 1e6
        )

    async def _send(
        self, request: Any, outcome: str, reply: dict[str, Any], known: dict[str, Any]
    ) -> Any:
        from aiohttp import web

        headers = self.window.headers()
        await asyncio.sleep(self.settings.hang_s if outcome == "hang" else self.settings.latency_s)
        status = {"error_500": "500", "error_503": "503", "bad_request": "400"}.get(
            outcome, outcome
        )
        if status.isdigit():
            said = f"on purpose, {request.headers.get('Authorization')}"
            wait_s = self.settings.retry_after_s if status == "503" else None
            headers = {} if wait_s is None else {"Retry-After": f"{wait_s:g}"}
            return web.json_response(
                {"error": {"message": said}}, status=int(status), headers=headers
            )
        if outcome == "reset":
            # No lingering: the peer gets a reset, not an end.
            connection = request.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
            return web.Response()
        if outcome == "wrong_schema":
            reply = {"result": "fine", "usage": reply["usage"]}
        content = json.dumps(reply).encode()
        if outcome == "truncated":
            content = content[: len(content) // 2]
        if outcome == "short":
            stream = web.StreamResponse(headers={"Content-Length": str(len(content))})
            await stream.prepare(request)
            await stream.write(content[: len(content) // 2])
            request.transport.close()
            return stream
        if outcome in ("ok", "unparsable"):
            known["ok"] += 1
        return web.Response(body=content, content_type="application/json", headers=headers)

    async def stats(self, _: Any) -> Any:
        """Return all counts."""
        from aiohttp import web

        settings = self.settings
        most_requests, most_tokens = self.window.largest()
        # What arrives together was sent so long apart at most; a twentieth is for the callers.
        delay_s = min(self.max_stall_s + settings.window_s / 20, settings.window_s / 2)
        n_requests, n_tokens = self.window.largest(without_s=delay_s)
        return web.json_response(
            {
                "n_calls": len(self.window.arrivals),
                "n_ok": self.outcomes["ok"] + self.outcomes["unparsable"],
                "n_refused": self.outcomes["refused"],
                "n_billed": sum(self.outcomes[outcome] for outcome in BILLED),
                "billed_usd": self.billed_usd,
                "n_after_ok": self.n_after_ok,
                "outcomes": dict(self.outcomes),
                "requests": self.requests,
                "max_requests_in_window": most_requests,
                "max_tokens_in_window": most_tokens,
                "surely_sent_in_window": {"requests": n_requests, "tokens": n_tokens},
                "limits": {
                    "requests": settings.requests_per_minute,
                    "tokens": settings.tokens_per_minute,
                },
                "mean_use": self.window.mean_use(),
                "max_stall_s": self.max_stall_s,
            }
        )

    async def watch_stalls(self) -> None:
        """Note how late the machine lets this process run: arrivals are late by as much."""
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(0.005)
            self.max_stall_s = max(self.max_stall_s, loop.time() - before_s - 0.005)


def _digest(messages: Sequence[Mapping[str, str]]) -> str:
    return hashlib.sha256(json.dumps(list(messages), sort_keys=True).encode()).hexdigest()[:16]


async def serve(settings: ServerSettings) -> None:
    """Serve until standard input ends, which it does when the parent dies; print the port."""
    from aiohttp import web

    server = ChatServer(settings)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_get("/stats", server.stats)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", settings.port, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    stalls = asyncio.create_task(server.watch_stalls())
    await asyncio.to_thread(sys.stdin.read)
    stalls.cancel()
    await runner.cleanup()


class LlmServer(ServedProcess):
    """The server as tests hold it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ServerSettings(**settings)
        self.port = 0

    def start(self) -> None:
        """Start the process; it prints its port."""
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(asdict(self.settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stats(self) -> dict[str, Any]:
        """Return the server's counts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=10) as reply:
            return json.load(reply)

    def log(self) -> list[dict[str, Any]]:
        """Return all arrivals in order, from the log file."""
        assert self.settings.log_path is not None
        return [json.loads(line) for line in Path(self.settings.log_path).read_text().splitlines()]

    def admitted(self) -> Counter[str]:
        """Return how often each request was admitted.

        On a machine that stands still a call may come late, and be refused: that one cost nothing.
        """
        return Counter(line["request"] for line in self.log() if line["outcome"] != "refused")


if __name__ == "__main__":
    asyncio.run(serve(ServerSettings(**json.loads(sys.argv[1]))))
