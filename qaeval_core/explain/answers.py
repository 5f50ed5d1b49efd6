"""Explain families that judge answers: matches of BERTScore, weights of KPQA.

Weights and best cosines are stored as they are; which token the best partner was is found again
from the vectors of the row's texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ReconcileError
from qaeval_core.explain.parts import Part, TokenMatches, TokenWeights
from qaeval_core.explain.recompute import FamilyRun, Sessions
from qaeval_core.explain.tokens import TextPieces
from qaeval_core.scoring.families.token_units import TokenUnits
from qaeval_core.scoring.job import Job
from qaeval_core.scoring.sharing import SharedTexts, share_texts
from qaeval_core.text.encode import TextEncoder

FloatArray = NDArray[np.float64]

# Cosines are found once in a product of one pair and once in one of all: 1e-6 apart.
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class _Side:
    """One text of a pair: its tokens, what is stored of them, and their best partners."""

    pieces: list[str]
    stored: FloatArray
    weight: FloatArray
    matched: tuple[int | None, ...]
    cosine: FloatArray


def explain_token_match(run: FamilyRun, job: Job, sessions: Sessions) -> Iterator[tuple[Part, ...]]:
    """Yield the best partners of each target's tokens, and of the candidate's."""
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    candidate = pieces.cut(run.text("candidate"))
    shared = run.plan.family.share({role: [value] for role, value in run.values.items()})
    texts = share_texts(shared)
    units = _filled_units(run, texts, shared.row_pair)
    stored = _stored(run)
    pairs = zip(run.targets, shared.row_pair.tolist(), run.texts("reasons"), strict=True)
    for target, pair, reason in pairs:
        of_candidate, of_target = next(stored)
        if reason is not None:
            yield ()
            continue
        left, right = (slice(*units.spans[side[pair]]) for side in (texts.left, texts.right))
        there = _partners(run, units, of=left, among=right)
        back = _partners(run, units, of=right, among=left)
        yield (
            _token_matches(
                run,
                candidate=_Side(candidate, *of_candidate, *there),
                reference=_Side(pieces.cut(target), *of_target, *back),
            ),
        )


def _filled_units(
    run: FamilyRun, texts: SharedTexts[str], row_pair: NDArray[np.int64]
) -> TokenUnits:
    """Return the vectors of the texts of all scored pairs."""
    is_scored = np.array([reason is None for reason in run.texts("reasons")], dtype=bool)
    read = {*texts.left[row_pair[is_scored]].tolist(), *texts.right[row_pair[is_scored]].tolist()}
    ids = TextEncoder(run.plan.artifact.tokenizer_path).encode(texts.texts)
    units = TokenUnits(
        [own if i in read else own[:0] for i, own in enumerate(ids)], run.plan.artifact
    )
    for i, unit in enumerate(run.units):
        units.take([i], unit.output)
    return units


def _stored(run: FamilyRun) -> Iterator[list[tuple[FloatArray, FloatArray]]]:
    """Yield best cosines and weights, as stored, of both texts of every target."""
    at = {"candidate": 0, "reference": 0}
    counts = {side: run.statistic(f"n_{side}").astype(np.int64) for side in at}
    for i in range(len(run.targets)):
        found = []
        for side, start in at.items():
            own = slice(start, start + int(counts[side][i]))
            best, weight = run.statistic(f"best_{side}"), run.statistic(f"{side}_weights")
            found.append((best[own], weight[own]))
            at[side] = own.stop
        yield found


def _partners(
    run: FamilyRun, units: TokenUnits, *, of: slice, among: slice
) -> tuple[tuple[int | None, ...], FloatArray]:
    """Return the partner of each ordinary token, None for a special one, and their cosines."""
    cosine = (units.vectors[of] @ units.vectors[among].T).astype(np.float64)
    is_special = units.is_special[among]
    if run.plan.options.get("special_tokens", "match") != "match":
        cosine[:, is_special] = -np.inf
    own = cosine[~units.is_special[of]]
    index = np.cumsum(~is_special) - 1
    matched = tuple(None if is_special[i] else int(index[i]) for i in own.argmax(axis=1).tolist())
    return matched, np.clip(own.max(axis=1), -1, 1)


def _token_matches(run: FamilyRun, *, candidate: _Side, reference: _Side) -> TokenMatches:
    weights, means = [], []
    for side in (candidate, reference):
        keeps_tokens = len(side.weight) == len(side.pieces)
        # Of a context the mean of all its tokens is stored, each of weight 1.
        own = side.weight if keeps_tokens else np.ones(len(side.pieces))
        mean = float((side.cosine * own).sum() / own.sum()) if own.sum() > 0 else None
        now = side.cosine if keeps_tokens else np.array([mean])
        if not np.allclose(now, side.stored, atol=_TOLERANCE):
            raise ReconcileError(f"{run.plan.key}: best cosines of tokens are not the stored ones")
        weights.append(tuple(own.tolist()))
        means.append(mean)
    return TokenMatches(
        candidate=tuple(candidate.pieces),
        reference=tuple(reference.pieces),
        candidate_matched=candidate.matched,
        reference_matched=reference.matched,
        candidate_cosine=tuple(candidate.cosine.tolist()),
        reference_cosine=tuple(reference.cosine.tolist()),
        candidate_weight=weights[0],
        reference_weight=weights[1],
        precision=means[0],
        recall=means[1],
    )


def explain_kpqa_weights(
    run: FamilyRun, job: Job, sessions: Sessions
) -> Iterator[tuple[Part, ...]]:
    """Yield the weights of each reference's tokens; of the candidate's with the first."""
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    candidate = pieces.cut(run.text("candidate"))
    weights = {side: run.statistic(f"{side}_weights") for side in ("candidate", "reference")}
    is_first = True
    at = {"candidate": 0, "reference": 0}
    for target, reason in zip(run.targets, run.texts("reasons"), strict=True):
        parts: list[Part] = []
        texts = {"candidate": candidate, "reference": pieces.cut(target)}
        for side, own in texts.items() if reason is None else ():
            values = weights[side][at[side] : at[side] + len(own)]
            at[side] += len(own)
            if len(values) != len(own):
                raise ReconcileError(f"{run.plan.key}: {len(values)} weights of {len(own)} tokens")
            if side == "reference" or is_first:
                parts.append(
                    TokenWeights(text=side, pieces=tuple(own), weight=tuple(values.tolist()))
                )
        is_first = is_first and not parts
        yield tuple(parts)
