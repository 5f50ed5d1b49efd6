"""Plugins: what other packages add to qaeval, found by their entry points and read lazily.

A name of our own wins, and nobody looks for plugins while a name is one of ours. A module is
imported when something of it is used. No file of settings names a module to import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any, TypeVar

from qaeval_core.distribution import NAME
from qaeval_core.errors import ConfigError

GROUPS = (
    "qaeval.metrics",
    "qaeval.families",
    "qaeval.graphs",
    "qaeval.stores",
    "qaeval.chat",
    "qaeval.audit_statistics",
)
# Modules that a command line names: workers on other machines need not have them installed.
MODULES: list[ModuleType] = []
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Package:
    """What brings an entry: an installed package, or a module without a version."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


@functools.cache
def _entries() -> Mapping[str, Mapping[str, list[tuple[Package, metadata.EntryPoint]]]]:
    """Return the entries of our groups by group and name, each with its package."""
    found: dict[str, dict[str, list[tuple[Package, metadata.EntryPoint]]]] = {}
    installed = metadata.entry_points()  # Once: each look reads what all packages have.
    for group in GROUPS:
        for entry in installed.select(group=group):
            package = Package("unknown package")
            if entry.dist is not None:
                package = Package(entry.dist.name, entry.dist.version)
            found.setdefault(group, {}).setdefault(entry.name, []).append((package, entry))
    return found


def packages() -> list[Package]:
    """Return the installed packages that add something, each once."""
    found = [
        package for names in _entries().values() for given in names.values() for package, _ in given
    ]
    return sorted(dict.fromkeys(found), key=str)


def versions() -> dict[str, str]:
    """Return the versions of qaeval and of every installed plugin, by package."""
    own = {NAME: metadata.version(NAME)}
    return own | {package.name: package.version for package in packages()}


def other_versions(theirs: Mapping[str, str]) -> str:
    """Return which packages another process has in other versions than this one; "" where none.

    Parameters
    ----------
    theirs : mapping of package to version
        Of the other process's `versions`.
    """
    own = versions()
    differing = [
        f"{name} {version or 'unknown'} (it has {own.get(name, 'none')})"
        for name, version in theirs.items()
        if own.get(name) != version
    ]
    return ", ".join(differing)


class Catalog(Mapping[str, T]):
    """Everything of one kind by name: ours, and what plugins add, loaded when it is looked up.

    Parameters
    ----------
    group : str
        Of entry points, one of `GROUPS`.
    own : mapping of str to T
        Ours.
    make : callable
        (name, what an entry names, its package) -> T; ConfigError where it is of another kind.

    Raises
    ------
    ConfigError
        By a lookup: if two packages add the name, or what is added cannot be used.
    """

    def __init__(
        self, group: str, own: Mapping[str, T], make: Callable[[str, Any, Package], T]
    ) -> None:
        self._group = group
        self._own = own
        self._make = make
        self._added: dict[str, tuple[T, Package]] = {}
        self._refused: dict[str, str] = {}

    def add(self, name: str, value: T, package: Package) -> None:
        """Take what a module of the command line adds.

        Raises
        ------
        ConfigError
            If the name is taken: whoever names a module would be given something else.
        """
        if self.is_own(name):
            raise ConfigError(
                f"{package}: {name} is the name of one of qaeval's own; rename it [QA0208]"
            )
        other = self.package_of(name)
        if other not in (None, package):
            raise ConfigError(f"{other} and {package} both add {name}; rename one of them [QA0208]")
        self._added[name] = (value, package)

    def refuse(self, name: str, why: str) -> None:
        """Note why something that a module has under a name is not taken: who asks is told."""
        self._refused[name] = why

    def is_own(self, name: str) -> bool:
        """Return whether a name is one of ours."""
        return name in self._own

    def package_of(self, name: str) -> Package | None:
        """Return what brings a name; None of ours."""
        if name in self._own:
            return None
        if name in self._added:
            return self._added[name][1]
        given = self._entries().get(name)
        return given[0][0] if given else None

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        if name not in self._added:
            if name in self._refused:
                raise ConfigError(self._refused[name])
            self._added[name] = self._load(name)
        return self._added[name][0]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in [*self._added, *self._refused, *self._entries()]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._own, *self._added, *self._entries()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _entries(self) -> Mapping[str, list[tuple[Package, metadata.EntryPoint]]]:
        return _entries().get(self._group, {})

    def _load(self, name: str) -> tuple[T, Package]:
        given = self._entries().get(name)
        if not given:
            raise KeyError(name)
        (package, entry), *others = given
        if others:
            raise ConfigError(
                f"two packages add {name} of {self._group}, {package} and {others[0][0]}; "
                "uninstall one of them [QA0208]"
            )
        where = f"{name} of {package} ({entry.value})"
        try:
            return self._make(name, entry.load(), package), package
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"{where} cannot be loaded: {type(error).__name__}: {error} [QA0211]"
            ) from error


def instance_maker(kind: type[T]) -> Callable[[str, Any, Package], T]:
    """Return a `Catalog`'s ``make`` for entries that name an instance of a class, or a subclass."""

    def make(name: str, found: Any, package: Package) -> T:
        own = found() if isinstance(found, type) and issubclass(found, kind) else found
        if not isinstance(own, kind):
            found_kind = type(own).__name__
            raise ConfigError(f"it is of type {found_kind}, and must be a {kind.__name__} [QA0211]")
        own_name = getattr(own, "name", name)
        if own_name != name:
            raise ConfigError(
                f"its entry point is named {name!r}, and its own name is {own_name!r} [QA0211]"
            )
        return own

    return make
