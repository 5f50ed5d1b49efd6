"""What fails in `make gpu` is told by name, and takes nothing else with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu_choice import Choice, Clock
from benchmarks.gpu_exports import export_all
from benchmarks.gpu_peers import Peer
from failing_exports import export
from helpers import REPOSITORY
from qaeval_core.errors import DeviceError

pytestmark = pytest.mark.slow


def test_an_export_that_fails_keeps_no_other_from_being_made(tmp_path: Path) -> None:
    """Tests and numbers of others come after it; of a process that was killed, too."""
    names = ["refused", "sas", "killed", "lrm", "grg"]
    tasks = [(name, name == "grg") for name in names]
    _, failures = export_all(tmp_path, tasks, export)
    assert failures == {
        ("refused", False): "ImportError: no such library",
        ("killed", False): "its process ended before it did",
    }
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["grg-True", "lrm-False", "sas-False"]


_PYTHON = """#!/bin/sh
echo "$2" >> called
case "$*" in *"$FAILS"*) exit 1;; esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("fails", "n_called", "status"),
    [("--look", 1, 2), ("gpu_exports", 4, 2), ("pytest", 4, 2), ("nothing", 4, 0)],
)
def test_make_gpu_goes_on_where_there_is_a_device(
    tmp_path: Path, fails: str, n_called: int, status: int
) -> None:
    """Without one it ends before the exports, which take minutes."""
    for name in ("pyproject.toml", "constraints.txt", ".venv/.setup-done", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(_PYTHON, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["make", "-f", REPOSITORY / "Makefile", "gpu"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "FAILS": fails},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    called = (tmp_path / "called").read_text(encoding="utf-8").split()
    modules = ["benchmarks.gpu", "benchmarks.gpu_exports", "pytest", "benchmarks.gpu"]
    assert called == modules[:n_called]


class _Peer(Peer):
    def score(self, prepared: Any) -> object:
        return prepared


def _no_peer() -> Peer:
    raise AssertionError("a library's own")


def _compiled(family: str, **_: object) -> Any:
    if family == "sas":
        raise ImportError("no such library")
    record = SimpleNamespace(model=SimpleNamespace(name="minilm"), precision="fp32")
    return SimpleNamespace(
        name=family, artifact=SimpleNamespace(record=record), max_unit_tokens=512
    )


def _budget(*_: object, budget: int, **__: object) -> dict[str, Any]:
    if budget == 1024:
        raise KeyError("output")
    return {"rows_per_s": 1.0, "share_of_peak": None, "padding_share": 0.0}


def _check(*_: object) -> dict[str, Any]:
    raise DeviceError("not those of a CPU")


def _job(_: Choice, __: Path, metric: str, n_rows: int, *, clock: Clock) -> dict[str, Any]:
    if metric == "sas":
        raise OSError("no space is left")
    return {"n_rows": n_rows}


def test_what_fails_takes_no_other_number_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is raised, and wherever: an hour on a GPU may be the only one."""
    made = [("broken", _no_peer), ("absent", "not installed"), ("other", _Peer)]
    stand_ins = {"compile_family": _compiled, "measure_budget": _budget, "look_at_device": _check}
    stand_ins |= {"end_to_end": _job, "peers_of": lambda *_, **__: made}
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(gpu, name, stand_in)
    path = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--rows", "4", "--budgets", "1024,2048", "--no-random"]
    words += ["--repeats", "1", "--seconds", "0", "--json", str(path)]
    assert gpu.main([*words, "--families", "sas,lrm"]) == 1
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["failures"] == [
        "sas: ImportError: no such library",
        "lrm: DeviceError: not those of a CPU",
        "lrm, 1024: KeyError: 'output'",
        "lrm, broken: AssertionError: a library's own",
        "end to end, sas: OSError: no space is left",
    ]
    said = capsys.readouterr()
    assert all(f"failed: {failure}\n" in said.err for failure in found["failures"])
    assert said.out.count("FAILED") == 5
    lrm = found["families"][1]
    assert lrm["budgets"]["2048"]["rows_per_s"] == 1 and lrm["peers"]["other"]["rows_per_s"] > 0
    assert lrm["peers"]["absent"] == {"skipped": "not installed"}
    assert found["end_to_end"]["qrelscore"] == {"n_rows": 100_000}


_TESTS = """
import time
def test_begun(): time.sleep(60)
def test_left_out(): pass
"""


def test_tests_without_time_are_named(tmp_path: Path) -> None:
    """As `make gpu` runs them: one that hangs is cut, and those it leaves no time for are told."""
    (tmp_path / "test_two.py").write_text(_TESTS, encoding="utf-8")
    words = ["-p", "conftest", "-q", "--timeout=0.5", "--session-timeout=0.1", "test_two.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "NOT RUN" in line] == [
        "NOT RUN test_two.py::test_left_out"
    ]
    assert "test_begun - Failed: Timeout" in done.stdout
