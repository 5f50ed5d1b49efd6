"""Links among inputs: no row is scored twice because a second name leads to its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import qaeval, write_parquet
from qaeval_core.errors import InputError
from qaeval_core.planning.inputs import find_inputs
from word_jobs import request, rows, run


def a_loop(folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)


def two_loops(folder: Path) -> None:
    """2**40 ways: who goes them all never comes back."""
    a_loop(folder)
    (folder / "sub" / "again").symlink_to(folder)


def a_hard_link(folder: Path) -> None:
    os.link(folder / "sub" / "b.parquet", folder / "c.parquet")


def a_soft_link(folder: Path) -> None:
    # Before the file itself in any order of names.
    (folder / "0.parquet").symlink_to(folder / "sub" / "b.parquet")


def a_second_way(folder: Path) -> None:
    (folder / "0").symlink_to(folder / "sub")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "in" / "a.parquet", rows(2))
    write_parquet(tmp_path / "in" / "sub" / "b.parquet", rows(3))
    return tmp_path / "in"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["", "/**/*.parquet", "/**"])
@pytest.mark.parametrize("make", [a_loop, two_loops, a_hard_link, a_soft_link, a_second_way])
def test_a_file_is_input_once(folder: Path, make: Callable[[Path], None], pattern: str) -> None:
    """2 rows became 82, in 41 copies; their mean had the weight of a loop."""
    make(folder)
    found, notes = find_inputs([f"{folder}{pattern}"])
    assert sorted(file.n_rows for file in found) == [2, 3]
    if make is not a_hard_link:  # Of which no name is the first.
        assert [file.relative for file in found] == ["a.parquet", "sub/b.parquet"]
    (note,) = notes
    assert note.endswith("skipped: links to files or folders that are input already")


def test_a_glob_and_several_arguments_take_a_file_once(folder: Path) -> None:
    """The same, where each way in names it once."""
    a_soft_link(folder)
    found, notes = find_inputs([f"{folder}/*.parquet", f"{folder}/sub", f"{folder}/*/*.parquet"])
    assert sorted(file.n_rows for file in found) == [2, 3]
    assert notes[0].startswith("1 name is skipped")


def test_what_lies_elsewhere_is_found_through_links(tmp_path: Path, folder: Path) -> None:
    """Folders of links are how people choose inputs."""
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen" / "x.parquet").symlink_to(folder / "a.parquet")
    (tmp_path / "chosen" / "y").symlink_to(folder / "sub")
    (tmp_path / "chosen" / "dangling.parquet").symlink_to(tmp_path / "nowhere")
    found, notes = find_inputs([str(tmp_path / "chosen")])
    assert [file.relative for file in found] == ["x.parquet", "y/b.parquet"]
    assert notes == ["1 file is left out, being a link to a missing file: dangling.parquet"]


@pytest.mark.parametrize("pattern", ["", "/**/*.parquet"])
def test_hidden_files_are_left_out_as_before(folder: Path, pattern: str) -> None:
    """``.git`` and half-written files are no input."""
    write_parquet(folder / ".git" / "x.parquet", rows(1))
    write_parquet(folder / "sub" / ".x.parquet", rows(1))
    write_parquet(folder / "_tmp" / "x.parquet", rows(1))
    found, _ = find_inputs([f"{folder}{pattern}"])
    relatives = {file.relative for file in found}
    # A glob says itself which names it takes.
    assert relatives - {"_tmp/x.parquet"} == {"a.parquet", "sub/b.parquet"}
    assert ("_tmp/x.parquet" in relatives) == bool(pattern)


def test_a_folder_that_cannot_be_listed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace did not say which."""

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=f"{folder}.*Permission.*QA0302"):
        find_inputs([str(folder)])


def test_what_was_left_out_is_said(folder: Path, tmp_path: Path) -> None:
    """In the plan, and in the report: whoever meant both must hear of it."""
    a_hard_link(folder)
    shown = qaeval(
        "score", folder, "--out", tmp_path / "out", "--metrics", "f1", "--dry-run",
        "--column", "references=reference",
    )  # fmt: skip
    assert "input: 2 files, 5 rows" in shown
    assert "1 name is skipped: links to files or folders that are input already" in shown
    outcome, _ = run(request(folder, tmp_path / "out"))
    assert outcome.report is not None
    assert any("1 name is skipped" in note for note in outcome.report["notes"])
