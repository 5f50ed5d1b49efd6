"""Label page: one file on which people label the rows of a sheet, by keys.

It shows no score and no rank, loads nothing, and keeps labels in the browser until they are
downloaded as the table that ``--labels`` reads. It is a tool and no report: it needs its script,
and its policy allows that one alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from qaeval_core.filter.labels import LABEL_COLUMN, cell
from qaeval_core.pages.html import escaped, page
from qaeval_core.pages.marked import marked_texts
from qaeval_core.signature import hash_text

# Of a page, and of one of its texts: rows that have no room are on the sheet alone.
MAX_BYTES = 1_900_000
MAX_CHARS = 4_000
_BEFORE_MARK = 1_000  # characters of a long text before what is marked first
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
        texts = {role: text for role, text in row.items() if role != "id"}
        pieces = marked_texts(texts, n_chars=MAX_CHARS, n_before=_BEFORE_MARK)
        own = {"id": cell(row["id"]), "texts": list(pieces)}
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


def _data(value: object) -> str:
    """Return JSON that ends no element of a page."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
