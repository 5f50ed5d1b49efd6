"""explain: why one row of a finished run has its scores: tokens, matches, gains.

Exit codes: 0 done, 1 recomputed values differ from the stored ones, 2 bad request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qaeval import command as options
from qaeval_core.errors import QAEvalError
from qaeval_core.storage.files import write, write_json

EPILOG = """Examples:

  qaeval explain out --id q17

  qaeval explain out --id q17 --html q17.html --json q17.json

  qaeval explain s3://bucket/out --id q17 --html q17.html

  qaeval explain out --row input.parquet:3 --instance qrelscore

  qaeval export --graph relevance_matches --model minilm   (for the matches of LRM, once)

  qaeval explain out --id q17 --artifacts /shared/artifacts --input s3://bucket/data/
"""


def explain(
    out: Annotated[str, typer.Argument(help="the --out folder of a finished qaeval score")],
    identity: Annotated[
        str | None,
        typer.Option("--id", help="the row's id; FILE#N where the input has no id column"),
    ] = None,
    row: Annotated[
        str | None, typer.Option(help="FILE:N: file as in OUT/scores, row number from 0")
    ] = None,
    instance: Annotated[
        list[str] | None, typer.Option(help="compute this instance again, and no other")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--input", help="where the input lies now")
    ] = None,
    artifacts: Annotated[
        Path | None, typer.Option(help="where artifacts lie; default QAEVAL_ARTIFACTS or the cache")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write a page that needs no other file")] = None,
    json: Annotated[Path | None, typer.Option(help="write everything as JSON")] = None,
) -> None:
    """Explain the scores of one row: which tokens or replies they come from, computed again."""
    # Imported here: other verbs need none of it.
    from qaeval_core.explain.page import explanation_lines, explanation_page
    from qaeval_core.explain.parts import explanation_content
    from qaeval_core.explain.row import explain_row

    try:
        explanation = explain_row(
            out,
            identity=identity,
            place=row,
            instances=instance or (),
            artifacts=artifacts,
            inputs=source or (),
        )
    except QAEvalError as error:
        options.fail(error)
    for line in explanation_lines(explanation):
        options.show(line)
    if html is not None:
        write(html, explanation_page(explanation).encode())
        options.show(f"page: {html}")
    if json is not None:
        write_json(json, explanation_content(explanation))
        options.show(f"JSON: {json}")


def main() -> None:
    """Run ``python -m qaeval.explain``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(explain)
    app()


if __name__ == "__main__":
    main()
