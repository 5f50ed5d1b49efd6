"""Against the loop: a family's rows/s beside the fixed per-row loop, on the same rows.

The loop runs as it is and compiled. Prints what explains the ratios, too: padding, sequences
avoided, share of the GEMM peak.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import Settings, make_instance
from benchmarks.data import Rows, load_rows
from benchmarks.measure import interleave, ratio, work_flops
from benchmarks.peers import GrgPeer, LoopPeer, LrmPeer
from qaeval_core.families.contract import Prepared, statistics_table
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.metrics.qrelscore import part_scores
from qaeval_core.metrics.targets import Targets
from qaeval_core.planning.run_plan import InstancePlan
from qaeval_core.running.score_rows import ArrowStatistics

_N_WARM_ROWS = 5
_SIDES = {"ours": "ours", "loop": "loop", "compiled": "loop, compiled"}


def run_lrm(settings: Settings) -> dict[str, object]:
    """Time LRM against its loop and print both."""
    _, instance = make_instance(_in(settings.precision))
    peer = LrmPeer(instance.settings.encoder, precision=settings.peer_precision)
    rows = load_rows(settings.n_rows)
    return compare(instance, "lrm", peer, rows, settings, peak_flops=settings.peak_gflops * 1e9)


def run_grg(settings: Settings) -> dict[str, object]:
    """Time GRG against its loop and print both."""
    _, instance = make_instance(_in(settings.precision))
    chosen = instance.settings
    peer = GrgPeer(
        chosen.causal_lm,
        max_window_tokens=chosen.max_window_tokens,
        precision=settings.peer_precision,
    )
    rows = load_rows(settings.n_grg_rows)
    return compare(instance, "grg", peer, rows, settings, peak_flops=settings.peak_gflops * 1e9)


def _in(precision: str) -> dict[str, object]:
    """Return the settings of a precision; what it costs in accuracy is allowed here."""
    given = {"precision": precision, "allow_lossy": precision != "fp32"}
    return {
        f"models.{role}.{name}": value
        for role in ("encoder", "causal_lm")
        for name, value in given.items()
    }


def compare(
    instance: InstancePlan,
    name: str,
    peer: LoopPeer,
    rows: Rows,
    settings: Settings,
    *,
    peak_flops: float,
) -> dict[str, object]:
    """Time one family and its peer in turn, print the comparison, and return it.

    Tokenizing counts on both sides, loading on neither. Counts are of an untimed pass.
    """
    torch.set_num_threads(settings.n_threads)
    plan = instance.families[name]
    runner = FamilyRunner(plan, device="cpu", n_threads=settings.n_threads)
    runner.score(rows.head(_N_WARM_ROWS).roles())
    prepared = runner.layout.prepare(rows.roles())
    runner.run(prepared)
    read = Targets(ArrowStatistics(statistics_table(prepared, first_position=0)))
    raw = part_scores(name, instance.settings, read).raw
    peer_rows = rows.head(settings.n_peer_rows)
    peer.score(rows.head(_N_WARM_ROWS))
    compiled = peer.compiled()
    compiled.score(peer_rows)  # Of all lengths, so that no pass that is timed compiles.
    found: dict[str, NDArray[np.float64]] = {}
    seconds = interleave(
        {
            "ours": lambda: runner.score(rows.roles()),
            "loop": lambda: found.update(loop=peer.score(peer_rows)),
            "compiled": lambda: found.update(compiled=compiled.score(peer_rows)),
        },
        n_repeats=settings.n_repeats,
    )
    result = _result(plan, prepared, seconds, n_rows=len(rows), n_peer_rows=len(peer_rows))
    result |= _shares(plan, prepared, result["seconds_median"], peak_flops=peak_flops)
    differences = {side: raw[: len(peer_rows)] - scores for side, scores in found.items()}
    result["max_abs_diff"] = {side: float(np.abs(own).max()) for side, own in differences.items()}
    result["n_positive"] = int((found["loop"] > 0).sum())
    result["rows"] = str(rows)
    result["peer_precision"] = settings.peer_precision
    result["model"] = plan.artifact.record.model.name
    _show(name, result)
    return result


def _result(
    plan: ModelFamilyPlan,
    prepared: Prepared,
    seconds: Mapping[str, list[float]],
    *,
    n_rows: int,
    n_peer_rows: int,
) -> dict[str, object]:
    n_of = {"ours": n_rows, "loop": n_peer_rows, "compiled": n_peer_rows}
    rates = {side: [n_of[side] / s for s in taken] for side, taken in seconds.items()}
    stats, median_s = prepared.stats, statistics.median(seconds["ours"])
    return {
        "rows_per_s": rates,
        "n_rows": n_rows,
        "n_peer_rows": n_peer_rows,
        "ratios": {side: ratio(rates["ours"], rates[side]) for side in ("loop", "compiled")},
        "seconds_median": median_s,
        "useful_tokens_per_s": stats.n_tokens / median_s,
        "padding_share": 1 - stats.n_tokens / stats.n_padded_tokens,
        "sequences_avoided": stats.n_units_unshared - stats.n_units,
        "stats": asdict(stats),
        "precision": plan.artifact.record.precision,
    }


def _shares(
    plan: ModelFamilyPlan, prepared: Prepared, wall_s: float, *, peak_flops: float
) -> dict[str, object]:
    """Return the share of the peak, of the whole model's operations and of those done."""
    whole, done = work_flops(plan.artifact.record, prepared.work.units)
    return {
        "model_flops": whole,
        "done_flops": done,
        "share_of_peak_whole_model": whole / wall_s / peak_flops,
        "share_of_peak_done": done / wall_s / peak_flops,
    }


def _show(name: str, result: dict[str, object]) -> None:
    stats, rates = result["stats"], result["rows_per_s"]
    print(f"{name}, {result['model']} {result['precision']}: {result['rows']}")
    for side, title in _SIDES.items():
        own = rates[side]
        spread = f"[{min(own):.2f} .. {max(own):.2f}]"
        print(f"  {title:<22}{statistics.median(own):9.2f} rows/s   {spread}")
    if result["n_peer_rows"] < result["n_rows"]:
        print(f"  (the loops ran on the first {result['n_peer_rows']} rows alone)")
    for side, own in result["ratios"].items():
        print(
            f"  to the {_SIDES[side]:<15}{own['of_medians']:9.2f}"
            f"          pairs [{own['lowest_pair']:.2f} .. {own['highest_pair']:.2f}]"
        )
    print(
        f"  useful tokens/s       {result['useful_tokens_per_s']:9,.0f}"
        f"          padding {result['padding_share']:.1%}, {stats['n_batches']} batches"
    )
    print(
        f"  sequences run         {stats['n_units']:9,}          "
        f"of {stats['n_units_unshared']:,} unshared, {result['sequences_avoided']:,} avoided"
    )
    print(
        f"  share of GEMM peak    {result['share_of_peak_whole_model']:9.1%}"
        f"          {result['share_of_peak_done']:.1%} without operations the graph leaves out"
    )
    print(
        f"  max |difference|      {max(result['max_abs_diff'].values()):9.1e}"
        f"          of raw scores, {result['n_positive']} of {result['n_peer_rows']} above 0"
    )
