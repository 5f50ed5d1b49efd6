"""Common: what every section needs: its options, and the families of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qaeval_core.configure import RunConfig, load_config
from qaeval_core.families.model_family import ModelFamilyPlan
from qaeval_core.models.artifact import artifact_root, ensure_artifact
from qaeval_core.models.engine import Device
from qaeval_core.planning.compile import compile_run
from qaeval_core.planning.run_plan import InstancePlan

COLUMNS = {"candidate": "question", "context": "context"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the command line, as sections read them."""

    n_rows: int
    n_grg_rows: int
    n_peer_rows: int | None
    n_repeats: int
    n_threads: int
    peak_tflops: float | None
    peak_gflops: float  # measured: GEMM on the CPU
    precision: str = "fp32"
    peer_precision: str = "fp32"


def make_instance(
    overrides: Mapping[str, object] | None = None, *, device: Device = "cpu"
) -> tuple[RunConfig, InstancePlan]:
    """Return a configuration and its compiled metric, artifacts built where they are missing."""
    config = load_config(overrides=overrides)
    root = artifact_root(config.models.artifacts_path)
    run = compile_run(
        config,
        columns=COLUMNS,
        device=device,
        resolve_artifact=lambda request: ensure_artifact(root, request),
    )
    return config, run.instances[0]


def family(name: str) -> ModelFamilyPlan:
    """Return a family of the default configuration."""
    plan = make_instance()[1].families[name]
    assert isinstance(plan, ModelFamilyPlan)
    return plan
