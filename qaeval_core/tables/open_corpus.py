"""Open a corpus: from the folder of a finished run, or from another tool's table of scores.

Footers are read, and what the run wrote about itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow.parquet as pq

from qaeval_core.configure import InputSection
from qaeval_core.errors import (
    ConfigError,
    InputChangedError,
    InputError,
    RunError,
    SchemaError,
    nearest,
)
from qaeval_core.planning.columns import with_carried
from qaeval_core.planning.inputs import InputFile, find_inputs
from qaeval_core.planning.text_files.copies import (
    STANDARD_INPUT,
    copies_of,
    held_standard_input,
)
from qaeval_core.planning.usual_columns import check_clear, kinds_of, usual_columns
from qaeval_core.planning.usual_names import ANSWERS_OF_SYSTEMS, QUESTIONS_OF_SYSTEMS, usual_form
from qaeval_core.schema import COLUMNS_METADATA, fits_role
from qaeval_core.storage.path import AnyPath, StoragePath, as_path, read_json
from qaeval_core.tables.corpus import ROLE_NAMES, Corpus, CorpusFile
from qaeval_core.tables.finished_run import FinishedRun, find_sources, read_run
from qaeval_core.tables.score_tables import ScoreColumn, described_columns
from qaeval_core.text.plain_columns import is_bytes, paths


def open_corpus(
    out: AnyPath,
    *,
    columns: Mapping[str, str],
    partial: bool = False,
    inputs: Sequence[str] = (),
    encoding: str | None = None,
) -> Corpus:
    """Return the rows of a finished run, or of a folder or file of scores.

    Parameters
    ----------
    columns : mapping of role to column
        As the user says it; the run's own otherwise.
    partial : bool, default False
        Take a run that is not complete.
    inputs : sequence of str, default ()
        Where the input lies, if not where the run had it.
    encoding : str, optional
        Of a table that is files of text.

    Raises
    ------
    RunError
        If the run is not complete.
    ConfigError
        If the input is on a server that the user did not name.
    InputChangedError
        If an input is another one than when it was scored.
    InputError
        If files or columns are missing.
    """
    out = as_path(held_standard_input()[0] if out == STANDARD_INPUT else out)
    if read_json(out / "run.json") is None:
        if (out / "scores").is_dir():
            raise ConfigError(f"{out} holds scores, but no readable run.json [QA0513]")
        if inputs:
            raise ConfigError(
                f"--input {inputs[0]}: {out} is a table and not an OUT of qaeval score, so it has "
                "no other input [QA0102]"
            )
        return _open_table(out, columns, encoding)
    run = _read_run(out, partial=partial)
    return _open_run(run, columns=columns, partial=partial, inputs=inputs)


def score_files(run: FinishedRun) -> list[InputFile]:
    """Return the files of scores of a run.

    Raises
    ------
    InputError
        If those of an input are not there.
    """
    found, _ = find_inputs([str(run.out / "scores")])
    # Scores of files that are no input any more stay in OUT.
    own = [file for file in found if file.relative in run.file_ids]
    if gone := sorted(set(run.file_ids) - {file.relative for file in own}):
        raise InputError(
            f"{run.out} has no scores of {gone[0]}; run the same qaeval score again [QA0515]"
        )
    return own or found


def corpus_of_scores(out: StoragePath, scores: Sequence[InputFile]) -> Corpus:
    """Return files of scores as a corpus, without their input."""
    files: list[CorpusFile] = []
    start = 0
    for file in scores:
        files.append(CorpusFile(file, None, file.n_rows, start))
        start += file.n_rows
    return Corpus(
        out=out,
        files=tuple(files),
        id_column="id",
        roles={},
        score_names=(),
        described=_described(scores),
    )


def _read_run(out: StoragePath, *, partial: bool) -> FinishedRun:
    is_complete = (out / "_SUCCESS").is_file()
    if not is_complete and not partial:
        raise RunError(
            f"{out} has no _SUCCESS, so the run has not finished. Run the same qaeval score again "
            "to complete it, or use what is there with --partial [QA0512]"
        )
    return read_run(out, is_partial=partial)


def _open_table(path: StoragePath, columns: Mapping[str, str], encoding: str | None) -> Corpus:
    copies = copies_of(InputSection(columns=dict(columns), encoding=encoding), None)
    files, problems = find_inputs([str(path)], copies=copies)
    _check_unique(files)
    _check_same_columns(files)
    found = []
    start = 0
    for file in files:
        found.append(CorpusFile(file, None, file.n_rows, start))
        start += file.n_rows
    columns = {**_usual_roles(files, columns), **columns}
    names = _common_names(files)
    id_column = columns.get("id") or ("id" if "id" in names else None)
    roles = {
        role: columns.get(role, role)
        for role in ROLE_NAMES
        if role != "id" and (role in columns or role in names)
    }
    _check_roles(files, {**roles, **({"id": id_column} if id_column else {})})
    return Corpus(
        out=path,
        files=tuple(found),
        id_column=id_column,
        roles=roles,
        score_names=(),
        described=_described(files),
        has_run=False,
        notes=tuple(problems),
    )


def _usual_roles(files: Sequence[InputFile], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of usual names; a generated question is the question, without another."""
    usual = usual_columns(kinds_of(files), columns)
    for role in ROLE_NAMES:
        check_clear(usual, role)
    found = {role: name for role, name in usual.columns.items() if role in ROLE_NAMES}
    candidate = usual.columns.get("candidate", "")
    has_question = "question" in found or "question" in _common_names(files)
    if usual_form(candidate) in QUESTIONS_OF_SYSTEMS and not has_question:
        found["question"] = candidate
    return found


