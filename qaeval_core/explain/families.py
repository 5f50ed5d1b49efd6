"""Explain: which tokens, or replies, a family's numbers come from; one function per family.

What the graph returned for each unit (`recompute`), put beside the pieces of the texts. Weights and
best cosines are stored as they are; which token the best partner was is found again from the
vectors of the row's texts.

A new family needs one entry in `TOKEN_PARTS`, or none: it is then shown by its statistics. One that
asks a language model needs one in `CHAT_PARTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from qaeval_core.errors import ArtifactMissingError, ReconcileError
from qaeval_core.explain.chat import ChatRun, judge_parts, naco_parts
from qaeval_core.explain.parts import FamilyExplanation, Part, TargetParts, number, short
from qaeval_core.explain.recompute import FamilyRun
from qaeval_core.explain.tokens import (
    FloatArray,
    MatchedText,
    TextPieces,
    layer_matches,
    likelihood_gains,
    token_costs,
    token_matches,
    token_probabilities,
    token_weights,
)
from qaeval_core.families.answer_span import AnswerSpanWork, FoundSpan, SpanReading
from qaeval_core.families.lrm import mover_plans
from qaeval_core.families.model_family import UnitRun
from qaeval_core.families.token_match import TokenWork
from qaeval_core.families.token_units import TokenUnits
from qaeval_core.metrics.chat import PENDING
from qaeval_core.metrics.qrelscore import layer_indices
from qaeval_core.models.artifact import find_artifact
from qaeval_core.models.record import N_ANSWER_SPANS, ArtifactRequest
from qaeval_core.models.session import Session
from qaeval_core.pages.html import NO_PIECE, Fields, Strip, Table

END_OF_TEXT = "⟨end of text⟩"

# The two graphs of LRM are the same arithmetic, exported twice.
_MATCHES_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
# Cosines are found once in a product of one pair and once in one of all: 1e-6 apart.
_COSINE_TOLERANCE = 1e-4


def explain_family(run: FamilyRun) -> FamilyExplanation:
    """Return which tokens a family's numbers come from, for each target of the row."""
    plan, reasons = run.plan, run.texts("reasons")
    explain = TOKEN_PARTS.get(plan.family.name)
    parts: list[tuple[Part, ...]] = [()] * len(reasons)
    note = None
    if explain is not None:
        try:
            parts = list(explain(run))
        except ArtifactMissingError as error:
            explain, note = None, f"the matches of tokens are not shown: {error}"
    return FamilyExplanation(
        key=plan.key,
        family=plan.name,
        signature=str(plan.signature),
        model=plan.artifact.record.model.name,
        artifact=plan.artifact.folder.name,
        instances=tuple(own.name for own in run.instances),
        target_role=plan.family.target_role,
        targets=tuple(
            TargetParts(
                target=i,
                reason=reason,
                parts=parts[i],
                statistics=_statistics(run, i) if explain is None else {},
            )
            for i, reason in enumerate(reasons)
        ),
        note=note,
    )


def explain_chat(chat: ChatRun, scores: Mapping[str, object]) -> FamilyExplanation:
    """Return the replies that a row's scores come from, and how.

    Parameters
    ----------
    scores : mapping of column to value
        Of the row, computed again.
    """
    plan, committed = chat.plan, chat.committed
    return FamilyExplanation(
        key=plan.key,
        family=plan.name,
        signature=str(plan.signature),
        model=str(plan.settings.model),
        artifact=None,
        endpoint=plan.settings.base_url,
        instances=tuple(own.name for own in chat.instances),
        target_role=plan.family.roles[-1],
        targets=(
            TargetParts(
                target=0,
                reason=PENDING if committed is None else committed["reason"],
                parts=tuple(CHAT_PARTS[plan.name](chat, scores)),
                statistics={},
            ),
        ),
    )


