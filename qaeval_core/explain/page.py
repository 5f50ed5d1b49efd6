"""Explain: an explanation as a page and as lines; all text of rows is escaped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    Part,
    Standing,
    TargetParts,
    number,
    short,
)
from qaeval_core.explain.standings import standings_html
from qaeval_core.made import HowMade
from qaeval_core.pages.heading import Tile, heading, link_to, report_links
from qaeval_core.pages.html import (
    Block,
    Fields,
    Markup,
    PageSection,
    Passage,
    Strip,
    Table,
    aligned,
    block_html,
    details,
    escaped,
    fitting,
    folded_parts,
    left_out,
    page,
    within,
)
from qaeval_core.schema import NOT_SAMPLED
from qaeval_core.storage.files import write
from qaeval_core.storage.path import AnyPath, as_path

MAX_BYTES = 1_500_000
# What is open, so that a page stays low on a phone; the rest is folded.
_N_OPEN_PARTS, _N_OPEN_TARGETS, _N_OPEN_TEXTS, _N_OPEN_NOTES = 6, 3, 2, 3
_N_FOLDED = 4  # lines of what is folded, before they are folded themselves
_N_SECTIONS, _N_TILES, _TITLE_CHARS = 8, 8, 120
_NOT_SAMPLED = "its context is not in the run's sample (input.sample_groups)"

# What a family's numbers say, for people who do not know it by its name.
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "lrm": "which context words support the candidate (LRM)",
        "lrm_references": "which reference words support the candidate (LRM)",
        "grg": "which context words the candidate makes likelier (GRG)",
        "grg_references": "which reference words the candidate makes likelier (GRG)",
        "token_match": "which words of candidate and reference are alike",
        "token_match_context": "which words of candidate and context are alike",
        "token_transport": "how far the candidate's words are from the reference's",
        "kpqa_weights": "which words answer the question (KPQA)",
        "sas": "how alike a cross-encoder finds candidate and reference",
        "bi_encoder": "how near candidate and reference are as vectors",
        "answer_span": "which answer a reader finds in the context",
        "naco": "what the language model replied (NACo)",
        "judge": "what the language model judged",
    }
)


@dataclass(frozen=True, slots=True)
class _ExplainRoom:
    """How much of each kind a page may show, so that it stays small."""

    n_parts: int  # of a family
    n_families: int
    n_pieces: int  # of a text that is colored
    n_rows: int  # of a table
    n_chars: int  # of a text
    n_texts: int  # of a list


_ROOMS = (
    _ExplainRoom(60, 60, 20_000, 4_000, 200_000, 100),
    _ExplainRoom(16, 24, 4_000, 1_000, 40_000, 60),
    _ExplainRoom(6, 12, 1_000, 200, 10_000, 20),
    _ExplainRoom(2, 8, 200, 40, 2_000, 5),
)


def explanation_page(
    explanation: Explanation,
    *,
    made: HowMade | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page, of less than 1.5 MB: what has no room is left out, and that is said.

    Parameters
    ----------
    made : HowMade, optional
        Default now.
    links : sequence of (title, address)
        Pages beside it: of the run, and of the rows before and after this one.
    """
    name = within(row_name(explanation), _TITLE_CHARS)

    def make(room: _ExplainRoom) -> str:
        head = _head(explanation, name, made or HowMade.now(""), links, room)
        sections = [
            _texts(explanation, room),
            _scores(explanation, room),
            *_families(explanation, room),
            PageSection("Environment", [_origin(explanation)]),
        ]
        return page(f"qaeval explain: {name}", head, sections)

    return fitting(_ROOMS, make, most_bytes=MAX_BYTES)


