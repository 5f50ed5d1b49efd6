"""Arguments: options that several verbs take, each described once, and the groups of ``--help``.

An option that one verb alone takes is described there. Texts are one plain sentence, or two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qaeval_core.pages import MAX_EXAMPLES
from qaeval_core.terminal import SHOWN_NAME

INPUT = "Input"
OUTPUT = "Output"
METRICS = "Metrics"
SETTINGS = "Settings"
SELECTION = "Selection"
LABELS = "Labels"
COMPARISON = "Comparison"
STATISTICS = "Statistics"
RUN = "Run"
CLUSTER = "Cluster"

# Ray takes some ten seconds to start: so many rows are scored before it is up, or soon after.
MOST_LOCAL_ROWS = 10_000
_MOST_NAME_CHARS = 100


def option(*names: str, group: str, metavar: str, text: str, **more: Any) -> Any:
    """Return an option with a value.

    Parameters
    ----------
    names : str
        As given on a command line; without one, the parameter's own.
    group : str
        Heading that it stands under.
    metavar : str
        What stands for the value.
    text : str
        Its description.
    more : optional
        What ``typer.Option`` takes besides.
    """
    return typer.Option(*names, rich_help_panel=group, metavar=metavar, help=text, **more)


def flag(*names: str, group: str, text: str) -> Any:
    """Return an option without a value; ``--help`` shows no type for it."""
    return typer.Option(*names, rich_help_panel=group, metavar="", help=text)


def complete_metrics(incomplete: str) -> list[str]:
    """Return what a list of metrics that is being typed may become.

    Examples
    --------
    >>> complete_metrics("f1,bleu_")
    ['f1,bleu_1', 'f1,bleu_2', 'f1,bleu_3', 'f1,bleu_4']
    """
    # Imported here: whoever presses TAB may wait, --help may not.
    from qaeval_core.metrics.catalog import METRICS as KNOWN

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in KNOWN if name.startswith(last)]


def complete_formats(incomplete: str) -> list[str]:
    """Return the formats of tables that what is being typed may become.

    Examples
    --------
    >>> complete_formats("m")
    ['markdown']
    """
    # Imported here: whoever presses TAB may wait, --help may not.
    from qaeval_core.pages.printed import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def _called(name: str | None) -> str | None:
    if name is not None and not 0 < len(name.strip()) <= _MOST_NAME_CHARS:
        raise typer.BadParameter(f"it takes 1 to {_MOST_NAME_CHARS} characters")
    SHOWN_NAME.set((name or "").strip())
    return name


def address(default: str) -> Any:
    """Return the option that names a Ray cluster; the text says what is used without one."""
    return option(
        group=CLUSTER,
        metavar="ADDRESS",
        text="Ray cluster to run on, e.g. auto or HOST:6379.",
        show_default=default,
    )


InputsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        help="Parquet, JSON Lines, JSON or CSV files; folders, globs, URIs of an object store "
        "(s3, gs, az), or - for standard input. Required, unless a settings file names them.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="OUT", help="OUT folder of a finished qaeval score run.")
]
ColumnOption = Annotated[
    list[str] | None,
    option(
        "--column",
        group=INPUT,
        metavar="ROLE=NAME",
        text="Read a role from the column NAME, e.g. context=passage. Repeatable.",
    ),
]
EncodingOption = Annotated[
    str | None,
    option(
        "--encoding",
        group=INPUT,
        metavar="NAME",
        text="Encoding of text files, such as cp1252.",
        show_default="UTF-8, or as a byte order mark says",
    ),
]
MovedInputOption = Annotated[
    list[str] | None,
    option(
        "--input",
        group=INPUT,
        metavar="PATH",
        text="Where the scored input is now, if it has moved. Repeatable.",
    ),
]
MetricsOption = Annotated[
    str | None,
    option(
        group=METRICS,
        metavar="NAMES",
        text="Comma-separated metrics, e.g. f1,sas. The command qaeval metrics lists them.",
        autocompletion=complete_metrics,
    ),
]
PluginOption = Annotated[
    list[str] | None,
    option(
        "--plugin",
        group=METRICS,
        metavar="MODULE",
        text="Python module whose functions or classes are metrics too. Repeatable.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    option("--config", group=SETTINGS, metavar="FILE", text="YAML file with settings."),
]
SetOption = Annotated[
    list[str] | None,
    option(
        "--set",
        group=SETTINGS,
        metavar="KEY=VALUE",
        text="Change one setting, e.g. f1.language=de. It adds the metric if needed. Repeatable.",
    ),
]
TextsOption = Annotated[
    int | None,
    option(
        group=OUTPUT,
        metavar="N",
        min=0,
        max=MAX_EXAMPLES,
        text="Show this many of the lowest and highest rows of each score in the page.",
    ),
]
NoTextsOption = Annotated[
    bool, flag("--no-texts", group=OUTPUT, text="Show no texts of rows in the page.")
]
NameOption = Annotated[
    str | None,
    option(
        "--name",
        group=OUTPUT,
        metavar="NAME",
        text="Name shown in the page, e.g. 2026-W03.",
        show_default="that of OUT",
        callback=_called,
    ),
]
FormatOption = Annotated[
    str,
    option(
        "--format",
        group=OUTPUT,
        metavar="NAME",
        text="Print tables as text, markdown, latex, json or csv.",
        autocompletion=complete_formats,
    ),
]
PercentOption = Annotated[
    bool, flag("--percent", group=OUTPUT, text="Print scores times 100, where they are at most 1.")
]
WidthOption = Annotated[
    int | None,
    option(
        "--width",
        group=OUTPUT,
        metavar="N",
        min=0,
        text="Decimals of printed numbers.",
        show_default="two digits of half the interval",
    ),
]
ResamplesOption = Annotated[
    int, option(group=STATISTICS, metavar="N", text="Resamples of each bootstrap.")
]
SeedOption = Annotated[
    int,
    option(
        group=RUN, metavar="N", text="Random seed. The same seed and input give the same result."
    ),
]
DryRunOption = Annotated[
    bool,
    flag("--dry-run", group=RUN, text="Show the planned work and its cost. Write nothing."),
]
LocalOption = Annotated[
    bool | None,
    flag(
        "--local/--ray",
        group=CLUSTER,
        text="Use processes of this machine, or Ray. Default: Ray where a cluster is named.",
    ),
]
LocalOrRayOption = Annotated[
    bool | None,
    flag(
        "--local/--ray",
        group=CLUSTER,
        text="Run by processes of this machine, or on Ray. Default: Ray where a cluster is named, "
        f"and above {MOST_LOCAL_ROWS:,} rows for metrics with models.",
    ),
]
