"""HTML: pages that need nothing else: no font, no resource, and no script but a tool's own.

All text of rows is escaped here, and a policy in the page forbids whatever might still load. A page
is a heading and sections, a section is made of blocks of four kinds, charts and cards. However much
there is, a page stays low: what is long scrolls in its own part.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from qaeval_core.terminal import visible

_Room = TypeVar("_Room")

MAX_CHARS = 400  # of a text of a row
NO_PIECE = "·"  # a token that is a part of the character before
# Stronger color would make the text on it hard to read in one of the two schemes.
_MAX_ALPHA = 0.55
_MIN_ALPHA = 0.04
_MIN_LONG = 60  # characters

# Colors of tokens are blue and orange: told apart by nearly everybody, readable in both schemes.
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #ffffff; --soft: #5c5c66;
  --line: #d5d5dc; --card: #f6f6f9; --up: 41 98 196; --down: 214 108 20; --bad: #a4161a;
  --good: #1b6e3c; --link: #1d4fa8; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --paper: #17171a; --soft: #a9a9b4;
  --line: #3a3a42; --card: #202026; --up: 96 152 255; --down: 255 150 66; --bad: #ff8a80;
  --good: #7fd69b; --link: #8fb6ff; } }
body { color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 72rem;
  padding: 1.5rem; font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .2rem 0 .6rem; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid var(--line);
  padding-bottom: .2rem; } h3 { font-size: 1rem; }
a { color: var(--link); } .kind { color: var(--soft); margin: 0; }
.soft, caption, dt { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
.text, .strip { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 30rem;
  overflow-y: auto; }
.strip span { border-radius: .2em; } .up { background: rgb(var(--up) / var(--a)); }
.down { background: rgb(var(--down) / var(--a)); text-decoration: underline dotted; }
mark { color: inherit; background: rgb(var(--up) / .25); border-radius: .2em; }
.heat { display: block; margin: -.15rem -.5rem; padding: .15rem .5rem; text-align: right;
  background: rgb(var(--up) / var(--a)); font-variant-numeric: tabular-nums; }
.heat.best { outline: 2px solid var(--ink); outline-offset: -2px; }
.heat.last { text-decoration: underline; }
table:has(.heat) thead th + th { writing-mode: vertical-rl; }
.wide { overflow: auto; container-type: inline-size; max-height: 36rem; }
table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; padding: .2rem 0; }
caption span { display: inline-block; position: sticky; left: 0; max-width: 100cqi;
  overflow-wrap: anywhere; }
td.long { min-width: 14rem; overflow-wrap: anywhere; }
th, td { border: 1px solid var(--line); padding: .15rem .5rem; text-align: left;
  vertical-align: top; white-space: pre-wrap; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; } dd { margin: 0 0 .5rem 0; }
code, h1, h2, h3, p, li, dd, summary, figcaption { overflow-wrap: anywhere; }
summary { cursor: pointer; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .1rem 1rem;
  margin: .6rem 0; font-size: .9rem; } .facts dd { margin: 0; } .facts code { font-size: .95em; }
.tiles { display: grid; gap: .75rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 8.5rem), 1fr)); }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .5rem .8rem; min-width: 0; overflow-wrap: anywhere; }
.tile b { display: block; font-size: 1.4rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { display: block; font-size: .9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0;
  margin: .4rem 0; } nav li { min-width: 0; }
.charts, .cards { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
.cards { gap: 1rem; align-items: start; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem 1rem; min-width: 0; } .card h3 { margin: 0; overflow-wrap: anywhere; }
.card .mean { font-size: 1.4rem; margin: .1rem 0; font-variant-numeric: tabular-nums; }
.card .mean span { font-size: 1rem; }
.row { margin: .8rem 0; } .row dl, .row p { margin: .2rem 0; }
.ends { display: grid; gap: 0 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
.ends > * { min-width: 0; }
.charts > *, figure { min-width: 0; margin: 0; } figcaption { font-weight: 600; }
svg { display: block; height: auto; font-size: 11px; fill: var(--ink); }
svg.chart { width: 100%; max-width: 30rem; } svg.spark { width: 6rem; }
.broad svg.chart { max-width: 60rem; } .narrow { display: none; }
@media (max-width: 48rem) { .broad { display: none; } .narrow { display: block; } }
.a { fill: rgb(var(--up)); } .b { fill: rgb(var(--down)); }
.legend { margin: 0; font-size: .85rem; }
.entry { display: inline-block; margin-right: 1rem; max-width: 100%; overflow-wrap: anywhere; }
.key { display: inline-block; width: 1.1em; height: .7em; }
.key.a { background: rgb(var(--up)); } .key.b { background: rgb(var(--down)); }
.key.band { background: rgb(var(--up) / .15); }
.key.line, .key.level, .key.mark { background: none; height: 0; vertical-align: middle;
  border-top: 2px solid rgb(var(--up)); } .key.dotted { border-top-style: dotted; }
.key.level { border-top: 2px dashed rgb(var(--down)); }
.key.mark { border-top-color: var(--ink); } .mark { stroke: var(--ink); stroke-width: 1.5; }
.line { fill: none; stroke: rgb(var(--up)); stroke-width: 2; } .dotted { stroke-dasharray: 2 3; }
.grid { stroke: var(--line); } .band { fill: rgb(var(--up) / .15); }
.level { stroke: rgb(var(--down)); stroke-dasharray: 4 4; } svg .soft { fill: var(--soft); }
.line.b { stroke: rgb(var(--down)); } .cell { stroke: var(--line); }
.box { fill: rgb(var(--up) / .3); stroke: rgb(var(--up)); }
.funnel { margin: .5rem 0; padding: 0; list-style: none; } .funnel li { margin: .35rem 0; }
.bar { display: block; height: .7rem; border-radius: .2rem; background: rgb(var(--up));
  width: calc(var(--share) * 100%); min-width: 1px; }
@media print { body { max-width: none; padding: 0; } .wide, .text, .strip { max-height: none; }
  nav { display: none; } .card, .tile, figure, tr { break-inside: avoid; } }
"""


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{head}
{contents}{sections}
</main>
{script}</body>
</html>
"""


Tone: TypeAlias = Literal["text", "plain", "soft", "good", "bad"]


@dataclass(frozen=True, slots=True)
class Strip:
    """A text whose tokens are colored by a value, one value per piece; ``unit`` is of values."""

    label: str
    pieces: Sequence[str]
    values: Sequence[float]
    unit: str = ""


class Markup(str):
    """HTML that this program made: what is not escaped where it stands in a cell."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row names the row, ``numbers`` are columns of numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """Named values."""

    caption: str
    values: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of somebody else's, such as a reply, under a label; or a remark, by its tone."""

    text: str
    label: str = ""
    tone: Tone = "text"