def _statistics(run: FamilyRun, target: int) -> dict[str, float | None]:
    """Return the numbers that are stored once per target."""
    found: dict[str, float | None] = {}
    for name, kind in zip(run.statistics.column_names, run.statistics.schema.types, strict=True):
        if not pa.types.is_list(kind) or not pa.types.is_primitive(kind.value_type):
            continue
        values = run.statistics.column(name)[0].as_py()
        if values is not None and len(values) == len(run.targets):
            found[name] = None if values[target] is None else float(values[target])
    return found


def _windows(run: FamilyRun, *, per_window: int) -> Iterator[list[tuple[UnitRun, ...]]]:
    """Yield each target's windows, each with its units; equal targets share theirs."""
    known: dict[str, list[tuple[UnitRun, ...]]] = {}
    position = 0
    for target, n_windows in zip(run.targets, run.statistic("n_windows"), strict=True):
        if target not in known:
            edges = [position + i * per_window for i in range(int(n_windows) + 1)]
            known[target] = [run.units[start : start + per_window] for start in edges[:-1]]
            position = edges[-1]
        yield known[target]


def _lrm_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield each target's matches: one part per window."""
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    candidate = pieces.cut(run.text("candidate"))
    matching, aggregate = (run.plan.artifact.record.options[k] for k in ("matching", "aggregate"))
    is_mover = aggregate == "mover"
    what = "attention × cosine" if matching == "weighted" else "cosine"
    session = _matches_session(run) if run.units and not is_mover else None
    n_layers = run.plan.artifact.record.n_layers
    layers = [plan.settings.model_dump()["layers"] for plan in run.instances]
    used = {i for own in layers for i in layer_indices(own, n_layers=n_layers)}
    for target, windows in zip(run.targets, _windows(run, per_window=1), strict=True):
        parts: list[Part] = []
        context, position = pieces.cut(target), 0
        for (unit,) in windows:
            n_candidate, n_context = (int(unit.inputs[k][0]) for k in ("n_candidate", "n_context"))
            # Of shape (n_layers, n_cand, 2): index of the match, and what it is worth.
            if session is None:
                matches = _mover_matches(unit, n_candidate, n_context)
                precision = matches[..., 1].mean(axis=1)
            else:
                matches = session.run(unit.inputs)[0, :, :n_candidate].astype(np.float64)
                precision = unit.output[0].astype(np.float64)
                _check_matches(run, matches[..., 1].mean(axis=1), unit)
            parts.append(
                layer_matches(
                    window=(len(parts) + 1, len(windows)),
                    candidate=candidate[:n_candidate],
                    context=context[position : position + n_context],
                    matches=matches,
                    what="cosine by the plan" if is_mover else what,
                    layer_precision=precision.tolist(),
                    used_layers=sorted(used),
                )
            )
            position += n_context
        yield tuple(parts)


def _mover_matches(unit: UnitRun, n_candidate: int, n_context: int) -> FloatArray:
    """Return to which context token each token hands most, and what all it hands is worth."""
    start = int(unit.inputs["context_start"][0])
    cosines = unit.output[0, :, :n_candidate, start : start + n_context].astype(np.float64)
    plans = mover_plans(cosines)
    return np.stack([plans.argmax(axis=2), (plans * cosines).sum(axis=2)], axis=2)


def _matches_session(run: FamilyRun) -> Session:
    """Return the graph that keeps matches, of the same model.

    Raises
    ------
    ArtifactMissingError
        If it was not exported: an explanation builds nothing.
    """
    record = run.plan.artifact.record
    request = ArtifactRequest(
        graph="relevance_matches",
        model=str(getattr(run.instances[0].settings, run.plan.family.model_role)),
        precision=record.precision,
        options=record.options,
        allow_lossy=record.lossy,
    )
    artifact = find_artifact(run.artifacts, request, compare_model=False)
    if artifact.record.tokenizer_hash != record.tokenizer_hash:
        raise ReconcileError(
            f"{artifact.folder} and {record.model.name} have different tokenizers [QA0518]"
        )
    if artifact.folder not in run.sessions:
        run.sessions[artifact.folder] = Session(artifact)
    return run.sessions[artifact.folder]