def _open_run(
    run: FinishedRun, *, columns: Mapping[str, str], partial: bool, inputs: Sequence[str]
) -> Corpus:
    paths = list(inputs or run.config.input.paths)
    found, notes = find_sources(run, inputs)
    sources = list(with_carried(found, run.config.output.carry))
    id_column = run.columns.get("id")
    if columns.get("id", id_column) != id_column:
        raise ConfigError(
            f"--column id={columns['id']}: the scores have the ids of "
            f"{id_column or 'files and row numbers'}; score again with that column to change it "
            "[QA0102]"
        )
    _check_known(run, sources)
    files, unscored = _with_scores(run, sources, partial=partial, is_named=bool(inputs))
    scored = [file.scores for file in files if file.scores is not None]
    given = set(run.config.output.carry)
    score_names = tuple(
        name for name in scored[0].schema.names if name != "id" and name not in given
    )
    own = [file.source for file in files]
    _check_unique(own)
    _check_names(own, score_names)
    roles = _roles(run, columns, _common_names(own))
    _check_roles(own, {**roles, **({"id": id_column} if id_column else {})})
    is_complete = (run.out / "_SUCCESS").is_file()
    notes += [*unscored, *_doubts(run, columns, roles, own, is_complete=is_complete)]
    return Corpus(
        out=run.out,
        files=tuple(files),
        id_column=id_column,
        roles=roles,
        score_names=score_names,
        described=_described(scored),
        instances=run.instances,
        is_complete=is_complete,
        notes=tuple(notes),
        folders=tuple(own for own in map(_place_of, paths) if own is not None and own.is_dir()),
    )


def _doubts(
    run: FinishedRun,
    columns: Mapping[str, str],
    roles: Mapping[str, str],
    files: Sequence[InputFile],
    *,
    is_complete: bool,
) -> Iterator[str]:
    """Yield notes on what people may not expect of a run's corpus."""
    question = roles.get("question")
    if question != "question" and "question" not in columns and "question" in _common_names(files):
        yield (
            f"questions are those of column {question!r}, the candidates of this run; "
            "--column question=question takes the other column"
        )
    if not is_complete:
        yield f"{run.out} is not complete, so this is a part of the corpus"


def _with_scores(
    run: FinishedRun, sources: Sequence[InputFile], *, partial: bool, is_named: bool
) -> tuple[list[CorpusFile], list[str]]:
    """Return the files that have scores, at least one, and notes on those that have none yet."""
    files: list[CorpusFile] = []
    notes = []
    for source in sources:
        # Elsewhere a file has another place and time: its ids tell whether it is the same.
        before = run.file_ids.get(source.relative, source.file_id)
        compares_ids = is_named and before != source.file_id and "id" in run.columns
        _check_unchanged(run, source, compares_ids=compares_ids)
        scores = _scores_of(run.out, source)
        if scores is not None:
            start = files[-1].start + files[-1].n_rows if files else 0
            files.append(CorpusFile(source, scores, scores.n_rows, start, compares_ids))
        elif partial:
            notes.append(f"{source.name} has no scores yet, and is skipped")
        else:
            raise InputError(f"{source.name} has no scores in {run.out} [QA0515]")
    if not files:
        raise InputError(f"{run.out} has no scores of any input file [QA0515]")
    return files, notes


def _place_of(path: str) -> StoragePath | None:
    """Return a path or URI as a place that KEPT could lie in; None where it never is."""
    try:
        return as_path(path)
    except ConfigError:  # Of stores that are read alone.
        return None


