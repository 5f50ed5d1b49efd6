"""Terminal: every line that people read, with what could move their cursor made visible.

Names of columns, ids, hosts and answers of servers are other people's words, and so are parts of
most messages. Printed as they are, they could clear a screen, write another line than was meant,
or turn the direction of reading. All output goes through here; a test holds that.

But: what is written to files is as it was (``explain`` escapes its page itself).
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

# What was typed, as a shell takes it: pages say how they were made. Empty from Python.
COMMAND: ContextVar[str] = ContextVar("COMMAND", default="")
# What --name calls it.
SHOWN_NAME: ContextVar[str] = ContextVar("SHOWN_NAME", default="")

# What a message has at the end of its line, such as " [QA0305]".
CODE = re.compile(r" \[([A-Z]{2,}\d{4})\]$", re.MULTILINE)

# C0 and DEL have pictures in Unicode. The others have none: C1 controls, marks that turn the
# direction of reading, ends of lines and paragraphs, tags, halves of surrogate pairs.
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_NAMED = re.compile(
    "[\x80-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def visible(text: str, *, keep: str = "") -> str:
    r"""Return a text in which nothing is left that a terminal would obey.

    Parameters
    ----------
    text : str
        Any text; a surrogate of a name that is not UTF-8 too.
    keep : str, default ""
        Control characters that stay, such as line ends where they are the caller's own.

    Examples
    --------
    >>> visible("red\x1b[31m\nerror: no")
    'red␛[31m␊error: no'
    >>> print(visible("abc\u202edcba"))
    abc\u202edcba
    """
    pictures = {code: shown for code, shown in _PICTURES.items() if chr(code) not in keep}
    return _NAMED.sub(_notation, text.translate(pictures))


def _notation(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Of the process: lines of progress come from threads, too.
_SILENT = threading.Event()


@contextmanager
def silence() -> Iterator[None]:
    """Print nothing for people but errors; results are as ever."""
    _SILENT.set()
    try:
        yield
    finally:
        _SILENT.clear()


def is_silent() -> bool:
    """Return whether nothing but results and errors is printed."""
    return _SILENT.is_set()


def say(line: str, *, stream: TextIO | None = None) -> None:
    """Print a line for people; standard output is for results.

    Parameters
    ----------
    stream : TextIO, optional
        Default standard error.
    """
    if not _SILENT.is_set():
        _print(visible(line), stream or sys.stderr)


def say_error(error: BaseException | str) -> None:
    """Print what went wrong; lines after the first stand further in, so none looks like another.

    The first line ends with the code, also where a library's words of several lines come before.
    """
    text = str(error)
    first, *others = text.split("\n")
    if (found := CODE.search(text)) and not CODE.search(first):
        first += found[0]
        others = [line.removesuffix(found[0]) for line in others]
    _print(visible(f"error: {first}"), sys.stderr)
    for line in others:
        _print(visible(f"  {line}"), sys.stderr)


def show(line: str, *, keep: str = "") -> None:
    """Print a line of results; control characters to keep are this program's own."""
    _print(visible(line, keep=keep), sys.stdout)


def show_lines(text: str) -> None:
    """Print results whose line ends are this program's own."""
    for line in text.split("\n"):
        show(line)


def duration(seconds: float) -> str:
    """Return seconds as people write them.

    >>> duration(5), duration(65), duration(7300)
    ('5s', '1m05s', '2h01m')
    """
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _print(line: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    # A terminal that knows no pictures gets their numbers, not an exception.
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
