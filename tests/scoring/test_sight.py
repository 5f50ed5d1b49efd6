"""What a process must see: an answer makes it blind, silence does not."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from qaeval_core.errors import StorageError
from qaeval_core.plugins import versions
from qaeval_core.running.visibility import Sight
from qaeval_core.storage.retry import Outages
from qaeval_core.store.store import Mark

pytestmark = pytest.mark.usefixtures("retry_clock")

MARK = Mark(f".{'0' * 32}.mark")
SILENCE = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ENOTCONN]


@pytest.fixture
def sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sight:
    monkeypatch.setattr("qaeval_core.running.visibility._LOOK_AGAIN_S", 0.0)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MARK.name).touch()
    (tmp_path / "key").touch()
    return Sight(MARK, (str(tmp_path / "out"),), given=(str(tmp_path / "key"),))


class Refusing:
    """A look that fails some times."""

    def __init__(self, error: OSError, n_times: int) -> None:
        self.error, self.n_left = error, n_times

    def __call__(self, mark: Mark, folder: str) -> None:
        self.n_left -= 1
        if self.n_left >= 0:
            raise self.error


@pytest.mark.parametrize(("version", "what"), [("0", "(it has "), ("", "unknown (it has ")])
def test_other_versions_are_not_seen(sight: Sight, version: str, what: str) -> None:
    """Rows of one table, half of them scored by another version, would look alike."""
    found = replace(sight, versions={"qaeval-bulk": version}).problem()
    assert found is not None and found.startswith("the driver's qaeval-bulk ") and what in found
    found = replace(sight, versions={**versions(), "a-plugin": "1.2"}).problem()
    assert found == "the driver's a-plugin 1.2 (it has none)"
    assert replace(sight, versions=versions()).problem() is None


def test_what_is_there_is_seen(sight: Sight) -> None:
    assert sight.problem() is None and sight.problem(Outages()) is None


@pytest.mark.parametrize("code", SILENCE)
def test_silence_is_asked_again(sight: Sight, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    look = Refusing(OSError(code, "no answer"), 4)
    monkeypatch.setattr(Mark, "check", lambda mark, folder: look(mark, folder))
    waits: list[str] = []
    assert sight.problem(Outages(retry_s=60.0, tell=waits.append)) is None
    assert look.n_left < 0 and "cannot look at" in waits[0] and waits[-1] == ""


def test_silence_without_end_is_an_error_and_no_verdict(
    sight: Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Refusing(OSError(errno.EIO, "no answer"), 10**6)
    monkeypatch.setattr(Mark, "check", lambda mark, folder: look(mark, folder))
    with pytest.raises(StorageError, match="QA0507"):
        sight.problem(Outages(retry_s=0.5))
    with pytest.raises(OSError, match="no answer"):
        sight.problem()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), "there it is missing, or another folder"),
        (NotADirectoryError(errno.ENOTDIR, "a file"), "there it is missing, or another folder"),
        (PermissionError(errno.EACCES, "access denied"), "access denied"),
    ],
)
def test_an_answer_makes_blind(
    sight: Sight, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    look = Refusing(error, 10**6)
    monkeypatch.setattr(Mark, "check", lambda mark, folder: look(mark, folder))
    assert sight.problem(Outages(retry_s=60.0)) == f"{sight.folders[0]} ({said})"


def test_a_given_file_that_is_gone_makes_blind(sight: Sight, tmp_path: Path) -> None:
    (tmp_path / "key").unlink()
    assert sight.problem(Outages()) == str(tmp_path / "key")
