"""Request: which systems are compared, and how, as a person says it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from qaeval_core.errors import ConfigError
from qaeval_core.stats.bootstrap import N_RESAMPLES

MIN_RESAMPLES = 100
ALPHA = 0.05
_NAMED = re.compile(r"([A-Za-z0-9][\w .+-]*)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """One comparison; the command line's words.

    Attributes
    ----------
    scores : tuple of (str, str)
        Name and path of each system's OUT or table of scores; a single one where ``system`` tells
        systems apart. No two have one name.
    system : str, optional
        Column of names of systems.
    metrics : tuple of str
        Columns of scores; default all main ones that every system has.
    on : str, optional
        Column whose values say which rows belong together. Rows of one value are averaged. Default
        the ids, each of which names one row.
    baseline : str, optional
        System that the others are compared with; default the best of each metric.
    by : tuple of str
        Columns whose values get tables of their own.
    cluster : str, optional
        Column or role that rows which are not independent share; ``none``: rows are independent.
        Default the context, else the question.
    anyway : bool
        Whether scores of different settings are compared, too.
    """

    scores: tuple[tuple[str, str], ...]
    system: str | None = None
    metrics: tuple[str, ...] = ()
    on: str | None = None
    baseline: str | None = None
    by: tuple[str, ...] = ()
    cluster: str | None = None
    anyway: bool = False
    inputs: tuple[str, ...] = ()
    n_resamples: int = N_RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.system is None and len(self.scores) < 2:
            raise ConfigError(
                "a comparison needs two systems: name two OUTs, or one with --system COLUMN "
                "[QA0103]"
            )
        if both := sorted({*self.metrics} & {*self.by}):
            raise ConfigError(f"--by {both[0]} is a metric that is compared [QA0102]")
        if self.system is not None and len(self.scores) != 1:
            raise ConfigError("--system COLUMN divides one OUT; name a single one [QA0102]")
        if self.inputs and len(self.scores) > 1:
            raise ConfigError("--input is of one OUT, and several are compared [QA0102]")
        if self.n_resamples < MIN_RESAMPLES:
            raise ConfigError(
                f"--resamples is {self.n_resamples}; it must be {MIN_RESAMPLES} or more [QA0104]"
            )
        if self.seed < 0:
            raise ConfigError(f"--seed is {self.seed}; it must be 0 or more [QA0104]")


def named_paths(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the name and the path of each ``[NAME=]PATH``; a path's name is its last part.

    Raises
    ------
    ConfigError
        If two have one name.

    Examples
    --------
    >>> named_paths(["runs/base", "large=s3://bucket/out/"])
    (('base', 'runs/base'), ('large', 's3://bucket/out/'))
    >>> named_paths(["base/out", "large/out"])
    (('base/out', 'base/out'), ('large/out', 'large/out'))
    """
    found = []
    for text in given:
        match = None if Path(text).exists() else _NAMED.fullmatch(text)
        found.append((match[1], match[2]) if match is not None else ("", text))
    parts = [PurePosixPath(path.rstrip("/")).parts for _, path in found]
    twice: list[str] = []
    for depth in range(1, max(1, *map(len, parts)) + 1):
        names = [
            name or "/".join(own[-depth:]) for (name, _), own in zip(found, parts, strict=True)
        ]
        twice = [name for name, n in Counter(names).items() if n > 1]
        if not twice:
            return tuple((name, path) for name, (_, path) in zip(names, found, strict=True))
    raise ConfigError(
        f"two systems are called {twice[0]!r}; give names, such as base={given[0]} [QA0106]"
    )
