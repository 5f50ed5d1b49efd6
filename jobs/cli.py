"""cli: ``qaeval <verb>``, all verbs under one command."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from jobs import calibrate, correlate, demo, explain, export, metrics, score, train

app = typer.Typer(
    name="qaeval",
    help="Score question-answering and question-generation data in bulk.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command(epilog=score.EPILOG)(score.score)
app.command(epilog=calibrate.EPILOG)(calibrate.calibrate)
app.command(epilog=correlate.EPILOG)(correlate.correlate)
app.command(epilog=explain.EPILOG)(explain.explain)
app.command(
    epilog=export.EPILOG,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(export.export)
app.command(
    epilog=train.EPILOG,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(train.train)
app.command(epilog=metrics.EPILOG)(metrics.metrics)
app.command(epilog=demo.EPILOG)(demo.demo)


def _show_version(value: bool) -> None:
    if value:
        print(f"qaeval {metadata.version('qaeval')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show the version"),
    ] = False,
) -> None:
    """Score question-answering and question-generation data in bulk."""


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
