"""Expand: paths, folders, globs and URIs to files, with the names that they have in OUT."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from qaeval_core.errors import InputError, StorageError, nearest, with_code
from qaeval_core.planning.filesystems import open_filesystem
from qaeval_core.planning.listing import (
    check_utf8,
    distinct,
    files_below,
    is_glob,
    is_hidden,
    matches,
    shown_name,
    split_glob,
)
from qaeval_core.planning.text_files.copies import STANDARD_INPUT, Copies
from qaeval_core.planning.text_files.kinds import DATA_FILES, TextKind, kind_of
from qaeval_core.storage.quoting import quoted

SUFFIXES = (".parquet", ".pq", ".parq")
_MAGIC = b"PAR1"
_N_LOOKING_THREADS = 16


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a path names.

    Attributes
    ----------
    base : str
        What its relative path is relative to.
    kind : TextKind, optional
        Of a file of text.
    content : str
        Of a copy of one: hash of what its rows are made of.
    name : str
        Of standard input; else "".
    """

    base: str
    path: str
    place: FilePlace
    info: fs.FileInfo
    kind: TextKind | None = None
    content: str = ""
    name: str = ""

    @property
    def relative(self) -> str:
        """The path below its base."""
        return self.name or os.path.relpath(self.path, self.base).replace(os.sep, "/")

    @property
    def uri(self) -> str:
        """Where it lies."""
        return self.place.uri_of(self.path)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A filesystem, and how a URI names it: its endpoint or region is the query."""

    filesystem: fs.FileSystem
    uri: SplitResult | None = None  # None for local paths

    def uri_of(self, path: str) -> str:
        """Return the path or URI of a path there."""
        if self.uri is None:
            return path
        # Buckets are the first part of a path and the host of a URI; other stores have both apart.
        below = path if path.startswith("/") else "/" + path.partition("/")[2]
        return urlunsplit(self.uri._replace(path=quoted(below)))


def open_place(uri: str) -> tuple[FilePlace, str]:
    """Return the filesystem of a path or URI, and the path there.

    Raises
    ------
    InputError
        If it holds a secret, or cannot be opened.
    """
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
    return FilePlace(filesystem, None if is_local else parts), path


def without_doubles(found: Sequence[FoundFile]) -> list[FoundFile]:
    """Leave out local files that another name leads to as well."""
    # Of a run's own input that is gone there is a copy.
    local = [
        item.path
        for item in found
        if item.place.uri is None and item.info.type != fs.FileType.NotFound
    ]
    doubles = set(local) - set(distinct(local))
    return [item for item in found if item.place.uri is not None or item.path not in doubles]


class NamedFiles(NamedTuple):
    """What a path names: files, how many links were not followed, and by why what is left out."""

    found: list[FoundFile]
    n_known: int = 0
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({})


def _standard_input(copies: Copies) -> FoundFile:
    """Return what comes on standard input as a file of text, or what a run read there."""
    place = FilePlace(fs.LocalFileSystem())
    path, kind = copies.standard_input()
    info = place.filesystem.get_file_info(path)
    return FoundFile("/", path, place, info, kind, name=f"stdin{kind.suffix}")


def expand(uri: str, copies: Copies | None) -> NamedFiles:
    """Return the files that a path, folder, glob or URI names; of text where there are copies.

    Raises
    ------
    InputError
        If it names nothing, or cannot be looked at.
    StorageError
        If a store does not answer.
    """
    try:
        return _expand(uri, copies)
    except OSError as error:
        raise StorageError(with_code(f"cannot look at {uri}: {error}", "QA0302")) from None


def _expand(uri: str, copies: Copies | None) -> NamedFiles:
    if uri == STANDARD_INPUT and copies is not None:
        return NamedFiles([_standard_input(copies)])
    check_utf8(uri)
    place, path = open_place(uri)
    filesystem = place.filesystem
    if is_glob(path) and filesystem.get_file_info(path).type == fs.FileType.NotFound:
        return _expand_glob(place, path, copies)
    info = filesystem.get_file_info(path)
    kind = _text_kind(place, info, copies)
    is_of_run = kind is not None and copies is not None and copies.of_run(place.uri_of(path))
    if info.type == fs.FileType.File or is_of_run:
        return NamedFiles([FoundFile(str(PurePosixPath(path).parent), path, place, info, kind)])
    if info.type == fs.FileType.Directory:
        return _search(place, path, copies)
    raise InputError(f"no such file or folder: {uri}{_near_files(path, place)} [QA0301]")


def _text_kind(place: FilePlace, info: fs.FileInfo, copies: Copies | None) -> TextKind | None:
    """Return which kind of text a file is by its name, if it is none of Parquet by its bytes."""
    kind = kind_of(info.path) if copies is not None else None
    is_there = kind is not None and info.type == fs.FileType.File
    return None if is_there and _is_data(place, info) else kind


def _search(place: FilePlace, folder: str, copies: Copies | None) -> NamedFiles:
    n_known = 0
    if place.uri is None:
        names, n_known = _files_below(folder)
        infos = _infos(place, [path for path in names if not is_hidden(path, folder)])
    else:
        infos = place.filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        names = [info.path for info in infos]
        infos = [info for info in infos if not is_hidden(info.path, folder)]
    hidden = [path for path in names if path.lower().endswith(SUFFIXES) and is_hidden(path, folder)]
    files = [info for info in infos if info.type == fs.FileType.File]
    with ThreadPoolExecutor(_N_LOOKING_THREADS) as pool:
        are_data = list(pool.map(lambda info: _is_data(place, info), files))
    kinds = {info.path: kind_of(info.path) if copies is not None else None for info in files}
    parts = [
        info
        for info, is_data in zip(files, are_data, strict=True)
        if is_data or _is_part(kinds[info.path])
    ]
    # Beside other data a document tells of it: it is data where there is no other.
    documents = [info for info in files if kinds[info.path] is not None]
    kept = {info.path for info in parts or documents}
    if not kept:
        raise InputError(f"no data file below {folder}; data files are {DATA_FILES} [QA0301]")
    others = [info.path for info in files if info.path not in kept]
    found = [
        FoundFile(folder, info.path, place, info, None if is_data else kinds[info.path])
        for info, is_data in zip(files, are_data, strict=True)
        if info.path in kept
    ]
    return NamedFiles(found, n_known, _left_out(folder, infos, others, hidden))


def _is_part(kind: TextKind | None) -> bool:
    return kind is not None and kind.format != "json"


def _left_out(
    folder: str, infos: Sequence[fs.FileInfo], others: Sequence[str], hidden: Sequence[str]
) -> dict[str, list[str]]:
    """Return the names of what is left out, by why."""
    lost = [info.path for info in infos if info.type == fs.FileType.NotFound]
    paths = {"no data file": others, "hidden": hidden, "a link to a missing file": lost}
    return {why: [os.path.relpath(path, folder) for path in own] for why, own in paths.items()}


def _files_below(folder: str) -> tuple[list[str], int]:
    try:
        return files_below(folder)
    except OSError as error:
        raise InputError(
            f"cannot list {shown_name(error.filename)}: {error.strerror} [QA0302]"
        ) from None


def _infos(place: FilePlace, paths: Sequence[str]) -> list[fs.FileInfo]:
    for path in paths:
        check_utf8(path)
    return list(place.filesystem.get_file_info(list(paths)))


def _is_data(place: FilePlace, info: fs.FileInfo) -> bool:
    """Return whether a file of a folder is Parquet: by its name, or else by its bytes."""
    if info.path.lower().endswith(SUFFIXES):
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


def _expand_glob(place: FilePlace, pattern: str, copies: Copies | None) -> NamedFiles:
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
    found = [
        FoundFile(base, info.path, place, info, _text_kind(place, info, copies)) for info in kept
    ]
    return NamedFiles(found, n_known, _left_out(base, infos, (), ()))


def _is_taken(path: str, base: str, parts: Sequence[str]) -> bool:
    if ".." in PurePosixPath(path).parts:  # What leads out of the folder is refused by name.
        return fnmatch.fnmatchcase(PurePosixPath(path).name, parts[-1])
    return matches(os.path.relpath(path, base), parts)


def _near_files(path: str, place: FilePlace) -> str:
    folder = Path(path).parent
    try:
        # Of no bucket, and of one that refuses, it is not said what would be beside.
        beside = place.filesystem.get_file_info(fs.FileSelector(str(folder), allow_not_found=True))
    except OSError:
        return ""
    names = [item.base_name for item in beside if not item.base_name.startswith(".")]
    hint = nearest(Path(path).name, names) if names else ""
    return hint if hint.startswith("; did you mean") else ""


def unique_relatives(found: Sequence[FoundFile]) -> list[str]:
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
