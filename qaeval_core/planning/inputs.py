"""Inputs: file names, folders, globs and filesystem URIs to Parquet files with an identity.

Only footers are read. A file's identity is its relative path, size and modification time; a
changed file is another file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from qaeval_core.errors import InputError, UnreadableFileError, with_code
from qaeval_core.planning.expand import (
    SUFFIXES,
    FoundFile,
    expand,
    open_place,
    unique_relatives,
    without_doubles,
)
from qaeval_core.planning.filesystems import local_stamp, remote_stamp
from qaeval_core.planning.footer import Footer, parse_footer
from qaeval_core.planning.lakes import check_no_lake
from qaeval_core.planning.listing import (
    check_names,
    left_out_note,
    parquet_names,
)
from qaeval_core.planning.read_as import ReadAs, folder_keys
from qaeval_core.planning.text_files.copies import MOST_SILENT_MB, STANDARD_INPUT, Copies
from qaeval_core.planning.text_files.kinds import DATA_FILES
from qaeval_core.signature import hash_text
from qaeval_core.storage.path import StoragePath
from qaeval_core.text.plain_columns import column_type

_N_FOOTER_THREADS = 16
_N_FOOTER_CHARS = 24
# Less than a block: many are read at once, since most wait for a store.
_SMALL_BYTES = 1 << 20
_N_SMALL_THREADS = 16
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
    content : str
        Of a copy of a file of text: hash of what its rows are made of, else "".
    file_id : str
        Short hash of relative path and identity: the same name elsewhere is another file; of a
        copy, of relative path and content.
    """

    relative: str
    version: FileVersion
    row_groups: tuple[RowGroup, ...]
    schema: pa.Schema
    written: pa.Schema
    read_as: ReadAs
    content: str = ""
    file_id: str = field(init=False)  # asked for once a piece and row group: made once a file

    def __post_init__(self) -> None:
        version = self.version
        place = (version.uri, version.size_bytes, version.mtime_ns, version.footer)
        parts = (self.relative, *((self.content,) if self.content else place))
        # Read so, the same bytes are other rows.
        read = ("no answers",) if self.read_as.has_no_answers else ()
        object.__setattr__(self, "file_id", hash_text("|".join(map(str, (*parts, *read)))))

    def type_of(self, name: str) -> pa.DataType | None:
        """Return the type of a column, or of what a path such as ``answers.text`` leads to."""
        return column_type(self.schema, name)

    @property
    def name(self) -> str:
        """The relative path as messages show it: of a copy, that of the file of text."""
        return self.relative.removesuffix(".parquet") if self.content else self.relative

    @property
    def uri(self) -> str:
        """Where it lies."""
        return self.version.uri

    @property
    def n_rows(self) -> int:
        """Rows of the file, by its footer."""
        return sum(group.n_rows for group in self.row_groups)


