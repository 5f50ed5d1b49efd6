"""filter: choose rows worth training on by their scores, with a bound on their precision.

Exit codes: 0 done, 1 not certified, or OUT is not complete, or the disk refused; 2 bad request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import (
    ColumnOption,
    DryRunOption,
    EncodingOption,
    LocalOption,
    MovedInputOption,
    NameOption,
    SeedOption,
    flag,
    option,
)
from qaeval_core.errors import ConfigError, QAEvalError

EPILOG = """Examples:

  qaeval filter out --to kept --rank-by roundtrip --share 0.6

  qaeval filter out --to kept --rank-by qrelscore --keep 'roundtrip > 0.5' \\
    --near-duplicates rouge_l=0.7 --top-k 3

  qaeval filter out --to kept --rank-by roundtrip --share 0.6 \\
    --share-per context

  qaeval filter out --to kept --rank-by roundtrip --label-sheet 400 \\
    --precision 0.85

  qaeval filter out --to kept --learn roundtrip,qrelscore \\
    --labels labels.csv --label 'rating >= 4' --precision 0.85

  qaeval filter out --to kept --rank-by roundtrip --precision 0.85 \\
    --label-sheet 340 --within-best auto \\
    --labels kept/label_sheet.csv

  qaeval filter s3://bucket/out --to s3://bucket/kept --rank-by roundtrip

Stages run in this order: not sampled, quarantined, undefined, rules, keep,
duplicates, top-k, quota, --share-per, and then share, budget or precision.
The table KEPT/decisions has every input row, and the one reason that
dropped it.

