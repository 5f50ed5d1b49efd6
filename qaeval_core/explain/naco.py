"""Explain NACo: its runs, with prompt, reply and reading, and its formula in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qaeval_core.explain.chat import ChatRun, KeptReplies, reading_columns
from qaeval_core.explain.parts import (
    Block,
    Fields,
    Part,
    Passage,
    number,
    on_one_line,
    short,
)
from qaeval_core.families.chat.family import Reading
from qaeval_core.planning.run_plan import InstancePlan

Data = Mapping[str, Any]


def naco_parts(chat: ChatRun, scores: Mapping[str, object]) -> Iterator[Part]:
    """Yield a row's runs, and the formula of each instance."""
    kept = KeptReplies(chat.plan.family, (chat.plan.journal_folder or Path()).absolute())
    for run, reading in enumerate(chat.readings):
        data = _run_data(chat, run, reading, kept)
        yield Part(
            kind="naco_run",
            data=data,
            line=_run_line(data),
            title=f"Run {data['run']} of {data['n_runs']}",
            blocks=_run_blocks(data),
            folded_title=f"The prompt{', with the reminder' if data['is_reminder'] else ''}",
            folded=[Passage(own["content"], label=own["role"]) for own in data["prompt"]],
        )
    for plan in chat.instances:
        yield _formula(plan, scores)


def _run_data(chat: ChatRun, run: int, reading: Reading, kept: KeptReplies) -> Data:
    """Return what is known of one run; readings are as committed, None where there is no reply."""
    committed = chat.committed or {}
    if reading.key is not None:
        is_reminder = reading.key == chat.key(run, is_reminder=True)
    else:
        # A call that got no reply was the reminder if the first one got what cannot be read.
        is_reminder = kept.is_readable(chat.key(run, is_reminder=False)) is False
    entry, notes = kept.of_reading(reading)
    return {
        "run": run + 1,
        "n_runs": chat.plan.settings.runs,
        "problem": reading.problem,  # why it does not count; None where it counts
        "message": reading.message,
        **{name: committed[name][run] for name in reading_columns(chat.plan.family)},
        "answer_f1": committed["answer_f1"][run] if reading.key is not None else None,
        "gold_answer": chat.values.get("answer"),
        "prompt": chat.prompt(is_reminder=is_reminder),
        "is_reminder": is_reminder,
        "key": committed["key"][run],
        "reply": entry.text if entry is not None else None,
        "finish_reason": entry.finish_reason if entry is not None else None,
        "notes": notes,
    }


def _verdict(run: Data) -> str:
    if run["is_question"] is None:
        return "no verdict"
    if not run["is_question"]:
        return "not a question"
    return "natural" if run["is_natural"] else "unnatural"


def _run_line(run: Data) -> str:
    """Return a run in one line."""
    told = [f"run {run['run']} of {run['n_runs']}"]
    if run["is_reminder"]:
        told[0] += ", after a reminder"
    if run["problem"] is not None:
        why = "" if run["message"] is None else f" ({on_one_line(run['message'])})"
        told.append(f"does not count, {run['problem']}{why}")
    elif not run["is_question"]:
        told.append(_verdict(run))
    else:
        told.append(f"{_verdict(run)}, {run['n_steps']} step{'' if run['n_steps'] == 1 else 's'}")
        if run["answer"] is not None:
            told[-1] += f", answer {short(run['answer'])!r}, F1 {run['answer_f1']:.4f}"
            told[-1] += f" with {short(run['gold_answer'])!r}"
        elif run["says_unanswerable"]:
            told[-1] += ", says that the passages do not answer"
    if run["reply"] is not None:
        told.append(f"reply {short(run['reply'])!r}")
    return f"{told[0]}: {'; '.join([*told[1:], *run['notes']])}"


def _run_blocks(run: Data) -> list[Block]:
    blocks: list[Block] = [_reading(run)]
    if run["is_reminder"]:
        remark = "The first reply could not be read; this is of the reminder."
        blocks.append(Passage(remark, tone="plain"))
    if run["reply"] is not None:
        ended = f" (ended by: {run['finish_reason']})" if run["finish_reason"] else ""
        blocks.append(Passage(run["reply"], label=f"The model’s reply{ended}"))
    return blocks + [Passage(note, tone="soft") for note in run["notes"]]


def _reading(run: Data) -> Block:
    if run["problem"] is not None:
        why = run["problem"] + (f": {run['message']}" if run["message"] else "")
        return Passage(f"This run does not count: {why}", tone="bad")
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
