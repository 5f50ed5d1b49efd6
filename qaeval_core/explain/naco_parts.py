"""Explain: what an explanation holds of NACo, as plain records: its runs, and its formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NacoRun:
    """NACo, one run of a row: what was asked, what the model replied, and what was read of it.

    Attributes
    ----------
    run, n_runs : int
        Which of the runs this is, from 1.
    problem, message : str or None
        Why the run does not count, and the same for people; None where it counts.
    is_question, is_natural, n_steps, answer, says_unanswerable, answer_f1
        As committed; None where there was no reply. ``answer_f1`` is the F1 with ``gold_answer``.
    prompt : tuple of dict
        ``role`` and ``content`` of each message that was sent.
    is_reminder : bool
        Whether that is the second prompt, after a reply that could not be read.
    key : str or None
        Name of the reply in the journal.
    reply : str or None
        Its text; None where there is none, or none is kept (``notes`` say which).
    finish_reason : str or None
        Why the model stopped, as the endpoint told: ``length`` is a reply that was cut off.
    """

    kind: str = "naco_run"
    run: int
    n_runs: int
    problem: str | None
    message: str | None
    is_question: bool | None
    is_natural: bool | None
    n_steps: int | None
    answer: str | None
    says_unanswerable: bool | None
    answer_f1: float | None
    gold_answer: str | None
    prompt: tuple[dict[str, str], ...]
    is_reminder: bool
    key: str | None
    reply: str | None
    finish_reason: str | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """What the model says of the question."""
        if self.is_question is None:
            return "no verdict"
        if not self.is_question:
            return "not a question"
        return "natural" if self.is_natural else "unnatural"


@dataclass(frozen=True, slots=True, kw_only=True)
class NacoFormula:
    """NACo of one instance: its parts, computed again from the runs that count.

    Attributes
    ----------
    expected_complexity : float
        e, in steps.
    weights : tuple of 3 floats
        w_n, w_a, w_c.
    n_counted : int
        Runs that count.
    naturalness, answerability, complexity, steps, score : float or None
        n, a, c, s and NACo; None where undefined.
    """

    kind: str = "naco_formula"
    instance: str
    profile: str
    expected_complexity: float
    weights: tuple[float, float, float]
    n_counted: int
    naturalness: float | None
    answerability: float | None
    complexity: float | None
    steps: float | None
    score: float | None
    reason: str | None

    @property
    def equation(self) -> str:
        """How the score comes about, in numbers."""
        n, a, c = self.naturalness, self.answerability, self.complexity
        if self.score is None:
            return f"undefined: {self.reason}"
        if not n or not a or c is None:
            return f"0, because {'a' if n else 'n'} = 0"
        terms = zip(self.weights, (n, a, c), strict=True)
        total = " + ".join(f"{weight:g} × {value:.4g}" for weight, value in terms)
        return f"({total}) / {sum(self.weights):g} = {self.score:.4f}"
