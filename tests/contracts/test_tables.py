"""Tables of columns and settings in docs are those of the catalog.

``python tests/contracts/test_tables.py`` writes them anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from qaeval_core.audit.request import AuditConfig
from qaeval_core.audit.settings import TOLERANCES
from qaeval_core.metrics.advice import GUIDE
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def columns_table() -> Iterator[str]:
    """Yield what each metric reads and writes."""
    yield "| metric | reads | writes | range |"
    yield "| --- | --- | --- | --- |"
    for metric in METRICS.values():
        roles = [*metric.roles, *(f"[{role}]" for role in metric.optional_roles)]
        own = [f"`{_column(metric, c.name)}`{_kind(c.kind)}" for c in metric.columns]
        is_bounded = math.isfinite(metric.high)
        shown = f"{metric.low:g} to {metric.high:g}" if is_bounded else "any number"
        yield f"| `{metric.name}` | {', '.join(roles)} | {', '.join(own)} | {shown} |"


def _column(metric: AnyMetric, name: str) -> str:
    return f"{metric.name}_{name}" if name else metric.name


def _kind(kind: str) -> str:
    told = {"count": "count", "word": "one of a few words", "text": "text", "detail": "JSON"}
    return f" ({told[kind]})" if kind in told else ""


def settings_table() -> Iterator[str]:
    """Yield the settings of each metric, alike ones of several metrics once."""
    yield "| key | of | default | |"
    yield "| --- | --- | --- | --- |"
    rows: dict[tuple[str, str, str], list[str]] = {}
    for metric in METRICS.values():
        for key, field in metric.settings.model_fields.items():
            if key != "metric":
                row = (key, _default(field), _description(field))
                rows.setdefault(row, []).append(metric.name)
    for (key, default, description), names in rows.items():
        yield f"| `{key}` | {', '.join(names)} | {default} | {description} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined or field.default is None:
        return "none"
    if isinstance(field.default, bool | int | float | str):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, tuple):
        return f"`[{', '.join(f'{value:g}' for value in field.default)}]`"
    parts = ", ".join(f"{key}: {value:g}" for key, value in field.default.model_dump().items())
    return f"`{{{parts}}}`"


def _description(field: FieldInfo) -> str:
    choices = [
        str(value)
        for kind in (field.annotation, *get_args(field.annotation))
        if get_origin(kind) is Literal
        for value in get_args(kind)
    ]
    text = (field.description or "").replace("|", "\\|")
    return f"{text} ({', '.join(f'`{choice}`' for choice in choices)})" if choices[1:] else text


def audit_table() -> Iterator[str]:
    """Yield what a file of ``qaeval audit --config`` may hold."""
    yield "| key | default | |"
    yield "| --- | --- | --- |"
    tolerances = ", ".join(f"{name}: {value:g}" for name, value in TOLERANCES.items())
    for key, field in AuditConfig.model_fields.items():
        default = f"`{{{tolerances}}}`" if key == "tolerances" else _default(field)
        yield f"| `{key}` | {default} | {_description(field)} |"


def guide_table() -> Iterator[str]:
    """Yield the lines of the guide, with the figures that they stand on."""
    yield "| job | use | rather than | figures of docs/validity.md |"
    yield "| --- | --- | --- | --- |"
    for line in GUIDE:
        use, others = (
            ", ".join(f"`{name}`" for name in names) for names in (line.use, line.rather_than)
        )
        yield f"| {line.job} | {use} | {others} | {line.where} |"


TABLES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "columns": ("metrics.md", columns_table),
    "settings": ("settings.md", settings_table),
    "audit": ("settings.md", audit_table),
    "guide": ("metrics.md", guide_table),
}


def with_table(page: str, name: str, table: Callable[[], Iterator[str]]) -> str:
    """Return a page whose table is that of the catalog."""
    begin, end = f"<!-- {name} of the catalog -->", f"<!-- end of {name} -->"
    assert page.count(begin) == page.count(end) == 1, f"the page has no place for {name}"
    content = "\n".join([begin, "", *table(), "", end])
    return re.sub(f"{begin}.*{end}", lambda _: content, page, flags=re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_docs_are_those_of_the_catalog(name: str) -> None:
    """Protects from an option or a column that only the code knows."""
    file, table = TABLES[name]
    page = (DOCS / file).read_text(encoding="utf-8")
    assert with_table(page, name, table) == page, "run python tests/contracts/test_tables.py"


if __name__ == "__main__":
    for name, (file, table) in TABLES.items():
        page = (DOCS / file).read_text(encoding="utf-8")
        (DOCS / file).write_text(with_table(page, name, table), encoding="utf-8")
