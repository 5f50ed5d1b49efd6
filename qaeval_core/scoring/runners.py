"""Runners: the runner of a family, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qaeval_core.config import ModelsSection
from qaeval_core.models.session import Device
from qaeval_core.scoring.families.asked import AskedFamilyPlan
from qaeval_core.scoring.families.models import ModelFamilyPlan
from qaeval_core.scoring.families.words.family import WordsFamilyPlan
from qaeval_core.scoring.families.words.frequencies import DocumentFrequencies
from qaeval_core.scoring.plans import FamilyPlan
from qaeval_core.scoring.runner import FamilyRunner
from qaeval_core.scoring.words_runner import WordsRunner


def make_runner(
    plan: FamilyPlan,
    *,
    models: ModelsSection,
    device: Device = "cpu",
    n_threads: int | None = None,
    load_frequencies: Callable[[FamilyPlan], DocumentFrequencies] | None = None,
) -> Any:
    """Return the `Runner` of a family.

    Parameters
    ----------
    plan : FamilyPlan
    models : ModelsSection
        Budgets of batches.
    device : {"cpu", "cuda"}
    n_threads : int, optional
        Threads of one operator on the CPU.
    load_frequencies : callable, optional
        Returns the document frequencies that a family reads.
    """
    given = load_frequencies(plan) if plan.frequencies_path and load_frequencies else None
    if isinstance(plan, WordsFamilyPlan):
        return WordsRunner(plan, frequencies=given)
    if isinstance(plan, ModelFamilyPlan):
        given_model = getattr(models, plan.family.model_role)
        return FamilyRunner(
            plan,
            device=device,
            n_threads=n_threads,
            max_batch_tokens=given_model.max_batch_tokens,
            max_batch_s=given_model.max_batch_s,
            frequencies=given,
        )
    if isinstance(plan, AskedFamilyPlan):
        # Imported here: HTTP takes a tenth of a second that other runs need not pay.
        from qaeval_core.scoring.asked_locally import AskedRunner

        return AskedRunner(plan)
    raise TypeError(f"no runner for {type(plan).__name__}")
