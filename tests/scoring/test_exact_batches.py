"""Exact batches: a row has the same bits whatever runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bf16 import stand_in
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.families.model_family import FamilyRunner, is_model
from qaeval_core.planning.compile import compile_run
from qaeval_core.sample import sample_table
from qaeval_core.schema import POSITION
from tiny_runner import sas_runner

MOVER = {"matching": "weighted", "aggregate": "mover", "layers": "last"}
# A metric, its settings, a family of its, rows, and words of the longest text.
CASES: list[tuple[str, dict[str, Any], str, int, int]] = [
    ("sas", {}, "sas", 14, 150),
    ("bi_encoder", {}, "bi_encoder", 14, 150),
    ("bertscore", {}, "token_match", 14, 150),
    ("kpqa", {}, "kpqa_weights", 12, 150),
    ("roundtrip", {}, "answer_span", 20, 150),
    ("qrelscore", {}, "lrm", 20, 100),
    ("qrelscore", {"matching": "weighted"}, "lrm", 20, 60),
    ("qrelscore", MOVER, "lrm", 6, 40),
    ("qrelscore", {}, "grg", 5, 60),
]


def rows_of(n_rows: int, n_words: int) -> dict[str, list[Any]]:
    """Return rows whose texts have one to so many words."""
    words = " ".join(sample_table()["context"].to_pylist()).split()
    draw = np.random.default_rng(7)

    def texts(most: int) -> list[str]:
        starts = draw.integers(len(words) - most, size=n_rows)
        sizes = draw.integers(1, most + 1, size=n_rows)
        return [" ".join(words[i : i + n]) for i, n in zip(starts, sizes, strict=True)]

    contexts = texts(n_words)
    return {
        "question": texts(20),
        "candidate": texts(min(n_words, 60)),
        "context": contexts,
        "references": [[own, own[: len(own) // 2 + 1]] for own in contexts],
        "answer": [own.split()[0] for own in contexts],
    }


def with_precisions() -> Iterator[Any]:
    """Yield each case in fp32 and bf16; of bf16, one encoder and one causal model are not long."""
    for case in CASES:
        _, settings, family, _, _ = case
        for precision in ("fp32", "bf16"):
            is_long = precision == "bf16" and family not in ("sas", "grg")
            name = "-".join([family, *settings.values(), precision])
            marks = [pytest.mark.long] if is_long else []
            yield pytest.param(precision, *case, id=name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "metric", "settings", "family", "n_rows", "n_words"), [*with_precisions()]
)
def test_bits_are_the_same_in_any_batch(
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    metric: str,
    settings: dict[str, Any],
    family: str,
    n_rows: int,
    n_words: int,
    artifacts_root: Path,
) -> None:
    """Neighbors, their order, the size of batches and shards, and threads change nothing."""
    rows = rows_of(n_rows, n_words)
    run = Scorer({metric: settings}).compile({role: role for role in rows})
    (plan,) = (own for own in run.families if own.name == family)
    assert is_model(plan)
    if precision == "bf16":  # Of its own accord; the files are those of fp32.
        stand_in(monkeypatch)
        record = plan.artifact.record.model_copy(update={"precision": "bf16"})
        plan = replace(plan, artifact=replace(plan.artifact, record=record))
    one, two = (
        FamilyRunner(plan, n_threads=n, max_batch_tokens=size, is_exact=precision == "fp32")
        for n, size in ((1, None), (2, 8 * plan.max_unit_tokens))
    )

    def scored(runner: FamilyRunner, order: np.ndarray) -> pa.Table:
        own = {role: [rows[role][i] for i in order] for role in plan.columns}
        return runner.score(own).drop_columns([POSITION])

    every = np.arange(n_rows)
    whole = scored(one, every)
    for runner, order in (
        (two, every[::-1]),
        (one, every[::3]),
        *((one, every[i : i + 1]) for i in range(0, n_rows, 4)),
    ):
        found = scored(runner, order)
        assert repr(found.to_pylist()) == repr(whole.take(order).to_pylist())


def test_a_batch_has_one_width_and_two_rows_at_least(tmp_path: Path) -> None:
    """A width follows from a row's own length; a product of one row is another kernel's."""
    draw = np.random.default_rng(0)
    texts = [" ".join(["mill"] * n) for n in draw.integers(1, 90, size=50).tolist()]
    rows = {"candidate": texts, "references": [[own] for own in reversed(texts)]}
    plain = sas_runner(tmp_path / "artifact")
    exact = FamilyRunner(plain.plan, n_threads=1, max_batch_tokens=600, is_exact=True)
    prepared = exact.layout.prepare(rows)
    shapes: list[tuple[int, int]] = []
    session, units = exact._session, prepared.work.units
    assert session is not None

    class Watching:
        def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
            shapes.append(inputs["input_ids"].shape)
            own = inputs["n_tokens"]
            step = 4 if own.max() <= 32 else 16
            assert set((-(-own // step) * step).tolist()) == {shapes[-1][1]}
            return session.run(inputs)

    exact._session = Watching()
    exact.run(prepared)
    assert min(n for n, _ in shapes) == 2 and len({width for _, width in shapes}) > 5
    assert prepared.stats.n_tokens == units.lengths.sum() < prepared.stats.n_padded_tokens
    assert exact.score(rows).equals(plain.score(rows))


def test_a_key_says_it_and_a_gpu_is_refused(tmp_path: Path) -> None:
    """Other bits are another pass: commits of both are never mixed."""
    artifact = sas_runner(tmp_path / "artifact").plan.artifact

    def key(device: str, **given: object) -> str:
        run = compile_run(
            load_config(overrides={"metrics.sas.metric": "sas", **given}),
            columns={"candidate": "candidate", "references": "references"},
            device=device,
            resolve_artifact=lambda _: artifact,
        )
        return run.families[0].key

    exact = {"models.exact_batches": True}
    assert key("cpu") == key("cuda") != key("cpu", **exact)
    with pytest.raises(ConfigError, match="models.exact_batches.*QA0102"):
        key("cuda", **exact)