Block: TypeAlias = Strip | Table | Fields | Passage


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of a page, which its contents name; ``parts`` are HTML."""

    title: str
    parts: Sequence[str]


def page(
    title: str, head: Sequence[str], sections: Sequence[PageSection] = (), *, script: str = ""
) -> str:
    """Return a page.

    Parameters
    ----------
    title : str
        What the browser calls it.
    head : sequence of str
        HTML: its heading, and what must be seen first.
    sections : sequence of PageSection
        What follows; contents name them where they are more than two.
    script : str
        The one script that a page may run which is a tool.
    """
    policy, element = "default-src 'none'; style-src 'unsafe-inline'", ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy, element = f"{policy}; script-src 'sha256-{digest}'", f"<script>{script}</script>\n"
    named = _named(sections)
    links = "".join(f'<li><a href="#{key}">{escaped(own.title)}</a></li>' for key, own in named)
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n' if len(named) > 2 else ""
    return _PAGE.format(
        title=escaped(title),
        style=STYLE,
        head="\n".join(filter(None, head)),
        contents=contents,
        sections="\n".join(_section(key, own) for key, own in named),
        policy=policy,
        script=element,
    )


def _named(sections: Sequence[PageSection]) -> list[tuple[str, PageSection]]:
    """Return sections with keys by which a link finds them, each one's own."""
    found: dict[str, PageSection] = {}
    for own in sections:
        key = first = re.sub(r"[^a-z0-9]+", "-", own.title.lower()).strip("-") or "part"
        for n in itertools.count(2):
            if key not in found:
                break
            key = f"{first}-{n}"
        found[key] = own
    return list(found.items())


def _section(key: str, own: PageSection) -> str:
    parts = filter(None, own.parts)
    return "\n".join(
        [f'<section id="{key}">', f"<h2>{escaped(own.title)}</h2>", *parts, "</section>"]
    )


def fitting(rooms: Sequence[_Room], make: Callable[[_Room], str], *, most_bytes: int) -> str:
    """Return the page of the first room whose page is small enough, or that of the last one.

    Parameters
    ----------
    rooms : sequence
        How much of each kind a page may show, the most first.
    make : callable
        Returns the page of a room.

    Examples
    --------
    >>> fitting([9, 5, 1], lambda n: "x" * n, most_bytes=6)
    'xxxxx'
    """
    for room in rooms:
        text = make(room)
        if len(text.encode()) < most_bytes:
            break
    return text


def folded_parts(title: str, parts: Sequence[str]) -> str:
    """Return parts that are shown when somebody opens their title; nothing where all are empty."""
    inner = "\n".join(filter(None, parts))
    return details(title, inner) if inner else ""


def details(title: str, shown: str) -> str:
    """Return HTML that is shown when somebody opens its title."""
    return f"<details><summary>{escaped(title)}</summary>{shown}</details>"


