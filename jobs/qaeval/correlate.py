"""correlate: which metrics agree with human ratings, with confidence intervals.

Exit codes: 0 done, 1 a store does not answer, 2 bad request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import (
    EncodingOption,
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
from qaeval_core.errors import ConfigError, QAEvalError

if TYPE_CHECKING:
    from qaeval_core.study.records import Study

EPILOG = """Examples:

  qaeval correlate out --human rating

  qaeval correlate out --labels ratings.csv --human fluency --compare f1,sas

  qaeval correlate out --with ratings.csv --on id=row_id --human fluency

  qaeval correlate pairs.jsonl --human label --metrics f1 --auc 'label > 0'

  qaeval correlate out --human rating --system model --question id

  qaeval correlate out --human rating --win-lose id --min-gap 2 --out study

  qaeval correlate out --human fluency,relevance --format latex > table.tex

Undefined values (null, NaN, infinite) are left out pairwise and counted.
Intervals are 95 % bootstrap intervals.

Exit codes: 0 done; 1 a store did not answer; 2 bad request.
"""


def correlate(
    scores: Annotated[
        list[str],
        typer.Argument(
            metavar="SCORES",
            help="Tables of scores: OUT of a run, Parquet, JSON Lines, JSON or CSV files, folders "
            "or globs.",
        ),
    ],
    human: Annotated[
        str,
        option(
            group=arguments.INPUT,
            metavar="COLUMNS",
            text="Comma-separated columns of human ratings.",
        ),
    ],
    labels: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="FILE",
            text="Table of ratings with a column id: CSV, JSON Lines, JSON or Parquet. Short for "
            "--with FILE --on id.",
        ),
    ] = None,
    ratings: Annotated[
        str | None,
        option(
            "--with",
            group=arguments.INPUT,
            metavar="FILE",
            text="Table of ratings, to be joined with the scores.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="KEY",
            text="Key column of --with, e.g. id, or id=row_id if the names differ.",
        ),
    ] = None,
    inputs: MovedInputOption = None,
    encoding: EncodingOption = None,
    out: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="DIR",
            text="Folder for Parquet tables, report.json and correlate.html.",
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
            show_default="all scores of the run but counts",
        ),
    ] = None,
    subset: Annotated[
        list[str] | None,
        option(
            group=arguments.COMPARISON,
            metavar="CONDITION",
            text="Also correlate the rows that meet a condition, e.g. 'f1 == 0'. Repeatable.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="COLUMN",
            text="Also correlate the rows of each value of this column.",
        ),
    ] = None,
    system: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="COLUMN",
            text="Column of system names. Also correlate at system level.",
        ),
    ] = None,
    question: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="COLUMN",
            text="Column of question ids, for resampling at system level.",
        ),
    ] = None,
    draws: Annotated[
        int,
        option(
            group=arguments.COMPARISON,
            metavar="N",
            text="Also correlate systems in N random samples of questions.",
        ),
    ] = 0,
    questions_per_draw: Annotated[
        int,
        option(group=arguments.COMPARISON, metavar="N", text="Questions in each such sample."),
    ] = 30,
    auc: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="CONDITION",
            text="Also compute the ROC AUC. The 0/1 column or condition marks positive rows.",
        ),
    ] = None,
    win_lose: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="COLUMN",
            text="Column of question ids. Also measure how often a metric ranks two answers to "
            "one question as people do.",
        ),
    ] = None,
    min_gap: Annotated[
        float,
        option(
            group=arguments.COMPARISON,
            metavar="GAP",
            text="Use only pairs for --win-lose whose ratings differ by more than this.",
        ),
    ] = 0.0,
    forward_selection: Annotated[
        bool,
        flag(
            "--forward-selection",
            group=arguments.COMPARISON,
            text="Also show which metrics improve a linear prediction of the rating.",
        ),
    ] = False,
    compare: Annotated[
        str | None,
        option(
            group=arguments.COMPARISON,
            metavar="A,B",
            text="Compare two metrics, or all, by a paired bootstrap.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            group=arguments.STATISTICS,
            metavar="COLUMN",
            text="Resample rows with equal values of this column or role together. none resamples "
            "rows one by one.",
            show_default="context, else a question that repeats",
        ),
    ] = None,
    draw_systems: Annotated[
        bool,
        flag(
            "--draw-systems",
            group=arguments.STATISTICS,
            text="Draw systems as well, for intervals of systems like these.",
        ),
    ] = False,
    resamples: ResamplesOption = 1000,
    seed: SeedOption = 0,
) -> None:
    """Correlate scores with human ratings.

    It shows Pearson, Spearman and Kendall coefficients with confidence
    intervals. It can also compare metrics, and correlate subsets and systems.
    """
    # Imported here: --help needs none of it.
    from qaeval_core.pages.printed import check_format
    from qaeval_core.storage.path import open_out
    from qaeval_core.study.output import write_study
    from qaeval_core.study.records import StudyRequest
    from qaeval_core.study.run import run_study
    from qaeval_core.tables.finished_run import check_results_out

    try:
        check_format(form)
        if labels is not None and (ratings is not None or on is not None):
            raise ConfigError("--labels FILE means --with FILE --on id; give one of them [QA0102]")
        request = StudyRequest(
            scores=tuple(scores),
            human=_words(human),
            metrics=_words(metrics),
            ratings=ratings if labels is None else labels,
            on=on if labels is None else "id",
            subsets=tuple(subset or ()),
            by=by,
            system=system,
            question=question,
            n_draws=draws,
            questions_per_draw=questions_per_draw,
            auc=auc,
            win_lose=win_lose,
            min_gap=min_gap,
            forward_selection=forward_selection,
            compare=compare,
            cluster=cluster,
            inputs=tuple(inputs or ()),
            encoding=encoding,
            draw_systems=draw_systems,
            n_resamples=resamples,
            seed=seed,
        )
        folder = open_out(out) if out is not None else None
        if folder is not None:
            check_results_out(folder)
        study = run_study(request, say=options.say)
        say = _show(study, form, percent=percent, width=width)
        for path in write_study(study, folder) if folder is not None else ():
            say(str(path))
    except QAEvalError as error:
        options.fail(error)


def _show(study: Study, form: str, *, percent: bool, width: int | None) -> Callable[[str], None]:
    """Show a study; return what says the rest, apart from tables that people paste."""
    from qaeval_core.pages.printed import printed
    from qaeval_core.study.output import heading_lines, study_lines
    from qaeval_core.study.result_tables import result_tables

    if form == "text":
        for line in study_lines(study, percent=percent, width=width):
            options.show(line)
        return options.show
    for line in heading_lines(study):
        options.say(line)
    options.show_lines(printed(result_tables(study, form), form, percent=percent, width=width))
    return options.say


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())
