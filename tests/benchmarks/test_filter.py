"""The record of the filter's benchmark, and the page that repeats it."""

from __future__ import annotations

import json
import statistics

from helpers import REPOSITORY

_EVIDENCE = REPOSITORY / "docs" / "evidence" / "filter.json"
_SECTIONS = [
    ("share", 700, 0.5),
    ("share", 100, 0.5),
    ("ties", 100, 0.0),
    ("group", 700, 0.2),
    ("group", 100, 0.2),
]


def test_the_page_says_what_was_measured() -> None:
    """Rates are at least the shares of a copy that filters were asked for, but where values tie."""
    found = json.loads(_EVIDENCE.read_text(encoding="utf-8"))
    page = (REPOSITORY / "docs" / "filter.md").read_text(encoding="utf-8")
    for name, n_chars, least in _SECTIONS:
        own = found[f"{name}-10000000-{n_chars}"]
        rates = [statistics.median(own[key]) for key in ("rows_per_s", "copy_rows_per_s")]
        ratio = own["ratio_to_copy"]["of_medians"]
        line = f"| {n_chars} characters | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} |"
        line = line.replace("| 0.", "| .")
        assert f"{line} {own['driver_mb']:.0f} MB | {own['worker_mb']:.0f} MB |" in page
        assert ratio >= least
