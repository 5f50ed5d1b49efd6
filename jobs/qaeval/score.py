"""score: metrics of every row of the input, on Ray or in this process.

Exit codes: 0 complete, 1 incomplete (run it again to go on) or without one score, 2 bad request.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

from qaeval import arguments
from qaeval.arguments import (
    ColumnOption,
    ConfigOption,
    DryRunOption,
    EncodingOption,
    FormatOption,
    InputsArgument,
    LocalOrRayOption,
    MetricsOption,
    NameOption,
    NoTextsOption,
    PercentOption,
    PluginOption,
    SetOption,
    WidthOption,
    flag,
    option,
)

EPILOG = """Examples:

  qaeval score answers.jsonl --out out --metrics f1,sas

  qaeval score data/ --out out --column candidate=generated --carry label

  qaeval score dev-v2.0.json --predictions pred.json --out out \\
    --metrics exact_match,f1 --unanswerable empty

  qaeval score s3://bucket/data/ --out s3://bucket/out --metrics qrelscore

  qaeval score q.parquet --out out --set f1.language=de --limit 1000

  qaeval score q.jsonl --out out --format latex --percent --width 1 \\
    --like 'f1|tok:squad|lang:de|refs:max'

  qaeval score q.parquet --out out --plugin my_metrics --metrics my_score

  qaeval score q.parquet --out out --dry-run --set naco.base_url=$URL \\
    --set naco.model=NAME --set naco.expected_complexity=3

Settings are listed in docs/settings.md.

Exit codes: 0 complete; 1 incomplete, or no row has a score; 2 bad request.
"""


def score(
    inputs: InputsArgument = None,
    column: ColumnOption = None,
    limit: Annotated[
        int | None,
        option(group=arguments.INPUT, metavar="N", text="Score only the first N rows."),
    ] = None,
    encoding: EncodingOption = None,
    predictions: Annotated[
        list[str] | None,
        option(
            group=arguments.INPUT,
            metavar="[NAME=]FILE",
            text="Predictions to score: {id: text} as JSON, or a table; joined with INPUT by id. "
            "Repeat it to score several systems.",
        ),
    ] = None,
    missing: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="RULE",
            text="Meaning of a row without a prediction: undefined (no score), or empty.",
            show_default="undefined",
        ),
    ] = None,
    no_answer: Annotated[
        list[str] | None,
        option(
            group=arguments.INPUT,
            metavar="[NAME=]FILE",
            text="No-answer scores, {id: score} as JSON, for the best thresholds. Needs "
            "--unanswerable empty.",
        ),
    ] = None,
    unanswerable: Annotated[
        str | None,
        option(
            group=arguments.INPUT,
            metavar="RULE",
            text="Meaning of an empty list of references: undefined (no score), or empty (no "
            "answer is right).",
            show_default="undefined",
        ),
    ] = None,
    out: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="OUT",
            text="Folder for scores and state: a path, or s3://, gs:// or az://BUCKET/PREFIX. "
            "Required, unless a settings file names it.",
        ),
    ] = None,
    carry: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="COLUMNS",
            text="Comma-separated input columns to copy beside the scores.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="COLUMN",
            text="Column whose values rows share, for intervals of means; none: rows are "
            "independent.",
            show_default="the context, else the question",
        ),
    ] = None,
    no_replies: Annotated[
        bool,
        flag(
            "--no-replies",
            group=arguments.OUTPUT,
            text="Store only the values read from LLM replies, not their texts.",
        ),
    ] = False,
    name: NameOption = None,
    no_texts: NoTextsOption = False,
    form: FormatOption = "text",
    percent: PercentOption = False,
    width: WidthOption = None,
    quiet: Annotated[
        bool,
        flag(
            "--quiet",
            "-q",
            group=arguments.OUTPUT,
            text="Print the number of each metric alone.",
        ),
    ] = False,
    metrics: MetricsOption = None,
    like: Annotated[
        list[str] | None,
        option(
            group=arguments.METRICS,
            metavar="SIGNATURE",
            text="Metric and settings of a printed signature, in quotes. Repeatable.",
        ),
    ] = None,
    plugin: PluginOption = None,
    config: ConfigOption = None,
    setting: SetOption = None,
    rows_per_shard: Annotated[
        int | None,
        option(
            group=arguments.RUN,
            metavar="N",
            text="Rows to score and commit at once.",
            show_default="by metric and device",
        ),
    ] = None,
    max_quarantined: Annotated[
        float | None,
        option(
            group=arguments.RUN,
            metavar="SHARE",
            text="Stop with exit code 1 if a larger share of rows is quarantined.",
            show_default="1.0",
        ),
    ] = None,
    retry_quarantined: Annotated[
        bool,
        flag(
            "--retry-quarantined",
            group=arguments.RUN,
            text="Score quarantined rows again, and repeat failed LLM calls.",
        ),
    ] = False,
    wait: Annotated[
        float | None,
        option(
            group=arguments.RUN,
            metavar="SECONDS",
            text="Wait this long for another run that writes to OUT.",
            show_default="0",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    address: Annotated[str | None, arguments.address("none")] = None,
    local: LocalOrRayOption = None,
) -> None:
    """Score every row of Parquet, JSON Lines, JSON or CSV files.

    Without --metrics and --set, the columns decide: f1 and sas where there are
    references, roundtrip where there are contexts and answers. An OUT keeps its
    metrics.

    Interrupted runs resume with the same command. Nothing is computed or paid
    for twice.
    """
    # Imported here, as in every verb: --help needs none of it.
    from qaeval.work.config import Words
    from qaeval.work.score import Printing, score_rows
    from qaeval_core.terminal import silence

    extra: dict[str, object] = {
        "output.path": out,
        "output.carry": carry.split(",") if carry else None,
        "output.cluster": cluster,
        "output.replies": False if no_replies else None,
        "output.texts": False if no_texts else None,
        "output.wait_s": wait,
        "scoring.rows_per_shard": rows_per_shard,
        "input.limit": limit,
        "input.encoding": encoding,
        "input.predictions": list(predictions) if predictions else None,
        "input.missing": missing,
        "input.no_answer": list(no_answer) if no_answer else None,
        "input.unanswerable": unanswerable,
        "scoring.max_quarantined": max_quarantined,
        "scoring.retry_quarantined": retry_quarantined or None,
        "cluster.address": address,
    }
    words = Words(
        inputs=inputs,
        config=config,
        settings=setting,
        metrics=metrics,
        plugins=plugin,
        columns=column,
        like=like or (),
    )
    printing = Printing(form, is_percent=percent, width=width, is_quiet=quiet)
    with silence() if printing.is_quiet else nullcontext():
        score_rows(words, extra, printing=printing, dry_run=dry_run, local=local)
