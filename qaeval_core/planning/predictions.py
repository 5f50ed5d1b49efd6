"""Predictions: what systems answered, joined by id with the data that they were asked.

Each file of the data becomes a copy for each system, in a folder of its name where it has one: a
system that is added later is scored alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.configure import RunConfig
from qaeval_core.errors import ConfigError, InputError, SchemaError, UnreadableFileError, nearest
from qaeval_core.planning.filesystems import open_filesystem
from qaeval_core.planning.inputs import InputFile, copy_of_file, find_inputs
from qaeval_core.planning.read_as import ReadAs
from qaeval_core.planning.text_files.copies import Copies
from qaeval_core.planning.text_files.documents import as_utf8, unpacked, whole_json
from qaeval_core.planning.text_files.kinds import kind_of
from qaeval_core.planning.text_files.sheets import read_sheet
from qaeval_core.planning.usual_columns import usual_columns
from qaeval_core.planning.usual_names import usual_form
from qaeval_core.signature import hash_content, hash_text
from qaeval_core.storage.path import StoragePath, read_json

if TYPE_CHECKING:
    import polars as pl

PREDICTION, SYSTEM = "prediction", "system"
_VERSION = 1
_RECORD = "predictions.json"
_NAMED = re.compile(r"([^\W_][\w.+@-]*)=(.+)", re.DOTALL)
_IDS = ("id", "qid", "question_id", "qas_id", "example_id")
_N_SHOWN = 3
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Predictions:
    """What one system answered.

    Attributes
    ----------
    system : str
        "" where it has no name.
    texts : mapping of id to text
    n_repeated : int
        Ids that were there more than once, with the same text.
    content : str
        Hash of the file.
    """

    system: str
    path: str
    texts: Mapping[str, str | None]
    n_repeated: int
    content: str


def named_files(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name and the path of each ``[NAME=]FILE``.

    Raises
    ------
    ConfigError
        If several have no name, or one has that of another.

    Examples
    --------
    >>> named_files(["base=a.json", "large=b.json"])
    [('base', 'a.json'), ('large', 'b.json')]
    """
    found = []
    for text in given:
        named = _NAMED.fullmatch(text)
        found.append((named[1], named[2]) if named is not None else ("", text))
    names = Counter(name for name, _ in found)
    twice = [name for name, n in names.items() if n > 1]
    if twice:
        example = " ".join(
            f"--predictions {name or PurePosixPath(path).stem}{i}={path}"
            for i, (name, path) in enumerate(found[:2], start=1)
        )
        raise ConfigError(f"several systems need names of their own, as in {example} [QA0106]")
    return found


def with_prediction_columns(config: RunConfig) -> RunConfig:
    """Return a configuration whose candidates are the predictions, and which carries the system."""
    given = config.input.predictions
    if not given:
        return config
    columns = {"candidate": PREDICTION, **config.input.columns}
    section = config.input.model_copy(update={"columns": columns})
    is_named = any(name for name, _ in named_files(given))
    carry = config.output.carry
    if is_named and SYSTEM not in carry:
        carry = (*carry, SYSTEM)
    output = config.output.model_copy(update={"carry": carry})
    return config.model_copy(update={"input": section, "output": output})


def read_predictions(system: str, path: str, *, encoding: str | None = None) -> Predictions:
    """Return what a file says: {id: text} as JSON, or a table with an id and a text.

    Raises
    ------
    InputError
        If it cannot be read, or says two texts of one id.
    """
    content = _content(path)
    pairs = _pairs(path, content, encoding)
    texts: dict[str, str | None] = {}
    n_repeated = 0
    differing = []
    for name, text in pairs:
        if text is not None and not isinstance(text, str):
            raise UnreadableFileError(
                f"{path}: the prediction of {name!r} is {type(text).__name__}, not text [QA0306]"
            )
        if name in texts:
            n_repeated += 1
            if texts[name] != text:
                differing.append(name)
        texts[name] = text
    if differing:
        raise SchemaError(
            f"{path}: {len(differing):,} ids have two predictions, such as "
            f"{_shown(differing)} [QA0313]"
        )
    return Predictions(system, path, texts, n_repeated, hash_content(content))


