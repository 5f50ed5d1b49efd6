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
from qaeval_core.llm.key import ApiKey
from qaeval_core.llm.reply_body import (
    ChatReply,
    NoReplyError,
    end_of,
    kept_text,
    read_reply,
)
from qaeval_core.llm.responses import ChatFailure, Received, outcome_of
from qaeval_core.llm.thoughts import without_thoughts

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


FLAGGED = {
    "code": 403,
    "message": "Input was flagged",
    "metadata": {"reasons": ["violence"], "flagged_input": "hive 5"},
}


@pytest.mark.parametrize(
    "body",
    [
        {"error": FLAGGED},
        {"error": {**FLAGGED, "metadata": {}}},
        {"error": {"message": "x", "code": "content_policy_violation"}},
        {"error": {"message": "x", "type": "moderation_blocked", "code": 403}},
        {"choices": [], "usage": {}, "promptFeedback": {"blockReason": "SAFETY"}},
        {"choices": None, "base_resp": {"status_code": 1026, "status_msg": "sensitive"}},
    ],
)
@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden", "400 Bad"])
def test_what_a_filter_says_of_one_request_is_no_word_on_the_account(
    body: Body, status: str
) -> None:
    """One row that OpenRouter's moderation flagged ended the family for good."""
    outcome = answer_to(body, status=status)
    assert isinstance(outcome, ChatFailure)
    assert (outcome.kind, outcome.reason) == ("row_undefined", "filtered"), outcome.message


def test_an_account_that_is_flagged_is_refused() -> None:
    for said in ("This account was flagged", "Key flagged: 'input was flagged'"):
        outcome = answer_to({"error": {"code": 403, "message": said}})
        assert isinstance(outcome, ChatFailure) and outcome.kind == "fatal_family"
    outcome = answer_to({"error": FLAGGED}, status="429 Too Many")
    assert isinstance(outcome, ChatFailure) and outcome.reason == "llm_rate_limited"


NO_CREDIT = {"message": "No credit", "code": 402}