def _check_matches(run: FamilyRun, precision: FloatArray, unit: UnitRun) -> None:
    distance = float(np.abs(precision - unit.output[0]).max())
    tolerance = _MATCHES_TOLERANCE[run.plan.artifact.record.precision]
    if distance > tolerance:
        raise ReconcileError(
            f"{run.plan.key}: averages of matches differ from the scores by up to {distance:.2g} "
            f"(tolerance {tolerance:g}): the model changed [QA0518]"
        )


def _grg_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield each target's gains: one part per window; two whole texts in profile authors."""
    candidate = run.text("candidate")
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    is_authors = run.plan.options["profile"] == "authors"
    unit = "probability" if is_authors else "nats"
    base, prompted = (run.statistic(f"{name}_{unit}").tolist() for name in ("base", "prompted"))
    stored = zip(base, prompted, strict=True)  # one of each per window
    for target, windows in zip(run.targets, _windows(run, per_window=2), strict=True):
        sums = [next(stored) for _ in windows]
        if is_authors:
            texts = {"context": target, "question and context": f"{candidate} {target}"}
            cut = {name: pieces.cut(text) for name, text in texts.items()}
            yield tuple(
                _whole_text(name, own, unit, mean=mean)
                for units, means in zip(windows, sums, strict=True)
                for (name, own), unit, mean in zip(cut.items(), units, means, strict=True)
            )
        else:
            # The space before the context is not the context's own.
            yield tuple(_window_gains(pieces.cut(f" {target}", n_before=1), windows, sums))


def _whole_text(name: str, pieces: Sequence[str], unit: UnitRun, *, mean: float) -> Part:
    n_own = len(unit.output) - 1  # The text may have been cut; the last token is its end.
    probability = np.exp(unit.output.astype(np.float64))
    return token_probabilities(name, [*pieces[:n_own], END_OF_TEXT], probability, mean=mean)


def _window_gains(
    pieces: Sequence[str],
    windows: Sequence[tuple[UnitRun, ...]],
    sums: Sequence[tuple[float, float]],
) -> Iterator[Part]:
    position = 0
    for i, units in enumerate(windows):
        base, prompted = (unit.output.astype(np.float64) for unit in units)
        yield likelihood_gains(
            window=(i + 1, len(windows)),
            pieces=pieces[position : position + len(base)],
            base=base,
            prompted=prompted,
            sums=sums[i],
        )
        position += len(base)


def _match_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield the best partners of each target's tokens, and of the candidate's."""
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    candidate = pieces.cut(run.text("candidate"))
    assert isinstance(run.work, TokenWork)
    units, texts = run.work.units, run.work.texts
    stored = {side: _stored_matches(run, side) for side in ("candidate", "reference")}
    pairs = zip(run.targets, run.work.shared.row_pair.tolist(), run.texts("reasons"), strict=True)
    for i, (target, pair, reason) in enumerate(pairs):
        if reason is not None:
            yield ()
            continue
        left, right = (slice(*units.spans[side[pair]]) for side in (texts.left, texts.right))
        there = _partners(run, units, of=left, among=right)
        back = _partners(run, units, of=right, among=left)
        yield (
            token_matches(
                candidate=_matched_text(run, candidate, stored["candidate"][i], there),
                reference=_matched_text(run, pieces.cut(target), stored["reference"][i], back),
                cosine=_cosines(units, left, right),
                target=run.plan.family.target_role.removesuffix("s"),
            ),
        )


def _transport_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield how alike tokens of the candidate and each reference are, and what moving costs."""
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    assert isinstance(run.work, TokenWork)
    units, texts = run.work.units, run.work.texts
    pairs = zip(run.targets, run.work.shared.row_pair.tolist(), run.texts("reasons"), strict=True)
    for i, (target, pair, reason) in enumerate(pairs):
        left, right = (slice(*units.spans[side[pair]]) for side in (texts.left, texts.right))
        yield (
            ()
            if reason is not None
            else (
                token_costs(
                    candidate=pieces.cut(run.text("candidate")),
                    reference=pieces.cut(target),
                    cosine=_cosines(units, left, right),
                    cost=float(run.statistic("transport_cost")[i]),
                ),
            )
        )


