"""Progress: counters that batches feed, and the line or bar that people see."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TextIO

from qaeval_core.terminal import duration, is_silent, say, visible

if TYPE_CHECKING:
    from rich.progress import Progress

# Gets a label, the rows done and all rows.
Tell = Callable[[str, int, int], None]


def no_progress(label: str, n_done: int, n_total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a family is in this run."""

    n_rows: float = 0.0
    n_tokens: int = 0
    n_padded_tokens: int = 0
    note: str = ""


class ProgressCounter:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._lock = threading.Lock()

    def add(self, n_rows: float, n_tokens: int = 0, n_padded_tokens: int = 0) -> None:
        """Add what one batch or shard did; rows may be a fraction of a shard."""
        with self._lock:
            now = self._counts
            self._counts = Counts(
                now.n_rows + n_rows,
                now.n_tokens + n_tokens,
                now.n_padded_tokens + n_padded_tokens,
                now.note,
            )

    def set_status(self, note: str) -> None:
        """Take what a line of progress shall end with."""
        with self._lock:
            self._counts = replace(self._counts, note=note)

    def snapshot(self) -> Counts:
        """Return the counts of this moment."""
        return self._counts  # Never changed, but replaced.


class _Bars:
    """The bars of a terminal, shared by all printers: two live displays would overwrite another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_open = 0
        self._bars: Progress | None = None

    def open(self, stream: TextIO) -> Progress:
        """Return the display, started with its first bar."""
        # Imported here: it takes time, and logs and pipes get lines.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        with self._lock:
            if self._bars is None:
                columns = (TextColumn("{task.description}", markup=False), BarColumn())
                console = Console(file=stream, quiet=is_silent())
                self._bars = Progress(*columns, console=console)
                self._bars.start()
            self._n_open += 1
            return self._bars

    def close(self) -> None:
        """End a bar; the display stops with the last one."""
        with self._lock:
            self._n_open -= 1
            if self._bars is not None and self._n_open == 0:
                self._bars.stop()
                self._bars = None


_bars = _Bars()
# The first line comes early: whoever waits sees that something runs, and what.
_FIRST_LINE_S = 1.0
_LEAST_TICK_S = 0.1


class ProgressPrinter:
    """Prints a line after a second and then every few seconds; on a terminal, a bar.

    A thread prints where nobody reports, such as while a model is loaded. It ends with the last
    update, or with the ``with`` block.

    Parameters
    ----------
    label : str
    n_rows_total : int
        Rows to do in this run.
    interval_s : float
    stream : TextIO, optional
        Default standard error.
    unit : str, default "rows"
        Of what is counted.
    is_brief : bool, default False
        Whether nothing is said of what is done before the first line would be due.
    """

    def __init__(
        self,
        label: str,
        *,
        n_rows_total: int,
        interval_s: float,
        stream: TextIO | None = None,
        unit: str = "rows",
        is_brief: bool = False,
    ) -> None:
        self._is_brief = is_brief
        self._label, self._unit = label, unit
        self._n_rows_total = n_rows_total
        self._interval_s = interval_s
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._due = self._started + min(interval_s, _FIRST_LINE_S)
        self._counts = Counts()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = _bars.open(self._stream)
            self._task = self._bar.add_task(label, total=max(n_rows_total, 1))
        else:
            tick_s = max(min(interval_s, _FIRST_LINE_S), _LEAST_TICK_S)
            threading.Thread(target=self._keep_showing, args=(tick_s,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it without another line."""
        with self._lock:
            if not self._done.is_set():
                self._end()

    def update(self, counts: Counts, *, is_last: bool = False) -> None:
        """Show the counts if the interval has passed."""
        with self._lock:
            if self._done.is_set():
                return
            self._counts = counts
            self._show(is_last=is_last)
            if is_last:
                self._end()

    def _keep_showing(self, tick_s: float) -> None:
        """Show the last counts again, each time the interval has passed, until the end."""
        while not self._done.wait(tick_s):
            with self._lock:
                if not self._done.is_set():
                    self._show(is_last=False)

    def _end(self) -> None:
        self._done.set()
        if self._bar is not None:
            self._bar.stop_task(self._task)
            _bars.close()

    def _show(self, *, is_last: bool) -> None:
        counts, now = self._counts, time.monotonic()
        if counts.n_rows == 0 and not counts.note:
            self._started = now  # Loading models is not scoring: rates and ETA leave it out.
        if now < self._due and (not is_last or self._is_brief):
            return
        self._due, self._is_brief = now + self._interval_s, False
        line = progress_line(
            self._label,
            counts,
            n_rows_total=self._n_rows_total,
            elapsed_s=now - self._started,
            unit=self._unit,
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=counts.n_rows, description=visible(line))
        else:
            say(line, stream=self._stream)


def progress_line(
    label: str, counts: Counts, *, n_rows_total: int, elapsed_s: float, unit: str = "rows"
) -> str:
    """Return one line of progress.

    Examples
    --------
    >>> progress_line("lrm", Counts(500.0, 90_000, 100_000), n_rows_total=1000, elapsed_s=10.0)
    'lrm: 500/1,000 rows (50 %), 50.0 rows/s, 9,000 tokens/s, padding 10.0 %, ETA 10s'
    >>> progress_line("lrm", Counts(), n_rows_total=1000, elapsed_s=0.0)
    'lrm: 0/1,000 rows (0 %), starting'
    """
    elapsed_s = max(elapsed_s, 1e-9)
    rows_per_s = counts.n_rows / elapsed_s
    share = 100 * counts.n_rows / max(n_rows_total, 1)
    parts = [f"{label}: {int(counts.n_rows):,}/{n_rows_total:,} {unit} ({share:.0f} %)"]
    if counts.n_rows == 0 and n_rows_total > 0 and not counts.note:
        return f"{parts[0]}, starting"
    parts.append(f"{rows_per_s:,.1f} {unit}/s")
    if counts.n_padded_tokens:
        padding = 100 * (1 - counts.n_tokens / counts.n_padded_tokens)
        parts.append(f"{counts.n_tokens / elapsed_s:,.0f} tokens/s, padding {padding:.1f} %")
    if counts.n_rows > 0:
        left_s = (n_rows_total - counts.n_rows) / rows_per_s
        parts.append(f"ETA {duration(left_s)}")
    if counts.note:
        parts.append(counts.note)
    return ", ".join(parts)


class LabelProgress:
    """Prints the progress of one label after another; a context that ends the last one.

    Parameters
    ----------
    interval_s : float
        Seconds between two lines.
    unit : str, default "rows"
        Of what is counted.
    is_brief : bool, default False
        Whether nothing is said of what is done within a second.
    """

    def __init__(self, interval_s: float, *, unit: str = "rows", is_brief: bool = False) -> None:
        self._interval_s, self._unit, self._is_brief = interval_s, unit, is_brief
        self._label = ""
        self._printer: ProgressPrinter | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it without another line."""
        self._open.close()

    def __call__(self, label: str, n_done: int, n_total: int) -> None:
        """Take how far the work of a label is; work without one is not worth a line."""
        if not label:
            return
        if self._printer is None or label != self._label:
            self._open.close()
            self._label = label
            self._printer = self._open.enter_context(
                ProgressPrinter(
                    label,
                    n_rows_total=n_total,
                    interval_s=self._interval_s,
                    unit=self._unit,
                    is_brief=self._is_brief,
                )
            )
            # The clock starts now, not with the first rows that are done.
            self._printer.update(Counts())
        is_last = n_done >= n_total
        self._printer.update(Counts(n_rows=n_done), is_last=is_last)
        if is_last:
            self._printer = None
