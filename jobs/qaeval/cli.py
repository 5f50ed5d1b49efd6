"""cli: ``qaeval <verb>``, all verbs under one command, of which a process loads its own."""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from qaeval import command as options
from qaeval.command import DEBUG, caught
from qaeval_core.distribution import NAME, PASSED_ON
from qaeval_core.terminal import COMMAND, SHOWN_NAME

EPILOG = """Examples:

  qaeval demo

  qaeval score answers.parquet --out out --metrics f1,sas

Run qaeval VERB --help for the options of a verb, and examples.

Documentation: README.md and the folder docs/ of the source.
"""

# In the order in which a newcomer meets them: module and function of each verb.
VERBS = {
    "demo": ("demo", "demo"),
    "metrics": ("metrics", "metrics"),
    "score": ("score", "score"),
    "report": ("report", "report"),
    "explain": ("explain", "explain"),
    "correlate": ("correlate", "correlate"),
    "compare": ("compare", "compare"),
    "filter": ("filter", "filter_rows"),
    "audit": ("audit", "audit_run"),
    "calibrate": ("calibrate", "calibrate"),
    "train": ("train", "train"),
    "export": ("export", "export"),
}
# The options of `PASSED_ON` are those of another process, which also prints the help.
_TO_ANOTHER: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}


def make_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """Return the command line of some verbs; the others are not loaded."""
    own = typer.Typer(
        name="qaeval", epilog=EPILOG, no_args_is_help=True, pretty_exceptions_enable=False
    )
    own.callback()(_root)
    for verb in verbs:
        name, function = VERBS[verb]
        module = importlib.import_module(f"qaeval.{name}")
        run, more = getattr(module, function), {}
        if verb in PASSED_ON:
            run, more = _handing_over(run), _TO_ANOTHER
        own.command(verb, epilog=module.EPILOG, **more)(caught(run))
    return own


def _handing_over(run: Callable[[Sequence[str]], None]) -> Callable[[typer.Context], None]:
    def hand_over(context: typer.Context) -> None:
        run(context.args)

    hand_over.__doc__ = run.__doc__
    return hand_over


def __getattr__(name: str) -> typer.Typer:
    if name == "app":  # With all verbs, for who looks at them.
        return make_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _show_version(value: bool) -> None:
    if value:
        # Imported here: it reads packages of mail.
        from importlib import metadata

        options.show(f"qaeval {metadata.version(NAME)}")
        raise typer.Exit


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
    COMMAND.set(shlex.join(["qaeval", *sys.argv[1:]]))
    SHOWN_NAME.set("")
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    # What is loaded stays: looking for cycles in it took a tenth of the start. A verb turns it on.
    gc.disable()
    options.run_words(make_app([asked] if asked in VERBS else VERBS), "qaeval")


if __name__ == "__main__":
    main()