def write_pages(explanations: Sequence[Explanation], out: AnyPath, first: Path) -> list[Path]:
    """Write a page for each row, with links to those before and after it; return their paths.

    Parameters
    ----------
    first : Path
        Of the first row; the others lie beside it, with their number in their name.
    """
    made = HowMade.now(as_path(out).name)
    numbered = (first.with_name(f"{first.stem}-{i}{first.suffix}") for i in itertools.count(2))
    paths = [first, *itertools.islice(numbered, len(explanations) - 1)]
    report = report_links(first, {"Report of the run": out})
    for i, (own, path) in enumerate(zip(explanations, paths, strict=True)):
        links = []
        for what, j in (("Previous", i - 1), ("Next", i + 1)):
            address = link_to(path, paths[j]) if 0 <= j < len(paths) else None
            if address is not None:
                name = within(row_name(explanations[j]), _TITLE_CHARS)
                links.append((f"{what} row: {name}", address))
        write(path, explanation_page(own, made=made, links=[*links, *report]).encode())
    return paths


def row_name(explanation: Explanation) -> str:
    """Return what a row is called: its id, or its number."""
    return explanation.id if explanation.id is not None else f"row {explanation.row}"


def _head(
    explanation: Explanation,
    name: str,
    made: HowMade,
    links: Sequence[tuple[str, str]],
    room: _ExplainRoom,
) -> list[str]:
    lines = heading(
        "explain",
        f"Row {name}" if explanation.id is not None else name.capitalize(),
        made,
        tiles=list(_tiles(explanation)),
        data=[f"{explanation.file}, row {explanation.row} (the first is 0)"],
        links=links,
    )
    remarks = []
    if explanation.quarantine_reason == NOT_SAMPLED:
        remarks.append(Passage(f"Not scored: {_NOT_SAMPLED}", tone="plain"))
    elif explanation.quarantine_reason is not None:
        message = explanation.quarantine_message
        why = explanation.quarantine_reason + (f": {message}" if message else "")
        remarks.append(Passage(within(f"Quarantined, not scored: {why}", 2000), tone="bad"))
    elif explanation.is_equal:
        found = (
            f"Computed again with the same artifacts: {explanation.n_compared} values equal the "
            f"stored ones (largest difference {number(explanation.max_difference)}, tolerance "
            f"{number(explanation.tolerance)})."
        )
        remarks.append(Passage(found, tone="good"))
    notes = [
        block_html(Passage(within(note, 600), tone="plain"))
        for note in explanation.notes[: room.n_rows]
    ]
    shown = [*lines, *map(block_html, remarks), *notes[:_N_OPEN_NOTES]]
    more = [*notes[_N_OPEN_NOTES:], left_out(len(explanation.notes) - len(notes), "notes")]
    return [*shown, folded_parts(f"{len(explanation.notes) - _N_OPEN_NOTES:,} more notes", more)]


def _tiles(explanation: Explanation) -> Iterator[Tile]:
    """Yield the main score of each metric, and how many rows have a lower one."""
    places = {own.column: own for own in explanation.standings}
    for instance in explanation.instances[:_N_TILES]:
        line = next(iter(instance.main_first), None)
        name = within(instance.name, _TITLE_CHARS)
        if line is None or line.stored is None:
            yield Tile(name, "none", instance.reason or "", tone="soft")
            continue
        own = places.get(line.column)
        more = "" if own is None else f"above {_percent(own)} of rows"
        yield Tile(name, within(_value(line.stored), _TITLE_CHARS), more)


def _percent(own: Standing) -> str:
    """Return the share of rows that are lower; 0 and 100 % of none and of all others alone."""
    n_all = own.n_lower + own.n_beside + own.n_higher
    percent = 100 * own.n_lower / n_all
    if 0 < percent < 1:
        return "less than 1 %"
    return "more than 99 %" if 99 < percent < 100 else f"{percent:.0f} %"


