"""Distribution: the name that pip knows this project by, and the command that it installs.

On the public index ``qaeval`` is another project, which installs a package ``qaeval``, too. The
command therefore starts here, outside that package, and names the other one where it finds it.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata

NAME = "qaeval-bulk"
# Where the source lies, such as https://host/owner/name; project URLs and README's absolute links
# are made from it at build time, and left out while it is empty.
REPOSITORY = ""
_OTHER = "qaeval"


def requirement(extra: str) -> str:
    """Return an extra of this project as a shell takes it.

    Examples
    --------
    >>> requirement("cloud")
    "'qaeval-bulk[cloud]'"
    """
    return f"'{NAME}[{extra}]'"


def clash_line() -> str:
    """Return what to do about the other distribution of the name ``qaeval``, "" without one."""
    if next(iter(metadata.distributions(name=_OTHER)), None) is None:
        return ""
    return (
        f"the distribution {_OTHER} {metadata.version(_OTHER)} is installed here. It is another "
        "project, and both write to the package qaeval. Use another environment, or: "
        f"pip uninstall {_OTHER} && pip install --force-reinstall --no-deps {NAME}"
    )


def main() -> None:
    """Run the command line, unless its package may be another project's."""
    line = clash_line()
    if line:
        sys.stderr.write(f"error: {line}\n")
        sys.exit(2)
    last_words = importlib.import_module("qaeval.last_words")
    last_words.run(lambda: importlib.import_module("qaeval.cli").main())
