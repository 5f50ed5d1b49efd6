"""Without pandas: Arrow looks for it at the first array that it makes of a list.

Its import takes a quarter of the time of a short run, and nobody here hands Arrow anything of it.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from qaeval_core.plugins import MODULES, packages


class _NoPandas:
    """Finds no pandas.

    Attributes
    ----------
    was_asked : bool
        Whether Arrow has looked.
    """

    was_asked = False

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse to find pandas; others find the rest."""
        if name == "pandas":
            raise ImportError("Arrow shall not find it")


def is_needless() -> bool:
    """Return whether all code that a run may meet is our own."""
    return not (packages() or MODULES)


def is_left_out() -> bool:
    """Return whether this process has left it out, so that processes which it begins do too."""
    return _NoPandas.was_asked


def leave_out_pandas() -> None:
    """Let Arrow know no pandas in this process.

    Others can import it afterwards, and tables become its frames. But: Arrow takes one of its
    series for any other sequence then, so this is for a process that runs our own code.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([None])
        _NoPandas.was_asked = True
    finally:
        sys.meta_path.remove(_NoPandas)
