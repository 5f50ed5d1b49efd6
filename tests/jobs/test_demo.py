"""The demo as a newcomer runs it: nothing is exported yet, and nothing scored."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from qaeval.demo import answer_table, next_steps
from wall_clock import Report

AUC_LINES = (
    *("exact_match", "f1", "bleu_1", "rouge_l", "meteor"),
    *("bi_encoder", "sas", "bertscore_f1", "kpqa_bertscore"),
    *(f"AUC of good against bad questions, qrelscore{part}" for part in ("", "_lrm", "_grg")),
)


def commands(said: str) -> list[str]:
    """Return the commands that the demo ends with, but for that on the reader's own data."""
    lines = [line.strip() for line in said.splitlines()]
    return [line for line in lines if line.startswith("qaeval ") and "YOURS" not in line]


def test_a_metric_that_tells_right_from_wrong_shows() -> None:
    """Protects from AUCs of one kind of wrong answer under the name of another."""
    scores = pl.DataFrame(
        {"f1": [1.0, 0.9, 0.8, 1.0], "is_right": [1, 1, 0, 0], "kind": ["right", "right", "a", "b"]}
    )
    head, line = answer_table(scores, {"f1": "f1"}).splitlines()
    assert head.split()[-4:] == ["all", "wrong", "a", "b"]
    assert line.split() == ["f1", "0.625", "1.000", "0.250"]


def test_commands_to_try_next_name_the_folders_of_this_run(tmp_path: Path) -> None:
    """Protects from commands that end at the first space of a folder's name."""
    said = next_steps(tmp_path / "my demo")
    assert len(commands(said.replace(sys.argv[0], "qaeval"))) == 3
    assert said.count(f"'{tmp_path}/my demo/answers'") == 3


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_first_contact(tmp_path: Path, record_property: Report) -> None:
    """Protects from a newcomer who waits, who sees no score, or whose next command fails."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "PATH": programs}
    environment.pop("QAEVAL_ARTIFACTS", None)
    started = time.monotonic()
    with (
        (tmp_path / "progress").open("w") as progress,
        subprocess.Popen(
            [sys.executable, "-m", "qaeval.cli", "demo", "--out", "demo_out"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=progress,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        lines = [(time.monotonic() - started, line) for line in process.stdout]
    assert process.returncode == 0, (tmp_path / "progress").read_text()
    said = "".join(line for _, line in lines)
    shown_s = [next(at_s for at_s, line in lines if line.startswith(name)) for name in AUC_LINES]
    assert shown_s == sorted(shown_s)
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    record_property("first scores", f"{shown_s[0]:.0f} s (at most 60 if calm)")
    record_property("end, exports included", f"{lines[-1][0]:.0f} s (at most 150 if calm), {load}")

    assert len(commands(said)) == 3
    for command in commands(said):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "row.html").exists()
    assert pl.read_parquet(tmp_path / "demo_out/scores/scores/sample.parquet").height == 284
