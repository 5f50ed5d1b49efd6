"""Padding: default batches against batches that are not sorted, and against other budgets.

The model pass alone is timed, on one session: units and lengths are the same for every policy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Settings, family
from benchmarks.data import load_rows
from benchmarks.measure import interleave
from qaeval_core.families.model_family import ModelFamilyPlan
from qaeval_core.families.model_units import Units
from qaeval_core.models.session import Session, token_budget_batches

BUDGETS = {"lrm": (384, 512, 768, 1024, 2048), "grg": (512, 768, 1024, 2048, 4096)}
N_FIXED_ROWS = 32

Batches = Sequence[Sequence[int]]


def run_padding(settings: Settings) -> dict[str, object]:
    """Time the default batches beside unsorted ones and print both."""
    results = {}
    for name, n_rows in (("lrm", settings.n_rows), ("grg", settings.n_grg_rows)):
        plan, units, default = _prepare(name, n_rows)
        policies = {
            f"sorted, {default} tokens (default)": _by_budget(units, default),
            f"input order, {default} tokens": list(_in_order(units.lengths, default)),
            f"input order, {N_FIXED_ROWS} rows": _fixed(len(units.lengths)),
        }
        results[name] = _time(name, plan, units, policies, settings)
    return results


def run_budgets(settings: Settings) -> dict[str, object]:
    """Time other token budgets, sorted, and print all of them."""
    results = {}
    for name, n_rows in (("lrm", settings.n_rows), ("grg", settings.n_grg_rows)):
        plan, units, default = _prepare(name, n_rows)
        policies = {
            f"sorted, {budget} tokens": _by_budget(units, budget)
            for budget in dict.fromkeys([default, *BUDGETS[name]])
        }
        results[name] = _time(name, plan, units, policies, settings)
    return results


def _prepare(name: str, n_rows: int) -> tuple[ModelFamilyPlan, Units, int]:
    plan = family(name)
    units = plan.open_layout().prepare(load_rows(n_rows).roles()).work.units
    return plan, units, max(plan.family.max_batch_tokens["cpu"], plan.max_unit_tokens)


def _time(
    name: str, plan: ModelFamilyPlan, units: Units, policies: dict[str, Batches], settings: Settings
) -> dict[str, object]:
    session = Session(plan.artifact, n_threads=settings.n_threads)

    def run(batches: Batches) -> None:
        for batch in batches:
            session.run(units.make_inputs(batch))

    run(next(iter(policies.values()))[:2])
    sides = {label: (lambda batches=batches: run(batches)) for label, batches in policies.items()}
    seconds = interleave(sides, n_repeats=settings.n_repeats)
    n_tokens = int(units.lengths.sum())
    first = next(iter(seconds))
    print(f"{name}: {len(units.lengths)} sequences, {n_tokens:,} tokens, model pass alone")
    results = {}
    for label, batches in policies.items():
        padded = sum(int(units.lengths[list(b)].max()) * len(b) for b in batches)
        median_s = statistics.median(seconds[label])
        result = {
            "padding_share": 1 - n_tokens / padded,
            "n_batches": len(batches),
            "seconds": seconds[label],
            "useful_tokens_per_s": n_tokens / median_s,
            "relative_to_first": statistics.median(seconds[first]) / median_s,
        }
        results[label] = result
        print(
            f"  {label:<34} padding {result['padding_share']:6.1%}  {len(batches):4} batches"
            f"  {result['useful_tokens_per_s']:8,.0f} useful tokens/s"
            f"  {result['relative_to_first']:5.2f}x the first"
        )
    return results


def _by_budget(units: Units, max_batch_tokens: int) -> Batches:
    """Return sorted batches; a sequence longer than the budget is a batch alone."""
    fits = np.flatnonzero(units.lengths <= max_batch_tokens)
    batches = token_budget_batches(units.lengths[fits], max_batch_tokens=max_batch_tokens)
    alone = np.flatnonzero(units.lengths > max_batch_tokens).tolist()
    return [[i] for i in alone] + [fits[batch].tolist() for batch in batches]


def _in_order(lengths: NDArray[np.int64], max_batch_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for i, length in enumerate(lengths.tolist()):
        longest = max([length, *lengths[batch].tolist()])
        if batch and longest * (len(batch) + 1) > max_batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def _fixed(n_units: int) -> Batches:
    starts = range(0, n_units, N_FIXED_ROWS)
    return [list(range(i, min(i + N_FIXED_ROWS, n_units))) for i in starts]
