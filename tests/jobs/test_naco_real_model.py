"""NACo with a real model behind a real server: what a server of our own could not surprise with."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from helpers import qaeval, read_scores, write_parquet
from served_model import ServedModel

pytestmark = [pytest.mark.ray, pytest.mark.long]

MILL = "Josiah Penrow built the tide mill at Saltmarsh Quay in 1774. It ground barley."
FIRE = "The tide mill at Saltmarsh Quay burned down in 1921, and an inn was built from its stones."
ROWS = [
    ("Who built the tide mill at Saltmarsh Quay?", [MILL], "Josiah Penrow"),
    ("What the ground mill barley did?", [MILL], "barley"),
    ("Josiah Penrow built a mill.", [MILL], "a mill"),
    ("How long did the mill stand before it burned down?", [MILL, FIRE], "147 years"),
]


def score(source: Path, *, out: Path, server: ServedModel, **settings: object) -> None:
    given = {
        "base_url": server.base_url,
        "model": server.model,
        "expected_complexity": 2,
        "one_shot": "true",
        "max_tokens": 96,
        # The server computes one reply at a time; others would only wait there.
        "max_concurrent": 1,
        "timeout_s": 300,
        "ledger_path": source.parent / "ledgers",
        **settings,
    }
    words = [word for key, value in given.items() for word in ("--set", f"naco.{key}={value}")]
    qaeval("score", source, "--out", out, "--ray", "--metrics", "naco", *words)


def judge(folder: Path, server: ServedModel) -> None:
    """Have two questions rated by the same server, with a prompt of one's own."""
    prompt = folder / "prompt.txt"
    prompt.write_text("Question: {candidate}\nIs it clear? Reply with one number from 1 to 5.")
    source = write_parquet(
        folder / "judged.parquet", pa.table({"candidate": [row[0] for row in ROWS[:2]]})
    )
    given = {
        "base_url": server.base_url,
        "model": server.model,
        "prompt_file": prompt,
        "max_tokens": 16,
        "max_concurrent": 1,
        "timeout_s": 300,
        "ledger_path": folder / "ledgers",
    }
    words = [word for key, value in given.items() for word in ("--set", f"judge.{key}={value}")]
    qaeval("score", source, "--out", folder / "judged", "--ray", "--metrics", "judge", *words)
    scores = read_scores(folder / "judged", "judged.parquet")
    assert set(scores["judge_reason"]) <= {None, "unparsable_reply"}, server.log()
    assert scores["judge"].drop_nulls().is_between(1, 5).all()
    assert scores["judge"].is_null().sum() == scores["judge_reason"].drop_nulls().len()


def n_paid(out: Path) -> int:
    """Return how many calls a run paid for, by its report."""
    (family,) = json.loads((out / "report.json").read_text())["families"].values()
    return family["calls"]["paid"]


def journaled(journal: Path) -> list[dict[str, object]]:
    """Return all replies of a journal."""
    return [
        json.loads(line)
        for path in sorted(journal.glob("replies-*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_a_real_model_is_asked_and_each_reply_paid_once(tmp_path: Path) -> None:
    """Protects from a client that only our own server understands, and from paying twice."""
    columns = zip(*ROWS, strict=True)
    table = pa.table(dict(zip(("question", "context", "answer"), map(list, columns), strict=True)))
    table = table.append_column("id", pa.array([f"q{i}" for i in range(table.num_rows)]))
    source = write_parquet(tmp_path / "sample.parquet", table)
    first, second = tmp_path / "first", tmp_path / "second"
    with ServedModel(tmp_path / "served") as server:
        score(source, out=first, server=server)
        n_calls = server.n_calls()
        score(source, out=second, server=server, journal_path=first / "journal")
        assert server.n_calls() == n_calls, server.log()
        judge(tmp_path, server)

    assert (n_paid(first), n_paid(second)) == (n_calls, 0)
    replies = journaled(first / "journal")
    # An unreadable reply is asked for once more.
    assert len(ROWS) <= len(replies) == n_calls <= 2 * len(ROWS), server.log()
    assert all(isinstance(reply["text"], str) for reply in replies)
    scores = read_scores(first, "sample.parquet")
    assert scores.height == len(ROWS)
    undefined = scores.filter(pl.col("naco").is_null())
    assert set(undefined["naco_reason"]) <= {"unparsable_reply"}
    # The form that the example shows is one that even this model can mostly follow.
    assert undefined.height < len(ROWS)
    assert scores["naco"].drop_nulls().is_between(0, 1).all()
    assert scores.equals(read_scores(second, "sample.parquet"))
