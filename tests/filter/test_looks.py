"""Looks: what they cost beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from qaeval_core.errors import ConfigError
from qaeval_core.filter.looks import Account, Look
from qaeval_core.filter.request import FilterRequest


def _request(looks: tuple[int, ...] = ()) -> FilterRequest:
    return FilterRequest(rank_by="s", precision=0.8, labels="labels.csv", label="good", looks=looks)


def _look(blank: str, labeled: str) -> Look:
    n_labeled = {"some": 30, "more": 60, "all": 100}[labeled]
    return Look("rows", labeled, blank, 100, n_labeled, planned=None)


def _looked(*said: str) -> Account:
    """Return the account after looks such as ``bad all``, of the same 100 rows."""
    account = Account("corpus")
    for blank, labeled in map(str.split, said):
        look, account = account.take(_request(), _look(blank, labeled))
        assert look.delta == pytest.approx(0.05)
        # All that the corpus's certificates may be wrong, however often it is looked at.
        assert sum(own.delta for own in account.taken) == pytest.approx(0.05)
        account = Account.read({"looks": account.content()}, "corpus")
    return account


@pytest.mark.parametrize(
    "looks",
    [
        ["bad all", "bad some", "bad all"],
        ["bad some", "bad more", "bad all"],
        ["bad some", "ignore some", "bad some", "ignore some"],
        ["bad some", "bad more", "ignore more"],
    ],
)
def test_a_look_at_the_same_labels_costs_nothing(looks: list[str]) -> None:
    assert len(_looked(*looks).taken) == 1


@pytest.mark.parametrize(
    "looks",
    [
        ["bad all", "ignore some"],
        ["bad some", "bad all", "ignore some"],
        ["ignore some", "bad all"],
        ["ignore some", "bad some", "ignore more"],
        ["bad some", "ignore some", "bad more"],
    ],
)
def test_blank_rows_left_out_are_another_look(looks: list[str]) -> None:
    """Protects from a sample that is chosen by what its labels say."""
    account, (blank, labeled) = _looked(*looks[:-1]), looks[-1].split()
    with pytest.raises(ConfigError, match="100.*QA0702"):
        account.take(_request(), _look(blank, labeled))


def test_planned_looks_share_what_may_be_wrong() -> None:
    account, request = Account("corpus"), _request(looks=(100, 200, 400))
    deltas: Mapping[int, float] = {}
    for n in request.looks:
        look, account = account.take(request, Look(f"{n} rows", "all", "bad", n, n, planned=n))
        deltas = {**deltas, n: look.delta}
    assert sum(deltas.values()) == pytest.approx(0.05)
    assert all(few < many for few, many in pairwise(deltas.values()))
    with pytest.raises(ConfigError, match="200.*QA0702"):
        account.take(request, Look("others", "all", "bad", 200, 200, planned=200))
