"""The client: what each misbehavior of a real server means, and that a key shows nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_server import LlmServer, count_prompt_tokens
from qaeval_core.errors import ConfigError
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.key import ApiKey
from qaeval_core.llm.reply_body import ChatReply, whole_text
from qaeval_core.llm.responses import ChatFailure, Received, outcome_of
from qaeval_core.llm.waits import Patience, duration_s, exhausted_s, retry_after_s, waits_of

KEY = "sk-test-7d0c5a1e94b24f0f8a"
MESSAGES = [{"role": "user", "content": "Who built the bridge over the Tave?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    """A server that asks for a key and does what the model's name says."""
    with LlmServer(key=KEY, hang_s=30.0) as running:
        yield running


def ask(
    server: LlmServer, *, model: str = "m", key: str | None = KEY, n_calls: int = 1
) -> list[ChatReply | ChatFailure]:
    """Send calls, all at once, on one client."""

    async def run() -> list[ChatReply | ChatFailure]:
        endpoint = Endpoint(server.base_url, model, {"max_tokens": 100}, timeout_s=2.0)
        client = ChatClient(endpoint, ApiKey(key, source="the file k") if key else None)
        calls = [client.complete(MESSAGES) for _ in range(n_calls)]
        outcomes = await asyncio.gather(*calls)
        await client.aclose()
        return list(outcomes)

    return asyncio.run(run())


def test_a_key_that_was_replaced_is_read_once_more(server: LlmServer, tmp_path: Path) -> None:
    """A key that is rotated in mid-run ended the run, though its file held the new one."""
    path = tmp_path / "key"

    async def run(after: str) -> tuple[list[ChatReply | ChatFailure], int]:
        n_read = 0

        def read_key() -> ApiKey | None:
            nonlocal n_read
            n_read += 1
            return ApiKey.read(path=path)

        path.write_text("sk-test-of-last-week-0123456789")
        path.chmod(0o600)
        endpoint = Endpoint(server.base_url, "m", {"max_tokens": 100}, timeout_s=5.0)
        client = ChatClient(endpoint, read_key(), read_key=read_key)
        account = client.account
        path.write_text(after)
        outcomes = list(await asyncio.gather(*(client.complete(MESSAGES) for _ in range(8))))
        outcomes.append(await client.complete(MESSAGES))
        await client.aclose()
        assert client.account == account  # Limits are those of the account that it began with.
        return outcomes, n_read

    (*first, last), n_read = asyncio.run(run(KEY))
    assert isinstance(last, ChatReply) and n_read == 2
    failures = [own for own in first if isinstance(own, ChatFailure)]
    assert failures and all(own.kind == "retry" and not own.may_be_billed for own in failures)
    outcomes, n_read = asyncio.run(run("sk-test-of-last-week-0123456789"))
    assert all(isinstance(own, ChatFailure) and own.kind == "fatal_family" for own in outcomes)
    outcomes, _ = asyncio.run(run("sk-test-another-wrong-one-01234"))
    *_, last = outcomes
    assert isinstance(last, ChatFailure) and last.kind == "fatal_family"


def test_calls_that_were_cut_off_take_no_connection_from_later_ones(server: LlmServer) -> None:
    """Replies and time-outs come in one turn of a loop that stood still, as on a busy machine."""

    async def run() -> tuple[list[ChatReply | ChatFailure], list[ChatReply | ChatFailure]]:
        endpoint = {"base_url": server.base_url, "parameters": {"max_tokens": 100}}
        impatient = Endpoint(model="m", **endpoint, timeout_s=0.3)
        client = ChatClient(impatient, ApiKey(KEY, source="the file k"))

        def stall_after(delay_s: float) -> Callable[[], Awaitable[None]]:
            async def before_send() -> None:
                asyncio.get_running_loop().call_later(delay_s, time.sleep, 0.4)

            return before_send

        first: list[ChatReply | ChatFailure] = []
        for n in range(10):
            # At first all wait for their reply; in later rounds some have it and are about to end.
            stall = stall_after(0.004 * n)
            hooks = [stall if call == 16 else None for call in range(32)]
            calls = [client.complete(MESSAGES, before_send=hook) for hook in hooks]
            first += await asyncio.gather(*calls)
        client.endpoint = Endpoint(model="m", **endpoint, timeout_s=2.0)
        later = [await client.complete(MESSAGES) for _ in range(16)]
        await client.aclose()
        return first, later

    first, later = asyncio.run(run())
    assert any(isinstance(outcome, ChatFailure) for outcome in first)
    # Some may be late by themselves; none came where the last connection used was taken.
    assert sum(isinstance(outcome, ChatReply) for outcome in later) >= len(later) / 2


