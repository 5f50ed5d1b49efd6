"""Manifests: footers stay closed, and whatever a manifest says, no row or number depends on it."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.reconcile import looks, make_input, make_killed_job
from helpers import read_scores, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import ReconcileError, RunError, RunStoppedError
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.scoring.run import run_job
from qaeval_core.storage import checksums
from qaeval_core.storage.objects import ObjectStorage
from qaeval_core.storage.path import as_path
from qaeval_core.storage.posix import PosixStorage
from qaeval_core.store import commits
from qaeval_core.store.manifest import SCHEMA, Manifest
from qaeval_core.store.store import Store
from s3_server import S3Server
from word_jobs import ROWS_PER_GROUP, Watched, request, rows, run

N_SHARDS = 8


class Asked(Counter[str]):
    """How often commits were listed, looked for and looked into."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for kind, name in ((Store, "look_into"), (Store, "is_committed"), (Store, "read_commit")):
            self._count(monkeypatch, kind, name)
        for storage in (PosixStorage, ObjectStorage):
            self._count(monkeypatch, storage, "list", of="families/")

    def _count(
        self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, *, of: str = ""
    ) -> None:
        whole = getattr(kind, name)

        def counted(own: Any, *given: Any, **more: Any) -> Any:
            if not of or of in str(given[0]):
                self[name] += 1
            return whole(own, *given, **more)

        monkeypatch.setattr(kind, name, counted)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows of which two are quarantined."""
    table = rows().to_pylist()
    table[5]["candidate"] = table[40]["reference"] = None
    path = tmp_path / "input.parquet"
    return write_parquet(path, pa.Table.from_pylist(table), row_group_size=ROWS_PER_GROUP)


@pytest.fixture(params=["disk", "bucket"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "out")
    store = request.getfixturevalue("store")
    store.make_bucket("manifests")
    return str(store.uri(f"manifests/{tmp_path.name}"))


def parts(out: str | Path) -> list[str]:
    return sorted(own.name for own in (as_path(out) / "manifest").list(is_deep=True))


def counted(out: str | Path) -> dict[str, Any]:
    """Return what a run says of all its commits."""
    report = json.loads((as_path(out) / "report.json").read_bytes())
    return {name: report[name] for name in ("instances", "quarantined", "rows")} | {
        "families": {
            key: {name: own[name] for name in own if not name.endswith(("_s", "_per_s", "_run"))}
            for key, own in report["families"].items()
        }
    }


def stop_after(n_shards: int, source: Path, out: str) -> None:
    def stop() -> None:
        raise RunStoppedError("stopped")

    with pytest.raises(RunStoppedError):
        run(request(source, out), after=n_shards, then=stop)


def again(source: Path, out: str | Path, **given: Any) -> None:
    (as_path(out) / "_SUCCESS").delete()
    run(request(source, out, **given))


def test_a_run_lists_once_and_opens_nothing_that_a_manifest_knows(
    source: Path, out: str, asked: Asked
) -> None:
    run(request(source, out))
    assert asked == {"list": 1, "read_commit": N_SHARDS}
    (part,) = parts(out)
    told = counted(out)
    asked.clear()
    again(source, out)
    assert asked == {"list": 1, "read_commit": N_SHARDS} and parts(out) == [part]
    assert counted(out)["families"].keys() == told["families"].keys()
    asked.clear()
    again(source, out, scoring__retry_quarantined=True)  # Shards 0 and 5 are taken back.
    assert asked == {"list": 1, "read_commit": N_SHARDS}
    assert counted(out)["quarantined"] == told["quarantined"] == 2


def test_what_a_killed_run_did_not_note_is_looked_into(
    source: Path, out: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "PART_COMMITS", 2)
    # As kill -9 ends a run: nothing is written on its way out.
    monkeypatch.setattr(commits.Commits, "save", lambda self: None)
    stop_after(5, source, out)
    assert len(parts(out)) == 2
    run(request(source, out))
    assert asked["look_into"] == 1 and asked["list"] == 2 and asked["is_committed"] == 0
    assert len(parts(out)) == 1
    asked.clear()
    again(source, out)
    assert asked["look_into"] == 0


def test_an_out_of_an_older_version_has_no_manifest(source: Path, out: str, asked: Asked) -> None:
    run(request(source, out))
    told = counted(out)
    for name in parts(out):
        (as_path(out) / "manifest" / name).delete()
    again(source, out)
    assert asked["look_into"] == N_SHARDS and counted(out)["quarantined"] == told["quarantined"]
    asked.clear()
    again(source, out)
    assert asked["look_into"] == 0


def test_a_manifest_names_the_version_that_was_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a listing and a look a worker may write a commit again: the counts are of that."""
    out = tmp_path / "out"
    run(request(source, out))
    shutil.rmtree(out / "manifest")
    look_into = Store.look_into

    def look(store: Store, path: Any, *given: Any) -> Any:
        return look_into(store, path, *given)[0], "newer"

    monkeypatch.setattr(Store, "look_into", look)
    again(source, out)
    (path,) = out.glob("manifest/*/*.parquet")
    assert pq.read_table(path)["tag"].to_pylist() == ["newer"] * N_SHARDS