def _cosines(units: TokenUnits, left: slice, right: slice) -> FloatArray:
    """Return the cosines of the ordinary tokens of two texts."""
    own, other = (units.vectors[at][~units.is_special[at]] for at in (left, right))
    return np.clip((own @ other.T).astype(np.float64), -1, 1)


def _stored_matches(run: FamilyRun, side: str) -> list[tuple[FloatArray, FloatArray]]:
    """Return best cosines and weights, as stored, of one text of every target."""
    counts = run.statistic(f"n_{side}").astype(np.int64).tolist()
    columns = (run.per_target(name, counts) for name in (f"best_{side}", f"{side}_weights"))
    return list(zip(*columns, strict=True))


def _partners(
    run: FamilyRun, units: TokenUnits, *, of: slice, among: slice
) -> tuple[list[int | None], FloatArray]:
    """Return the partner of each ordinary token, None for a special one, and their cosines."""
    cosine = (units.vectors[of] @ units.vectors[among].T).astype(np.float64)  # (n_of, n_among)
    is_special = units.is_special[among]
    if run.plan.options.get("special_tokens", "match") != "match":
        cosine[:, is_special] = -np.inf
    own = cosine[~units.is_special[of]]
    index = np.cumsum(~is_special) - 1  # of a vector in the text's ordinary tokens
    matched = [None if is_special[i] else int(index[i]) for i in own.argmax(axis=1).tolist()]
    return matched, np.clip(own.max(axis=1), -1, 1)


def _matched_text(
    run: FamilyRun,
    pieces: Sequence[str],
    stored: tuple[FloatArray, FloatArray],
    partners: tuple[Sequence[int | None], FloatArray],
) -> MatchedText:
    """Return a text and its partners; raise where their cosines are not the stored ones."""
    (best, weight), (matched, cosine) = stored, partners
    # Of a context the mean of all its tokens is stored, each of weight 1.
    keeps_tokens = len(weight) == len(pieces)
    own = weight if keeps_tokens else np.ones(len(pieces))
    mean = float((cosine * own).sum() / own.sum()) if own.sum() > 0 else None
    now = cosine if keeps_tokens else np.array([mean])
    if not np.allclose(now, best, atol=_COSINE_TOLERANCE):
        raise ReconcileError(
            f"{run.plan.key}: the best cosines of tokens differ from the stored ones [QA0518]"
        )
    return MatchedText(pieces=pieces, matched=matched, cosine=cosine, weight=own, mean=mean)


