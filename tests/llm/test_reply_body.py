"""Bodies of servers: replies however they are dressed, and errors that come as if all were well."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from hostile_server import HostileServer, completion, response
from llm_runs import prompt
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.reply_body import (
    ChatReply,
    NoReplyError,
    end_of,
    kept_text,
    read_reply,
    without_thoughts,
)
from qaeval_core.llm.responses import ChatFailure

Body = Mapping[str, Any]
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "maybe 2?"}]}


def message(content: object, *, finish_reason: str | None = "stop", **more: object) -> Body:
    """Return a body with one message."""
    own = {"role": "assistant", "content": content, **more}
    return {"choices": [{"index": 0, "message": own, "finish_reason": finish_reason}]}


def answer_to(body: Body | bytes, *, status: str = "200 OK") -> ChatReply | ChatFailure:
    """Send a call to a server that answers with a body."""
    with HostileServer(lambda _: [response(body, status=status)]) as server:
        client = ChatClient(Endpoint(server.base_url, "m", {"max_tokens": 9}, timeout_s=5.0))
        return asyncio.run(client.complete(prompt(0)))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param([THOUGHT, {"type": "text", "text": "4"}], "4", id="Mistral's thinking part"),
        pytest.param(
            [{"type": "text", "text": "a "}, {"type": "text", "text": "4"}], "a 4", id="two"
        ),
        pytest.param(["a ", "4"], "a 4", id="bare texts"),
        pytest.param([{"text": "4"}], "4", id="a part without a type"),
        pytest.param([{"type": "output_text", "text": "4"}], "4", id="the Responses API's part"),
        pytest.param(
            [{"type": "reasoning", "text": "2"}, {"type": "text", "text": "4"}], "4", id="reasoning"
        ),
        pytest.param(
            [{"type": "redacted_thinking", "data": "2"}, {"type": "text", "text": "4"}],
            "4",
            id="hidden thoughts",
        ),
        pytest.param(
            [{"type": "text", "text": "4"}, {"type": "image_url", "image_url": {}}], "4", id="image"
        ),
        pytest.param(
            [{"text": "1 to 3.", "thought": True}, {"text": "4"}], "4", id="Gemini's thought"
        ),
        pytest.param([], "", id="no part"),
    ],
)  # fmt: skip
def test_a_content_in_parts_is_its_texts(content: list[object], text: str) -> None:
    """Each such reply was taken for an outage, and paid for six times."""
    outcome = answer_to(message(content, reasoning_content="1"))
    assert isinstance(outcome, ChatReply) and outcome.text == text


@pytest.mark.parametrize(
    ("error", "reason", "kind", "end"),
    [
        ({"message": "Slow down", "code": 429}, "llm_rate_limited", "retry", "refused"),
        ({"message": "Slow down", "code": "429"}, "llm_rate_limited", "retry", "refused"),
        ({"message": "x", "type": "rate_limit_error"}, "llm_rate_limited", "retry", "refused"),
        ({"message": "x", "status": "RESOURCE_EXHAUSTED"}, "llm_rate_limited", "retry", "refused"),
        ("Rate limit exceeded: free models", "llm_rate_limited", "retry", "refused"),
        ({"message": "Pay", "code": 402}, "llm_endpoint_refuses", "fatal_family", "answered"),
        ("Insufficient credits", "llm_endpoint_refuses", "fatal_family", "answered"),
        ({"message": "x", "code": "invalid_api_key"}, "llm_endpoint_refuses", "fatal_family",
         "answered"),
        ({"message": "x", "type": "NotFoundError"}, "llm_endpoint_refuses", "fatal_family",
         "answered"),
        ({"message": "x", "code": 503}, "llm_overloaded", "retry", "overloaded"),
        ({"message": "x", "type": "overloaded_error"}, "llm_overloaded", "retry", "overloaded"),
        ({"message": "x", "code": 504}, "llm_timeout", "retry", "faulty"),
        ({"message": "Too long", "code": 400}, "llm_bad_request", "row_undefined", "answered"),
        ({"message": "x", "code": "content_filter"}, "filtered", "row_undefined", "answered"),
        ({"message": "Upstream broke"}, "llm_server_error", "retry", "faulty"),
        ("Upstream broke", "llm_server_error", "retry", "faulty"),
        ({"code": 500}, "llm_server_error", "retry", "faulty"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["body", "null choices", "choice", "list"])
def test_an_error_counts_as_the_status_that_it_carries(
    error: object, reason: str, kind: str, end: str, place: str
) -> None:
    """Whatever a gateway puts around it."""
    body: Body = {
        "body": {"error": error},
        "null choices": {"id": "1", "choices": None, "error": error},
        "choice": {"choices": [{"message": {"content": "4"}, "error": error}]},
        "list": {"success": False, "errors": [error]},
    }[place]
    outcome = answer_to(body)
    assert isinstance(outcome, ChatFailure)
    assert (outcome.reason, outcome.kind, outcome.end) == (reason, kind, end), outcome.message
    said = error.get("message", "no word") if isinstance(error, dict) else error
    assert said in outcome.message
    # Of what was refused nothing was generated; else a model may have run.
    is_free = kind != "retry" or reason == "llm_rate_limited"
    assert outcome.may_be_billed is not is_free


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"object": "error", "message": "no such model", "code": 404}, "llm_endpoint_refuses"),
        ({"detail": "Too Many Requests"}, "llm_rate_limited"),
        ({"message": "upstream", "status": 502}, "llm_server_error"),
    ],
)
def test_a_body_that_is_an_error_itself_is_one(body: Body, reason: str) -> None:
    outcome = answer_to(body)
    assert isinstance(outcome, ChatFailure) and outcome.reason == reason, outcome


def test_an_account_without_money_is_not_asked_again_whatever_the_status() -> None:
    """A quota that is used up comes as 429, 400 or 403."""
    for status in ("429 Too Many", "400 Bad", "402 Pay", "500 Oh"):
        body = {"error": {"message": "You owe", "code": "insufficient_quota"}}
        outcome = answer_to(body, status=status)
        assert isinstance(outcome, ChatFailure) and outcome.kind == "fatal_family"
        assert "You owe" in outcome.message and "no credit left" in outcome.message


@pytest.mark.parametrize("quote", ["'", '"', "`"])
def test_a_rows_words_in_quotes_end_no_run(quote: str) -> None:
    said = f"cannot parse {quote}insufficient funds at the rate limit{quote}"
    outcome = answer_to({"error": said})
    assert isinstance(outcome, ChatFailure)
    assert (outcome.kind, outcome.reason) == ("retry", "llm_server_error")


def test_words_that_begin_with_data_are_no_stream() -> None:
    outcome = answer_to(b"database is down")
    assert isinstance(outcome, ChatFailure) and outcome.reason == "llm_truncated_reply"


def test_a_request_whose_text_names_money_is_one_rows_fault() -> None:
    """A server that quotes a row must not end the run for it."""
    body = {"error": {"message": "cannot parse: 'insufficient funds, rate limit'"}}
    outcome = answer_to(body, status="400 Bad Request")
    assert isinstance(outcome, ChatFailure) and outcome.kind == "row_undefined"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"choices": []}, "choices are empty: []"),
        ({"choices": None}, "choices are empty: null"),
        ({"choices": [None]}, "choices are empty: [null]"),
        ({"choices": [{"text": "4"}]}, "no message, only 'text'"),
        ({"choices": [{"message": None}]}, "no message, only 'message'"),
        ({"choices": [{"message": {"role": "assistant"}}]}, "no text, only 'role'"),
        ({"choices": [{"message": {"content": 4}}]}, "no text but a int"),
        ({"message": {"content": "4"}, "done": True}, "no choices, only 'message', 'done'"),
        ([], "it is a list"),
    ],
)
def test_a_body_without_a_reply_says_what_it_lacks(body: Body, named: str) -> None:
    """ "'choices'" was all that was said."""
    with pytest.raises(NoReplyError, match=r".") as raised:
        read_reply(body)
    assert named in str(raised.value)
    outcome = answer_to(json.dumps(body).encode())
    assert isinstance(outcome, ChatFailure)
    assert outcome.reason == "llm_wrong_schema" and named in outcome.message


def test_events_of_a_stream_are_called_that() -> None:
    body = b'data: {"choices": [{"delta": {"content": "4"}}]}\n\ndata: [DONE]\n'
    outcome = answer_to(body)
    assert isinstance(outcome, ChatFailure)
    assert "events of a stream" in outcome.message and "delta" in outcome.message


def test_a_refusal_is_told_from_a_reply() -> None:
    """Its words are kept, and no number of them is a verdict."""
    for body in (
        message(None, refusal="I will not rate 5 of them."),
        message([{"type": "refusal", "refusal": "I will not rate 5 of them."}]),
        message("", refusal="I will not rate 5 of them."),
    ):
        outcome = answer_to(body)
        assert isinstance(outcome, ChatReply)
        assert (outcome.text, end_of(outcome.finish_reason)) == (
            "I will not rate 5 of them.", "refusal",
        )  # fmt: skip
    outcome = answer_to(message("5", refusal=None))
    assert isinstance(outcome, ChatReply) and end_of(outcome.finish_reason) is None


@pytest.mark.parametrize("finish_reason", ["error", "abort", "insufficient_system_resource"])
def test_a_reply_that_the_server_broke_off_is_asked_for_again(finish_reason: str) -> None:
    """It is the server's trouble, which passes; and no outage, for it answers."""
    outcome = answer_to(message("The score is 5", finish_reason=finish_reason))
    assert isinstance(outcome, ChatFailure)
    assert (outcome.kind, outcome.reason, outcome.end) == ("retry", "failed_reply", "answered")
    assert outcome.may_be_billed and finish_reason in outcome.message


