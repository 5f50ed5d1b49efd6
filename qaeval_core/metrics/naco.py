"""NACo: a question's naturalness, answerability and complexity, as a language model finds them.

Verdicts, F-scores of answers and step counts of the runs in, scores out. Sends nothing and reads
no reply (``llm``); words of answers are compared elsewhere (``text``).

Source
------
Nguyen, Yu, Huang, Jiang. Reference-based Metrics Disprove Themselves in Question Generation.
Findings of EMNLP 2024, arXiv:2403.12242, section 3. A model that answers the question says whether
it is a natural one (n), gives an answer of which the F1 with the gold answer is a, and takes s
reasoning steps. With e the steps that questions of the corpus usually take::

    c = min(s, e) / max(s, e)
    NACo = (w_n n + w_a a + w_c c) / (w_n + w_a + w_c)        0 where n = 0 or a = 0

The equation for c is that of the authors' program; the paper has none. Weights are 1 by default,
the paper's thirds.

Runs: n, a and s are means over the runs that count. A run whose reply could not be read does not
count. A run with n = 0 adds a = 0, and nothing to the mean of s. Without a run that counts all is
undefined; where all that count have n = 0, NACo is 0, and s and c are undefined.

Differs from the authors' program (bnguyen5/naco at 2d347c4)
------------------------------------------------------------
Profile ``authors`` follows these:

- n is 0 for what is not a question and 0.5 for an unnatural one; the paper has 0 for both.
- e is the median over questions of their mean steps. The paper takes the most common step count;
  here that of all runs together, of equally common ones the smallest.

Neither profile follows these:

- A reply without an answer or verdict has a = 0 and counts.
- s is how often the reply says "step", and a run with n = 0 adds its s to the mean.
- Weights are not divided by their sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, field_validator, model_validator

from qaeval_core.errors import ConfigError, InputError
from qaeval_core.metrics.base import Calibration, Column, Metric, PassFacts, Read, Scores, Section
from qaeval_core.metrics.calibrated import read_complexity
from qaeval_core.metrics.chat import (
    UNPARSABLE,
    ChatSettings,
    by_run,
    counted_runs,
    mean_over_runs,
    run_reasons,
)
from qaeval_core.metrics.targets import Targets

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
PROFILES = ("paper", "authors")


class NacoScores(NamedTuple):
    """Scores of each row: float ndarrays of shape (n_rows,), n_runs of int; NaN where undefined.

    All but ``steps`` and ``n_runs`` are in [0, 1], higher is better.
    """

    naco: FloatArray
    naturalness: FloatArray
    answerability: FloatArray
    complexity: FloatArray  # c: how near steps are to the expected ones
    steps: FloatArray  # s: at least 1
    n_runs: IntArray  # runs that count


def naturalness(*, is_question: BoolArray, is_natural: BoolArray, profile: str) -> FloatArray:
    """Return n of each run.

    Parameters
    ----------
    is_question, is_natural : bool ndarray of any shape
        The verdicts of the replies.
    profile : {"paper", "authors"}
        Whether an unnatural question has n = 0 or 0.5.

    Returns
    -------
    float ndarray of that shape
        In [0, 1], higher is better.

    Examples
    --------
    >>> verdicts = {
    ...     "is_question": np.array([True, True, False]),
    ...     "is_natural": np.array([True, False, False]),
    ... }
    >>> naturalness(**verdicts, profile="paper"), naturalness(**verdicts, profile="authors")
    (array([1., 0., 0.]), array([1. , 0.5, 0. ]))
    """
    _check_profile(profile)
    unnatural = 0.5 if profile == "authors" else 0.0
    return np.where(is_question, np.where(is_natural, 1.0, unnatural), 0.0)


def naco(
    *,
    naturalness: FloatArray,
    answerability: FloatArray,
    n_steps: IntArray | FloatArray,
    is_counted: BoolArray,
    expected_complexity: float,
    weights: Sequence[float] = (1.0, 1.0, 1.0),
) -> NacoScores:
    """Return NACo and its parts, from all runs of each row.

    Parameters
    ----------
    naturalness : float ndarray of shape (n_rows, n_runs)
        n of each run, in [0, 1].
    answerability : float ndarray of shape (n_rows, n_runs)
        F1 of the model's answer and the gold answer, in [0, 1]; 0 where it gave none. Not read
        where n is 0.
    n_steps : int or float ndarray of shape (n_rows, n_runs)
        Reasoning steps; fewer than 1 count as 1. Not read where n is 0.
    is_counted : bool ndarray of shape (n_rows, n_runs)
        False where a reply could not be read; such a run may hold anything, NaN too.
    expected_complexity : float
        e, in steps, at least 1; see `expected_complexity`.
    weights : sequence of 3 floats, default (1, 1, 1)
        w_n, w_a, w_c: not negative, and not all 0.

    Returns
    -------
    Naco

    Raises
    ------
    ConfigError
        If e or a weight is out of its range.

    Examples
    --------
    Two runs of one question that is expected to take 3 steps, and the second one unnatural:

    >>> scores = naco(
    ...     naturalness=np.array([[1.0, 0.0]]), answerability=np.array([[1.0, 0.4]]),
    ...     n_steps=np.array([[2, 5]]), is_counted=np.array([[True, True]]),
    ...     expected_complexity=3,
    ... )
    >>> [round(score.item(), 4) for score in scores]
    [0.5556, 0.5, 0.5, 0.6667, 2.0, 2]

    Had the reply of the second run been unreadable:

    >>> scores = naco(
    ...     naturalness=np.array([[1.0, np.nan]]), answerability=np.array([[1.0, np.nan]]),
    ...     n_steps=np.array([[2, 0]]), is_counted=np.array([[True, False]]),
    ...     expected_complexity=3,
    ... )
    >>> [round(score.item(), 4) for score in scores]
    [0.8889, 1.0, 1.0, 0.6667, 2.0, 1]
    """
    w_n, w_a, w_c = _checked_weights(weights)
    e = _checked_expectation(expected_complexity)
    is_natural = is_counted & (naturalness > 0)
    n = mean_over_runs(naturalness, is_counted)
    a = mean_over_runs(np.where(is_natural, answerability, 0.0), is_counted)
    s = mean_over_runs(np.maximum(n_steps, 1), is_natural)

    c = np.minimum(s, e) / np.maximum(s, e)
    score = (w_n * n + w_a * a + w_c * c) / (w_n + w_a + w_c)  # NACo
    score = np.where((n == 0) | (a == 0), 0.0, score)
    return NacoScores(score, n, a, c, s, np.asarray(is_counted.sum(axis=1), dtype=np.int64))


def expected_complexity(n_steps: Sequence[Sequence[int]], *, profile: str) -> float:
    """Return e: how many steps questions of a corpus usually take.

    Parameters
    ----------
    n_steps : sequence of sequence of int
        For each reference question, the steps of its runs that count and have n > 0; a question
        without such a run is left out.
    profile : {"paper", "authors"}
        The most common step count of all runs (the smallest of several), or the median over
        questions of their mean.

    Returns
    -------
    float
        In steps, at least 1.

    Raises
    ------
    InputError
        If there is no run at all.

    Examples
    --------
    >>> runs = [[2, 2, 3], [3, 3, 4], [], [2, 5, 5]]
    >>> expected_complexity(runs, profile="paper"), expected_complexity(runs, profile="authors")
    (2.0, 3.3333333333333335)
    """
    _check_profile(profile)
    answered = [np.maximum(np.asarray(own, dtype=np.int64), 1) for own in n_steps if len(own)]
    if not answered:
        raise InputError(
            "expected complexity needs a natural question that was answered; none of "
            f"{len(n_steps)} reference questions was [QA0217]"
        )
    if profile == "authors":
        return float(np.median([own.mean() for own in answered]))
    values, counts = np.unique(np.concatenate(answered), return_counts=True)
    return float(values[counts.argmax()])  # argmax: the first, so the smallest


def _check_profile(profile: str) -> None:
    if profile not in PROFILES:
        raise ConfigError(f"profile is {profile!r}; choose one of {', '.join(PROFILES)} [QA0202]")


def _checked_weights(weights: Sequence[float]) -> tuple[float, float, float]:
    w_n, w_a, w_c = weights
    if not all(0 <= w < np.inf for w in weights) or w_n + w_a + w_c == 0:
        raise ConfigError(
            f"weights are {tuple(weights)}; each must be 0 or more, and one above 0 [QA0202]"
        )
    return w_n, w_a, w_c


def _checked_expectation(e: float) -> float:
    if not 1 <= e < np.inf:
        raise ConfigError(f"expected complexity is {e} steps; it must be 1 or more [QA0202]")
    return e


Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class NacoWeights(Section):
    """Weights of NACo's parts (``naco.weights``); only their ratios matter."""

    naturalness: Weight = Field(1.0, description="weight of naturalness (w_n)")
    answerability: Weight = Field(1.0, description="weight of answerability (w_a)")
    complexity: Weight = Field(1.0, description="weight of complexity (w_c)")

    @model_validator(mode="after")
    def _check_sum(self) -> NacoWeights:
        if self.naturalness + self.answerability + self.complexity == 0.0:
            raise ValueError("one of the three weights must be above 0")
        return self

    @property
    def as_tuple(self) -> tuple[float, float, float]:
        """(w_n, w_a, w_c)."""
        return (self.naturalness, self.answerability, self.complexity)


