"""What a hostile server sends: no wrong number, no lost run, no memory and no key comes of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hostile_server import MB, Asked, HostileServer, completion, endless, response
from llm_runs import MAX_TOKENS, Run, prompt, reserved_usd
from qaeval_core.errors import BudgetExhaustedError, EndpointRefusedError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.key import ApiKey
from qaeval_core.llm.limits import Limits, Prices, most_prompt_tokens
from qaeval_core.llm.waits import duration_s

KEY = "sk-test-4f1c9be2a07744d1"
USAGE = {"prompt_tokens": 20, "completion_tokens": 2}
GOOD = completion("Yes.", usage=USAGE)


def gzipped(*, n_bytes: int, times: int) -> bytes:
    """Return so many bytes of a completion, packed again and again."""
    packed = gzip.compress(b'{"choices": [{"message": {"content": "' + bytes(n_bytes))
    for _ in range(times - 1):
        packed = gzip.compress(packed)
    return packed


def ask_elsewhere(server: HostileServer) -> dict[str, Any]:
    """Ask once in a process of its own; return the outcome, and by how many MB it grew."""
    done = subprocess.run(
        [sys.executable, __file__, server.base_url],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{Path(__file__).parents[1]}:{Path(__file__).parents[2]}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(base_url: str) -> None:
    """Be the process that asks; one that would take all memory of the machine ends here."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    client = ChatClient(Endpoint(base_url, "m", {"max_tokens": 100}, timeout_s=20.0))
    asyncio.run(client.open())
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client = ChatClient(client.endpoint)
    outcome = asyncio.run(client.complete(prompt(0)))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    print(json.dumps({**asdict(outcome), "grown_mb": grown_mb}))


def ask(
    parts: Iterable[bytes] | Callable[[Asked], Iterable[bytes]],
    folder: Path,
    *,
    numbers: Iterable[int] = (0,),
    wrap: bool = False,
    **options: Any,
) -> tuple[list[Any], Run]:
    """Ask a server that always sends these parts; return all answers, and the run."""
    answer = parts if callable(parts) else lambda _: parts
    with HostileServer(answer) as server, Run(server, folder, **options) as run:
        return asyncio.run(run.ask(list(numbers), wrap=wrap)), run


# Bodies without end, and bodies that unpack into gigabytes.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "reason", "most_mb"),
    [
        pytest.param(endless, "llm_oversized_reply", 60, id="10 GB"),
        pytest.param(
            lambda: [response(gzipped(n_bytes=128 * MB, times=1), Content_Encoding="gzip")],
            "llm_oversized_reply",
            60,
            id="128 MB, packed",
        ),
        pytest.param(
            lambda: [response(gzipped(n_bytes=256 * MB, times=2), Content_Encoding="gzip, gzip")],
            "llm_no_json",
            60,
            id="256 MB, packed twice",
        ),
        pytest.param(
            lambda: [response(b"[" + b"[]," * (2 * MB) + b"0]")],
            "llm_wrong_schema",
            400,
            id="two million lists",
        ),
        pytest.param(lambda: endless("500 Oh"), "llm_server_error", 60, id="an error of 10 GB"),
    ],
)
def test_a_body_costs_little_memory(
    parts: Callable[[], Iterable[bytes]], reason: str, most_mb: int
) -> None:
    """A few kB took more than 3 GB, and the node with it."""
    with HostileServer(lambda _: parts()) as server:
        found = ask_elsewhere(server)
    assert found["reason"] == reason
    assert found["grown_mb"] < most_mb