def _texts(explanation: Explanation, room: _ExplainRoom) -> PageSection:
    items = []
    for role, value in explanation.texts.items():
        items.append(f"<dt>{escaped(role)}</dt>")
        texts = value if isinstance(value, list) else [value]
        shown = [_text(text, room) for text in texts[: room.n_texts]]
        more = [*shown[_N_OPEN_TEXTS:], left_out(len(texts) - len(shown), "texts")]
        items += [f"<dd>{own}</dd>" for own in shown[:_N_OPEN_TEXTS]]
        if len(texts) > _N_OPEN_TEXTS:
            inner = folded_parts(f"{len(texts) - _N_OPEN_TEXTS:,} more", more)
            items.append(f"<dd>{inner}</dd>")
    return PageSection("Texts", ["<dl>", *items, "</dl>"])


def _text(text: object, room: _ExplainRoom) -> str:
    shown = "null" if text is None else str(text)
    kind = "text" if text else "text soft"
    inner = escaped(within(shown, room.n_chars)) or "(empty)"
    return f'<div class="{kind}" dir="auto">{inner}</div>'


def _scores(explanation: Explanation, room: _ExplainRoom) -> PageSection:
    instances = explanation.instances
    lines = [(own, line) for own in instances for line in own.scores]
    small = (line.stored for _, line in lines)
    values = iter(aligned([own for own in small if isinstance(own, float) and abs(own) <= 1]))
    is_partial = explanation.is_equal and not all(line.is_compared for _, line in lines)
    rows = [
        (
            within(own.name, _TITLE_CHARS),
            within(line.column, _TITLE_CHARS),
            # The scale that nearly all have: their decimals are aligned.
            next(values)
            if isinstance(line.stored, float) and abs(line.stored) <= 1
            else within(_value(line.stored), room.n_chars),
            own.reason or ("not computed again" if is_partial and not line.is_compared else ""),
        )
        for own, line in lines
    ]
    has_remarks = any(row[-1] for row in rows)
    head = ("metric", "column", "score", *(["remark"] * has_remarks))
    shown = [row[: len(head)] for row in rows[: room.n_rows]]
    scores = Table("Scores of this row", head, shown, numbers=(2,))
    signed = [(own.name, within(own.signature, room.n_chars)) for own in instances]
    head = ("metric", "signature")
    signatures = Table("How the scores were made", head, signed[: room.n_rows])
    parts = [
        block_html(scores),
        left_out(len(rows) - len(shown), "scores"),
        standings_html(explanation.standings),
        details("Signatures", block_html(signatures)),
    ]
    return PageSection("Scores", parts)


def _value(value: float | int | str | None) -> str:
    return number(value) if isinstance(value, float) else "" if value is None else str(value)


def _families(explanation: Explanation, room: _ExplainRoom) -> Iterator[PageSection]:
    """Yield a section for each of the first families, and one for the others."""
    n_open = _N_OPEN_PARTS
    found: list[tuple[str, list[str]]] = []
    for i, family in enumerate(explanation.families[: room.n_families]):
        # Each of the first ones has one open part before another has more.
        n_others = max(min(len(explanation.families), _N_OPEN_PARTS) - i - 1, 0)
        n_own = min(max(n_open - n_others, 0), _N_OPEN_TARGETS)
        parts, n_shown = _family(family, room, n_own)
        n_open -= n_shown
        found.append((_title(family), parts))
    yield from (PageSection(title, parts) for title, parts in found[:_N_SECTIONS])
    more = [folded_parts(title, parts) for title, parts in found[_N_SECTIONS:]]
    more.append(left_out(len(explanation.families) - len(found), "models"))
    if any(more):
        yield PageSection("More models", more)


def _title(family: FamilyExplanation) -> str:
    names = ", ".join(family.instances)
    title = TITLES.get(family.family, family.family)
    return f"{within(names, _TITLE_CHARS)}: {title}"


