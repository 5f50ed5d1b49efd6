"""The pages of this project, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path

from helpers import REPOSITORY

README, DOCS = REPOSITORY / "README.md", REPOSITORY / "docs"
PAGES = (README, *sorted(DOCS.glob("*.md")))
CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return languages and texts of a page's code blocks."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, body) for kind, body in found if kind in languages]
