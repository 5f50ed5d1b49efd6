"""filter: rows worth training on, chosen from scores, with a bound on their precision.

Exit codes: 0 done, 1 not certified, or OUT is not complete, or the disk refused; 2 bad request.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from qaeval import command as options
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import ConfigError, QAEvalError, nearest
from qaeval_core.filter.plan import FilterPlan, make_plan
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import FilterResult, dry_run_lines, result_lines
from qaeval_core.filter.run import run_filter
from qaeval_core.models.session import available_cpus
from qaeval_core.running.progress import LabelProgress
from qaeval_core.storage.path import StoragePath, open_out
from qaeval_core.tables.corpus import ROLE_NAMES
from qaeval_core.tables.executor import LocalRangeExecutor
from qaeval_core.tables.open_corpus import open_corpus

EPILOG = """Examples:

  qaeval filter out --to kept --rank-by roundtrip --share 0.6

  qaeval filter out --to kept --rank-by qrelscore --keep 'roundtrip > 0.5' \\
    --near-duplicates rouge_l=0.7 --top-k 3

  qaeval filter out --to kept --rank-by roundtrip --label-sheet 400 \\
    --precision 0.85

  qaeval filter out --to kept --learn roundtrip,qrelscore \\
    --labels labels.csv --label 'good == 1' --precision 0.85

  qaeval filter s3://bucket/out --to s3://bucket/kept --rank-by roundtrip --share 0.6

Stages, in this order: not sampled, quarantined, undefined, rules, keep,
duplicates, top-k, quota, share (or budget, or precision). Every input row is
in KEPT/decisions with the one reason that dropped it.
"""

_PROGRESS_S = 5.0


def filter_rows(
    out: Annotated[
        str, typer.Argument(help="OUT of qaeval score, or Parquet with scores of another tool")
    ],
    to: Annotated[str | None, typer.Option(help="folder for what is kept and why")] = None,
    rules: Annotated[
        str, typer.Option(help="paper (6 to 30 words, answer not in it), extractive, none")
    ] = "paper",
    keep: Annotated[
        list[str] | None, typer.Option(help="condition that rows fulfill: 'sas > 0.5'; repeatable")
    ] = None,
    rank_by: Annotated[
        str | None, typer.Option(help="column that says what is best, or a combine.json")
    ] = None,
    near_duplicates: Annotated[
        str | None,
        typer.Option(help="in a group: none, exact or rouge_l=0.7; default exact"),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="role or column whose rows are a group; default context")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="best rows of each group")] = None,
    share: Annotated[
        str | None, typer.Option(help="of the rows that come so far: 0.6 or 60%")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="rows to keep")] = None,
    quota: Annotated[
        str | None, typer.Option(help="COLUMN=proportional, =equal or =N rows a value")
    ] = None,
    undefined: Annotated[
        str, typer.Option(help="rows without a value: drop, keep (as worst) or fail")
    ] = "drop",
    precision: Annotated[
        float | None, typer.Option(help="keep the largest share that labels certify to exceed this")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="table with a column id: .csv, .jsonl, .parquet")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="its 0/1 column, or a condition, that says what is good")
    ] = None,
    confidence: Annotated[float, typer.Option(help="of the certificate")] = 0.95,
    learn: Annotated[
        str | None, typer.Option(help="score columns to learn the rank from: a,b,c")
    ] = None,
    label_sheet: Annotated[
        int | None,
        typer.Option(help="write N rows to label as CSV, and stop; with --learn for any rank"),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="role=name: id, question, context, answer")
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="where the input lies now; repeatable")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="take an OUT that is not complete")
    ] = False,
    seed: Annotated[int, typer.Option(help="of ties, samples and folds")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show tasks and memory; read footers, write nothing")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster; default: start a local one")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="this machine's processes, no Ray")
    ] = False,
) -> None:
    """Keep the rows of a scored corpus that are worth training on; say why of every row."""
    try:
        if local and address is not None:
            raise ConfigError("--local takes no cluster: leave --address out")
        request = FilterRequest(
            rules=rules,
            keep=tuple(keep or ()),
            rank_by=rank_by,
            near_duplicates=near_duplicates,
            group=group,
            top_k=top_k,
            share=share,
            budget=budget,
            quota=quota,
            undefined=undefined,
            precision=precision,
            labels=labels,
            label=label,
            confidence=confidence,
            learn=tuple(name.strip() for name in (learn or "").split(",") if name.strip()),
            label_sheet=label_sheet,
            seed=seed,
            partial=partial,
            columns=_columns(column or ()),
        )
        if to is None and not dry_run:
            raise ConfigError("no folder for what is kept: give --to KEPT")
        folder = open_out(to, "--to") if to is not None else None
        corpus = open_corpus(out, columns=request.columns, partial=partial, inputs=inputs or ())
        plan = make_plan(request, corpus)
        if dry_run or folder is None or to is None:
            for line in dry_run_lines(plan):
                options.show(line)
            return
        result = _run(plan, folder, address=address, local=local)
        for line in result_lines(result.content, to):
            options.show(line)
    except QAEvalError as error:
        options.fail(error)
    if not result.is_certified:
        sys.exit(options.EXIT_INCOMPLETE)


def _columns(words: list[str] | tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for text in words:
        role, separator, name = text.partition("=")
        if not separator or role not in ROLE_NAMES:
            hint = "" if role in ROLE_NAMES else nearest(role, ROLE_NAMES)
            raise ConfigError(f"--column takes role=name, not {text!r}{hint}")
        columns[role] = name
    return columns


def _run(
    plan: FilterPlan, folder: StoragePath, *, address: str | None, local: bool
) -> FilterResult:
    tell = LabelProgress(_PROGRESS_S)
    if local:
        executor = LocalRangeExecutor(tell, n_processes=available_cpus())
        with contextlib.closing(executor):
            return run_filter(plan, folder, executor, say=options.say)
    # Imported here: Ray takes half a second that --help, --dry-run and --local need not pay.
    from qaeval.on_ray.cluster import connected
    from qaeval.on_ray.tasks import RayTasks

    with connected(ClusterSection(address=address)):
        return run_filter(plan, folder, RayTasks(tell, options.say), say=options.say)


def main() -> None:
    """Run ``python -m qaeval.filter``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(filter_rows)
    app()


if __name__ == "__main__":
    main()
