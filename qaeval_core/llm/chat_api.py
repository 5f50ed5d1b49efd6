"""Chat APIs: how a server of some kind is asked, and its answer as a chat completion.

Ours is that of OpenAI, which most servers speak. A plugin's turns its answers into the same form:
what is then read of one is read, counted and scrubbed here, as of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qaeval_core.llm.limits import Message
from qaeval_core.plugins import Catalog, instance_maker


@dataclass(frozen=True, slots=True)
class ChatApi:
    """One kind of server.

    Attributes
    ----------
    path : str
        Behind the base URL, with its first slash.
    request : callable
        (model, messages, parameters) -> body of a request. Parameters hold temperature, top_p,
        max_tokens and what the setting ``body`` says; what it leaves out is not sent.
    completion : callable
        JSON of an answer with status 200 -> a chat completion as OpenAI has it, or its error.
        Whatever it raises makes the answer one call's failure.
    """

    path: str
    request: Callable[[str, Sequence[Message], Mapping[str, Any]], Mapping[str, Any]]
    completion: Callable[[Any], Any]


def _request(
    model: str, messages: Sequence[Message], parameters: Mapping[str, Any]
) -> Mapping[str, Any]:
    return {"model": model, "messages": list(messages), **parameters}


DEFAULT_API = "openai"
CHAT_APIS: Catalog[ChatApi] = Catalog(
    "qaeval.chat",
    {DEFAULT_API: ChatApi("/chat/completions", _request, lambda answer: answer)},
    instance_maker(ChatApi),
)
