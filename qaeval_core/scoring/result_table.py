"""Result table: what report.json says of scores, one line a metric, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qaeval_core.pages.example_rows import columns_by_instance, main_columns
from qaeval_core.pages.printed import Estimate, ResultCell, ResultTable, printed, shown
from qaeval_core.planning.columns import ROWS

_WITH_COLUMN = ("json", "csv")  # Formats for programs have signatures in a column.
_HEAD = ("metric", "score", "n", "undefined")
_NO_NUMBER = "nan"


def result_text(
    report: Mapping[str, Any], form: str, *, percent: bool = False, width: int | None = None
) -> str:
    """Return the scores of a report in one of `FORMATS`.

    Parameters
    ----------
    report : mapping
        Content of report.json.
    percent : bool, default False
        Show shares times 100.
    width : int, optional
        Decimals; default two digits of half the interval.

    Returns
    -------
    str
        As text, each metric's signature stands below its lines.
    """
    table = result_table(report, form)
    text = printed([table], form, percent=percent, width=width)
    if form != "text":
        return text
    head, *lines = text.split("\n")
    found, last = [head], [*_ordered(report)]
    for i, (instance, _) in enumerate(last):
        found.append(lines[i])
        is_last = i + 1 == len(last) or last[i + 1][0] != instance
        if is_last:
            found.append(f"  {_signature(report['instances'][instance])}")
    return "\n".join([*found, *lines[len(last) :]])


def result_table(report: Mapping[str, Any], form: str) -> ResultTable:
    """Return the table of a report's scores, the main column of each metric first."""
    columns, instances = report["columns"], report["instances"]
    has_corpus = any("corpus" in own for own in columns.values())
    with_column = form in _WITH_COLUMN
    head = [*_HEAD, *["corpus"] * has_corpus, *["signature"] * with_column]
    rows: list[Sequence[ResultCell]] = []
    for instance, name in _ordered(report):
        own = columns[name]
        row: list[ResultCell] = [name, _estimate(own), own["n"], own["n_undefined"]]
        if has_corpus:
            corpus = own.get("corpus")
            row.append(None if corpus is None else Estimate(corpus, is_share=_is_share(own)))
        rows.append([*row, _signature(instances[instance])] if with_column else row)
    remarks = [f"intervals: 95 %, over {cluster_count(report)}"] if _has_interval(report) else []
    if form in ("markdown", "latex"):
        remarks = [*(_signature(own) for own in instances.values()), *remarks]
    return ResultTable("scores", head, rows, remarks=remarks)


def number_lines(
    report: Mapping[str, Any], *, percent: bool = False, width: int | None = None
) -> Iterator[str]:
    """Yield the number of each metric's main column; after its name and a tab where more are."""
    names = main_columns(report)
    for name in names:
        text = shown(_estimate(report["columns"][name]), percent=percent, width=width)
        number = text.partition(" ")[0] or _NO_NUMBER
        yield number if len(names) == 1 else f"{name}\t{number}"


def cluster_count(report: Mapping[str, Any]) -> str:
    """Return how many clusters intervals are of, such as ``100 contexts``.

    Examples
    --------
    >>> cluster_count({"clusters": {"name": "contexts", "n": 2067, "is_estimate": True}})
    'about 2,100 contexts'
    """
    clusters = report["clusters"]
    n = clusters["n"]
    if clusters["name"] == ROWS:
        n = report["rows"] - report["quarantined"] - report["not_sampled"]
    elif clusters["is_estimate"]:
        n = int(float(f"{n:.2g}"))  # It is off by a sixteenth or so.
        return f"about {n:,} {clusters['name']}"
    name, *more = clusters["name"].split(" ", 1)
    return " ".join([f"{n:,}", name.removesuffix("s") if n == 1 else name, *more])


def _ordered(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield instances and their columns of scores, the main one first."""
    main = set(main_columns(report))
    for instance, names in columns_by_instance(report).items():
        for name in sorted(names, key=lambda own: own not in main):
            yield instance, name


def _estimate(column: Mapping[str, Any]) -> Estimate:
    low, high = column["interval_95"] or (None, None)
    return Estimate(column["mean"], low, high, is_share=_is_share(column))


def _has_interval(report: Mapping[str, Any]) -> bool:
    return any(own["interval_95"] is not None for own in report["columns"].values())


# What the first reports do not say.
def _signature(instance: Mapping[str, Any]) -> str:
    return str(instance.get("readable", instance["signature"]))


def _is_share(column: Mapping[str, Any]) -> bool:
    return bool(column.get("is_share"))