def find_inputs(
    paths: Sequence[str],
    *,
    skip_unreadable: bool = False,
    read_as: ReadAs | None = None,
    copies: Copies | None = None,
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
    copies : Copies, optional
        Where files of text are copied to, whose copies are read; without, they are no input.

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
    every: dict[str, FoundFile] = {}
    n_known, left_out = 0, dict[str, list[str]]()
    for path in paths:
        named = expand(path, copies)
        n_known += named.n_known
        for why, names in named.left_out.items():
            left_out.setdefault(why, []).extend(names)
        for item in named.found:
            every.setdefault(item.uri, item)
    found = without_doubles(list(every.values()))
    n_known += len(every) - len(found)
    relatives = parquet_names(unique_relatives(found))
    check_names(relatives)
    check_no_lake({item.path: item.place.filesystem for item in found})
    notes: list[str] = []
    given = _copied(found, relatives, copies, notes) if copies is not None else found
    with ThreadPoolExecutor(_N_FOOTER_THREADS) as pool:
        read_footer = partial(_read_footer, read_as=read_as or ReadAs())
        read = list(pool.map(read_footer, given, relatives))
    problems = [item for item in read if isinstance(item, str)]
    if problems and not skip_unreadable:
        if len(problems) < len(read):
            problems.append("set input.skip_unreadable=true to score the other files")
        raise UnreadableFileError("\n".join(problems))
    if n_known:
        what = "1 name is" if n_known == 1 else f"{n_known:,} names are"
        problems.append(f"{what} skipped: links to files or folders that are input already")
    problems += [left_out_note(names, why) for why, names in left_out.items() if names]
    problems += notes
    files = [item for item in read if isinstance(item, InputFile)]
    return sorted(files, key=lambda file: file.relative), problems


def _copied(
    found: Sequence[FoundFile], relatives: Sequence[str], copies: Copies, notes: list[str]
) -> list[FoundFile | str]:
    """Return copies in the place of files of text, or why there is none; add what they say.

    A large file is read by all workers; small ones are read beside each other.
    """
    files = dict(enumerate(zip(found, relatives, strict=True)))
    texts = {i: own for i, own in files.items() if own[0].kind is not None}
    # A file that a run read may be gone: it has no size.
    sizes = {i: item.info.size or 0 for i, (item, _) in texts.items()}
    small = {i: own for i, own in texts.items() if sizes[i] <= _SMALL_BYTES}
    total = sum(sizes[i] for i in small) >> 20
    label = f"reading {len(small):,} files" if total > MOST_SILENT_MB else ""
    made: dict[int, tuple[FoundFile | str, str]] = {}
    pool = ThreadPoolExecutor(_N_SMALL_THREADS)
    try:
        n_bytes = 0
        for i, own in zip(small, pool.map(partial(_copy, copies), small.values()), strict=True):
            made[i] = own
            n_bytes += sizes[i]
            copies.tell(label, min(n_bytes >> 20, total - 1), total)
        copies.tell(label, total, total)
    finally:
        pool.shutdown(cancel_futures=True)
    made |= {i: _copy(copies, own) for i, own in texts.items() if i not in made}
    notes += [made[i][1] for i in texts if made[i][1]]
    return [made[i][0] if i in made else item for i, item in enumerate(found)]


def _copy(copies: Copies, named: tuple[FoundFile, str]) -> tuple[FoundFile | str, str]:
    """Return the copy of a file of text, or why there is none, and what is to be said of it."""
    item, relative = named
    assert item.kind is not None
    name = relative.removesuffix(".parquet")
    key = STANDARD_INPUT if item.name else item.uri
    try:
        copy = copies.of_run(key) or copies.of(item.uri, name, item.kind, key=key)
    except UnreadableFileError as error:
        return str(error), ""
    place, path = open_place(str(copy.path))
    info = place.filesystem.get_file_info(path)
    return replace(item, path=path, place=place, info=info, content=copy.content), copy.note


def copy_of_file(path: StoragePath, relative: str, content: str, read_as: ReadAs) -> InputFile:
    """Return a copy that was made for a run, under the name that its scores have.

    Parameters
    ----------
    content : str
        Hash of what its rows are made of.

    Raises
    ------
    UnreadableFileError
        If it is not there, or damaged.
    """
    place, key = open_place(str(path))
    info = place.filesystem.get_file_info(key)
    item = FoundFile("/", key, place, info, content=content, name=relative)
    found = _read_footer(item, relative, read_as=read_as)
    if isinstance(found, str):
        raise UnreadableFileError(with_code(found, "QA0304"))
    return found


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


def _read_footer(item: FoundFile | str, relative: str, *, read_as: ReadAs) -> InputFile | str:
    if isinstance(item, str):
        return item
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
        is_known = Path(item.path).suffix.lower() in SUFFIXES
        hint = "" if is_known else f" (data files are {DATA_FILES})"
        return f"{item.uri} is not readable Parquet: {error}{hint} [QA0304]"
    version = FileVersion(
        item.uri, item.info.size, item.info.mtime_ns or 0, footer_hash, stamp=stamp
    )
    written = metadata.schema.to_arrow_schema()
    return InputFile(relative, version, tuple(groups), schema, written, read_as, item.content)
