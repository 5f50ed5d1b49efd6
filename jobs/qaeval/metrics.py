"""metrics: list the metrics, or describe one: definition, options, signature."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qaeval import command as options
from qaeval_core.errors import QAEvalError
from qaeval_core.metrics.catalog import metric_name
from qaeval_core.scoring.describe_metrics import metric_lines, metric_records

EPILOG = """Examples:

  qaeval metrics

  qaeval metrics rouge_l

  qaeval metrics --json
"""

_COLUMNS = ("metric", "range", "better", "reads")


def metrics(
    name: Annotated[str | None, typer.Argument(help="a metric to describe")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the list, or the one, as JSON")] = False,
) -> None:
    """List the metrics with range, direction, roles and paper, or describe one of them."""
    records = metric_records()
    if name is not None:
        name = metric_name(name)
        try:
            lines = list(metric_lines(name))
        except QAEvalError as error:
            options.fail(error)
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


def main() -> None:
    """Run ``python -m qaeval.metrics``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(metrics)
    app()


if __name__ == "__main__":
    main()
