"""Explain QRelScore's families: matches of LRM, likelihood gains of GRG.

What the graph returned for each unit (`recompute`), put beside the pieces of the texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qaeval_core.errors import ReconcileError
from qaeval_core.explain.parts import (
    LayerMatches,
    LikelihoodGains,
    Part,
    TokenProbabilities,
)
from qaeval_core.explain.recompute import FamilyRun, Sessions, UnitRun, instances_of
from qaeval_core.explain.tokens import TextPieces
from qaeval_core.metrics.qrelscore import QRelScoreSettings, layer_indices
from qaeval_core.models.artifact import ArtifactRequest, default_root, find_artifact
from qaeval_core.models.session import Session
from qaeval_core.scoring.job import Job

END_OF_TEXT = "⟨end of text⟩"

# The two graphs of LRM are the same arithmetic, exported twice.
_MATCHES_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}


def _windows(
    run: FamilyRun, targets: Sequence[str], *, per_window: int
) -> Iterator[list[tuple[UnitRun, ...]]]:
    """Yield each target's windows, each with its units; equal targets share theirs."""
    known: dict[str, list[tuple[UnitRun, ...]]] = {}
    position = 0
    for target, n_windows in zip(targets, run.statistic("n_windows"), strict=True):
        if target not in known:
            edges = [position + i * per_window for i in range(int(n_windows) + 1)]
            known[target] = [run.units[start : start + per_window] for start in edges[:-1]]
            position = edges[-1]
        yield known[target]


def explain_lrm(run: FamilyRun, job: Job, sessions: Sessions) -> Iterator[tuple[Part, ...]]:
    """Yield each target's matches: one part per window."""
    candidate, targets = run.text("candidate"), run.targets
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    session = _matches_session(run, job, sessions) if run.units else None
    used = _used_layers(run, job)
    for target, windows in zip(targets, _windows(run, targets, per_window=1), strict=True):
        parts: list[Part] = []
        context, position = pieces.cut(target), 0
        for (unit,) in windows:
            assert session is not None
            n_candidate, n_context = (int(unit.inputs[k][0]) for k in ("n_candidate", "n_context"))
            matches = session.run(unit.inputs)[0, :, :n_candidate].astype(np.float64)
            _check_matches(run, matches[..., 1].mean(axis=1), unit)
            parts.append(
                LayerMatches(
                    window=len(parts) + 1,
                    n_windows=len(windows),
                    candidate=tuple(pieces.cut(candidate)[:n_candidate]),
                    context=tuple(context[position : position + n_context]),
                    is_cosine=run.plan.artifact.record.options["matching"] == "attended",
                    matched=tuple(tuple(map(int, layer)) for layer in matches[..., 0].tolist()),
                    worth=tuple(map(tuple, matches[..., 1].tolist())),
                    layer_precision=tuple(unit.output[0].astype(float).tolist()),
                    used_layers=used,
                )
            )
            position += n_context
        yield tuple(parts)


def _matches_session(run: FamilyRun, job: Job, sessions: Sessions) -> Session:
    """Return the graph that keeps matches, of the same model.

    Raises
    ------
    ArtifactMissingError
        If it was not exported: an explanation builds nothing.
    """
    record = run.plan.artifact.record
    settings = instances_of(run, job)[0].settings
    request = ArtifactRequest(
        graph="relevance_matches",
        model=str(getattr(settings, run.plan.family.model_role)),
        precision=record.precision,
        options=record.options,
        allow_lossy=record.lossy,
    )
    root = Path(job.config.models.artifacts_path or default_root())
    artifact = find_artifact(root, request, compare_model=False)
    if artifact.record.tokenizer_hash != record.tokenizer_hash:
        raise ReconcileError(f"{artifact.folder} has another tokenizer than {record.model.name}")
    return sessions(artifact)


def _check_matches(run: FamilyRun, precision: np.ndarray, unit: UnitRun) -> None:
    distance = float(np.abs(precision - unit.output[0]).max())
    tolerance = _MATCHES_TOLERANCE[run.plan.artifact.record.precision]
    if distance > tolerance:
        raise ReconcileError(
            f"{run.plan.key}: matches average to other precisions than were scored, by up to "
            f"{distance:.2g} (tolerance {tolerance:g}): the model has changed"
        )


def _used_layers(run: FamilyRun, job: Job) -> tuple[int, ...]:
    n_layers = run.plan.artifact.record.n_layers
    used: set[int] = set()
    for plan in instances_of(run, job):
        if isinstance(plan.settings, QRelScoreSettings):
            used.update(layer_indices(plan.settings.layers, n_layers=n_layers))
    return tuple(sorted(used))


def explain_grg(run: FamilyRun, job: Job, sessions: Sessions) -> Iterator[tuple[Part, ...]]:
    """Yield each target's gains: one part per window; two whole texts in profile authors."""
    candidate, targets = run.text("candidate"), run.targets
    pieces = TextPieces(run.plan.artifact.tokenizer_path)
    is_authors = run.plan.options["profile"] == "authors"
    unit = "probability" if is_authors else "nats"
    stored = zip(run.statistic(f"base_{unit}"), run.statistic(f"prompted_{unit}"), strict=True)
    for target, windows in zip(targets, _windows(run, targets, per_window=2), strict=True):
        if is_authors:
            texts = {"context": target, "question and context": f"{candidate} {target}"}
            yield tuple(
                _probabilities(name, pieces.cut(text), unit, mean=mean)
                for units in windows
                for (name, text), unit, mean in zip(texts.items(), units, next(stored), strict=True)
            )
            continue
        # The space before the context is not the context's own.
        own, position, parts = pieces.cut(f" {target}", n_before=1), 0, []
        for units in windows:
            n_tokens = len(units[0].output)
            window = own[position : position + n_tokens]
            position += n_tokens
            parts.append(_gains(window, units, sums=next(stored), n_windows=len(windows)))
        yield tuple(replace(part, window=i + 1) for i, part in enumerate(parts))


def _gains(
    pieces: Sequence[str],
    units: tuple[UnitRun, ...],
    *,
    sums: tuple[float, float],
    n_windows: int,
) -> LikelihoodGains:
    base, prompted = (unit.output.astype(np.float64) for unit in units)
    return LikelihoodGains(
        window=1,
        n_windows=n_windows,
        pieces=tuple(pieces),
        base_nats=tuple(base.tolist()),
        prompted_nats=tuple(prompted.tolist()),
        gain_nats=tuple((prompted - base).tolist()),
        base_sum_nats=float(sums[0]),
        prompted_sum_nats=float(sums[1]),
    )


def _probabilities(
    text: str, pieces: Sequence[str], unit: UnitRun, *, mean: float
) -> TokenProbabilities:
    n_own = len(unit.output) - 1  # The text may have been cut; the last token is its end.
    return TokenProbabilities(
        text=text,
        pieces=(*pieces[:n_own], END_OF_TEXT),
        probability=tuple(np.exp(unit.output.astype(np.float64)).tolist()),
        mean=float(mean),
    )
