"""Scorer: the Python API; rows in memory in, a table of scores out, no Ray and no files."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from qaeval_core.configure import RunConfig, load_config
from qaeval_core.errors import ConfigError, SchemaError, nearest
from qaeval_core.families.chat.family import is_chat
from qaeval_core.families.contract import (
    DocumentFrequencies,
    Engine,
    FamilyPlan,
    Runner,
    statistics_table,
)
from qaeval_core.families.validate import table_rows, with_no_answers
from qaeval_core.families.words.frequencies import (
    count_documents,
    read_frequencies,
)
from qaeval_core.families.words.rows import Tokenizers, WordTables
from qaeval_core.metrics.base import AnyMetric, Metric
from qaeval_core.metrics.catalog import METRICS, metric_name
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.models.artifact import artifact_root, ensure_artifact
from qaeval_core.models.engine import Device
from qaeval_core.planning.columns import check_type, field_of, optional_columns, role_column
from qaeval_core.planning.compile import (
    compile_run,
    export_limits,
    needed_roles,
    optional_roles,
)
from qaeval_core.planning.packages import check_packages
from qaeval_core.planning.run_plan import CompiledRun, check_output_names
from qaeval_core.planning.usual_columns import check_clear, usual_columns
from qaeval_core.running.score_rows import score_rows
from qaeval_core.schema import ROLES
from qaeval_core.text.given_tables import (
    appended,
    check_new,
    given_table,
    last_text,
    last_texts,
)
from qaeval_core.text.plain_columns import (
    column_at,
    column_type,
    paths,
    plain_table,
    top_name,
    value_at,
)
from qaeval_core.text.text_notes import MAX_LOOKED_AT, printed_note

MetricLike: TypeAlias = str | AnyMetric | Callable[..., Any]
# Of mappings, or whatever `given_table` takes.
Rows: TypeAlias = Any


class Scorer:
    """Scores rows; loads each model once and keeps it.

    Parameters
    ----------
    metrics : sequence of str, Metric or function, or mapping of str to settings
        Names, `Metric` objects or plain functions such as ``score(candidate, references)``. Or
        instances with settings as under ``metrics:`` of a configuration; the setting ``metric``
        may be an object or a function, too.
    columns : mapping of role to column name, optional
        Default: columns named like the roles, or by their usual names, which a warning tells;
        ``candidate`` falls back to ``question``.
    config : RunConfig, optional
        Models, budgets and artifacts; ``metrics`` and ``columns`` replace its own.
    device : {"cpu", "cuda"}, default "cpu"
    n_threads : int, optional
        Threads of one operator on the CPU; default all.

    Raises
    ------
    QAEvalError
        If settings are wrong, or a model cannot be had or exported.

    Examples
    --------
    >>> rows = Scorer(["f1"]).score([{"candidate": "in Oslo", "references": ["Oslo, in 1987"]}])
    >>> round(rows[0]["f1"], 2)
    0.8
    """

    def __init__(
        self,
        metrics: str | Sequence[MetricLike] | Mapping[str, Mapping[str, object]],
        *,
        columns: Mapping[str, str] | None = None,
        config: RunConfig | None = None,
        device: Device = "cpu",
        n_threads: int | None = None,
    ) -> None:
        settings = metrics if isinstance(metrics, Mapping) else _instances(metrics)
        if not settings:
            raise ConfigError(f"no metric is named; choose from: {', '.join(METRICS)} [QA0206]")
        own = load_config(
            overrides={f"metrics.{name}": dict(settings[name] or {}) for name in settings}
        )
        base = config or own
        self.config = base.model_copy(update={"metrics": own.metrics})
        self._mapping = dict(columns or base.input.columns)
        for role in self._mapping:
            if role not in ROLES:
                raise ConfigError(f"no role {role!r}{nearest(role, ROLES)} [QA0105]")
        self._device: Device = device
        self._n_threads = n_threads
        self._runners: dict[str, Runner] = {}
        self._tokenizers = Tokenizers()

    def __repr__(self) -> str:
        return f"Scorer({', '.join(self.config.metrics)})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    def __getstate__(self) -> dict[str, Any]:
        # Models are loaded again where the scorer is used: sessions are of one process.
        return {**self.__dict__, "_runners": {}, "_tokenizers": Tokenizers()}

    def __call__(self, rows: Rows) -> Any:
        """Return what `score` does, for whoever maps over batches, such as actors of Ray Data."""
        return self.score(rows)

    def score(self, rows: Rows, *, append: bool = False) -> Any:
        """Return the score columns of rows, in their order.

        Parameters
        ----------
        rows : table or sequence of mappings
            pyarrow Table or RecordBatch, polars DataFrame or LazyFrame, pandas DataFrame,
            ``datasets.Dataset``, mapping of column to list or ndarray, or whatever speaks Arrow's
            PyCapsule protocol. A list of chat messages is taken as the text of its last one.
        append : bool, default False
            Put the scores behind the columns of the input.

        Returns
        -------
        table
            Of the kind given, a list of dicts for mappings: ``id`` where there is one, metric
            columns, ``<instance>_reason`` where a score is undefined, ``quarantine_reason``.

        Raises
        ------
        SchemaError
            If a column is missing or has the wrong type.
        """
        given = given_table(rows)
        if given is not None:
            scores = self._score(given.table)
            return given.back(appended(given.table, scores) if append else scores)
        found = self._score(rows).to_pylist()
        if not append:
            return found
        taken = sorted({name for row in rows for name in row} & set(found[0] if found else ()))
        check_new(name for name in taken if name != "id")
        return [{**own, **row} for own, row in zip(found, rows, strict=True)]

    def _score(self, rows: pa.Table | Sequence[Mapping[str, object]]) -> pa.Table:
        is_binary_text = self.config.input.binary_as_text
        table, names = _as_table(rows, binary_as_text=is_binary_text)
        roles = needed_roles(self.config)
        usual = usual_columns(_kinds(rows, table, names), self._mapping, roles=roles)
        for role in roles:
            check_clear(usual, role)
        mapping = {**usual.columns, **self._mapping}
        columns = {role: role_column(role, names, mapping) for role in roles}
        columns.update(optional_columns(optional_roles(self.config), names, mapping))
        if table is not None:
            kinds = {name: column_type(table.schema, name) for name in columns.values()}
            columns = {
                role: field_of(kinds[name], role=role, column=name)
                for role, name in columns.items()
            }
        values = _role_values(rows, table, columns)
        identity = self._mapping.get("id", "id")
        has_ids = "id" in self._mapping or identity in names
        ids = _ids(rows, table, identity) if has_ids else None
        if self.config.input.unanswerable == "empty":
            values = with_no_answers(values)
        notes: list[str | None] = [usual.line(columns, option="columns={role: name}")]
        notes += [printed_note(columns[role], own[:MAX_LOOKED_AT]) for role, own in values.items()]
        for note in filter(None, notes):
            warnings.warn(note, stacklevel=3)
        run = self.compile(columns)
        scores = score_rows(run, self.statistics(run, values))
        return scores if ids is None else scores.add_column(0, "id", ids)

    def compile(self, columns: Mapping[str, str]) -> CompiledRun:
        """Return families and instances for roles read from these columns."""
        models = self.config.models
        check_packages(self.config, device=self._device)
        run = compile_run(
            self.config,
            columns=columns,
            device=self._device,
            resolve_artifact=lambda request: ensure_artifact(
                artifact_root(models.artifacts_path),
                request,
                build=models.build,
                limits=export_limits(models, request),
            ),
        )
        check_output_names(run)
        return run

    def statistics(
        self, run: CompiledRun, values: Mapping[str, Sequence[object]]
    ) -> dict[str, pa.Table]:
        """Return the raw statistics of rows, by family; texts are tokenized once for all.

        Parameters
        ----------
        run : CompiledRun
            Of `compile`.
        values : mapping of role to values
            One value per row.
        """
        statistics: dict[str, pa.Table] = {}
        texts = WordTables(self._tokenizers)
        for plans in run.passes:
            works = []
            # All texts are tokenized before any is counted.
            for plan in plans:
                runner = self._runner(plan, statistics)
                own = {role: values[role] for role in plan.columns}
                works.append((plan, runner, runner.layout.prepare(own, texts)))
            for plan, runner, prepared in works:
                runner.run(prepared)
                statistics[plan.key] = statistics_table(prepared, first_position=0)
        return statistics

    def _runner(self, plan: FamilyPlan, statistics: Mapping[str, pa.Table]) -> Runner:
        """Return a family's runner; one that depends on all rows is made anew."""

        def frequencies(family: FamilyPlan) -> DocumentFrequencies:
            if not family.after:
                return read_frequencies(family.frequencies_path, words=family.words)
            grams = statistics[family.after].column("grams").combine_chunks()
            return count_documents([grams], words=family.words, min_rows=family.min_documents)

        if plan.after or plan.key not in self._runners:
            engine = Engine(
                models=self.config.models,
                device=self._device,
                n_threads=self._n_threads,
                load_frequencies=frequencies,
                open_calls=_open_calls,
            )
            self._runners[plan.key] = plan.open_runner(engine)
        return self._runners[plan.key]


