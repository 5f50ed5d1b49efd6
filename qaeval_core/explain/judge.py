"""Explain a judge: its runs, with prompt and reply, and the mean of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qaeval_core.explain.chat import ChatRun, run_data, run_part
from qaeval_core.explain.parts import Part, number
from qaeval_core.pages.html import Fields
from qaeval_core.planning.run_plan import InstancePlan


def judge_parts(chat: ChatRun, scores: Mapping[str, object]) -> Iterator[Part]:
    """Yield a row's runs, and the mean of each instance."""
    values: list[float] = []
    for data in run_data(chat):
        own = "none" if data["value"] is None else number(data["value"])
        if data["problem"] is None:
            values.append(data["value"])
        block = Fields("What was read of the reply", (("number", own),))
        yield run_part("judge_run", data, line=f"number {own}", block=block)
    for plan in chat.instances:
        yield _mean(plan, scores, values)


def _mean(plan: InstancePlan, scores: Mapping[str, object], values: list[float]) -> Part:
    score, reason = scores[plan.column("")], scores[plan.reason_column]
    shown = " + ".join(map(number, values))
    equation = f"({shown}) / {len(values)} = {score:.4f}" if values else f"undefined: {reason}"
    settings = plan.settings.model_dump()
    low, high = settings["scale"]
    fields = (
        ("prompt", str(settings["prompt_file"])),
        ("read", settings["read"]),
        ("scale", f"{low:g} to {high:g}"),
        ("runs that count", str(len(values))),
        (plan.name, equation),
    )
    return Part(
        kind="judge_mean",
        data={"instance": plan.name, "values": values, "score": score, "reason": reason},
        line=f"{plan.name}: {equation}",
        blocks=(Fields(f"{plan.name}, computed again from these runs", fields),),
    )
