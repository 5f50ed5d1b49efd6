"""What naco needs before it can score: one message, with a command to copy."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import qaeval, write_parquet

GIVEN = ("--set", "naco.base_url=http://127.0.0.1:9/v1", "--set", "naco.model=m")


@pytest.mark.slow
def test_the_command_that_finds_the_expected_complexity_is_complete(tmp_path: Path) -> None:
    """Three tries were needed: calibrate, then its corpus, then its metric."""
    rows = pa.table({"asked": ["Who?"], "context": ["Ann."], "answer": ["Ann"]})
    path = write_parquet(tmp_path / "my news.parquet", rows)
    words = ("--column", "candidate=asked", *GIVEN)
    others = ("--set", "f1.language=de")
    said = qaeval("score", path, "--out", tmp_path / "out", *words, *others, expect=2)
    message, command = said.strip().splitlines()
    assert "[QA0207]" in message and "'naco.expected_complexity=complexity-my news.json'" in message
    found = shlex.split(command)
    assert found[:2] == ["qaeval", "calibrate"]
    assert found[2:] == [str(path), "--corpus", "my news", *words]
    # Its words are those of the command: only nobody answers there.
    qaeval(*found[1:], "--out", tmp_path / "e.json", "--n-questions", "1", "--set",
           "naco.max_outage_s=0.5", expect=1)  # fmt: skip
