"""Label page: one file on which people label the rows of a sheet, by keys.

It shows no score and no rank, loads nothing, and keeps labels in the browser until they are
downloaded as the table that ``--labels`` reads. It is a tool and no report: it needs its script,
and its policy allows that one alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from qaeval_core.filter.labels import LABEL_COLUMN, cell
from qaeval_core.pages.html import escaped, page, within
from qaeval_core.signature import hash_text
from qaeval_core.terminal import visible

# Of a page, and of one of its texts: rows that have no room are on the sheet alone.
MAX_BYTES = 1_900_000
MAX_CHARS = 4_000
_BEFORE_MARK = 1_000  # characters of a long text before what is marked first
# Texts that are looked for in the context, the one that says most first.
_MARKED = ("answer", "candidate", "references")
_BUTTONS = (
    ("good", "Good", "1"), ("bad", "Bad", "0"), ("skip", "Skip", "s"), ("undo", "Undo", "u"),
)  # fmt: skip


def label_page(rows: Sequence[Mapping[str, object]], *, sheet: str, labels: str) -> str:
    """Return the page of a sheet.

    Parameters
    ----------
    rows : sequence of mappings
        ``id`` and the texts that a judge must see, by role.
    sheet, labels : str
        File names of the sheet, and of the table that the page hands out.
    """
    shown, n_bytes = [], 0
    for row in rows:
        own = {"id": cell(row["id"]), "texts": list(_texts(row))}
        n_bytes += len(_data(own).encode())
        if n_bytes > MAX_BYTES:
            break
        shown.append(own)
    key = hash_text(json.dumps(shown))
    data = _data({"key": key, "labels": labels, "rows": shown})
    script = resources.files("qaeval_core.filter").joinpath("label_page.js").read_text("utf-8")
    body = "\n".join(_body(len(shown), len(rows), sheet=sheet, labels=labels))
    content = f'<script type="application/json" id="rows">{data}</script>'
    return page(f"Label {sheet}", [body, content], script=script)


def _body(n_shown: int, n_rows: int, *, sheet: str, labels: str) -> Iterator[str]:
    yield f"<h1>Label {escaped(sheet)}</h1>"
    yield '<noscript><p class="bad">This page needs its script. Without it, fill the column '
    yield f"{LABEL_COLUMN} of {escaped(sheet)}.</p></noscript>"
    if n_shown < n_rows:
        yield f'<p class="soft">The first {n_shown:,} of {n_rows:,} rows: they are a random sample '
        yield "by themselves. The others are on the sheet.</p>"
    yield f'<p><progress id="bar" max="{n_shown}" value="0" aria-label="Rows that are through">'
    yield '</progress> <span id="count" role="status"></span></p>'
    yield '<p id="lost" class="bad" hidden>This browser keeps nothing for this page: download the '
    yield "labels before you close it.</p>"
    yield "<p>"
    for name, title, key in _BUTTONS:
        yield f'<button type="button" id="{name}">{title} <kbd>{key}</kbd></button>'
    yield f'<button type="button" id="download">Download {escaped(labels)}</button>'
    yield "</p>"
    yield '<div id="row"></div>'
    yield '<p class="soft">A row that is skipped counts as bad. Rows that you have not reached are '
    yield "left out: the rows before them are a smaller sheet. Give the download to qaeval filter: "
    yield f"--labels {escaped(labels)}.</p>"


def _texts(row: Mapping[str, object]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each text, and its pieces: each second one is marked; the context last."""
    looked_for = [text for role in _MARKED for text in _listed(row.get(role)) if text.strip()]
    for role in sorted(row.keys() - {"id"}, key=lambda own: (own == "context", [*row].index(own))):
        text = "\n\n".join(_listed(row[role]))
        yield role, _pieces(text, looked_for) if role == "context" else [_clean(text)]


def _pieces(text: str, looked_for: Sequence[str]) -> list[str]:
    """Return a context in pieces, of which each second one is what a judge looks for.

    Examples
    --------
    >>> _pieces("Ann keeps bees. Bees!", ["bees", "Oslo"])
    ['Ann keeps ', 'bees', '. ', 'Bees', '!']
    """
    found = next(filter(None, (_places(text, own) for own in looked_for)), [])
    if found and found[0][0] > _BEFORE_MARK and len(text) > MAX_CHARS:
        start = found[0][0] - _BEFORE_MARK
        text = f"…{text[start:]}"
        found = [(first - start + 1, stop - start + 1) for first, stop in found]
    pieces, end = [], 0
    for first, stop in found:
        if stop > MAX_CHARS:
            break
        pieces += [_clean(text[end:first]), _clean(text[first:stop])]
        end = stop
    return [*pieces, _clean(within(text[end:], max(MAX_CHARS - end, 1)))]


def _places(text: str, looked_for: str) -> list[tuple[int, int]]:
    """Return where a text has another one, in words of its own and in any case."""
    words = r"\s+".join(map(re.escape, looked_for.split()))
    return [own.span() for own in re.finditer(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE)]


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    return [str(own) for own in value] if isinstance(value, list) else [str(value)]


def _clean(text: str) -> str:
    return visible(within(text, MAX_CHARS), keep="\n\t")


def _data(value: object) -> str:
    """Return JSON that ends no element of a page."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
