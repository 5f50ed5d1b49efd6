"""Every exception this project raises on purpose.

* QAEvalError
  x InputError              the data is wrong
    . SchemaError           a column is missing or has the wrong type
    . UnreadableFileError   a file is not Parquet, or damaged
  x ConfigError             the request is wrong: unknown key, metric or model, options that clash
    . PackagesMissingError  packages that a run needs are not installed; all are named
    . UnknownMetricError    a metric is of a package that is not installed, or of none
    . CallTooLargeError     one call to a language model holds more tokens than a window may
    . OutRefusedError       OUT cannot be written as asked: no bucket, no key, no conditions
  x ModelError              the model or its artifact is wrong
    . ModelUnavailableError a model cannot be had: no hub, no package, no folder
    . ArtifactMissingError  no exported artifact; the message says how to build it
    . ArtifactHashError     an artifact or model file differs from its recorded hash
    . ExportError           a graph could not be exported, or failed its parity gate
    . DeviceError           the asked execution provider is not in use
    . DeviceMemoryError     the device ran out of memory for one batch
  x RunError                the run went wrong
    . StoreLockedError      another live run writes to this OUT
      - LockLostError       this run was taken for dead, and another has its place
    . StorageError          a disk or store did not answer for as long as it is tried
    . InputChangedError     an input file is another one than when the run began
    . BlindNodeError        a node does not see OUT, the journal, a given file or the input
    . ReconcileError        shards or rows are missing or repeated
    . TooManyQuarantinedError  more rows quarantined than allowed
    . RowFailedError        a function that scores rows failed on one
    . RunStoppedError       asked to stop (SIGTERM, Ctrl-C); what is whole is committed
    . LanguageModelError    calls to a language model cannot go on; other families can
      - EndpointRefusedError  the server will answer no call
      - BudgetExhaustedError  the next call might cost more than is left

Row-level trouble is not an exception: it is a quarantined row or an undefined score with a reason.

Each message ends its first line with a code, as ``[QA0305]``; ``codes.toml`` says what to do.
Plugins have a prefix of their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qaeval_core.terminal import CODE, visible

if TYPE_CHECKING:
    from pydantic import ValidationError


class QAEvalError(Exception):
    """Base of every exception raised on purpose; its message is for the user."""

    @property
    def code(self) -> str:
        """The code that the message has, the first one of several; "" without."""
        found = CODE.search(str(self))
        return found[1] if found else ""

    @property
    def text(self) -> str:
        """The message without its codes."""
        return CODE.sub("", str(self))


def first_problem(error: ValidationError) -> str:
    """Return the first thing that pydantic found wrong, behind its place in what was read."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return ": ".join(filter(None, [place, first["msg"].removeprefix("Value error, ")]))


def with_code(message: str, code: str) -> str:
    """Return a message with a code, unless it has one."""
    return message if CODE.search(message) else f"{message} [{code}]"


class InputError(QAEvalError):
    """The data is wrong."""


class SchemaError(InputError):
    """A column is missing or has the wrong type."""


class UnreadableFileError(InputError):
    """A file is not Parquet, or damaged."""


class ConfigError(QAEvalError):
    """The request is wrong."""


class PackagesMissingError(ConfigError):
    """Packages that a run needs are not installed."""


class UnknownMetricError(ConfigError):
    """No metric of that name is installed here."""

    def __init__(self, message: str, metric: str = "") -> None:
        super().__init__(message, metric)
        self.metric = metric

    def __str__(self) -> str:
        return str(self.args[0])


class CallTooLargeError(ConfigError):
    """One call holds more tokens than a window may: it could never be sent."""


class OutRefusedError(ConfigError):
    """OUT cannot be written as it is asked for."""


class ModelError(QAEvalError):
    """The model or its artifact is wrong."""


class ModelUnavailableError(ModelError):
    """A model cannot be had from its hub, package or folder."""


class ArtifactMissingError(ModelError):
    """No exported artifact where one is needed."""


class ArtifactHashError(ModelError):
    """A file differs from its recorded hash."""


class ExportError(ModelError):
    """A graph could not be exported, or failed its parity gate."""


class DeviceError(ModelError):
    """The asked execution provider is not in use."""


class DeviceMemoryError(ModelError):
    """The device ran out of memory for one batch."""


class RunError(QAEvalError):
    """The run went wrong."""


class StoreLockedError(RunError):
    """Another live run writes to this OUT."""


class LockLostError(StoreLockedError):
    """Another run has taken the place of one that was not heard for long."""


class StorageError(RunError):
    """A disk or store did not answer for as long as it is tried."""


class InputChangedError(RunError):
    """An input file is another one than when the run began."""


class BlindNodeError(RunError):
    """A node does not see OUT, the journal, a given file or the input."""


class ReconcileError(RunError):
    """Shards or rows are missing or repeated."""


class TooManyQuarantinedError(RunError):
    """More rows were quarantined than the run allows."""


class RowFailedError(RunError):
    """A function that scores rows failed on one.

    Parameters
    ----------
    what : str
        Function and its error.
    row : int
        Which row of what was scored at once, from 0.
    place : str, default ""
        Of the row, where files are read.
    """

    def __init__(self, what: str, row: int, place: str = "") -> None:
        # All of them: it is pickled on its way from a worker.
        super().__init__(what, row, place)
        self.what, self.row, self.place = what, row, place

    def at(self, file: str, first_row: int) -> RowFailedError:
        """Return the error with the row's place in its file."""
        return RowFailedError(self.what, self.row, f"{file}:{first_row + self.row}")

    def __str__(self) -> str:
        return f"{self.what}, on row {self.place or self.row} [QA0213]"


class RunStoppedError(RunError):
    """Asked to stop; what is whole is committed."""


class LanguageModelError(RunError):
    """Calls to a language model cannot go on; the other families of the run can."""


class EndpointRefusedError(LanguageModelError):
    """The server will answer no call: wrong key, address or model."""


class BudgetExhaustedError(LanguageModelError):
    """The next call might cost more than is left.

    ``may_free`` is true while open calls could leave enough, for they may cost less than was
    reserved for them; ``n_waiting`` of them were not sent yet.
    """

    def __init__(self, message: str, may_free: bool = False, n_waiting: int = 0) -> None:
        # All of them: it is pickled on its way to a caller.
        super().__init__(message, may_free, n_waiting)
        self.may_free = may_free
        self.n_waiting = n_waiting

    def __str__(self) -> str:
        return str(self.args[0])


_MAX_NAMES = 10
_MAX_CHARS = 80


def nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Return a hint that names the nearest known name, or ten of them if none is near.

    Examples
    --------
    >>> nearest("exponnent", ["exponent", "layers"])
    "; did you mean 'exponent'?"
    >>> nearest("zzz", ["exponent", "layers"])
    '; choose one of: exponent, layers'
    >>> nearest("zzz", [f"column{i:02}" for i in range(12)]).partition(", column09")[2]
    ' and 2 more'
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {_short(close[0])!r}?"
    names = sorted(known)
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"; choose one of: {', '.join(map(_short, names[:_MAX_NAMES]))}{more}"


def _short(name: str) -> str:
    """Return a name as one line shows it: columns of others may be called anything."""
    shown = visible(name)
    return shown if len(shown) <= _MAX_CHARS else f"{shown[: _MAX_CHARS - 1]}…"
