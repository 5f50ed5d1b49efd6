"""Run files: what a run writes about itself, and what it reads of the run before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.families.contract import FamilyPlan
from qaeval_core.made import HowMade
from qaeval_core.metrics.catalog import packages_of
from qaeval_core.planning.job import Job
from qaeval_core.signature import environment
from qaeval_core.storage.arrow import table_at
from qaeval_core.storage.path import read_json
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.sample import read_sample

_PLAN_SCHEMA = pa.schema(
    [
        pa.field("family", pa.string()),
        pa.field("relative", pa.string()),
        pa.field("file_id", pa.string()),
        pa.field("piece", pa.int64()),  # null: committed before this run
        pa.field("start", pa.int64()),
        pa.field("stop", pa.int64()),
    ]
)


def changes(job: Job) -> list[str]:
    """Return what differs from the run that wrote to this OUT before."""
    try:
        planned = table_at(job.store.out / "plan.parquet", ["relative", "file_id"])
    except (OSError, pa.ArrowException):
        return []
    planned = planned.group_by(["relative", "file_id"], use_threads=False).aggregate([])
    before = dict(zip(planned["relative"].to_pylist(), planned["file_id"].to_pylist(), strict=True))
    now = {file.relative: file.file_id for file in job.files}
    lines = [
        f"{name} changed since the last run, and is scored again"
        for name, file_id in now.items()
        if before.get(name, file_id) != file_id
    ]
    gone = [name for name in before if name not in now]
    if gone:
        lines.append(
            f"{len(gone)} files of earlier runs are no longer input; their scores are kept"
        )
    old = read_json(job.store.out / "run.json", job.store.outages) or {}
    if old and read_sample(old.get("sample")) != job.sample:
        lines.append("the sample changed; results of rows in both samples are reused")
    families = {plan.key: str(plan.signature) for plan in job.run.families}
    given = old.get("families")
    earlier: dict[str, Any] = given if isinstance(given, dict) else {}
    for key in sorted(set(earlier) - set(families)):
        name = key.rpartition("-")[0]
        line = next((own for own in families.values() if own.split("|")[0] == name), "")
        why = _why_anew(str(earlier[key]), line)
        lines.append(f"earlier {name} results are ignored ({why}); their files are kept")
    return lines


def _why_anew(before: str, now: str) -> str:
    """Return why a family has another signature than before."""
    old, new = (
        dict(part.partition(":")[::2] for part in line.split("|")) for line in (before, now)
    )
    if old.get("artifact") and new.get("artifact") and "graph_version" in new:
        version = old.get("graph_version", "1")
        if version != new["graph_version"]:
            return (
                f"this version of qaeval exports a newer graph: version {new['graph_version']}, "
                f"was {version}"
            )
    return "a model, option or input changed"


def write_run_files(job: Job, *, n_actors: int) -> None:
    """Write run.json, plan.parquet and a description of every family."""
    job.store.write_json(
        job.store.out / "run.json",
        {
            "config": job.config.model_dump(mode="json"),
            "columns": dict(job.columns),
            "instances": {plan.name: str(plan.signature) for plan in job.run.instances},
            "families": {plan.key: str(plan.signature) for plan in job.run.families},
            "sample": asdict(job.sample) if job.sample is not None else None,
            "device": job.device,
            "packages": packages_of(job.config.metrics),
            "environment": environment(),
            "made": HowMade.now(job.store.out.name).content(),
        },
    )
    for family in job.run.families:
        content = {"signature": str(family.signature)}
        for artifact in family.artifacts:
            content["artifact"] = artifact.folder.name
        job.store.write_signature(family.key, content)
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, _PLAN_SCHEMA) as writer:
        for families in job.run.passes:
            for table in _plan_tables(job, families, n_actors=n_actors):
                writer.write_table(table)
    job.store.write(job.store.out / "plan.parquet", buffer.getvalue().to_pybytes())


def _plan_tables(job: Job, families: Sequence[FamilyPlan], *, n_actors: int) -> Iterator[pa.Table]:
    """Yield what a pass has to do and what is done, family by family, as columns."""
    pieces = job.pieces(families, n_actors=n_actors)
    for family in families:
        parts = [
            _plan_table(family.key, piece.relative, piece.file_id, i, piece.shards)
            for i, piece in enumerate(pieces)
            if family.key in piece.families
        ]
        done = job.done_ranges(family)
        parts += [
            _plan_table(family.key, file.relative, file.file_id, None, done[file.file_id])
            for file in job.files
        ]
        yield pa.concat_tables([_PLAN_SCHEMA.empty_table(), *parts]).combine_chunks()


def _plan_table(
    family: str, relative: str, file_id: str, piece: int | None, shards: Sequence[RowRange]
) -> pa.Table:
    n_shards = len(shards)
    bounds = np.array(shards, dtype=np.int64).reshape(-1, 2)
    columns = [
        *(
            pa.repeat(pa.scalar(text, pa.string()), n_shards)
            for text in (family, relative, file_id)
        ),
        pa.repeat(pa.scalar(piece, pa.int64()), n_shards),
        pa.array(bounds[:, 0]),
        pa.array(bounds[:, 1]),
    ]
    return pa.table(columns, schema=_PLAN_SCHEMA)