def _instances(metrics: str | Sequence[MetricLike]) -> dict[str, Mapping[str, object]]:
    """Return an instance for each metric, under its name.

    Raises
    ------
    ConfigError
        If two have one name, or one is no metric.
    """
    found: dict[str, Mapping[str, object]] = {}
    for given in (metrics,) if isinstance(metrics, str) else metrics:
        own = given if isinstance(given, str | Metric) else FunctionMetric(given)
        name = metric_name(own) if isinstance(own, str) else own.name
        if name in found and not (isinstance(own, str) and not found[name]):
            raise ConfigError(
                f"two metrics have the name {name}; give one of them another name [QA0208]"
            )
        found[name] = {} if isinstance(own, str) else {"metric": own}
    return found


def score_table(rows: Rows, metrics: Any, *, append: bool = False, **options: Any) -> Any:
    """Score rows once; see `Scorer` for the options, and use it where more calls follow.

    Parameters
    ----------
    rows : table or sequence of mappings
        As of `Scorer.score`.
    metrics : sequence of str, Metric or function, or mapping of str to settings
    append : bool, default False
        Put the scores behind the columns of the input.
    **options
        Of `Scorer`.

    Returns
    -------
    table
        Of the kind given.
    """
    return Scorer(metrics, **options).score(rows, append=append)


