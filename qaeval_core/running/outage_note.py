"""Outage note: what a process waits for, where its parent shows it beside the progress."""

from __future__ import annotations

from ctypes import Array, c_char
from multiprocessing.context import BaseContext

_MOST_BYTES = 1024
_of_parent: list[Array[c_char]] = []


class OutageNote:
    """What processes of this machine wait for: what the last of them said.

    But: there is no lock, which a process that is killed could hold for ever. Two that speak at
    once may leave parts of both for a moment; a note is for people, and is said again.

    Parameters
    ----------
    context : BaseContext
        By which the processes begin, which are given `text`.
    """

    def __init__(self, context: BaseContext) -> None:
        self.text = context.RawArray(c_char, _MOST_BYTES)

    def __str__(self) -> str:
        return self.text.value.decode(errors="replace")


def hear(text: Array[c_char]) -> None:
    """Let notes of this process go to its parent."""
    _of_parent[:] = [text]


def tell(note: str) -> None:
    """Tell the parent what this process waits for; "" once it goes on."""
    for text in _of_parent:
        text.value = note.encode()[: _MOST_BYTES - 1]
