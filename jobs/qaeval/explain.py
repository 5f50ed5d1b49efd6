"""explain: show how one row of a finished run got its scores: tokens, matches, gains.

Exit codes: 0 done, 1 recomputed values differ from the stored ones, 2 bad request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import MovedInputOption, PluginOption, RunArgument, option
from qaeval_core.errors import QAEvalError

EPILOG = """Examples:

  qaeval explain out --id q17

  qaeval explain out --id q17 --html q17.html --json q17.json

  qaeval explain out --row input.parquet:3 --instance qrelscore

  qaeval explain s3://bucket/out --id q17 --input s3://bucket/data/

The token matches of qrelscore need one more export:

  qaeval export --graph relevance_matches --model minilm

Exit codes: 0 done; 1 recomputed values differ; 2 bad request.
"""


def explain(
    out: RunArgument,
    identity: Annotated[
        str | None,
        option(
            "--id",
            group=arguments.INPUT,
            metavar="ID",
            text="Id of the row, or FILE#N if the input has no id column.",
        ),
    ] = None,
    row: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="FILE:N",
            text="Row N, counted from 0, of a file below OUT/scores. Use it instead of --id.",
        ),
    ] = None,
    source: MovedInputOption = None,
    html: Annotated[
        Path | None,
        option(group=arguments.OUTPUT, metavar="FILE", text="Write a self-contained HTML page."),
    ] = None,
    json: Annotated[
        Path | None,
        option(group=arguments.OUTPUT, metavar="FILE", text="Write the explanation as JSON."),
    ] = None,
    instance: Annotated[
        list[str] | None,
        option(
            group=arguments.METRICS,
            metavar="NAME",
            text="Explain only this metric instance. Repeatable.",
            show_default="all",
        ),
    ] = None,
    plugin: PluginOption = None,
    artifacts: Annotated[
        Path | None,
        option(
            group=arguments.SETTINGS,
            metavar="DIR",
            text="Folder of exported models.",
            show_default="QAEVAL_ARTIFACTS, else the cache",
        ),
    ] = None,
) -> None:
    """Show how one row got its scores.

    The scores are computed again, and traced back to tokens, matches or LLM
    replies.
    """
    # Imported here: --help needs none of it.
    from qaeval_core.explain.page import explanation_lines, explanation_page
    from qaeval_core.explain.parts import explanation_content
    from qaeval_core.explain.row import explain_row
    from qaeval_core.families.catalog import add_modules
    from qaeval_core.storage.files import write, write_json
    from qaeval_core.storage.path import check_lasting

    try:
        add_modules(plugin or ())
        check_lasting(html, "--html")
        check_lasting(json, "--json")
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
