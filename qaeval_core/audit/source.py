"""Source: a finished run as an audit reads it: its columns, their ranges, clusters and slices.

The scores are enough, unless clusters are of a role such as the context: then the input is read
again, beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from qaeval_core.audit.audited_columns import RowColumns, Watched
from qaeval_core.audit.request import AuditRequest
from qaeval_core.errors import (
    ConfigError,
    InputError,
    QAEvalError,
    SchemaError,
    UnreadableFileError,
    first_problem,
    nearest,
)
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.listing import one_a_folder
from qaeval_core.schema import COLUMNS_METADATA, QUARANTINE_REASON, ROLES, is_list
from qaeval_core.tables.conditions import check_condition
from qaeval_core.tables.corpus import Corpus
from qaeval_core.tables.finished_run import FinishedRun
from qaeval_core.tables.open_corpus import corpus_of_scores, open_corpus, score_files

DEFAULT_CLUSTER = "context"
# What ids are called among the columns of any input.
ROW_ID = "\x00id"


@dataclass(frozen=True, slots=True)
class ScoreRange(Watched):
    """What a score file says of one of its columns."""

    output: str = ""


_RANGES = TypeAdapter(dict[str, ScoreRange])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run's rows and what of them is counted.

    Attributes
    ----------
    corpus : Corpus
        Of the scores alone, or of these beside their input.
    rows : RowColumns
    cluster : str
        What clusters are, for people and for the next run: a role or a column.
    others : tuple of str
        Columns that are read besides those that ``rows`` names.
    """

    corpus: Corpus
    rows: RowColumns
    cluster: str
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Columns that are read, but for ids."""
        wanted = [*self.rows.watch, *self.rows.by, *self.others]
        if self.rows.cluster is not None:
            wanted.append(self.rows.cluster)
        return list(dict.fromkeys(wanted))

    @property
    def looked_at(self) -> list[str]:
        """Files that whoever works must see: one of each folder."""
        files = self.corpus.files
        return one_a_folder(
            [own.uri for file in files for own in (file.source, file.scores) if own]
        )


def open_source(
    run: FinishedRun, request: AuditRequest, *, by: Sequence[str] = (), cluster: str = ""
) -> Source:
    """Return a run as a request wants it read.

    Parameters
    ----------
    run : FinishedRun
    request : AuditRequest
    by, cluster
        Those of the reference, where the request says none.

    Raises
    ------
    ConfigError
        If a column is not there, holds no numbers, or cannot name groups.
    InputError
        If the input is needed and is not there, or the scores are not whole.
    """
    scores = score_files(run)
    schema = scores[0].schema
    ranges = _ranges(scores)
    watch = _watched(request.watch, schema, ranges)
    notes = [] if watch else ["no column is described as a score: rows are audited alone"]
    given_by = request.by or tuple(by)
    slices = tuple(name if name in schema.names else _role_column(run, name) for name in given_by)
    for name in slices:
        _check_key(schema, name, "--by")
    others = [QUARANTINE_REASON]
    for name, own in watch.items():
        others += [f"{instance_of(name, own)}_reason", f"{name}_truncated"]
    if request.kept is not None:
        others += check_condition(request.kept, list(schema), "--kept")
    given = request.cluster or cluster or DEFAULT_CLUSTER
    corpus, cluster_column = _clusters(run, given, scores, request.inputs)
    return Source(
        corpus=corpus,
        rows=RowColumns(
            watch=watch, by=slices, cluster=cluster_column, id=ROW_ID, kept=request.kept
        ),
        cluster=given,
        others=tuple(name for name in others if name in schema.names),
        notes=(*corpus.notes, *notes),
    )


def _ranges(files: Sequence[InputFile]) -> dict[str, ScoreRange]:
    ranges: dict[str, ScoreRange] = {}
    for file in files:
        text = (file.schema.metadata or {}).get(COLUMNS_METADATA)
        try:
            own = _RANGES.validate_json(text) if text is not None else {}
        except ValidationError as error:
            raise UnreadableFileError(
                f"{file.uri}: the description of its columns is damaged: "
                f"{first_problem(error)} [QA0514]"
            ) from None
        for name, each in own.items():
            if ranges.setdefault(name, each).signature != each.signature:
                raise SchemaError(
                    f"{file.name}: {name} was scored with other settings than in the files "
                    "before; run the same qaeval score again [QA0515]"
                )
    return ranges


def _watched(
    names: Sequence[str], schema: pa.Schema, ranges: Mapping[str, ScoreRange]
) -> dict[str, Watched]:
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"--watch: no column {name!r}{nearest(name, schema.names)} [QA0305]")
        if not _is_number(schema.field(name).type):
            kind = schema.field(name).type
            raise ConfigError(
                f"--watch: column {name!r} is {kind}, and a number is needed [QA0306]"
            )
    described = [
        name
        for name in ranges
        if name in schema.names and pa.types.is_floating(schema.field(name).type)
    ]
    return {name: ranges.get(name, ScoreRange()) for name in dict.fromkeys(names or described)}


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def instance_of(name: str, own: Watched) -> str:
    """Return the instance of a metric that wrote a column."""
    output = own.output if isinstance(own, ScoreRange) else ""
    return name.removesuffix(f"_{output}") if output else name


def _check_key(schema: pa.Schema, name: str, option: str) -> None:
    if name not in schema.names:
        raise ConfigError(
            f"{option}: the scores have no column {name!r}{nearest(name, schema.names)} (qaeval "
            "score --carry copies columns of the input) [QA0305]"
        )
    kind = schema.field(name).type
    if is_list(kind) or pa.types.is_struct(kind):
        raise ConfigError(
            f"{option}: column {name!r} is {kind}, and one value for each row is needed [QA0306]"
        )


def _clusters(
    run: FinishedRun, cluster: str, scores: Sequence[InputFile], inputs: Sequence[str]
) -> tuple[Corpus, str | None]:
    """Return the rows, and their column of clusters; None for ids."""
    schema = scores[0].schema
    if cluster == "id":
        return corpus_of_scores(run.out, scores), None
    column = _role_column(run, cluster)
    if column in run.config.output.carry or (cluster not in ROLES and cluster in schema.names):
        _check_key(schema, column, "--cluster")
        return corpus_of_scores(run.out, scores), column
    if cluster not in ROLES:
        known = list(dict.fromkeys(["id", *ROLES, *run.config.output.carry]))
        raise ConfigError(
            f"--cluster: no role or column {cluster!r}{nearest(cluster, known)} [QA0105]"
        )
    try:
        corpus = open_corpus(run.out, columns={}, inputs=inputs)
    except QAEvalError as error:
        raise InputError(
            f"--cluster {cluster} reads the input again. {error}{_other(run)}"
        ) from None
    names = corpus.files[0].source.schema.names
    if column not in names:
        raise ConfigError(
            f"--cluster {cluster}: the input has no column "
            f"{column!r}{nearest(column, names)}{_other(run)} [QA0305]"
        )
    return corpus, column


def _role_column(run: FinishedRun, role: str) -> str:
    return run.columns.get(role) or run.config.input.columns.get(role) or role


def _other(run: FinishedRun) -> str:
    carried = [f"--cluster {name}" for name in run.config.output.carry]
    hint = f"{' or '.join(carried)} (carried in the scores)" if carried else ""
    return f"\nWithout the input: {' or '.join(filter(None, [hint, '--cluster id']))}"
