"""Distribution: the name that pip knows this project by.

On the public index ``qaeval`` is another project; the command and the packages keep that name.
"""

from __future__ import annotations

NAME = "qaeval-bulk"


def requirement(extra: str) -> str:
    """Return an extra of this project as a shell takes it.

    Examples
    --------
    >>> requirement("cloud")
    "'qaeval-bulk[cloud]'"
    """
    return f"'{NAME}[{extra}]'"
