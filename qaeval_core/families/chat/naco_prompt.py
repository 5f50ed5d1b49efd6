"""Prompt: the chat messages that ask a model to judge and answer a question.

Texts in, messages of an OpenAI-compatible endpoint out, with their version and
hash. Sends nothing; what comes back is read by ``naco_reply``.

Source
------
Nguyen, Yu, Huang, Jiang. Reference-based Metrics Disprove Themselves in Question Generation.
Findings of EMNLP 2024, arXiv:2403.12242, appendix A.2: is the sentence a question, is it unclear
or ungrammatical, reason aloud in steps, mark a span of the passages as the answer.

Differs from the paper's prompt
-------------------------------
- The wording is our own, and a reply has three labels instead of three numbers: a number can only
  begin a reasoning step.
- A model may say that the passages do not answer. Without that, replies to such questions mostly
  lack an answer and could not be told from broken ones.
- There is no system message, which some models' templates refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from qaeval_core.llm.limits import Message
from qaeval_core.signature import hash_text

PROMPT_VERSION = "1"

_TASK = """\
Below you find {passages} and one sentence, which may be a question about {them}. Judge it, then \
answer it, in three parts.

Verdict. Does the sentence ask something, and what shows that it does? If it asks nothing, the \
verdict is "not a question": give it and end your reply. If it asks something, is it clear what \
it asks, and is its grammar right? If not, the verdict is "unnatural", else "natural". Go on in \
both cases.
Steps. Find the answer, and write down all of your reasoning on the way from {them} to it, as \
numbered steps: one thought, in one short sentence, in each.
Answer. Copy the words of {them} that answer the sentence, as few as will do and never a whole \
sentence, between <ans> and </ans>. If no words of {them} answer it, write \
<ans>unanswerable</ans>.

End your reply with the answer. It has this form:

Verdict: your verdict, and why
Steps:
1. the first step
2. the second step
Answer: <ans>the answer</ans>"""

_REMINDER = """\
Mind the form, because a program reads your reply: one line that begins with "Verdict:", a line \
"Steps:" with the numbered steps below it, and one line "Answer:" with the answer between <ans> \
and </ans>."""

# Written for this project; its places and persons are made up.
_EXAMPLE_PASSAGES = (
    "The Orrin Bridge was opened in 1931. It crosses the Tave beside the old ferry house and was "
    "designed by Maud Ellery, who had studied in Lund.",
    "Maud Ellery (1889-1960) was an engineer. She is best known for the lighthouse on Skarn, "
    "which she finished two years before her death.",
)
_EXAMPLE_QUESTION = "Which lighthouse was built by the designer of the Orrin Bridge?"
_EXAMPLE_REPLY = """\
Verdict: natural; it begins with "which", asks for one thing and has no error
Steps:
1. The first passage says that Maud Ellery designed the Orrin Bridge.
2. The second passage says that Maud Ellery is known for the lighthouse on Skarn.
Answer: <ans>the lighthouse on Skarn</ans>"""


def make_prompt(*, question: str, passages: Sequence[str], one_shot: bool) -> list[Message]:
    """Return the messages that ask for a verdict, steps and an answer.

    Parameters
    ----------
    question : str
        The text to judge, as it stands: whether it is a question is for the model to say.
    passages : sequence of str
        One or several; numbered where there are several.
    one_shot : bool
        Show an example, with its reply, before the question.

    Returns
    -------
    list of dict
        ``role`` and ``content`` of each message: one message, or three with the example.

    Raises
    ------
    ValueError
        If there is no passage.

    Examples
    --------
    >>> (message,) = make_prompt(question="Who came?", passages=["Ann came."], one_shot=False)
    >>> print(message["content"][-39:])
    Passage:
    Ann came.
    <BLANKLINE>
    Sentence:
    Who came?
    >>> messages = make_prompt(question="Who came?", passages=["Ann came."], one_shot=True)
    >>> [message["role"] for message in messages]
    ['user', 'assistant', 'user']
    """
    if not passages:
        raise ValueError("a prompt needs at least one passage")
    if not one_shot:
        return [_user(_task(len(passages)), _case(question, passages))]
    example = _case(_EXAMPLE_QUESTION, _EXAMPLE_PASSAGES)
    return [
        _user(_task(len(_EXAMPLE_PASSAGES)), example),
        {"role": "assistant", "content": _EXAMPLE_REPLY},
        _user(_case(question, passages)),
    ]


def reminder_prompt(messages: Sequence[Mapping[str, str]]) -> list[Message]:
    """Return the messages that ask again after a reply that could not be read.

    They do not hold that reply: a journal without texts must give the same request again, or it
    would be paid for twice.

    Examples
    --------
    >>> asked = make_prompt(question="Who came?", passages=["Ann came."], one_shot=False)
    >>> (again,) = reminder_prompt(asked)
    >>> again["content"].startswith(asked[0]["content"])
    True
    """
    *first, last = messages
    again = {"role": last["role"], "content": f"{last['content']}\n\n{_REMINDER}"}
    return [*(dict(message) for message in first), again]


def prompt_hash(*, one_shot: bool) -> str:
    """Return the hash of everything in the prompts but the texts of a row.

    It covers how messages are put together, for one passage and several, and the reminder.

    Examples
    --------
    >>> prompt_hash(one_shot=True) == prompt_hash(one_shot=False)
    False
    """
    asked = [
        make_prompt(question="{question}", passages=["{passage}"] * n, one_shot=one_shot)
        for n in (1, 2)
    ]
    return hash_text(json.dumps([asked, [reminder_prompt(messages) for messages in asked]]))


def prompt_name(*, one_shot: bool) -> str:
    """Return version and hash of a prompt, as signatures show them."""
    return f"{PROMPT_VERSION}-{prompt_hash(one_shot=one_shot)}"


def _task(n_passages: int) -> str:
    passages = "a passage" if n_passages == 1 else f"{n_passages} passages"
    return _TASK.format(
        passages=passages, them="the passage" if n_passages == 1 else "the passages"
    )


def _case(question: str, passages: Sequence[str]) -> str:
    if len(passages) == 1:
        parts = [f"Passage:\n{passages[0]}"]
    else:
        parts = [f"Passage {i}:\n{passage}" for i, passage in enumerate(passages, 1)]
    return "\n\n".join([*parts, f"Sentence:\n{question}"])


def _user(*parts: str) -> Message:
    return {"role": "user", "content": "\n\n".join(parts)}
