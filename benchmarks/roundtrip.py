"""Benchmark of roundtrip: rows/s beside a plain loop, and which questions people found good.

The loop is what people write with transformers: `AutoModelForQuestionAnswering`, a row at a time,
same weights in fp32, the best span of the context by brute force. The questions are QGEval's: 15
systems on 100 passages of SQuAD, good where answerability, consistency and answer consistency are
each rated 2.5 or more; intervals draw whole passages. Run ``python -m benchmarks.roundtrip --only
speed``. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from benchmarks.data import load_rows
from benchmarks.measure import environment, gemm_peak, interleave, model_flops, ratio
from qaeval_core import Scorer
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.registry import resolve_model
from qaeval_core.stats.bootstrap import bootstrap, percentile_interval
from qaeval_core.stats.ranking import auc, weighted_auc
from qaeval_export.loading import load_model
from qaeval_export.training.reader import best_span

_QGEVAL = Path(__file__).resolve().parents[2] / "shared/data/qgeval/qgeval_squad.parquet"
_RATED = ("answerability", "consistency", "answer_consistency")
_LEAST = 2.5
_N_RESAMPLES = 1000
_METRICS = ("roundtrip", "qrelscore", "bertscore", "rouge_l")
_ROLES = ("candidate", "context", "answer")


class LoopPeer:
    """Reads a row at a time, in torch."""

    def __init__(self, reader: str) -> None:
        loaded = load_model(resolve_model(reader, role="reader"), role="reader")
        self._model, self._tokenizer = loaded.model, loaded.tokenizer

    def answers(self, questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
        """Return the best span of each context, cut where the model ends."""
        found = []
        for question, context in zip(questions, contexts, strict=True):
            encoding = self._tokenizer.encode(question, context)
            n_kept = min(len(encoding.ids), self._model.config.max_position_embeddings)
            inputs = {
                "input_ids": torch.tensor([encoding.ids[:n_kept]]),
                "token_type_ids": torch.tensor([encoding.type_ids[:n_kept]]),
            }
            with torch.inference_mode():
                output = self._model(**inputs)
            logits = torch.stack([output.start_logits[0], output.end_logits[0]], dim=1)
            inside = [i for i in range(n_kept) if encoding.sequence_ids[i] == 1]
            first, last, _ = best_span(logits, (inside[0], inside[-1] + 1))
            found.append(context[encoding.offsets[first][0] : encoding.offsets[last][1]])
        return found


def run_speed(
    *, n_rows: int, n_peer_rows: int, n_repeats: int, n_threads: int
) -> dict[str, object]:
    """Time roundtrip and the loop in turn; tokenizing counts on both sides, loading on neither."""
    torch.set_num_threads(n_threads)
    rows = load_rows(n_rows)
    values = {
        "candidate": list(rows.questions),
        "context": list(rows.contexts),
        "answer": ["the"] * len(rows),
    }
    scorer = Scorer(["roundtrip"], n_threads=n_threads)
    (plan,) = scorer.compile({role: role for role in _ROLES}).families
    assert isinstance(plan, ModelFamilyPlan)
    runner = FamilyRunner(plan, n_threads=n_threads)
    prepared = runner.layout.prepare(values)
    runner.run(prepared)
    peer = LoopPeer("reader-minilm")
    head = rows.head(n_peer_rows)
    seconds = interleave(
        {
            "ours": lambda: runner.score(values),
            "loop": lambda: peer.answers(head.questions, head.contexts),
        },
        n_repeats=n_repeats,
    )
    theirs = peer.answers(head.questions, head.contexts)
    own = [answers[0] for answers in runner.score(values)["answer"].to_pylist()]
    ours = [len(rows) / s for s in seconds["ours"]]
    loop = [len(head) / s for s in seconds["loop"]]
    stats = prepared.stats
    flops = model_flops(plan.artifact.record, prepared.work.units.lengths, n_scored=0)
    peak = max(gemm_peak(n_threads).values()) * 1e9
    wall_s = statistics.median(seconds["ours"])
    result = {
        "rows": str(rows),
        "ours_rows_per_s": ours,
        "loop_rows_per_s": loop,
        "ratio": ratio(ours, loop),
        "tokens_per_s": stats.n_tokens / wall_s,
        "padding_share": 1 - stats.n_tokens / stats.n_padded_tokens,
        "share_of_peak": flops / wall_s / peak,
        # The loop's spans are of word pieces, ours are widened to words.
        "n_containing": sum(a in b for a, b in zip(theirs, own, strict=False)),
        "n_compared": len(theirs),
    }
    ratios = result["ratio"]
    print(f"roundtrip, reader-minilm fp32: {rows}")
    for side, rates in (("ours", ours), ("per-row loop", loop)):
        low, high = min(rates), max(rates)
        print(f"  {side:<16}{statistics.median(rates):10.2f} rows/s   [{low:.2f} .. {high:.2f}]")
    print(
        f"  ratio           {ratios['of_medians']:10.2f}"
        f"          pairs [{ratios['lowest_pair']:.2f} .. {ratios['highest_pair']:.2f}]"
    )
    print(
        f"  tokens/s        {result['tokens_per_s']:10,.0f}          "
        f"padding {result['padding_share']:.1%}, {result['share_of_peak']:.1%} of the GEMM peak"
    )
    print(f"  {result['n_containing']} of {result['n_compared']} answers hold the loop's span")
    return result


def run_judged(*, n_threads: int) -> dict[str, object]:
    """Print the AUC of each metric, and of the peers' columns, for questions that are good."""
    table = pl.read_parquet(_QGEVAL)
    is_good = np.all([table[name].to_numpy() >= _LEAST for name in _RATED], axis=0)
    _, passage = np.unique(table["passage"].to_numpy(), return_inverse=True)
    rows = table.select(
        candidate="question",
        question="question",
        context="passage",
        answer="answer",
        references=pl.concat_list("reference"),
    )
    scores = Scorer(_METRICS, n_threads=n_threads).score(rows)
    columns = {name: scores[name] for name in scores.columns if scores[name].dtype.is_float()}
    columns |= {
        name: table[name]
        for name in table.columns
        if name.startswith("peer_") and table[name].dtype.is_float()
    }
    print(f"{len(rows):,} questions on {passage.max() + 1} passages, {is_good.mean():.1%} good")
    found: dict[str, object] = {"n_rows": len(rows), "share_good": float(is_good.mean())}
    for name, column in columns.items():
        values = column.cast(pl.Float64).to_numpy()
        defined = ~np.isnan(values)
        own, good = values[defined], is_good[defined]
        area = auc(positive=own[good], negative=own[~good])
        interval = percentile_interval(
            bootstrap(
                lambda weights, own=own, good=good: weighted_auc(own, good, weights),
                len(own),
                n_resamples=_N_RESAMPLES,
                seed=0,
                clusters=np.unique(passage[defined], return_inverse=True)[1],
            )
        )
        n_undefined = int((~defined).sum())
        found[name] = {
            "auc": area,
            "interval": [interval.low, interval.high],
            "undefined": n_undefined,
        }
        print(
            f"  {name:<32}{area:.3f}   [{interval.low:.3f} .. {interval.high:.3f}]"
            f"{f'   {n_undefined} undefined' if n_undefined else ''}"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roundtrip")
    parser.add_argument("--only", default="speed,judged", help="default %(default)s")
    parser.add_argument("--rows", type=int, default=200, help="default %(default)s")
    parser.add_argument("--peer-rows", type=int, default=50, help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of every side")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found: dict[str, object] = {"environment": environment(chosen.threads)}
    print(json.dumps(found["environment"]))
    for name in chosen.only.split(","):
        print(f"\n== {name} ==  load average {os.getloadavg()[0]:.2f}", flush=True)
        if name == "speed":
            found[name] = run_speed(
                n_rows=chosen.rows,
                n_peer_rows=chosen.peer_rows,
                n_repeats=chosen.repeats,
                n_threads=chosen.threads,
            )
        else:
            found[name] = run_judged(n_threads=chosen.threads)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
