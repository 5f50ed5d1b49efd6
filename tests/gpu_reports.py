"""What the JSON of ``benchmarks.gpu`` must have, wherever it ran."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_models import FAMILIES


def assert_rates(found: dict[str, Any], *, n_rows: int, is_random: set[bool]) -> None:
    """Assert that every family has rates at every budget, and that end to end counts its rows."""
    assert found["failures"] == []
    assert {own["family"] for own in found["families"]} == set(FAMILIES)
    assert {own["is_random"] for own in found["families"]} == is_random
    for own in found["families"]:
        rates = [budget.get("rows_per_s", 0) for budget in own["budgets"].values()]
        assert rates and min(rates) > 0, own["family"]
    end = found["end_to_end"]
    assert (end["n_rows"], end["quarantined"]) == (n_rows, 0)
    assert set(end["passes"]) and all(own["rows"] == n_rows for own in end["passes"].values())
