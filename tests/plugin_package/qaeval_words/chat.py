"""A server that takes one text and returns one: ``/ask``, {"text": ...} -> {"said": ...}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qaeval_core.llm.chat_api import ChatApi
from qaeval_core.llm.limits import Message


def _request(
    model: str, messages: Sequence[Message], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    text = "\n\n".join(message["content"] for message in messages)
    return {"text": text, "model": model, "length": parameters["max_tokens"]}


def _completion(answer: Any) -> Any:
    choice = {"message": {"content": answer["said"]}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}


PLAIN = ChatApi("/ask", _request, _completion)
