"""A judge's prompt and reader: what is put in, and which number a reply has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.families.chat.judge_family import JudgeFamily, JudgeReply
from qaeval_core.metrics.judge import JudgeSettings, fill, placeholders
from wall_clock import cpu_s


def judge(**settings: object) -> JudgeFamily:
    """Return a family that reads as the settings say."""
    return JudgeFamily(JudgeSettings(metric="judge", **settings))


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        ("last_number", "I would say 4.", 4.0),
        ("last_number", "First 2, then better: **3**", 3.0),
        ("last_number", "Score: 4/5", 4.0),
        ("last_number", "4 out of 5.", 4.0),
        ("last_number", "4.5", 4.5),
        ("last_number", "step 1: good\nstep 2: fine\n\n5", 5.0),
        ("last_number", "7/10", "on another scale"),
        ("last_number", "6", "not in [1, 5]"),
        ("last_number", "0", "not in [1, 5]"),
        ("last_number", "-3", "not in [1, 5]"),
        ("last_number", "4,5", "two ways"),
        ("last_number", "1.2.3", "two ways"),
        ("last_number", "the 3rd of v2", "no number"),
        ("last_number", "four", "no number"),
        ("last_number", "", "no number"),
        ("json:score", 'Sure: {"score": 3, "why": "1"}', 3.0),
        ("json:score", '{"score": 2} no: {"score": "4"}', 4.0),
        ("json:score", '```json\n{"why": {"a": "}"}, "score": 1.5}\n```', 1.5),
        ("json:score", '{"score": true}', "no number"),
        ("json:score", '{"score": null}', "no number"),
        ("json:score", '{"score": NaN}', "no number"),
        ("json:score", '{"score": 9}', "not in [1, 5]"),
        ("json:score", '{"Score": 3}', "no JSON object"),
        ("json:score", "3", "no JSON object"),
        ("json:score", '{"score": 4, "aspects": {"clarity": {"score": 2}}}', 4.0),
        ("json:score", '{"aspects": {"clarity": {"score": 2}}, "score": ', "no JSON object"),
        ("json:score", '{"score": 4, "aspects": [{"score": 2}, {"score": 1}]}', 4.0),
        ("json:score", '{"all": {"score": 2}}', "no JSON object"),
        ("json:score", '{score: N} is the form: {"score": 4} {"note": 1}', 4.0),
        ("json:score", "{'why': {\"score\": 2}, 'score': 4}", "no JSON object"),
        ("json:score", '{"why": "a } b {", "own": {"score": 2},}', "no JSON object"),
        ("json:score", '[{"score": 2}, {"score": 4}]', 4.0),
        ("json:score", '{"\\"' * 10_000, "no JSON object"),
        ("json:score", '{} {a} {"a": {"score": 2}} ' * 2_000 + '{"score": 3}', 3.0),
        ("json:score", "{" * 30_000, "no JSON object"),
        ("json:score", '{"a":' * 30_000, "no JSON object"),
        ("tag:rating", "<rating>2</rating> <Rating> 5 </RATING>", 5.0),
        ("tag:rating", "<rating>five</rating>", "no number"),
        ("tag:rating", "<rating>2", "no <rating>"),
        ("tag:rating", "</rating>2<rating>", "no <rating>"),
        ("tag:rating", "<rating>2<rating>3</rating>", 3.0),
    ],
)
def test_a_reply_has_one_number_or_none(read: str, text: str, expected: float | str) -> None:
    """Protects from a number that is clipped, guessed, or another one than was meant."""
    reply = judge(read=read).read_reply(text)
    if isinstance(expected, float):
        assert reply == JudgeReply(is_readable=True, value=expected)
    else:
        assert not reply.is_readable and reply.value is None
        assert expected in (reply.problem or "")


@given(text=st.text(), read=st.sampled_from(["last_number", "json:a", "tag:a"]))
def test_any_reply_is_read_or_says_why_not(text: str, read: str) -> None:
    """Protects from a reply that ends a run; what the journal kept reads the same."""
    family = judge(read=read, scale=(-10, 10))
    reply = family.read_reply(text)
    assert reply.is_readable == (reply.value is not None) == (reply.problem is None)
    kept = json.loads(json.dumps(family.parsed(text)))
    assert family.reply_of(kept) == reply


@pytest.mark.parametrize(
    "text",
    ["1," * 32_000, "<a>" * 20_000, "9" * 64_000, '{"a": ' * 9_000, '{"\\"' * 16_000,
     "{a} " * 16_000, '{"b": {"a": 1}}' * 4_000],
)  # fmt: skip
@pytest.mark.parametrize("read", ["last_number", "json:a", "tag:a"])
def test_no_reply_takes_long_to_read(read: str, text: str) -> None:
    """Protects from a model that stops a pool with 64 kB."""
    family = judge(read=read)
    assert cpu_s(lambda: family.read_reply(text)) < 1.0


@given(st.dictionaries(st.sampled_from(["candidate", "context"]), st.text(), min_size=2))
def test_braces_of_texts_are_no_placeholders(values: dict[str, str]) -> None:
    """Protects from a row that has another row's or role's text put in, or fails."""
    before, between, after = "{{x}} { ", "|", " } {{"
    prompt = f"{before}{{candidate}}{between}{{context}}{after}"
    expected = f"{{x}} {{ {values['candidate']}{between}{values['context']} }} {{"
    assert placeholders(prompt) == ("candidate", "context")
    assert fill(prompt, values) == expected


def config_of(folder: Path, prompt: str, **settings: object) -> JudgeSettings:
    """Return the settings of a judge with a prompt."""
    (folder / "prompt.txt").write_text(prompt, encoding="utf-8")
    given = {"prompt_file": str(folder / "prompt.txt"), **settings}
    config = load_config(overrides={f"metrics.judge.{key}": own for key, own in given.items()})
    own = config.metrics["judge"]
    assert isinstance(own, JudgeSettings)
    return own


def test_a_prompt_names_the_roles_that_are_read(tmp_path: Path) -> None:
    """Protects from rows that must have columns which nobody reads."""
    own = config_of(tmp_path, 'Is {answer} right for {candidate}? As {"score": 3}.')
    assert JudgeFamily(own).roles == ("answer", "candidate")


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ("Rate {candidat}.", {}, "'candidate'.*QA0202"),
        ("Rate this.", {}, "QA0202"),
        ("{candidate}", {"scale": [5, 1]}, "QA0202"),
        ("{candidate}", {"scale": [1]}, "QA0202"),
        ("{candidate}", {"read": "lastnumber"}, "'last_number'.*QA0202"),
        ("{candidate}", {"read": "json:"}, "json:FIELD.*QA0202"),
        ("{candidate}", {"prompt_file": "/nowhere/prompt.txt"}, "QA0202"),
    ],
)
def test_what_is_wrong_with_a_judge_is_said_first(
    tmp_path: Path, prompt: str, settings: dict[str, object], message: str
) -> None:
    """Protects from paying for replies to a prompt with a hole in it."""
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, prompt, **settings)


def test_a_file_of_settings_sends_no_file_of_others(tmp_path: Path) -> None:
    """Protects from a YAML file that has a private file sent to its author's server."""
    (tmp_path / "private.txt").write_text("{candidate} and a secret")
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "config.yaml"
    path.write_text(f"metrics:\n  judge:\n    prompt_file: {tmp_path}/private.txt\n")
    with pytest.raises(ConfigError, match="metrics.judge.prompt_file.*QA0210"):
        load_config(path=path)
    load_config(path=path, overrides={"judge.prompt_file": str(tmp_path / "private.txt")})
