"""Parts of the longest tests: their records, how they go on, and when they end."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tools import long

TESTS = """
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

@pytest.mark.long
def test_quick():
    with (HERE / "runs.log").open("a") as log:
        log.write("quick\\n")
    print("a figure of 42")

@pytest.mark.long
def test_broken():
    assert (HERE / "mended").exists(), "not yet"

@pytest.mark.long
def test_slow():
    time.sleep(0 if (HERE / "mended").exists() else 60)

def test_of_every_day():
    raise AssertionError("not long")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one part; what its tests leave is ignored."""
    part = tmp_path / "tests" / "demo"
    part.mkdir(parents=True)
    (part / "test_demo.py").write_text(TESTS)
    (tmp_path / ".gitignore").write_text("runs.log\nmended\n__pycache__\n")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["long"]\n')
    evidence = tmp_path / "docs" / "evidence"
    evidence.mkdir(parents=True)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "Begin")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(long, "ROOT", tmp_path)
    monkeypatch.setattr(long, "EVIDENCE", evidence)
    return tmp_path


@pytest.mark.slow
def test_a_part_that_was_stopped_goes_on_with_what_has_not_passed(project: Path) -> None:
    (tests,) = long.parts().values()
    assert [name.rpartition("::")[2] for name in tests] == [
        "test_quick",
        "test_broken",
        "test_slow",
    ]
    began = time.monotonic()
    assert not long.run_part("demo", tests, until=time.monotonic() + 15)
    assert time.monotonic() - began < 45
    record = project / "docs" / "evidence" / "long_demo.txt"
    text = record.read_text()
    assert text.startswith(f"commit   {long.commit()}\n") and "machine  Linux" in text
    assert "    a figure of 42" in text and "AssertionError: not yet" in text
    assert [line.split()[0] for line in text.splitlines() if "::test" in line[:80]] == [
        "passed", "failed", "cut"
    ]  # fmt: skip
    (project / "tests" / "demo" / "mended").touch()
    assert long.run_part("demo", tests, until=time.monotonic() + 120)
    assert (project / "tests" / "demo" / "runs.log").read_text() == "quick\n"
    text = record.read_text()
    assert text.count("passed") == 3 and "not yet" not in text and "a figure of 42" in text


def test_a_record_of_other_code_begins_anew(project: Path) -> None:
    """What passed before a change says nothing of what is there now."""
    before = long.commit()
    (project / "docs" / "evidence" / "long_demo.txt").write_text("evidence is no change")
    assert long.commit() == before
    (project / "tests" / "demo" / "test_demo.py").write_text(TESTS + "\n# Another word.\n")
    assert long.commit().startswith(before.split()[0] + " + changes") and long.commit() != before
    path = project / "docs" / "evidence" / "long_demo.txt"
    long.Record(path, before).put("tests/demo/test_demo.py::test_quick", ["passed 1.0 s  tests/x"])
    assert not long.Record.read(path, long.commit()).lines
