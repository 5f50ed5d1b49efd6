"""Judge: a number that a language model gives a row when it is asked with a prompt of one's own.

Numbers of the runs in, scores out. Sends nothing and reads no reply (``llm``).

Source
------
A prompt of the user's; there is no paper whose numbers this gives. The practice is that of Liu,
Iter, Xu, Wang, Xu, Zhu. G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment. EMNLP 2023,
arXiv:2303.16634, section 2, with the mean of sampled replies in place of token probabilities::

    judge = mean of the numbers of the runs that count

A run counts if its reply holds a number on the scale where ``read`` says; one off the scale cannot
be read, and is not moved to its end. Without a run that counts the score is undefined.

The prompt
----------
A text file. ``{candidate}`` stands for the row's text of that role; roles are candidate, question,
context, answer and references, passages of a context are joined by empty lines, references by line
ends. Double braces, ``{{context}}``, stand for themselves in single ones; other braces are text.
What stands in a row is put in as it is: braces there are no placeholders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field, PrivateAttr, field_validator, model_validator

from qaeval_core.errors import nearest
from qaeval_core.metrics.base import Column, Metric, Read, Scores
from qaeval_core.metrics.chat import (
    ChatSettings,
    by_run,
    counted_runs,
    mean_over_runs,
    run_reasons,
)
from qaeval_core.metrics.targets import Targets
from qaeval_core.storage.files import expanded
from qaeval_core.storage.wary import read_given

PROMPT_ROLES = ("candidate", "question", "context", "answer", "references")
_MAX_PROMPT_CHARS = 100_000
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_READ = re.compile(r"last_number|json:\w[\w-]*|tag:[A-Za-z][\w-]*")


def placeholders(prompt: str) -> tuple[str, ...]:
    """Return the names that a prompt has places for, each once.

    Examples
    --------
    >>> placeholders('Rate {candidate} for {question}. Reply {{score}}, as {"score": 3}.')
    ('candidate', 'question')
    """
    return tuple(dict.fromkeys(own[1] for own in _PLACEHOLDER.finditer(prompt) if own[1]))


def fill(prompt: str, values: Mapping[str, str]) -> str:
    """Return a prompt with a row's texts in it; their own braces are left as they are.

    Examples
    --------
    >>> fill("Rate {candidate}, as {{score}}.", {"candidate": "{question}"})
    'Rate {question}, as {score}.'
    """

    def put(found: re.Match[str]) -> str:
        return values[found[1]] if found[1] else found[0][0]

    return _PLACEHOLDER.sub(put, prompt)


class JudgeSettings(ChatSettings):
    """Settings of ``judge``."""

    files: ClassVar[tuple[str, ...]] = ("prompt_file",)

    prompt_file: str | None = Field(
        None, description="file with the prompt; {role} stands for a text of the row; required"
    )
    scale: tuple[float, float] = Field((1.0, 5.0), description="[lowest, highest] valid number")
    read: str = Field(
        "last_number",
        description="position of the number in a reply: last_number, json:FIELD or tag:NAME",
    )
    _prompt: str = PrivateAttr("")  # The file's text: workers elsewhere do not have the file.

    @field_validator("scale")
    @classmethod
    def _check_scale(cls, given: tuple[float, float]) -> tuple[float, float]:
        if not all(map(math.isfinite, given)) or given[0] >= given[1]:
            raise ValueError("it takes [lowest, highest], two numbers of which the first is less")
        return given

    @field_validator("read")
    @classmethod
    def _check_read(cls, given: str) -> str:
        if not _READ.fullmatch(given):
            raise ValueError(
                f"it takes last_number, json:FIELD or tag:NAME, not {given[:80]!r}"
                f"{nearest(given, ('last_number',))}"
            )
        return given

    @model_validator(mode="after")
    def _read_prompt(self) -> JudgeSettings:
        if self.prompt_file is None:
            return self
        try:
            text = read_given(expanded(self.prompt_file))
        except OSError as error:
            raise ValueError(f"prompt_file {self.prompt_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"prompt_file {self.prompt_file} is no UTF-8") from None
        if len(text) > _MAX_PROMPT_CHARS:
            raise ValueError(f"prompt_file has {len(text):,} characters")
        found = placeholders(text)
        unknown = [name for name in found if name not in PROMPT_ROLES]
        if unknown:
            raise ValueError(
                f"prompt_file has a placeholder {{{unknown[0]}}}, which is no role"
                f"{nearest(unknown[0], PROMPT_ROLES)}; roles: {', '.join(PROMPT_ROLES)}; for "
                "braces of its own write them twice"
            )
        if not found:
            raise ValueError(
                "prompt_file has no placeholder, so every row would be asked the same; write "
                "{candidate} where the text to judge belongs"
            )
        self._prompt = text
        return self

    @property
    def prompt(self) -> str:
        """Text of the prompt; "" where there is none."""
        return self._prompt


class Judge(Metric[JudgeSettings]):
    """A number by a language model."""

    name = "judge"
    title = "a number by a language model that is asked with a prompt of one's own"
    source = "the user's prompt; as Liu et al. G-Eval. EMNLP 2023, arXiv:2303.16634, section 2"
    settings = JudgeSettings
    needs = ("endpoint",)
    roles = PROMPT_ROLES
    columns = (Column(""), Column("runs", "count"))
    low = -math.inf
    high = math.inf
    over_references = "none"

    def roles_of(self, settings: JudgeSettings) -> tuple[str, ...]:
        """Return the roles that the prompt names."""
        return placeholders(settings.prompt)

    def reads(self, settings: JudgeSettings) -> tuple[Read, ...]:
        """Return what replies say."""
        return (Read(family="judge", settings=settings),)

    def signed(self, settings: JudgeSettings) -> dict[str, object]:
        """Return what the formula reads; prompt, scale and reading are in the key of the family."""
        return {"over_runs": "mean"}

    def score(self, settings: JudgeSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        replies, n_runs = read["judge"], settings.runs
        is_counted = counted_runs(replies, n_runs)
        mean = mean_over_runs(by_run(replies.lists("value"), n_runs), is_counted)
        n_counted = np.asarray(is_counted.sum(axis=1), dtype=np.int64)
        reasons = run_reasons(replies, is_undefined=np.isnan(mean))
        return Scores({"": mean, "runs": n_counted}, reasons)
