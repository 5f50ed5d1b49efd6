"""Processes that do not find some installed packages, as if nobody had installed them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_SITECUSTOMIZE = """
import importlib.machinery
import importlib.metadata
import os

hidden = set(os.environ["HIDDEN_PACKAGES"].split(","))
finder = importlib.machinery.PathFinder
find_spec = finder.find_spec
find_distributions = importlib.metadata.MetadataPathFinder.find_distributions


def spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else find_spec(name, path, target)


def distributions(context=importlib.metadata.DistributionFinder.Context()):
    return () if context.name in hidden else find_distributions(context)


finder.find_spec = classmethod(spec)
importlib.metadata.MetadataPathFinder.find_distributions = distributions
importlib.machinery.PathFinder.find_distributions = distributions
"""


def hiding(folder: Path, *modules: str, below: Sequence[str] = ()) -> dict[str, str]:
    """Return an environment whose Python processes do not find some modules.

    Parameters
    ----------
    folder : Path
        Where the file is written that hides them.
    below : sequence of str, default ()
        Folders that modules are looked for in after it.
    """
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    given = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([str(folder), *below, *given])
    return {**os.environ, "PYTHONPATH": path, "HIDDEN_PACKAGES": ",".join(modules)}
