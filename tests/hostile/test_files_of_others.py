"""Files of others: in folders that are shared, none is overwritten, followed or deleted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import write_parquet
from llm_server import LlmServer
from naco_jobs import many, settings
from qaeval_core.errors import ConfigError, ExportError
from qaeval_core.metrics.calibrated import BaselineFile, write_baselines
from qaeval_core.models.artifact import build_lock
from qaeval_core.storage import files
from qaeval_export.training.folder import OutFolder
from word_jobs import is_whole, request, rows, run

SOMEBODY = 12_345  # a user who is not us
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def a_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def a_second_name(path: Path, victim: Path) -> None:
    os.link(victim, path)


def a_pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def of_somebody(path: Path, victim: Path) -> None:
    path.touch()
    os.chown(path, SOMEBODY, SOMEBODY)


PUT = [a_link, a_second_name, a_pipe, pytest.param(of_somebody, marks=as_root)]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize("put", PUT)
def test_a_build_lock_overwrites_nobodys_file(
    tmp_path: Path, victim: Path, put: Callable[[Path, Path], None]
) -> None:
    """A link in a shared cache truncated a file of whoever exported next."""
    (tmp_path / "cache").mkdir()
    put(tmp_path / "cache" / ".model.lock", victim)
    refused = pytest.raises(ExportError, match=r"\.model\.lock.*QA0405")
    with refused, build_lock(tmp_path / "cache" / "model"):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("put", PUT)
def test_a_training_lock_overwrites_nobodys_file(
    tmp_path: Path, victim: Path, put: Callable[[Path, Path], None]
) -> None:
    """The same, for ``qaeval train``."""
    (tmp_path / "out").mkdir()
    put(tmp_path / "out" / ".lock", victim)
    refused = pytest.raises(ConfigError, match=r"--out .*\.lock.*QA0111")
    with refused, OutFolder(tmp_path / "out").locked():
        pass
    assert victim.read_text() == "precious"


def test_names_of_temporary_files_cannot_be_guessed(tmp_path: Path, victim: Path) -> None:
    """A link under the name to come led a calibration's file elsewhere."""
    (tmp_path / ".base.json.tmp").symlink_to(victim)
    (tmp_path / ".training.json.tmp").symlink_to(victim)
    content = BaselineFile(corpus="c", seed=0, max_bleu_1=0.1, baselines=())
    write_baselines(tmp_path / "base.json", content)
    OutFolder(tmp_path).check_record({"options": {"seed": 1}})
    assert (tmp_path / "base.json").is_file() and (tmp_path / "training.json").is_file()
    assert victim.read_text() == "precious"
    names = {files.temporary_path(tmp_path / "a").name for _ in range(100)}
    assert len(names) == 100


def test_a_file_in_the_place_of_this_folder_is_refused_by_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--html .` ended with a traceback."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"\[Errno"):
        files.write(Path(), b"page")
    assert not list(tmp_path.iterdir())


def test_caches_are_private(tmp_path: Path) -> None:
    """Whoever may write to a cache chooses what the next export reads."""
    before = os.umask(0o002)
    try:
        with build_lock(tmp_path / "cache" / "model"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    (lock,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


HEX = "0123456789abcdef" * 2


def test_a_run_deletes_its_own_temporaries_alone(tmp_path: Path) -> None:
    """``.config.tmp`` and ``proj/.build.tmp`` of somebody were deleted below --out."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    source = write_parquet(tmp_path / "input.parquet", rows())
    own = [
        out / f".run.json.{HEX}.tmp",
        out / "scores" / "a" / f".b.parquet.{HEX}.tmp",
        out / "families" / f".c.{HEX}.tmp",
    ]
    kept = [
        out / ".config.tmp",
        out / "proj" / ".build.tmp",
        out / "proj" / f".d.{HEX}.tmp",
        out / "scores" / ".e.tmp",
        out / f".f.{HEX}.tmp" / "inside",
        out / ".note.mark",
        elsewhere / f".g.{HEX}.tmp",
    ]
    for path in [*own, *kept]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (out / "quarantine").mkdir()
    (out / "quarantine" / "far").symlink_to(elsewhere)
    run(request(source, out))
    assert [path for path in own if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    assert is_whole(out)


def test_a_journal_in_out_is_private_and_out_is_not(tmp_path: Path) -> None:
    """Users share OUT; replies are for whoever paid."""
    before = os.umask(0o022)
    try:
        with LlmServer() as server:
            run(settings(server, tmp_path, many(2)))
    finally:
        os.umask(before)
    out = tmp_path / "out"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*")}
    assert modes[out / "journal"] == 0o700
    assert {modes[path] for path in (out / "journal").iterdir()} == {0o600}
    assert modes[out / "scores" / "input.parquet"] == 0o644
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ledgers").iterdir()} == {
        0o600
    }
