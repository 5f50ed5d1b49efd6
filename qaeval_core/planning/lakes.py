"""Lakes: folders of Parquet of which not every file is alive.

Delta, Iceberg, Hudi and Spark's streams say in a log which files hold rows now. The others are
dead: rows that were deleted or replaced. They are refused by name, whatever path leads to them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from pyarrow import fs

from qaeval_core.errors import InputError

# Folder beside the data -> the format, and what polars reads it with.
_LOGS = {
    "_delta_log": ("a Delta table", "scan_delta"),
    ".hoodie": ("a Hudi table", ""),
    "_spark_metadata": ("what a Spark stream writes", ""),
    "metadata": ("an Iceberg table", "scan_iceberg"),
}
_ICEBERG = (".metadata.json", ".metadata.json.gz")
_N_THREADS = 16


def check_no_lake(files: Mapping[str, fs.FileSystem]) -> None:
    """Raise InputError where a file lies in a table format's folder.

    Parameters
    ----------
    files : mapping of path to filesystem
    """
    folders: dict[str, fs.FileSystem] = {}
    for path, filesystem in files.items():
        is_local = isinstance(filesystem, fs.LocalFileSystem)
        # A link into a table leads to its dead files, too.
        for own in dict.fromkeys((path, os.path.realpath(path) if is_local else path)):
            for parent in PurePosixPath(own).parents:
                if str(parent) in folders:
                    break
                folders[str(parent)] = filesystem
    # All of them, many at once: a bucket is asked about each, as it is for each footer.
    with ThreadPoolExecutor(_N_THREADS) as pool:
        list(pool.map(_check, folders, folders.values()))


def _check(folder: str, filesystem: fs.FileSystem) -> None:
    logs = {name: str(PurePosixPath(folder) / name) for name in _LOGS}
    try:
        infos = filesystem.get_file_info(list(logs.values()))
    except OSError:
        return  # Who may not look there has no table there.
    for (name, path), info in zip(logs.items(), infos, strict=True):
        if info.type != fs.FileType.Directory:
            continue
        source = folder
        if name == "metadata":
            source = _newest_metadata(path, filesystem)
            if not source:
                continue
        what, read = _LOGS[name]
        code = f"import polars, sys; polars.{read}(sys.argv[1]).sink_parquet(sys.argv[2])"
        words = shlex.join([source, "rows.parquet"])
        how = f'python -c "{code}" {words}' if read else "with Spark"
        raise InputError(
            f"{folder} is {what}, and some files below it hold deleted rows; write its rows out: "
            f"[QA0311]\n{how}"
        )


def _newest_metadata(folder: str, filesystem: fs.FileSystem) -> str:
    """Return the newest file that describes an Iceberg table; "" where there is none."""
    try:
        infos = filesystem.get_file_info(fs.FileSelector(folder))
    except OSError:
        return ""
    own = [info for info in infos if info.path.endswith(_ICEBERG)]
    newest = max(own, key=lambda info: info.mtime_ns or 0, default=None)
    return str(newest.path) if newest is not None else ""
