"""Command: what all verbs share: exit codes, and errors as one line.

A full disk, a damaged file or a model that cannot run are no faults of this program. What is one
still ends in a traceback: it should be reported.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar, cast

from qaeval_core.errors import QAEvalError, RunError
from qaeval_core.terminal import say, say_error, show, show_lines

if TYPE_CHECKING:
    import typer

# Set by --debug, and by whoever runs a command where options cannot be given.
DEBUG = "QAEVAL_DEBUG"
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_OUTSIDE = (
    OSError,
    RecursionError,
    UnicodeError,
    MemoryError,
    QAEvalError,
)
# Where nobody has loaded a library, an error is none of its own.
_OUTSIDE_OF = {"pyarrow": "ArrowException", "polars.exceptions": "PolarsError"}
_MAX_CHARS = 500

__all__ = [
    "EXIT_BAD_REQUEST",
    "EXIT_INCOMPLETE",
    "fail",
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


def caught(command: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return a command that ends with exit code 1 and one line where the world fails it.

    With ``QAEVAL_DEBUG`` set, as ``--debug`` does, its exceptions are raised as they are.
    """

    @functools.wraps(command)
    def run(*args: _Given.args, **given: _Given.kwargs) -> _Result:
        gc.enable()
        try:
            return command(*args, **given)
        except BrokenPipeError:
            # Whoever read the results has seen enough; Python would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_INCOMPLETE)
        except Exception as error:
            if os.environ.get(DEBUG) or not _is_outside(error):
                raise
            cause = _cause(error)
            say_error(f"{explained(cause)} ({DEBUG}=1 shows where) [{_code_of(cause)}]")
            sys.exit(EXIT_INCOMPLETE)

    return run


def _is_outside(error: Exception) -> bool:
    loaded = {name: sys.modules[name] for name in _OUTSIDE_OF if name in sys.modules}
    kinds = tuple(getattr(module, _OUTSIDE_OF[name]) for name, module in loaded.items())
    # ONNX Runtime's exceptions have no base of their own, and need not be installed.
    is_of_engine = type(error).__module__.startswith("onnxruntime")
    return isinstance(error, (*_OUTSIDE, *kinds)) or is_of_engine


def _cause(error: BaseException) -> BaseException:
    """Return what went wrong in a task of a cluster: the text beside it is another machine's."""
    cause = getattr(error, "cause", None)
    return _cause(cause) if isinstance(cause, BaseException) else error


def _code_of(error: BaseException) -> str:
    """Return the code of an error that is none of ours, or was not expected where it came from."""
    if isinstance(error, QAEvalError) and error.code:
        return error.code
    if isinstance(error, OSError):
        return "QA0001"
    return "QA0003" if isinstance(error, MemoryError | RecursionError) else "QA0002"


def explained(error: BaseException) -> str:
    """Return what failed, on which file, and why, in one line.

    Examples
    --------
    >>> explained(OSError(28, "No space left on device", "out/report.json"))
    'out/report.json: No space left on device'
    >>> explained(UnicodeDecodeError("utf-8", b"a", 0, 1, "invalid start byte"))
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x61 in position 0: invalid start byte"
    """
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return f"{' and '.join(names) or 'the disk or network'}: {error.strerror}"
    text = " ".join((error.text if isinstance(error, QAEvalError) else str(error)).split())
    return f"{type(error).__name__}: {text[:_MAX_CHARS]}" if text else type(error).__name__


def run_words(app: typer.Typer, name: str) -> NoReturn:
    """Run the words of the command line; those that it does not know are an error in one line."""
    # Imported here: some commands load no typer.
    import typer

    usage_error = cast(type[typer.BadParameter], typer.BadParameter.__base__)
    try:
        status = typer.main.get_command(app).main(prog_name=name, standalone_mode=False)
    except usage_error as error:
        path = error.ctx.command_path if error.ctx is not None else name
        if message := error.format_message():  # Without words the help has been shown.
            say_error(f"{message} ({path} --help shows examples) [QA0101]")
        sys.exit(EXIT_BAD_REQUEST)
    sys.exit(status)