def test_a_packed_reply_is_read_though_it_was_asked_for_as_it_is(tmp_path: Path) -> None:
    """Gateways pack what they pass on, whatever was asked for."""
    packed = gzip.compress(json.dumps(GOOD).encode())
    with HostileServer(lambda _: [response(packed, Content_Encoding="gzip")]) as server:
        outcome = asyncio.run(
            ChatClient(Endpoint(server.base_url, "m", {"max_tokens": 9})).complete(prompt(0))
        )
        assert asdict(outcome)["text"] == "Yes."
        assert server.asked[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("text", ["x" * (30 * MB), "x" * (5 * MB), "\x01ü😀" * 200_000])
def test_a_long_text_grows_the_journal_by_little(tmp_path: Path, text: str) -> None:
    """30 MB of text were read for a minute and made 172 MB of journal."""
    read: list[int] = []

    def parse(text: str) -> dict[str, Any]:
        read.append(len(text.encode()))
        return {}

    before_s = time.process_time()
    answers, _ = ask([response(completion(text))], tmp_path, parse=parse)
    assert time.process_time() - before_s < 20.0
    (answer,) = answers
    n_journaled = sum(path.stat().st_size for path in tmp_path.glob("replies-*"))
    assert n_journaled < MB / 2
    if len(text) > 8 * MB:
        assert (answer.reason, read) == ("llm_oversized_reply", [])
    else:
        assert read == [len(answer.entry.text.encode())]
        assert text.startswith(answer.entry.text) and 65_530 <= read[0] <= 65_536


def test_an_answer_behind_long_thoughts_is_still_read(tmp_path: Path) -> None:
    """A model that thinks for 20,000 tokens must not be cut off before it answers."""
    text = f"<think>{'Hm. ' * 30_000}</think>\nAnswer: <ans>Ann</ans>"
    ((answer,), _) = ask([response(completion(text))], tmp_path)
    assert answer.entry.text == "\nAnswer: <ans>Ann</ans>"


# What cannot be: charsets, numbers, dates.


@pytest.mark.parametrize("charset", ["hex", "zlib", "idna", "rot13", "undefined", "utf-16", "\\"])
@pytest.mark.parametrize("status", ["400 Bad", "200 OK"])
def test_no_charset_ends_a_run(tmp_path: Path, charset: str, status: str) -> None:
    """One error that named ``charset=hex`` ended the run and left other metrics unwritten."""
    parts = [response(b"\xff\xfeoh {", status=status, Content_Type=f"text/html; charset={charset}")]
    ((answer,), _) = ask(parts, tmp_path)
    expected = "llm_bad_request" if status == "400 Bad" else "llm_no_json"
    assert answer.reason == expected
    assert "��oh" in answer.message


@pytest.mark.parametrize(
    "retry_after",
    [
        "Thu, 01 Jan 2026 00:00:00 +99999999999999999999",
        "Thu, 01 Jan 2026 00:00:00 -0099999999999",
        "Thu, 01 Jan 99999 00:00:00 GMT",
        "0001-01-01T00:00:00+23:59",
        "9" * 5000,
    ],
)
def test_a_header_of_any_kind_is_a_wait_or_none(retry_after: str) -> None:
    """A time zone of more hours than fit is no date."""
    wait_s = duration_s(retry_after, now=0.0)
    assert wait_s is None or wait_s >= 0.0


def test_a_date_that_cannot_be_is_ignored(tmp_path: Path) -> None:
    """Over the wire: it ended the run with a trace, other metrics unwritten."""
    impossible = "Thu, 01 Jan 2026 00:00:00 +99999999999999999999"
    answers, run = ask([response(GOOD, Retry_After=impossible)], tmp_path)
    assert answers[0].entry.text == "Yes."
    assert run.governor.status().n_settled == 1


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10**400, "completion_tokens": 1},
        {"prompt_tokens": 2**31, "completion_tokens": 2**63},
        {"prompt_tokens": -7, "completion_tokens": -(10**400)},
        {"prompt_tokens": True, "completion_tokens": True},
        {"prompt_tokens": 1e308, "completion_tokens": "9"},
        {"prompt_tokens": [], "completion_tokens": {}},
        {"prompt_tokens": 0, "completion_tokens": 0},
        ["prompt_tokens"],
        "many",
        7,
    ],
)
def test_usage_that_cannot_be_is_none_and_costs_what_was_reserved(
    tmp_path: Path, usage: object
) -> None:
    """A paid reply was lost and paid again at each try; 0 of 0 tokens cost nothing, for ever."""
    parts = [response(completion("Yes, it is.", usage=usage))]
    answers, run = ask(parts, tmp_path)
    (entry,) = run.journal.entries()
    assert answers[0].entry == entry
    n_counted = 1 if usage == {"prompt_tokens": 10**400, "completion_tokens": 1} else MAX_TOKENS
    assert (entry.n_prompt_tokens, entry.n_completion_tokens) == (17, n_counted)
    most_usd = reserved_usd(0) - 2e-6 * (MAX_TOKENS - n_counted)
    assert entry.usd == pytest.approx(most_usd)
    assert run.governor.status().spent_usd == pytest.approx(most_usd)


def test_a_budget_binds_where_a_server_counts_nothing(tmp_path: Path) -> None:
    """0 of 0 tokens at $1 a token cost $0.00: a thousand rows were asked under a budget of two."""
    prices = Prices(1e6, 1e6)
    free = completion("Yes.", usage={"prompt_tokens": 0, "completion_tokens": 0})
    budget_usd = 2.5 * reserved_usd(0, prices)
    budget = Budget(budget_usd=budget_usd)
    answers, run = ask(
        [response(free)], tmp_path, numbers=range(9), wrap=True, prices=prices, budget=budget
    )
    stopped = [answer for answer in answers if isinstance(answer, BudgetExhaustedError)]
    assert len(stopped) == 7
    assert 0.0 < run.governor.status().spent_usd <= budget_usd


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 2_000_000_000, "completion_tokens": 2},
        {"prompt_tokens": 20, "completion_tokens": 2_000_000_000},
    ],
)
def test_no_usage_costs_more_than_the_call_can_have_cost(
    tmp_path: Path, usage: Mapping[str, int]
) -> None:
    """One line of 10**15 tokens was $1,000,000,000, and the budget was gone."""
    limits = Limits(tokens_per_minute=100_000)
    answers, run = ask(
        [response(completion("Yes.", usage=usage))], tmp_path, numbers=range(3), limits=limits
    )
    # Nor are all other prompts taken to be as long, and never sent.
    assert [answer.reason for answer in answers] == [None] * 3
    assert {answer.notes for answer in answers} == {("usage_over_bound",)}
    for number, entry in zip(range(3), (answer.entry for answer in answers), strict=True):
        assert entry.n_prompt_tokens <= most_prompt_tokens(prompt(number))
        assert entry.n_completion_tokens <= MAX_TOKENS
    assert run.governor.status().spent_usd <= 3 * reserved_usd(2)


