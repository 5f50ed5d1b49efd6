"""Host: CPU time of all that is done beside a model, with a stub where the engine stands.

A row: real rows in shards of a CPU, from a table in memory to statistics, tokenizing included; CPU
time of the process, tokenizing in one thread. Once by a worker that has just started, and once by
one that has met all pieces of these texts: most rows of a large run lie between the two.
A pair: what tokens of real sentences are matched by. Outputs are random numbers: what is done with
them does not depend on them.

``--transport``: MoverScore's transport in one process and by the pool of all CPUs, in turn, by the
clock, equal numbers checked.

usage: python -m benchmarks.host [--only rows|pairs] [--rows N] [--pairs N] [--json FILE]
       python -m benchmarks.host --transport
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
import pyarrow as pa

from benchmarks.answers import ROW_SETS, load_pairs
from benchmarks.data import load_rows
from benchmarks.measure import environment, interleave
from qaeval_core.configure import load_config
from qaeval_core.families.blas_threads import one_blas_thread
from qaeval_core.families.contract import Engine, statistics_table
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan, ModelLayout
from qaeval_core.families.token_match import TokenMatchWork
from qaeval_core.families.transport import transport_costs
from qaeval_core.families.transport_pool import transport_costs_on_all_cpus, usable_cpus
from qaeval_core.families.validate import table_rows
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.models.batches import token_budget_batches
from qaeval_core.models.record import ArtifactRecord
from qaeval_core.planning.compile import compile_run
from qaeval_core.text.encode import TextEncoder

STEPS = ("make_inputs", "take", "statistics")
_WORDS = range(18, 33)
_N_REPEATS = 9
_N_PASSES = 5
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


def family_plan(metric: str, family: str) -> ModelFamilyPlan:
    """Return a family of a metric."""
    run = compile_run(
        load_config(overrides={"metrics": {metric: {}}}),
        columns={role: role for role in ("candidate", "references", "context")},
        device="cpu",
        resolve_artifact=lambda request: ensure_artifact(default_root(), request),
    )
    (plan,) = (plan for plan in run.families if plan.name == family)
    assert isinstance(plan, ModelFamilyPlan)
    return plan


class StubEngine:
    """Returns random numbers of the right shape, in no time.

    Parameters
    ----------
    record : ArtifactRecord
    """

    def __init__(self, record: ArtifactRecord) -> None:
        self._width = tuple(size for size in record.outputs[0].shape if isinstance(size, int))
        self._noise = np.random.default_rng(_SEED).random((32768, *self._width), dtype=np.float32)
        self._n_given = 0

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return a row a unit, or a row a token that is asked for."""
        asked = [inputs[name] for name in ("token_rows", "prefix_rows") if name in inputs]
        n = len(asked[0] if asked else inputs["input_ids"])
        start = self._n_given % (len(self._noise) - n)
        self._n_given += n
        return self._noise[start : start + n]


# Figure -> metric, family, rows.
PASSES = {
    "sas, rows as they come": ("sas", "sas", "as_they_come"),
    "sas, distinct": ("sas", "sas", "distinct"),
    "bertscore, rows as they come": ("bertscore", "token_match", "as_they_come"),
    "bertscore, distinct": ("bertscore", "token_match", "distinct"),
    "qrelscore, lrm": ("qrelscore", "lrm", "contexts"),
    "qrelscore, grg": ("qrelscore", "grg", "contexts"),
}


def pass_rows(kind: str, n_rows: int) -> pa.Table:
    """Return answers with the first gold answer, or questions with their contexts, five each."""
    if kind == "contexts":
        return pa.table(load_rows(n_rows).roles())
    return ROW_SETS[kind](load_pairs()).head(n_rows).to_arrow()


def measure_passes(n_rows: int) -> dict[str, dict[str, float]]:
    """Return microseconds of CPU a row of each family, ``new`` and ``known``: medians, in turn."""
    runs = {name: _Pass(*parts, n_rows=n_rows) for name, parts in PASSES.items()}
    found = {name: {kind: list[float]() for kind in ("new", "known")} for name in runs}
    for _ in range(_N_PASSES):
        for name, own in runs.items():
            own.forget()
            found[name]["new"].append(own.us_a_row())
            found[name]["known"].append(own.us_a_row())
    return {
        name: {kind: statistics.median(each) for kind, each in own.items()}
        for name, own in found.items()
    }


class _Pass:
    """A pass of a family over rows, with a stub where its engine stands; it has run once."""

    def __init__(self, metric: str, family: str, kind: str, *, n_rows: int) -> None:
        self._plan, self._table = family_plan(metric, family), pass_rows(kind, n_rows)
        config = load_config(overrides={"metrics": {metric: {}}})
        runner = self._plan.open_runner(Engine(models=config.models, n_threads=1))
        assert isinstance(runner, FamilyRunner)
        assert runner._session is not None
        runner._session._engine = StubEngine(self._plan.artifact.record)
        self._runner = runner
        self.us_a_row()

    def forget(self) -> None:
        """Read texts by a tokenizer that has met none."""
        layout = self._runner.layout
        assert isinstance(layout, ModelLayout)
        layout._scorer.encoder = TextEncoder(self._plan.artifact.tokenizer_path)

    def us_a_row(self) -> float:
        """Run, and return the microseconds of CPU a row."""
        size = self._plan.rows_per_shard["cpu"]
        started = time.process_time()
        for start in range(0, len(self._table), size):
            rows = table_rows(self._table.slice(start, size), columns=self._plan.columns)
            prepared = self._runner.layout.prepare(rows)
            self._runner.run(prepared)
            statistics_table(prepared, first_position=start)
        return (time.process_time() - started) / len(self._table) * 1e6


def measure_matching(n_pairs: int) -> dict[str, float]:
    """Return microseconds of thread CPU a pair: inputs, what the graph returned, matching.

    ``products`` is what products and maxima of the same texts take alone, right after: the floor
    of matching, which is as slow as the machine is at the time. ``of_products`` says how many
    times as long the steps took.
    """
    rows = sentence_pairs(n_pairs)
    n_pairs = len(rows["candidate"])
    plan = family_plan("bertscore", "token_match")
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
    parser = argparse.ArgumentParser(description="CPU time of what is done beside a model")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--transport", action="store_true", help="time transport's pool instead")
    parser.add_argument("--only", choices=("rows", "pairs"), help="keep what else the file has")
    parser.add_argument("--json", type=Path, help="write what rows and matching take here")
    options = parser.parse_args()
    if options.transport:
        print_transport()
        return
    keeps = options.json and options.only
    told = json.loads(options.json.read_text("utf-8")) if keeps else {}
    if options.only != "pairs":
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        passes = measure_passes(options.rows)
        told["passes"] = {"environment": environment(1), "us_a_row": passes}
        for name, us in passes.items():
            print(f"{name:<28} {us['new']:6.1f} us of CPU a row, {us['known']:6.1f} once known")
    if options.only != "rows":
        found = measure_matching(options.pairs)
        told |= {"environment": environment(1), "us_a_pair": dict(found)}
        print(
            f"{found['pairs']:.0f} sentence pairs, {found['tokens_a_pair']:.0f} tokens run a pair"
        )
        for name in (*STEPS, "products"):
            print(f"  {name:<12} {found[name]:6.1f} us of CPU a pair")
        print(f"  {found['of_products']:.2f} times what the products take alone")
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
