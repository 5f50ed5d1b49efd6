"""Rewrite a page: that of a finished run, made once more of what the run wrote about itself.

No score is read. The texts of examples are read from the input, where the user says it lies or
where the run had it; run.json may come from anybody, so no server is asked that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qaeval_core.errors import (
    ConfigError,
    InputChangedError,
    QAEvalError,
    nearest,
)
from qaeval_core.pages.example_rows import (
    N_EXAMPLES,
    ExamplePlace,
    RunExamples,
    Texts,
    example_places,
    read_texts,
)
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.profile.run_profile import PROFILE, RunProfile, read_profile
from qaeval_core.running.reader import read_rows
from qaeval_core.scoring.page import report_page
from qaeval_core.storage.path import AnyPath, StoragePath, read_json
from qaeval_core.tables.finished_run import FinishedRun, find_sources, read_run


def page_again(
    out: AnyPath,
    *,
    by: Sequence[str] = (),
    n_texts: int | None = None,
    inputs: Sequence[str] = (),
) -> str:
    """Return the page of a finished run.

    Parameters
    ----------
    out : StoragePath, Path or str
        Of ``qaeval score``.
    by : sequence of str
        Columns of slices; () is all that have some.
    n_texts : int, optional
        Rows shown at each end of a metric's main column, 0 for none of their texts; default as
        the run had it.
    inputs : sequence of str
        Where the input lies; () is where the run had it.

    Raises
    ------
    ConfigError
        If OUT is none, is not complete, or has no such slices.
    InputError
        If the input, or a column of it, is not where it was.
    InputChangedError
        If the input is another one now.
    UnreadableFileError
        If the profile is damaged.
    """
    run = read_run(out)
    out = run.out
    report = read_report(out)
    _check_slices(report.get("slices", {}), by)
    profile = read_profile(out / PROFILE)
    try:
        return _page(run, report, profile, by=by, n_texts=n_texts, inputs=inputs)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{out / 'report.json'} is damaged: {error!r} [QA0514]") from None


def read_report(out: StoragePath) -> dict[str, Any]:
    """Return the content of OUT/report.json.

    Raises
    ------
    ConfigError
        If there is none.
    """
    report = read_json(out / "report.json")
    if report is None:
        raise ConfigError(f"{out} holds no report.json; run the same qaeval score again [QA0514]")
    return dict(report)


def _page(
    run: FinishedRun,
    report: Mapping[str, Any],
    profile: RunProfile | None,
    *,
    by: Sequence[str],
    n_texts: int | None,
    inputs: Sequence[str],
) -> str:
    shows_texts = run.config.output.texts if n_texts is None else n_texts != 0
    n_examples, texts = n_texts or N_EXAMPLES, None
    if shows_texts:
        places = example_places(report, n=n_examples)
        texts = _texts(run, report, places, inputs) if places else {}
    content = read_json(run.out / "run.json") or {}
    return report_page(report, content, profile, texts, by=by or None, n_examples=n_examples)


def run_examples(
    out: AnyPath, *, n_texts: int | None = None, inputs: Sequence[str] = ()
) -> RunExamples | None:
    """Return the rows of lowest and highest score of a finished run; None where none were kept.

    Texts that cannot be read are left out, and why is said: a page without them is better than
    none.

    Parameters
    ----------
    out : StoragePath, Path or str
        Of ``qaeval score``.
    n_texts : int, optional
        Rows at each end, 0 for none of their texts; default as the run had it.
    inputs : sequence of str
        Where the input lies; () is where the run had it.

    Raises
    ------
    ConfigError
        If a run does not keep so many rows, or report.json is damaged.
    """
    run = read_run(out)
    report = read_json(run.out / "report.json") or {}
    n_examples = n_texts or N_EXAMPLES
    try:
        places = example_places(report, n=n_examples) if "examples" in report else []
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{run.out / 'report.json'} is damaged: {error!r} [QA0514]") from None
    if not places:
        return None
    if not (run.config.output.texts if n_texts is None else n_texts != 0):
        return RunExamples(report, None, n_examples)
    try:
        return RunExamples(report, _texts(run, report, places, inputs), n_examples)
    except QAEvalError as error:
        return RunExamples(report, None, n_examples, why=str(error))


def _check_slices(slices: Mapping[str, Any], by: Sequence[str]) -> None:
    for name in by:
        if name not in slices:
            raise ConfigError(
                f"--by {name}: its means were not kept; score with --carry "
                f"{name}{nearest(name, slices)} [QA0305]"
            )
        if slices[name] is None:
            raise ConfigError(f"--by {name}: it has more than 50 values, or long texts [QA0322]")


def _texts(
    run: FinishedRun,
    report: Mapping[str, Any],
    places: Sequence[ExamplePlace],
    inputs: Sequence[str],
) -> Texts:
    files, _ = find_sources(run, inputs, hint="; --no-texts leaves texts out")
    scoring = run.config.scoring
    limits = ReadLimits(scoring.max_shard_bytes, scoring.max_text_bytes)
    for file in files:
        if run.file_ids.get(file.relative, file.file_id) == file.file_id:
            continue
        if not inputs:
            raise InputChangedError(
                f"{file.name} changed since it was scored; run the same qaeval score again [QA0309]"
            )
        _check_ids(run, report, file, limits)
    return read_texts(
        places,
        files=files,
        n_rows={file.file_id: file.n_rows for file in files},
        columns=run.columns,
        limits=limits,
    )


def _check_ids(
    run: FinishedRun, report: Mapping[str, Any], file: InputFile, limits: ReadLimits
) -> None:
    """Raise InputChangedError unless ids show that rows of a file elsewhere are those of a run."""
    ids = {
        own["row"]: own["id"]
        for ends in report["examples"].values()
        for end in ends.values()
        for own in end
        if own["file"] == file.relative
    }
    rows, column = sorted(ids), run.columns.get("id")
    if not rows:
        return
    found: list[object] = []
    if column is not None and file.type_of(column) is not None and rows[-1] < file.n_rows:
        found = read_rows(
            [file],
            np.array(rows),
            n_rows={file.file_id: file.n_rows},
            columns={"id": str(column)},
            limits=limits,
        )["id"]
    if [str(value) for value in found] != [str(ids[row]) for row in rows]:
        why = "has no column of ids" if column is None else f"has other ids in {column!r}"
        raise InputChangedError(
            f"{file.name} is not where it was scored, and {why}, so its rows may be others. "
            "--no-texts leaves texts out [QA0309]"
        )
