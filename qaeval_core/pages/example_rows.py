"""Example rows: texts of the few with the lowest and highest score, and of some without one.

They are read from the input again. Each is a part of the page with links to the rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qaeval_core.errors import ConfigError, UnreadableFileError, nearest
from qaeval_core.pages import MAX_EXAMPLES
from qaeval_core.pages.html import Table, block_html, details, escaped, shown
from qaeval_core.pages.marked import marked_html, marked_texts
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.running.reader import read_rows
from qaeval_core.storage.retry import Outages

MAX_BYTES = 300_000

N_EXAMPLES = 5  # rows shown at each end of a metric's main column, and of each reason
_N_OPEN = 2  # metrics whose rows are seen without opening them: more would make the page high
_N_CHARS = 400  # of a text
_N_BEFORE = 150  # of a context before what is marked

ExamplePlace = tuple[str, int]
Texts = Mapping[ExamplePlace, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class RunExamples:
    """Rows of lowest and highest score of a finished run.

    Attributes
    ----------
    report : mapping
        Content of report.json, which says where they are.
    texts : mapping of place to mapping of role to text, optional
        None: none are shown.
    n : int
        Rows at each end.
    why : str
        Why texts that were wanted cannot be shown.
    """

    report: Mapping[str, Any]
    texts: Texts | None
    n: int
    why: str = ""


def main_columns(report: Mapping[str, Any]) -> list[str]:
    """Return the column of each instance that says most, by what report.json says.

    Its own name, else its F1, else its first.

    Examples
    --------
    >>> columns = ["f1", "f1_recall", "bertscore_recall", "bertscore_f1", "kpqa_bleu_1"]
    >>> main_columns({"instances": ["f1", "bertscore", "kpqa"], "columns": columns})
    ['f1', 'bertscore_f1', 'kpqa_bleu_1']
    """
    return list(main_by_instance(report).values())


def main_by_instance(report: Mapping[str, Any]) -> dict[str, str]:
    """Return `main_columns` by instance; one without scores has none."""
    return {
        name: next((one for one in (name, f"{name}_f1") if one in own), own[0])
        for name, own in columns_by_instance(report).items()
        if own
    }


def columns_by_instance(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the columns of each instance, by what report.json says."""
    found: dict[str, list[str]] = {name: [] for name in report["instances"]}
    for name in report["columns"]:
        # The longest name: an instance may be called as another one's sub-score begins.
        own = [one for one in found if name == one or name.startswith(f"{one}_")]
        found[max(own, key=len)].append(name)
    return found


def example_places(report: Mapping[str, Any], *, n: int) -> list[ExamplePlace]:
    """Return the places of rows at both ends of each metric's main column, and of each reason.

    Parameters
    ----------
    report : mapping
        Content of report.json.
    n : int
        Rows at each end.

    Raises
    ------
    ConfigError
        If a run does not keep so many.
    """
    if not 0 <= n <= MAX_EXAMPLES:
        raise ConfigError(f"--texts {n}: a run keeps 0 to {MAX_EXAMPLES} rows of each end [QA0104]")
    found = {
        (own["file"], own["row"])
        for name in main_columns(report)
        for end in report.get("examples", {}).get(name, {}).values()
        for own in end[:n]
    }
    found |= {
        (own["file"], own["row"])
        for reasons in report.get("reason_examples", {}).values()
        for rows in reasons.values()
        for own in rows[:n]
    }
    return sorted(found)


