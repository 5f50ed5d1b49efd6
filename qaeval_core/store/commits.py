"""Commits: what is committed, as the driver of a run knows it.

A family is listed once, when it is first asked for; from then on its workers tell what they have
committed. The same listing serves the plan, the limit of quarantined rows, shards that are taken
back and the last look before scores are written. Counts come from the manifest where it knows the
very version of a commit, else from the commit's footer, many at once.

But: a shard whose worker died between its commit and its answer is not told: where rows seem to be
missing, the family is listed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.storage.base import Found
from qaeval_core.store.manifest import (
    N_READS_AT_ONCE,
    SCHEMA,
    Manifest,
    calls_of,
    to_table,
)
from qaeval_core.store.pass_stats import COUNTS, PassStats
from qaeval_core.store.row_ranges import RowRange, covering
from qaeval_core.store.store import COMMIT_NAME, Commit, Store

# A part of a manifest is written after so many commits, or so long: what a kill makes the next run
# look into.
PART_COMMITS = 5_000
PART_S = 30.0
# A pool of threads is handed so many footers at a time.
_LOOKS_AT_ONCE = 4_096


class Commits:
    """Everything that is committed below OUT; a run's driver has one.

    Several threads may note commits, each of its own families.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._families: dict[str, FamilyCommits] = {}
        self._lock = threading.Lock()

    def of(self, family: str) -> FamilyCommits:
        """Return those of a family, listed at the first call."""
        with self._lock:
            if family not in self._families:
                self._families[family] = FamilyCommits(self._store, family)
            return self._families[family]

    def note(self, commits: Iterable[Commit]) -> None:
        """Take what workers have committed."""
        for commit in commits:
            self.of(commit.family).add(commit)

    def with_other_samples(self, families: Iterable[str]) -> frozenset[str]:
        """Return the families that have commits of other samples than the store's."""
        return frozenset(family for family in families if self.of(family).has_others)

    def save(self) -> None:
        """Write down what the manifests lack of this run, trying once."""
        for own in list(self._families.values()):
            if not own.save():
                return  # Nor would the next one be taken.