def test_a_commit_that_nobody_told_of_is_found(source: Path, tmp_path: Path) -> None:
    """Its worker died between the commit and the answer; who took over found it committed."""

    class Forgetting(Watched):
        def make_pass(
            self, job: Any, families: Any, pieces: Any, on_shard: Any
        ) -> Callable[[], None]:
            told = iter(range(99))
            return super().make_pass(
                job, families, pieces, lambda own: on_shard(own) if next(told) != 3 else None
            )

    config = load_config(overrides=request(source, tmp_path / "out"))
    job = make_job(config, read_inputs(config), device="cpu")
    outcome = run_job(job, Forgetting(0, lambda: None), say=lambda _: None)
    assert outcome.report is not None and outcome.report["quarantined"] == 2
    assert len(read_scores(tmp_path / "out")) == 64


def test_a_commit_that_is_gone_is_missed(source: Path, tmp_path: Path) -> None:
    run(request(source, tmp_path / "out"))
    victim = min((tmp_path / "out").glob("families/*/*.parquet"))
    victim.unlink()
    again(source, tmp_path / "out")
    assert victim.exists() and len(read_scores(tmp_path / "out")) == 64


# What a manifest may be, and is not believed for.


def sealed(table: pa.Table, **metadata: str) -> bytes:
    """Return a manifest as who knows how would forge it."""
    buffer = io.BytesIO()
    sink = checksums.SealedFile(buffer)
    own = {f"qaeval.manifest_{name}": value for name, value in metadata.items()}
    table = table.replace_schema_metadata({**own, checksums.KEY: checksums.PLACEHOLDER})
    pq.write_table(table, sink)
    sink.seal()
    return buffer.getvalue()


def lying(table: pa.Table, name: str, value: object) -> pa.Table:
    i = table.schema.get_field_index(name)
    column = pa.array([value] * len(table), table.schema.field(i).type)
    return table.set_column(i, table.schema.field(i), column)


def unsealed(content: bytes) -> bytes:
    """Return a manifest that somebody has edited: 64 rows quarantined in each shard."""
    buffer = io.BytesIO()
    table = pq.read_table(pa.BufferReader(content))
    pq.write_table(lying(table, "n_quarantined", 64), buffer)
    return buffer.getvalue()


