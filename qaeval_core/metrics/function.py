"""A plain function as a metric: ``score(candidate, references) -> float``.

Names of parameters are the roles that it reads; one with a default is read where there is such a
column. ``None`` or NaN is an undefined score. The docstring describes the metric.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

from qaeval_core.errors import ConfigError, nearest
from qaeval_core.metrics.base import Metric, Read, Scores, Settings, columns
from qaeval_core.metrics.targets import Targets
from qaeval_core.plugins import Package
from qaeval_core.schema import ROLES
from qaeval_core.signature import hash_text

FAMILY = "function"
NO_SCORE = "no_score"
_READABLE = tuple(role for role in ROLES if role != "id")
_FACTS = "__qaeval_metric__"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What `metric` says of a function."""

    name: str | None = None
    higher_is_better: bool = True
    low: float = -math.inf
    high: float = math.inf
    version: str = ""


@overload
def metric(function: F) -> F: ...


@overload
def metric(
    *,
    name: str | None = None,
    higher_is_better: bool = True,
    low: float = -math.inf,
    high: float = math.inf,
    version: str = "",
) -> Callable[[F], F]: ...


def metric(function: Function | None = None, **facts: Any) -> Any:
    """Say of a function what its code does not: a decorator; the function stays as it is.

    Parameters
    ----------
    name : str, optional
        Of the metric; default the function's.
    higher_is_better : bool, default True
    low, high : float, optional
        Range of the scores; one outside it ends the run. Default any number.
    version : str, optional
        Part of the signature; needed where a function has no source, or reads variables of an
        outer function. Raise it when numbers change.

    Examples
    --------
    >>> @metric(higher_is_better=False, low=0)
    ... def surplus(candidate: str, references: list[str]) -> float:
    ...     return max(len(candidate) - max(map(len, references)), 0)
    >>> surplus("ab", ["a"])
    1
    """

    def mark(own: F) -> F:
        setattr(own, _FACTS, FunctionFacts(**facts))
        return own

    return mark if function is None else mark(function)


class FunctionMetric(Metric[Settings]):
    """A metric that is a function of one row.

    Parameters
    ----------
    function : callable
    name : str, optional
        Default the function's.
    package : Package, optional
        What brings it; its version is part of the signature. Default the function's module.
    source : str, optional
        What its numbers depend on, instead of its own source.

    Raises
    ------
    ConfigError
        If it is no plain function with a name, a parameter is no role, or the source cannot be
        known and no version is given.
    """

    settings = Settings
    needs = ("words",)
    columns = columns("", kind="exact")
    over_references = "none"

    def __init__(
        self,
        function: Function,
        *,
        name: str | None = None,
        package: Package | None = None,
        source: str | None = None,
    ) -> None:
        problem = why_no_metric(function)
        if problem:
            raise ConfigError(f"{problem} [QA0212]")
        facts: FunctionFacts = getattr(function, _FACTS, FunctionFacts())
        self.function = function
        self.name = name or facts.name or function.__name__
        self.package = package or Package(f"module {function.__module__}")
        self.title = (inspect.getdoc(function) or "").split("\n")[0].rstrip(".") or "a function"
        self.source = f"a function of {self.package}"
        self.low, self.high = facts.low, facts.high
        self.higher_is_better = facts.higher_is_better
        given = inspect.signature(function).parameters.values()
        self.roles = tuple(one.name for one in given if one.default is one.empty)
        self.optional_roles = tuple(one.name for one in given if one.default is not one.empty)
        self._version = facts.version
        self._hash = "" if facts.version else _source_hash(function, source)

    @property
    def definition(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.function) or ""

    @property
    def shown_function(self) -> str:
        """How messages name it."""
        return f"function {self.function.__name__} of {self.package}"

    @property
    def identity(self) -> dict[str, object]:
        """What its numbers depend on besides the rows, for signatures."""
        own = {"function": self.name, "package": str(self.package)}
        if self._version:
            return {**own, "function_version": self._version}
        return {**own, "source": self._hash}

    def reads(self, settings: Settings) -> tuple[Read, ...]:
        """Return the family of functions."""
        return (Read(family=FAMILY, roles=(*self.roles, *self.optional_roles)),)

    def signed(self, settings: Settings) -> dict[str, object]:
        """Return what decides the numbers."""
        return self.identity

    def score(self, settings: Settings, read: Mapping[str, Targets]) -> Scores:
        """Return what the function returned of some rows."""
        scores = read[FAMILY].of_rows("score")
        return Scores({"": scores}, [NO_SCORE if i else None for i in np.isnan(scores).tolist()])


def why_no_metric(function: Any) -> str:
    """Return why something is no function that scores a row; "" where it is one.

    Examples
    --------
    >>> why_no_metric(lambda candidate: 1.0)
    'a lambda has no name: define a function'
    """
    if not inspect.isfunction(function):
        kind = type(function).__name__
        return f"a plain function is needed, not of type {kind}; else write a class of Metric"
    name = function.__name__
    if name == "<lambda>":
        return "a lambda has no name: define a function"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return f"{name} returns no number when it is called: it is async, or yields"
    return _why_no_roles(name, inspect.signature(function).parameters)


def _why_no_roles(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    if not parameters:
        return f"{name} has no parameter; it reads roles, such as candidate and references"
    for parameter in parameters.values():
        if parameter.kind not in _BY_NAME:
            return f"{name} has the parameter {parameter}, which has no name of a role"
        if parameter.name not in _READABLE:
            hint = nearest(parameter.name, _READABLE)
            return f"{name} has the parameter {parameter.name!r}, which is no role{hint}"
    return ""


def is_marked(function: object) -> bool:
    """Return whether `metric` was said of a function."""
    return hasattr(function, _FACTS)


def _source_hash(function: Function, source: str | None) -> str:
    """Return a hash of what a function's numbers depend on, as far as its source says.

    Raises
    ------
    ConfigError
        If it has no source, or reads variables of an outer function.
    """
    name = function.__name__
    hint = "give one, @qaeval.metric(version=...), and raise it when numbers change"
    if inspect.unwrap(function).__closure__:
        variables = ", ".join(inspect.unwrap(function).__code__.co_freevars)
        raise ConfigError(
            f"{name} reads {variables} of an outer function, and has no version: {hint} [QA0212]"
        )
    try:
        return hash_text(source if source is not None else inspect.getsource(function))
    except (OSError, TypeError):
        raise ConfigError(
            f"{name} has no source to hash, and no version: {hint} [QA0212]"
        ) from None