class FamilyCommits:
    """The commits of one family."""

    def __init__(self, store: Store, family: str) -> None:
        self._store = store
        self._family = family
        self._new: list[Commit] = []  # not in the table yet
        self._unsaved: list[Commit] = []  # not in the manifest yet
        self._saved_s = time.monotonic()
        self.list_again()

    def list_again(self) -> None:
        """Look what is there, and what the manifest says of it."""
        self.save()
        self._manifest = Manifest(self._store, self._family)
        said = self._manifest.read()
        listed = self._store.listed(self._family, _table_of)
        places = pc.index_in(_versions(listed), value_set=_versions(said))
        known = said.select([*COUNTS, "calls"]).take(places)
        self._tables = [pa.table([*listed.columns, *known.columns], schema=SCHEMA)]
        self._new.clear()
        # One file that says all and no more is as a run's end leaves it.
        self._is_compact = self._manifest.n_parts <= 1 and len(said) == len(listed)
        self._is_compact &= places.null_count == 0
        self._index: _Index | None = None

    def add(self, commit: Commit) -> None:
        """Take a commit that a worker has made."""
        self._new.append(commit)
        self._unsaved.append(commit)
        self._index = None
        waited_s = time.monotonic() - self._saved_s
        if len(self._unsaved) >= PART_COMMITS or waited_s >= PART_S:
            self.save()

    def save(self) -> bool:
        """Write a part of the manifest, of what was added since the last one; whether it could."""
        if not self._unsaved:
            return True
        self._saved_s = time.monotonic()
        is_saved = self._manifest.append(to_table(self._unsaved))
        self._unsaved.clear()
        self._gather()
        self._is_compact = False
        return is_saved

    def _gather(self) -> None:
        """Make columns of what came in: a million commits as objects would be a gigabyte."""
        if self._new:
            self._tables.append(to_table(self._new))
            self._new.clear()

    def compact(self) -> None:
        """Write all that is known into one file of the manifest, if it is not as it is."""
        if not self._is_compact or self._unsaved:
            table = self._table
            self._unsaved.clear()
            self._manifest.rewrite(table.filter(table.column(COUNTS[0]).is_valid()))
            self._is_compact = True

    def drop(self, shards: Sequence[tuple[str, RowRange]]) -> None:
        """Take commits back, so that their shards are computed again."""
        if not shards:
            return
        for file_id, rows in shards:
            self._store.drop(self._family, file_id, rows)
        names = [self._store.commit_path(self._family, *shard).name for shard in shards]
        is_gone = pc.is_in(self._table.column("name"), value_set=pa.array(names))
        self._tables = [self._table.filter(pc.invert(is_gone))]
        self._index, self._is_compact = None, False

    def files(self) -> list[str]:
        """Return the identities of the files that have commits of this sample."""
        return list(self._now.places)

    @property
    def has_others(self) -> bool:
        """Whether there are commits of other samples."""
        return self._now.has_others

    def covered(self, file_id: str, *, n_rows: int) -> list[RowRange]:
        """Return the disjoint ranges of a file within its first rows, in order."""
        return self._now.covered_ranges(file_id, n_rows)

    def versions(self, file_id: str, *, n_rows: int) -> list[str]:
        """Return the names and versions of the commits of `covered`, in order."""
        now = self._now
        if now.versions is None:  # Of all at once: files may be many, and their commits few.
            now.versions = np.array(_versions(self._table).to_pylist(), dtype=object)
        return list(now.versions[now.covered(file_id, n_rows)].tolist())

    def sizes(self, file_id: str, *, n_rows: int) -> list[int]:
        """Return the bytes of the commits of `covered`, in order."""
        own = self._table.column("size").take(pa.array(self._now.covered(file_id, n_rows)))
        return list(own.to_pylist())

    def total(self, n_rows: Mapping[str, int]) -> PassStats:
        """Return what the covered ranges of files have cost, by file and rows that count.

        Raises
        ------
        ReconcileError, StorageError
            If a commit that no manifest knows is damaged, or does not come.
        """
        places = pa.array(self._looked_into(n_rows))
        own = self._table.select([*COUNTS, "calls"]).take(places)
        total = PassStats()
        for name in COUNTS:
            setattr(total, name, pc.sum(own.column(name)).as_py() or 0)
        for counted in own.column("calls").value_counts().to_pylist():
            for kind, n_calls in calls_of(counted["values"]).items():
                total.count(kind, n_calls * counted["counts"])
        return total

    def unscored(self, n_rows: Mapping[str, int]) -> list[tuple[str, RowRange]]:
        """Return the covered ranges with quarantined rows, or with calls that were given up."""
        places = self._looked_into(n_rows)
        own = self._table.take(pa.array(places))
        is_unscored = np.asarray(pc.greater(own.column("n_quarantined"), 0), dtype=bool)
        kinds = own.column("calls").to_pylist()
        given_up = [PassStats(calls=calls_of(text)).has_given_up for text in kinds]
        chosen = places[is_unscored | np.array(given_up, dtype=bool)]
        ids = self._now.files[chosen]
        return list(zip(ids.tolist(), self._now.ranges(chosen), strict=True))

    def _looked_into(self, n_rows: Mapping[str, int]) -> NDArray[np.int64]:
        """Return the places of covered ranges, after a look into those that nobody knows."""
        places = self._places(n_rows)
        unknown = np.asarray(self._table.column(COUNTS[0]).is_null(), dtype=bool)[places]
        if unknown.any():
            self._look_into(places[unknown])
            places = self._places(n_rows)
        return places

    def _places(self, n_rows: Mapping[str, int]) -> NDArray[np.int64]:
        parts = [self._now.covered(file_id, count) for file_id, count in n_rows.items()]
        return np.concatenate([_NONE, *parts])

    def _look_into(self, places: NDArray[np.int64]) -> None:
        """Read footers, many at once."""
        folder = self._store.family_folder(self._family)
        listed = self._table.take(pa.array(places)).select(["name", "size", "tag"]).to_pylist()
        ranges = self._now.ranges(places)
        ids = self._now.files[places].tolist()

        def look(i: int) -> Commit:
            found, rows = listed[i], ranges[i]
            stats, tag = self._store.look_into(folder / found["name"], self._family, rows)
            # Of what has been replaced meanwhile, the manifest keeps nothing that a listing has.
            tag = found["tag"] if tag is None else tag
            return Commit(self._family, ids[i], rows, found["name"], found["size"], tag, stats)

        with ThreadPoolExecutor(N_READS_AT_ONCE) as pool:
            for start in range(0, len(listed), _LOOKS_AT_ONCE):
                self._store.outages.look()
                some = range(start, min(start + _LOOKS_AT_ONCE, len(listed)))
                self._tables.append(to_table(list(pool.map(look, some))))
        self._index, self._is_compact = None, False

    def _settle(self) -> None:
        """Make one table of all that came in; what came last of a name counts."""
        self._gather()
        if len(self._tables) > 1:
            whole = pa.concat_tables(self._tables).combine_chunks()
            codes = np.asarray(whole.column("name").combine_chunks().dictionary_encode().indices)
            last = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
            np.maximum.at(last, codes, np.arange(len(codes)))
            self._tables = [whole.take(pa.array(np.sort(last)))]

    @property
    def _now(self) -> _Index:
        if self._index is None:
            self._settle()
            suffix = self._store.suffix
            self._index = _Index(self._table.column("name"), suffix)
        return self._index

    @property
    def _table(self) -> pa.Table:
        self._settle()
        return self._tables[0]


