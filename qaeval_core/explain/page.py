"""Explain: an explanation as a page and as lines; all text of rows is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from qaeval_core.errors import UnreadableFileError
from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    Part,
    ScoreLine,
    Standing,
    number,
    short,
)
from qaeval_core.pages import charts as svg
from qaeval_core.pages.html import (
    Fields,
    Passage,
    Section,
    Table,
    block_html,
    details,
    escaped,
    figure,
    left_out,
    page,
)
from qaeval_core.profile.column_profile import Profile
from qaeval_core.profile.histogram import counted_bars
from qaeval_core.profile.run_profile import PROFILE, RunProfile, read_profile
from qaeval_core.schema import NOT_SAMPLED
from qaeval_core.storage.path import AnyPath, as_path

MAX_CHARTS = 24
_NOT_SAMPLED = "its context is not in the run's sample (input.sample_groups)"


def explanation_page(explanation: Explanation) -> str:
    """Return the page."""
    name = explanation.id if explanation.id is not None else f"row {explanation.row}"
    sections = [
        _texts(explanation),
        _scores(explanation),
        *(_family(family) for family in explanation.families),
        Section("Environment", [_origin(explanation)]),
    ]
    return page(f"qaeval explain: {name}", [_head(explanation, name)], sections)


def _head(explanation: Explanation, name: str) -> str:
    lines = [
        f"<h1>Row {escaped(name)}</h1>",
        f'<p class="soft">{escaped(explanation.file)}, row {explanation.row} (the first is 0)</p>',
    ]
    remarks = [Passage(note, tone="plain") for note in explanation.notes]
    if explanation.quarantine_reason == NOT_SAMPLED:
        remarks.insert(0, Passage(f"Not scored: {_NOT_SAMPLED}", tone="plain"))
    elif explanation.quarantine_reason is not None:
        message = explanation.quarantine_message
        why = explanation.quarantine_reason + (f": {message}" if message else "")
        remarks.insert(0, Passage(f"Quarantined, not scored: {why}", tone="bad"))
    elif explanation.is_equal:
        found = (
            f"Computed again with the same artifacts: {explanation.n_compared} values equal the "
            f"stored ones (largest difference {number(explanation.max_difference)}, tolerance "
            f"{number(explanation.tolerance)})."
        )
        remarks.insert(0, Passage(found, tone="good"))
    return "\n".join([*lines, *map(block_html, remarks)])


def _texts(explanation: Explanation) -> Section:
    items = []
    for role, value in explanation.texts.items():
        items.append(f"<dt>{escaped(role)}</dt>")
        for text in value if isinstance(value, list) else [value]:
            shown = "null" if text is None else str(text)
            kind = "text" if text else "text soft"
            items.append(f'<dd class="{kind}" dir="auto">{escaped(shown) or "(empty)"}</dd>')
    return Section("Texts", ["<dl>", *items, "</dl>"])


def _scores(explanation: Explanation) -> Section:
    instances = explanation.instances
    scores = Table(
        "Scores of this row, as stored and as computed again",
        ("instance", "column", "stored", "again", "undefined because"),
        [
            (own.name, line.column, _value(line.stored), _again(line), own.reason or "")
            for own in instances
            for line in own.scores
        ],
        numbers=(2, 3),
    )
    signatures = Table(
        "How the scores were made",
        ("instance", "signature"),
        [(own.name, own.signature) for own in instances],
    )
    parts = [block_html(scores), _standings(explanation.standings)]
    return Section("Scores", [*parts, details("Signatures", block_html(signatures))])


def _standings(standings: Sequence[Standing]) -> str:
    """Return a histogram of all rows for each metric, in which this row is marked."""
    if not standings:
        return ""
    drawn = [figure(own.column, _standing(own)) for own in standings[:MAX_CHARTS]]
    charts = f'<div class="charts">{"".join(drawn)}</div>'
    title = "Among all rows of the run: the dashed line is this row"
    return (
        f"<h3>{escaped(title)}</h3>\n{charts}"
        f"{left_out(len(standings) - MAX_CHARTS, 'distributions')}"
    )


def _standing(own: Standing) -> str:
    mark = (own.value, f"this row: {number(own.value)}")
    title = f"Distribution of {own.column} over all rows; this row has {number(own.value)}"
    chart = svg.histogram(
        own.edges, {own.column: own.counts}, title=title, is_share=False, mark=mark
    )
    said = (
        f"{own.n_lower:,} rows lower, {own.n_higher:,} higher, {own.n_beside:,} with this one "
        f"within {number(own.cell_width)}"
    )
    return chart + block_html(Passage(said, tone="soft"))


def _value(value: float | int | str | None) -> str:
    return number(value) if isinstance(value, float) else "" if value is None else str(value)


def _again(line: ScoreLine) -> str:
    return _value(line.now) if line.is_compared else "not computed"


def _family(family: FamilyExplanation) -> Section:
    where = f"artifact <code>{escaped(family.artifact or '')}</code>"
    if family.endpoint is not None:
        where = f"asked at <code>{escaped(family.endpoint)}</code>, and not again for this page"
    lines = [
        f'<p class="soft">model {escaped(family.model)}; {where}</p>',
    ]
    for target in family.targets:
        if len(family.targets) > 1:
            lines.append(f"<h3>{escaped(family.target_role)} {target.target + 1}</h3>")
        if target.reason is not None:
            lines.append(block_html(Passage(f"Undefined: {target.reason}", tone="bad")))
        lines += [_part(part) for part in target.parts]
        if target.statistics:
            rows = [(name, _value(value)) for name, value in target.statistics.items()]
            head = ("statistic", "value")
            lines.append(block_html(Table("Of whole texts", head, rows, numbers=(1,))))
    signature = f"<code>{escaped(family.signature)}</code>"
    title = f"{family.family}: {', '.join(family.instances)}"
    return Section(title, [*lines, details("Signature", signature)])


def _origin(explanation: Explanation) -> str:
    values = [(key, str(value)) for key, value in explanation.environment.items()]
    made = Fields("Where this page was made", [("run", explanation.out), *values])
    return block_html(made)


def _part(part: Part) -> str:
    lines = [f"<h3>{escaped(part.title)}</h3>"] if part.title else []
    lines += [block_html(block) for block in part.blocks]
    if part.folded:
        lines.append(details(part.folded_title, "\n".join(map(block_html, part.folded))))
    return "\n".join(lines)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield what a person wants to see first: texts, scores, the tokens that decide."""
    name = "" if explanation.id is None else f" {explanation.id!r}"
    yield f"row{name}: {explanation.file}, row {explanation.row}"
    for role, value in explanation.texts.items():
        yield f"  {role}: {short(value)}"
    if explanation.quarantine_reason == NOT_SAMPLED:
        yield f"not sampled: {_NOT_SAMPLED}"
    elif explanation.quarantine_reason is not None:
        message = explanation.quarantine_message
        yield f"quarantined: {explanation.quarantine_reason}{f' ({message})' if message else ''}"
    for instance in explanation.instances:
        yield _score_lines(instance)
    for family in explanation.families:
        yield from _family_lines(family)
    yield from explanation.notes
    if explanation.is_equal:
        yield (
            f"computed again: {explanation.n_compared} values equal the stored ones (largest "
            f"difference {explanation.max_difference:.1e}, tolerance {explanation.tolerance:.0e})"
        )


