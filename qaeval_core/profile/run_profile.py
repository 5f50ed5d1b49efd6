"""Run profile: the profiles of all columns of a run, shares of rows, and how many clusters.

It is what the history of an audit keeps of a run: a table with lines for the buckets of each column
and slice, whose metadata say cells, signatures and slices.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from qaeval_core.errors import UnreadableFileError
from qaeval_core.profile.cells import Cells
from qaeval_core.profile.column_profile import N_BUCKETS, IntArray, Places, Profile, with_sum
from qaeval_core.profile.slices import MAX_VALUES, Slice, Slices
from qaeval_core.storage.arrow import table_at
from qaeval_core.storage.path import AnyPath, as_path

PAGE, PROFILE = "report.html", "profile.parquet"

UInt64 = NDArray[np.uint64]

VERSION = 2
METADATA = b"qaeval.profile"
# Distinct clusters are counted exactly below this, and estimated above.
N_EXACT = 256
_SUMS = ("n", "sum_whole", "sum_rest", "square_whole", "square_rest")
_LISTS = {"cells": pa.uint16(), "counts": pa.uint32()}
_REASON_LISTS = {"reasons": pa.string(), "reason_counts": pa.uint32()}
SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # cells, sums or rate
        pa.field("column", pa.string(), nullable=False),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("slice_code", pa.int16(), nullable=False),
        pa.field("bucket", pa.uint16(), nullable=False),
        *(pa.field(name, pa.int64()) for name in _SUMS),
        pa.field("n_true", pa.int64()),  # of n, where it is a rate
        *(pa.field(name, pa.list_(kind)) for name, kind in (_LISTS | _REASON_LISTS).items()),
    ]
)


@dataclass(slots=True)
class ClusterCounts:
    """How many distinct clusters the slices hold.

    Keeps the 256 smallest hashes of each: Bar-Yossef et al., Counting Distinct Elements in a Data
    Stream, RANDOM 2002; (k - 1) / h_k of k of them, where h_k is the largest as a share of 2^64.

    Hashes are mixed again before: a sample of contexts is those of smallest hash, whose own ones
    would tell how many contexts it was drawn from.
    """

    smallest: list[UInt64]

    def add(self, hashes: UInt64, codes: Sequence[NDArray[np.intp]]) -> None:
        """Count clusters of rows.

        Parameters
        ----------
        hashes : uint64 ndarray of shape (n_rows,)
        codes : sequence of int ndarray of shape (n_rows,)
            Slices that the rows are in.
        """
        hashes = _mixed(hashes)
        for own in codes:
            full = np.uint64(2**64 - 1)
            limits = np.array(
                [each[-1] if len(each) >= N_EXACT else full for each in self.smallest]
            )
            is_small = hashes <= limits[own]
            left, places = hashes[is_small], own[is_small]
            for code in np.unique(places).tolist():
                self._add(code, left[places == code])

    def _add(self, code: int, hashes: UInt64) -> None:
        self.smallest[code] = np.union1d(self.smallest[code], hashes)[:N_EXACT]

    def merge(self, other: ClusterCounts) -> None:
        """Add the clusters of other rows."""
        for code, hashes in enumerate(other.smallest):
            self._add(code, hashes)

    def counts(self) -> IntArray:
        """Return the number of clusters of each slice; exact below 256."""
        return np.array([self._count(each) for each in self.smallest], np.int64)

    @staticmethod
    def _count(hashes: UInt64) -> int:
        if len(hashes) < N_EXACT:
            return len(hashes)
        return round((N_EXACT - 1) / (float(hashes[-1]) / 2.0**64))


def _mixed(hashes: UInt64) -> UInt64:
    """Return other 64 bits of each hash, one to one.

    The last steps of SplitMix64: Steele, Lea, Flood, Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014.
    """
    mixed = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: UInt64 = mixed ^ (mixed >> np.uint64(31))
    return found


@dataclass(slots=True)
class RunProfile:
    """What is kept of a run.

    Attributes
    ----------
    slices : Slices
    columns : dict of column to Profile
    rates : dict of name to int64 ndarray of shape (2, n_slices, N_BUCKETS)
        Rows of which it is true, and rows of which it could be: ``rows`` (all of the run),
        ``quarantined``, ``not_sampled``, ``kept``, ``truncated`` or ``truncated.<column>``.
    clusters : ClusterCounts
        Of rows that are not quarantined and were sampled.
    cluster : str
        What the clusters are, for people.
    name : str
        What people call the run.
    """

    slices: Slices
    columns: dict[str, Profile]
    rates: dict[str, IntArray]
    clusters: ClusterCounts
    cluster: str = ""
    name: str = ""

    @classmethod
    def of(
        cls,
        cells: Mapping[str, Cells],
        slices: Slices,
        *,
        signatures: Mapping[str, str] | None = None,
        ranges: Mapping[str, tuple[float | None, float | None]] | None = None,
        cluster: str = "",
    ) -> RunProfile:
        """Return a profile of no rows.

        Parameters
        ----------
        cells : mapping of column to Cells
        slices : Slices
        signatures : mapping of column to text, optional
        ranges : mapping of column to (low, high), optional
            What metrics say of their ranges; None or infinite where there is no bound.
        cluster : str
        """
        n_slices = len(slices.all)
        columns = {}
        for name, own in cells.items():
            low, high = (ranges or {}).get(name, (None, None))
            columns[name] = Profile(
                own,
                n_slices,
                signature=(signatures or {}).get(name, ""),
                low=-np.inf if low is None else low,
                high=np.inf if high is None else high,
            )
        empty = ClusterCounts([np.empty(0, np.uint64) for _ in range(n_slices)])
        rates = {"rows": np.zeros((2, n_slices, N_BUCKETS), np.int64)}
        return cls(slices, columns, rates, empty, cluster)

    def add(
        self,
        values: Mapping[str, NDArray[np.floating]],
        clusters: UInt64,
        *,
        by: Mapping[str, pa.ChunkedArray] | None = None,
        reasons: Mapping[str, pa.ChunkedArray] | None = None,
        rates: Mapping[str, tuple[NDArray[np.bool_], NDArray[np.bool_] | None]] | None = None,
        is_scored: NDArray[np.bool_] | None = None,
    ) -> None:
        """Count rows.

        Parameters
        ----------
        values : mapping of column to float ndarray of shape (n_rows,)
            NaN where undefined.
        clusters : uint64 ndarray of shape (n_rows,)
            Hashes that are the same in every run; a row without a cluster has that of its id.
        by : mapping of column to pyarrow.ChunkedArray of texts, optional
            Of the slices.
        reasons : mapping of column to pyarrow.ChunkedArray of texts, optional
            Why values are undefined.
        rates : mapping of name to (bool ndarray, bool ndarray or None), optional
            Rows of which something is true, and of which it could be; None: of all.
        is_scored : bool ndarray of shape (n_rows,), optional
            False for rows that are quarantined or were not sampled: no column counts them.
        """
        codes = [np.zeros(len(clusters), np.intp), *self.slices.codes(by or {})]
        places = Places.of(clusters, codes, len(self.slices.all))
        wider = places.wider()
        everything = np.ones(len(clusters), dtype=bool)
        for name, (is_true, could_be) in {"rows": (everything, None), **(rates or {})}.items():
            of = everything if could_be is None else could_be
            counts = [wider.chosen(is_true & of).count(), wider.chosen(of).count()]
            self._add_rate(name, np.stack(counts))
        scored = everything if is_scored is None else is_scored
        self.clusters.add(clusters[scored], [own[scored] for own in codes])
        own_places = places if is_scored is None else places.chosen(scored)
        for name, profile in self.columns.items():
            why = (reasons or {}).get(name)
            profile.add(
                values[name][scored],
                own_places,
                why.filter(pa.array(scored)) if why is not None else None,
            )

    def _add_rate(self, name: str, counts: IntArray) -> None:
        self.rates[name] = self.rates.get(name, np.int64(0)) + counts

    def merge(self, other: RunProfile) -> None:
        """Add the counts of other rows of the same run.

        Raises
        ------
        ValueError
            If columns, cells or slices are others.
        """
        if self.slices != other.slices or self.columns.keys() != other.columns.keys():
            raise ValueError("profiles of other columns or slices cannot be added")
        for name, profile in self.columns.items():
            profile.merge(other.columns[name])
        for name, counts in other.rates.items():
            self._add_rate(name, counts)
        self.clusters.merge(other.clusters)

    @property
    def n_rows(self) -> int:
        """Rows of the run."""
        return int(self.rates["rows"][0, 0].sum())

    def only(self, columns: Collection[str]) -> RunProfile:
        """Return the profile with some of its columns."""
        return replace(
            self,
            columns={name: own for name, own in self.columns.items() if name in columns},
            rates={
                name: own
                for name, own in self.rates.items()
                if "." not in name or name.partition(".")[2] in columns
            },
        )

    def without(self, own: Slice) -> RunProfile | None:
        """Return the profile of the rows outside of a slice, with the slices of its column alone.

        Which rows slices of two columns share is not counted. None where the rows of the slice
        are not counted apart.
        """
        if own.is_other or own.by not in self.slices.values:
            return None
        codes = {each: code for code, each in enumerate(self.slices.all) if each.by == own.by}
        others = codes[Slice(own.by, is_other=True)]
        if own not in codes and self.rates["rows"][0, others].any():
            return None
        kept = [code for each, code in codes.items() if each != own]
        whole = ClusterCounts([np.empty(0, np.uint64)])
        for code in kept:
            whole.merge(ClusterCounts([self.clusters.smallest[code]]))
        return replace(
            self,
            slices=Slices({own.by: [v for v in self.slices.values[own.by] if v != own.value]}),
            columns={name: each.of_slices(kept) for name, each in self.columns.items()},
            rates={name: with_sum(each[:, kept], axis=1) for name, each in self.rates.items()},
            clusters=ClusterCounts(whole.smallest + [self.clusters.smallest[i] for i in kept]),
        )

    def slice_notes(self) -> list[str]:
        """Return a sentence for each column that has more values than slices."""
        n_rows = self.rates["rows"][0].sum(axis=1)
        return [
            f"{own.by} has more than {MAX_VALUES} values; the {int(n):,} rows of the others are "
            f"in the slice {own}"
            for own, n in zip(self.slices.all, n_rows, strict=True)
            if own.is_other and n
        ]

    def to_table(self) -> pa.Table:
        """Return the profile as a table, with a line for each bucket with rows."""
        parts = [self._rate_lines(name, counts) for name, counts in sorted(self.rates.items())]
        for name, each in sorted(self.columns.items()):
            parts += [self._cell_lines(name, each), self._sum_lines(name, each)]
        table = pa.concat_tables([SCHEMA.empty_table(), *parts])
        return table.replace_schema_metadata({METADATA: json.dumps(self._described()).encode()})

    def _described(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "cluster": self.cluster,
            "name": self.name,
            "slices": {by: list(values) for by, values in self.slices.values.items()},
            "clusters": [each.tolist() for each in self.clusters.smallest],
            "columns": {
                name: {
                    "cells": json.loads(own.cells.to_json()),
                    "signature": own.signature,
                    "low": own.low,
                    "high": own.high,
                }
                for name, own in self.columns.items()
            },
            "rates": list(self.rates),
        }

    def _rate_lines(self, name: str, counts: IntArray) -> pa.Table:
        present = np.nonzero(counts[1])
        return self._lines("rate", name, present, {"n_true": counts[0], "n": counts[1]})

    def _sum_lines(self, name: str, profile: Profile) -> pa.Table:
        sums = dict(zip(_SUMS, profile.sums, strict=True))
        return self._lines("sums", name, np.nonzero(profile.sums[0]), sums)

    def _cell_lines(self, name: str, profile: Profile) -> pa.Table:
        present = np.nonzero(profile.counts.any(axis=2))
        names = sorted(profile.reasons)
        counts = profile.counts[present]
        why = np.array([profile.reasons[each][present] for each in names], np.uint32)
        why = why.reshape(len(names), len(counts)).T
        texts = np.array(names, dtype=object)
        line, cell = np.nonzero(counts)
        own_line, reason = np.nonzero(why)
        lists = {
            "cells": _lists(line, cell, len(counts), pa.uint16()),
            "counts": _lists(line, counts[line, cell], len(counts), pa.uint32()),
            "reasons": _lists(own_line, texts[reason], len(counts), pa.string()),
            "reason_counts": _lists(own_line, why[own_line, reason], len(counts), pa.uint32()),
        }
        return self._lines("cells", name, present, {}, lists)

    def _lines(
        self,
        kind: str,
        name: str,
        present: tuple[NDArray[np.intp], ...],
        numbers: Mapping[str, IntArray],
        lists: Mapping[str, pa.Array] | None = None,
    ) -> pa.Table:
        slices, buckets = present
        n = len(slices)
        labels = np.array([str(each) for each in self.slices.all], dtype=object)
        arrays = {
            "kind": pa.array([kind] * n, pa.string()),
            "column": pa.array([name] * n, pa.string()),
            "slice": pa.array(labels[slices], pa.string()),
            "slice_code": pa.array(slices, pa.int16()),
            "bucket": pa.array(buckets, pa.uint16()),
            **{each: pa.array(own[present], pa.int64()) for each, own in numbers.items()},
            **(lists or {}),
        }
        columns = [arrays.get(own.name, pa.nulls(n, own.type)) for own in SCHEMA]
        return pa.table(columns, schema=SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table, name: str = "profile") -> RunProfile:
        """Return the profile that `to_table` wrote.

        Parameters
        ----------
        table : pyarrow.Table
        name : str
            Of the file, for messages.

        Raises
        ------
        UnreadableFileError
            If it is none, was written by another version, or is damaged.
        """
        text = (table.schema.metadata or {}).get(METADATA)
        if text is None:
            raise UnreadableFileError(
                f"{name} is not a profile: its metadata have no {METADATA.decode()!r} [QA0801]"
            )
        try:
            said = json.loads(text)
            if said["version"] != VERSION:
                raise UnreadableFileError(
                    f"{name} was written by another version ({said['version']}; this one reads "
                    f"{VERSION}); keep it elsewhere, and pin a new reference [QA0801]"
                )
            found = _read(table, said)
        except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise UnreadableFileError(f"{name} is damaged: {error!r} [QA0801]") from None
        return found


def _lists(line: NDArray[np.intp], values: NDArray[Any], n: int, kind: pa.DataType) -> pa.Array:
    """Return lists of values by line; lines ascend."""
    offsets = np.searchsorted(line, np.arange(n + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


def _read(table: pa.Table, said: Mapping[str, Any]) -> RunProfile:
    columns = said["columns"]
    run = RunProfile.of(
        {name: Cells.from_json(json.dumps(own["cells"])) for name, own in columns.items()},
        Slices({by: tuple(values) for by, values in said["slices"].items()}),
        signatures={name: str(own["signature"]) for name, own in columns.items()},
        ranges={name: (own["low"], own["high"]) for name, own in columns.items()},
        cluster=str(said["cluster"]),
    )
    run.name = str(said.get("name", ""))
    n_slices = len(run.slices.all)
    run.clusters = ClusterCounts([np.array(each, np.uint64) for each in said["clusters"]])
    if len(run.clusters.smallest) != n_slices:
        raise ValueError("clusters of other slices")
    run.rates = {name: np.zeros((2, n_slices, N_BUCKETS), np.int64) for name in said["rates"]}
    kinds, names = (table[name].combine_chunks() for name in ("kind", "column"))
    for kind, name in {(k, n) for k, n in zip(kinds.to_pylist(), names.to_pylist(), strict=True)}:
        is_own = pc.and_(pc.equal(kinds, kind), pc.equal(names, name))
        lines = table.filter(is_own).combine_chunks()
        places = (
            lines["slice_code"].to_numpy().astype(np.intp),
            lines["bucket"].to_numpy().astype(np.intp),
        )
        if kind == "rate":
            run.rates[name][:, *places] = [lines[each].to_numpy() for each in ("n_true", "n")]
        elif kind == "sums":
            run.columns[name].sums[:, *places] = [lines[each].to_numpy() for each in _SUMS]
        else:
            _read_cells(run.columns[name], lines, places)
    return run


def _read_cells(
    profile: Profile, lines: pa.Table, places: tuple[NDArray[np.intp], NDArray[np.intp]]
) -> None:
    slices, buckets = places
    line, cells, counts = _flat(lines, "cells", "counts")
    profile.counts[slices[line], buckets[line], cells.to_numpy()] = counts.to_numpy()
    line, reasons, counts = _flat(lines, "reasons", "reason_counts")
    texts, numbers = np.array(reasons.to_pylist(), dtype=object), counts.to_numpy()
    for reason in sorted(set(texts)):
        own = texts == reason
        blank = np.zeros((profile.n_slices, N_BUCKETS), np.uint32)
        blank[slices[line[own]], buckets[line[own]]] = numbers[own]
        profile.reasons[reason] = blank


def _flat(lines: pa.Table, first: str, second: str) -> tuple[NDArray[np.intp], pa.Array, pa.Array]:
    """Return two list columns as their values, with the line that each value is of."""
    lists = [pa.array(lines[name].combine_chunks()) for name in (first, second)]
    sizes = lists[0].value_lengths().fill_null(0).to_numpy()
    return np.repeat(np.arange(len(sizes)), sizes), lists[0].flatten(), lists[1].flatten()


def read_profile(path: AnyPath) -> RunProfile | None:
    """Return the profile of a run; None where there is none.

    Raises
    ------
    UnreadableFileError
        If it is damaged.
    """
    path = as_path(path)
    if not path.is_file():  # OUT is of a version that kept none.
        return None
    try:
        return RunProfile.from_table(table_at(path), path.name)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFileError(f"{path} is damaged: {error} [QA0801]") from None
