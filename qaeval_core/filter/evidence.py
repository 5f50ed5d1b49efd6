"""Evidence: what labels say of the rows that are left, once it is sure that they may.

Labels are refused where they are no random sample of those rows: of another filter's sheet, or not
spread over the ranking.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.labels import LabeledRows, SheetOrder, Spread, spread_of
from qaeval_core.filter.looks import Account, Look, planned_look
from qaeval_core.filter.plan import CombinedRank, FilterPlan
from qaeval_core.filter.shares import Shares
from qaeval_core.signature import hash_text
from qaeval_core.stats.certificate import Certificate, KnownLabels, certify
from qaeval_core.stats.label_plan import labels_needed
from qaeval_core.stats.learned_rank import id_hash, is_learning

# Labels of a random sample are refused as often.
_LEAST_SPREAD = 1e-4


class NoEvidenceError(ConfigError):
    """Labels are no random sample of the rows that could be kept."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What labels say.

    Attributes
    ----------
    found : Certificate
    otherwise : Certificate, optional
        What they would say if blank rows counted the other way; None without blank rows, and where
        those with a label are not spread over the ranking.
    n_blank, n_dropped : int
        Rows without a label; labels of rows that say nothing of those that are left.
    within : float, optional
        The best share of the rows that labels are of; None for all.
    look : Look, optional
        Where a precision was asked for.
    account : Account
        With this look.
    needed : int, optional
        Labels that would certify some share with a chance of .8, where these certify none.
    """

    found: Certificate
    otherwise: Certificate | None
    n_blank: int
    n_dropped: int
    within: float | None
    look: Look | None
    account: Account
    needed: int | None


def weigh(
    plan: FilterPlan,
    rows: CorpusRows,
    labeled: LabeledRows,
    *,
    shares: Shares,
    share: NDArray[np.uint8],
    account: Account,
) -> Evidence:
    """Return what labels say of each kept share.

    Parameters
    ----------
    share : uint8 ndarray of shape (n_rows,)
        The smallest of the shares that has each row.
    account : Account
        Of earlier looks.

    Raises
    ------
    NoEvidenceError
        If the labels are no random sample of the rows that are left.
    ConfigError
        If no look is left.

    Notes
    -----
    Rows of a whole sheet were drawn one by one, and count so. Other labels that share a group count
    as fewer.
    """
    request = plan.request
    last = len(shares.counts) - 1 if request.within is None else shares.nearest(request.within)

    def is_member(own: slice) -> NDArray[np.bool_]:
        return share[own] <= last

    order = SheetOrder(rows, is_member, is_second=request.within is not None)
    if order.is_other_sheet(labeled.rows):
        raise NoEvidenceError(f"{_other_sheet(plan)} [QA0701]")
    is_sheet, look = order.is_sheet(labeled.rows), None
    if request.precision is not None:
        labeled, look, account = _look_at(plan, labeled, order if is_sheet else None, account)
    is_inside = share[labeled.rows] <= last
    inside, learns = labeled.take(is_inside), _learning_side(plan, labeled)[is_inside]
    groups = None if is_sheet else _shared_groups(rows, inside.rows)
    if groups is not None and learns.any():
        raise NoEvidenceError(f"{_shared_and_learned(plan)} [QA0701]")
    certifying = inside.take(~learns)

    def spread(own: LabeledRows) -> Spread:
        n_contexts = None if groups is None else len(np.unique(groups))
        return spread_of(rows, own.rows, is_member, n_independent=n_contexts)

    def certified(own: LabeledRows) -> Certificate:
        teaching = inside.take(learns & ~inside.is_blank)
        return certify(
            share[own.rows].astype(np.intp),
            own.is_good,
            counts=shares.counts[: last + 1],
            n_rows=shares.n_eligible,
            target=0.5 if request.precision is None else request.precision,
            delta=request.delta if look is None else look.delta,
            clusters=None if groups is None else groups[np.isin(certifying.rows, own.rows)],
            known=KnownLabels(share[teaching.rows].astype(np.intp), teaching.is_good),
        )

    found, otherwise = _both_ways(plan, certifying, spread, certified)
    return Evidence(
        found=found,
        otherwise=otherwise,
        n_blank=int(certifying.is_blank.sum()),
        n_dropped=len(labeled.rows) - len(inside.rows),
        within=None if request.within is None else shares.counts[last] / shares.n_eligible,
        look=look,
        account=account,
        needed=None if look is None or found.chosen else _needed(plan, found, look),
    )


def _both_ways(
    plan: FilterPlan,
    certifying: LabeledRows,
    spread: Callable[[LabeledRows], Spread],
    certified: Callable[[LabeledRows], Certificate],
) -> tuple[Certificate, Certificate | None]:
    """Return what labels say, and what they would if blank rows counted the other way."""
    by_rule = {"bad": certifying, "ignore": certifying.take(~certifying.is_blank)}
    judged = by_rule.pop(plan.request.blank)
    if (found := spread(judged)).p_value < _LEAST_SPREAD:
        raise NoEvidenceError(f"{_not_spread(plan, found)} [QA0701]")
    (other,) = by_rule.values()
    is_told = certifying.is_blank.any() and spread(other).p_value >= _LEAST_SPREAD
    return certified(judged), certified(other) if is_told else None


def _look_at(
    plan: FilterPlan, labeled: LabeledRows, sheet: SheetOrder | None, account: Account
) -> tuple[LabeledRows, Look, Account]:
    """Return the labels that this look sees, the look, and the account after it.

    ``sheet`` is the order of the sheet that the labels are; None where they are none.
    """
    n_due = len(labeled.rows) if sheet is None else _n_due(labeled, sheet)
    planned = planned_look(plan.request, n_due)
    if sheet is not None and planned is not None:
        labeled = labeled.take(np.isin(labeled.rows, sheet.ordered(labeled.rows)[:planned]))
    look, account = account.take(plan.request, _look(plan, labeled, planned))
    return labeled, look, account


def _learning_side(plan: FilterPlan, labeled: LabeledRows) -> NDArray[np.bool_]:
    """Return which labels had a part in the ranking, now or when a file's was learned."""
    rank, request = plan.stages.rank, plan.request
    found = np.zeros(len(labeled.rows), dtype=np.bool_)
    if isinstance(rank, CombinedRank):
        found = np.isin([id_hash(name) for name in labeled.ids], rank.learned.learned_from)
    # A blank row of that side teaches nothing, and must not certify alone.
    return found | is_learning(labeled.ids, request.seed) if request.learn else found


