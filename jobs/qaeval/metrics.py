"""metrics: list the metrics, or describe one: definition, options, signature."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import PluginOption, flag
from qaeval_core.errors import QAEvalError

EPILOG = """Examples:

  qaeval metrics

  qaeval metrics rouge_l

  qaeval metrics --json

Exit codes: 0 done; 2 unknown metric.
"""

_COLUMNS = ("metric", "range", "better", "reads")


def metrics(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Metric to describe.",
            show_default="all",
            autocompletion=arguments.complete_metrics,
        ),
    ] = None,
    as_json: Annotated[
        bool, flag("--json", group=arguments.OUTPUT, text="Print JSON instead of text.")
    ] = False,
    plugin: PluginOption = None,
) -> None:
    """List the metrics, or describe one.

    The list shows range, direction, roles and paper. The description of one
    metric adds its settings, definition and signature.
    """
    # Imported here: --help needs none of it.
    from qaeval_core.families.catalog import add_modules
    from qaeval_core.metrics.catalog import metric_name
    from qaeval_core.scoring.describe_metrics import metric_lines, metric_records

    try:
        add_modules(plugin or ())
        name = None if name is None else metric_name(name)
        lines = [] if name is None else list(metric_lines(name))
        records = metric_records()
    except QAEvalError as error:
        options.fail(error)
    if name is not None:
        records = [record for record in records if record["metric"] == name]
        if not as_json:
            options.show_lines("\n".join(lines))
            return
    if as_json:
        options.show_lines(json.dumps(records, indent=2, ensure_ascii=False))
        return
    widths = {key: max(len(record[key]) for record in records) for key in _COLUMNS[:3]}
    for record in records:
        options.show("  ".join(record[key].ljust(widths.get(key, 0)) for key in _COLUMNS))
        options.show(f"    {record['what']}")
        options.show(f"    {record['source']}")
