"""Explain: an explanation as one HTML page that needs nothing else: no script, no font, no link.

All text of rows is escaped here, and a policy in the page forbids whatever might still load.
"""

from __future__ import annotations

from collections.abc import Sequence

from qaeval_core.explain.html import escaped, number, table
from qaeval_core.explain.page_parts import part_html
from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    ScoreLine,
)

# Colours of tokens are blue and orange: told apart by nearly everybody, readable in both schemes.
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #ffffff; --soft: #5c5c66;
  --line: #d5d5dc; --up: 41 98 196; --down: 214 108 20; --bad: #a4161a; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --paper: #17171a; --soft: #a9a9b4;
  --line: #3a3a42; --up: 96 152 255; --down: 255 150 66; --bad: #ff8a80; --good: #7fd69b; } }
body { color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 72rem;
  padding: 1.5rem; font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.soft, caption, dt { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
.text, .strip { white-space: pre-wrap; overflow-wrap: anywhere; }
.strip span { border-radius: .2em; } .up { background: rgb(var(--up) / var(--a)); }
.down { background: rgb(var(--down) / var(--a)); text-decoration: underline dotted; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; padding: .2rem 0; }
th, td { border: 1px solid var(--line); padding: .15rem .5rem; text-align: left;
  vertical-align: top; white-space: pre-wrap; } td.number { text-align: right;
  font-variant-numeric: tabular-nums; } dd { margin: 0 0 .5rem 0; }
code { overflow-wrap: anywhere; }
"""


def explanation_page(explanation: Explanation) -> str:
    """Return the page."""
    name = explanation.id if explanation.id is not None else f"row {explanation.row}"
    title = f"qaeval explain: {name}"
    sections = [
        _head(explanation, name),
        _texts(explanation),
        _scores(explanation.instances),
        *(_family(family) for family in explanation.families),
        _origin(explanation),
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            *sections,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(explanation: Explanation, name: str) -> str:
    lines = [
        f"<h1>Row {escaped(name)}</h1>",
        f'<p class="soft">{escaped(explanation.file)}, row {explanation.row} (the first is 0)</p>',
    ]
    if explanation.quarantine_reason is not None:
        message = explanation.quarantine_message or ""
        lines.append(
            f'<p class="bad">Quarantined, not scored: {escaped(explanation.quarantine_reason)}'
            f"{': ' + escaped(message) if message else ''}</p>"
        )
    elif explanation.is_equal:
        lines.append(
            f'<p class="good">Computed again with the same artifacts: {explanation.n_compared} '
            "values equal the stored ones (largest difference "
            f"{number(explanation.max_difference)}, tolerance {number(explanation.tolerance)}).</p>"
        )
    lines += [f"<p>{escaped(note)}</p>" for note in explanation.notes]
    return "\n".join(lines)


def _texts(explanation: Explanation) -> str:
    items = []
    for role, value in explanation.texts.items():
        items.append(f"<dt>{escaped(role)}</dt>")
        for text in value if isinstance(value, list) else [value]:
            shown = "null" if text is None else str(text)
            kind = "text" if text else "text soft"
            items.append(f'<dd class="{kind}" dir="auto">{escaped(shown) or "(empty)"}</dd>')
    return "<section>\n<h2>Texts</h2>\n<dl>\n" + "\n".join(items) + "\n</dl>\n</section>"


def _scores(instances: Sequence[InstanceExplanation]) -> str:
    rows = [
        [instance.name, line.column, _value(line.stored), _again(line), instance.reason or ""]
        for instance in instances
        for line in instance.scores
    ]
    signatures = table(
        "How the scores were made",
        ["instance", "signature"],
        [[instance.name, instance.signature] for instance in instances],
    )
    return "\n".join(
        [
            "<section>",
            "<h2>Scores</h2>",
            table(
                "Scores of this row, as stored and as computed again",
                ["instance", "column", "stored", "again", "undefined because"],
                rows,
                numbers=(2, 3),
            ),
            f"<details><summary>Signatures</summary>{signatures}</details>",
            "</section>",
        ]
    )


def _value(value: float | int | str | None) -> str:
    return number(value) if isinstance(value, float) else "" if value is None else str(value)


def _again(line: ScoreLine) -> str:
    return _value(line.now) if line.is_compared else "not computed"


def _family(family: FamilyExplanation) -> str:
    where = f"artifact <code>{escaped(family.artifact or '')}</code>"
    if family.endpoint is not None:
        where = f"asked at <code>{escaped(family.endpoint)}</code>, and not again for this page"
    lines = [
        "<section>",
        f"<h2>{escaped(family.family)}: {escaped(', '.join(family.instances))}</h2>",
        f'<p class="soft">model {escaped(family.model)}; {where}</p>',
    ]
    for target in family.targets:
        if len(family.targets) > 1:
            lines.append(f"<h3>{escaped(family.target_role)} {target.target + 1}</h3>")
        if target.reason is not None:
            lines.append(f'<p class="bad">Undefined: {escaped(target.reason)}</p>')
        lines += [part_html(part) for part in target.parts]
        if target.statistics:
            rows = [[name, _value(value)] for name, value in target.statistics.items()]
            lines.append(table("Of whole texts", ["statistic", "value"], rows, numbers=(1,)))
    lines.append(f"<details><summary>Signature</summary><code>{escaped(family.signature)}</code>")
    return "\n".join([*lines, "</details>", "</section>"])


def _origin(explanation: Explanation) -> str:
    rows = [[key, str(value)] for key, value in explanation.environment.items()]
    made = table("Where this page was made", ["what", "value"], [["run", explanation.out], *rows])
    return f"<details><summary>Environment</summary>{made}</details>"
