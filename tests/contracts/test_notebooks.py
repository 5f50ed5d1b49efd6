"""Notebooks: their cells run in order, and no output is kept in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_in_order(path: Path, tmp_path: Path) -> None:
    """As a kernel runs them: the last expression of a cell is shown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3 and not any(cell.get("outputs") for cell in cells)
    runner = (
        "import ast, json, sys\n"
        "space = {}\n"
        "for source in json.loads(sys.stdin.read()):\n"
        "    tree = ast.parse(source)\n"
        "    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None\n"
        "    exec(compile(tree, 'cell', 'exec'), space)\n"
        "    if last is not None:\n"
        "        shown = eval(compile(ast.Expression(last.value), 'cell', 'eval'), space)\n"
        "        html = getattr(shown, '_repr_html_', lambda: None)()\n"
        "        print(html or repr(shown))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", runner],
        input=json.dumps(code),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "FilteredTable(kept 2 of 4 rows" in done.stdout
    assert "pearson" in done.stdout and "null_candidate" in done.stdout