def _score_lines(instance: InstanceExplanation) -> str:
    if instance.reason is not None:
        return f"{instance.name}: undefined, {instance.reason}"
    shown = [
        f"{line.column} {line.stored:.4f}"
        if isinstance(line.stored, float)
        else f"{line.column} {short(line.stored)}"
        for line in instance.scores
        if line.stored is not None
    ]
    return f"{instance.name}: {', '.join(shown) or 'no score'}"


def _family_lines(family: FamilyExplanation) -> Iterator[str]:
    of = f"{family.family} of {', '.join(family.instances)}"
    for target in family.targets:
        which = f", {family.target_role} {target.target + 1}" if len(family.targets) > 1 else ""
        if target.reason is not None:
            yield f"{of}{which}: undefined, {target.reason}"
            continue
        shown = [part.line for part in target.parts]
        if target.statistics:
            known = {name: value for name, value in target.statistics.items() if value is not None}
            shown.append(", ".join(f"{name} {number(value)}" for name, value in known.items()))
        yield from (f"{of}{which}: {line}" for line in shown)


def standings(
    out: AnyPath, instances: Sequence[InstanceExplanation]
) -> tuple[tuple[Standing, ...], list[str]]:
    """Return where the first score of each instance lies, and notes.

    Parameters
    ----------
    out : StoragePath, Path or str
        Of the run; a version that kept no profile has none to stand in.
    instances : sequence of InstanceExplanation
    """
    try:
        profile = read_profile(as_path(out) / PROFILE)
    except UnreadableFileError as error:
        # The row is explained all the same, and the page says what is missing.
        return (), [f"no chart of all rows: {error}"]
    return (() if profile is None else tuple(_find_standings(profile, instances))), []


def _find_standings(
    profile: RunProfile, instances: Sequence[InstanceExplanation]
) -> Iterator[Standing]:
    for instance in instances:
        for line in instance.scores:
            own, value = profile.columns.get(line.column), line.stored
            if own is not None and isinstance(value, int | float) and math.isfinite(value):
                yield standing(line.column, float(value), own)
                break


def standing(column: str, value: float, profile: Profile) -> Standing:
    """Return where a finite value lies among those of a profile."""
    bars = counted_bars([profile])
    counts = profile.counts[0].sum(axis=0, dtype=np.int64)
    (code,) = profile.cells.codes(np.array([value]))
    return Standing(
        column=column,
        value=value,
        edges=tuple(bars.edges),
        counts=tuple(bars.counted[0].counts),
        n_lower=int(counts[:code].sum()),
        n_higher=int(counts[code + 1 : -1].sum()),
        n_beside=int(counts[code]),
        cell_width=profile.cells.width,
    )
