"""Command: what all verbs share: words to a configuration, exit codes, errors as one line.

A full disk, a damaged file or a model that cannot run are no faults of this program. What is one
still ends in a traceback: it should be reported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import pyarrow as pa
from polars.exceptions import PolarsError

from qaeval_core.configure import RunConfig, load_config, parse_setting
from qaeval_core.errors import ConfigError, QAEvalError, RunError, nearest
from qaeval_core.metrics.catalog import METRICS, metric_name
from qaeval_core.schema import ROLES
from qaeval_core.terminal import say, say_error, show, show_lines

# Set by --debug, and by whoever runs a command where options cannot be given.
DEBUG = "QAEVAL_DEBUG"
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_OUTSIDE = (
    OSError,
    pa.ArrowException,
    PolarsError,
    RecursionError,
    UnicodeError,
    MemoryError,
    QAEvalError,
)
_MAX_CHARS = 500

__all__ = [
    "EXIT_BAD_REQUEST",
    "EXIT_INCOMPLETE",
    "fail",
    "make_config",
    "say",
    "say_error",
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
        for name in (metric_name(part.strip()) for part in metrics.split(",")):
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


def caught(command: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return a command that ends with exit code 1 and one line where the world fails it.

    With ``QAEVAL_DEBUG`` set, as ``--debug`` does, its exceptions are raised as they are.
    """

    @functools.wraps(command)
    def run(*args: _Given.args, **given: _Given.kwargs) -> _Result:
        try:
            return command(*args, **given)
        except BrokenPipeError:
            # Whoever read the results has seen enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_INCOMPLETE)
        except Exception as error:
            if os.environ.get(DEBUG) or not _is_outside(error):
                raise
            say_error(f"{explained(error)} ({DEBUG}=1 shows where)")
            sys.exit(EXIT_INCOMPLETE)

    return run


def _is_outside(error: Exception) -> bool:
    # ONNX Runtime's exceptions have no base of their own, and need not be installed.
    return isinstance(error, _OUTSIDE) or type(error).__module__.startswith("onnxruntime")


def explained(error: BaseException) -> str:
    """Return what failed, on which file, and why, in one line.

    Examples
    --------
    >>> explained(OSError(28, "No space left on device", "out/report.json"))
    'out/report.json: No space left on device'
    >>> explained(UnicodeDecodeError("utf-8", b"a", 0, 1, "invalid start byte"))
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x61 in position 0: invalid start byte"
    """
    # Of a task of a cluster: its own text is the trace of another machine.
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return explained(cause)
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return f"{' and '.join(names) or 'the disk or network'}: {error.strerror}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MAX_CHARS]}" if text else type(error).__name__
