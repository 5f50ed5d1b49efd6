"""A family's runner over a tiny artifact: SAS without a model."""

from __future__ import annotations

from pathlib import Path

from qaeval_core.configure import load_config
from qaeval_core.families.model_family import FamilyRunner
from qaeval_core.models.artifact import load_artifact
from qaeval_core.planning.compile import compile_run
from tiny_artifacts import make_cross_encoder


def sas_runner(folder: Path) -> FamilyRunner:
    """Return the runner of SAS whose graph sums token ids."""
    artifact = load_artifact(make_cross_encoder(folder))
    run = compile_run(
        load_config(overrides={"metrics.sas.metric": "sas"}),
        columns={"candidate": "candidate", "references": "references"},
        device="cpu",
        resolve_artifact=lambda _: artifact,
    )
    (plan,) = run.families
    return FamilyRunner(plan, n_threads=1)