@pytest.mark.parametrize(
    ("names", "end"),
    [
        (["stop", "STOP", None, "", "end_turn", "eos_token", "stop_sequence"], None),
        (["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"], "cut_reply"),
        (["content_filter", "SAFETY", "RECITATION", "guardrail_intervened"], "filtered"),
        (["refusal"], "refusal"),
        (["tool_calls", "function_call", "no such name", "5"], "failed_reply"),
    ],
)
def test_the_end_of_a_reply_is_read(names: list[str | None], end: str | None) -> None:
    assert [end_of(name) for name in names] == [end] * len(names)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>1? 2?</think>4", "4"),
        ("<THINKING>1</THINKING> 4", " 4"),
        ("1? 2?</think>4", "4"),
        ("<think>The scale is 1 to 5. It names 3", ""),
        ("4 <think>or 3", "4 "),
        ("<think>a<think>b</think>3</think>4", "4"),
        ("[THINK]2[/THINK]4", "4"),
        ("[THINK]2", ""),
        ("◁think▷2◁/think▷4", "4"),
        ("<seed:think>2</seed:think>4", "4"),
        ("<reasoning>2</reasoning><score>4</score>", "<score>4</score>"),
        ("<thought>2</thought>4", "4"),
        ("<|START_THINKING|>2<|END_THINKING|>4", "4"),
        (
            "<|channel|>analysis<|message|>2<|end|><|start|>assistant<|channel|>final<|message|>4",
            "4",
        ),
        ("<|channel|>analysis<|message|>It names 3", ""),
        ("analysisWe see 2.assistantfinal4", "4"),
        ("<think>a <think>2</think> so 3", ""),
        ("a</think> 2 <think>3</think></think>4", "4"),
        ('<think type="x">the scale 3', ""),
        ('<think type="x">the scale 3</think >4', "4"),
        ("<think\n>3", ""),
        ("< think >3</ think >4", "4"),
        ("&lt;think&gt;scale 3", ""),
        ("&lt;think&gt;scale 3&lt;/think&gt;4", "4"),
        ("\\<think\\>scale 3\\</think\\>4", "4"),
        ("3 &lt;/think&gt;4", "4"),
        ("<scratchpad>scale 3", ""),
        ("<antThinking>scale of 3", ""),
        ("<thinking>3</thinking>4", "4"),
        ("<mm:think>3", ""),
        ("<|channel>thought\nscale 3", ""),
        ("<|channel>thought\nscale 3<channel|>4", "4"),
        ("<unused94>thought\nIt is 3", ""),
        ("<unused94>thought\nIt is 3<unused95>4", "4"),
        ('<details type="reasoning">\n> it is 3', ""),
        ('<details type="reasoning" done="true">\n> it is 3</details>4', "4"),
        (
            "<details><summary>why</summary>3</details>4",
            "<details><summary>why</summary>3</details>4",
        ),
        ("<｜begin▁of▁thinking｜>3", ""),
        ("<｜begin▁of▁thinking｜>3<｜end▁of▁thinking｜>4", "4"),
        (
            "<|channel|>analysis<|message|>3<|channel|>commentary<|message|>2<|channel|>final 4",
            " 4",
        ),
        ("no assistantfinal 4", "no assistantfinal 4"),
        ("<thinker>4</thinker><think/>", "<thinker>4</thinker><think/>"),
        ("Analysis: 3 is fair. 4", "Analysis: 3 is fair. 4"),
        ("I think 4", "I think 4"),
        ("", ""),
    ],
)
def test_thoughts_are_no_part_of_what_is_read(text: str, left: str) -> None:
    assert without_thoughts(text) == left


def test_a_text_of_megabytes_is_cut_in_a_moment() -> None:
    """One reply must not hold up all calls."""
    for part in (
        "<think>",
        "</think>",
        "<",
        "x",
        "[THINK] ",
        "analysis",
        "&lt;",
        "< think ",
        "<think a",
        "<details reasoning",
        "<|channel|>final",
    ):
        started = time.perf_counter()
        assert len(kept_text(part * (8_000_000 // len(part)))) <= 64 << 10
        assert time.perf_counter() - started < 10
    assert kept_text("<think>" + "1" * 70_000 + "</think>4") == "4"


def test_completions_stay_what_they_were() -> None:
    outcome = answer_to(completion("Yes.", usage={"prompt_tokens": 9, "completion_tokens": 2}))
    assert outcome == ChatReply("Yes.", "stop", 9, 2)
