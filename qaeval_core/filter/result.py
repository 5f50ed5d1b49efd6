"""Result: what ``filter.json`` says of a filter: how it was asked, what it kept, and how surely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.evidence import Evidence
from qaeval_core.filter.labels import Labels, differ_lines, labels_of
from qaeval_core.filter.looks import Account
from qaeval_core.filter.order import Cut
from qaeval_core.filter.plan import FilterPlan
from qaeval_core.filter.quotas import CountedValues, n_of
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.row_arrays import are_mapped
from qaeval_core.filter.scan import n_buckets
from qaeval_core.filter.shares import Shares
from qaeval_core.filter.write import N_BINS, MetricSums
from qaeval_core.stats.certificate import Certificate
from qaeval_core.stats.label_plan import Outlook, look_deltas, outlook
from qaeval_core.stats.learned_rank import LearnedRank
from qaeval_core.storage.path import as_path
from qaeval_core.tables.corpus import column_bytes

# Values below their quota that are told one by one.
_N_SHORT = 10


@dataclass(frozen=True, slots=True)
class FilterResult:
    """What a filter did; ``content`` is what filter.json says."""

    content: dict[str, Any]
    is_new: bool = True

    @property
    def is_certified(self) -> bool:
        """False only if a precision was asked for and no share has it."""
        return self.content["certified"] is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOutcome:
    """What was found and chosen, before it is said.

    Attributes
    ----------
    cut : Cut, optional
        The last row that is kept; None if none is.
    counted : mapping of str to CountedValues
        What ``quota`` and ``share_per`` did to values.
    names : mapping of (row, column) to text
        Of the values that are told.
    rank_range : (float, float)
        Lowest and highest rank value.
    n_groups : int, optional
        Groups with kept rows.
    examples : mapping
        Rows at the margin, of each reason, and labeled bad and yet kept.
    """

    shares: Shares
    cut: Cut | None
    evidence: Evidence | None
    account: Account
    is_certified: bool
    counted: Mapping[str, CountedValues]
    names: Mapping[tuple[int, str], str | None]
    learned: LearnedRank | None
    sums: MetricSums
    rank_range: tuple[float, float]
    n_groups: int | None
    examples: Mapping[str, Any]


def result_content(
    plan: FilterPlan,
    rows: CorpusRows,
    found: FilterOutcome,
    *,
    table: pl.DataFrame,
    files: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what ``filter.json`` says; nothing in it depends on time or on workers."""
    request, stages = plan.request, plan.stages
    sign = 1.0 if stages.rank.higher_is_better else -1.0
    counts = rows.counts()
    n_kept = counts.pop("")
    has_cut = found.cut is not None and np.isfinite(found.cut.rank) and _is_one_cut(request)
    return {
        "request": request.content(),
        "rows": len(rows),
        "kept": n_kept,
        "groups_kept": found.n_groups,
        "reasons": {name: n for name, n in counts.items() if n},
        "eligible": found.shares.n_eligible,
        "rank": {
            "name": stages.rank.name,
            "columns": list(stages.rank.columns),
            "higher_is_better": stages.rank.higher_is_better,
        },
        "cut": sign * found.cut.rank if found.cut is not None and has_cut else None,
        "columns": {
            "id": plan.corpus.id_column,
            **plan.corpus.roles,
            "group": stages.group,
            "quota": stages.quota,
            "share_per": stages.share_per,
        },
        "rules": list(stages.rules),
        "duplicates": stages.duplicates.kind,
        "signatures": dict(plan.signatures),
        "certified": found.is_certified if request.precision is not None else None,
        "certificate": _certificate(found.evidence, request),
        "looks": found.account.content(),
        "learned": found.learned.to_json() if found.learned is not None else None,
        "asked": _n_asked(request, found),
        **{
            name: found.counted[name].content(found.names) if name in found.counted else None
            for name in ("quota", "share_per")
        },
        "means": _means(plan.metrics, found.sums),
        "histogram": _histogram(found, sign),
        "yields": table.to_dicts(),
        **found.examples,
        "notes": list(plan.notes),
        "files": dict(files),
    }


def _is_one_cut(request: FilterRequest) -> bool:
    """Return whether the last stage cuts one ranking, not one for each value of a column."""
    return request.share_per is None or request.precision is not None


