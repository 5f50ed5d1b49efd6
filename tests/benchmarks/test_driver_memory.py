"""The record of how the memory of whoever runs a command grows, and the pages that repeat it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.driver_memory import decide_rows
from helpers import REPOSITORY

_DOCS = REPOSITORY / "docs"
FOUND = json.loads((_DOCS / "evidence" / "driver_memory.json").read_text(encoding="utf-8"))


def growth(name: str) -> float:
    """Return the bytes that a command takes more for a row more, of each of two runs or of one."""
    few, many = sorted(int(size) for size in FOUND if name in FOUND[size])
    by = FOUND[str(many)][name]["driver_mb"] - FOUND[str(few)][name]["driver_mb"]
    return float(by * 1e6 / (many - few) / (2 if name in ("pairs", "compare") else 1))


def said(page: str) -> str:
    return " ".join((_DOCS / page).read_text(encoding="utf-8").split())


def megabytes(size: int, name: str) -> str:
    return f"{FOUND[str(size)][name]['driver_mb']:,.0f} MB"


def test_the_page_of_filters_says_what_was_measured() -> None:
    text = said("filter.md")
    few, many = 5_000_000, 20_000_000
    disk = f"{megabytes(few, 'disk')} and {megabytes(many, 'disk')}"
    memory = f"{megabytes(few, 'memory')} and {megabytes(many, 'memory')}"
    assert f"of 5 and 20 million rows took {disk} of memory with them on disk, and {memory}" in text
    assert growth("disk") < 5 < growth("memory") < 40


def test_the_page_of_audits_says_what_was_measured() -> None:
    text = said("audit.md")
    rows = [1_000_000, 4_000_000]
    first, last = (megabytes(size, "audit") for size in rows)
    assert f"Of 1 and 4 million rows an audit takes {first} and {last}" in text
    assert f"pairs take {growth('pairs'):.0f} bytes a row and run" in text
    total = 2 * growth("pairs") * 100e6 / 1e9
    assert f"{total:.0f} GB for 100 million rows" in text
    assert growth("audit") < 5


def test_the_page_of_systems_says_what_was_measured() -> None:
    first, last = (megabytes(size, "compare") for size in (1_000_000, 4_000_000))
    assert f"Of two systems of 1 and 4 million rows it was {first} and {last}" in said("systems.md")
    assert growth("compare") < growth("pairs") / 4


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_rows_are_decided_where_they_lie(tmp_path: Path, is_on_disk: bool) -> None:
    decide_rows(1000, tmp_path if is_on_disk else None)
