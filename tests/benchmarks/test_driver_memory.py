"""The record of how the memory of whoever runs a command grows, and the pages that repeat it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.driver_memory import decide_rows
from helpers import REPOSITORY

_DOCS = REPOSITORY / "docs"
FOUND = json.loads((_DOCS / "evidence" / "driver_memory.json").read_text(encoding="utf-8"))


SIZES = (1_000_000, 4_000_000, 16_000_000)


def growth(name: str) -> float:
    """Return the bytes that a command takes more for a row more, of each of two runs or of one."""
    few, *_, many = sorted(int(size) for size in FOUND if name in FOUND[size])
    by = FOUND[str(many)][name]["driver_mb"] - FOUND[str(few)][name]["driver_mb"]
    return float(by * 1e6 / (many - few) / (2 if name in ("pairs", "compare") else 1))


def said(page: str) -> str:
    return " ".join((_DOCS / page).read_text(encoding="utf-8").split())


def megabytes(name: str, sizes: tuple[int, ...] = SIZES) -> str:
    first, *_, last = [f"{FOUND[str(size)][name]['driver_mb']:,.0f}" for size in sizes]
    if len(sizes) == 2:
        return f"{first} MB and {last} MB"
    return f"{first}, {FOUND[str(sizes[1])][name]['driver_mb']:,.0f} and {last} MB"


def test_the_page_of_filters_says_what_was_measured() -> None:
    text, sizes = said("filter.md"), SIZES[1:]
    disk, memory = (megabytes(name, sizes) for name in ("disk", "memory"))
    assert f"of 4 and 16 million rows took {disk} of memory with them on disk, and {memory}" in text
    assert growth("disk") < 5 < growth("memory") < 40


def test_the_page_of_audits_says_what_was_measured() -> None:
    text = said("audit.md")
    alone, pairs = megabytes("audit"), megabytes("pairs")
    assert f"Of 1, 4 and 16 million rows an audit took {alone} on the machine" in text
    assert f"and with `--reference OUT` {pairs}" in text
    assert growth("audit") < 5 and growth("pairs") < 10


def test_the_page_of_systems_says_what_was_measured() -> None:
    text = said("systems.md")
    assert f"Of two systems of 1, 4 and 16 million rows it was {megabytes('compare')}" in text
    assert growth("compare") < 10


def test_the_page_of_scale_says_what_was_measured() -> None:
    text = said("scale.md")
    for name in ("audit", "pairs", "compare"):
        assert f"{megabytes(name)} of 1, 4 and 16 million rows" in text, name


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_rows_are_decided_where_they_lie(tmp_path: Path, is_on_disk: bool) -> None:
    decide_rows(1000, tmp_path if is_on_disk else None)
