"""Records: what a run writes about itself, and what it reads of the run before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.files import read_own
from qaeval_core.job import Job
from qaeval_core.planning.sample import read_sample
from qaeval_core.planning.shards import RowRange
from qaeval_core.signature import environment

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


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None where there is none."""
    try:
        with read_own(path, of_others=True) as file:
            content = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def changes(job: Job) -> list[str]:
    """Return what differs from the run that wrote to this OUT before."""
    try:
        planned = pq.read_table(job.store.out / "plan.parquet", columns=["relative", "file_id"])
    except (OSError, pa.ArrowException):
        return []
    before = dict(zip(planned["relative"].to_pylist(), planned["file_id"].to_pylist(), strict=True))
    now = {file.relative: file.file_id for file in job.files}
    old = {file.relative: file.old_file_id for file in job.files}
    lines = [
        f"{name} has changed since the last run and is scored anew"
        for name, file_id in now.items()
        if before.get(name, file_id) not in (file_id, old[name])
    ]
    gone = [name for name in before if name not in now]
    if gone:
        lines.append(f"{len(gone)} files of earlier runs are no input now; their scores stay")
    old = read_json(job.store.out / "run.json") or {}
    if old and read_sample(old.get("sample")) != job.sample:
        lines.append(
            "another sample than in the last run: what was computed of its rows is taken over"
        )
    families = {plan.key: str(plan.signature) for plan in job.run.families}
    given = old.get("families")
    earlier: dict[str, Any] = given if isinstance(given, dict) else {}
    for key in sorted(set(earlier) - set(families)):
        name = key.rpartition("-")[0]
        line = next((own for own in families.values() if own.split("|")[0] == name), "")
        why = _why_anew(str(earlier[key]), line)
        lines.append(f"{key} is not used any more: {why}; its commits stay")
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
                f"this version of qaeval exports its graph anew (version {new['graph_version']}, "
                f"was {version}), whose numbers differ a little, so its rows are computed anew"
            )
    return "a model, option or input has changed"


def take_over_old_commits(job: Job, say: Callable[[str], None]) -> None:
    """Use commits that were named before identity held place and footer, if the user says so.

    What they were computed from is known by relative path, size and modification time alone.
    """
    old = [
        (family.key, file, rows)
        for family in job.run.families
        for file_id, ranges in job.store.committed(family.key).items()
        for file in job.files
        if file.old_file_id == file_id
        for rows in ranges
    ]
    if not old:
        return
    if not job.config.input.accept_old_commits:
        say(
            f"{len(old):,} commits of an older version are not used: they know their files by "
            "name, size and time alone. If these are the same files, run once with --set "
            "input.accept_old_commits=true"
        )
        return
    for key, file, rows in old:
        job.store.adopt(key, rows, old_file_id=file.old_file_id, file_id=file.file_id)
    say(f"{len(old):,} commits of an older version are used from now on, as you said")


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
            "environment": environment(),
        },
    )
    for family in job.run.families:
        content = {"signature": str(family.signature)}
        for artifact in family.artifacts:
            content["artifact"] = artifact.folder.name
        job.store.write_signature(family.key, content)
    records = []
    for families in job.run.passes:
        for i, piece in enumerate(job.pieces(families, n_actors=n_actors)):
            records += [
                _plan_row(key, piece.relative, piece.file_id, i, rows)
                for key in piece.families
                for rows in piece.shards
            ]
    for family in job.run.families:
        done = job.done_ranges(family)
        for file in job.files:
            records += [
                _plan_row(family.key, file.relative, file.file_id, None, rows)
                for rows in done[file.file_id]
            ]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records, schema=_PLAN_SCHEMA), buffer)
    job.store.write(job.store.out / "plan.parquet", buffer.getvalue().to_pybytes())


def _plan_row(
    family: str, relative: str, file_id: str, piece: int | None, rows: RowRange
) -> dict[str, object]:
    return {
        "family": family,
        "relative": relative,
        "file_id": file_id,
        "piece": piece,
        "start": rows.start,
        "stop": rows.stop,
    }
