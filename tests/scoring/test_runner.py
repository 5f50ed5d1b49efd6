"""A family's runner: units run alone, for who wants to see them, score as they do in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qaeval_core.families.contract import statistics_table
from qaeval_core.families.model_family import FamilyRunner, UnitRun
from tiny_runner import sas_runner

ROWS = {
    "candidate": ["the red mill", "the barn"],
    "references": [["the mill", "the red red red barn"], ["mill"]],
}


def test_units_are_shown_alone_and_in_order(tmp_path: Path) -> None:
    """Protects from tokens of one pair beside the numbers of another."""
    runner = sas_runner(tmp_path / "artifact")
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
    assert alone.equals(FamilyRunner(runner.plan, n_threads=1).score(ROWS))
