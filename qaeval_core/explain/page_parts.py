"""Explain: the parts of the page: matches, gains and weights of tokens; runs of NACo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qaeval_core.explain.html import escaped, number, table
from qaeval_core.explain.naco_parts import NacoFormula, NacoRun
from qaeval_core.explain.parts import (
    LayerMatches,
    LikelihoodGains,
    Part,
    TokenMatches,
    TokenProbabilities,
    TokenWeights,
)

# Stronger colour would make the text on it hard to read in one of the two schemes.
_MAX_ALPHA = 0.55
_MIN_ALPHA = 0.04
_NO_PIECE = "·"  # a token that is a part of the character before


def part_html(part: Part) -> str:
    """Return the HTML of one part."""
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


def strip(label: str, pieces: Sequence[str], values: Sequence[float], *, unit: str) -> str:
    """Return a text whose tokens are coloured by a value: blue above 0, orange below."""
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    spans = []
    for piece, value in zip(pieces, values, strict=True):
        strength = abs(value) / largest
        title = escaped(f"{value:+.4g} {unit}".strip())
        shown = escaped(piece or _NO_PIECE)
        if strength * _MAX_ALPHA < _MIN_ALPHA:
            spans.append(f'<span title="{title}">{shown}</span>')
            continue
        kind = "up" if value > 0 else "down"
        style = f"--a:{strength * _MAX_ALPHA:.2f}"
        spans.append(f'<span class="{kind}" style="{style}" title="{title}">{shown}</span>')
    return f'<p class="soft">{escaped(label)}</p>\n<p class="strip" dir="auto">{"".join(spans)}</p>'


def _window(part: LayerMatches | LikelihoodGains) -> str:
    return "" if part.n_windows == 1 else f", window {part.window} of {part.n_windows}"


def _matches(part: LayerMatches) -> str:
    n_layers = len(part.matched)
    what = "cosine" if part.is_cosine else "attention × cosine"
    counts = Counter(i for layer in part.used_layers for i in part.matched[layer])
    popularity = [float(counts[i]) for i in range(len(part.context))]
    head = ["candidate token"]
    head += [
        f"layer {i + 1}{'' if i in part.used_layers else ' (unused)'}" for i in range(n_layers)
    ]
    rows = [
        [piece or _NO_PIECE]
        + [f"{_name(part, layer, m)} {part.worth[layer][m]:.2f}" for layer in range(n_layers)]
        for m, piece in enumerate(part.candidate)
    ]
    rows.append(["mean", *(f"{value:.4f}" for value in part.layer_precision)])
    return "\n".join(
        [
            strip(
                f"Context tokens by how many matches they get, all used layers{_window(part)}",
                part.context,
                popularity,
                unit="matches",
            ),
            table(
                f"The context token that each candidate token is matched to, and its {what}"
                f"{_window(part)}",
                head,
                rows,
            ),
        ]
    )


def _name(part: LayerMatches, layer: int, token: int) -> str:
    return part.context[part.matched[layer][token]].strip() or _NO_PIECE


def _gains(part: LikelihoodGains) -> str:
    gain = part.prompted_sum_nats - part.base_sum_nats
    ratio = f" = {gain / abs(part.base_sum_nats):+.4f} of it" if part.base_sum_nats else ""
    rows = [
        [piece or _NO_PIECE, f"{base:.3f}", f"{prompted:.3f}", f"{own:+.3f}"]
        for piece, base, prompted, own in zip(
            part.pieces, part.base_nats, part.prompted_nats, part.gain_nats, strict=True
        )
    ]
    rows.append(["sum", number(part.base_sum_nats), number(part.prompted_sum_nats), f"{gain:+.3f}"])
    numbers = table(
        f"log p of each context token, in nats{_window(part)}",
        ["token", "without the candidate", "after the candidate", "gain"],
        rows,
        numbers=(1, 2, 3),
    )
    label = (
        "Context tokens by what the candidate before them adds to their log-likelihood "
        f"(underlined: it takes away){_window(part)}. Sum {gain:+.3f} nats on "
        f"{part.base_sum_nats:.3f}{ratio}."
    )
    return "\n".join(
        [
            strip(label, part.pieces, part.gain_nats, unit="nats"),
            f"<details><summary>All tokens</summary>{numbers}</details>",
        ]
    )


def _probabilities(part: TokenProbabilities) -> str:
    label = f"Tokens of {part.text} by probability; mean {number(part.mean)}"
    return strip(label, part.pieces, part.probability, unit="")


def _token_matches(part: TokenMatches) -> str:
    sides = (
        ("candidate", "reference", "precision", part.precision),
        ("reference", "candidate", "recall", part.recall),
    )
    return "\n".join(_partners(part, side, other, name, mean) for side, other, name, mean in sides)


def _partners(part: TokenMatches, side: str, other: str, name: str, mean: float | None) -> str:
    pieces, partners = getattr(part, side), getattr(part, other)
    values = zip(
        pieces,
        getattr(part, f"{side}_matched"),
        getattr(part, f"{side}_cosine"),
        getattr(part, f"{side}_weight"),
        strict=True,
    )
    rows = [
        [
            piece or _NO_PIECE,
            "(special token)" if i is None else partners[i].strip() or _NO_PIECE,
            f"{cosine:.4f}",
            number(weight),
        ]
        for piece, i, cosine, weight in values
    ]
    shown = "undefined" if mean is None else f"{mean:.4f}"
    return table(
        f"Best partner of each {side} token; mean by weight ({name}) {shown}",
        [f"{side} token", f"{other} token", "cosine", "weight"],
        rows,
        numbers=(2, 3),
    )


def _weights(part: TokenWeights) -> str:
    rows = [
        [piece or _NO_PIECE, f"{weight:.4f}"]
        for piece, weight in zip(part.pieces, part.weight, strict=True)
    ]
    numbers = table(f"Weights of the {part.text}", ["token", "weight"], rows, numbers=(1,))
    label = f"Tokens of the {part.text} by how likely they are in the answer to the question"
    return "\n".join(
        [
            strip(label, part.pieces, part.weight, unit=""),
            f"<details><summary>All tokens</summary>{numbers}</details>",
        ]
    )


def _naco_run(part: NacoRun) -> str:
    lines = [f"<h3>Run {part.run} of {part.n_runs}</h3>"]
    if part.problem is not None:
        why = part.problem + (f": {part.message}" if part.message else "")
        lines.append(f'<p class="bad">This run does not count: {escaped(why)}</p>')
    else:
        rows = [
            ["verdict", part.verdict],
            ["reasoning steps", _or_none(part.n_steps)],
            ["answer", _or_none(part.answer)],
            ["gold answer", _or_none(part.gold_answer)],
            ["F1 of both answers", "none" if part.answer_f1 is None else number(part.answer_f1)],
        ]
        if part.says_unanswerable:
            rows.append(["passages", "do not answer it, says the reply"])
        lines.append(table("What was read of the reply", ["what", "value"], rows))
    if part.is_reminder:
        lines.append("<p>The first reply could not be read; this is of the reminder.</p>")
    if part.reply is not None:
        ended = f" (ended by: {part.finish_reason})" if part.finish_reason else ""
        lines.append(f'<p class="soft">{escaped(f"The model’s reply{ended}")}</p>')
        lines.append(f'<p class="text" dir="auto">{escaped(part.reply) or "(empty)"}</p>')
    lines += [f'<p class="soft">{escaped(note)}</p>' for note in part.notes]
    sent = [
        f'<p class="soft">{escaped(message["role"])}</p>\n'
        f'<p class="text" dir="auto">{escaped(message["content"])}</p>'
        for message in part.prompt
    ]
    what = "The prompt, with the reminder" if part.is_reminder else "The prompt"
    lines += [f"<details><summary>{what}</summary>", *sent, "</details>"]
    return "\n".join(lines)


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def _naco_formula(part: NacoFormula) -> str:
    values = (
        ("n: naturalness", part.naturalness),
        ("a: answerability", part.answerability),
        ("s: mean steps", part.steps),
        ("e: expected steps", part.expected_complexity),
        ("c: complexity, min(s, e) / max(s, e)", part.complexity),
    )
    rows = [[name, "undefined" if value is None else number(value)] for name, value in values]
    rows += [
        ["runs that count", str(part.n_counted)],
        ["profile", part.profile],
        ["weights of n, a, c", ", ".join(f"{weight:g}" for weight in part.weights)],
        [part.instance, part.equation],
    ]
    return table(f"{part.instance}, computed again from these runs", ["what", "value"], rows)
