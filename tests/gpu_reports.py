"""What the JSON of ``benchmarks.gpu`` must have, wherever it ran."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def assert_rates(found: dict[str, Any], *, n_rows: int, families: Collection[str]) -> None:
    """Assert that each family has rates at every budget, and that end to end counts its rows.

    ``n_rows``, ten at most, are those of SAS; QRelScore has a tenth of them, one at least.
    """
    assert found["failures"] == []
    assert [own["family"] for own in found["families"]] == list(families)
    for own in found["families"]:
        rates = [budget.get("rows_per_s", 0) for budget in own["budgets"].values()]
        assert rates and min(rates) > 0, own["family"]
    for metric, n in (("sas", n_rows), ("qrelscore", 1)):
        end = found["end_to_end"][metric]
        assert (end["n_rows"], end["quarantined"]) == (n, 0)
        assert set(end["passes"]) and all(own["rows"] == n for own in end["passes"].values())
