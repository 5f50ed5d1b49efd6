"""FAMILIES: our families and those of plugins, by the name that a metric reads them by."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from qaeval_core.errors import ConfigError
from qaeval_core.families.chat.family import ChatFamily
from qaeval_core.families.chat.judge_family import JudgeFamily
from qaeval_core.families.chat.naco_family import NacoFamily
from qaeval_core.families.contract import Family
from qaeval_core.families.function_family import FunctionFamily
from qaeval_core.families.models import MODEL_FAMILIES
from qaeval_core.families.words.family import WORD_FAMILIES
from qaeval_core.metrics.base import Metric
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.metrics.function import FunctionMetric, is_marked, why_no_metric
from qaeval_core.plugins import MODULES, Catalog, Package

# In the order of their passes: words; families of one model beside each other, cheap ones first.
_OWN: dict[str, Family] = {
    **WORD_FAMILIES,
    FunctionFamily.name: FunctionFamily(),
    **MODEL_FAMILIES,
    **{family.name: family for family in (NacoFamily(), JudgeFamily())},
}
_ORDER = list(dict.fromkeys(family.name for family in _OWN.values()))


def _make_family(name: str, found: Any, package: Package) -> Family:
    own = found() if isinstance(found, type) and issubclass(found, Family) else found
    if not isinstance(own, Family):
        raise ConfigError(f"it is of type {type(own).__name__}, and must be a Family [QA0211]")
    if _key(own) != name:
        raise ConfigError(
            f"its entry point is named {name!r}, and its own name is {_key(own)!r} [QA0211]"
        )
    return own


def _key(family: Family) -> str:
    """Return what metrics read a family by: one of words is named by its statistic."""
    return str(getattr(family, "statistic", family.name))


FAMILIES: Catalog[Family] = Catalog("qaeval.families", _OWN, _make_family)


def pass_order(name: str) -> int:
    """Return the place of a family's pass; those of plugins come last."""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def chat_family(name: str) -> ChatFamily | None:
    """Return a family that asks a language model, by name; None where it asks none."""
    family = FAMILIES[name]
    return family if isinstance(family, ChatFamily) else None


def add_modules(names: Sequence[str]) -> None:
    """Take the metrics and families of modules that a command line names.

    Of a module count its own public functions whose parameters are all roles, and its own classes
    and objects of `Metric` and `Family`.

    Raises
    ------
    ConfigError
        If a module cannot be imported, adds nothing, or adds a name that is taken.
    """
    for name in names:
        module = _imported(name)
        if module not in MODULES:
            try:
                _add(module)
            except (OSError, TypeError) as error:  # No source; a class that takes arguments.
                raise ConfigError(
                    f"--plugin {name}: {type(error).__name__}: {error} [QA0211]"
                ) from error
            MODULES.append(module)


def _imported(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # Last: a file here never hides an installed module.
    try:
        return importlib.import_module(name)
    except Exception as error:
        hint = ""
        if name.endswith(".py") or os.sep in name:
            hint = "; give the name of a module, as in an import, not its path"
        raise ConfigError(
            f"--plugin {name} cannot be imported: {type(error).__name__}: {error}{hint} [QA0211]"
        ) from error


def _add(module: ModuleType) -> None:
    package = Package(f"module {module.__name__}")
    source = inspect.getsource(module)
    n_added, refused = 0, []
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", "") == module.__name__
        if name.startswith("_") or not (is_own or isinstance(value, Metric | Family)):
            continue
        if inspect.isfunction(value):
            why = why_no_metric(value)
            if why and not is_marked(value):
                METRICS.refuse(name, f"{name} of {package} is no metric: {why} [QA0212]")
                refused.append(why)
                continue
            metric = FunctionMetric(value, package=package, source=source)
            METRICS.add(metric.name, metric, package)
        elif isinstance(value, type) and inspect.isabstract(value):
            continue
        elif isinstance(value, Metric) or _is_subclass(value, Metric):
            made = value() if isinstance(value, type) else value
            METRICS.add(made.name, made, package)
        elif isinstance(value, Family) or _is_subclass(value, Family):
            family = value() if isinstance(value, type) else value
            FAMILIES.add(_key(family), family, package)
        else:
            continue
        n_added += 1
    if not n_added:
        why = f": {'; '.join(refused)}" if refused else ""
        raise ConfigError(f"--plugin {module.__name__} has no metric{why} [QA0211]")


def _is_subclass(value: object, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)
