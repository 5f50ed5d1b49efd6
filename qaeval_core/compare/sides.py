"""Sides: what is compared, opened: an OUT or a table for each system, or one of several systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from qaeval_core.compare.request import CompareRequest
from qaeval_core.errors import ConfigError, QAEvalError, SchemaError, nearest
from qaeval_core.pages.example_rows import main_columns, read_texts
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.running.range_executor import RETRY_S
from qaeval_core.storage.path import as_path, read_json
from qaeval_core.storage.retry import Outages
from qaeval_core.tables.corpus import Corpus
from qaeval_core.tables.finished_run import read_run
from qaeval_core.tables.open_corpus import corpus_of_scores, open_corpus, score_files
from qaeval_core.tables.score_tables import ScoreColumn

# What rows share, in this order.
_CLUSTER_ROLES = ("context", "question")
NO_CLUSTER = "none"
# Parts of a readable signature that are of a run's rows.
_OF_ROWS = ("n:", "ci:")


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """Rows of one system, or of several that a column tells apart.

    Attributes
    ----------
    texts : mapping of role to column
        What a person reads of a row; empty where texts cannot be read, or shall not be shown.
    may_show : bool
        Whether texts may be shown.
    why : str
        Why its input is not read.
    """

    name: str
    corpus: Corpus
    texts: Mapping[str, str]
    may_show: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class ComparedSides:
    """What is compared.

    Attributes
    ----------
    metrics : mapping of column to ScoreColumn
    signatures : mapping of column to str
        How its scores were made, as people read it.
    cluster : str
        The role or column that rows share; "" where each row is alone.
    cluster_columns : tuple of str
        Its column on each side; empty where each row is alone.
    """

    sides: tuple[ComparedSide, ...]
    metrics: Mapping[str, ScoreColumn]
    signatures: Mapping[str, str]
    cluster: str
    cluster_columns: tuple[str, ...]
    notes: tuple[str, ...] = ()


def open_sides(request: CompareRequest) -> ComparedSides:
    """Open what a request names; only footers and what runs wrote are read.

    Raises
    ------
    ConfigError, InputError
        If an OUT or a column is not there, or scores are of different settings.
    """
    notes: list[str] = []
    sides = tuple(_side(name, path, request, notes) for name, path in request.scores)
    metrics = _metrics(sides, request)
    for name in (request.system, request.on, *request.by):
        for side in sides if name is not None else ():
            _check_there(side, str(name))
    _check_settings(sides, metrics, request, notes)
    if request.on is None and any(side.corpus.id_column is None for side in sides):
        notes.append("rows have no ids: they are paired by the names of files and their places")
    cluster, columns = _clusters(sides, request)
    signatures = _signatures(sides[0], metrics)
    return ComparedSides(sides, metrics, signatures, cluster, columns, tuple(notes))


def _signatures(side: ComparedSide, metrics: Mapping[str, ScoreColumn]) -> dict[str, str]:
    """Return the readable signature of each metric, less what is of one run's rows."""
    report = read_json(side.corpus.out / "report.json") if side.corpus.has_run else None
    instances = (report or {}).get("instances", {})
    found = {}
    for name, column in metrics.items():
        own = [one for one in instances if name == one or name.startswith(f"{one}_")]
        text = instances[max(own, key=len)].get("readable", "") if own else ""
        kept = [part for part in text.split("|") if not part.startswith(_OF_ROWS)]
        found[name] = "|".join(kept) or column.signature
    return found


def _side(name: str, path: str, request: CompareRequest, notes: list[str]) -> ComparedSide:
    out = as_path(path)
    if not (out / "run.json").is_file():
        corpus = open_corpus(path, columns={})
        return ComparedSide(name, corpus, corpus.roles)
    try:
        corpus = open_corpus(path, columns={}, inputs=request.inputs)
    except QAEvalError as error:
        run = read_run(path)
        corpus = corpus_of_scores(run.out, score_files(run))
        corpus = replace(corpus, instances=run.instances)
        notes.append(
            f"{name}: its input is not read, so no texts are shown, and rows may count as "
            f"independent. {error}"
        )
        return ComparedSide(name, corpus, {}, run.config.output.texts, str(error))
    notes += corpus.notes
    run = read_run(path, is_partial=True)
    texts = {role: column for role, column in run.columns.items() if role != "id"}
    may_show = run.config.output.texts
    return ComparedSide(name, corpus, {**corpus.roles, **texts} if may_show else {}, may_show)


