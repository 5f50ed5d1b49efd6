"""Host: CPU time a pair of what tokens are matched by, with a stub where the model stands.

Real sentences, vectors of random numbers: what matching takes does not depend on them. Thread CPU
time, so that a busy machine does not count; tokenizing is another thread's and is left out.

``--transport``: MoverScore's transport in one process and by the pool of all CPUs, in turn, by the
clock, equal numbers checked.

usage: python -m benchmarks.host [--pairs N] [--json FILE] | --transport
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import load_rows
from benchmarks.measure import environment, interleave
from qaeval_core.configure import load_config
from qaeval_core.families.blas_threads import one_blas_thread
from qaeval_core.families.model_family import ModelFamilyPlan
from qaeval_core.families.token_match import TokenMatchWork
from qaeval_core.families.transport import transport_costs
from qaeval_core.families.transport_pool import transport_costs_on_all_cpus, usable_cpus
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.models.session import token_budget_batches
from qaeval_core.planning.compile import compile_run

STEPS = ("make_inputs", "take", "statistics")
_WORDS = range(18, 33)
_N_REPEATS = 9
_SEED = 7
# Tokens a text, and pairs that take some 0.6 s.
_TRANSPORTS = {12: 8000, 27: 4000, 120: 500, 500: 24}
_N_TRANSPORT_REPEATS = 9
_DIM = 384


def sentence_pairs(n_pairs: int) -> dict[str, list[object]]:
    """Return neighboring sentences of the corpus, of some 25 words each."""
    contexts = dict.fromkeys(load_rows(8000).contexts)
    cut = (sentence for text in contexts for sentence in text.split(". "))
    sentences = list(dict.fromkeys(s for s in cut if len(s.split()) in _WORDS))
    both = list(zip(sentences[::2], sentences[1::2], strict=False))[:n_pairs]
    return {"candidate": [a for a, _ in both], "references": [[b] for _, b in both]}


def bertscore_plan() -> ModelFamilyPlan:
    """Return the family of ``bertscore``, compiled for a GPU's batches."""
    run = compile_run(
        load_config(overrides={"metrics": {"bertscore": {}}}),
        columns={"candidate": "candidate", "references": "references"},
        device="cpu",
        resolve_artifact=lambda request: ensure_artifact(default_root(), request),
    )
    (plan,) = run.families
    assert isinstance(plan, ModelFamilyPlan)
    return plan


def measure_matching(n_pairs: int) -> dict[str, float]:
    """Return microseconds of thread CPU a pair: inputs, what the graph returned, matching.

    ``products`` is what products and maxima of the same texts take alone, right after: the floor
    of matching, which is as slow as the machine is at the time. ``of_products`` says how many
    times as long the steps took.
    """
    rows = sentence_pairs(n_pairs)
    n_pairs = len(rows["candidate"])
    plan = bertscore_plan()
    layout = plan.open_layout()
    rng = np.random.default_rng(_SEED)
    found: dict[str, list[float]] = {name: [] for name in (*STEPS, "products")}
    n_tokens = 0
    for _ in range(_N_REPEATS):
        work = layout.lay_out(rows, None)
        assert isinstance(work, TokenMatchWork)
        units = work.units
        spent = dict.fromkeys(found, 0.0)
        noise = rng.standard_normal((16384, plan.artifact.record.dim), dtype=np.float32)
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        n_tokens = int(units.lengths.sum())
        for batch in token_budget_batches(units.lengths, max_batch_tokens=16384):
            inputs = _timed(spent, "make_inputs", units.make_inputs, batch)
            _timed(spent, "take", units.take, batch, noise[: len(inputs["token_rows"])])
        _timed(spent, "statistics", work.statistics)
        _timed(spent, "products", _products, work)
        for name, seconds in spent.items():
            found[name].append(seconds / n_pairs * 1e6)
    whole = np.sum([found[name] for name in STEPS], axis=0)
    return {name: statistics.median(each) for name, each in found.items()} | {
        "of_products": float(np.median(whole / found["products"])),
        "tokens_a_pair": n_tokens / n_pairs,
        "pairs": n_pairs,
    }


@one_blas_thread()
def _products(work: TokenMatchWork) -> None:
    texts, sizes = work.units.text_vectors, np.diff(work.units.spans, axis=1)
    buffer, best = np.empty(sizes.max() ** 2, np.float32), np.empty(sizes.max(), np.float32)
    for left, right in zip(work.texts.left.tolist(), work.texts.right.tolist(), strict=True):
        own, other = texts[left], texts[right]
        cosine = buffer[: len(own) * len(other)].reshape(len(own), len(other))
        np.dot(own, other.T, out=cosine)
        np.maximum.reduce(cosine, axis=1, out=best[: len(own)])
        np.maximum.reduce(cosine, axis=0, out=best[: len(other)])


def _timed(spent: dict[str, float], name: str, call: Callable[..., Any], *given: object) -> Any:
    started = time.thread_time()
    value = call(*given)
    spent[name] += time.thread_time() - started
    return value


def transport_arguments(n_tokens: int, n_pairs: int) -> dict[str, Any]:
    """Return pairs of texts of their own, of random unit vectors and weights."""
    rng = np.random.default_rng(_SEED)
    vectors = rng.standard_normal((2 * n_pairs * n_tokens, _DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    starts = np.arange(2 * n_pairs) * n_tokens
    return {
        "vectors": vectors,
        "spans": np.stack([starts, starts + n_tokens], axis=1),
        "pair_left": np.arange(n_pairs) * 2,
        "pair_right": np.arange(n_pairs) * 2 + 1,
        "weights": rng.random(len(vectors), dtype=np.float32),
    }


def print_transport() -> None:
    """Time transport in one process and by all CPUs, and print both."""
    print(f"transport, {usable_cpus()} processes, {_DIM} numbers")
    for n_tokens, n_pairs in _TRANSPORTS.items():
        given = transport_arguments(n_tokens, n_pairs)
        # Starts the processes, too.
        if transport_costs_on_all_cpus(**given).tobytes() != transport_costs(**given).tobytes():
            raise SystemExit(f"{n_tokens} tokens: the pool's costs are other ones")
        seconds = interleave(
            {
                "one": lambda own=given: transport_costs(**own),
                "pool": lambda own=given: transport_costs_on_all_cpus(**own),
            },
            n_repeats=_N_TRANSPORT_REPEATS,
        )
        one, pool = (statistics.median(each) / n_pairs * 1e6 for each in seconds.values())
        ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
        print(
            f"  {n_pairs} pairs of {n_tokens:>3} tokens: {one:7.0f} us a pair in one process, "
            f"{pool:7.0f} by the pool: {statistics.median(ratios):.2f} times the pairs "
            f"({min(ratios):.2f} to {max(ratios):.2f}); load {os.getloadavg()[0]:.1f}"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="CPU time a pair of matching tokens")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--transport", action="store_true", help="time transport's pool instead")
    parser.add_argument("--json", type=Path, help="write what matching takes here")
    options = parser.parse_args()
    if options.transport:
        print_transport()
        return
    found = measure_matching(options.pairs)
    if options.json:
        content = {"environment": environment(1), "us_a_pair": found}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    n_pairs, n_tokens = round(found.pop("pairs")), round(found.pop("tokens_a_pair"))
    print(f"{n_pairs} sentence pairs, {n_tokens} tokens run a pair")
    for name in (*STEPS, "products"):
        print(f"  {name:<12} {found[name]:6.1f} us of CPU a pair")
    print(f"  {found['of_products']:.2f} times what the products take alone")


if __name__ == "__main__":
    main()
