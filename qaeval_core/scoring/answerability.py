"""Answerability: scores of questions with and without an answer, as SQuAD 2.0 counts them.

Source
------
Rajpurkar, Jia, Liang (2018), "Know What You Don't Know", and the rule of its official evaluation:
a question without an answer has the reference "", and a threshold on a system's no-answer scores
turns the predictions above it into "".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from qaeval_core.families.validate import table_rows
from qaeval_core.planning.job import Job
from qaeval_core.planning.predictions import SYSTEM, read_numbers
from qaeval_core.running.reader import ShardReader
from qaeval_core.storage.path import StoragePath

_PARTS = {"all": (True, False), "has_answer": (True,), "no_answer": (False,)}


@dataclass(slots=True)
class _SystemRows:
    """Rows of one system: what a threshold turns over."""

    ids: list[str] = field(default_factory=list)
    has_answer: list[bool] = field(default_factory=list)
    has_prediction: list[bool] = field(default_factory=list)
    scores: dict[str, list[float | None]] = field(default_factory=dict)


def answerability(
    job: Job, paths: Sequence[StoragePath], names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return, by system and score column, the means of questions with and without an answer.

    Parameters
    ----------
    paths : sequence of StoragePath
        Score files of the job's files.
    names : sequence of str
        Score columns.

    Returns
    -------
    dict
        By system ("" where it has no name) and column: ``all``, ``has_answer`` and ``no_answer``
        with ``rows`` and ``mean``; ``best`` and ``best_threshold`` where it has no-answer scores.
    """
    systems: dict[str, _SystemRows] = {}
    for file, path in zip(job.files, paths, strict=True):
        own = pq.read_table(path.source(), columns=list(names))
        scores = {name: own[name].to_pylist() for name in names}
        for start, values in _values(job, file.file_id):
            for i, references in enumerate(values["references"]):
                system = str(values[SYSTEM][i]) if SYSTEM in values else ""
                rows = systems.setdefault(system, _SystemRows(scores={name: [] for name in names}))
                rows.ids.append(str(values["id"][i]) if "id" in values else "")
                rows.has_answer.append(bool(references))
                rows.has_prediction.append(bool(values["candidate"][i]))
                for name in names:
                    rows.scores[name].append(scores[name][start + i])
    chances = read_numbers(job.config.input.no_answer)
    return {
        system: {name: _counted(rows, name, chances.get(system)) for name in names}
        for system, rows in systems.items()
    }


def _values(job: Job, file_id: str) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Yield the first row and the values of stretches of a file."""
    columns = {
        role: job.columns[role] for role in ("id", "candidate", "references") if role in job.columns
    }
    (file,) = (own for own in job.files if own.file_id == file_id)
    if job.config.input.predictions and SYSTEM in file.schema.names:
        columns[SYSTEM] = SYSTEM
    reader = ShardReader(list(columns.values()))
    for piece in job.file_pieces(file):
        for shard in piece.shards:
            for part, table in reader.parts(piece, shard):
                yield part.start, table_rows(table, columns=columns)
    reader.close()


def _counted(rows: _SystemRows, name: str, chances: Mapping[str, float] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, kinds in _PARTS.items():
        own = [
            score
            for score, has in zip(rows.scores[name], rows.has_answer, strict=True)
            if has in kinds and score is not None
        ]
        found[part] = {"rows": len(own), "mean": sum(own) / len(own) if own else None}
    if chances is not None:
        found["best"], found["best_threshold"] = _best(rows, name, chances)
    return found


def _best(rows: _SystemRows, name: str, chances: Mapping[str, float]) -> tuple[float | None, float]:
    """Return the best mean over all thresholds of the no-answer scores, and the first that has it.

    Predictions of rows whose no-answer score is above the threshold count as "".
    """
    places = {own: i for i, own in enumerate(rows.ids) if rows.scores[name][i] is not None}
    # At first all predictions are "": right where there is no answer.
    total = best = float(sum(not rows.has_answer[i] for i in places.values()))
    threshold = 0.0
    for own in sorted(chances, key=lambda own: chances[own]):
        if own not in places:
            continue
        i = places[own]
        score = rows.scores[name][i]
        assert score is not None
        if rows.has_answer[i]:
            total += score
        elif rows.has_prediction[i]:
            total -= 1
        if total > best:
            best, threshold = total, chances[own]
    return (best / len(places) if places else None), threshold


def answerability_lines(content: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each system and score."""
    for system, columns in content.items():
        for name, own in columns.items():
            shown = [
                f"{label} {own[part]['mean']:.4g} ({_counted_rows(own[part]['rows'])})"
                for part, label in (("has_answer", "HasAns"), ("no_answer", "NoAns"))
                if own[part]["mean"] is not None
            ]
            if own.get("best") is not None:
                shown.append(f"best {own['best']:.4g} at threshold {own['best_threshold']:.4g}")
            yield f"  {f'{system} ' if system else ''}{name}: {', '.join(shown)}"


def _counted_rows(n: int) -> str:
    return "1 row" if n == 1 else f"{n:,} rows"
