"""Explain: an explanation in a few lines, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    number,
    short,
)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield what a person wants to see first: texts, scores, the tokens that decide."""
    name = "" if explanation.id is None else f" {explanation.id!r}"
    yield f"row{name}: {explanation.file}, row {explanation.row}"
    for role, value in explanation.texts.items():
        yield f"  {role}: {short(value)}"
    if explanation.quarantine_reason is not None:
        message = explanation.quarantine_message
        yield f"quarantined: {explanation.quarantine_reason}{f' ({message})' if message else ''}"
    for instance in explanation.instances:
        yield _scores(instance)
    for family in explanation.families:
        yield from _family(family)
    yield from explanation.notes
    if explanation.is_equal:
        yield (
            f"computed again: {explanation.n_compared} values equal the stored ones (largest "
            f"difference {explanation.max_difference:.1e}, tolerance {explanation.tolerance:.0e})"
        )


def _scores(instance: InstanceExplanation) -> str:
    if instance.reason is not None:
        return f"{instance.name}: undefined, {instance.reason}"
    shown = [
        f"{line.column} {line.stored:.4f}"
        if isinstance(line.stored, float)
        else f"{line.column} {short(line.stored)}"
        for line in instance.scores
        if line.stored is not None
    ]
    return f"{instance.name}: {', '.join(shown) or 'no score'}"


def _family(family: FamilyExplanation) -> Iterator[str]:
    of = f"{family.family} of {', '.join(family.instances)}"
    for target in family.targets:
        which = f", {family.target_role} {target.target + 1}" if len(family.targets) > 1 else ""
        if target.reason is not None:
            yield f"{of}{which}: undefined, {target.reason}"
            continue
        shown = [part.line for part in target.parts]
        if target.statistics:
            known = {name: value for name, value in target.statistics.items() if value is not None}
            shown.append(", ".join(f"{name} {number(value)}" for name, value in known.items()))
        yield from (f"{of}{which}: {line}" for line in shown)
