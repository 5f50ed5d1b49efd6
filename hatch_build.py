"""Hatch's hook: README and URLs of the distribution, from the one constant that has the address."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def linked(text: str, repository: str) -> str:
    """Return a page with absolute links; without an address, with their words alone."""

    def absolute(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if not repository:
            return "" if mark else words
        return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/main/{target})"

    return _RELATIVE.sub(absolute, text)


def urls(repository: str) -> dict[str, str]:
    """Return the project's URLs, none where there is no address."""
    if not repository:
        return {}
    return {
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Source": repository,
    }


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatch when it builds or installs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set what pyproject.toml calls dynamic."""
        root = Path(self.root)
        # Run alone: the package imports libraries that a build does not have.
        own = runpy.run_path(str(root / "qaeval_core" / "distribution.py"))
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": linked(text, own["REPOSITORY"]),
        }
        metadata["urls"] = urls(own["REPOSITORY"])
