"""Options: command-line words to a configuration, the same for every verb that scores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from qaeval_core.configure import RunConfig, load_config, parse_setting
from qaeval_core.errors import ConfigError, QAEvalError, RunError, nearest
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.schema import ROLES
from qaeval_core.terminal import say, say_error, show, show_lines

__all__ = [
    "EXIT_BAD_REQUEST",
    "EXIT_INCOMPLETE",
    "fail",
    "make_config",
    "say",
    "show",
    "show_lines",
]

EXIT_INCOMPLETE = 1
EXIT_BAD_REQUEST = 2


def fail(error: QAEvalError, *, code: int | None = None) -> NoReturn:
    """Print an error in one message and exit.

    Parameters
    ----------
    code : int, optional
        By default 1 for what went wrong while it ran, such as a store that does not answer, and 2
        for a wrong request or input.
    """
    say_error(error)
    usual = EXIT_INCOMPLETE if isinstance(error, RunError) else EXIT_BAD_REQUEST
    sys.exit(usual if code is None else code)


def make_config(
    *,
    inputs: Sequence[str],
    config_path: Path | None,
    settings: Sequence[str],
    metrics: str | None,
    columns: Sequence[str],
    extra: dict[str, object],
) -> RunConfig:
    """Return the configuration of a command line.

    Later words win: the file, then ``--metrics``, ``--set``, and the options of their own.

    Parameters
    ----------
    extra : dict of dotted key to value
        Options of their own; None means not given.
    """
    overrides: dict[str, object] = {}
    if metrics:
        for name in (part.strip() for part in metrics.split(",")):
            if name not in METRICS:
                raise ConfigError(f"unknown metric {name!r}{nearest(name, METRICS)}")
            overrides[f"metrics.{name}.metric"] = name
    overrides.update(parse_setting(text) for text in settings)
    for text in columns:
        role, separator, column = text.partition("=")
        if not separator or role not in ROLES:
            raise ConfigError(f"--column takes role=name, not {text!r}{nearest(role, ROLES)}")
        overrides[f"input.columns.{role}"] = column
    if inputs:
        overrides["input.paths"] = list(inputs)
    overrides.update({key: value for key, value in extra.items() if value is not None})
    return load_config(path=config_path, overrides=overrides)