def test_a_reply_comes_with_its_tokens(server: LlmServer) -> None:
    """Money is counted from them."""
    (reply,) = ask(server)
    assert isinstance(reply, ChatReply)
    assert reply.text.startswith("Verdict:")
    assert reply.n_prompt_tokens == count_prompt_tokens(MESSAGES)
    assert reply.n_completion_tokens == len(reply.text.split())


@pytest.mark.parametrize(
    ("fault", "kind", "reason", "may_be_billed"),
    [
        ("hang", "retry", "llm_timeout", True),
        ("reset", "retry", "llm_broken_connection", True),
        ("short", "retry", "llm_broken_connection", True),
        ("truncated", "retry", "llm_truncated_reply", True),
        ("wrong_schema", "retry", "llm_wrong_schema", True),
        ("408", "retry", "llm_timeout", True),
        ("409", "retry", "llm_server_error", False),
        ("429", "retry", "llm_rate_limited", False),
        ("500", "retry", "llm_server_error", False),
        ("502", "retry", "llm_server_error", False),
        ("503", "retry", "llm_overloaded", False),
        ("504", "retry", "llm_timeout", True),
        ("307", "fatal_family", "llm_endpoint_refuses", False),
        ("402", "fatal_family", "llm_endpoint_refuses", False),
        ("403", "fatal_family", "llm_endpoint_refuses", False),
        ("404", "fatal_family", "llm_endpoint_refuses", False),
        ("400", "row_undefined", "llm_bad_request", False),
        ("413", "row_undefined", "llm_bad_request", False),
        ("422", "row_undefined", "llm_bad_request", False),
    ],
)
def test_what_a_failure_means(
    server: LlmServer, fault: str, kind: str, reason: str, may_be_billed: bool
) -> None:
    """Protects from rows lost to a fault that passes, and from retries that never help."""
    (outcome,) = ask(server, model=f"fault:{fault}")
    assert isinstance(outcome, ChatFailure)
    assert (outcome.kind, outcome.reason) == (kind, reason)
    assert outcome.may_be_billed == may_be_billed
    assert outcome.is_refusal == (fault in ("429", "503"))
    assert server.base_url in outcome.message


def test_a_connection_is_as_good_as_new_after_a_fault(server: LlmServer) -> None:
    """A broken connection that is used again fails the next call, which had done nothing wrong."""

    async def run() -> list[bool]:
        endpoint = {"base_url": server.base_url, "parameters": {"max_tokens": 9}, "timeout_s": 2.0}
        key = ApiKey(KEY, source="here")
        client = ChatClient(Endpoint(model="m", **endpoint), key)
        is_reply = []
        for fault in ("reset", "short", "truncated", "hang"):
            client.endpoint = Endpoint(model=f"fault:{fault}", **endpoint)
            is_reply.append(isinstance(await client.complete(MESSAGES), ChatReply))
            client.endpoint = Endpoint(model="m", **endpoint)
            is_reply.append(isinstance(await client.complete(MESSAGES), ChatReply))
        await client.aclose()
        return is_reply

    assert asyncio.run(run()) == [False, True] * 4


