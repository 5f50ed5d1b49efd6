"""Numbers of the first version of the graphs, which took attention apart, against those of today.

``version_1.json`` was written by graphs of version 1, of the embedded models on every other fixed
pair: the mean of each row's values, and some of the values.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from qaeval_export.facts import ModelFacts
from qaeval_export.graphs import EXPORTS
from qaeval_export.parity import parity_pairs

_BEFORE = json.loads(Path(__file__).with_name("version_1.json").read_text(encoding="utf-8"))


@pytest.mark.long
# peft asks transformers for an attribute that will have another name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", _BEFORE)
def test_scores_are_those_of_version_1(workshop: Any, name: str) -> None:
    """Finished runs and published figures are of version 1: the next ones must lie beside them."""
    before = _BEFORE[name]
    artifact = workshop.artifact(before["graph"], before["model"], **before["options"])
    graph, record = EXPORTS[before["graph"]], artifact.record
    facts = ModelFacts(**{own.name: getattr(record, own.name) for own in fields(ModelFacts)})
    tokenizer = Tokenizer.from_file(str(artifact.tokenizer_path))
    rows = graph.make_rows(tokenizer, facts, parity_pairs()[::2])
    values = graph.run(workshop.session(artifact), rows)
    np.testing.assert_allclose([own.mean() for own in values], before["means"], atol=1e-5, rtol=0)
    for own, some in zip(values, before["some"], strict=True):
        found = own.ravel()[:: max(1, own.size // len(some))][: len(some)]
        # Log-probabilities of single tokens are no scores; each version is 4e-5 from torch.
        atol = 5e-5 if before["graph"] == "token_logprobs" else 1e-5
        np.testing.assert_allclose(found, some, atol=atol, rtol=0)
