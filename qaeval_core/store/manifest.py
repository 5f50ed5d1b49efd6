"""Manifest: what a family's commits cost, in few files, so that a million footers stay closed.

The driver writes parts of it while a run is under way, and one file in their place at its end. A
part says of each commit which version it means. What is committed, a listing alone says: a commit
that no manifest knows, or of which it knows another version, is looked into.

But: a part that is damaged, of another family or not there costs the time of looking, never a row
or a number; so writing one is tried once, and no run ends because it failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qaeval_core.storage import checksums
from qaeval_core.storage.arrow import table_of
from qaeval_core.storage.path import StoragePath
from qaeval_core.store.pass_stats import COUNTS, PassStats
from qaeval_core.store.store import Commit, Store

# Counts are null where nobody has looked yet.
SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("tag", pa.string()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
        pa.field("calls", pa.string()),
    ]
)
_FAMILY, _VERSION = b"qaeval.manifest_of", b"qaeval.manifest_version"
# Raised by whatever changes what a count means.
_NOW = b"1"
_PART = re.compile(r"^\d{8}\.parquet$")
N_READS_AT_ONCE = 64


class Manifest:
    """The manifest of one family below OUT.

    Parameters
    ----------
    store : Store
    family : str
        Its key.
    """

    def __init__(self, store: Store, family: str) -> None:
        self._store = store
        self._family = family
        self._folder = store.out / "manifest" / family
        self._parts: list[str] = []

    @property
    def n_parts(self) -> int:
        """How many files it is in."""
        return len(self._parts)

    def read(self) -> pa.Table:
        """Return what all parts say, a row a commit and version; damaged ones say nothing.

        Raises
        ------
        StorageError
            If the disk does not give them for as long as it is tried.
        """
        listed = self._store.call(lambda: list(self._folder.list()), f"cannot list {self._folder}")
        self._parts = sorted(found.name for found in listed if _PART.match(found.name))
        with ThreadPoolExecutor(N_READS_AT_ONCE) as pool:
            tables = [own for own in pool.map(self._read_part, self._parts) if own is not None]
        return pa.concat_tables([SCHEMA.empty_table(), *tables])

    def _read_part(self, name: str) -> pa.Table | None:
        path = self._folder / name
        content = self._store.call(path.read_bytes, f"cannot read {path}")
        if not checksums.is_intact(content):
            return None
        try:
            table = table_of(content)
        except (OSError, pa.ArrowException):
            return None
        metadata = table.schema.metadata or {}
        is_own = (
            metadata.get(_FAMILY) == self._family.encode()
            and metadata.get(_VERSION) == _NOW
            and table.schema.equals(SCHEMA)
        )
        return table.replace_schema_metadata(None) if is_own and _is_sound(table) else None

    def append(self, table: pa.Table) -> bool:
        """Write a part; return whether it is there."""
        number = int(self._parts[-1].partition(".")[0]) + 1 if self._parts else 0
        content = self._to_bytes(table)
        with contextlib.suppress(OSError):
            self._store.check_inside(self._folder / "any")
            while True:
                name = f"{number:08d}.parquet"
                if self._store.once(lambda: self._put_new(self._folder / name, content)):  # noqa: B023
                    self._parts.append(name)
                    return True
                number += 1  # Of a run that it does not know of.
        return False

    @staticmethod
    def _put_new(path: StoragePath, content: bytes) -> bool:
        return path.put_new(content) is not None

    def rewrite(self, table: pa.Table) -> None:
        """Write one file in the place of all parts; a kill between leaves both, which is right."""
        old = list(self._parts)
        if self.append(table):
            with contextlib.suppress(OSError):
                for name in old:
                    self._store.once((self._folder / name).delete)
                    self._parts.remove(name)

    def _to_bytes(self, table: pa.Table) -> bytes:
        metadata = {
            _FAMILY: self._family.encode(),
            _VERSION: _NOW,
            checksums.KEY: checksums.PLACEHOLDER,
        }
        buffer = io.BytesIO()
        sink = checksums.SealedFile(buffer)
        pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
        sink.seal()
        return buffer.getvalue()


def _is_sound(table: pa.Table) -> bool:
    """Whether all counts are counts, and all commits have a version."""
    counts = (table.column(name) for name in ("size", *COUNTS))
    return (
        not any(table.column(name).null_count for name in ("name", "size", "tag", *COUNTS))
        and all(pc.all(pc.greater_equal(own, 0)).as_py() is not False for own in counts)
        and all(_are_calls(text) for text in table.column("calls").unique().to_pylist())
    )


def _are_calls(text: str | None) -> bool:
    try:
        calls_of(text)
    except (ValueError, TypeError):
        return False
    return True


def calls_of(text: str | None) -> dict[str, int]:
    """Return the calls of a row of a manifest; ValueError or TypeError if they are none."""
    if text is None:
        return {}
    return PassStats.from_json(f'{{"calls": {text}}}').calls


def to_table(commits: Sequence[Commit]) -> pa.Table:
    """Return commits as rows of a manifest."""
    columns = {
        "name": [commit.name for commit in commits],
        "size": [commit.size for commit in commits],
        "tag": [commit.tag for commit in commits],
        **{name: [getattr(commit.stats, name) for commit in commits] for name in COUNTS},
        "calls": [json.dumps(own.stats.calls) if own.stats.calls else None for own in commits],
    }
    return pa.table(columns, schema=SCHEMA)