Exit codes: 0 done; 1 not certified, OUT not complete, or a disk failed;
2 bad request.
"""


def filter_rows(
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="OUT folder of qaeval score, or files with scores of another tool.",
        ),
    ],
    column: ColumnOption = None,
    inputs: MovedInputOption = None,
    encoding: EncodingOption = None,
    partial: Annotated[
        bool, flag("--partial", group=arguments.INPUT, text="Accept an OUT that is not complete.")
    ] = False,
    to: Annotated[
        str | None,
        option(
            group=arguments.OUTPUT,
            metavar="KEPT",
            text="Folder for the kept rows and all decisions. Required without --dry-run.",
        ),
    ] = None,
    name: NameOption = None,
    rules: Annotated[
        str,
        option(
            group=arguments.SELECTION,
            metavar="RULES",
            text="Rules for questions: none, paper (6 to 30 words, answer not in the question), "
            "or extractive (also: answer in the context).",
        ),
    ] = "none",
    keep: Annotated[
        list[str] | None,
        option(
            group=arguments.SELECTION,
            metavar="CONDITION",
            text="Keep only rows that meet a condition, e.g. 'sas > 0.5'. Repeatable.",
        ),
    ] = None,
    near_duplicates: Annotated[
        str | None,
        option(
            group=arguments.SELECTION,
            metavar="RULE",
            text="Drop duplicate questions of a group: exact, rouge_l=0.7 (a threshold), or none.",
            show_default="exact",
        ),
    ] = None,
    group: Annotated[
        str | None,
        option(
            group=arguments.SELECTION,
            metavar="COLUMN",
            text="Role or column that groups rows, for duplicates and --top-k.",
            show_default="context",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        option(group=arguments.SELECTION, metavar="K", text="Keep the K best rows of each group."),
    ] = None,
    quota: Annotated[
        str | None,
        option(
            group=arguments.SELECTION,
            metavar="COLUMN=N",
            text="Keep at most N rows of each value of a role or column. equal divides --share or "
            "--budget evenly.",
        ),
    ] = None,
    share: Annotated[
        str | None,
        option(
            group=arguments.SELECTION,
            metavar="SHARE",
            text="Fraction to keep of the rows that survive earlier stages, e.g. 0.6 or 60%.",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        option(
            group=arguments.SELECTION,
            metavar="N",
            text="Keep the N best rows that survive earlier stages.",
        ),
    ] = None,
    share_per: Annotated[
        str | None,
        option(
            group=arguments.SELECTION,
            metavar="GROUP",
            text="Role or column. Keep --share of the rows of each of its values, or divide "
            "--budget in proportion.",
        ),
    ] = None,
    rank_by: Annotated[
        str | None,
        option(
            group=arguments.SELECTION,
            metavar="COLUMN",
            text="Score column that ranks rows, or a combine.json written by --learn. :asc behind "
            "its name ranks the lowest first, :desc the highest.",
            show_default="the only metric",
        ),
    ] = None,
    undefined: Annotated[
        str,
        option(
            group=arguments.SELECTION,
            metavar="RULE",
            text="Handling of rows without a value: drop, keep (ranked last), or fail.",
        ),
    ] = "drop",
    labels: Annotated[
        list[str] | None,
        option(
            group=arguments.LABELS,
            metavar="FILE",
            text="Table of labels with a column id: CSV, JSON Lines, JSON or Parquet. Repeat it "
            "for each rater; where they differ a row counts as bad.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        option(
            group=arguments.LABELS,
            metavar="CONDITION",
            text="0/1 column of --labels, or a condition, that marks good rows.",
            show_default="good",
        ),
    ] = None,
    blank: Annotated[
        str,
        option(
            group=arguments.LABELS,
            metavar="RULE",
            text="A row of --labels without a label: bad counts it as bad, ignore leaves it out.",
        ),
    ] = "bad",
    precision: Annotated[
        float | None,
        option(
            group=arguments.LABELS,
            metavar="P",
            text="Keep the largest share whose precision the labels certify to exceed P.",
        ),
    ] = None,
    confidence: Annotated[
        float, option(group=arguments.LABELS, metavar="C", text="Confidence of the certificate.")
    ] = 0.95,
    looks: Annotated[
        str | None,
        option(
            group=arguments.LABELS,
            metavar="N,M,...",
            text="Numbers of labels at which you will look, or rank anew. They share what may be "
            "wrong.",
            show_default="one look",
        ),
    ] = None,
    learn: Annotated[
        str | None,
        option(
            group=arguments.LABELS,
            metavar="COLUMNS",
            text="Comma-separated score columns. Learn the ranking from them and the labels.",
        ),
    ] = None,
    label_sheet: Annotated[
        int | None,
        option(
            group=arguments.LABELS,
            metavar="N",
            text="Draw N rows, write them as a CSV file and a page to label, and stop. With "
            "--learn the sheet serves any ranking.",
        ),
    ] = None,
    within_best: Annotated[
        str | None,
        option(
            group=arguments.LABELS,
            metavar="SHARE",
            text="Share of the best rows that labels are drawn from. auto: --labels of all rows "
            "choose it for a second sheet.",
        ),
    ] = None,
    seed: SeedOption = 0,
    dry_run: DryRunOption = False,
    address: Annotated[str | None, arguments.address("none")] = None,
    local: LocalOption = None,
) -> None:
    """Keep the rows worth training on.

    It records why each other row was dropped. Results do not depend on file
    layout or workers.
    """
    # Imported here: --help needs none of it.
    from qaeval.work.filter import filter_out, role_columns, whole_numbers
    from qaeval_core.filter.request import FilterRequest

    try:
        if local and address is not None:
            raise ConfigError("--local uses no cluster; leave --address out [QA0102]")
        request = FilterRequest(
            rules=rules,
            keep=tuple(keep or ()),
            rank_by=rank_by,
            near_duplicates=near_duplicates,
            group=group,
            top_k=top_k,
            share=share,
            budget=budget,
            share_per=share_per,
            quota=quota,
            undefined=undefined,
            precision=precision,
            labels=tuple(labels) if labels else None,
            label=label,
            blank=blank,
            looks=whole_numbers(looks),
            within_best=within_best,
            confidence=confidence,
            learn=tuple(name.strip() for name in (learn or "").split(",") if name.strip()),
            label_sheet=label_sheet,
            seed=seed,
            partial=partial,
            columns=role_columns(column or ()),
            encoding=encoding,
        )
    except QAEvalError as error:
        options.fail(error)
    filter_out(
        out,
        request,
        to=to,
        inputs=inputs or (),
        dry_run=dry_run,
        address=address,
        local=local,
    )