def figure(title: str, shown: str) -> str:
    """Return HTML, such as a chart, under its title."""
    return f"<figure><figcaption>{escaped(title)}</figcaption>{shown}</figure>"


def left_out(n: int, what: str) -> str:
    """Return the remark that some things have no room; nothing where all have."""
    if n <= 0:
        return ""
    said = f"{n:,} more {what} are left out: the page would be too large."
    return block_html(Passage(said, tone="soft"))


def block_html(block: Block) -> str:
    """Return the HTML of one block."""
    match block:
        case Strip():
            return _strip(block)
        case Fields():
            return _table(Table(block.caption, ("what", "value"), block.values))
        case Table():
            return _table(block)
        case Passage():
            return _passage(block)


def _strip(strip: Strip) -> str:
    """Return a text whose tokens are colored by a value: blue above 0, orange below."""
    largest = max((abs(value) for value in strip.values), default=0.0) or 1.0
    spans = []
    for piece, value in zip(strip.pieces, strip.values, strict=True):
        alpha = abs(value) / largest * _MAX_ALPHA
        title = escaped(f"{value:+.4g} {strip.unit}".strip())
        color = f'class="{"up" if value > 0 else "down"}" style="--a:{alpha:.2f}" '
        is_plain = alpha < _MIN_ALPHA
        spans.append(f'<span {"" if is_plain else color}title="{title}">')
        spans.append(f"{escaped(piece or NO_PIECE)}</span>")
    label = block_html(Passage(strip.label, tone="soft"))
    return f'{label}\n<p class="strip" dir="auto">{"".join(spans)}</p>'


def _table(table: Table) -> str:
    lines = [
        '<div class="wide">',
        "<table>",
        f"<caption><span>{escaped(table.caption)}</span></caption>",
    ]
    names = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.head)
    lines.append(f"<thead><tr>{names}</tr></thead>")
    lines.append("<tbody>")
    for name, *values in table.rows:
        cells = [f'<th scope="row" dir="auto">{escaped(name)}</th>']
        for i, cell in enumerate(values, start=1):
            inner = cell if isinstance(cell, Markup) else escaped(cell)
            cells.append(f"<td{_kind(cell, is_number=i in table.numbers)}>{inner}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def _kind(cell: str, *, is_number: bool) -> str:
    """Return the attributes of a cell; a long text has room for more than a word a line."""
    if is_number:
        return ' class="number"'
    is_long = len(cell) > _MIN_LONG and not isinstance(cell, Markup)
    return ' class="long" dir="auto"' if is_long else ' dir="auto"'


def _passage(passage: Passage) -> str:
    shown = escaped(passage.text)
    if passage.tone == "plain":
        return f"<p>{shown}</p>"
    if passage.tone != "text":
        return f'<p class="{passage.tone}">{shown}</p>'
    label = f'<p class="soft">{escaped(passage.label)}</p>\n' if passage.label else ""
    return f'{label}<p class="text" dir="auto">{shown or "(empty)"}</p>'


def shown(value: float | int | None) -> str:
    """Return a number as tables show it; nothing where there is none.

    Examples
    --------
    >>> shown(0.123456), shown(12_345), shown(None)
    ('0.1235', '12,345', '')
    """
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def aligned(values: Sequence[float | int | None], *, n_least: int = 0) -> list[str]:
    """Return the numbers of a column with the same decimals; nothing where there is none.

    They have four digits of the largest, and at least some decimals. What would be shown as zero
    and is none keeps four digits of its own.

    Examples
    --------
    >>> aligned([0.5, 12.25, None, 0.0001]), aligned([1200, 3])
    (['0.50', '12.25', '', '0.0001'], ['1,200', '3'])
    """
    known = [own for own in values if own is not None and math.isfinite(own)]
    if all(isinstance(own, int) for own in known):
        return [shown(own) for own in values]
    largest = max(map(abs, known), default=0.0)
    n = min(max(3 - math.floor(math.log10(largest)), n_least), 6) if largest else n_least
    return [
        shown(own) if own is None or (own and round(own, n) == 0) else f"{own:,.{n}f}"
        for own in values
    ]


def within(text: str, n_chars: int) -> str:
    """Return a text of at most some characters.

    Examples
    --------
    >>> within("signature", 5)
    'sign…'
    """
    return text if len(text) <= n_chars else f"{text[: n_chars - 1]}…"


def cut(value: object) -> str:
    r"""Return a text of a row, or its list of texts, as pages show it: at most 400 characters.

    Examples
    --------
    >>> cut(["one", "two"]), cut(None), len(cut("long" * 200))
    ('one\ntwo', '', 400)
    """
    text = "\n".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return within(text, MAX_CHARS)


def escaped(text: str) -> str:
    """Return a text as HTML shows it, also inside of attributes; controls as their pictures.

    Examples
    --------
    >>> escaped('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text, keep="\n\t"), quote=True)
