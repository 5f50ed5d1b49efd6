"""Conversions that are killed, and those that run as tasks of Ray, end as others do."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY, qaeval, write_parquet
from qaeval import Scorer
from qaeval.on_ray.cluster import connected
from qaeval.work import reading
from qaeval_core.configure import ClusterSection, load_config
from qaeval_core.planning.text_files.copies import Copies
from qaeval_core.planning.text_files.kinds import kind_of
from qaeval_core.schema import UNREADABLE_LINE
from qaeval_core.storage.path import as_path
from qaeval_core.text.given_tables import known_table

N_ROWS = 10_000


def rows() -> list[dict]:
    drawn = random.Random(38)
    words = [f"w{i}" for i in range(300)]

    def text(n: int) -> str:
        return " ".join(drawn.choices(words, k=n))

    return [
        {"id": f"{i:05}", "question": text(8), "candidate": text(3), "references": text(4)}
        for i in range(N_ROWS)
    ]


def squad(own: list[dict]) -> dict:
    questions = [
        {
            "id": row["id"],
            "question": row["question"],
            "answers": [{"text": row["references"], "answer_start": 0}],
        }
        for row in own
    ]
    return {"data": [{"title": "x", "paragraphs": [{"context": "c", "qas": questions}]}]}


@pytest.mark.slow
def test_ten_thousand_rows_of_every_form_in_spite_of_kills(tmp_path: Path) -> None:
    """Scores and row numbers are those of Parquet. Each run is killed until it ends."""
    own = rows()
    frame = pl.DataFrame(own)
    write_parquet(tmp_path / "rows.parquet", pa.Table.from_pylist(own))
    frame.write_ndjson(tmp_path / "rows.jsonl")
    frame.write_csv(tmp_path / "rows.csv")
    packed = pa.compress((tmp_path / "rows.jsonl").read_bytes(), "zstd", asbytes=True)
    (tmp_path / "rows.jsonl.zst").write_bytes(packed)
    (tmp_path / "rows.json").write_text(json.dumps(squad(own)))
    found = {}
    for name in ("rows.parquet", "rows.jsonl", "rows.csv", "rows.jsonl.zst", "rows.json"):
        out = tmp_path / f"out-{name}"
        words = ("--column", "candidate=question") if name == "rows.json" else ()
        if name == "rows.json":
            words = (*words, "--column", "references=answers")
        command = [
            *(sys.executable, "-m", "qaeval", "score", str(tmp_path / name), "--out", str(out)),
            *("--metrics", "f1,rouge_l", "--local", "--rows-per-shard", "500", *words),
        ]
        for wait_s in (0.6, 0.9, 1.2, 1.5, 2.0):
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "QAEVAL_DEBUG": "1"},  # The command in this very process.
            )
            time.sleep(wait_s)
            process.kill()
            process.wait()
        qaeval(*command[3:])
        found[name] = pq.read_table(out / "scores").to_pylist()
        assert [row["id"] for row in found[name]] == [row["id"] for row in own]
    expected = found.pop("rows.parquet")
    of_squad = found.pop("rows.json")
    assert all(scores == expected for scores in found.values())
    scorer = Scorer(["f1", "rouge_l"])
    for given in (pd.DataFrame(own), frame, frame.lazy(), datasets.Dataset.from_list(own), own):
        scored = known_table(scorer.score(given)).table.to_pylist()
        for name in ("id", "f1", "rouge_l"):
            assert [row[name] for row in scored] == [row[name] for row in expected]
    table = pa.Table.from_pylist(own).rename_columns(["id", "candidate", "_", "references"])
    write_parquet(tmp_path / "questions.parquet", table)
    out = tmp_path / "out-questions"
    qaeval("score", tmp_path / "questions.parquet", "--out", out, "--metrics", "f1,rouge_l",
           "--local")  # fmt: skip
    assert of_squad == pq.read_table(out / "scores").to_pylist()


@pytest.mark.slow
def test_blocks_are_read_by_tasks_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines in ranges of bytes; CSV with line breaks in values, and zipped files, in one task."""
    monkeypatch.setattr(reading, "MOST_HERE_MB", 0)
    monkeypatch.setattr(reading, "is_named", lambda cluster: True)
    own = rows()
    frame = pl.DataFrame(own)
    frame.write_ndjson(tmp_path / "rows.jsonl")
    frame.with_columns(question=pl.col("question") + "\n").write_csv(tmp_path / "rows.csv")
    content = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "rows.jsonl.gz").write_bytes(pa.compress(content, "gzip", asbytes=True))
    lines = content.splitlines()
    lines[7000] = b"{oops"
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join(lines))
    workers = reading.Readers(load_config(overrides={}), is_local=False, tell=print)
    with connected(ClusterSection()):
        _compare(tmp_path, workers)


def _compare(tmp_path: Path, workers: reading.Readers) -> None:
    for name in ("rows.jsonl", "rows.csv", "rows.jsonl.gz", "bad.jsonl"):
        options = {"block_bytes": 100_000, "texts": frozenset({"id"})}
        kind = kind_of(name)
        assert kind is not None
        here = Copies(as_path(tmp_path / "here"), **options)  # type: ignore[arg-type]
        there = Copies(as_path(tmp_path / "there"), workers=workers, **options)  # type: ignore[arg-type]
        one, other = (own.of(str(tmp_path / name), name, kind) for own in (here, there))
        assert (one.content, one.note) == (other.content, other.note)
        table = pq.read_table(str(other.path))
        assert table.equals(pq.read_table(str(one.path))) and table.num_rows == N_ROWS
        told = table[UNREADABLE_LINE].drop_null().to_pylist()
        assert len(told) == (name == "bad.jsonl") and all("line 7001" in own for own in told)
