"""Plan: a request and a corpus to stages: which columns decide what, and in which direction.

Whatever can be wrong with a request is found here, from footers alone, before rows are filtered;
of texts the first are looked at, for a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError, SchemaError, nearest
from qaeval_core.filter.corpus_rows import BYTES_PER_ROW, MAPPED_BYTES_PER_ROW
from qaeval_core.filter.facts import RULE_REASONS, ColumnRank, Rank, Stages
from qaeval_core.filter.request import FilterRequest, NearDuplicates
from qaeval_core.running.reader import first_texts
from qaeval_core.signature import hash_text
from qaeval_core.stats.learned_rank import LearnedRank
from qaeval_core.storage.path import as_path
from qaeval_core.storage.wary import read_given
from qaeval_core.tables.conditions import check_condition
from qaeval_core.tables.corpus import Corpus, CorpusFile
from qaeval_core.tables.score_tables import numbers, table_files
from qaeval_core.text.text_notes import is_unspaced

# What a filter does is in the fingerprint of what it wrote.
VERSION = "6"
_NO_PART_IN_RANKING = (
    "precision",
    "confidence",
    "looks",
    "labels",
    "label",
    "blank",
    "label_sheet",
    "rank_by",
)
# Behind a column's name: the lowest or the highest first.
ORDERS = ("asc", "desc")
# A reason is a byte of each row.
_MAX_REASONS = 256


@dataclass(frozen=True, slots=True)
class CombinedRank:
    """A learned combination of columns."""

    learned: LearnedRank
    name: str = "combine"
    higher_is_better: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it weighs."""
        return tuple(column.name for column in self.learned.columns)

    def values(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return logits; a missing value weighs what it was learned to."""
        return self.learned.score(features_of(frame, self.columns))


@dataclass(frozen=True, slots=True)
class NoRank:
    """No order yet: all rows are equal, and a missing value drops none, as in a learned one."""

    columns: tuple[str, ...]
    name: str = "combine"
    higher_is_better: bool = True

    def values(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(len(frame))


def features_of(frame: pl.DataFrame, names: Iterable[str]) -> NDArray[np.float64]:
    """Return columns as floats, of shape (n_rows, n_columns); NaN where there is no number."""
    return np.asarray(np.column_stack([numbers(frame, name) for name in names]))


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """A checked request.

    Attributes
    ----------
    stages : Stages
    metrics : tuple of str
        Columns whose means a yield curve shows.
    signatures : mapping of column to signature
        Of the columns that decide; empty texts where the table does not say.
    notes : tuple of str
        What a user should know.
    """

    request: FilterRequest
    corpus: Corpus
    stages: Stages
    metrics: tuple[str, ...]
    signatures: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Memory that all rows take on the machine that decides, if they are not mapped."""
        return self.bytes_per_row * self.corpus.n_rows

    @property
    def n_mapped_bytes(self) -> int:
        """Disk that they take there, if they are mapped."""
        return self.mapped_bytes_per_row * self.corpus.n_rows

    @property
    def bytes_per_row(self) -> int:
        """Memory of a row."""
        return BYTES_PER_ROW + self._more_bytes

    @property
    def mapped_bytes_per_row(self) -> int:
        """Disk of a row."""
        return MAPPED_BYTES_PER_ROW + self._more_bytes

    @property
    def _more_bytes(self) -> int:
        """Bytes of a row that a second column takes whose values are counted."""
        return 4 * (len(self.stages.counted) > 1)

    def ranking(self) -> dict[str, Any]:
        """Return what the order of the rows that could be kept depends on, and which these are."""
        request = self.request.content()
        rank = self.stages.rank
        return {
            "request": {name: request[name] for name in request if name not in _NO_PART_IN_RANKING},
            "rank": (
                rank.learned.to_json()
                if isinstance(rank, CombinedRank)
                else [*rank.columns, rank.higher_is_better]
            ),
            "signatures": dict(self.signatures),
        }

    def corpus_hash(self) -> str:
        """Return a hash of the rows, whatever their scores."""
        files = [(own.relative, own.source.file_id, own.n_rows) for own in self.corpus.files]
        return hash_text(json.dumps(files))

    def fingerprint(self) -> str:
        """Return a hash of all that the result depends on."""
        given = [file for path in self.request.label_files for file in table_files(path)]
        given += [as_path(str(self.request.rank_by))] if _is_file(self.request) else []
        content: dict[str, Any] = {
            "version": VERSION,
            "request": self.request.content(),
            "files": [
                (
                    file.relative,
                    file.source.file_id,
                    file.n_rows,
                    file.scores.version.footer if file.scores else "",
                )
                for file in self.corpus.files
            ],
            "complete": self.corpus.is_complete,
            "signatures": dict(self.signatures),
            "given": [hashlib.sha256(file.read_bytes()).hexdigest() for file in given],
        }
        return hash_text(json.dumps(content, sort_keys=True, default=str), n_chars=64)


def make_plan(request: FilterRequest, corpus: Corpus) -> FilterPlan:
    """Return what a request means for a corpus.

    Raises
    ------
    ConfigError, SchemaError
        If columns are missing or do not fit, or options clash; names the nearest column.
    """
    notes = list(corpus.notes)
    stages = _stages(request, corpus, notes)
    if corpus.id_column is None:
        notes.append(
            "no id column, so rows are named by file and row number. Which rows are kept then "
            "depends on the files; --column id=NAME names an id"
        )
    deciding = dict.fromkeys((*stages.rank.columns, *request.learn, *stages.keep_columns))
    return FilterPlan(
        request,
        corpus,
        stages,
        _metrics(corpus, stages.rank),
        {name: _signature(corpus, name) for name in deciding},
        tuple(notes),
    )


def _stages(request: FilterRequest, corpus: Corpus, notes: list[str]) -> Stages:
    """Return the stages of a request; what people may not expect of them joins the notes."""
    rank = _rank(request, corpus)
    aliases = {role: name for role, name in corpus.all_roles.items() if role not in corpus.names}
    keep_columns = _keep_columns(request, corpus, aliases)
    duplicates = _duplicates(request, corpus, notes)
    group = _group(request, corpus, duplicates)
    rules = _rules(request, corpus, notes)
    quota = request.quotas
    stages = Stages(
        rank=rank,
        undefined=request.undefined,
        rules=rules,
        keep=request.keep,
        keep_columns=keep_columns,
        aliases=aliases if request.keep else {},
        duplicates=duplicates,
        group=group,
        quota=_value_column(corpus, quota.column if quota else None, "--quota"),
        share_per=_value_column(corpus, request.share_per, "--share-per"),
        question=corpus.roles.get("question"),
        context=corpus.roles.get("context"),
        answer=corpus.roles.get("answer"),
        seed=request.seed,
        has_ties=(
            duplicates.kind == "rouge_l"
            or request.labels is not None
            or request.label_sheet is not None
        ),
        last="precision" if request.precision is not None else request.size_reason,
    )
    if len(stages.reasons) > _MAX_REASONS:
        raise ConfigError(
            f"--keep reads {len(keep_columns):,} columns; fewer are needed to name one for each "
            "dropped row [QA0316]"
        )
    return stages


def _is_file(request: FilterRequest) -> bool:
    given = request.rank_by or ""
    # Behind the name in a URI stands the way to its store.
    return (given.partition("?")[0] if "://" in given else given).endswith(".json")


def _signature(corpus: Corpus, name: str) -> str:
    described = corpus.described.get(name)
    return described.signature if described is not None else ""


def _metrics(corpus: Corpus, rank: Rank) -> tuple[str, ...]:
    described = [name for name in corpus.described if name in corpus.names]
    chosen = dict.fromkeys([*(described or ()), *rank.columns])
    return tuple(name for name in chosen if _other_file(corpus, name, _is_number) is None)


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _check_number(corpus: Corpus, name: str, option: str) -> None:
    if name not in corpus.names:
        raise SchemaError(f"{option}: no column {name!r}{nearest(name, corpus.names)} [QA0305]")
    if (file := _other_file(corpus, name, _is_number)) is not None:
        kind = corpus.field(name, file).type
        raise SchemaError(
            f"{option}: column {name!r} of {file.source.name} is {kind}, not a number [QA0306]"
        )


def _other_file(
    corpus: Corpus, name: str, is_fit: Callable[[pa.DataType], bool]
) -> CorpusFile | None:
    """Return the first file whose column is of a kind that does not fit; files may differ."""
    kinds = ((file, corpus.field(name, file).type) for file in corpus.files)
    return next((file for file, kind in kinds if not is_fit(kind)), None)


def _rank(request: FilterRequest, corpus: Corpus) -> Rank:
    if request.learn:
        for name in request.learn:
            _check_number(corpus, name, "--learn")
        # Its weights are known once labeled rows were read.
        columns = request.learn
        return NoRank(columns) if request.label_sheet is not None else ColumnRank(columns[0])
    if _is_file(request):
        return _read_combination(str(request.rank_by), corpus)
    if request.rank_by is not None:
        return _named_rank(corpus, request.rank_by)
    return _column_rank(corpus, _only_score(corpus))


def _named_rank(corpus: Corpus, given: str) -> ColumnRank:
    """Return the rank of a column, or of one with its order behind a colon."""
    name, _, order = given.rpartition(":")
    has_order = given not in corpus.names and order in ORDERS
    if not has_order:
        name = given
    _check_number(corpus, name, "--rank-by")
    return ColumnRank(name, order == "desc") if has_order else _column_rank(corpus, name)


def _column_rank(corpus: Corpus, name: str) -> ColumnRank:
    described = corpus.described.get(name)
    return ColumnRank(name, described is None or described.higher_is_better)


def _only_score(corpus: Corpus) -> str:
    """Return the one column that could be meant."""
    names = list(corpus.instances)
    if len(names) == 1 and names[0] in corpus.score_names:
        return names[0]
    there = set(corpus.names) - {corpus.id_column}
    choices = [
        name
        for name in (corpus.described or corpus.names)
        if name in there and _other_file(corpus, name, _is_number) is None
    ]
    if not corpus.has_run and len(choices) == 1:
        return choices[0]
    what = f"{len(names)} metrics" if len(names) > 1 else "no column that is the score"
    raise ConfigError(
        f"{corpus.out} has {what}; name the rank with --rank-by. Numeric columns: "
        f"{', '.join(choices) or 'none'} [QA0704]"
    )


def _read_given(path: str) -> str:
    own = as_path(path)
    return own.read_text() if own.local is None else read_given(path)


def _read_combination(path: str, corpus: Corpus) -> CombinedRank:
    try:
        learned = LearnedRank.from_json(json.loads(_read_given(path)))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"--rank-by {path}: {why} [QA0703]") from None
    except ConfigError as error:
        raise ConfigError(f"--rank-by {path}: {error}") from None
    for column in learned.columns:
        _check_number(corpus, column.name, f"--rank-by {path}")
    try:
        learned.check_signatures({name: _signature(corpus, name) for name in corpus.names})
    except ConfigError as error:
        raise ConfigError(f"--rank-by {path}: {error}") from None
    return CombinedRank(learned)