def _check_known(run: FinishedRun, sources: Sequence[InputFile]) -> None:
    """Raise InputError unless the input is the files that were scored."""
    names = {source.relative for source in sources}
    for relative in run.file_ids:
        if relative not in names:
            raise InputError(
                f"{relative} was scored, and is no longer an input; name it with --input [QA0515]"
            )
    for relative in sorted(names - set(run.file_ids)):
        path = run.out / "scores" / relative
        # Of a file without rows, and of those beyond a limit, no shard was planned.
        if not (path.is_file() and pq.read_metadata(path.source()).num_rows == 0):
            raise InputError(
                f"{relative} was never scored; run the same qaeval score again to add it [QA0515]"
            )


def _check_unchanged(run: FinishedRun, source: InputFile, *, compares_ids: bool) -> None:
    if run.file_ids.get(source.relative, source.file_id) == source.file_id or compares_ids:
        return
    raise InputChangedError(
        f"{source.name} changed since it was scored; run the same qaeval score again [QA0309]"
    )


def _scores_of(out: StoragePath, source: InputFile) -> InputFile | None:
    path = out / "scores" / source.relative
    if not path.is_file():
        return None
    (scores,), _ = find_inputs([str(path)])
    if scores.n_rows > source.n_rows:
        raise InputError(
            f"{path} has {scores.n_rows:,} rows, its input {source.n_rows:,}; run the same qaeval "
            "score again [QA0515]"
        )
    return scores


def _roles(run: FinishedRun, columns: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the columns of question, context and answer."""
    # Of generated questions, the question is the candidate, whatever else the input holds.
    scored = dict(run.columns)
    candidate = usual_form(scored.get("candidate", ""))
    # Where references are read, a usual name of answers is clear.
    are_answers = candidate in ANSWERS_OF_SYSTEMS and "references" in scored
    if "question" not in scored and candidate and not are_answers:
        scored["question"] = scored["candidate"]
    mapped = {**run.config.input.columns, **scored, **columns}
    return {
        role: mapped.get(role, role)
        for role in ROLE_NAMES
        if role != "id" and (role in mapped or role in names)
    }


def _common_names(files: Sequence[InputFile]) -> list[str]:
    return [
        name for name in files[0].schema.names if all(name in file.schema.names for file in files)
    ]


def _check_roles(files: Sequence[InputFile], roles: Mapping[str, str]) -> None:
    for file in files:
        for role, column in roles.items():
            kind = file.type_of(column)
            if kind is None:
                raise SchemaError(
                    f"{file.name}: no column {column!r} for the role "
                    f"{role}{nearest(column, paths(file.schema))} [QA0305]"
                )
            if file.schema.names.count(column) > 1:
                raise SchemaError(f"{file.name}: the column {column!r} exists twice [QA0308]")
            if role != "id" and not fits_role(kind, role):
                cast = "; cast it to text" if is_bytes(kind) else ""
                raise SchemaError(
                    f"{file.name}: column {column!r} is {kind}, no {role}{cast} [QA0306]"
                )


def _check_names(files: Sequence[InputFile], score_names: Sequence[str]) -> None:
    for file in files:
        if both := sorted(set(file.schema.names) & set(score_names)):
            raise SchemaError(
                f"{file.name}: column {both[0]!r} has the name of a score, and kept rows have "
                "both. Rename it, or score under another instance name [QA0308]"
            )


def _check_unique(files: Sequence[InputFile]) -> None:
    for file in files:
        names = file.schema.names
        if twice := [name for name in names if names.count(name) > 1]:
            raise SchemaError(f"{file.name}: the column {twice[0]!r} exists twice [QA0308]")


def _check_same_columns(files: Sequence[InputFile]) -> None:
    for file in files:
        if differing := sorted(set(file.schema.names) ^ set(files[0].schema.names)):
            raise SchemaError(
                f"{file.name} and {files[0].name} have different columns: "
                f"{', '.join(differing[:8])} [QA0307]"
            )


def _described(files: Sequence[InputFile]) -> dict[str, ScoreColumn]:
    found: dict[str, ScoreColumn] = {}
    for file in files:
        text = (file.schema.metadata or {}).get(COLUMNS_METADATA)
        for name, column in described_columns(text, file.uri).items():
            if found.setdefault(name, column).signature != column.signature:
                raise SchemaError(
                    f"{file.name}: {name} was scored with other settings than in the files "
                    "before; run the same qaeval score again [QA0515]"
                )
    return found