_NONE = np.zeros(0, dtype=np.int64)


@dataclass
class _Index:
    """Names of commits by what they say; places are rows of the table that they come from."""

    names: pa.ChunkedArray
    suffix: str
    versions: NDArray[np.object_] | None = None

    def __post_init__(self) -> None:
        parts = pc.extract_regex(self.names.combine_chunks(), COMMIT_NAME.pattern)
        file, start, stop, sample = (
            parts.field(name) for name in ("file", "start", "stop", "sample")
        )
        self.starts = start.cast(pa.int64()).to_numpy()
        self.stops = stop.cast(pa.int64()).to_numpy()
        is_own = np.asarray(pc.equal(sample, self.suffix), dtype=bool)
        self.has_others = not bool(is_own.all())
        encoded = file.dictionary_encode()
        self._codes, self._ids = np.asarray(encoded.indices), encoded.dictionary.to_pylist()
        order = np.argsort(self._codes, kind="stable")
        order = order[is_own[order]]
        edges = np.searchsorted(self._codes[order], np.arange(len(self._ids) + 1))
        self.places = {
            file_id: order[edges[i] : edges[i + 1]]
            for i, file_id in enumerate(self._ids)
            if edges[i] < edges[i + 1]
        }
        self._covered: dict[tuple[str, int], NDArray[np.int64]] = {}
        self._covered_ranges: dict[tuple[str, int], list[RowRange]] = {}

    @cached_property
    def files(self) -> NDArray[np.object_]:
        """The file of every place."""
        files: NDArray[np.object_] = np.array(self._ids, dtype=object)[self._codes]
        return files

    def covered(self, file_id: str, n_rows: int) -> NDArray[np.int64]:
        """Return the places of disjoint ranges within the first rows of a file, in order."""
        if (file_id, n_rows) not in self._covered:
            own = self.places.get(file_id, _NONE)
            chosen = covering(self.starts[own], self.stops[own], n_rows=n_rows)
            self._covered[file_id, n_rows] = own[chosen]
        return self._covered[file_id, n_rows]

    def covered_ranges(self, file_id: str, n_rows: int) -> list[RowRange]:
        """Return the ranges of those places; the list is everybody's."""
        if (file_id, n_rows) not in self._covered_ranges:
            self._covered_ranges[file_id, n_rows] = self.ranges(self.covered(file_id, n_rows))
        return self._covered_ranges[file_id, n_rows]

    def ranges(self, places: NDArray[np.int64]) -> list[RowRange]:
        """Return the ranges of places."""
        bounds = zip(self.starts[places].tolist(), self.stops[places].tolist(), strict=True)
        return list(map(RowRange._make, bounds))


def _table_of(listed: Iterable[Found]) -> pa.Table:
    # As columns at once: a million objects that live on are looked through by the collector.
    names: list[str] = []
    sizes: list[int] = []
    tags: list[str] = []
    for found in listed:
        names.append(found.name)
        sizes.append(found.size)
        tags.append(found.tag)
    columns = [
        pa.array(names, pa.string()),
        pa.array(sizes, pa.int64()),
        pa.array(tags, pa.string()),
    ]
    table = pa.table(columns, names=["name", "size", "tag"])
    return table.filter(pc.match_substring_regex(table.column("name"), COMMIT_NAME.pattern))


def _versions(table: pa.Table) -> pa.Array:
    """Return what a commit and its version are known by, as one text each."""
    size = table.column("size").cast(pa.string())
    joined = pc.binary_join_element_wise(table.column("name"), size, table.column("tag"), "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
