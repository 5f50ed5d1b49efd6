"""compare: systems against each other, by the rows that all of them have.

Exit codes: 0 done, 1 a store does not answer, 2 bad request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import (
    FormatOption,
    MovedInputOption,
    NameOption,
    PercentOption,
    ResamplesOption,
    SeedOption,
    WidthOption,
    flag,
    option,
)
from qaeval_core.errors import QAEvalError

_PROGRESS_S = 5.0
EPILOG = """Examples:

  qaeval compare out/base out/large

  qaeval compare base=runs/1 large=runs/2 --baseline base --metrics f1,sas

  qaeval compare out --system model --by topic

  qaeval compare out/a out/b out/c --format latex --percent > table.tex

  qaeval compare out/a out/b --on question --out comparison

A difference holds where its corrected p is at most 0.05.

Exit codes: 0 done; 1 a store did not answer; 2 bad request.
"""


def compare(
    scores: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]SCORES...",
            help="OUT folder or table of scores of each system; a single one with --system.",
        ),
    ],
    system: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="COLUMN",
            text="Column of system names in a single OUT.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="COLUMN",
            text="Column whose values say which rows belong together. Rows of one value are "
            "averaged.",
            show_default="the ids",
        ),
    ] = None,
    inputs: MovedInputOption = None,
    anyway: Annotated[
        bool,
        flag(
            "--anyway",
            group=arguments.INPUT,
            text="Compare scores of different settings or versions, too.",
        ),
    ] = False,
    out: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="DIR",
            text="Folder for compare.html and compare.json.",
        ),
    ] = None,
    name: NameOption = None,
    form: FormatOption = "text",
    percent: PercentOption = False,
    width: WidthOption = None,
    metrics: Annotated[
        str | None,
        option(
            group=arguments.METRICS,
            metavar="COLUMNS",
            text="Comma-separated score columns.",
            show_default="the main one of each metric",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="SYSTEM",
            text="Compare the others with this system.",
            show_default="the best",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            group=arguments.COMPARISON,
            metavar="COLUMN",
            text="Also show the means of each value of this column. Repeatable.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            group=arguments.STATISTICS,
            metavar="COLUMN",
            text="Resample rows with equal values of this column or role together. none resamples "
            "rows one by one.",
            show_default="the context, else the question",
        ),
    ] = None,
    resamples: ResamplesOption = 1000,
    seed: SeedOption = 0,
) -> None:
    """Compare systems by their scores.

    It shows means, ranks, and which differences to the best system hold. Rows
    are paired by their ids, and resampled by contexts.
    """
    # Imported here: --help needs none of it.
    from qaeval_core.compare.output import lines, printed_comparison, write
    from qaeval_core.compare.request import CompareRequest, named_paths
    from qaeval_core.compare.run import compare_systems
    from qaeval_core.pages.printed import check_format
    from qaeval_core.running.progress import LabelProgress
    from qaeval_core.storage.path import open_out
    from qaeval_core.tables.finished_run import check_results_out

    try:
        check_format(form)
        request = CompareRequest(
            scores=named_paths(scores),
            system=system,
            metrics=tuple(name.strip() for name in (metrics or "").split(",") if name.strip()),
            on=on,
            baseline=baseline,
            by=tuple(by or ()),
            cluster=cluster,
            anyway=anyway,
            inputs=tuple(inputs or ()),
            n_resamples=resamples,
            seed=seed,
        )
        folder = open_out(out) if out is not None else None
        if folder is not None:
            check_results_out(folder)
        with LabelProgress(_PROGRESS_S) as tell:
            found = compare_systems(request, tell=tell)
        for line in lines(found):
            options.say(line)
        options.show_lines(printed_comparison(found, form, percent=percent, width=width))
        for path in write(found, folder) if folder is not None else ():
            options.say(str(path))
    except QAEvalError as error:
        options.fail(error)