@pytest.mark.parametrize(
    ("body", "reason", "said"),
    [
        ([{"error": NO_CREDIT}], "llm_endpoint_refuses", "No credit"),
        ({"error": [NO_CREDIT]}, "llm_endpoint_refuses", "No credit"),
        ({"error": {"error": NO_CREDIT}}, "llm_endpoint_refuses", "No credit"),
        ({"error": {"error": [NO_CREDIT]}}, "llm_endpoint_refuses", "No credit"),
        ({"error": {"message": "x"}, "statusCode": 402}, "llm_endpoint_refuses", "x"),
        ({"error": {"message": "x", "http_status": 402}}, "llm_endpoint_refuses", "x"),
        ({"error": "HTTP 429: slow down"}, "llm_rate_limited", "slow down"),
        ({"error": "HTTP/1.1 503 Service"}, "llm_overloaded", "Service"),
        ({"error": {"message": "Error code: 402 - no money"}}, "llm_endpoint_refuses", "no money"),
        ({"error": {"message": "Request failed with status code 429"}}, "llm_rate_limited",
         "failed"),
        ({"error": {"message": "x", "type": "billing_error"}}, "llm_endpoint_refuses", "x"),
        ({"error": "See billing, row 429"}, "llm_server_error", "billing"),
        ({"error": "Request with 402 tokens"}, "llm_server_error", "tokens"),
        ({"errors": [{"message": "x", "status_code": 404}]}, "llm_endpoint_refuses", "x"),
        ({"error": "Payment Required", "message": "your wallet is empty"}, "llm_endpoint_refuses",
         "Payment Required: your wallet is empty"),
        ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
         "llm_endpoint_refuses", "insufficient balance"),
        ({"base_resp": {"status_code": 1002, "status_msg": "slow"}}, "llm_rate_limited", "slow"),
        ({"base_resp": {"status_code": 1013, "status_msg": "broke"}}, "llm_server_error", "broke"),
        (message(None, error=NO_CREDIT), "llm_endpoint_refuses", "No credit"),
        (message("4", error=[NO_CREDIT]), "llm_endpoint_refuses", "No credit"),
        (b'data: {"error": {"code": 402, "message": "No credit"}}\n\ndata: [DONE]\n',
         "llm_endpoint_refuses", "No credit"),
        (b': WAIT\n\nevent: error\ndata: {"error": {"code": 429, "message": "Slow"}}\n\n',
         "llm_rate_limited", "Slow"),
    ],
)  # fmt: skip
def test_an_error_is_found_wherever_it_stands(body: Any, reason: str, said: str) -> None:
    """Asked six times a row, such an account was taken for a server that is down."""
    outcome = answer_to(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert isinstance(outcome, ChatFailure)
    assert (outcome.reason, said in outcome.message) == (reason, True), outcome.message


@pytest.mark.parametrize(
    "more",
    [
        {"error": {"code": 0, "message": ""}},
        {"error": [], "errors": {}},
        {"base_resp": {"status_code": 0, "status_msg": "success"}},
        {"base_resp": None, "promptFeedback": {}},
        {"message": "ok", "detail": "fine"},
    ],
)
def test_a_field_of_errors_that_holds_none_is_no_error(more: Body) -> None:
    outcome = answer_to({**message("4"), **more})
    assert isinstance(outcome, ChatReply) and outcome.text == "4"


def test_a_reply_behind_comments_of_a_stream_is_one() -> None:
    body = b": PROCESSING\n\n: PROCESSING\n\n" + json.dumps(message("4")).encode()
    outcome = answer_to(body)
    assert isinstance(outcome, ChatReply) and outcome.text == "4"


def test_a_page_with_status_200_is_quoted_and_called_no_json() -> None:
    """ "Truncated" sends people to look for a broken line; it is the login of a proxy."""
    outcome = answer_to(b"\n<html><title>Log in, sk-abcdefghijk</title>" + b" " * 999)
    assert isinstance(outcome, ChatFailure) and outcome.reason == "llm_no_json"
    assert "<html><title>Log in, <key></title>" in outcome.message
    for torn in (b'{"choices": [', b"[", b""):
        outcome = answer_to(torn)
        assert isinstance(outcome, ChatFailure) and outcome.reason == "llm_truncated_reply"


def test_no_half_of_a_secret_is_shown() -> None:
    """It was cut first and looked for then."""
    secret = "Zq9secretVALUE1234567890abcd"
    key = ApiKey("", source="here", headers={"api-key": secret})
    bodies = [
        {"choices": [f"please check your key {secret}"]},
        {"choices": f"please check your key {secret}"},
        {f"error_message_header_{secret}": 1},
        {"choices": [{f"error_message_header_{secret}": 1}]},
        {"choices": [{"message": {f"error_message_header_{secret}": 1}}]},
        f"{'x' * 90}{secret}",
        message("hm", finish_reason=f"{'x' * 50}{secret}"),
    ]
    for body in bodies:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        outcome = outcome_of(Received(200, {}, content), url="u", model="m", key=key)
        assert secret[:6] not in str(outcome)


def test_a_count_of_thousands_of_digits_costs_no_reply() -> None:
    body = json.dumps(message("4"))[:-1] + ', "usage": {"prompt_tokens": ' + "9" * 5000
    outcome = answer_to(f'{body}, "completion_tokens": 2}}}}'.encode())
    assert outcome == ChatReply("4", "stop", None, 2)


def test_a_reply_that_used_all_tokens_up_without_a_word_on_its_end_was_cut() -> None:
    for finish_reason, n, end in ((None, 9, "cut_reply"), (None, 8, None), ("stop", 9, None)):
        body = {**message("1 to 3", finish_reason=finish_reason),
                "usage": {"completion_tokens": n}}  # fmt: skip
        outcome = answer_to(body)
        assert isinstance(outcome, ChatReply) and end_of(outcome.finish_reason) == end


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "thinking"])
def test_thoughts_without_a_reply_or_an_end_are_an_empty_reply(field: str) -> None:
    """It was no chat completion, and asked for six times."""
    outcome = answer_to(message(None, finish_reason=None, **{field: "I think 3"}))
    assert isinstance(outcome, ChatReply)
    assert (outcome.text, end_of(outcome.finish_reason)) == ("", "empty_reply")


def test_a_reply_of_which_the_end_is_not_kept_is_cut() -> None:
    long = "It is 2. " + "word " * 14_000 + "So the score is 5."
    outcome = answer_to(message(long))
    assert isinstance(outcome, ChatReply) and end_of(outcome.finish_reason) == "cut_reply"
    outcome = answer_to(message(f"<think>{long}</think>5"))
    assert outcome == ChatReply("5", "stop", None, None)
    outcome = answer_to(message(long, finish_reason="content_filter"))
    assert isinstance(outcome, ChatReply) and end_of(outcome.finish_reason) == "filtered"


def test_an_account_without_money_is_not_asked_again_whatever_the_status() -> None:
    """A quota that is used up comes as 429, 400 or 403."""
    for status in ("429 Too Many", "400 Bad", "402 Pay", "500 Oh"):
        body = {"error": {"message": "You owe", "code": "insufficient_quota"}}
        outcome = answer_to(body, status=status)
        assert isinstance(outcome, ChatFailure) and outcome.kind == "fatal_family"
        assert "You owe" in outcome.message and "no credit" in outcome.message


@pytest.mark.parametrize("quote", ["'", '"', "`"])
def test_a_rows_words_in_quotes_end_no_run(quote: str) -> None:
    said = f"cannot parse {quote}insufficient funds at the rate limit{quote}"
    outcome = answer_to({"error": said})
    assert isinstance(outcome, ChatFailure)
    assert (outcome.kind, outcome.reason) == ("retry", "llm_server_error")


def test_words_that_begin_with_data_are_no_stream() -> None:
    outcome = answer_to(b"database is down")
    assert isinstance(outcome, ChatFailure) and outcome.reason == "llm_no_json"
    assert "16 bytes that are no JSON: database is down" in outcome.message


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


@pytest.mark.slow
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
