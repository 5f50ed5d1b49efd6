"""Datasets of the Hugging Face Hub, from a server here that answers as the hub does."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY
from hub_server import hub_of

ROWS = [
    {"id": f"q{i}", "candidate": f"in {i} towns", "references": [f"{i % 4} towns"]}
    for i in range(30)
]
NAME = "someone/small"
DATA = f"hf://datasets/{NAME}"


def files() -> dict[str, bytes]:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS[:10]), sink)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS[10:20])
    return {
        "data/a.parquet": sink.getvalue(),
        "data/b.jsonl": lines.encode(),
        "more/c.json": json.dumps(ROWS[20:]).encode(),
        "README.md": b"# Small",
    }


def score(endpoint: str, uri: str, out: Path, *more: str, expect: int = 0) -> str:
    """Run in a process of its own: the hub's library reads its endpoint when it is imported."""
    command = [sys.executable, "-m", "qaeval", "score", uri, "--out", str(out), "--local", *more]
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(out.parent / "home")}
    environment.pop("HF_HUB_OFFLINE", None)
    found = subprocess.run(
        [*command, "--metrics", "f1"], env=environment, cwd=REPOSITORY, text=True,
        capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    said = found.stdout + found.stderr
    assert found.returncode == expect, said
    return said


def scores(out: Path) -> dict[str, float]:
    table = pq.read_table(out / "scores", columns=["id", "f1"])
    return dict(zip(table["id"].to_pylist(), table["f1"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("here")
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
    score("", str(folder / "rows.parquet"), folder / "out")
    return scores(folder / "out")


@pytest.mark.slow
def test_a_dataset_is_scored_as_files_of_a_disk_are(
    tmp_path: Path, expected: dict[str, float]
) -> None:
    """A folder of mixed files, one file, and a glob; what is done is not done again."""
    given = files()
    with hub_of(NAME, given) as (endpoint, asked):
        said = score(endpoint, f"{DATA}/data", tmp_path / "data")
        assert re.search(r" 20 +0$", said, re.MULTILINE)
        assert scores(tmp_path / "data") == {f"q{i}": expected[f"q{i}"] for i in range(20)}
        score(endpoint, DATA, tmp_path / "all")  # A document beside other data tells of it.
        assert scores(tmp_path / "all") == scores(tmp_path / "data")
        n_asked = len(asked)
        assert "is complete" in score(endpoint, DATA, tmp_path / "all")
        assert len(asked) > n_asked
        score(endpoint, f"{DATA}/more/*.json", tmp_path / "one")
        assert scores(tmp_path / "one") == {f"q{i}": expected[f"q{i}"] for i in range(20, 30)}
    given["data/b.jsonl"] += (json.dumps(ROWS[20]) + "\n").encode()
    with hub_of(NAME, given) as (endpoint, _):
        said = score(endpoint, DATA, tmp_path / "all")
        assert re.search(r" 21 +0$", said, re.MULTILINE)
    assert scores(tmp_path / "all") == {f"q{i}": expected[f"q{i}"] for i in range(21)}


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    with hub_of(NAME, files()) as (endpoint, _):
        said = score(endpoint, f"{DATA}/data/c.jsonl", tmp_path / "out", expect=2)
        assert f"{DATA}/data/c.jsonl; did you mean 'b.jsonl'? [QA0301]" in said
        said = score(endpoint, "hf://datasets/someone/smal", tmp_path / "out", expect=2)
        assert "no such file or folder: hf://datasets/someone/smal [QA0301]" in said
