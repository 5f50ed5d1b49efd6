"""Compare: every test of one run against another, and what of it is an alert.

An alert needs both an effect of at least its tolerance and an adjusted p-value of at most alpha.
Rows and quarantined rows are counted, not sampled: there the effect is enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields

import pyarrow as pa

from qaeval_core.audit.drift import Pair, Test, moments_of, tail_factor
from qaeval_core.audit.p_values import adjusted
from qaeval_core.audit.plugin_statistics import plugin_tests
from qaeval_core.audit.settings import AuditSettings
from qaeval_core.audit.unusual_runs import RunMeans, unusual
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.profile.slices import WHOLE, Slice

# The effect alone decides.
_COUNTED = ("rows", "quarantined")
# Shares of rows that are counted to explain others.
_NOT_COMPARED = ("not_sampled",)
_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One line of ``audit.parquet``; None where there is no such number.

    Attributes
    ----------
    status : str
        alert, no_alert; not_excluded: no alert, but the interval reaches past the tolerance;
        too_few clusters; no_values; shown: there is no tolerance; no_test: means side by side.
    """

    column: str
    slice: str
    statistic: str
    reference: float | None
    current: float | None
    effect: float | None
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    tolerance: float | None
    alert: bool
    status: str


SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("column", "slice", "statistic")),
        *(pa.field(own.name, pa.float64()) for own in fields(Row)[3:11]),
        pa.field("alert", pa.bool_()),
        pa.field("status", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that must be looked at.

    Attributes
    ----------
    kind : str
        The statistic that moved, or column_missing, slice_missing, signature_changed,
        cells_changed, unusual_run, paired, not_reproducible.
    text : str
        A sentence.
    """

    kind: str
    column: str
    slice: str
    text: str


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What a comparison found.

    Attributes
    ----------
    alerts : list of Alert
        What has no size first, then columns and slices by how many times its tolerance the largest
        effect is: the slice that spoils the whole comes before the whole.
    rows : list of Row
        Every test; alerts first.
    notes : list of str
        What a reader should know.
    is_too_few : bool
        Whether there are too few clusters for a verdict of all rows.
    """

    alerts: list[Alert] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_too_few: bool = False

    def table(self) -> pa.Table:
        """Return the tests as a table of the fields of `Row`."""
        columns = list(zip(*map(astuple, self.rows), strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(own, one.type) for own, one in zip(columns, SCHEMA, strict=True)]
        return pa.table(arrays, schema=SCHEMA)

    def alert_lines(self) -> list[str]:
        """Return the alerts as people read them: a line for each column.

        It has the sentences of the slice that moved most, and names what moved besides.
        """
        found: dict[str, list[Alert]] = {}
        for i, alert in enumerate(self.alerts):
            found.setdefault(alert.column or f"\x00{i}", []).append(alert)
        tested = {row.statistic for row in self.rows}
        return [_line(own, tested) for own in found.values()]


def _line(alerts: Sequence[Alert], tested: Collection[str]) -> str:
    texts, more = [], dict[str, list[str]]()
    for own in alerts:
        if own.slice == alerts[0].slice or own.kind not in tested:
            texts.append(own.text)
        else:
            more.setdefault(own.slice or "all rows", []).append(own.kind)
    named = [f"{where} ({', '.join(kinds)})" for where, kinds in more.items()]
    if len(named) > _MAX_NAMED:
        named[_MAX_NAMED:] = [f"{len(named) - _MAX_NAMED:,} more slices"]
    return "; ".join([*texts, *([f"also in {', '.join(named)}"] if named else [])])


def compare(
    reference: RunProfile,
    current: RunProfile,
    settings: AuditSettings | None = None,
    *,
    history: Sequence[RunMeans] = (),
    n_rows_before: int | None = None,
) -> AuditResult:
    """Compare two runs; degenerate ones have a result, too.

    Parameters
    ----------
    reference, current : RunProfile
    settings : AuditSettings, optional
    history : sequence of RunMeans
        Of earlier runs, see `unusual_runs.run_means`.
    n_rows_before : int, optional
        Rows of the last run, which those of the current one are compared with; default those of
        the reference. A corpus that grows is not the reference's size for long.
    """
    settings = settings or AuditSettings()
    comparison = _Comparison(reference, current, settings, n_rows_before)
    comparison.columns()
    comparison.slices()
    comparison.verdicts()
    comparison.history(history)
    return comparison.result()


class _Comparison:
    def __init__(
        self,
        reference: RunProfile,
        current: RunProfile,
        settings: AuditSettings,
        n_rows_before: int | None,
    ) -> None:
        self._settings, self._n_rows_before = settings, n_rows_before
        self._pair = Pair.of(reference, current, n_draws=settings.n_draws, seed=settings.seed)
        self._runs = (reference, current)
        self._clusters = [run.clusters.counts() for run in self._runs]
        self._names: list[str] = []  # columns that can be compared
        self._tests: list[Test] = []
        self._alerts: list[Alert] = []
        self._sizes: dict[tuple[str, str], float] = {}  # of alerts of a column and slice
        self._rows: list[Row] = []
        self._notes: list[str] = []

    def columns(self) -> None:
        """Find the columns that can be compared, and say what of the others."""
        before, now = (run.columns for run in self._runs)
        for name in before:
            if name not in now:
                self._alert("column_missing", name, "", f"{name} no longer exists")
        for name, own in now.items():
            if name not in before:
                self._notes.append(f"{name} is new, so there is nothing to compare it with")
            elif before[name].signature != own.signature:
                text = f"{name} was scored with other settings: {_means(before[name], own)}"
                self._side_by_side(name, "signature_changed", text)
            elif before[name].cells != own.cells:
                text = f"{name} was counted in other cells: {_means(before[name], own)}"
                self._side_by_side(name, "cells_changed", text)
            else:
                self._names.append(name)

    def _side_by_side(self, name: str, kind: str, text: str) -> None:
        self._alert(kind, name, "", text)
        before, now = (moments_of(run.columns[name], 0)[0] for run in self._runs)
        blank = Test(name, "", "mean", before, now, float("nan"))
        self._rows.append(_row(blank, float("nan"), None, "no_test"))

    def slices(self) -> None:
        """Test rates and columns in all slices that both runs have."""
        before, now = (run.rates.keys() for run in self._runs)
        for name in sorted(before ^ now):
            text = f"only one of the two runs has {name}, so it is not compared"
            self._notes.append(text)
        places = [{own: code for code, own in enumerate(run.slices.all)} for run in self._runs]
        for own in dict.fromkeys([*places[0], *places[1]]):
            codes = (places[0].get(own, -1), places[1].get(own, -1))
            n_rows = [
                int(run.rates["rows"][0, code].sum()) if code >= 0 else 0
                for run, code in zip(self._runs, codes, strict=True)
            ]
            if own == WHOLE or all(n_rows):
                self._test(own, codes, n_rows)
            elif n_rows[0]:
                self._missing(own, codes[0], n_rows[0])
            elif n_rows[1]:
                self._notes.append(f"{own} is new, so there is nothing to compare it with")

    def _test(self, own: Slice, codes: tuple[int, int], n_rows: Sequence[int]) -> None:
        if own.is_other and len({tuple(run.slices.values[own.by]) for run in self._runs}) > 1:
            self._notes.append(f"{own} holds other values in the two runs, and is not compared")
            return
        n_clusters = [int(counts[code]) for counts, code in zip(self._clusters, codes, strict=True)]
        is_few = min(n_clusters) < self._settings.min_clusters
        factor = tail_factor(*n_clusters)
        label = str(own)
        if own == WHOLE:
            n_before, n_now = map(float, n_rows)
            if self._n_rows_before is not None:
                n_before = float(self._n_rows_before)
            effect = n_now / n_before - 1 if n_before else float("nan")
            self._tests.append(Test("", label, "rows", n_before, n_now, effect))
        before, now = (run.rates for run in self._runs)
        for name in before:
            statistic, _, column = name.partition(".")
            is_whole_alone = statistic == "quarantined" and own != WHOLE
            if name not in now or name == "rows" or statistic in _NOT_COMPARED or is_whole_alone:
                continue
            counts = (before[name][:, codes[0]], now[name][:, codes[1]])
            self._tests.append(
                self._pair.rate(column, label, statistic, counts, is_few=is_few, factor=factor)
            )
        for name in self._names:
            self._tests += self._pair.column(name, codes, label, is_few=is_few, factor=factor)
            blank = Test(name, label, "", math.nan, math.nan, math.nan, is_few=is_few)
            self._tests += plugin_tests(self._pair, name, codes, blank)

    def _missing(self, own: Slice, code: int, n_rows: int) -> None:
        text = f"{own} had {n_rows:,} rows, and has none now"
        if self._clusters[0][code] < self._settings.min_clusters:
            self._notes.append(text)
        else:
            self._alert("slice_missing", "", str(own), text)

    def verdicts(self) -> None:
        """Tell alerts from what is none."""
        for test, p_adjusted in zip(self._tests, adjusted(self._tests), strict=True):
            tolerance = self._settings.tolerance(test.column, test.statistic)
            status = self._status(test, p_adjusted, tolerance)
            self._rows.append(_row(test, p_adjusted, tolerance, status))
            if status == "alert":
                text = _sentence(test, p_adjusted) + self._why(test)
                self._alert(test.statistic, test.column, test.slice, text)
                size = abs(test.effect) / tolerance if tolerance else math.inf
                place = (test.column, test.slice)
                self._sizes[place] = max(size, self._sizes.get(place, 0.0))

    def _status(self, test: Test, p_adjusted: float, tolerance: float | None) -> str:
        if tolerance is None:
            return "shown"
        if math.isnan(test.effect):
            return "no_values"
        is_effect = abs(test.effect) >= tolerance
        if test.statistic in _COUNTED:
            return "alert" if is_effect and test.effect else "no_alert"
        if test.is_few:
            return "too_few"
        if is_effect and p_adjusted <= self._settings.alpha:
            return "alert"
        return "not_excluded" if max(-test.low, test.high) >= tolerance else "no_alert"

    def _why(self, test: Test) -> str:
        """Return the reason whose share of rows rose most, for undefined values that did."""
        if test.statistic != "undefined" or test.effect <= 0:
            return ""
        shares: list[dict[str, float]] = []
        for run in self._runs:
            code = [str(own) for own in run.slices.all].index(test.slice)
            profile = run.columns[test.column]
            n = max(int(profile.counts[code].sum()), 1)
            shares.append({why: int(own[code].sum()) / n for why, own in profile.reasons.items()})
        rises = {why: share - shares[0].get(why, 0.0) for why, share in shares[1].items()}
        most = max(rises, key=lambda why: (rises[why], why), default="")
        return f": {most}" if most and rises[most] > 0 else ""

    def history(self, history: Sequence[RunMeans]) -> None:
        """Tell whether the current run is unlike the earlier ones."""
        found = unusual(history, self._runs[1], self._settings)
        self._alerts += [
            Alert("unusual_run", one.column, "", one.text) for one in found if one.is_alert
        ]

    def _alert(self, kind: str, column: str, label: str, text: str) -> None:
        self._alerts.append(Alert(kind, column, label, text))

    def result(self) -> AuditResult:
        """Return what was found, alerts first."""
        rows = sorted(self._rows, key=lambda row: not row.alert)
        alerts = sorted(
            self._alerts, key=lambda own: -self._sizes.get((own.column, own.slice), math.inf)
        )
        few = min(int(counts[0]) if len(counts) else 0 for counts in self._clusters)
        return AuditResult(alerts, rows, self._notes, few < self._settings.min_clusters)


def _row(test: Test, p_adjusted: float, tolerance: float | None, status: str) -> Row:
    return Row(
        column=test.column,
        slice=test.slice,
        statistic=test.statistic,
        reference=_known(test.reference),
        current=_known(test.current),
        effect=_known(test.effect),
        low=_known(test.low),
        high=_known(test.high),
        p=_known(test.p),
        p_adjusted=_known(p_adjusted),
        tolerance=tolerance,
        alert=status == "alert",
        status=status,
    )


def _known(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _means(before: Profile, now: Profile) -> str:
    means = [moments_of(own, 0)[0] for own in (before, now)]
    return f"its mean was {means[0]:.4g} and is {means[1]:.4g}; they are not comparable"


_MEASURES: Mapping[str, str] = {
    "mean": "the mean of {column}{where} {moved} from {reference:.4g} to {current:.4g}",
    "wasserstein": "the values of {column}{where} moved by {effect:.2f} standard deviations",
    "psi": "the distribution of {column}{where} has a PSI of {effect:.2f}",
    "undefined": (
        "undefined values of {column}{where} {moved} from {reference:.1%} to {current:.1%}"
    ),
    "rows": "rows {moved} from {reference:,.0f} to {current:,.0f}",
}
_OF_PLUGIN = "{statistic} of {column}{where} is {effect:.3g}"
_SHARE = "{statistic} rows{of}{where} {moved} from {reference:.1%} to {current:.1%}"


def _sentence(test: Test, p_adjusted: float) -> str:
    usual = _SHARE if math.isnan(test.given_p) else _OF_PLUGIN
    text = _MEASURES.get(test.statistic, usual).format(
        column=test.column,
        statistic=test.statistic,
        of=f" of {test.column}" if test.column else "",
        where=f" in {test.slice}" if test.slice else "",
        moved="rose" if test.effect > 0 else "fell",
        reference=test.reference,
        current=test.current,
        effect=test.effect,
    )
    return text if math.isnan(p_adjusted) else f"{text} (p {p_adjusted:.3f})"