def test_nothing_is_sent_before_the_gate_opens(server: LlmServer) -> None:
    """A connection may take long to come, and the call would be late without anyone seeing it."""
    seen: list[int] = []

    async def open_late() -> None:
        await asyncio.sleep(2.3)  # Longer than the timeout, which is for the server's part.
        seen.append(server.stats()["n_calls"])

    async def stay_shut() -> None:
        raise LookupError("not now")

    async def run() -> object:
        endpoint = Endpoint(server.base_url, "m", {"max_tokens": 9}, timeout_s=2.0)
        client = ChatClient(endpoint, ApiKey(KEY, source="here"))
        with pytest.raises(LookupError, match="not now"):
            await client.complete(MESSAGES, before_send=stay_shut)
        outcome = await client.complete(MESSAGES, before_send=open_late)
        await client.aclose()
        return type(outcome)

    n_before = server.stats()["n_calls"]
    assert asyncio.run(run()) is ChatReply
    assert seen == [n_before]
    assert server.stats()["n_calls"] == n_before + 1


def test_nobody_listens() -> None:
    """No call can have been billed where none was taken."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = Endpoint(
            f"http://127.0.0.1:{closed.getsockname()[1]}/v1", "m", {"max_tokens": 9}
        )
        outcome = asyncio.run(ChatClient(endpoint).complete(MESSAGES))
    assert isinstance(outcome, ChatFailure)
    assert (outcome.kind, outcome.reason) == ("retry", "llm_no_connection")
    assert not outcome.may_be_billed


def test_a_wrong_key_is_named_by_its_source_alone(server: LlmServer) -> None:
    """The message must help to find the key, and must not hold it: servers quote it."""
    (outcome,) = ask(server, key="sk-wrong-1234567890")
    assert isinstance(outcome, ChatFailure)
    assert outcome.kind == "fatal_family"
    assert "the key from the file k is refused" in outcome.message
    assert "sk-wrong" not in outcome.message
    (outcome,) = ask(server, key=None)
    assert isinstance(outcome, ChatFailure) and "none was given" in outcome.message


def test_the_key_is_in_no_log_message_or_pickle(
    server: LlmServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs, reports and object stores are read by others than the key's owner."""
    caplog.set_level(logging.DEBUG)
    key = ApiKey(KEY, source="the file k")
    seen = [
        repr(key),
        str(key),
        repr(vars(ChatClient(Endpoint("http://h/v1", "m", {"max_tokens": 9}), key))),
    ]
    for fault in ("ok", "401", "403", "404", "400", "429", "500", "reset", "truncated"):
        seen += [repr(outcome) for outcome in ask(server, model=f"fault:{fault}")]
    with pytest.raises(TypeError) as refused:
        pickle.dumps(key)
    with pytest.raises(ConfigError) as broken:
        ApiKey(f"{KEY}\n{KEY}", source="the file k")
    seen += ["".join(traceback.format_exception(error.value)) for error in (refused, broken)]
    assert caplog.records, "the libraries' logs were looked at"
    text = "\n".join([*seen, caplog.text])
    assert KEY not in text and KEY[8:] not in text


def test_a_key_is_read_from_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files end with a line end; variables are for nodes that share no file."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(f"{KEY}\n")
    monkeypatch.setenv("SOME_KEY", KEY)
    for key in (ApiKey.read(path=path), ApiKey.read(variable="SOME_KEY")):
        assert key is not None and key.headers == {"Authorization": f"Bearer {KEY}"}
    assert ApiKey.read() is None


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "QA0602"), ("two words", "QA0602"), ("schlüssel", "ASCII.*QA0602")],
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """A header with a line end raises deep inside a library, and quotes itself."""
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text(content)
    with pytest.raises(ConfigError, match=message):
        ApiKey.read(path=tmp_path / "key")