FORGERIES: dict[str, Callable[[bytes, pa.Table, str], bytes]] = {
    "edited": lambda content, _, family: unsealed(content),
    "no parquet": lambda content, _, family: b"PAR1" * 50,
    "empty": lambda content, _, family: b"",
    "cut": lambda content, _, family: content[:-20],
    "of another family": lambda _, table, family: sealed(
        lying(table, "n_quarantined", 64), of="f1-000000000000", version="1"
    ),
    "of another version": lambda _, table, family: sealed(
        lying(table, "n_quarantined", 64), of=family, version="0"
    ),
    "of other columns": lambda _, table, family: sealed(
        table.drop_columns(["n_rows"]), of=family, version="1"
    ),
    "of no counts": lambda _, table, family: sealed(
        lying(table, "n_quarantined", -1), of=family, version="1"
    ),
    "of nulls": lambda _, table, family: sealed(
        lying(table, "n_rows", None), of=family, version="1"
    ),
    "of no calls": lambda _, table, family: sealed(
        lying(table, "calls", '{"a": -1}'), of=family, version="1"
    ),
    "of other commits": lambda _, table, family: sealed(
        lying(lying(table, "n_quarantined", 64), "tag", "1-2-3"), of=family, version="1"
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_manifest_of_something_else_is_not_believed(
    source: Path, tmp_path: Path, asked: Asked, what: str
) -> None:
    """A limit of quarantined rows, or shards taken back, would come from what somebody wrote."""
    out = tmp_path / "out"
    run(request(source, out))
    told, table = counted(out), read_scores(out)
    (path,) = out.glob("manifest/*/*.parquet")
    content = path.read_bytes()
    path.write_bytes(FORGERIES[what](content, pq.read_table(path), path.parent.name))
    asked.clear()
    again(source, out, scoring__max_quarantined=0.5)
    assert asked["look_into"] == N_SHARDS
    assert counted(out)["quarantined"] == told["quarantined"] and read_scores(out).equals(table)
    (path,) = out.glob("manifest/*/*.parquet")
    assert sum(pq.read_table(path)["n_quarantined"].to_pylist()) == 2


def test_no_bit_of_a_manifest_turns_in_silence(source: Path, tmp_path: Path) -> None:
    run(request(source, tmp_path / "out"))
    (path,) = (tmp_path / "out").glob("manifest/*/*.parquet")
    store, family = Store(tmp_path / "out"), path.parent.name
    content, drawn = path.read_bytes(), random.Random(9)
    whole = Manifest(store, family).read()
    assert len(whole) == N_SHARDS
    for _ in range(1_000):
        flipped = bytearray(content)
        at = drawn.randrange(8 * len(content))
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        assert Manifest(store, family).read().equals(SCHEMA.empty_table())
    path.write_bytes(content)
    assert Manifest(store, family).read().equals(whole)


def test_a_commit_that_was_replaced_is_looked_into(source: Path, out: str, asked: Asked) -> None:
    """Its manifest is of the version before, whose rows were quarantined."""
    run(request(source, out, scoring__rows_per_shard=64))
    own = Store(out)
    (family,) = {name.partition("/")[0] for name in parts(out)}
    ((file_id, shards),) = own.committed(family).items()
    table = own.read(family, file_id, shards[0])
    stats, _ = own.look_into(own.commit_path(family, file_id, shards[0]), family, shards[0])
    stats.n_quarantined = 7
    signature = table.schema.metadata[b"qaeval.signature"].decode()
    own.commit(family, file_id, shards[0], table, signature=signature, stats=stats)
    asked.clear()
    (as_path(out) / "_SUCCESS").delete()
    run(request(source, out, scoring__rows_per_shard=64))
    assert asked["look_into"] == 1
    total = commits.Commits(Store(out)).of(family).total({file_id: 64})
    assert total.n_quarantined == 7


def test_a_damaged_commit_is_found_although_a_manifest_knows_it(
    source: Path, tmp_path: Path
) -> None:
    """A bit that turns changes no time and no size: contents are proven when they are read."""
    run(request(source, tmp_path / "out"))
    victim = min((tmp_path / "out").glob("families/*/*.parquet"))
    before, content = victim.stat(), bytearray(victim.read_bytes())
    content[len(content) // 3] ^= 4
    with victim.open("r+b") as file:
        file.write(content)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ReconcileError, match=f"{victim.name}.*QA0510"):
        again(source, tmp_path / "out")


def test_a_copied_out_is_looked_into_and_right(source: Path, tmp_path: Path, asked: Asked) -> None:
    run(request(source, tmp_path / "out"))
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    again(source, tmp_path / "copy")
    assert asked["look_into"] == N_SHARDS
    assert read_scores(tmp_path / "copy").equals(read_scores(tmp_path / "out"))


def test_a_kill_between_the_union_and_its_parts_leaves_both(
    source: Path, out: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "PART_COMMITS", 2)

    def killed(self: Manifest, table: pa.Table) -> None:
        self.append(table)
        raise RunStoppedError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "rewrite", killed)
        with pytest.raises(RunStoppedError):
            run(request(source, out))
    assert len(parts(out)) == 5
    asked.clear()
    run(request(source, out))
    assert asked["look_into"] == 0 and len(parts(out)) == 1


def test_a_manifest_leads_nowhere_else(source: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (out / "manifest").symlink_to(elsewhere)
    with pytest.raises(RunError, match="QA0508"):
        run(request(source, out))
    assert not list(elsewhere.iterdir())


def test_a_disk_that_takes_no_manifest_costs_time_alone(
    source: Path, tmp_path: Path, asked: Asked
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest").write_bytes(b"in the way")
    run(request(source, out))
    again(source, out)
    assert asked["look_into"] == N_SHARDS and len(read_scores(out)) == 64


# Many commits.


def looked(
    folder: Path, out: str | Path, *, n_rows: int, n_unknown: int
) -> Iterator[dict[str, Any]]:
    source = make_input(folder / "input", n_rows=n_rows)
    job = make_killed_job(source, out, n_unknown=n_unknown)
    for look in looks(job):
        assert look["commits"] == look["rows"] == n_rows and look["open"] == 0
        yield look


@pytest.mark.parametrize(("place", "n_rows"), [("disk", 2_000), ("bucket", 300)])
def test_many_commits_are_reconciled(
    place: str, n_rows: int, tmp_path: Path, request: pytest.FixtureRequest, asked: Asked
) -> None:
    out: str | Path = tmp_path / "out"
    if place == "bucket":
        store = request.getfixturevalue("store")
        store.make_bucket("many")
        out = store.uri("many/out")
    found = list(looked(tmp_path, out, n_rows=n_rows, n_unknown=40))
    assert asked["look_into"] == 40
    assert [look["manifest"] for look in found] == ["in parts", "one file"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "n_rows", "limit_s"), [("disk", 1_000_000, 30), ("bucket", 100_000, 120)]
)
def test_a_million_commits_are_reconciled_in_half_a_minute(
    place: str,
    n_rows: int,
    limit_s: float,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """Footers one after another took 54 ms each on a store with 20 ms a round trip: 15 hours."""
    out: str | Path = tmp_path / "out"
    if place == "bucket":
        store: S3Server = request.getfixturevalue("store")
        store.make_bucket("million")
        out = store.uri("million/out")
    for look in looked(tmp_path, out, n_rows=n_rows, n_unknown=5_000):
        record_property(f"{n_rows:,} commits, {place}", look)
        assert look["reconcile_s"] < limit_s and look["driver_mb"] < 2_000
