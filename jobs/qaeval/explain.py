"""explain: show how rows of a finished run got their scores: tokens, matches, gains.

Exit codes: 0 done, 1 recomputed values differ from the stored ones, 2 bad request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import MovedInputOption, NameOption, PluginOption, RunArgument, option
from qaeval_core.errors import QAEvalError

EPILOG = """Examples:

  qaeval explain out --id q17

  qaeval explain out --id q17 --html q17.html --json q17.json

  qaeval explain out --row input.parquet:3 --instance qrelscore

  qaeval explain out --lowest f1 --html lowest.html

  qaeval explain s3://bucket/out --id q17 --input s3://bucket/data/

The token matches of qrelscore need one more export:

  qaeval export --graph relevance_matches --model minilm

Exit codes: 0 done; 1 recomputed values differ; 2 bad request.
"""


def explain(
    out: RunArgument,
    identity: Annotated[
        list[str] | None,
        option(
            "--id",
            group=arguments.INPUT,
            metavar="ID",
            text="Id of a row, or FILE#N if the input has no id column. Repeatable.",
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        option(
            group=arguments.INPUT,
            metavar="FILE:N",
            text="Row N, counted from 0, of a file below OUT/scores. Repeatable.",
        ),
    ] = None,
    lowest: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="METRIC",
            text="The five rows with the lowest scores of a metric, as the report has them.",
        ),
    ] = None,
    source: MovedInputOption = None,
    html: Annotated[
        Path | None,
        option(
            group=arguments.OUTPUT,
            metavar="FILE",
            text="Write a self-contained HTML page. Pages of further rows get "
            "the names FILE-2 and so on.",
        ),
    ] = None,
    name: NameOption = None,
    json: Annotated[
        Path | None,
        option(
            group=arguments.OUTPUT,
            metavar="FILE",
            text="Write the explanation as JSON; a list of several rows.",
        ),
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
    """Show how a row got its scores.

    The scores are computed again, and traced back to tokens, matches or LLM
    replies. Pages of several rows link to each other.
    """
    # Imported here: --help needs none of it.
    from qaeval_core.explain.page import explanation_lines, write_pages
    from qaeval_core.explain.parts import explanation_content
    from qaeval_core.explain.row import explain_rows, lowest_rows
    from qaeval_core.families.catalog import add_modules
    from qaeval_core.storage.files import write_json
    from qaeval_core.storage.path import check_lasting

    try:
        add_modules(plugin or ())
        check_lasting(html, "--html")
        check_lasting(json, "--json")
        places = [*(row or ()), *(lowest_rows(out, lowest) if lowest is not None else ())]
        named = [*((own, None) for own in identity or ()), *((None, own) for own in places)]
        explained = explain_rows(
            out,
            named or [(None, None)],
            instances=instance or (),
            artifacts=artifacts,
            inputs=source or (),
        )
    except QAEvalError as error:
        options.fail(error)
    for i, explanation in enumerate(explained):
        for line in (*([""] if i else []), *explanation_lines(explanation)):
            options.show(line)
    for path in write_pages(explained, out, html) if html is not None else ():
        options.show(f"page: {path}")
    if json is not None:
        content = [explanation_content(own) for own in explained]
        write_json(json, content if len(content) > 1 else content[0])
        options.show(f"JSON: {json}")
