"""LRM by optimal transport (ablation M7), against a linear program on transformers' states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from transformers import AutoModel

from answer_models import plain_tokenizer
from helpers import run_locally, write_parquet
from qaeval_core.explain.row import explain_row
from qaeval_core.families.lrm import mover_plans
from workshop import save_small

ROWS = [
    ("Who built the lighthouse?", "The lighthouse was built in 1874 by two brothers."),
    ("water", "Bees need water in summer, and they fly up to three kilometres to find it."),
    ("When did the mill close?", "mill"),
    ("Why?", "The clock in the tower had stopped at a quarter past four. " * 40),
]


def cheapest(cosine: NDArray[np.float64]) -> float:
    """Return the least cost of moving the rows onto the columns, as a linear program."""
    n_rows, n_columns = cosine.shape
    marginals = []
    for i in range(n_rows):
        of_row = np.zeros(cosine.shape)
        of_row[i] = 1
        marginals.append(of_row.ravel())
    for j in range(n_columns):
        of_column = np.zeros(cosine.shape)
        of_column[:, j] = 1
        marginals.append(of_column.ravel())
    sums = [*[1 / n_rows] * n_rows, *[1 / n_columns] * n_columns]
    solved = linprog((1 - cosine).ravel(), A_eq=np.array(marginals), b_eq=sums, method="highs")
    return float(solved.fun)


shapes = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**31))


@settings(deadline=None, max_examples=40)
@given(shapes)
def test_plans_are_the_cheapest_and_hand_on_all(shape: tuple[int, int, int]) -> None:
    """Protects from marginals of the wrong side, and from a plan that is not the best."""
    n_candidate, n_context, seed = shape
    cosines = np.random.default_rng(seed).uniform(-1, 1, size=(2, n_candidate, n_context))
    plans = mover_plans(cosines)
    assert plans.min() >= 0
    np.testing.assert_allclose(plans.sum(axis=2), 1, atol=1e-9)
    np.testing.assert_allclose(plans.mean(axis=1), 1 / n_context, atol=1e-9)
    for plan, cosine in zip(plans, cosines, strict=True):
        worth = (plan * cosine).sum(axis=1).mean()
        assert worth == pytest.approx(1 - cheapest(cosine), abs=1e-9)


def test_a_cosine_that_is_no_number_gives_no_plan() -> None:
    """Protects from a plan that a solver makes of NaN."""
    assert np.isnan(mover_plans(np.array([[[np.nan, 1.0]]]))).all()


def layer_precision(folder: Path, question: str, context: str) -> NDArray[np.float64]:
    """Return Prec_l of every layer, from hidden states of the pair alone."""
    encoding = plain_tokenizer(folder).encode(question, context)
    sides = np.array([-1 if side is None else side for side in encoding.sequence_ids])
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        states = model(
            torch.tensor([encoding.ids]),
            token_type_ids=torch.tensor([encoding.type_ids]),
            output_hidden_states=True,
        ).hidden_states[1:]
    found = []
    for state in states:
        unit = torch.nn.functional.normalize(state[0].double(), dim=-1).numpy()
        found.append(1 - cheapest(unit[sides == 0] @ unit[sides == 1].T))
    return np.array(found)


@pytest.mark.slow
def test_scores_are_those_of_the_linear_program(tmp_path: Path) -> None:
    """Protects from layers, tokens or windows that go into another pair's plan."""
    encoder = save_small("bert", tmp_path / "bert")
    causal_lm = save_small("gpt2", tmp_path / "gpt2")
    table = pa.table(
        {
            "id": [str(i) for i in range(len(ROWS))],
            "question": [question for question, _ in ROWS],
            "context": [context for _, context in ROWS],
        }
    )
    settings = {
        "input.paths": [str(write_parquet(tmp_path / "input.parquet", table))],
        "output.path": str(tmp_path / "out"),
        "models.artifacts_path": str(tmp_path / "built"),
        "metrics.m.metric": "qrelscore",
        "metrics.m.matching": "weighted",
        "metrics.m.aggregate": "mover",
        "metrics.m.encoder": str(encoder),
        "metrics.m.causal_lm": str(causal_lm),
    }
    run_locally(settings)
    for i, (question, context) in enumerate(ROWS):
        explanation = explain_row(tmp_path / "out", identity=str(i), artifacts=tmp_path / "built")
        assert explanation.is_equal
        scores = {own.column: own.stored for own in explanation.instances[0].scores}
        lrm = next(own for own in explanation.families if own.family == "lrm")
        parts = lrm.targets[0].parts
        assert len(parts) == scores["m_lrm_windows"]
        for part in parts:
            worth = np.array(part.data["worth"])
            np.testing.assert_allclose(worth.mean(axis=1), part.data["layer_precision"], atol=1e-6)
        if len(parts) == 1:
            expected = layer_precision(encoder, question, context)
            np.testing.assert_allclose(parts[0].data["layer_precision"], expected, atol=1e-5)
            assert scores["m_lrm_raw"] == pytest.approx(expected.mean(), abs=1e-5)
        else:
            means = [np.mean(part.data["layer_precision"]) for part in parts]
            assert scores["m_lrm_raw"] == pytest.approx(np.mean(means), abs=1e-5)
    assert scores["m_lrm_windows"] > 1