def test_a_key_that_is_not_there_is_asked_for_by_name(tmp_path: Path) -> None:
    """Protects from calls without a key, refused one after another."""
    with pytest.raises(ConfigError, match="QA0602"):
        ApiKey.read(path=tmp_path / "absent")
    with pytest.raises(ConfigError, match="NO_SUCH_KEY.*QA0602"):
        ApiKey.read(variable="NO_SUCH_KEY")


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://user:pw@host/v1",
        "http://h/v1?key=a",
        "http://[::",
    ],
)
def test_a_base_url_that_is_none_or_holds_a_secret_is_refused(base_url: str) -> None:
    """It is written into every line of the journal."""
    with pytest.raises(ConfigError, match="base_url.*QA0601") as refused:
        Endpoint(base_url, "m", {"max_tokens": 9})
    assert "pw" not in str(refused.value) and "key=a" not in str(refused.value)


def test_an_endpoint_without_max_tokens_is_refused() -> None:
    """No one could say what a call may cost."""
    with pytest.raises(ConfigError, match="max_tokens.*QA0609"):
        Endpoint("http://localhost/v1", "m", {"temperature": 0.7})


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"Retry-After": "whenever"}, None),
        ({"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225690"}, 90.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767225690000"}, 90.0),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "7"}, 7.0),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:10Z",
            },
            10.0,
        ),
        ({"x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "6m0s"}, None),
        ({"x-ratelimit-remaining-tokens": "0"}, None),
        ({"Retry-After": "9999999"}, 86_400.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({}, None),
    ],
)
def test_how_servers_ask_for_a_pause(headers: dict[str, str], pause_s: float | None) -> None:
    """A pause read in the wrong unit is none, or lasts for years."""
    now = 1767225600.0  # The first second of 2026.
    is_own = any(name.lower().startswith("retry-after") for name in headers)
    (found, other) = retry_after_s(headers, now=now), exhausted_s(headers, now=now)
    found, other = (found, other) if is_own else (other, found)
    assert other is None
    assert found == (None if pause_s is None else pytest.approx(pause_s, abs=1e-6))


_NOW = 1767225600.0  # The first second of 2026.
_PATIENCE = Patience(most_s=300.0, most_by_clock_s=60.0)


@pytest.mark.parametrize(
    ("date", "until", "wait_s"),
    [
        ("Thu, 01 Jan 2026 02:00:00 GMT", "Thu, 01 Jan 2026 02:00:02 GMT", 2.0),  # ahead
        ("Wed, 31 Dec 2025 22:00:00 GMT", "Wed, 31 Dec 2025 22:00:30 GMT", 30.0),  # behind
        ("Thu, 01 Jan 2026 02:00:00 GMT", "1767232807", 7.0),
        ("Thu, 01 Jan 2026 02:00:00 GMT", "5", 5.0),
        ("", "Thu, 01 Jan 2026 02:00:00 GMT", 60.0),
        ("no date", "Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("", "Wed, 31 Dec 2025 22:00:30 GMT", 0.0),
        ("", "86400", 300.0),
        ("Thu, 01 Jan 2026 00:00:00 GMT", "Fri, 02 Jan 2026 00:00:00 GMT", 300.0),
    ],
)
def test_points_in_time_are_of_the_clock_of_the_server(
    date: str, until: str, wait_s: float
) -> None:
    """One that was two hours ahead stopped an account for 7,182 s; one behind was not heeded."""
    headers = {"Retry-After": until} | ({"Date": date} if date else {})
    assert waits_of(headers, now=_NOW, patience=_PATIENCE).wait_s == wait_s
    limits = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": until}
    limits |= {"date": date} if date else {}
    assert waits_of(limits, now=_NOW, patience=_PATIENCE).pause_s == wait_s


def test_a_pause_of_a_wrong_clock_reaches_no_account() -> None:
    later = "Thu, 01 Jan 2099 02:00:{:02} GMT"
    headers = {"Date": later.format(0), "Retry-After": later.format(2)}
    received = Received(429, headers, b'{"error": {"message": "too many"}}')
    outcome = outcome_of(received, url="http://h/v1", model="m", key=None, patience=_PATIENCE)
    assert isinstance(outcome, ChatFailure) and outcome.pause_s == 2.0
    without = Received(429, {"Retry-After": later.format(2)}, b"")
    outcome = outcome_of(without, url="http://h/v1", model="m", key=None, patience=_PATIENCE)
    assert isinstance(outcome, ChatFailure) and outcome.pause_s == 60.0


def test_lengths_of_all_units_are_read() -> None:
    """1m is a minute and 1ms is not."""
    texts = ("1d", "2h3m", "1m30.5s", "1ms", "500us", "0s")
    assert [duration_s(text, now=0.0) for text in texts] == [86_400, 7380, 90.5, 0.001, 0.0005, 0]


@pytest.mark.parametrize("said", ["Ann \ud83d", "\ude00", "\ud83d\ude00 \ud83d Ann", "Ann"])
def test_half_a_character_of_a_reply_or_an_error_becomes_a_sign(said: str) -> None:
    """No table can hold it: all that was journaled with it could never be read again."""
    content = json.dumps({"choices": [{"message": {"content": said}, "finish_reason": said}]})
    reply = outcome_of(Received(200, {}, content.encode()), url="http://h", model="m", key=None)
    error = json.dumps({"error": {"message": said, "code": said}})
    failure = outcome_of(Received(400, {}, error.encode()), url="http://h", model="m", key=None)
    assert isinstance(reply, ChatReply) and isinstance(failure, ChatFailure)
    texts = [reply.text, reply.finish_reason, failure.message]
    assert pa.array(texts, pa.string()).to_pylist() == texts
    assert reply.text.endswith("Ann") == said.endswith("Ann")


@given(text=st.text(max_size=20), halves=st.lists(st.integers(0, 19), max_size=3))
def test_whole_characters_are_left_as_they_are(text: str, halves: list[int]) -> None:
    """A reply that is changed is another reply: its answer would not be found in the passage."""
    assert whole_text(text) == text
    broken = text
    for place in halves:
        broken = f"{broken[:place]}\ud83d {broken[place:]}"
    assert whole_text(broken) == broken.replace("\ud83d", "\ufffd")


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_of_brackets_is_a_truncated_reply(status: int) -> None:
    """A model may be served by anything; its nonsense must not end the run with a trace."""
    response = Received(status, {}, b"[" * 100_000)
    outcome = outcome_of(response, url="http://h", model="m", key=None)
    assert isinstance(outcome, ChatFailure) and outcome.kind == "retry"
    assert outcome.reason == ("llm_truncated_reply" if status == 200 else "llm_server_error")


REQUEST = {
    "base_url": "http://localhost/v1",
    "model": "m",
    "parameters": {"temperature": 0.7, "max_tokens": 100},
    "messages": [{"role": "user", "content": "Who?"}],
    "run_index": 0,
}


def key_of(request: dict[str, Any]) -> str:
    """Return the name of a request."""
    endpoint = Endpoint(request["base_url"], request["model"], request["parameters"])
    return endpoint.request_key(request["messages"], run_index=request["run_index"])


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://localhost/v2"},
        {"model": "n"},
        {"parameters": {"temperature": 0.8, "max_tokens": 100}},
        {"messages": [{"role": "user", "content": "who?"}]},
        {"messages": [{"role": "system", "content": "Who?"}]},
        {"run_index": 1},
    ],
)
def test_requests_that_differ_have_other_keys(change: dict[str, object]) -> None:
    """A key that leaves something out answers a request with another's reply."""
    assert key_of({**REQUEST, **change}) != key_of(REQUEST)


def test_the_key_does_not_depend_on_the_order_of_settings() -> None:
    """A configuration written in another order must not be paid again."""
    turned = {**REQUEST, "parameters": dict(reversed(REQUEST["parameters"].items()))}
    assert key_of(turned) == key_of(REQUEST)


def test_a_request_keeps_its_name() -> None:
    """A version that names it otherwise pays once more for all that was paid."""
    endpoint = Endpoint("http://localhost/v1/", "m", {"max_tokens": 9})
    name = "c4ab9897c120a0a1a0c367b347a69efb78b3de24bb25b3b55ff42cab0215b354"
    assert endpoint.request_key([{"role": "user", "content": "Who?"}], run_index=2) == name
