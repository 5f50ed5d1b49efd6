"""A family's runner: units run alone, for who wants to see them, score as they do in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_artifacts import make_cross_encoder

from qaeval_core.configure import load_config
from qaeval_core.families.model_family import FamilyRunner, UnitRun
from qaeval_core.families.plan import statistics_table
from qaeval_core.models.artifact import load_artifact
from qaeval_core.planning.compile import compile_run

ROWS = {
    "candidate": ["the red mill", "the barn"],
    "references": [["the mill", "the red red red barn"], ["mill"]],
}


def test_units_are_shown_alone_and_in_order(tmp_path: Path) -> None:
    """Protects from tokens of one pair beside the numbers of another."""
    artifact = load_artifact(make_cross_encoder(tmp_path / "artifact"))
    run = compile_run(
        load_config(overrides={"metrics.sas.metric": "sas"}),
        columns={"candidate": "candidate", "references": "references"},
        device="cpu",
        resolve_artifact=lambda _: artifact,
    )
    (plan,) = run.families
    runner = FamilyRunner(plan, n_threads=1)
    prepared = runner.layout.prepare(ROWS)
    units: list[UnitRun] = []
    runner.run(prepared, on_unit=units.append)
    assert [unit.inputs["input_ids"].shape for unit in units] == [
        (1, n_tokens) for n_tokens in prepared.work.units.lengths
    ]
    assert len({len(unit.inputs["input_ids"][0]) for unit in units}) > 1
    for unit in units:  # The graph sums ids, divided by ten.
        np.testing.assert_allclose(unit.output, unit.inputs["input_ids"].sum(axis=1) / 10)
    alone = statistics_table(prepared, first_position=0)
    assert alone.equals(FamilyRunner(plan, n_threads=1).score(ROWS))