def _check_there(side: ComparedSide, name: str) -> None:
    if name not in side.corpus.names:
        why = f"; its input is not read: {side.why}" if side.why else ""
        raise SchemaError(
            f"{side.name}: no column {name!r}{nearest(name, side.corpus.names)}{why} [QA0305]"
        )


def _metrics(sides: Sequence[ComparedSide], request: CompareRequest) -> dict[str, ScoreColumn]:
    """Return the columns that are compared: as named, else the main one of each metric."""
    corpora = [side.corpus for side in sides]
    for name in request.metrics:
        for side in sides:
            _check_there(side, name)
            if not _is_number(side.corpus, name):
                kind = side.corpus.field(name).type
                raise SchemaError(
                    f"{side.name}: column {name!r} is {kind}, and a number is needed [QA0306]"
                )
    if request.metrics:
        return {name: _described(sides, name) for name in dict.fromkeys(request.metrics)}
    main = [_main_columns(own) for own in corpora]
    shared = [name for name in main[0] if all(name in own for own in main)]
    if not shared:
        numeric = [name for name in corpora[0].names if _is_number(corpora[0], name)]
        raise ConfigError(
            "no column is described as a score of every system; name some with --metrics. Numeric "
            f"columns: {', '.join(numeric) or 'none'} [QA0314]"
        )
    return {name: _described(sides, name) for name in shared}


def _main_columns(corpus: Corpus) -> list[str]:
    if corpus.instances:
        return main_columns({"instances": corpus.instances, "columns": corpus.described})
    return [name for name, own in corpus.described.items() if own.output == ""]


def _described(sides: Sequence[ComparedSide], name: str) -> ScoreColumn:
    """Return what the sides say of a column.

    Raises
    ------
    ConfigError
        If lower is better for some of them.
    """
    told = {own.name: own.corpus.described[name] for own in sides if name in own.corpus.described}
    if len({own.higher_is_better for own in told.values()}) > 1:
        raise ConfigError(
            f"{name}: higher is better in some of {', '.join(told)}, and lower in others [QA0326]"
        )
    return next(iter(told.values()), ScoreColumn())


def _is_number(corpus: Corpus, name: str) -> bool:
    kind = corpus.field(name).type
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def _check_settings(
    sides: Sequence[ComparedSide],
    metrics: Mapping[str, ScoreColumn],
    request: CompareRequest,
    notes: list[str],
) -> None:
    """Raise ConfigError if a metric was scored in different ways; note it where that is wanted."""
    for name in metrics:
        first, *others = (
            (side.name, side.corpus.described.get(name, ScoreColumn()).signature) for side in sides
        )
        for other in others:
            if other[1] == first[1]:
                continue
            if not request.anyway:
                raise ConfigError(
                    f"{name} was scored in different ways: {first[0]} has {first[1] or 'none'}, "
                    f"{other[0]} has {other[1] or 'none'}. Score both alike, or compare them with "
                    "--anyway [QA0326]"
                )
            notes.append(f"{name} was scored in different ways by {first[0]} and {other[0]}")


def _clusters(
    sides: Sequence[ComparedSide], request: CompareRequest
) -> tuple[str, tuple[str, ...]]:
    """Return what rows share, and its column on each side."""
    asked = request.cluster
    if asked == NO_CLUSTER:
        return "", ()
    for role in (asked,) if asked is not None else _CLUSTER_ROLES:
        columns = [_role_column(side, role) for side in sides]
        if all(columns):
            return role, tuple(map(str, columns))
    if asked is not None:
        for side in sides:
            _check_there(side, asked)
    return "", ()


def _role_column(side: ComparedSide, role: str) -> str | None:
    corpus = side.corpus
    # The question of a run may be its candidate, which another system lacks.
    column = role if role in corpus.names else corpus.roles.get(role)
    return column if column in corpus.names else None


def texts_of(side: ComparedSide, rows: Sequence[int]) -> dict[int, Mapping[str, object]]:
    """Return the texts of rows by their numbers in the corpus."""
    files = side.corpus.files
    places = {}
    for row in rows:
        file = next(own for own in reversed(files) if own.start <= row and own.n_rows)
        places[file.relative, row - file.start] = row
    texts = read_texts(
        list(places),
        files=[file.source for file in files],
        n_rows={file.source.file_id: file.n_rows for file in files},
        columns=side.texts,
        limits=ReadLimits(),
        outages=Outages(retry_s=RETRY_S),
    )
    return {places[place]: own for place, own in texts.items()}
