"""cli: ``qaeval <verb>``, all verbs under one command."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Annotated, Any

import typer

from qaeval import audit, calibrate, correlate, demo, explain, export, metrics, report, score, train
from qaeval import command as options
from qaeval import filter as filter_verb
from qaeval.command import DEBUG, caught
from qaeval_core.distribution import NAME

EPILOG = """Examples:

  qaeval demo

  qaeval score answers.parquet --out out --metrics f1,sas

Run qaeval VERB --help for the options of a verb, and examples.

Documentation: README.md and the folder docs/ of the source.
"""

app = typer.Typer(
    name="qaeval",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# Their options are those of another process, which also prints the help.
_PASSED_ON: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}
# In the order in which a newcomer meets them.
app.command(epilog=demo.EPILOG)(caught(demo.demo))
app.command(epilog=metrics.EPILOG)(caught(metrics.metrics))
app.command(epilog=score.EPILOG)(caught(score.score))
app.command(epilog=report.EPILOG)(caught(report.report))
app.command(epilog=explain.EPILOG)(caught(explain.explain))
app.command(epilog=correlate.EPILOG)(caught(correlate.correlate))
app.command("filter", epilog=filter_verb.EPILOG)(caught(filter_verb.filter_rows))
app.command("audit", epilog=audit.EPILOG)(caught(audit.audit_run))
app.command(epilog=calibrate.EPILOG)(caught(calibrate.calibrate))
app.command(epilog=train.EPILOG, **_PASSED_ON)(caught(train.train))
app.command(epilog=export.EPILOG, **_PASSED_ON)(caught(export.export))


def _show_version(value: bool) -> None:
    if value:
        options.show(f"qaeval {metadata.version(NAME)}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", metavar="", help=f"Show tracebacks, as {DEBUG}=1 does.")
    ] = False,
) -> None:
    """Score question-answering and question-generation data in bulk."""
    if debug:
        os.environ[DEBUG] = "1"


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
