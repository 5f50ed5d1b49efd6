"""Explain: an explanation in a few lines, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qaeval_core.explain.naco_parts import NacoFormula, NacoRun
from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    LayerMatches,
    LikelihoodGains,
    Part,
    TokenMatches,
    TokenProbabilities,
    TokenWeights,
)
from qaeval_core.terminal import visible

_N_SHOWN = 4
_MAX_TEXT_CHARS = 72


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield what a person wants to see first: texts, scores, the tokens that decide."""
    name = "" if explanation.id is None else f" {explanation.id!r}"
    yield f"row{name}: {explanation.file}, row {explanation.row}"
    for role, value in explanation.texts.items():
        yield f"  {role}: {_short(value)}"
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


def _short(value: object) -> str:
    texts = value if isinstance(value, list) else [value]
    first = _on_one_line(str(texts[0])) if texts else ""
    if len(first) > _MAX_TEXT_CHARS:
        first = first[: _MAX_TEXT_CHARS - 1] + "…"
    return first if len(texts) <= 1 else f"{first} (+ {len(texts) - 1} more)"


def _on_one_line(text: str) -> str:
    r"""Return a text as a terminal can show it.

    Examples
    --------
    >>> _on_one_line("one\n two\x1b[2J")
    'one two␛[2J'
    """
    return visible(" ".join(text.split()))


def _scores(instance: InstanceExplanation) -> str:
    if instance.reason is not None:
        return f"{instance.name}: undefined, {instance.reason}"
    shown = [
        f"{line.column} {line.stored:.4f}"
        if isinstance(line.stored, float)
        else f"{line.column} {_short(line.stored)}"
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
        shown = [_part(part) for part in target.parts]
        if target.statistics:
            values = ((name, value) for name, value in target.statistics.items())
            shown.append(", ".join(f"{n} {v:.4g}" for n, v in values if v is not None))
        yield from (f"{of}{which}: {line}" for line in shown)


def _part(part: Part) -> str:
    if isinstance(part, LayerMatches):
        return _matches(part)
    if isinstance(part, LikelihoodGains):
        return _gains(part)
    if isinstance(part, TokenProbabilities):
        return _probabilities(part)
    if isinstance(part, NacoRun):
        return _naco_run(part)
    if isinstance(part, NacoFormula):
        return _naco_formula(part)
    return _token_matches(part) if isinstance(part, TokenMatches) else _weights(part)


def _matches(part: LayerMatches) -> str:
    layers = part.used_layers
    means = [
        sum(part.worth[layer][m] for layer in layers) / len(layers)
        for m in range(len(part.candidate))
    ]
    precision = " ".join(f"{part.layer_precision[layer]:.2f}" for layer in layers)
    return (
        f"by layer {precision}; best matched {_extreme(part.candidate, means, best=True)}; worst "
        f"{_extreme(part.candidate, means, best=False)}"
    )


def _gains(part: LikelihoodGains) -> str:
    total = part.prompted_sum_nats - part.base_sum_nats
    return (
        f"{total:+.2f} nats on {part.base_sum_nats:.1f} over {len(part.pieces)} tokens; most "
        f"gained {_extreme(part.pieces, part.gain_nats, best=True)}; most lost "
        f"{_extreme(part.pieces, part.gain_nats, best=False)}"
    )


def _probabilities(part: TokenProbabilities) -> str:
    return f"mean probability of {len(part.pieces)} tokens of {part.text} {part.mean:.4f}"


def _token_matches(part: TokenMatches) -> str:
    sides = ((part.precision, "precision"), (part.recall, "recall"))
    means = ", ".join(f"{name} {mean:.4f}" for mean, name in sides if mean is not None)
    return (
        f"{means}; worst matched of the candidate "
        f"{_extreme(part.candidate, part.candidate_cosine, best=False)}; of the reference "
        f"{_extreme(part.reference, part.reference_cosine, best=False)}"
    )


def _weights(part: TokenWeights) -> str:
    return f"heaviest tokens of the {part.text} {_extreme(part.pieces, part.weight, best=True)}"


def _naco_run(part: NacoRun) -> str:
    """Return a run in one line."""
    told = [f"run {part.run} of {part.n_runs}"]
    if part.is_reminder:
        told[0] += ", after a reminder"
    if part.problem is not None:
        why = "" if part.message is None else f" ({_on_one_line(part.message)})"
        told.append(f"does not count, {part.problem}{why}")
    elif not part.is_question:
        told.append(part.verdict)
    else:
        told.append(f"{part.verdict}, {part.n_steps} step{'' if part.n_steps == 1 else 's'}")
        if part.answer is not None:
            told[-1] += f", answer {_short(part.answer)!r}, F1 {part.answer_f1:.4f}"
            told[-1] += f" with {_short(part.gold_answer)!r}"
        elif part.says_unanswerable:
            told[-1] += ", says that the passages do not answer"
    if part.reply is not None:
        told.append(f"reply {_short(part.reply)!r}")
    return f"{told[0]}: {'; '.join([*told[1:], *part.notes])}"


def _naco_formula(part: NacoFormula) -> str:
    values = {
        "n": part.naturalness,
        "a": part.answerability,
        "c": part.complexity,
        "s": part.steps,
        "e": part.expected_complexity,
    }
    shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
    return f"{part.instance}, profile {part.profile}: {shown}; {part.equation}"


def _extreme(pieces: Sequence[str], values: Sequence[float], *, best: bool) -> str:
    """Return the tokens with the largest or smallest values, with them."""
    order = sorted(range(len(values)), key=lambda i: values[i], reverse=best)
    return ", ".join(f"{pieces[i].strip()!r} {values[i]:+.2f}" for i in order[:_N_SHOWN])
