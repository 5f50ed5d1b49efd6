"""Which passages a shipped reader learns from: none that judges it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recipes.reader_minilm.passages import main, normalized, split_passages


def squad(n_passages: int) -> pl.DataFrame:
    """Return passages with three questions each, one of them without an answer."""
    rows = [
        {
            "context": f"The Mill, no. {i}, closed.",
            "question": f"Question {j}?",
            "answers": [] if j == 2 else ["closed"],
            "answer_starts": [] if j == 2 else [16],
        }
        for i in range(n_passages)
        for j in range(3)
    ]
    return pl.DataFrame(rows)


def test_judged_passages_are_left_out_however_they_are_written() -> None:
    """A reader that has seen what judges it proves nothing."""
    judged = ["the mill no 3 closed", "THE MILL NO. 7 CLOSED", "of another book"]
    train, dev, n_left_out = split_passages(squad(40), judged)
    assert n_left_out == 2
    seen = {normalized(text) for text in [*train["context"], *dev["context"]]}
    assert not seen & set(map(normalized, judged)) and len(seen) == 38
    assert not set(train["context"]) & set(dev["context"])
    assert dev["context"].n_unique() == 4 and len(dev) == 12
    n_without = train.filter(pl.col("answers").list.len() == 0).height
    assert train.filter(pl.col("answers").list.len() > 0).height == 2 * 34
    assert 0 < n_without < 34


def test_files_and_counts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left out is said, and the same seed gives the same files."""
    squad(20).write_parquet(tmp_path / "squad.parquet")
    pl.DataFrame({"passage": ["The mill no 3 closed"]}).write_parquet(tmp_path / "judged.parquet")
    given = ["--squad", str(tmp_path / "squad.parquet")]
    given += ["--judged", str(tmp_path / "judged.parquet")]
    for name in ("a", "b"):
        assert main([*given, "--out", str(tmp_path / name)]) == 0
    shown = capsys.readouterr().err
    assert "1 judged passages left out" in shown
    assert "dev: 2 passages, 6 questions, 4 with an answer" in shown
    for file in ("train.parquet", "dev.parquet"):
        left, right = (pl.read_parquet(tmp_path / name / file) for name in ("a", "b"))
        assert left.equals(right)
