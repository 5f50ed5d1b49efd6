"""Filesystems of other libraries: without a network each is one line that names the URI."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import qaeval
from qaeval_core.errors import InputError
from qaeval_core.planning.filesystems import open_filesystem


@pytest.fixture(autouse=True)
def dead_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub at which nobody listens."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.mark.parametrize(
    "uri",
    [
        "hf://datasets/rajpurkar/squad/plain_text/train.parquet",
        "hf://datasets/rajpurkar/squad",
        "hf://datasets/rajpurkar/squad/*.parquet",
    ],
)
def test_a_hub_that_cannot_be_reached_is_one_line(uri: str, tmp_path: Path) -> None:
    """It was a traceback of five libraries."""
    output = qaeval("score", uri, "--out", tmp_path / "out", "--local", "--metrics", "f1", expect=1)
    (line,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert "hf://datasets/rajpurkar/squad" in line and "[QA0302]" in line


def test_its_files_fail_as_files_of_a_disk_do() -> None:
    """Whoever opens one expects an OSError, and knows nothing of hubs."""
    filesystem, path = open_filesystem("hf://datasets/rajpurkar/squad/a.parquet")
    for ask in (
        lambda: filesystem.get_file_info([path]),
        lambda: filesystem.open_input_file(path),
        lambda: filesystem.open_input_stream(path),
    ):
        with pytest.raises((OSError, InputError), match="hf://datasets/rajpurkar/squad"):
            ask()
