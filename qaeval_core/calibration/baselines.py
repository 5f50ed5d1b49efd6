"""Baselines: the mean raw scores of random pairs, which a metric's scores are measured from.

Questions are paired with contexts of other rows; pairs with word overlap are dropped; b is the
mean raw score of the rest (Wang et al. QRelScore. EMNLP 2022, arXiv:2204.13921, appendix F).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import InputError
from qaeval_core.families.contract import Engine
from qaeval_core.families.model_family import ModelFamilyPlan, is_model
from qaeval_core.families.validate import IntArray, validate_rows
from qaeval_core.metrics.bleu import bleu_1
from qaeval_core.metrics.calibrated import BaselineFile, BaselineRecord
from qaeval_core.metrics.targets import Targets
from qaeval_core.planning.job import Job
from qaeval_core.planning.run_plan import InstancePlan
from qaeval_core.running.reader import draw_rows, read_rows
from qaeval_core.running.sampling import rows_of_sample
from qaeval_core.running.score_rows import ArrowStatistics
from qaeval_core.stats.mean_interval import ValueRange, mean_interval
from qaeval_core.text.tokenize import words

MAX_BLEU_1 = 0.05
_ROLES = ("candidate", "context")


@dataclass(frozen=True, slots=True)
class RandomPairs:
    """Questions with contexts of other rows."""

    questions: list[str]
    contexts: list[str]
    n_dropped: int


def draw_pairs(job: Job, *, n_pairs: int, seed: int) -> RandomPairs:
    """Draw random pairs without overlap.

    Raises
    ------
    InputError
        If the rows hold fewer than two different contexts.
    """
    rng = np.random.default_rng(seed)
    # Four times as many rows as pairs: few pairs are dropped for overlap.
    sampled = rows_of_sample(job.files, job.n_rows, job.sample)
    chosen = draw_rows(job.n_rows_total, n_rows=4 * n_pairs, rng=rng, among=sampled)
    questions, contexts = _read_texts(job, chosen)
    if len(set(contexts)) < 2:
        raise InputError("calibration needs rows with at least two different contexts [QA0217]")
    left = rng.permutation(len(questions))
    right = rng.permutation(len(questions))
    kept: list[tuple[str, str]] = []
    n_dropped = 0
    for i, j in zip(left.tolist(), right.tolist(), strict=True):
        if len(kept) == n_pairs:
            break
        if contexts[i] == contexts[j]:
            continue
        overlap = bleu_1(candidate=words(questions[i]), reference=words(contexts[j]))
        if overlap > MAX_BLEU_1:
            n_dropped += 1
        else:
            kept.append((questions[i], contexts[j]))
    if not kept:
        raise InputError(
            f"no random pair has BLEU-1 <= {MAX_BLEU_1}; {n_dropped} were dropped [QA0217]"
        )
    return RandomPairs([pair[0] for pair in kept], [pair[1] for pair in kept], n_dropped)


def _read_texts(job: Job, chosen: IntArray) -> tuple[list[str], list[str]]:
    """Return questions and contexts of the good ones among some rows."""
    columns = {role: job.columns[role] for role in _ROLES}
    rows = read_rows(
        job.files,
        chosen,
        n_rows=job.n_rows,
        columns=columns,
        limits=job.read_limits(),
    )
    values = validate_rows(rows, columns=columns).values
    return [str(text) for text in values["candidate"]], [str(text) for text in values["context"]]


def calibrate(
    job: Job, *, corpus: str, n_pairs: int, seed: int, n_threads: int | None = None
) -> BaselineFile:
    """Return the baselines of every instance of a job.

    Parameters
    ----------
    job : Job
        Instances without baselines; profile ``paper``.
    corpus : str
        Name of the corpus, for the signature of scores.
    n_pairs : int
        Random pairs to average over, at most.
    seed : int
    """
    pairs = draw_pairs(job, n_pairs=n_pairs, seed=seed)
    engine = Engine(models=job.config.models, device=job.device, n_threads=n_threads)
    records: dict[str, BaselineRecord] = {}
    for family, instances in _families(job):
        runner = family.open_runner(engine)
        table = runner.score({"candidate": pairs.questions, "context": pairs.contexts})
        for plan in instances:
            found = plan.metric.calibrate(
                plan.settings, family.name, Targets(ArrowStatistics(table)), family.facts
            )
            assert found.raw is not None, "a baseline is a mean of scores"
            raw = found.raw[~np.isnan(found.raw)].astype(np.float64)
            if not len(raw):
                raise InputError(f"{family.key}: no random pair has a defined score [QA0217]")
            records[found.key] = BaselineRecord(
                part=family.name,
                key=found.key,
                value=float(raw.mean()),
                n_pairs=len(raw),
                n_dropped=pairs.n_dropped,
                n_undefined=len(found.raw) - len(raw),
                interval_95=_interval(raw),
            )
    return BaselineFile(
        corpus=corpus, seed=seed, max_bleu_1=MAX_BLEU_1, baselines=tuple(records.values())
    )


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the interval of a mean of pairs; of one value, as of one pair, its ends are alike."""
    ends = ValueRange(float(values.min()), float(values.max()))
    found = mean_interval(np.ones(len(values)), values, ends)
    low, high = found.interval or (ends.lowest, ends.highest)
    return low, high


def _families(job: Job) -> Iterator[tuple[ModelFamilyPlan, list[InstancePlan]]]:
    for family in filter(is_model, job.run.families):
        own = [
            plan
            for plan in job.run.instances
            if family in plan.families.values()
            and family.name in plan.metric.calibrated_parts(plan.settings)
        ]
        if own:
            yield family, own
