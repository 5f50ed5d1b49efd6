"""demo: answers of the sample, scored by words and by the embedded models, and what scores say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from qaeval import arguments

EPILOG = """Examples:

  qaeval demo

  qaeval demo --out demo_out

Exit codes: 0 done; 1 failed or stopped; 2 bad request or missing packages.
"""


def demo(
    out: Annotated[
        Path,
        arguments.option(
            group=arguments.OUTPUT,
            metavar="DIR",
            text="Folder for the sample, its scores and reports.",
        ),
    ] = Path("demo_out"),
) -> None:
    """Score a small sample with the bundled models.

    Natural answers come first, then a hard set. It ends with the path of a report.
    """
    # Imported here: --help needs none of it.
    from qaeval.work.demo import run_demo

    run_demo(out)