def _n_due(labeled: LabeledRows, order: SheetOrder) -> int:
    """Return how many rows of a sheet people have come to: up to the last one with a label."""
    with_label = labeled.rows[~labeled.is_blank]
    places = np.flatnonzero(np.isin(order.ordered(labeled.rows), with_label))
    return int(places[-1]) + 1 if len(places) else 0


def _look(plan: FilterPlan, labeled: LabeledRows, planned: int | None) -> Look:
    """Return a look at labels, by the rows and not by what their labels say.

    Targets do not matter: bounds of all shares hold together. A wrong label may be corrected.
    """
    own = [plan.ranking(), sorted(labeled.ids.tolist())]
    return Look(
        rows=hash_text(json.dumps(own, sort_keys=True, default=str)),
        labeled=hash_text(json.dumps(sorted(labeled.ids[~labeled.is_blank].tolist()))),
        blank=plan.request.blank if labeled.is_blank.any() else "bad",
        n_labels=len(labeled.rows),
        n_labeled=int(np.count_nonzero(~labeled.is_blank)),
        planned=planned,
    )


def _shared_groups(rows: CorpusRows, labeled: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """Return a number of each label's group, if some labels share one."""
    if rows.group is None or not len(labeled):
        return None
    codes = np.unique(rows.group[labeled], return_inverse=True)[1]
    return codes if np.bincount(codes).max() > 1 else None


def _not_spread(plan: FilterPlan, spread: Spread) -> str:
    within = plan.request.within
    part = "the rows" if within is None else f"the best {within:.3g} of the rows"
    return (
        f"{plan.request.labels_name}: labels are not spread over {part} as a random sample would "
        f"be. Half of them are among the best {spread.middle:.3g} (p {spread.p_value:.1g}), and "
        "say nothing about rows below. Draw rows to label with --label-sheet. If these were drawn "
        "from the best rows alone: --within-best SHARE"
    )


def _needed(plan: FilterPlan, found: Certificate, look: Look) -> int | None:
    """Return how many labels would do at a look that was planned beside this one."""
    request = plan.request

    def delta_of(n: int) -> float:
        return request.delta * n / (n + look.n_labels)

    return labels_needed(found, delta_of)


def _other_sheet(plan: FilterPlan) -> str:
    request = plan.request
    said = (
        f"{request.labels_name} is a label sheet of another rank or other options, or a part of "
        "one. It is no random sample of the rows that could be kept here, so it certifies nothing. "
        "Keep its blank rows in it, or draw a sheet with --label-sheet under these options"
    )
    return said + ("" if request.learn else ", or one for any rank with --learn COLUMNS")


def _shared_and_learned(plan: FilterPlan) -> str:
    return (
        f"{plan.request.labels_name} is not a label sheet, and its labels share groups. The labels "
        "that the rank was not learned from are no random sample. Draw rows with --label-sheet N "
        "--learn COLUMNS, or certify combine.json with labels that it was not learned from"
    )
