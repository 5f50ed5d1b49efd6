"""Where memory runs out, batches are halved and the scores stay the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import json, resource, sys
from pathlib import Path
import numpy as np
from qaeval_core.configure import load_config
from qaeval_core.models.artifact import find_artifact
from qaeval_core.planning.compile import compile_run
from qaeval_core.families.plan import statistics_table
from qaeval_core.families.model_family import FamilyRunner

run = compile_run(
    load_config(),
    columns={"candidate": "question", "context": "context"},
    device="cpu",
    resolve_artifact=lambda request: find_artifact(Path(sys.argv[1]), request),
)
context = "the miller walks along the river bank and " * 55
rows = {
    "candidate": [f"Where does miller {i} walk?" for i in range(48)],
    "context": [context + str(i) for i in range(48)],
}
plan = run.families[0]
expected = FamilyRunner(plan, n_threads=2).score(rows)["layer_precision"].to_pylist()
greedy = FamilyRunner(plan, n_threads=2, max_batch_tokens=1 << 16)
greedy.score({role: values[:1] for role, values in rows.items()})
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
prepared = greedy.layout.prepare(rows)
greedy.run(prepared)
found = statistics_table(prepared, first_position=0)["layer_precision"].to_pylist()
stats = prepared.stats
print(json.dumps({
    "halvings": stats.n_halvings,
    "difference": float(np.abs(np.array(found) - np.array(expected)).max()),
}))
"""


@pytest.mark.slow
def test_batch_is_halved_until_it_fits(artifacts_root: Path) -> None:
    """Protects from a run lost to one batch; the limit of this process is real (RLIMIT_AS)."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, artifacts_root], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 1 <= result["halvings"] <= 20
    assert result["difference"] < 1e-5
    assert "halving the batch" in done.stderr