def _family(family: FamilyExplanation, room: _ExplainRoom, n_open: int) -> tuple[list[str], int]:
    """Return the HTML of a family, and how many of its parts are open."""
    where = f"artifact <code>{escaped(family.artifact or '')}</code>"
    if family.endpoint is not None:
        where = f"asked at <code>{escaped(family.endpoint)}</code>, and not again for this page"
    lines = [f'<p class="soft">model {escaped(family.model)}; {where}</p>']
    folded: list[str] = []
    n_shown = n_parts = 0
    for i, target in enumerate(family.targets[: room.n_parts]):
        several = len(family.targets) > 1
        name = f"{family.target_role.removesuffix('s')} {target.target + 1}" if several else ""
        blocks = _target(target, room)
        if i < _N_OPEN_TARGETS and (blocks or name):
            lines += [f"<h3>{escaped(name.capitalize())}</h3>"] if name else []
            lines += blocks
        elif blocks:
            folded.append(folded_parts(name, blocks))
        for part in target.parts[: max(room.n_parts - n_parts, 0)]:
            n_parts += 1
            if n_shown < n_open and i < _N_OPEN_TARGETS:
                lines.append(_part(part, room))
                n_shown += 1
            else:
                title = ": ".join(filter(None, [name, part.title or part.line]))
                folded.append(details(within(title, _TITLE_CHARS), _part(part, room)))
    n_all = sum(len(target.parts) for target in family.targets)
    folded.append(left_out(n_all - n_parts, "parts"))
    folded.append(left_out(len(family.targets) - room.n_parts, family.target_role))
    own = [part for part in folded if part]
    lines += own if len(own) <= _N_FOLDED else [folded_parts(f"{len(own):,} more", own)]
    signature = f"<code>{escaped(within(family.signature, room.n_chars))}</code>"
    return [*lines, details("Signature", signature)], n_shown


def _target(target: TargetParts, room: _ExplainRoom) -> list[str]:
    """Return what is said of a whole target: why it is undefined, and its statistics."""
    blocks = []
    if target.reason is not None:
        blocks.append(block_html(Passage(f"Undefined: {target.reason}", tone="bad")))
    if target.statistics:
        rows = [(name, _value(value)) for name, value in target.statistics.items()][: room.n_rows]
        table = Table("Of whole texts", ("statistic", "value"), rows, numbers=(1,))
        blocks.append(block_html(table))
    return blocks


def _origin(explanation: Explanation) -> str:
    values = [
        (name, str(own))
        for key, value in explanation.environment.items()
        for name, own in (value.items() if isinstance(value, dict) else [(key, value)])
    ]
    made = Fields("Where this page was made", [("run", explanation.out), *values])
    return block_html(made)


def _part(part: Part, room: _ExplainRoom) -> str:
    lines = [f"<h3>{escaped(part.title)}</h3>"] if part.title else []
    lines += [_block(block, room) for block in part.blocks]
    if part.folded:
        folded = "\n".join(_block(block, room) for block in part.folded)
        lines.append(details(part.folded_title, folded))
    return "\n".join(lines)


def _block(block: Block, room: _ExplainRoom) -> str:
    """Return a block of what has room, and what is left out of it."""
    match block:
        case Strip():
            # A piece has whatever a tokenizer skipped before its token.
            sizes = itertools.accumulate(map(len, block.pieces))
            n = min(room.n_pieces, sum(size <= room.n_chars for size in sizes))
            own = replace(block, pieces=block.pieces[:n], values=block.values[:n])
            return block_html(own) + left_out(len(block.pieces) - n, "tokens")
        case Table():
            rows = [[_cell(cell, room) for cell in row] for row in block.rows[: room.n_rows]]
            more = left_out(len(block.rows) - len(rows), "rows")
            return block_html(replace(block, rows=rows)) + more
        case Fields():
            named = [(name, within(value, room.n_chars)) for name, value in block.values]
            return block_html(replace(block, values=named))
        case Passage():
            return block_html(replace(block, text=within(block.text, room.n_chars)))


def _cell(cell: str, room: _ExplainRoom) -> str:
    return cell if isinstance(cell, Markup) else within(cell, room.n_chars)


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
