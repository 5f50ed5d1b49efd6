"""correlate: which metric agrees with people, and how surely.

Exit codes: 0 done, 1 a store does not answer, 2 bad request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from qaeval import command as options
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.storage.path import open_out
from qaeval_core.study.output import check_out, study_lines, write_study
from qaeval_core.study.records import StudyRequest
from qaeval_core.study.run import run_study

EPILOG = """Examples:

  qaeval correlate out --human rating

  qaeval correlate out --labels ratings.csv --human fluency,relevance --compare all

  qaeval correlate out --with ratings.csv --on id=row_id --human fluency

  qaeval correlate pairs.jsonl --human label --metrics f1 --subset 'f1 == 0' --auc 'label > 0'

  qaeval correlate out --human rating --system model --question id --draws 100 --out study

  qaeval correlate out --human rating --win-lose id --min-gap 2 --forward-selection

Undefined values (null, NaN, infinite) are left out in pairs and counted. Intervals hold 95 % of
resamples.
"""


def correlate(
    scores: Annotated[
        list[str],
        typer.Argument(help="score tables: OUT of a run, .parquet, .jsonl, .csv, folders, globs"),
    ],
    human: Annotated[str, typer.Option(help="comma-separated columns of human ratings")],
    metrics: Annotated[
        str | None,
        typer.Option(help="comma-separated score columns; default: those described as scores"),
    ] = None,
    ratings: Annotated[
        str | None, typer.Option("--with", help="second table, with the ratings")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="key of both tables: id, or id_here=id_there")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="table of ratings with a column id: as --with FILE --on id")
    ] = None,
    subset: Annotated[
        list[str] | None, typer.Option(help="also of rows that fulfill a condition: 'f1 == 0'")
    ] = None,
    by: Annotated[str | None, typer.Option(help="also of the rows of each value")] = None,
    system: Annotated[
        str | None, typer.Option(help="column of system names: also correlate systems")
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="column of question ids: drawn together for systems")
    ] = None,
    draws: Annotated[int, typer.Option(help="also correlate systems in N draws of questions")] = 0,
    questions_per_draw: Annotated[int, typer.Option(help="questions in a draw")] = 30,
    auc: Annotated[
        str | None, typer.Option(help="0/1 column or condition that says which rows are positive")
    ] = None,
    win_lose: Annotated[
        str | None, typer.Option(help="column of question ids: rank pairs of answers to one")
    ] = None,
    min_gap: Annotated[
        float, typer.Option(help="win-lose pairs have ratings more than this apart")
    ] = 0.0,
    forward_selection: Annotated[
        bool, typer.Option("--forward-selection", help="which metrics add to a linear prediction")
    ] = False,
    compare: Annotated[
        str | None, typer.Option(help="paired bootstrap of all metrics, or of two: A,B")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="column whose equal values are drawn together")
    ] = None,
    resamples: Annotated[int, typer.Option(help="resamples of each bootstrap")] = 1000,
    seed: Annotated[int, typer.Option(help="of resamples, draws and folds")] = 0,
    out: Annotated[
        str | None, typer.Option(help="folder for Parquet, report.json and a page")
    ] = None,
) -> None:
    """Correlate scores with human ratings, with intervals and paired comparisons."""
    try:
        if labels is not None and (ratings is not None or on is not None):
            raise ConfigError("--labels FILE is --with FILE --on id: give one of them")
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
            n_resamples=resamples,
            seed=seed,
        )
        folder = open_out(out) if out is not None else None
        if folder is not None:
            check_out(folder)
        study = run_study(request, say=options.say)
        for line in study_lines(study):
            options.show(line)
        for path in write_study(study, folder) if folder is not None else ():
            options.show(str(path))
    except QAEvalError as error:
        options.fail(error)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def main() -> None:
    """Run ``python -m qaeval.correlate``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(correlate)
    app()


if __name__ == "__main__":
    main()
