"""A short run imports no pandas, which Arrow looks for; one with code of others may."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.running import without_pandas
from qaeval_core.running.range_executor import Processes

# What a run says, the last line: whether pandas is there, and what Arrow makes of its series.
CODE = """
import sys
from qaeval import cli
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end
print("pandas" in sys.modules)
import pandas, pyarrow
print(pyarrow.array(pandas.Series([1.0, float("nan")])).null_count)
print(type(pyarrow.table({"a": [1]}).to_pandas()).__name__)
"""
PLUGIN = """
def n_words(candidate: str) -> float:
    return float(len(candidate.split()))
"""


@pytest.mark.parametrize("has_plugin", [False, True])
def test_pandas_is_left_out_unless_code_of_others_runs(tmp_path: Path, has_plugin: bool) -> None:
    """Protects from a third of a second, and from numbers of a plugin that change by it."""
    pq.write_table(pa.table({"candidate": ["a b"], "references": [["a"]]}), tmp_path / "in.parquet")
    (tmp_path / "plugin_of_a_user.py").write_text(PLUGIN)
    more = ["--plugin", "plugin_of_a_user"] if has_plugin else []
    names = "f1,n_words" if has_plugin else "f1"
    command = ["score", "in.parquet", "--out", "out", "--local", "--metrics", names, *more]
    run = subprocess.run(
        [sys.executable, "-c", CODE, *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    is_there, n_nulls, frame = run.stdout.split()[-3:]
    assert (is_there, n_nulls, frame) == (str(has_plugin), str(int(has_plugin)), "DataFrame")


@pytest.mark.parametrize("is_left_out", [False, True])
def test_processes_do_what_their_parent_does(
    monkeypatch: pytest.MonkeyPatch, is_left_out: bool
) -> None:
    """Protects from metrics of a program that works with pandas, and runs without the command."""
    monkeypatch.setattr(without_pandas, "is_left_out", lambda: is_left_out)
    look = "__import__('pyarrow').array([1]), 'pandas' in __import__('sys').modules"
    with contextlib.closing(Processes(1)) as processes:
        processes.begin(1)
        assert processes.submit(eval, look).result()[1] == (not is_left_out)


def test_pandas_that_is_there_stays_known() -> None:
    """Protects from a program that works with both."""
    code = (
        "import pandas, pyarrow\n"
        "from qaeval_core.running.without_pandas import leave_out_pandas\n"
        "leave_out_pandas()\n"
        "print(pyarrow.array(pandas.Series([float('nan')])).null_count)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["1"]
