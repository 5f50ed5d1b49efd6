"""The token_logprobs graph against full logits, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tokenizers import Tokenizer

from qaeval_core.models.artifact import Artifact

pytestmark = pytest.mark.slow

_TEXTS = [
    "Why?",
    "Bees need water in summer, and they fly to find it.",
    "灯台は北の崖の上にあります。",
]


def _encode(artifact: Artifact, text: str) -> list[int]:
    assert artifact.record.bos_id is not None
    return [
        artifact.record.bos_id,
        *Tokenizer.from_file(str(artifact.tokenizer_path)).encode(text).ids,
    ]


def _run(
    workshop: Any, artifact: Artifact, rows: list[list[int]], *, n_extra: int = 0
) -> np.ndarray:
    n_padded = max(map(len, rows)) + n_extra
    inputs = {
        "input_ids": np.array([row + [0] * (n_padded - len(row)) for row in rows]),
        "prefix_rows": np.concatenate(
            [i * n_padded + np.arange(len(row) - 1) for i, row in enumerate(rows)]
        ),
        "target_ids": np.concatenate([row[1:] for row in rows]),
    }
    return np.asarray(workshop.session(artifact).run(None, inputs)[0])


def _reference_token_logprobs(model: Any, row: list[int]) -> list[float]:
    """z_t - log sum_v exp(z_v), token by token, in double precision."""
    with torch.no_grad():
        logits = model(torch.tensor([row])).logits[0].double()
    values = []
    for t in range(1, len(row)):
        z = logits[t - 1]
        largest = z.max().item()
        total = (z - largest).exp().sum().item()
        values.append(z[row[t]].item() - largest - math.log(total))
    return values


@pytest.mark.parametrize(
    "kind", ["gpt2", "llama", pytest.param("smollm2-135m", marks=pytest.mark.long)]
)
def test_graph_equals_full_logits(workshop: Any, kind: str) -> None:
    """A slice of the vocabulary left out, or a shift by one token, still looks like nats."""
    artifact = workshop.artifact("token_logprobs", kind)
    model = workshop.loaded(kind, "causal_lm").model
    rows = [_encode(artifact, text) for text in _TEXTS]
    expected = np.concatenate([_reference_token_logprobs(model, row) for row in rows])
    np.testing.assert_allclose(_run(workshop, artifact, rows), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_neither_padding_nor_batch_mates_change_a_row(workshop: Any, kind: str) -> None:
    """Right padding is never masked: it must be invisible to every earlier position."""
    artifact = workshop.artifact("token_logprobs", kind)
    rows = [_encode(artifact, text) for text in _TEXTS]
    alone = np.concatenate([_run(workshop, artifact, [row]) for row in rows])
    np.testing.assert_allclose(_run(workshop, artifact, rows, n_extra=29), alone, atol=1e-5)


def test_a_model_without_begin_of_text_uses_its_end(workshop: Any) -> None:
    """GPT-2 has no begin of text; without one the first token would have no probability."""
    gpt2 = workshop.artifact("token_logprobs", "gpt2").record
    llama = workshop.artifact("token_logprobs", "llama").record
    assert (gpt2.bos_id, gpt2.eos_id) == (0, 0)
    assert (llama.bos_id, llama.eos_id) == (1, 0)


def test_tied_weights_are_stored_as_embedding_and_slices_only(workshop: Any) -> None:
    """The exporter stores a tied weight once per use: a third copy is 113 MB for SmolLM2."""
    proto = onnx.load(workshop.artifact("token_logprobs", "gpt2").model_path)
    whole = [t for t in proto.graph.initializer if tuple(t.dims) in {(400, 32), (32, 400)}]
    assert len(whole) == 1


def test_parameters_of_products_are_counted(workshop: Any) -> None:
    """FLOP counts rest on these: 4 d^2 + 2 d 4d of a GPT-2 block, vocabulary x d of the head."""
    record = workshop.artifact("token_logprobs", "gpt2").record
    assert record.n_matmul_parameters == 2 * 12 * 32**2
    assert record.n_head_parameters == 400 * 32