def _n_asked(request: FilterRequest, found: FilterOutcome) -> int | None:
    """Return how many rows a share or budget asks for; None without one."""
    if request.n_or_share is None or request.precision is not None:
        return None
    if request.exact_share is None:
        return request.budget
    n_rows = found.shares.n_eligible
    if request.is_divided:
        (*_, divided) = found.counted.values()
        n_rows = divided.all.n_reaching
    return n_of(request.exact_share, n_rows)


def asked_lines(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far what is kept is from what was asked for, if it is."""
    asked, kept, quota = content["asked"], content["kept"], content["quota"]
    name = content["columns"]["quota"]
    if asked is not None and asked != kept:
        why = f"{content['eligible']:,} reach the last stage"
        if quota is not None and quota["n_values"]:
            why = f"a quota gives each of {quota['n_values']:,} values of {name} its own part"
        yield f"{asked:,} rows were asked for, and {kept:,} are kept: {why}"
    if quota is not None and quota["n_short"]:
        yield (
            f"{quota['n_short']:,} of {quota['n_values']:,} values of {name} have fewer rows than "
            f"their quota, {quota['shortfall']:,} rows in all"
        )


def _certificate(evidence: Evidence | None, request: FilterRequest) -> dict[str, Any] | None:
    if evidence is None:
        return None
    found, look = evidence.found, evidence.look
    blank = None
    if evidence.n_blank:
        blank = {
            "n": evidence.n_blank,
            "count_as": request.blank,
            "otherwise": _chosen(evidence.otherwise, request),
        }
    return {
        "target": request.precision,
        "confidence": request.confidence,
        "n_labels": found.n_labels,
        "n_contexts": found.n_contexts,
        "level": found.level,
        **_chosen(found, request),
        "blank": blank,
        "within": evidence.within,
        "look": None if look is None else asdict(look),
        "labels_needed": evidence.needed,
        "holds_for": (
            "rows of this corpus, ranked by columns of these signatures under the same options. "
            "Labels must be a random sample of the rows that could be kept, looked at as planned"
        ),
        "says_nothing_of": (
            "another corpus, other options, scores of other signatures, other rankings by the same "
            "labels, or labels that are wrong"
        ),
    }


def _chosen(found: Certificate | None, request: FilterRequest) -> dict[str, Any]:
    """Return what is certified, None where nothing is."""
    chosen = found.chosen if found is not None and request.precision is not None else None
    names = ("share", "precision", "lower_bound", "p_value")
    return {name: getattr(chosen, name) if chosen else None for name in names}


def _means(metrics: Sequence[str], sums: MetricSums) -> dict[str, dict[str, float | None]]:
    def mean(total: float, count: int) -> float | None:
        return float(total / count) if count else None

    return {
        name: {
            "kept": mean(sums.kept[i], sums.n_kept[i]),
            "dropped": mean(sums.dropped[i], sums.n_dropped[i]),
        }
        for i, name in enumerate(metrics)
    }


def _histogram(found: FilterOutcome, sign: float) -> dict[str, Any]:
    """Return how the rank values of kept and of dropped rows are spread, in bins of one width."""
    if not found.sums.ranks.any():
        return {"edges": [], "kept": [], "dropped": []}
    edges = sign * np.linspace(*found.rank_range, N_BINS + 1)
    order = slice(None) if sign > 0 else slice(None, None, -1)
    dropped, kept = (own[order].tolist() for own in found.sums.ranks)
    return {"edges": edges[order].tolist(), "kept": kept, "dropped": dropped}


def _named(folder: str, name: str) -> str:
    """Return a name in a folder, which is shown as the user wrote it."""
    return str(as_path(folder) / name) if "://" in folder else f"{folder}/{name}"


def result_lines(content: Mapping[str, Any], folder: str) -> Iterator[str]:
    """Yield what a person wants to see first."""
    if "sheet" in content:
        yield from _sheet_lines(content)
        return
    n_rows, n_kept = content["rows"], content["kept"]
    share = n_kept / n_rows if n_rows else 0.0
    groups = "" if content["groups_kept"] is None else f", of {content['groups_kept']:,} groups"
    yield f"kept {n_kept:,} of {n_rows:,} rows ({share:.1%}){groups}: {_named(folder, 'kept')}"
    reasons = sorted(content["reasons"].items(), key=lambda item: -item[1])
    if reasons:
        yield f"dropped: {', '.join(f'{reason} {n:,}' for reason, n in reasons)}"
    if content["cut"] is not None:
        sign = ">=" if content["rank"]["higher_is_better"] else "<="
        yield f"cut: {content['rank']['name']} {sign} {content['cut']:.6g}"
    yield from (f"note: {line}" for line in asked_lines(content))
    if content["quota"] is not None:
        yield from _short_lines(content["quota"])
    yield from _certificate_lines(content)
    yield f"why: {_named(folder, 'filter.html')}"


def _short_lines(quota: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for some of the values below their quota, and one for the others."""
    short = [own for own in quota["values"] if own["shortfall"]][:_N_SHORT]
    for own in short:
        name = value_name(own["value"])
        yield f"  {name}: {own['n_kept']:,} rows, {own['shortfall']:,} below its quota"
    if n_more := quota["n_short"] - len(short):
        n_rows = quota["shortfall"] - sum(own["shortfall"] for own in short)
        yield f"  {n_more:,} more values: {n_rows:,} below their quota"


def value_name(value: str | None) -> str:
    """Return a value of a quota as people read it."""
    return "(no value)" if value is None else value


def _sheet_lines(content: Mapping[str, Any]) -> Iterator[str]:
    within = content["within"]
    part = "rows that could be kept" if within is None else f"rows, the best {within:.1%}"
    yield f"{content['n_labels']:,} of {content['n_eligible']:,} {part}: {content['sheet']}"
    after = "" if within is None else f" --within-best {within:.4f}"
    yield f"label them in a browser: {content['page']}"
    yield f"or fill the sheet's column good with 1 or 0; then: --labels FILE{after}"
    yield "its order is random: to label a part, label the first rows, and keep the others in it"
    found: Outlook | None = content["outlook"]
    n_certifying = content["n_certifying"]
    if n_certifying < content["n_labels"]:
        yield (
            f"about {n_certifying:,} of them will certify a learned rank: a third teaches, and "
            "duplicates, top-k or quotas may drop some"
        )
    if found is not None:
        yield outlook_line(found)


def outlook_of(request: FilterRequest, n_labels: int, *, n_rows: int) -> Outlook | None:
    """Return what so many labels can certify at best; None without a precision, or rows."""
    if request.precision is None or not n_rows:
        return None
    delta = request.delta
    if request.looks:
        delta = max(look_deltas(request.looks, delta))
    return outlook(n_labels, n_rows=n_rows, target=request.precision, delta=delta)


def outlook_line(found: Outlook) -> str:
    """Return what so many labels can certify at best."""
    if found.smallest_share is None:
        return (
            f"{found.n_labels:,} labels are too few for that precision: {found.least_labels:,} of "
            "the kept part are the least that can certify it, all of them good"
        )
    return (
        f"even if all {found.n_labels:,} labels turn out good, only kept shares of "
        f"{found.smallest_share:.0%} or more can be certified"
    )


def _certificate_lines(content: Mapping[str, Any]) -> Iterator[str]:
    if content["certified"] is None:
        return
    found = content["certificate"]
    if found is None or not found["n_labels"]:
        yield "no label is of a row that could be kept, so nothing is certified or kept"
        return
    confidence = f"{found['confidence']:.0%}"
    if content["certified"]:
        yield (
            f"precision above {found['target']:g} is certified at {confidence} confidence for the "
            f"best {found['share']:.1%}: {found['precision']:.1%} of the labels in it are good; "
            f"precision is at least {found['lower_bound']:.3f}{_look_text(found)}"
        )
    else:
        yield (
            f"precision above {found['target']:g} is not certified with these "
            f"{found['n_labels']:,} labels at {confidence} confidence{_look_text(found)}. Nothing "
            "is kept"
        )
        yield _way_out(content)
    yield from blank_lines(found)
    if content["certified"]:
        yield f"it holds for {found['holds_for']}; it says nothing of {found['says_nothing_of']}"


def _look_text(found: Mapping[str, Any]) -> str:
    look = found["look"]
    if look is None or look["planned"] is None:
        return ""
    return f" (look at {look['planned']:,} labels, wrong by {look['delta']:.3g} of it)"


def _way_out(content: Mapping[str, Any]) -> str:
    """Return what more labels would do, and at what price."""
    found = content["certificate"]
    needed, look = found["labels_needed"], found["look"]
    if needed is None:
        return "precision looks too low for any number of labels"
    said = f"{needed:,} labels would certify some share in about 80 % of draws"
    n_looks = len(content["request"]["looks"])
    if n_looks > len(content["looks"]["taken"]):
        return f"{said}; {n_looks - len(content['looks']['taken'])} planned looks are left"
    return (
        f"{said}, if planned before the first look: --looks {look['n_labels']},{needed}. This look "
        f"has spent what may be wrong: for another one at these rows, lower --confidence"
    )


def blank_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what blank rows count as, and what would be certified if they did not."""
    blank = found["blank"]
    if blank is None:
        return
    other = blank["otherwise"]
    said = "nothing would be certified"
    if other["share"] is not None:
        said = f"the best {other['share']:.1%} would be, with a precision of at least "
        said += f"{other['lower_bound']:.3f}"
    if blank["count_as"] == "bad":
        yield (
            f"{blank['n']:,} rows without a label count as bad. Left out (--blank ignore), {said}: "
            "true only if they are no worse than the others"
        )
    else:
        yield (
            f"{blank['n']:,} rows without a label are left out: that holds only if they are no "
            f"worse than the others. Counted as bad, {said}"
        )


def dry_run_lines(plan: FilterPlan) -> Iterator[str]:
    """Yield what a filter would read and need; footers alone are known."""
    corpus, stages = plan.corpus, plan.stages
    tasks = corpus.tasks()
    may_tie = "" if stages.has_ties else ", and one over ids if equal values lie at a cut"
    labels = ", and one before them over scores, for --learn" if plan.request.learn else ""
    yield (
        f"{corpus.n_rows:,} rows of {len(corpus.files):,} files, in {len(tasks):,} tasks; two "
        f"passes{labels}{may_tie}"
    )
    yield f"rank: {stages.rank.name}, {_direction(plan)}"
    yield f"stages: {', '.join(_stage_names(plan))}"
    if are_mapped(plan.n_bytes):
        n_bytes = plan.n_mapped_bytes
        yield f"disk here: {n_bytes / 1e6:,.1f} MB, {plan.mapped_bytes_per_row} bytes a row at most"
    else:
        yield f"memory here: {plan.n_bytes / 1e6:,.1f} MB, {plan.bytes_per_row} bytes a row"
    if stages.counted:
        yield f"values of {' and of '.join(stages.counted)} are counted: some 100 bytes each"
    if stages.duplicates.kind == "rouge_l":
        n_bytes = _column_bytes(plan, str(stages.question))
        yield (
            f"near-duplicates: questions are sorted by group in {n_buckets(corpus.n_rows):,} parts "
            f"on disk, {n_bytes / 1e6:,.1f} MB of text and 32 bytes a row. Comparisons are "
            "quadratic in a group's questions"
        )
    request = plan.request
    if request.precision is not None and request.labels is not None:
        found = labels_of(request)
        yield labels_line(found, plan)
        yield from differ_lines(found)
    yield from (f"note: {note}" for note in plan.notes)


def labels_line(labels: Labels, plan: FilterPlan) -> str:
    """Return what labels can certify at best, if all are of rows that reach the last stage."""
    request = plan.request
    n_labels = len(labels) + (len(labels.blank) if request.blank == "bad" else 0)
    if request.learn:
        n_labels = n_labels * 2 // 3  # The others teach.
    found = outlook_of(request, n_labels, n_rows=max(plan.corpus.n_rows, 1))
    assert found is not None
    return outlook_line(found)


def _direction(plan: FilterPlan) -> str:
    if plan.request.learn:
        return f"learned from {', '.join(plan.request.learn)}"
    return "highest first" if plan.stages.rank.higher_is_better else "lowest first"


def _stage_names(plan: FilterPlan) -> Iterator[str]:
    request, stages = plan.request, plan.stages
    yield f"undefined ({stages.undefined})"
    if stages.rules:
        yield f"rules ({', '.join(stages.rules)})"
    yield from (f"keep ({expression})" for expression in stages.keep)
    if stages.duplicates.kind != "none":
        yield f"duplicates ({request.near_duplicates or 'exact'}, inside {stages.group})"
    if request.top_k is not None:
        yield f"top {request.top_k} of {stages.group}"
    if request.quota is not None:
        yield f"quota ({request.quota})"
    for name in ("share", "budget", "precision"):
        if getattr(request, name) is not None:
            per = stages.share_per if name != "precision" else None
            yield f"{name} ({getattr(request, name)}{f' of each {per}' if per else ''})"


def _column_bytes(plan: FilterPlan, name: str) -> int:
    """Return the bytes that a column takes unpacked, by the footers; about that of its text."""
    total = 0
    for file in plan.corpus.files:
        own = file.scores if name in plan.corpus.score_names else file.source
        total += column_bytes(own or file.source, name)
    return total