def read_texts(
    places: Sequence[ExamplePlace],
    *,
    files: Sequence[InputFile],
    n_rows: Mapping[str, int],
    columns: Mapping[str, str],
    limits: ReadLimits,
    outages: Outages | None = None,
) -> dict[ExamplePlace, dict[str, object]]:
    """Return the texts of rows by place and role; of rows that cannot be read, why.

    Parameters
    ----------
    n_rows : mapping of file id to int
        Rows of each file that were scored.
    columns : mapping of role to column
        Of the run; the id is no text.

    Raises
    ------
    ConfigError
        If a file is no input now.
    InputChangedError, StorageError
        See `running.reader.ShardReader.read`.
    """
    roles = {role: name for role, name in columns.items() if role != "id"}
    by_name = {file.relative: file for file in files}
    found: dict[ExamplePlace, dict[str, object]] = {}
    for name in dict.fromkeys(file for file, _ in places):
        if name not in by_name:
            raise ConfigError(f"{name} is no longer an input{nearest(name, by_name)} [QA0518]")
        file = by_name[name]
        rows = sorted({row for own, row in places if own == name})
        try:
            values = read_rows(
                [file],
                np.array(rows),
                n_rows={file.file_id: n_rows[file.file_id]},
                columns=roles,
                limits=limits,
                outages=outages,
            )
        except UnreadableFileError as error:
            found |= {(name, row): {"not readable": str(error)} for row in rows}
            continue
        for i, row in enumerate(rows):
            found[name, row] = {role: _shown(own[i]) for role, own in values.items()}
    return found


def _shown(value: object) -> object:
    """Return a text or texts; of what is none, what it is instead."""
    return f"({value})" if isinstance(value, Exception) else value


def example_lists(
    report: Mapping[str, Any], texts: Texts | None, *, n: int, keys: Iterator[int]
) -> Iterator[str]:
    """Yield the rows at both ends of each metric's main column; those of later metrics folded.

    Parameters
    ----------
    report : mapping
        Content of report.json.
    texts : mapping of place to mapping of role to text, optional
        Default no text is shown.
    n : int
        Rows at each end.
    keys : iterator of int
        Numbers of rows of the page, each once.
    """
    for i, name in enumerate(main_columns(report)):
        ends = report["examples"][name]
        lists = [
            row_list(f"{end.capitalize()} {name}", own[:n], texts, keys)
            for end, own in ends.items()
            if own[:n]
        ]
        shown_rows = f'<div class="ends">{"".join(lists)}</div>' if lists else ""
        yield shown_rows if i < _N_OPEN or not lists else details(name, shown_rows)


def row_list(
    title: str, rows: Sequence[Mapping[str, Any]], texts: Texts | None, keys: Iterator[int]
) -> str:
    """Return rows under a title: each with its texts, and links to the row before and after it."""
    if texts is None:
        plain = [[f"{own['file']}:{own['row']}", shown(own["value"])] for own in rows]
        return f"<div>{block_html(Table(title, ('row', 'score'), plain, numbers=(1,)))}</div>"
    cards = [
        (str(own["id"]), shown(own["value"]), texts.get((own["file"], own["row"]), {}))
        for own in rows
    ]
    return f"<div><h3>{escaped(title)}</h3>{row_cards(cards, keys)}</div>"


def row_cards(rows: Sequence[tuple[str, str, Mapping[str, object]]], keys: Iterator[int]) -> str:
    """Return rows, each with what is said of it, its texts, and links to those beside it.

    Parameters
    ----------
    rows : sequence of (id, what is said, texts by role)
    keys : iterator of int
        Numbers of rows of the page, each once.
    """
    numbers = [next(keys) for _ in rows]
    cards = []
    for number, (name, said, texts) in zip(numbers, rows, strict=True):
        head = [f"<b>{escaped(name)}</b>", escaped(said)]
        beside = (("previous", number - 1), ("next", number + 1))
        head += [f'<a href="#row-{to}">{where}</a>' for where, to in beside if to in numbers]
        pieces = marked_texts(texts, n_chars=_N_CHARS, n_before=_N_BEFORE)
        inner = "".join(
            f'<dt>{escaped(role)}</dt><dd class="text" dir="auto">{marked_html(own) or "(empty)"}'
            "</dd>"
            for role, own in pieces
        )
        cards.append(
            f'<article class="row card" id="row-{number}"><p class="soft">'
            f"{' · '.join(filter(None, head))}</p><dl>{inner}</dl></article>"
        )
    return "".join(cards)
