"""Inputs: file names, folders, globs and filesystem URIs to Parquet files with an identity.

Only footers are read. A file's identity is its relative path, size and modification time; a
changed file is another file.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from qaeval_core.errors import InputError, UnreadableFileError, nearest, with_code
from qaeval_core.planning.filesystems import local_stamp, open_filesystem, remote_stamp
from qaeval_core.planning.footer import Footer, parse_footer
from qaeval_core.planning.lakes import check_no_lake
from qaeval_core.planning.listing import (
    check_names,
    check_utf8,
    distinct,
    files_below,
    is_glob,
    is_hidden,
    left_out_note,
    matches,
    parquet_names,
    shown_name,
    split_glob,
)
from qaeval_core.planning.read_as import ReadAs, folder_keys
from qaeval_core.signature import hash_text
from qaeval_core.storage.quoting import quoted
from qaeval_core.text.plain_columns import column_type

_SUFFIXES = (".parquet", ".pq", ".parq")
_MAGIC = b"PAR1"
# How polars reads tables of text: the types of columns are found from all rows.
_TEXT_READERS = {
    ".jsonl": "read_ndjson(sys.argv[1], infer_schema_length=None)",
    ".json": "read_json(sys.argv[1], infer_schema_length=None)",
    ".csv": "read_csv(sys.argv[1], infer_schema_length=None)",
    ".tsv": "read_csv(sys.argv[1], infer_schema_length=None, separator=chr(9))",
}
_TEXT_READERS[".ndjson"] = _TEXT_READERS[".jsonl"]
_N_FOOTER_THREADS = 16
_N_FOOTER_CHARS = 24
# Most footers are shorter: one read is enough.
_TAIL_BYTES = 1 << 16
_SECOND_NS = 1_000_000_000
# Fifty million equal numbers have 217 rows a byte.
_MAX_ROWS_PER_BYTE = 4096
_MAX_GROUP_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group as the footer describes it."""

    start: int
    n_rows: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Which bytes a file is made of, as far as can be told without reading them all.

    Attributes
    ----------
    uri : str
    size_bytes, mtime_ns : int
    footer : str
        Hash of the footer: the places, sizes and statistics of all columns.
    stamp : str
        Device, inode and time of the last change of the inode, of a local file; they hold on the
        machine that looked, and tell a file that was put back with its old time. The ETag of an
        object, which holds everywhere; empty where the store gives none.
    """

    uri: str
    size_bytes: int
    mtime_ns: int
    footer: str
    stamp: str = ""

    def is_of(self, info: fs.FileInfo) -> bool:
        """Whether a file that a store describes so may be this one."""
        mtime_ns = info.mtime_ns or 0
        if "://" in self.uri:
            # Of one object, some stores give milliseconds in a listing and seconds alone.
            same_time = mtime_ns // _SECOND_NS == self.mtime_ns // _SECOND_NS
        else:
            same_time = mtime_ns == self.mtime_ns
        return same_time and info.size == self.size_bytes


@dataclass(frozen=True, slots=True)
class InputFile:
    """One Parquet file to score.

    Attributes
    ----------
    schema, written : pyarrow.Schema
        Of its columns as they are read, and as the file has them.
    file_id : str
        Short hash of relative path and identity: the same name elsewhere is another file.
    """

    relative: str
    version: FileVersion
    row_groups: tuple[RowGroup, ...]
    schema: pa.Schema
    written: pa.Schema
    read_as: ReadAs
    file_id: str = field(init=False)  # asked for once a piece and row group: made once a file

    def __post_init__(self) -> None:
        version = self.version
        parts = (self.relative, version.uri, version.size_bytes, version.mtime_ns, version.footer)
        # Read so, the same bytes are other rows.
        read = ("no answers",) if self.read_as.has_no_answers else ()
        object.__setattr__(self, "file_id", hash_text("|".join(map(str, (*parts, *read)))))

    def type_of(self, name: str) -> pa.DataType | None:
        """Return the type of a column, or of what a path such as ``answers.text`` leads to."""
        return column_type(self.schema, name)

    @property
    def uri(self) -> str:
        """Where it lies."""
        return self.version.uri

    @property
    def n_rows(self) -> int:
        """Rows of the file, by its footer."""
        return sum(group.n_rows for group in self.row_groups)


@dataclass(frozen=True, slots=True)
class _Found:
    base: str  # What the relative path is relative to.
    path: str
    place: _Place
    info: fs.FileInfo

    @property
    def relative(self) -> str:
        return os.path.relpath(self.path, self.base).replace(os.sep, "/")

    @property
    def uri(self) -> str:
        return self.place.uri_of(self.path)


@dataclass(frozen=True, slots=True)
class _Place:
    """A filesystem, and how a URI names it: its endpoint or region is the query."""

    filesystem: fs.FileSystem
    uri: SplitResult | None = None  # None for local paths

    def uri_of(self, path: str) -> str:
        if self.uri is None:
            return path
        # Buckets are the first part of a path and the host of a URI; other stores have both apart.
        below = path if path.startswith("/") else "/" + path.partition("/")[2]
        return urlunsplit(self.uri._replace(path=quoted(below)))


def _open_place(uri: str) -> tuple[_Place, str]:
    parts = urlsplit(uri)
    if parts.password is not None or "@" in parts.query:
        # It would go to every worker, into OUT and into messages.
        shown = urlunsplit(parts._replace(netloc=parts.hostname or "", query=""))
        raise InputError(
            f"{shown}: a URI must not hold secrets; set them in the environment of the nodes "
            "[QA0303]"
        )
    try:
        filesystem, path = open_filesystem(uri)
    except (pa.ArrowException, OSError) as error:
        # Of an option that is none the value may be a secret.
        shown = uri.partition("?")[0] if "://" in uri else uri
        raise InputError(with_code(f"cannot open {shown}: {error}", "QA0302")) from None
    is_local = "://" not in uri or parts.scheme == "file"
    return _Place(filesystem, None if is_local else parts), path


def find_inputs(
    paths: Sequence[str], *, skip_unreadable: bool = False, read_as: ReadAs | None = None
) -> tuple[list[InputFile], list[str]]:
    """Return the Parquet files that paths name, and messages about files left out.

    Parameters
    ----------
    paths : sequence of str
        Files, folders (all Parquet below, whatever its name), globs, or filesystem URIs of these.
    skip_unreadable : bool, default False
        Leave files out that have no readable footer, instead of raising.
    read_as : ReadAs, optional
        How columns are read; keys of folders are found here.

    Returns
    -------
    (list of InputFile, list of str)
        Files in order of their relative paths, which are unique: two files of one name in two
        folders get as much of their folders' names as tells them apart. A local file that several
        names lead to is input once.

    Raises
    ------
    InputError
        If a path names nothing, files of a table format, or what cannot be written below OUT.
    UnreadableFileError
        If a file is not readable Parquet and ``skip_unreadable`` is not set.
    """
    if not paths:
        raise InputError("no input; name Parquet files, folders or globs [QA0301]")
    every: dict[str, _Found] = {}
    n_known, left_out = 0, dict[str, list[str]]()
    for path in paths:
        named = _expand(path)
        n_known += named.n_known
        for why, names in named.left_out.items():
            left_out.setdefault(why, []).extend(names)
        for item in named.found:
            every.setdefault(item.uri, item)
    found = _without_doubles(list(every.values()))
    n_known += len(every) - len(found)
    relatives = parquet_names(_unique_relatives(found))
    check_names(relatives)
    check_no_lake({item.path: item.place.filesystem for item in found})
    with ThreadPoolExecutor(_N_FOOTER_THREADS) as pool:
        read_footer = partial(_read_footer, read_as=read_as or ReadAs())
        read = list(pool.map(read_footer, found, relatives))
    problems = [item for item in read if isinstance(item, str)]
    if problems and not skip_unreadable:
        if len(problems) < len(read):
            problems.append("set input.skip_unreadable=true to score the other files")
        raise UnreadableFileError("\n".join(problems))
    if n_known:
        what = "1 name is" if n_known == 1 else f"{n_known:,} names are"
        problems.append(f"{what} skipped: links to files or folders that are input already")
    problems += [left_out_note(names, why) for why, names in left_out.items() if names]
    files = [item for item in read if isinstance(item, InputFile)]
    return sorted(files, key=lambda file: file.relative), problems


def _without_doubles(found: Sequence[_Found]) -> list[_Found]:
    """Leave out local files that another name leads to as well."""
    kept = set(distinct([item.path for item in found if item.place.uri is None]))
    return [item for item in found if item.place.uri is not None or item.path in kept]


class _Named(NamedTuple):
    """What a path names: files, how many links were not followed, and by why what is left out."""

    found: list[_Found]
    n_known: int = 0
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({})


def _expand(uri: str) -> _Named:
    check_utf8(uri)
    place, path = _open_place(uri)
    filesystem = place.filesystem
    if is_glob(path) and filesystem.get_file_info(path).type == fs.FileType.NotFound:
        return _expand_glob(place, path)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return _Named([_Found(str(PurePosixPath(path).parent), path, place, info)])
    if info.type == fs.FileType.Directory:
        return _search(place, path)
    raise InputError(f"no such file or folder: {uri}{_near_files(path, place)} [QA0301]")


def _search(place: _Place, folder: str) -> _Named:
    n_known = 0
    if place.uri is None:
        names, n_known = _files_below(folder)
        infos = _infos(place, [path for path in names if not is_hidden(path, folder)])
    else:
        infos = place.filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        names = [info.path for info in infos]
        infos = [info for info in infos if not is_hidden(info.path, folder)]
    hidden = [
        path for path in names if path.lower().endswith(_SUFFIXES) and is_hidden(path, folder)
    ]
    files = [info for info in infos if info.type == fs.FileType.File]
    with ThreadPoolExecutor(_N_FOOTER_THREADS) as pool:
        are_data = list(pool.map(lambda info: _is_data(place, info), files))
    kept = [info for info, is_data in zip(files, are_data, strict=True) if is_data]
    others = [info.path for info, is_data in zip(files, are_data, strict=True) if not is_data]
    if not kept:
        shown = [info.path for info in infos]
        texts = sorted(path for path in shown if Path(path).suffix.lower() in _TEXT_READERS)
        hint = f"\n{_how_to_convert(place, texts[0])}" if texts else ""
        raise InputError(f"no Parquet file below {folder} [QA0301]{hint}")
    found = [_Found(folder, info.path, place, info) for info in kept]
    return _Named(found, n_known, _left_out(folder, infos, others, hidden))


def _left_out(
    folder: str, infos: Sequence[fs.FileInfo], others: Sequence[str], hidden: Sequence[str]
) -> dict[str, list[str]]:
    """Return the names of what is left out, by why."""
    lost = [info.path for info in infos if info.type == fs.FileType.NotFound]
    paths = {"no Parquet": others, "hidden": hidden, "a link to a missing file": lost}
    return {why: [os.path.relpath(path, folder) for path in own] for why, own in paths.items()}


def _files_below(folder: str) -> tuple[list[str], int]:
    try:
        return files_below(folder)
    except OSError as error:
        raise InputError(
            f"cannot list {shown_name(error.filename)}: {error.strerror} [QA0302]"
        ) from None


def _infos(place: _Place, paths: Sequence[str]) -> list[fs.FileInfo]:
    for path in paths:
        check_utf8(path)
    return list(place.filesystem.get_file_info(list(paths)))


def _is_data(place: _Place, info: fs.FileInfo) -> bool:
    """Return whether a file of a folder is Parquet: by its name, or else by its bytes."""
    if info.path.lower().endswith(_SUFFIXES):
        return True
    n_bytes = len(_MAGIC)
    if info.size < 2 * n_bytes:
        return False
    try:
        with place.filesystem.open_input_file(info.path) as source:
            ends = (source.read_at(n_bytes, 0), source.read_at(n_bytes, info.size - n_bytes))
    except OSError as error:
        raise InputError(f"cannot read {shown_name(info.path)}: {error} [QA0302]") from None
    return ends == (_MAGIC, _MAGIC)


def _expand_glob(place: _Place, pattern: str) -> _Named:
    base, parts = split_glob(pattern)
    n_known = 0
    if place.uri is None and "**" in parts:
        paths, n_known = _files_below(base)
        infos = _infos(place, [path for path in paths if _is_taken(path, base, parts)])
    elif place.uri is None:
        infos = _infos(place, sorted(glob.glob(pattern)))
    elif place.filesystem.get_file_info(base).type == fs.FileType.NotFound:
        raise InputError(f"no file matches {pattern}: {base} does not exist [QA0301]")
    else:
        below = place.filesystem.get_file_info(fs.FileSelector(base, recursive=True))
        infos = [info for info in below if _is_taken(info.path, base, parts)]
    kept = [info for info in infos if info.type == fs.FileType.File]
    if not kept:
        raise InputError(f"no file matches {pattern} [QA0301]")
    found = [_Found(base, info.path, place, info) for info in kept]
    return _Named(found, n_known, _left_out(base, infos, (), ()))


def _is_taken(path: str, base: str, parts: Sequence[str]) -> bool:
    if ".." in PurePosixPath(path).parts:  # What leads out of the folder is refused by name.
        return fnmatch.fnmatchcase(PurePosixPath(path).name, parts[-1])
    return matches(os.path.relpath(path, base), parts)


def _near_files(path: str, place: _Place) -> str:
    folder = Path(path).parent
    try:
        # Of no bucket, and of one that refuses, it is not said what would be beside.
        beside = place.filesystem.get_file_info(fs.FileSelector(str(folder), allow_not_found=True))
    except OSError:
        return ""
    names = [item.base_name for item in beside if not item.base_name.startswith(".")]
    hint = nearest(Path(path).name, names) if names else ""
    return hint if hint.startswith("; did you mean") else ""


def _unique_relatives(found: Sequence[_Found]) -> list[str]:
    """Lengthen colliding relative paths by parent folders until all differ."""
    relatives = [item.relative for item in found]
    for depth in range(1, 64):
        counts = Counter(relatives)
        if max(counts.values(), default=1) == 1:
            return relatives
        for i, item in enumerate(found):
            if counts[relatives[i]] > 1:
                n_parts = len(PurePosixPath(item.relative).parts) + depth
                parts = PurePosixPath(item.path).parts
                relatives[i] = "/".join(part for part in parts[-n_parts:] if part != "/")
    raise InputError(f"two inputs would have the same name: {sorted(relatives)[:3]} [QA0310]")


def read_footer(source: pa.NativeFile) -> tuple[pq.FileMetaData, Footer, str]:
    """Return a Parquet file's footer, as PyArrow and as we read it, and a hash of its bytes.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If there is none.
    """
    n_bytes = source.size()
    tail = source.read_at(min(n_bytes, _TAIL_BYTES), max(n_bytes - _TAIL_BYTES, 0))
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < footer_bytes <= n_bytes:
        tail = source.read_at(footer_bytes, n_bytes - footer_bytes)
    metadata = pq.read_metadata(pa.BufferReader(tail))
    try:
        footer = parse_footer(tail[-footer_bytes:-8])
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from None
    return metadata, footer, hashlib.sha256(tail[-footer_bytes:]).hexdigest()[:_N_FOOTER_CHARS]


def _check_counts(schema: pq.ParquetSchema, footer: Footer, *, n_bytes: int) -> None:
    """Raise ArrowInvalid where a footer's counts of rows contradict each other.

    Whoever believes a count that is too small loses rows in silence, and plans for ever by one that
    is too large.
    """
    n_rows = sum(group.n_rows for group in footer.groups)
    if n_rows != footer.n_rows:
        raise pa.ArrowInvalid(f"{footer.n_rows:,} rows, but {n_rows:,} in its row groups")
    if n_rows > _MAX_ROWS_PER_BYTE * n_bytes or any(
        not 0 <= group.n_rows <= _MAX_GROUP_ROWS for group in footer.groups
    ):
        raise pa.ArrowInvalid(f"{n_rows:,} rows do not fit {n_bytes:,} bytes")
    columns = [schema.column(i) for i in range(len(schema))]
    is_flat = [column.max_repetition_level == 0 for column in columns]
    for group in footer.groups:
        if len(group.chunks) != len(columns):
            raise pa.ArrowInvalid(f"{len(group.chunks):,} of {len(columns):,} columns")
        for chunk, flat in zip(group.chunks, is_flat, strict=True):
            if flat and chunk.n_values != group.n_rows:
                raise pa.ArrowInvalid(
                    f"column {chunk.column} has {chunk.n_values:,} values for {group.n_rows:,} rows"
                )


def _how_to_convert(place: _Place, path: str) -> str:
    """Return a command that makes Parquet of a table of text; of an object, where a copy lies."""
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        with place.filesystem.open_input_stream(path) as source:
            if source.read(_TAIL_BYTES).lstrip().startswith(b"{"):
                suffix = ".jsonl"  # Many write JSON Lines under that name.
    name = path if place.uri is None else PurePosixPath(path).name
    code = f"import polars, sys; polars.{_TEXT_READERS[suffix]}.write_parquet(sys.argv[2])"
    return f'make Parquet of it: python -c "{code}" {shlex.join([name, name + ".parquet"])}'


def _read_footer(item: _Found, relative: str, *, read_as: ReadAs) -> InputFile | str:
    is_local = item.place.uri is None
    try:
        stamp = local_stamp(item.path) if is_local else ""
        with item.place.filesystem.open_input_file(item.path) as source:
            stamp = stamp or remote_stamp(source)
            metadata, footer, footer_hash = read_footer(source)
        _check_counts(metadata.schema, footer, n_bytes=item.info.size)
        groups = []
        start = 0
        for group in footer.groups:
            groups.append(RowGroup(start, group.n_rows, group.n_bytes))
            start += group.n_rows
        read_as = replace(read_as, keys=folder_keys(item.relative))
        schema = read_as.schema(metadata.schema)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, pa.ArrowInvalid) and Path(item.path).suffix.lower() in _TEXT_READERS:
            return f"{item.uri} is not Parquet [QA0304]\n{_how_to_convert(item.place, item.path)}"
        return f"{item.uri} is not readable Parquet: {error} [QA0304]"
    version = FileVersion(
        item.uri, item.info.size, item.info.mtime_ns or 0, footer_hash, stamp=stamp
    )
    written = metadata.schema.to_arrow_schema()
    return InputFile(relative, version, tuple(groups), schema, written, read_as)
