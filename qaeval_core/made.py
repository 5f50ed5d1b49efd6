"""Made: how an output was made, as its page and its JSON say it: its name, when, and by what."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata

from qaeval_core.distribution import NAME
from qaeval_core.terminal import COMMAND, SHOWN_NAME

_MOST_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class HowMade:
    """How something was made, as its page and its JSON say it.

    Attributes
    ----------
    name : str
        What people call it.
    date : str
        When it was made, in UTC.
    command : str
        What was typed; empty from Python.
    version : str
        Of qaeval.
    """

    name: str
    date: str
    command: str
    version: str

    @classmethod
    def now(cls, name: str) -> HowMade:
        """Return what is so of what is being made; the name is used where --name gives none."""
        return cls(SHOWN_NAME.get() or name, date_shown(_now()), COMMAND.get(), _version())

    @classmethod
    def of(cls, content: object, name: str) -> HowMade:
        """Return what JSON says of it; a version that kept nothing has the name alone."""
        # It may come from anybody.
        known = content if isinstance(content, Mapping) else {}
        keys = ("name", "date", "command", "version")
        own = {key: str(known.get(key) or "")[:_MOST_CHARS] for key in keys}
        return cls(**own | {"name": own["name"] or name})

    def tab(self, kind: str) -> str:
        """Return what a browser calls its page.

        Examples
        --------
        >>> HowMade("2026-W03", "", "", "").tab("audit")
        '2026-W03: qaeval audit'
        """
        return ": ".join(filter(None, [self.name, f"qaeval {kind}"]))

    def content(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return asdict(self)


def _version() -> str:
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:  # Run from its source alone.
        return ""


def _now() -> datetime:
    # The usual way to ask for files that are the same each time.
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed.isdecimal() else datetime.now(UTC)


def date_shown(time: datetime) -> str:
    """Return a time to the minute.

    Examples
    --------
    >>> date_shown(datetime(2026, 1, 4, 5, 6, 7, tzinfo=UTC))
    '2026-01-04 05:06 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M UTC")
