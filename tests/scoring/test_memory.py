"""Where memory runs out, batches are halved and the scores stay the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qaeval_core.models.batches import TokenBudget, token_budget_batches

_SCRIPT = """
import json, resource, sys
from pathlib import Path
import numpy as np
from qaeval_core.configure import load_config
from qaeval_core.models.artifact import find_artifact
from qaeval_core.planning.compile import compile_run
from qaeval_core.families.contract import statistics_table
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


def run_batches(budget: TokenBudget, rooms: list[int]) -> tuple[int, list[int]]:
    """Return failures and sizes of batches on a device that has room for so many tokens each."""
    n_failures, sizes = 0, []
    for room in rooms:
        while budget.n_tokens > room:
            budget.shrink(budget.n_tokens)
            n_failures += 1
        sizes.append(budget.n_tokens)
        budget.hold()
    return n_failures, sizes


def test_one_batch_that_does_not_fit_does_not_halve_all_that_follow() -> None:
    """A 512-token row, or a neighbor's use of the device, would slow hours of short rows."""
    n_failures, sizes = run_batches(TokenBudget(16384, least=512), [3000, *[20000] * 60])
    assert n_failures == 3
    assert sizes[0] == 2048 and sizes[40:] == [16384] * 21


def test_a_device_that_stays_full_is_tried_ever_less() -> None:
    """Each trial costs a batch twice: 1,000 batches may lose few of them."""
    n_failures, sizes = run_batches(TokenBudget(16384, least=512), [5000] * 1000)
    assert n_failures <= 10
    assert set(sizes) <= {4096, 2048} and sizes.count(4096) > 900


def test_a_budget_stays_between_its_bounds() -> None:
    """Less than one window could run nothing; more than was asked for was never asked for."""
    budget = TokenBudget(600, least=512)
    for _ in range(3):
        budget.shrink(budget.n_tokens)
    assert budget.n_tokens == 512
    for _ in range(100):
        budget.hold()
    assert budget.n_tokens == 600


def test_batches_end_where_rows_become_much_shorter() -> None:
    """A quarter of a GPU's batch of short answers was padding; a CPU's are too small for that."""
    lengths = np.sort(np.random.default_rng(0).geometric(0.12, size=16384) + 4)[::-1]

    def padding(max_batch_tokens: int) -> tuple[float, int]:
        batches = list(token_budget_batches(lengths, max_batch_tokens=max_batch_tokens))
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        padded = [int(lengths[batch].max()) * len(batch) for batch in batches]
        assert max(padded) <= max_batch_tokens
        return 1 - int(lengths.sum()) / sum(padded), len(batches)

    share, n_batches = padding(16384)
    assert share < 0.06 and n_batches < 40
    # The same batches as ever below 2,048 tokens.
    small = token_budget_batches(lengths[-200:], max_batch_tokens=512)
    assert all(
        int(lengths[-200:][batch].max()) * (len(batch) + 1) > 512 for batch in list(small)[:-1]
    )
