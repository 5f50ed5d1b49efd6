"""Document frequencies as tasks: the counts of all rows, however they are cut and killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.errors import ReconcileError, RunStoppedError
from qaeval_core.families.words.frequencies import read_frequencies
from qaeval_core.running import document_counts
from qaeval_core.storage.path import as_path
from qaeval_core.store.hash_runs import HashCounts, added_up, n_cuts_for, read_cut, write_run
from word_jobs import request, run

N_ROWS = 300


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return files whose references share words; some have none."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for number in range(3):
        texts = [" ".join(f"w{n}" for n in rng.zipf(1.3, 6) % 400) for _ in range(N_ROWS // 3)]
        texts[3] = "" if number else texts[3]
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(pa.table({"candidate": texts[::-1], "reference": texts}), path)
    return tmp_path / "in"


def settings(source: Path, out: Path, **given: Any) -> dict[str, Any]:
    own = request(source, out, scoring__rows_per_shard=20, **given)
    del own["metrics.f1.metric"]
    return {**own, "metrics.cider.metric": "cider"}


def small_runs(patch: pytest.MonkeyPatch, *, n_bytes: int = 1000, per_cut: int = 512) -> None:
    patch.setattr(document_counts, "_LEAST_BYTES_PER_RUN", n_bytes)
    patch.setattr(document_counts, "_HASHES_PER_CUT", per_cut)


def frequencies(out: Path) -> dict[int, int]:
    (path,) = out.glob("corpus/*.parquet")
    table = pq.read_table(path)
    hashes = table["hash"].to_pylist()
    assert hashes == sorted(set(hashes)), "workers look them up by bisection"
    metadata = {name.decode(): own.decode() for name, own in table.schema.metadata.items()}
    found = read_frequencies(path, words=metadata["qaeval.words"])
    assert found.n_documents == N_ROWS - 2
    return dict(zip(hashes, table["rows"].to_pylist(), strict=True))


def listing(out: Path) -> list[Path]:
    """Return the commits that list n-grams."""
    found = out.glob("families/*/*.parquet")
    return [path for path in found if "grams" in pq.read_schema(path).names]


def listed(out: Path) -> dict[int, int]:
    """Return the rows of each n-gram, counted one by one from what commits list."""
    counts: Counter[int] = Counter()
    for path in listing(out):
        for grams in pq.read_table(path)["grams"].to_pylist():
            counts.update(grams or ())
    return {one: n for one, n in counts.items() if n > 1}


def test_counts_are_those_of_all_rows(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one run and cut, and in many of each: the same frequencies, and the same scores."""
    run(settings(source, tmp_path / "one"))
    small_runs(monkeypatch)
    run(settings(source, tmp_path / "many"))
    expected = listed(tmp_path / "one")
    assert len(expected) > 100
    assert frequencies(tmp_path / "one") == expected == frequencies(tmp_path / "many")
    one, many = (pl.read_parquet(tmp_path / name / "scores/*.parquet") for name in ("one", "many"))
    assert one.equals(many) and one["cider"].max() > 0
    for name in ("one", "many"):
        assert len(list((tmp_path / name / "corpus").iterdir())) == 1, "work is taken away"


@pytest.mark.parametrize(("name", "after"), [("count_run", 3), ("add_up", 2)])
def test_a_killed_count_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    """What is counted is not counted again, and no cut is added up twice."""
    small_runs(monkeypatch)
    real = getattr(document_counts, name)
    done: list[Any] = []

    def ended(own: Any, plan: Any) -> Any:
        if len(done) == after:
            raise RunStoppedError("stopped by the test [QA0005]")
        done.append(own)
        return real(own, plan)

    monkeypatch.setattr(document_counts, name, ended)
    out = tmp_path / "out"
    with pytest.raises(RunStoppedError):
        run(settings(source, out))
    folder = next(out.glob("corpus/*.counting"))
    kept = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(kept) >= after and not list(out.glob("corpus/*.parquet"))
    written = []
    write_run = document_counts.write_run

    def noted(*own: Any, **more: Any) -> bytes:
        written.append(own)
        return write_run(*own, **more)

    monkeypatch.setattr(document_counts, name, real)
    monkeypatch.setattr(document_counts, "write_run", noted)
    run(settings(source, out))
    assert frequencies(out) == listed(out)
    n_runs = 15  # as many as commits: each is larger than a run may be
    assert len(written) == (n_runs - after if name == "count_run" else 0)


def test_a_shard_that_is_gone_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of a part of the corpus would be wrong numbers."""
    real = document_counts.build_document_frequencies

    def lost(job: Any, family: Any, *given: Any, **more: Any) -> None:
        listing(job.store.out.local)[0].unlink()
        job.commits.of(family.after).list_again()
        real(job, family, *given, **more)

    monkeypatch.setattr("qaeval_core.running.passes.build_document_frequencies", lost)
    with pytest.raises(ReconcileError, match="QA0509"):
        run(settings(source, tmp_path / "out"))


@pytest.mark.parametrize("n_cuts", [1, 2, 8, 256])
def test_cuts_of_runs_add_up(tmp_path: Path, n_cuts: int) -> None:
    """Hashes at the very ends, in all runs and in one, and runs without any."""
    rng = np.random.default_rng(n_cuts)
    ends = np.array([0, 2**64 - 1, 2**63, 2**63 - 1], np.uint64)
    parts = [np.concatenate([ends, rng.integers(0, 2**64, 90, np.uint64)]) for _ in range(5)]
    parts += [np.empty(0, np.uint64), parts[0][:7]]
    paths = []
    for i, part in enumerate(parts):
        (tmp_path / f"{i}").write_bytes(write_run(HashCounts.of([part]), n_cuts=n_cuts))
        paths.append(as_path(tmp_path / f"{i}"))
    found = [read_cut(paths, cut) for cut in range(n_cuts)]
    expected = Counter(np.concatenate(parts).tolist())
    hashes, counts = (np.concatenate(own).tolist() for own in zip(*found, strict=True))
    assert dict(zip(hashes, counts, strict=True)) == expected and hashes == sorted(expected)
    n_repeats = sum(expected.values()) - len(expected)
    assert sum(own.n_repeats for own in found) == n_repeats
    assert added_up(HashCounts.of([part]) for part in parts).n_repeats == n_repeats


def test_a_bit_that_turns_in_a_run_is_no_other_count(tmp_path: Path) -> None:
    """Runs wait on a disk between two stages, and may outlive a kill."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 500, np.uint64)
    content = write_run(HashCounts.of([hashes]), n_cuts=4)
    n_noticed = 0
    for place in range(100, len(content) // 2, 97):
        turned = bytearray(content)
        turned[place] ^= 1
        (tmp_path / "run").write_bytes(turned)
        path = as_path(tmp_path / "run")
        try:
            found = [read_cut([path], cut) for cut in range(4)]
        except ReconcileError:
            n_noticed += 1
            continue
        own = np.concatenate([cut.hashes for cut in found])
        assert own.tolist() == sorted(hashes.tolist())
        assert all((cut.counts == 1).all() for cut in found)
    assert n_noticed > 15


def test_cuts_are_as_many_as_are_needed() -> None:
    """A power of two, for hashes are cut by their first bits."""
    found = [n_cuts_for(n, per_cut=10) for n in (0, 10, 11, 20, 21, 10_000, 10**9)]
    assert found == [1, 1, 2, 2, 4, 256, 256]
