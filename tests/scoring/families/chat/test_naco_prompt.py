"""The prompt: what it holds, what changes its hash, and how large it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.families.chat import naco_prompt as prompt
from qaeval_core.families.chat.naco_prompt import make_prompt, prompt_hash, reminder_prompt
from qaeval_core.llm.limits import estimate_tokens

PASSAGES = ("Ann Kell built the mill in 1931.", "The mill of Skarn burned down in 1940.")
QUESTION = "Who built the mill that burned down?"

# One version, one prompt: a change of wording needs a new version and new hashes here.
HASHES = {"1": {False: "8b110f8b58cd", True: "f1ca6eb7dd8b"}}


def asked(*, one_shot: bool = False, passages: tuple[str, ...] = PASSAGES) -> list[dict[str, str]]:
    """Return the prompt of the example question."""
    return make_prompt(question=QUESTION, passages=passages, one_shot=one_shot)


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize("passages", [PASSAGES[:1], PASSAGES, PASSAGES * 3])
def test_texts_stand_in_the_last_message_as_they_are(
    one_shot: bool, passages: tuple[str, ...]
) -> None:
    """A model that sees the example last, or a changed sentence, judges something else."""
    messages = asked(one_shot=one_shot, passages=passages)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"][
        slice(None) if one_shot else slice(1)
    ]
    last = messages[-1]["content"]
    assert last.endswith(f"Sentence:\n{QUESTION}")
    places = [last.find(passage) for passage in passages]
    assert min(places) >= 0
    assert ("Passage 2:" in last) == (len(passages) > 1)
    assert ("Passage:" in last) == (len(passages) == 1)


@settings(max_examples=50, deadline=None)
@given(question=st.text(), passages=st.lists(st.text(), min_size=1, max_size=3), shot=st.booleans())
def test_braces_and_marks_of_texts_are_left_alone(
    question: str, passages: list[str], shot: bool
) -> None:
    """A text with "{them}" in it must neither fail nor be filled in."""
    content = make_prompt(question=question, passages=passages, one_shot=shot)[-1]["content"]
    assert content.endswith(question)
    assert all(passage in content for passage in passages)


def test_the_number_of_passages_is_said() -> None:
    """The paper's prompt says "one/two"; a model told of one looks no further."""
    assert "2 passages and one sentence" in asked()[0]["content"]
    assert "a passage and one sentence" in asked(passages=PASSAGES[:1])[0]["content"]


def test_no_passage_is_refused() -> None:
    """Asked without a passage, a model answers from memory, and is paid for it."""
    with pytest.raises(ValueError, match="at least one passage"):
        make_prompt(question=QUESTION, passages=[], one_shot=False)


@pytest.mark.parametrize("one_shot", [False, True])
def test_another_wording_needs_another_version(one_shot: bool) -> None:
    """Scores of two wordings are not comparable; their signatures must differ."""
    assert prompt_hash(one_shot=one_shot) == HASHES[prompt.PROMPT_VERSION][one_shot]


@pytest.mark.parametrize("name", ["_TASK", "_REMINDER"])
@pytest.mark.parametrize("one_shot", [False, True])
def test_the_hash_covers_every_template(
    monkeypatch: pytest.MonkeyPatch, name: str, one_shot: bool
) -> None:
    """A template outside the hash could change while replies of the old one are reused."""
    before = prompt_hash(one_shot=one_shot)
    monkeypatch.setattr(prompt, name, getattr(prompt, name) + " Please.")
    assert prompt_hash(one_shot=one_shot) != before


@pytest.mark.parametrize("name", ["_EXAMPLE_QUESTION", "_EXAMPLE_REPLY"])
def test_the_hash_covers_the_example_where_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The example changes one-shot replies, and no others: those stay comparable."""
    before = [prompt_hash(one_shot=shot) for shot in (False, True)]
    monkeypatch.setattr(prompt, name, "Ann?")
    after = [prompt_hash(one_shot=shot) for shot in (False, True)]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


@pytest.mark.parametrize("one_shot", [False, True])
def test_a_reminder_is_the_same_request_on_every_run(one_shot: bool) -> None:
    """It needs no reply that a journal without texts has dropped, and changes no message."""
    messages = asked(one_shot=one_shot)
    before = json.dumps(messages)
    again = reminder_prompt(messages)
    assert json.dumps(messages) == before
    assert [message["role"] for message in again] == [message["role"] for message in messages]
    assert again[:-1] == messages[:-1]
    assert again[-1]["content"].startswith(messages[-1]["content"])
    assert len(again[-1]["content"]) > len(messages[-1]["content"])


@pytest.mark.parametrize("one_shot", [False, True])
def test_tokens_of_the_prompt_itself_are_near(one_shot: bool) -> None:
    """The instruction is most of a short prompt: 15 % too many would idle 15 % of the limit."""
    estimate = estimate_tokens(make_prompt(question="", passages=[""], one_shot=one_shot))
    # By cl100k_base, of the contents alone (quicktok 0.4.0).
    n_tokens = {False: 241, True: 414}[one_shot]
    assert n_tokens < estimate <= 1.15 * n_tokens + 20
