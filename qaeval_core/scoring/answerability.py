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
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.job import Job
from qaeval_core.planning.predictions import SYSTEM, read_numbers
from qaeval_core.running.reader import ShardReader
from qaeval_core.storage.path import StoragePath

_PARTS = {"all": (True, False), "has_answer": (True,), "no_answer": (False,)}


@dataclass(slots=True)
class _Sums:
    """Sums of one system and score column; its rows are kept for thresholds alone."""

    n_rows: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))
    rows: dict[str, tuple[float, bool, bool]] = field(default_factory=dict)

    def content(self, chances: Mapping[str, float] | None) -> dict[str, Any]:
        """Return the means, and the best one where there are no-answer scores."""
        found: dict[str, Any] = {}
        for part, kinds in _PARTS.items():
            n = sum(self.n_rows[kind] for kind in kinds)
            found[part] = {"rows": n, "mean": self.totals[part] / n if n else None}
        if chances is not None:
            found["best"], found["best_threshold"] = _best(self.rows, chances)
        return found


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
    chances = read_numbers(job.config.input.no_answer)
    found: dict[str, dict[str, _Sums]] = {}
    for file, path in zip(job.files, paths, strict=True):
        scores = {name: _scores(path, name) for name in names}
        for values in _values(job, file):
            for i, references in enumerate(values["references"]):
                system = str(values[SYSTEM][i]) if SYSTEM in values else ""
                own = found.setdefault(system, {name: _Sums() for name in names})
                has = bool(references)
                for name, sums in own.items():
                    score = next(scores[name])
                    if score is None:
                        continue
                    sums.n_rows[has] += 1
                    sums.totals["all"] += score
                    sums.totals["has_answer" if has else "no_answer"] += score
                    if system in chances and "id" in values:
                        is_said = bool(values["candidate"][i])
                        sums.rows[str(values["id"][i])] = (score, has, is_said)
    return {
        system: {name: sums.content(chances.get(system)) for name, sums in own.items()}
        for system, own in found.items()
    }


def _scores(path: StoragePath, name: str) -> Iterator[float | None]:
    """Yield a column of a score file, row by row."""
    file = pq.ParquetFile(path.source())
    for batch in file.iter_batches(columns=[name]):
        yield from batch.column(0).to_pylist()


def _values(job: Job, file: InputFile) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of a file's rows by role, in their order."""
    columns = {
        role: job.columns[role] for role in ("id", "candidate", "references") if role in job.columns
    }
    if job.config.input.predictions and SYSTEM in file.schema.names:
        columns[SYSTEM] = SYSTEM
    reader = ShardReader(list(columns.values()))
    for piece in job.file_pieces(file):
        for shard in piece.shards:
            for _, table in reader.parts(piece, shard):
                yield table_rows(table, columns=columns)
    reader.close()


def _best(
    rows: Mapping[str, tuple[float, bool, bool]], chances: Mapping[str, float]
) -> tuple[float | None, float]:
    """Return the best mean over all thresholds of the no-answer scores, and the first that has it.

    Predictions of rows whose no-answer score is above the threshold count as "".

    Parameters
    ----------
    rows : mapping of id to (score, whether there is an answer, whether one was predicted)
    """
    # At first all predictions are "": right where there is no answer.
    total = best = float(sum(not has for _, has, _ in rows.values()))
    threshold = 0.0
    for own in sorted(chances, key=lambda own: chances[own]):
        if own not in rows:
            continue
        score, has_answer, has_prediction = rows[own]
        if has_answer:
            total += score
        elif has_prediction:
            total -= 1
        if total > best:
            best, threshold = total, chances[own]
    return (best / len(rows) if rows else None), threshold


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