def _weight_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield the weights of each reference's tokens; of the candidate's with the first."""
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    candidate = pieces.cut(run.text("candidate"))
    reasons = run.texts("reasons")
    texts = {
        "candidate": [candidate for _ in reasons],
        "reference": [pieces.cut(target) for target in run.targets],
    }
    weights = {}
    for side, cut in texts.items():
        counts = [0 if reason else len(own) for own, reason in zip(cut, reasons, strict=True)]
        weights[side] = run.per_target(f"{side}_weights", counts)
    scored = [i for i, reason in enumerate(reasons) if reason is None]
    for i in range(len(reasons)):
        parts: list[Part] = []
        for side, cut in texts.items() if i in scored else ():
            own, values = cut[i], weights[side][i]
            if len(values) != len(own):
                raise ReconcileError(
                    f"{run.plan.key}: {len(values)} weights for {len(own)} tokens [QA0518]"
                )
            if side == "reference" or i == scored[0]:
                parts.append(token_weights(side, own, values.tolist()))
        yield tuple(parts)


def _answer_parts(run: FamilyRun) -> Iterator[tuple[Part, ...]]:
    """Yield the answer that a reader found, the next best ones, and what it thinks of none."""
    assert isinstance(run.work, AnswerSpanWork)
    for pair in run.work.shared.row_pair.tolist():
        read = run.work.read[pair]
        if read is None:
            yield ()
            continue
        reading = read.reading(run.work.units.output, n_spans=2 * N_ANSWER_SPANS)
        yield (_found(reading, context=read.text, given=run.text("answer"), n=len(read.units)),)


def _found(reading: SpanReading, *, context: str, given: str, n: int) -> Part:
    # Spans of the same words, with other word pieces at their ends, are one to people.
    distinct = {(span.start, span.text): span for span in reversed(reading.spans)}
    best = sorted(distinct.values(), key=lambda span: -span.score)[:N_ANSWER_SPANS]
    shares = [math.exp(span.score - reading.log_sum) for span in best]
    margin = best[0].score - reading.null_score
    rows = [
        (span.text or NO_PIECE, f"{span.score:.4f}", f"{share:.4f}", str(span.start))
        for span, share in zip(best, shares, strict=True)
    ]
    head = ("answer", "logits", "confidence", "first character")
    return Part(
        kind="answer_spans",
        data={
            "given_answer": given,
            "spans": [
                {"text": span.text, "start": span.start, "score": span.score, "confidence": share}
                for span, share in zip(best, shares, strict=True)
            ],
            "log_sum": reading.log_sum,
            "null_score": reading.null_score,
            "null_margin": margin,
            "n_windows": n,
        },
        line=f"found {short(best[0].text)}, confidence {shares[0]:.4f}; given {short(given)}",
        blocks=(
            Strip(
                "The context, by the confidence of what was found",
                *_colored(best, shares, context),
            ),
            Table("The best spans; each begins elsewhere", head, rows, numbers=(1, 2, 3)),
            Fields(
                "Against the given answer",
                (
                    ("given answer", given),
                    ("logits of no answer", number(reading.null_score)),
                    ("margin over no answer", number(margin)),
                    ("windows", str(n)),
                ),
            ),
        ),
    )


def _colored(
    spans: list[FoundSpan], shares: list[float], context: str
) -> tuple[list[str], list[float]]:
    """Return the context cut where spans begin and end, and the confidence of each piece."""
    ends = [(span.start, span.start + len(span.text)) for span in spans]
    edges = sorted({0, len(context), *(edge for both in ends for edge in both)})
    pieces, values = [], []
    for start, stop in pairwise(edges):
        inside = zip(ends, shares, strict=True)
        pieces.append(context[start:stop])
        values.append(sum(share for (a, b), share in inside if a <= start and stop <= b))
    return pieces, values


# Yields the parts of each target of the row, in order.
TokenParts: TypeAlias = Callable[[FamilyRun], Iterator[tuple[Part, ...]]]

TOKEN_PARTS: Mapping[str, TokenParts] = MappingProxyType(
    {
        "lrm": _lrm_parts,
        "lrm_references": _lrm_parts,
        "grg": _grg_parts,
        "grg_references": _grg_parts,
        "token_match": _match_parts,
        "token_match_context": _match_parts,
        "token_transport": _transport_parts,
        "kpqa_weights": _weight_parts,
        "answer_span": _answer_parts,
    }
)

# Yields the parts of a row, given its scores.
ChatParts: TypeAlias = Callable[[ChatRun, Mapping[str, object]], Iterator[Part]]

CHAT_PARTS: Mapping[str, ChatParts] = MappingProxyType({"naco": naco_parts, "judge": judge_parts})
