"""Joined: what is counted of joined rows, as a file that a killed run leaves for the next one."""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from qaeval_core.errors import UnreadableFileError
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.running.totals import Totals
from qaeval_core.scoring.summary import Ends, Example, Overview, SliceSums

Arrays = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class Joined:
    """What is known of rows once their scores are written.

    Attributes
    ----------
    lost : Counter of str
        By file, rows whose ids and carried columns cannot be read.
    files : dict of path to (int, str)
        What was written: bytes, and the SHA-256 of what is to be put together yet.
    """

    overview: Overview
    totals: Totals = field(default_factory=Totals)
    lost: Counter[str] = field(default_factory=Counter)
    files: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, other: Joined) -> None:
        """Add what is known of other rows of the run."""
        self.overview.add(other.overview)
        self.totals.add(other.totals)
        self.lost.update(other.lost)
        self.files.update(other.files)


def to_bytes(joined: Joined) -> bytes:
    """Return it as a file of NumPy: numbers and texts, and no objects."""
    overview, totals = joined.overview, joined.totals
    arrays: dict[str, Any] = {"profile": _profile_bytes(overview.profile)}
    for name, counts in overview.values.items():
        arrays |= {f"values/{name}/{part}": own for part, own in counts.arrays().items()}
    slices: dict[str, Any] = {}
    for by, sums in overview.slices.items():
        slices[by] = (
            None if sums is None else {"names": list(sums.rows), "rows": [*sums.rows.values()]}
        )
        if sums is not None and sums.rows:
            arrays[f"slices/{by}/sums"] = np.stack([sums.sums[name] for name in sums.rows])
            arrays[f"slices/{by}/ends"] = np.stack([sums.ends[name] for name in sums.rows])
    arrays |= {f"sums/{name}": np.asarray(own) for name, own in totals.sums.items()}
    told = {
        "ends": {name: asdict(own) for name, own in overview.ends.items()},
        "slices": slices,
        "lowest": {name: [asdict(each) for each in own] for name, own in overview.lowest.items()},
        "highest": {name: [asdict(each) for each in own] for name, own in overview.highest.items()},
        "reasoned": {
            column: {reason: [asdict(each) for each in own] for reason, own in found.items()}
            for column, found in overview.reasoned.items()
        },
        "totals": {
            "n_rows": totals.n_rows,
            "n_not_sampled": totals.n_not_sampled,
            "n_duplicate_ids": totals.n_duplicate_ids,
            "quarantined": totals.quarantined,
            "undefined": totals.undefined,
            "n_scored": totals.n_scored,
            "texts": totals.texts,
        },
        "lost": joined.lost,
        "files": joined.files,
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, told=np.array(json.dumps(told)), **arrays)
    return buffer.getvalue()


def from_bytes(content: bytes, overview: Overview) -> Joined:
    """Return what `to_bytes` wrote.

    Parameters
    ----------
    overview : Overview
        Of no rows, of the same run; filled.

    Raises
    ------
    UnreadableFileError
        If it is torn, damaged, or of another run.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return _read(arrays, json.loads(str(arrays["told"])), overview)
    except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UnreadableFileError(f"no record of joined rows: {error!r} [QA0801]") from None


def _read(arrays: Arrays, told: Mapping[str, Any], overview: Overview) -> Joined:
    table = pq.ParquetFile(pa.BufferReader(arrays["profile"].tobytes())).read()
    overview.profile = RunProfile.from_table(table)
    for name, counts in overview.values.items():
        counts.take_arrays({part: arrays[f"values/{name}/{part}"] for part in counts.arrays()})
        overview.ends[name] = Ends(**told["ends"][name])
        overview.lowest[name] = [Example(**own) for own in told["lowest"][name]]
        overview.highest[name] = [Example(**own) for own in told["highest"][name]]
    for column, found in told["reasoned"].items():
        overview.reasoned[column] = {
            reason: [Example(**each) for each in own] for reason, own in found.items()
        }
    for by, own in told["slices"].items():
        overview.slices[by] = None if own is None else _read_slices(arrays, by, own)
    totals = told["totals"]
    read = Totals(
        totals["n_rows"],
        totals["n_not_sampled"],
        totals["n_duplicate_ids"],
        Counter(totals["quarantined"]),
        {name: Counter(own) for name, own in totals["undefined"].items()},
        Counter(totals["n_scored"]),
        {key.removeprefix("sums/"): arrays[key] for key in arrays if key.startswith("sums/")},
        {name: Counter(own) for name, own in totals["texts"].items()},
    )
    files = {path: (int(size), str(digest)) for path, (size, digest) in told["files"].items()}
    return Joined(overview, read, Counter(told["lost"]), files)


def _read_slices(arrays: Arrays, by: str, own: Mapping[str, Any]) -> SliceSums:
    names = own["names"]
    if not names:
        return SliceSums()
    sums, ends = arrays[f"slices/{by}/sums"], arrays[f"slices/{by}/ends"]
    return SliceSums(
        dict(zip(names, own["rows"], strict=True)),
        dict(zip(names, sums, strict=True)),
        dict(zip(names, ends, strict=True)),
    )


def _profile_bytes(profile: RunProfile) -> NDArray[np.uint8]:
    buffer = io.BytesIO()
    pq.write_table(profile.to_table(), buffer, compression="none")
    return np.frombuffer(buffer.getvalue(), np.uint8)