def _as_table(rows: Rows, *, binary_as_text: bool) -> tuple[pa.Table | None, list[str]]:
    """Return (table of plain columns, or None for mappings, column names)."""
    if isinstance(rows, pa.Table):
        rows = last_texts(rows)
        return plain_table(rows, binary_as_text=binary_as_text), list(rows.column_names)
    return None, _names(rows)


def _kinds(rows: Rows, table: pa.Table | None, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the type of each column; of mappings that of the first value that there is."""
    if table is not None:
        return {name: column_type(table.schema, name) or pa.null() for name in names}
    kinds = {}
    for name in names:
        values = (record.get(name) for record in _records(rows))
        first = next((value for value in values if value is not None), None)
        try:
            kinds[name] = pa.array([first]).type
        except (pa.ArrowException, UnicodeEncodeError, OverflowError):
            kinds[name] = pa.null()
    return kinds


def _names(rows: Rows) -> list[str]:
    """Return the keys of all mappings."""
    return list(dict.fromkeys(name for record in _records(rows) for name in record))


def _records(rows: Rows) -> Sequence[Mapping[str, object]]:
    if isinstance(rows, Sequence) and all(isinstance(record, Mapping) for record in rows):
        return rows
    raise SchemaError(
        f"rows must be a table or a list of mappings, not {type(rows).__name__} [QA0320]"
    )


def _role_values(
    rows: Rows, table: pa.Table | None, columns: Mapping[str, str]
) -> dict[str, list[object]]:
    for column in columns.values():
        _check_there(rows, table, column)
    if table is None:
        # Not through Arrow, which infers one type a column: a wrongly typed value shall
        # quarantine its row, not fail the rest.
        return {
            role: [_readable(_of_record(record, column)) for record in _records(rows)]
            for role, column in columns.items()
        }
    found = {column: column_at(table, column) for column in columns.values()}
    for role, column in columns.items():
        check_type(found[column].type, role=role, column=column)
    return table_rows(pa.table(found), columns=columns)


def _of_record(record: Mapping[str, object], column: str) -> object:
    """Return a value of a row, or what a path leads to."""
    top = top_name([*record], column)
    if top is None or top == column:
        return record.get(column)
    return value_at(record[top], column[len(top) + 1 :].split("."))


def _readable(value: object) -> object:
    """Return a value, or why its text is none: half of a surrogate pair is no character."""
    value = last_text(value.tolist() if isinstance(value, np.ndarray) else value)
    try:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                text.encode()
    except UnicodeEncodeError as error:
        return error
    return value


def _check_there(rows: Rows, table: pa.Table | None, column: str) -> None:
    """Raise SchemaError if no row has a column, or what a path leads to."""
    if table is not None:
        known, is_there = paths(table.schema), column_type(table.schema, column) is not None
    else:
        known = _names(rows)
        is_there = not _records(rows) or column in known
        is_there = is_there or any(_of_record(row, column) is not None for row in _records(rows))
    if not is_there:
        raise SchemaError(f"no column {column!r}{nearest(column, known)} [QA0305]")


def _ids(rows: Rows, table: pa.Table | None, column: str) -> pa.Array | pa.ChunkedArray:
    _check_there(rows, table, column)
    if table is not None:
        return column_at(table, column)
    values = [_of_record(record, column) for record in _records(rows)]
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _open_calls(plan: FamilyPlan) -> Runner:
    # Imported here: HTTP takes a tenth of a second that other metrics need not pay.
    from qaeval_core.running.local_asking import ChatRunner

    assert is_chat(plan)
    return ChatRunner(plan)