class NacoSettings(ChatSettings):
    """Settings of ``naco``."""

    files: ClassVar[tuple[str, ...]] = ("expected_complexity",)

    runs: int = Field(1, ge=1, le=100, description="replies to request for each question")
    expected_complexity: float | str | None = Field(
        None,
        union_mode="left_to_right",
        description="expected steps (e), or a file of `qaeval calibrate`; required",
    )
    one_shot: bool = Field(False, description="add an example to the prompt; small models need it")
    profile: Literal["paper", "authors"] = Field(
        "paper",
        description="paper: an unnatural question has n = 0, and e is the most common step count; "
        "authors: n = 0.5, and e is the median",
    )
    weights: NacoWeights = Field(
        NacoWeights(),
        description="weights of the parts: {naturalness: w, answerability: w, complexity: w}",
    )
    _complexity_corpus: str = PrivateAttr("no")  # Resolved: of the file.

    @field_validator("expected_complexity", mode="before")
    @classmethod
    def _check_expectation(cls, given: object) -> object:
        # Here and not by type: what is no number of steps would be taken for a file's name.
        is_text = isinstance(given, str) and given.strip()
        number = _number(given)
        if given is None or (is_text and number is None):
            return given
        if number is None or not 1 <= number < math.inf:
            raise ValueError("it takes a number of steps, 1 or more, or a file")
        return number


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        return float(given)
    except (ValueError, OverflowError):
        return None


