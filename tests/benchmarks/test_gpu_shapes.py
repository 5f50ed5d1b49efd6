"""What the CUDA provider is asked for on the mock: the record, and the page that repeats it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_shapes import CASES, MEMORY_CASES, OPTIONS, RECORDS
from helpers import REPOSITORY

_COUNTS = ("on_cuda", "on_cpu", "launches", "h2d", "d2h")
_Lines = dict[tuple[str, ...], dict[str, Any]]


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page."""
    return (REPOSITORY / "docs" / "gpu-bounds.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Return counts of batches, and LRM's memory."""
    path = REPOSITORY / "docs" / "evidence" / "gpu_graphs.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    return [record[key] for key in RECORDS]


def _table(page: str, start: str) -> list[str]:
    """Return the rows of the table whose head starts so."""
    rows = page.partition(f"\n{start}")[2].partition("\n\n")[0].splitlines()
    return rows[2:]


def _shape(n_rows: int, n: int) -> str:
    return f"{n_rows}x{n}"


def test_the_page_has_what_batches_ask_for(records: list[dict[str, Any]], page: str) -> None:
    """Protects from counts that no command makes any more, or that were of other graphs."""
    sides: list[_Lines] = [
        {(own["path"], own["shape"], own.get("precision", "fp16")): own for own in records[0][side]}
        for side in ("before", "after")
    ]
    told = []
    for graph, model, precision, n_rows, n in CASES:
        key = (f"{graph}-{model}.onnx", _shape(n_rows, n), precision)
        before, after = (lines[key] for lines in sides)
        assert "revision" in after, "no command has counted it"
        name = f"{graph}, {model}, {n_rows} x {n}"
        cells = [f"{before[count]} -> {after[count]}" for count in _COUNTS]
        cells += [f"{before['peak_gib']:.1f} -> {after['peak_gib']:.1f}"]
        words = [name if precision == "fp16" else f"the same in {precision}", *cells]
        told.append(f"| {' | '.join(words)} |")
    assert _table(page, "| graph, model, rows x tokens | nodes on CUDA") == told


def test_the_page_has_lrms_memory(records: list[dict[str, Any]], page: str) -> None:
    """Protects from an order of nodes that saves memory on paper alone."""
    lines: _Lines = {
        (own["graphs"], own["precision"], own["shape"]): own for own in records[1]["rows"]
    }
    told, saved = [], {}
    for precision, n_rows, n in MEMORY_CASES:
        for side in ("before", "after"):
            own = lines[side, precision, _shape(n_rows, n)]["peak_gib"]
            cells = " | ".join(f"{own[name]:.1f}" for name in OPTIONS)
            told.append(f"| {side}, {precision}, {n_rows} x {n} | {cells} |")
        assert "revision" in lines["after", precision, _shape(n_rows, n)]
        saved[precision, n_rows] = 1 - own["both"] / own["no patterns"]
    assert _table(page, "| graphs, precision, rows x tokens | default") == told
    least, most = sorted((saved["fp32", 32], saved["fp32", 82]))
    shown = " ".join(page.split())
    assert f"saves fp32 {100 * least:.0f} to {100 * most:.0f} % and costs fp16" in shown
    assert f"does not run in, {-100 * saved['fp16', 82]:.0f} %." in shown
