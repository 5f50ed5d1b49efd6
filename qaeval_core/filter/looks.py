"""Looks: how often a corpus's labels were looked at, and what of the chance of an error is left.

Each certificate is wrong at times; several are more often, if nobody shares that chance among them.
KEPT keeps the account, in filter.json: looks of one corpus, whatever their labels or ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from qaeval_core.errors import ConfigError
from qaeval_core.filter.request import FilterRequest
from qaeval_core.stats.label_plan import look_deltas

_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Look:
    """A look at labels.

    Attributes
    ----------
    rows : str
        Hash of the rows that are looked at, and of the ranking that they judge.
    labeled : str
        Hash of those with a label; where blank rows count as bad, of the most that had one.
    blank : str
        What the others count as: ``bad``, or ``ignore``.
    n_labels, n_labeled : int
        Rows, blank ones included and not.
    planned : int, optional
        The number of labels that was planned for it, None without a plan.
    delta : float
        How often it may be wrong.
    """

    rows: str
    labeled: str
    blank: str
    n_labels: int
    n_labeled: int
    planned: int | None
    delta: float = 0.0

    def covers(self, other: Look) -> bool:
        """Return whether it certifies wrongly wherever the other one does.

        Filling in rows that counted as bad only certifies more, and so does leaving them out. Where
        blank rows are left out, other labels are a look at another sample.
        """
        if self.rows != other.rows:
            return False
        if self.blank == other.blank == "bad":
            return True
        return self.labeled == other.labeled and (self.blank == "ignore" or other.blank == "bad")


@dataclass(frozen=True, slots=True)
class Account:
    """The looks that were taken of a corpus."""

    corpus: str
    taken: tuple[Look, ...] = ()

    @classmethod
    def read(cls, content: Mapping[str, Any] | None, corpus: str) -> Account:
        """Return what an earlier filter.json says of the same corpus."""
        found = (content or {}).get("looks") or {}
        if found.get("corpus") != corpus:
            return cls(corpus)
        return cls(corpus, tuple(Look(**own) for own in found["taken"]))

    def content(self) -> dict[str, Any]:
        """Return what `read` reads."""
        return {"corpus": self.corpus, "taken": [asdict(own) for own in self.taken]}

    def take(self, request: FilterRequest, look: Look) -> tuple[Look, Account]:
        """Return a look with what it may be wrong, and the account with it.

        One that an earlier look covers costs nothing again, nor does that which it covers.

        Raises
        ------
        ConfigError
            If no look is left.
        """
        cover = next((own for own in self.taken if own.covers(look)), None)
        same = [own for own in self.taken if own is cover or (not cover and look.covers(own))]
        others = tuple(own for own in self.taken if own not in same)
        spent = sum(own.delta for own in others)
        delta = request.delta - spent
        if look.planned is not None:
            if [own.planned for own in others].count(look.planned) >= request.looks.count(
                look.planned
            ):
                raise ConfigError(
                    f"--looks {_listed(request)}: the look at {look.planned:,} labels was taken "
                    "already, at other rows or with another ranking [QA0702]"
                )
            parts = look_deltas(request.looks, request.delta)
            delta = min(delta, parts[request.looks.index(look.planned)])
        if delta <= _NOTHING:
            n = sum(own.n_labels for own in others)
            raise ConfigError(
                f"--precision: the {request.delta:.3g} by which certificates of these rows may be "
                f"wrong was spent on earlier looks, at {n:,} labels. Plan looks before the first "
                f"one: --looks N,M. Now --confidence {1 - spent - request.delta:.3g} is possible "
                "[QA0702]"
            )
        look = replace(look, delta=delta)
        recorded = replace(cover or look, delta=max(delta, *(own.delta for own in same), 0.0))
        if recorded.blank == look.blank == "bad" and look.n_labeled > recorded.n_labeled:
            recorded = replace(recorded, labeled=look.labeled, n_labeled=look.n_labeled)
        return look, Account(self.corpus, (*others, recorded))


def planned_look(request: FilterRequest, n_labels: int) -> int | None:
    """Return the planned number of labels that a look at so many is at; None without a plan.

    Raises
    ------
    ConfigError
        If all planned numbers are smaller.
    """
    if not request.looks:
        return None
    fit = [n for n in request.looks if n >= n_labels]
    if not fit:
        raise ConfigError(
            f"--looks {_listed(request)}: no look at {n_labels:,} or more labels is planned "
            "[QA0702]"
        )
    return min(fit)


def _listed(request: FilterRequest) -> str:
    return ",".join(map(str, request.looks))
