"""Folder of ledgers: one per user and machine, so that runs of one account find each other's."""

from __future__ import annotations

from pathlib import Path


def ledger_folder(given: str | None) -> Path:
    """Return where ledgers lie on the machine that asks.

    Parameters
    ----------
    given : str or None
        A folder; None takes one in the user's cache.

    Examples
    --------
    >>> ledger_folder("/data/ledgers").as_posix()
    '/data/ledgers'
    >>> ledger_folder(None).parts[-3:]
    ('.cache', 'qaeval', 'ledgers')
    """
    if given is not None:
        return Path(given).expanduser()
    return Path.home() / ".cache" / "qaeval" / "ledgers"
