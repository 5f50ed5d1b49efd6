"""Distribution: the name that pip knows this project by, and the command that it installs.

On the public index ``qaeval`` is another project, which installs a package ``qaeval``, too. The
command therefore starts here, outside that package, and names the other one where it finds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

NAME = "qaeval-bulk"
# Where the source lies, such as https://host/owner/name; project URLs and README's absolute links
# are made from it at build time, and left out while it is empty.
REPOSITORY = ""
_OTHER = "qaeval"
# Verbs that hand their words over to another process.
PASSED_ON = ("train", "export")


def requirement(extra: str) -> str:
    """Return an extra of this project as a shell takes it.

    Examples
    --------
    >>> requirement("cloud")
    "'qaeval-bulk[cloud]'"
    """
    return f"'{NAME}[{extra}]'"


def python_path() -> str:
    """Return a ``PYTHONPATH`` by which another process finds this library and ``qaeval_export``."""
    specs = map(importlib.util.find_spec, ("qaeval_core", "qaeval_export"))
    folders = [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]
    given = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join(dict.fromkeys([*folders, *given]))


def clash_line() -> str:
    """Return what to do about the other distribution of the name ``qaeval``, "" without one."""
    if not _may_be_there():
        return ""
    from importlib import metadata  # 35 ms, which few need.

    if next(iter(metadata.distributions(name=_OTHER)), None) is None:
        return ""
    return (
        f"the distribution {_OTHER} {metadata.version(_OTHER)} is installed here. It is another "
        "project, and both write to the package qaeval. Use another environment, or: "
        f"pip uninstall {_OTHER} && pip install --force-reinstall --no-deps {NAME}"
    )


def _may_be_there() -> bool:
    """Return whether a file or folder is named as the metadata of the other one would be."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # An archive, or nothing.
            continue
        if any(name.startswith((f"{_OTHER}-", f"{_OTHER}.")) for name in names):
            return True
    return False


def main() -> None:
    """Run the command line, unless its package may be another project's."""
    line = clash_line()
    if line:
        sys.stderr.write(f"error: {line} [QA0004]\n")
        sys.exit(2)
    importlib.import_module("qaeval.last_words").run(_command)


def _command() -> None:
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in PASSED_ON:  # What reads words is loaded by the process that gets them.
        own = getattr(importlib.import_module(f"qaeval.{verb}"), verb)
        importlib.import_module("qaeval.command").caught(own)(sys.argv[2:])
    else:
        importlib.import_module("qaeval.cli").main()