class Naco(Metric[NacoSettings]):
    """NACo."""

    name = "naco"
    title = "naturalness, answerability and complexity of a question, by a language model"
    source = (
        "Nguyen et al. Reference-based Metrics Disprove Themselves in Question Generation. "
        "Findings of EMNLP 2024, arXiv:2403.12242, section 3"
    )
    settings = NacoSettings
    needs = ("endpoint",)
    calibrated = "expected_complexity"
    roles = ("candidate", "context", "answer")
    columns = (
        Column(""),
        Column("naturalness"),
        Column("answerability"),
        Column("complexity"),
        Column("steps", is_share=False),
        Column("predicted_answer", "text"),
        Column("runs", "count"),
    )
    over_references = "none"

    def calibrated_parts(self, settings: NacoSettings) -> tuple[str, ...]:
        """Return the family of its replies."""
        return ("naco",)

    def calibrate(
        self, settings: NacoSettings, part: str, read: Targets, facts: PassFacts
    ) -> Calibration:
        """Return e of both profiles, and what the replies were."""
        problems: list[list[str | None]] = read.lists("problem")
        verdicts = {name: read.lists(name) for name in ("is_natural", "is_question")}
        counted = [[problem is None for problem in own] for own in problems]
        # In the authors' program unnatural questions count, too.
        steps = {
            profile: [
                [max(n, 1) for n, *is_in in zip(*own, strict=True) if all(is_in)]
                for own in zip(read.lists("n_steps"), counted, verdicts[verdict], strict=True)
            ]
            for profile, verdict in zip(PROFILES, verdicts, strict=True)
        }
        every = [problem for own in problems for problem in own]
        record = {
            **{name: expected_complexity(own, profile=name) for name, own in steps.items()},
            "n_questions": sum(map(any, counted)),
            "n_runs": sum(map(sum, counted)),
            "n_unreadable": every.count(UNPARSABLE),
            "n_failed": sum(problem not in (None, UNPARSABLE) for problem in every),
            "n_unnatural": sum(own.count(False) for own in verdicts["is_natural"]),
            "n_steps": dict(sorted(Counter(chain.from_iterable(steps["paper"])).items())),
        }
        prompt = str(facts.settings["prompt"])
        return Calibration(key=complexity_key(settings, prompt=prompt), record=record)

    def reads(self, settings: NacoSettings) -> tuple[Read, ...]:
        """Return what replies say."""
        return (Read(family="naco", settings=settings),)

    def resolve(self, settings: NacoSettings, passes: Mapping[str, PassFacts]) -> NacoSettings:
        """Return settings with the number of expected steps."""
        given = settings.expected_complexity
        if given is None:
            raise ConfigError(
                "expected_complexity is missing. It is the usual number of reasoning steps of this "
                "corpus: find it with `qaeval calibrate --metrics naco`, or give a number [QA0207]"
            )
        corpus = "no"
        if isinstance(given, str):
            key = complexity_key(settings, prompt=str(passes["naco"].settings["prompt"]))
            given, corpus = read_complexity(
                given, key=key, profile=settings.profile, metric=self.name
            )
        found = settings.model_copy(update={"expected_complexity": given})
        found._complexity_corpus = corpus
        return found

    def signed(self, settings: NacoSettings) -> dict[str, object]:
        """Return what the formula reads; what is asked is in the key of the family."""
        return {
            "complexity_corpus": settings._complexity_corpus,
            "expected_complexity": settings.expected_complexity,
            "profile": settings.profile,
            "weights": ",".join(f"{w:g}" for w in settings.weights.as_tuple),
        }

    def score(self, settings: NacoSettings, read: Mapping[str, Targets]) -> Scores:
        """Return the columns of some rows."""
        replies, n_runs = read["naco"], settings.runs
        is_counted = counted_runs(replies, n_runs)
        is_question, is_natural, n_steps, answer_f1 = (
            by_run(replies.lists(name), n_runs)
            for name in ("is_question", "is_natural", "n_steps", "answer_f1")
        )
        assert isinstance(settings.expected_complexity, float)
        scores = naco(
            naturalness=naturalness(
                is_question=is_question > 0, is_natural=is_natural > 0, profile=settings.profile
            ),
            answerability=answer_f1,
            n_steps=n_steps,
            is_counted=is_counted,
            expected_complexity=settings.expected_complexity,
            weights=settings.weights.as_tuple,
        )
        values: dict[str, Any] = {
            "": scores.naco,
            "naturalness": scores.naturalness,
            "answerability": scores.answerability,
            "complexity": scores.complexity,
            "steps": scores.steps,
            "predicted_answer": _first_answers(replies.lists("answer"), is_counted),
            "runs": scores.n_runs,
        }
        return Scores(values, run_reasons(replies, is_undefined=np.isnan(scores.naco)))


def complexity_key(settings: NacoSettings, *, prompt: str) -> str:
    """Return what an expected complexity belongs to: the model, and how it is asked."""
    parameters = ",".join(f"{name}:{value}" for name, value in settings.parameters.items())
    return f"{settings.model}|{parameters}|prompt:{prompt}"


def _first_answers(rows: list[Any], is_counted: BoolArray) -> list[str | None]:
    """Return the answer of each row's first run that counts and gave one."""
    found = []
    for own, counted in zip(rows, is_counted.tolist(), strict=True):
        answers = [answer for answer, is_in in zip(own or [], counted, strict=False) if is_in]
        found.append(next((answer for answer in answers if answer is not None), None))
    return found
