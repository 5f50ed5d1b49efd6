"""The peers that stand beside metrics of models compute what those metrics do."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.answers import SECTIONS, saved_models
from helpers import REPOSITORY
from qaeval_core import Scorer


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.usefixtures("shared_data", "artifacts_root")
# transformers, of models that peft has merged.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("name", ["moverscore", "kpqa", "roundtrip"])
def test_programs_of_transformers_score_as_qaeval_does(name: str) -> None:
    """A peer that does other work would be no measure."""
    section = SECTIONS[name]
    rows = section.load(section.reads).unique(maintain_order=True).head(40)
    texts = [
        [one if isinstance(one, str) else one[0] for one in rows[read]] for read in rows.columns
    ]
    peer = section.in_torch(saved_models(section), precision="fp32", is_compiled=False)
    found = Scorer([name], n_threads=1).score(rows)[section.column]
    np.testing.assert_allclose(peer(*texts), found.to_numpy(), atol=1e-5)


def test_memory_is_measured_in_a_process_without_torch() -> None:
    code = "import sys, benchmarks.answers; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
