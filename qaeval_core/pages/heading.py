"""Heading: what stands at the top of a page: its name, when and how it was made, and tiles."""

from __future__ import annotations

import itertools
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from qaeval_core.made import HowMade
from qaeval_core.pages.html import Tone, escaped, within
from qaeval_core.profile.run_profile import PAGE
from qaeval_core.storage.path import AnyPath, as_path

_MOST_CHARS, _MOST_NAME_CHARS = 600, 120
_N_NAMED, _N_LINKS = 3, 8


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that is seen first; ``more`` is a line below it."""

    label: str
    value: str
    more: str = ""
    tone: Tone = "plain"


def heading(
    kind: str,
    title: str,
    made: HowMade,
    *,
    tiles: Sequence[Tile] = (),
    data: Sequence[str] = (),
    links: Sequence[tuple[str, str]] = (),
    tone: Tone = "plain",
) -> list[str]:
    """Return the HTML of a heading.

    Parameters
    ----------
    kind : str
        What the page is.
    title : str
        What it says, in a few words.
    data : sequence of str
        Of what it was made: files, or a run.
    links : sequence of (title, address)
        Pages beside it, by addresses that are relative to it.
    tone : str
        Of the title.
    """
    facts = [
        ("Made", made.date),
        ("Data", _listed(data)),
        ("Command", made.command),
        ("Version", f"qaeval {made.version}" if made.version else ""),
    ]
    rows = "".join(
        f"<dt>{name}</dt><dd>{_fact(name, value)}</dd>" for name, value in facts if value
    )
    kind_shown = escaped(
        " · ".join(filter(None, [f"qaeval {kind}", within(made.name, _MOST_NAME_CHARS)]))
    )
    own = [
        f'<p class="kind">{kind_shown}</p>',
        f'<h1 class="{tone}">{escaped(title)}</h1>',
        f'<dl class="facts">{rows}</dl>' if rows else "",
        _links(links),
    ]
    if tiles:
        own.append(f'<div class="tiles">{"".join(map(_tile, tiles))}</div>')
    return own


def _listed(names: Sequence[str]) -> str:
    shown = [within(name, 200) for name in names[:_N_NAMED]]
    more = len(names) - len(shown)
    return ", ".join([*shown, *([f"{more:,} more"] if more > 0 else [])])


def _fact(name: str, value: str) -> str:
    shown = escaped(within(value, _MOST_CHARS))
    return f"<code>{shown}</code>" if name == "Command" else shown


def _links(links: Sequence[tuple[str, str]]) -> str:
    shown = "".join(
        f'<li><a href="{escaped(where)}">{escaped(own)}</a></li>' for own, where in links
    )
    return f'<nav aria-label="Other pages"><ul>{shown}</ul></nav>' if shown else ""


def _tile(tile: Tile) -> str:
    more = f'<span class="soft">{escaped(tile.more)}</span>' if tile.more else ""
    return (
        f'<div class="tile"><span class="soft">{escaped(tile.label)}</span>'
        f'<b class="{tile.tone}">{escaped(tile.value)}</b>{more}</div>'
    )


def report_links(page: AnyPath, outs: Mapping[str, AnyPath]) -> list[tuple[str, str]]:
    """Return links to the reports of runs by their names; a table without a report has none."""
    found = []
    for name, out in itertools.islice(outs.items(), _N_LINKS):
        report = as_path(out) / PAGE
        address = link_to(page, report)
        if address is not None and report.is_file():
            found.append((name, address))
    return found


def link_to(page: AnyPath, other: AnyPath) -> str | None:
    """Return the address of another page from a page's own; None where they have no folder alike.

    Examples
    --------
    >>> link_to("kept/filter.html", "out/report.html")
    '../out/report.html'
    >>> link_to("s3://a/kept/filter.html", "out/report.html") is None
    True
    """
    here, there = as_path(page), as_path(other)
    if (here.local is None) != (there.local is None):
        return None
    if here.local is not None and there.local is not None:
        own = os.path.relpath(there.local.absolute(), here.local.absolute().parent)
        return quote(posixpath.join(*own.split(os.sep)))
    first, second = here.place.split("/"), there.place.split("/")
    if first[:3] != second[:3]:
        return None
    return quote(posixpath.relpath("/".join(second[3:]) or ".", "/".join(first[3:-1]) or "."))