def read_numbers(given: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the numbers that ``[NAME=]FILE`` say, {id: number} as JSON, by system and id.

    Raises
    ------
    ConfigError, InputError
        If a name is there twice, or a file says no numbers.
    """
    found = {}
    for system, path in named_files(given):
        try:
            numbers = json.loads(_content(path))
        except ValueError as error:
            raise UnreadableFileError(f"cannot read {path}: {error} [QA0304]") from None
        are_numbers = isinstance(numbers, dict) and all(
            isinstance(own, int | float) for own in numbers.values()
        )
        if not are_numbers:
            raise UnreadableFileError(f"{path}: it must be {{id: number}} as JSON [QA0304]")
        found[system] = {name: float(own) for name, own in numbers.items()}
    return found


def _content(path: str) -> bytes:
    try:
        filesystem, place = open_filesystem(path)
        with filesystem.open_input_stream(place, compression=None) as file:
            return bytes(file.read())
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read {path}: {error} [QA0302]") from None


def _pairs(path: str, content: bytes, encoding: str | None) -> Iterator[tuple[str, Any]]:
    import polars as pl  # Not at the top: most runs have no predictions of files.

    kind = kind_of(path)
    name = PurePosixPath(path).name
    try:
        if kind is None:
            table = pq.read_table(pa.BufferReader(content))
        else:
            content = unpacked(content, kind)
            if kind.format == "json":
                pairs = _object_pairs(as_utf8(content, encoding))
                if pairs is not None:
                    return iter(pairs)
            if kind.format in ("csv", "tsv"):
                table = read_sheet(content, "id", encoding=encoding).to_arrow()
            else:
                table = whole_json(content, kind, name=name, encoding=encoding)
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {path}: {error} [QA0304]") from None
    own, text = _columns_of(table, path)
    ids = table[own].cast(pa.string()).to_pylist()
    return ((name, text) for name, text in zip(ids, table[text].to_pylist(), strict=True))


def _object_pairs(content: bytes) -> list[tuple[str, Any]] | None:
    """Return the pairs of an object of texts, each that is there twice too; None of another one."""
    pairs: list[tuple[str, Any]] = []

    def keep(found: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs[:] = found
        return dict(found)

    try:
        whole = json.loads(content, object_pairs_hook=keep)
    except ValueError:
        return None  # JSON Lines, perhaps.
    is_plain = isinstance(whole, dict) and all(
        own is None or isinstance(own, str) for own in whole.values()
    )
    return pairs if is_plain else None


def _columns_of(table: pa.Table, path: str) -> tuple[str, str]:
    """Return the columns of ids and texts."""
    names = table.column_names
    ids = [name for name in names if usual_form(name) in _IDS]
    if len(ids) != 1:
        what = "no column of ids" if not ids else f"several columns of ids ({', '.join(ids)})"
        raise SchemaError(f"{path}: {what}; name one of them id{nearest('id', names)} [QA0305]")
    kinds = {name: table.schema.field(name).type for name in names if name != ids[0]}
    if len(kinds) == 1:
        return ids[0], next(iter(kinds))
    usual = usual_columns({**kinds, "references": pa.string()}, {})
    candidate = "candidate" if "candidate" in kinds else usual.columns.get("candidate")
    if candidate is None:
        raise SchemaError(
            f"{path}: no column of predictions; name one of {', '.join(kinds)} prediction [QA0305]"
        )
    return ids[0], candidate


def find_predicted(config: RunConfig, copies: Copies) -> tuple[list[InputFile], list[str]]:
    """Return the input files, with the predictions of systems where there are any, and notes.

    Raises
    ------
    ConfigError, InputError
        As `find_inputs` and `joined_files` say.
    """
    section = config.input
    if section.no_answer and section.unanswerable != "empty":
        raise ConfigError("--no-answer needs --unanswerable empty [QA0103]")
    if section.predictions and copies.is_of_run:
        return recorded_files(config, copies.folder), []
    files, problems = find_inputs(
        section.paths,
        skip_unreadable=section.skip_unreadable,
        read_as=ReadAs.of(section),
        copies=copies,
    )
    if not section.predictions:
        return files, problems
    joined, notes = joined_files(config, files, copies.folder)
    return joined, [*problems, *notes]


def joined_files(
    config: RunConfig, files: Sequence[InputFile], folder: StoragePath
) -> tuple[list[InputFile], list[str]]:
    """Return a copy of each file for each system, with its predictions, and what did not fit.

    Raises
    ------
    ConfigError, InputError
        If predictions cannot be read, or the data has no ids or has their columns already.
    """
    import polars as pl

    section = config.input
    systems = [
        read_predictions(name, path, encoding=section.encoding)
        for name, path in named_files(section.predictions)
    ]
    id_column = _id_column(config, files)
    _check_free(files, is_named=bool(systems[0].system))
    found: list[InputFile] = []
    notes: list[str] = []
    record = []
    for system in systems:
        texts = pl.DataFrame(
            {"": list(system.texts), PREDICTION: list(system.texts.values())},
            schema={"": pl.String, PREDICTION: pl.String},
        )
        notes += _counts(system, files, id_column, texts)
        for file in files:
            relative = _relative(system.system, file.relative)
            parts = (_VERSION, file.file_id, system.content, id_column, config.input.missing)
            content = hash_text("|".join(map(str, parts)))
            path = folder / f"{hash_text(relative)}-{content}.parquet"
            if not path.is_file():
                _write(path, file, id_column, texts, system, missing=config.input.missing)
            found.append(copy_of_file(path, relative, content, ReadAs.of(config.input)))
            record.append({"relative": relative, "copy": path.name, "content": content})
    (folder / _RECORD).put_json({"files": record})
    return found, notes


def recorded_files(config: RunConfig, folder: StoragePath) -> list[InputFile]:
    """Return the copies that a run read, wherever its data and predictions are now.

    Raises
    ------
    InputError
        If they are not there.
    """
    record = read_json(folder / _RECORD) or {}
    given = record.get("files")
    if not isinstance(given, list) or not given:
        raise InputError(f"{folder} has no copies of data with predictions [QA0515]")
    return [
        copy_of_file(
            # A record may come from anybody: it says which copy, not where.
            folder / str(own["copy"]).rpartition("/")[2],
            str(own["relative"]),
            str(own["content"]),
            ReadAs.of(config.input),
        )
        for own in given
    ]


def _relative(system: str, relative: str) -> str:
    return f"{system}/{relative}" if system else relative


def _id_column(config: RunConfig, files: Sequence[InputFile]) -> str:
    """Return the column of ids: as mapped, or of a usual name."""
    mapped = config.input.columns.get("id")
    names = list(dict.fromkeys(name for file in files for name in file.written.names))
    if mapped is not None:
        if mapped not in names:
            raise SchemaError(f"no column {mapped!r} of ids{nearest(mapped, names)} [QA0305]")
        return str(mapped)
    found = [name for name in names if usual_form(name) in _IDS]
    if len(found) != 1:
        what = "no column of ids" if not found else f"several columns of ids: {', '.join(found)}"
        raise SchemaError(
            f"--predictions are joined by id, and the data has {what}; name one with --column "
            "id=NAME [QA0313]"
        )
    return str(found[0])


def _check_free(files: Sequence[InputFile], *, is_named: bool) -> None:
    for file in files:
        for name in (PREDICTION, *((SYSTEM,) if is_named else ())):
            if name in file.schema.names:
                raise SchemaError(
                    f"{file.name}: the data has a column {name!r} already; rename it, or leave "
                    "--predictions out [QA0308]"
                )


def _tables(file: InputFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    filesystem, path = open_filesystem(file.uri)
    try:
        with filesystem.open_input_file(path) as source:
            parquet = pq.ParquetFile(source)
            for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read {file.name}: {error} [QA0302]") from None


def _ids_of(table: pa.Table, id_column: str) -> pl.Series:
    import polars as pl

    return pl.Series("", pl.from_arrow(table[id_column])).cast(pl.String)


def _counts(
    system: Predictions, files: Sequence[InputFile], id_column: str, texts: pl.DataFrame
) -> Iterator[str]:
    """Yield what did not fit: rows without a prediction, predictions without a row, twice told."""
    import polars as pl

    is_found = np.zeros(texts.height, dtype=bool)
    numbered = texts.select("").with_row_index("number")
    n_missing = 0
    missing: list[str] = []
    for file in files:
        for table in _tables(file, [id_column]):
            ids = _ids_of(table, id_column).to_frame()
            joined = ids.join(numbered, on="", how="left", maintain_order="left")
            without = joined.filter(pl.col("number").is_null())[""]
            n_missing += len(without)
            missing += without.head(_N_SHOWN).to_list() if len(missing) < _N_SHOWN else []
            is_found[joined["number"].drop_nulls().to_numpy()] = True
    surplus = texts.filter(pl.Series(~is_found))[""]
    name = system.system or PurePosixPath(system.path).name
    if n_missing:
        yield f"{name}: {_rows(n_missing)} no prediction, such as {_shown(missing)}"
    if len(surplus):
        shown = _shown(surplus.head(_N_SHOWN).to_list())
        yield f"{name}: predictions of no row: {len(surplus):,}, such as {shown}"
    if system.n_repeated:
        yield f"{name}: predictions repeated with the same text: {system.n_repeated:,}"


def _rows(n: int) -> str:
    return "1 row has" if n == 1 else f"{n:,} rows have"


def _shown(ids: Sequence[object]) -> str:
    return ", ".join(repr(name) for name in ids[:_N_SHOWN])


def _write(
    path: StoragePath,
    file: InputFile,
    id_column: str,
    texts: pl.DataFrame,
    system: Predictions,
    *,
    missing: str,
) -> None:
    """Write a copy of a file with a column of predictions, and one of the system's name."""
    schema = file.written.append(pa.field(PREDICTION, pa.string()))
    if system.system:
        schema = schema.append(pa.field(SYSTEM, pa.string()))
    with path.writer() as sink, pq.ParquetWriter(sink, schema, use_dictionary=False) as writer:
        for table in _tables(file):
            ids = _ids_of(table, id_column).to_frame()
            joined = ids.join(texts, on="", how="left", maintain_order="left")[PREDICTION]
            if missing == "empty":
                joined = joined.fill_null("")
            columns = dict(zip(table.column_names, table.columns, strict=True))
            columns[PREDICTION] = joined.to_arrow().cast(pa.string())
            if system.system:
                columns[SYSTEM] = pa.repeat(system.system, table.num_rows)
            writer.write_table(pa.table(columns).cast(schema))