def _keep_columns(
    request: FilterRequest, corpus: Corpus, aliases: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the columns that conditions read; a role names one where no column has its name."""
    if not request.keep:
        return ()

    def fields_of(file: CorpusFile) -> tuple[pa.Field, ...]:
        own = [corpus.field(name, file) for name in corpus.names]
        roles = [corpus.field(name, file).with_name(role) for role, name in aliases.items()]
        return (*own, *roles)

    # Columns of one name may be of several kinds: one file of each is looked at.
    several = {fields_of(file): file for file in corpus.files}
    names: list[str] = []
    for fields, file in several.items():
        try:
            names += [name for text in request.keep for name in check_condition(text, fields)]
        except ConfigError as error:
            where = f" (in {file.source.name})" if len(several) > 1 else ""
            raise ConfigError(f"{error.text}{where} [{error.code}]") from None
    return tuple(dict.fromkeys(aliases.get(name, name) for name in names))


def _duplicates(request: FilterRequest, corpus: Corpus, notes: list[str]) -> NearDuplicates:
    wanted = request.duplicates
    if wanted.kind == "none":
        return wanted
    lacks = "question" if "question" not in corpus.roles else None
    if lacks is None and request.group is None and "context" not in corpus.roles:
        lacks = "context"
    if lacks is None:
        return wanted
    said = f"no {lacks} column"
    way_out = "--group names one" if lacks == "context" else "--column question=NAME names one"
    if request.near_duplicates is not None:
        raise ConfigError(
            f"--near-duplicates {request.near_duplicates}: {said}; {way_out} [QA0706]"
        )
    notes.append(f"{said}, so duplicates are not searched; {way_out}")
    return NearDuplicates("none")


def _group(request: FilterRequest, corpus: Corpus, duplicates: NearDuplicates) -> str | None:
    """Return the column whose equal values are a group, where groups matter."""
    if request.group is not None:
        return _value_column(corpus, request.group, "--group")
    context = corpus.roles.get("context")
    if context is None and request.top_k is not None:
        raise ConfigError(
            "--top-k needs groups, and there is no context column; name one with --group [QA0707]"
        )
    is_needed = (
        duplicates.kind != "none"
        or request.top_k is not None
        or request.labels is not None
        or request.label_sheet is not None
    )
    return context if is_needed else None


def _value_column(corpus: Corpus, given: str | None, option: str) -> str | None:
    """Return the column of a name or role, if rows may be grouped by it."""
    if given is None:
        return None
    name = corpus.named(given, option)
    if name == corpus.roles.get("context"):  # Its passages are one value.
        return name
    file = _other_file(corpus, name, lambda kind: not pa.types.is_nested(kind))
    if file is not None:
        kind = corpus.field(name, file).type
        raise SchemaError(
            f"{option}: column {name!r} of {file.source.name} is {kind}, not one value a row "
            "[QA0306]"
        )
    return name


def _note_unspaced(request: FilterRequest, corpus: Corpus, notes: list[str]) -> None:
    """Note questions of a language that puts no space between words: the rules count words."""
    column = corpus.roles["question"]
    file, n_rows = corpus.files[0].source, corpus.files[0].n_rows
    if is_unspaced(first_texts(file, {"question": column}, n_rows=n_rows).get("question", ())):
        notes.append(
            f"column {column!r} is mostly written without spaces between words, which the rules "
            f"count: leave --rules {request.rules} out"
        )


def _rules(request: FilterRequest, corpus: Corpus, notes: list[str]) -> tuple[str, ...]:
    if request.rules == "none":
        return ()
    if "question" not in corpus.roles:
        raise ConfigError(
            f"--rules {request.rules}: no question column; name one with --column question=NAME "
            "[QA0707]"
        )
    _note_unspaced(request, corpus, notes)
    if request.rules == "extractive":
        for role in ("answer", "context"):
            if role not in corpus.roles:
                raise ConfigError(
                    f"--rules extractive: no {role} column; name one with --column {role}=NAME "
                    "[QA0707]"
                )
        return RULE_REASONS
    if "answer" not in corpus.roles:
        notes.append("no answer column, so no question is checked for its answer")
        return RULE_REASONS[:2]
    return RULE_REASONS[:3]
