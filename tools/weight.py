"""Weight: lines of code by package, at one or more commits; ``python -m tools.weight HEAD~9 HEAD``.

A line counts if it holds a token of Python. Blank lines, comments and docstrings do not; other
texts of several lines count with all of these. Only tracked files count.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("qaeval_core", "jobs", "export")
OTHERS = ("recipes", "tests", "benchmarks", "tools")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    r"""Return how many lines of a module are code.

    Examples
    --------
    >>> code_lines("'A module.'\n\nX = 1  # one\n\n# none\n")
    1
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def weigh(commit: str) -> Counter[str]:
    """Return code lines by top folder at a commit."""
    listed = _git("ls-tree", "-r", "--name-only", commit)
    found: Counter[str] = Counter()
    for path in listed.splitlines():
        top = path.partition("/")[0]
        if path.endswith(".py") and top in (*PRODUCT, *OTHERS):
            found[top] += code_lines(_git("show", f"{commit}:{path}"))
    found["product"] = sum(found[name] for name in PRODUCT)
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    """Print a column a commit."""
    commits = sys.argv[1:] or ["HEAD"]
    weights = [weigh(commit) for commit in commits]
    print("".join(["".ljust(12), *(commit[:12].rjust(14) for commit in commits)]))
    for name in ("product", *PRODUCT, *OTHERS):
        print("".join([name.ljust(12), *(f"{own[name]:14,}" for own in weights)]))


if __name__ == "__main__":
    main()
