"""Explain NACo: its runs, with prompt, reply and reading, and its formula in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qaeval_core.explain.chat import ChatRun, run_data, run_part
from qaeval_core.explain.parts import Part, number, short
from qaeval_core.pages.html import Block, Fields
from qaeval_core.planning.run_plan import InstancePlan

Data = Mapping[str, Any]


def naco_parts(chat: ChatRun, scores: Mapping[str, object]) -> Iterator[Part]:
    """Yield a row's runs, and the formula of each instance."""
    for own in run_data(chat):
        score = (chat.committed or {})["answer_f1"][own["run"] - 1]
        data = {
            **own,
            "answer_f1": score if own["key"] is not None else None,
            "gold_answer": chat.values.get("answer"),
        }
        yield run_part("naco_run", data, line=_reading_line(data), block=_reading(data))
    for plan in chat.instances:
        yield _formula(plan, scores)


def _verdict(run: Data) -> str:
    if run["is_question"] is None:
        return "no verdict"
    if not run["is_question"]:
        return "not a question"
    return "natural" if run["is_natural"] else "unnatural"


def _reading_line(run: Data) -> str:
    """Return what was read of a reply that counts, in one line."""
    if not run["is_question"]:
        return _verdict(run)
    told = f"{_verdict(run)}, {run['n_steps']} step{'' if run['n_steps'] == 1 else 's'}"
    if run["answer"] is not None:
        told += f", answer {short(run['answer'])!r}, F1 {run['answer_f1']:.4f}"
        told += f" with {short(run['gold_answer'])!r}"
    elif run["says_unanswerable"]:
        told += ", says that the passages do not answer"
    return told


def _reading(run: Data) -> Block:
    score = run["answer_f1"]
    values = [
        ("verdict", _verdict(run)),
        ("reasoning steps", _or_none(run["n_steps"])),
        ("answer", _or_none(run["answer"])),
        ("gold answer", _or_none(run["gold_answer"])),
        ("F1 of both answers", "none" if score is None else number(score)),
    ]
    if run["says_unanswerable"]:
        values.append(("passages", "do not answer it, says the reply"))
    return Fields("What was read of the reply", values)


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def _formula(plan: InstancePlan, scores: Data) -> Part:
    """Return NACo of one instance: its parts, computed again from the runs that count."""
    settings = plan.settings.model_dump()
    expected, weights = settings["expected_complexity"], list(settings["weights"].values())
    parts = {
        name: scores[plan.column(name)]
        for name in ("naturalness", "answerability", "complexity", "steps")
    }
    n, a, c, s = parts.values()
    score, reason = scores[plan.column("")], scores[plan.reason_column]
    n_counted = int(scores[plan.column("runs")] or 0)
    equation = f"undefined: {reason}" if score is None else _equation(score, (n, a, c), weights)
    letters = {"n": n, "a": a, "c": c, "s": s, "e": expected}
    shown = ", ".join(f"{name} {number(own)}" for name, own in letters.items() if own is not None)
    values = {
        "n: naturalness": n,
        "a: answerability": a,
        "s: mean steps": s,
        "e: expected steps": expected,
        "c: complexity, min(s, e) / max(s, e)": c,
    }
    fields = [
        *((name, "undefined" if own is None else number(own)) for name, own in values.items()),
        ("runs that count", str(n_counted)),
        ("profile", settings["profile"]),
        ("weights of n, a, c", ", ".join(f"{weight:g}" for weight in weights)),
        (plan.name, equation),
    ]
    return Part(
        kind="naco_formula",
        data={
            "instance": plan.name,
            "profile": settings["profile"],
            "expected_complexity": expected,
            "weights": weights,
            "n_counted": n_counted,
            **parts,
            "score": score,
            "reason": reason,
        },
        line=f"{plan.name}, profile {settings['profile']}: {shown}; {equation}",
        blocks=(Fields(f"{plan.name}, computed again from these runs", fields),),
    )


def _equation(
    score: float, parts: tuple[float | None, float | None, float | None], weights: Sequence[float]
) -> str:
    """Return how the score comes about, in numbers."""
    n, a, c = parts
    if not n or not a or c is None:
        return f"0, because {'a' if n else 'n'} = 0"
    terms = zip(weights, (n, a, c), strict=True)
    total = " + ".join(f"{weight:g} × {value:.4g}" for weight, value in terms)
    return f"({total}) / {sum(weights):g} = {score:.4f}"