def test_ten_to_the_fifteen_tokens_are_no_billion_dollars(tmp_path: Path) -> None:
    """As it was reported: once was enough."""
    usage = {"prompt_tokens": 10**15, "completion_tokens": 10**15}
    _, run = ask([response(completion("Yes.", usage=usage))], tmp_path)
    assert run.journal.spent_usd() == pytest.approx(reserved_usd(0))


# Errors of this program.


def test_an_error_of_this_program_is_one_rows_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reply that nobody foresaw ended the run of a million rows."""

    def fail(body: Any, **_: Any) -> None:
        if body["choices"][0]["message"]["content"] == "odd":
            raise ZeroDivisionError(f"a bug that quotes {KEY}")
        return real(body, **_)

    from qaeval_core.llm import responses

    real = responses.read_reply
    monkeypatch.setattr(responses, "read_reply", fail)
    answers, run = ask(
        lambda asked: [response(completion("odd" if "house at 1 " in asked.sentence else "Yes."))],
        tmp_path,
        numbers=range(3),
        key=ApiKey(KEY, source="here"),
    )
    assert [answer.reason for answer in answers] == [None, "llm_unexpected_error", None]
    assert "ZeroDivisionError: a bug that quotes <key> (fail, line" in answers[1].message
    assert set(answers[1].failures) == {"llm_unexpected_error"}
    assert run.governor.status().n_open == 0


def test_a_reply_is_journaled_before_anything_is_learned_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails behind the journal loses no reply, and pays for none twice."""

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("a bug")

    monkeypatch.setattr("qaeval_core.llm.limits.Estimates.learn", fail)
    asked: list[Asked] = []

    def answer(one: Asked) -> list[bytes]:
        asked.append(one)
        return [response(GOOD)]

    answers, run = ask(answer, tmp_path)
    assert len(asked) == len(list(run.journal.entries())) == 1
    assert answers[0].entry.text == "Yes."
    assert (run.governor.status().n_settled, run.governor.status().n_open) == (1, 0)


def test_reading_a_reply_holds_up_no_other_call(tmp_path: Path) -> None:
    """A reply that took a minute to read stopped all calls and claims for as long."""
    gaps_s = [0.0]

    def parse(_: str) -> dict[str, Any]:
        time.sleep(1.5)
        return {}

    async def tick() -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(0.01)
            gaps_s.append(time.monotonic() - before_s)

    async def ask_and_tick(run: Run) -> None:
        ticking = asyncio.create_task(tick())
        await run.ask([0])
        ticking.cancel()

    server = HostileServer(lambda _: [response(GOOD)])
    with server, Run(server, tmp_path, parse=parse) as run:
        asyncio.run(ask_and_tick(run))
    assert len(gaps_s) > 20
    assert max(gaps_s) < 1.0


# The key, and who it is sent to.


def test_a_key_that_comes_back_in_a_reply_is_kept_nowhere(tmp_path: Path) -> None:
    """An echo of the key stood in journal, scores and explain page, which others read."""
    parts = [response(completion(f"It is {KEY}, {KEY}.", finish_reason=f"stop {KEY}"))]
    answers, _ = ask(parts, tmp_path, key=ApiKey(KEY, source="here"))
    assert answers[0].entry.text == "It is <key>, <key>."
    assert answers[0].entry.finish_reason == "stop <key>"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY in path.read_text()]


@pytest.mark.parametrize("long", ["x" * 65_520, "x" * 65_530])
def test_a_key_at_the_cut_is_not_kept_by_half(tmp_path: Path, long: str) -> None:
    """Half a key is half of the work of guessing it."""
    answers, _ = ask(
        [response(completion(long + KEY * 9))], tmp_path, key=ApiKey(KEY, source="here")
    )
    assert "sk-" not in answers[0].entry.text


def test_a_word_that_serves_as_a_key_changes_no_reply(tmp_path: Path) -> None:
    """Servers of one's own take any word, such as EMPTY, which a reply may well hold."""
    answers, _ = ask(
        [response(completion("The box was EMPTY."))], tmp_path, key=ApiKey("EMPTY", source="here")
    )
    assert answers[0].entry.text == "The box was EMPTY."


def test_a_certificate_that_is_not_trusted_is_called_that(tmp_path: Path) -> None:
    """ "No connection" sends people to look for a firewall, 20 times six calls later."""
    certificate, private = tmp_path / "certificate.pem", tmp_path / "private.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(private), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    with HostileServer(lambda _: [response(GOOD)], context=context) as server:
        with Run(server, tmp_path / "run", key=ApiKey(KEY, source="here")) as run:
            (error,) = asyncio.run(run.ask([0], wrap=True))
        assert server.asked == []
    assert isinstance(error, EndpointRefusedError)
    assert "certificate is not trusted (self" in str(error)


if __name__ == "__main__":
    main(sys.argv[1])
