"""Benchmark of filter's labels: what columns are worth, alone and together, and what is certified.

QGEval's and quiz_design's questions with people's verdicts. Areas under the curve are of passages
held out, ten folds: of every score column that applies, of the six that a rank is learned from
here, together, and of the scores that QGEval's authors publish. Certificates: so many labels are
drawn at random, 500 times; how much of the corpus is certified, how often nothing is, how often the
certified part is not as good as promised, and how often the naive rule's is not: the largest share
whose labels look good enough. Ranks need no reference. A learned rank learns from a third of the
labels and is certified by the others; one that is learned elsewhere saw the verdicts of nine tenths
of the passages, never a row's own, and is certified by all labels. Of a second sheet 15 % of the
labels say where in the ranking the others are drawn.

    python -m benchmarks.filter_labels --scores docs/evidence/scores --json FILE

Scoring takes ten minutes on a core, and nothing where the folder has the scores. Prints tables;
docs/evidence/filter_labels.json is such a file, and docs/filter.md repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.judged_sets import DATA, SETS, JudgedSet, metrics_of
from benchmarks.label_draws import (
    RankedRows,
    learned_elsewhere,
    peer_scores,
    read_questions,
)
from benchmarks.measure import environment
from benchmarks.validity import score, score_columns
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.stats.certificate import Certificate
from qaeval_core.stats.learned_rank import LearnedRank, fit_rank, is_learning

# What a rank is learned from.
COLUMNS = (
    "roundtrip",
    "roundtrip_confidence",
    "roundtrip_null_margin",
    "qrelscore",
    "bertscore_free_precision",
    "q_bleu_free",
)
SECOND = "`roundtrip`, second sheet"
LEARNED = "learned"
ELSEWHERE = "six columns, learned elsewhere"
PEERS = "peers' six scores, learned elsewhere"
TARGETS = {"qgeval": (0.80, 0.85), "quiz_design": (0.50, 0.55, 0.80)}
N_LABELS = (400, 800)
_N_DRAWS = 500
_CONFIDENCE = 0.95
_DELTA = 0.05
# Of labels that say where the others are drawn.
_PILOT = 0.15

FloatArray = NDArray[np.float64]


class Corpus:
    """Scores and verdicts of a judged set, and what peers score it."""

    def __init__(
        self, table: pl.DataFrame, metrics: Mapping[str, str], peers: Mapping[str, FloatArray]
    ) -> None:
        self.metrics, self.peers = metrics, dict(peers)
        self.scores = {
            name: table[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in metrics
        }
        self.six = {name: self.scores[name] for name in COLUMNS}
        self.is_good = table["is_good"].to_numpy()
        groups, self.group = np.unique(table["cluster"].to_numpy(), return_inverse=True)
        self.group_names = np.array([f"passage {i}" for i in range(len(groups))])

    @classmethod
    def read(cls, judged: JudgedSet, *, folder: Path | None, n_threads: int) -> Corpus:
        """Score the questions, or take the scores that the folder has."""
        metrics = metrics_of(judged)
        table = score(judged, metrics=metrics, n_threads=n_threads, folder=folder)
        peers = peer_scores(read_questions(DATA)) if judged.name == "qgeval" else {}
        return cls(table, score_columns(metrics), peers)

    @property
    def free(self) -> list[str]:
        """The columns that need no reference: those that can rank a corpus without any."""
        return [name for name, own in self.metrics.items() if is_free(own)]

    def learn(
        self, scores: Mapping[str, FloatArray], rows: NDArray[np.intp] | slice, *, seed: int
    ) -> LearnedRank:
        """Return what some rows' verdicts teach of some columns."""
        return fit_rank(
            np.column_stack([values[rows] for values in scores.values()]),
            dict.fromkeys(scores, ""),
            is_good=self.is_good[rows],
            groups=self.group[rows],
            seed=seed,
        )

    def learned_elsewhere(self, scores: dict[str, FloatArray]) -> FloatArray:
        """Return the rank of a combination that never saw a row's passage."""
        return learned_elsewhere(scores, is_good=self.is_good, passages=self.group)


def is_free(metric: str) -> bool:
    """Return whether a metric reads no reference.

    Examples
    --------
    >>> is_free("roundtrip"), is_free("bertscore")
    (True, False)
    """
    return "references" not in METRICS[metric].roles


def areas(corpus: Corpus) -> dict[str, Any]:
    """Return the area under the curve of each column, and of combinations, passages held out."""
    everything = slice(None)
    # Folds depend on verdicts and passages alone: all areas are of the same pairs.
    alone = corpus.learn(corpus.scores, everything, seed=0).columns
    found: dict[str, Any] = {
        "columns": {
            column.name: {
                "auc": round(column.single_auc or 0.0, 4),
                "needs_reference": not is_free(corpus.metrics[column.name]),
                "undefined": column.n_missing,
            }
            for column in alone
        }
    }
    free = {name: corpus.scores[name] for name in corpus.free}
    for name, scores in {"learned": corpus.six, "learned_from_all_free": free}.items():
        found[name] = {"of": list(scores), "auc": _cv_auc(corpus.learn(scores, everything, seed=0))}
    if corpus.peers:
        rank = corpus.learn(corpus.peers, everything, seed=0)
        singles = {column.name: round(column.single_auc or 0.0, 4) for column in rank.columns}
        found["peers"] = {"columns": singles, "learned": _cv_auc(rank)}
    return found


def _cv_auc(rank: LearnedRank) -> float:
    assert rank.cv_auc is not None
    return round(rank.cv_auc, 4)


def ranks(corpus: Corpus, auc: Mapping[str, Any]) -> dict[str, FloatArray | None]:
    """Return a value of each row, by the name of the rank; None where each draw learns its own.

    The best column is the best on all verdicts: who labels a corpus does not know it.
    """
    best = max(corpus.free, key=lambda name: auc["columns"][name]["auc"])
    found: dict[str, FloatArray | None] = {
        f"`{name}`": corpus.scores[name] for name in dict.fromkeys(["roundtrip", best])
    }
    found |= {LEARNED: None, ELSEWHERE: corpus.learned_elsewhere(corpus.six)}
    if corpus.peers:
        found[PEERS] = corpus.learned_elsewhere(corpus.peers)
    return found


def certified(
    corpus: Corpus,
    values: FloatArray | None,
    *,
    n_labels: int,
    targets: Sequence[float],
    has_second: bool = False,
) -> list[dict[str, float]]:
    """Return what draws of labels certify at each target; without values each learns a rank.

    With ``has_second`` a part of them says where the others are drawn.
    """
    rng = np.random.default_rng(0)  # Every rank is judged on the same draws.
    outcomes: dict[float, list[_Outcome]] = {target: [] for target in targets}
    ranked = None if values is None else RankedRows(values, corpus.is_good)
    for draw in range(_N_DRAWS):
        rows = rng.choice(len(corpus.is_good), n_labels, replace=False)
        own, learned_from = rows, None
        if values is None:
            learns = is_learning(map(str, rows), seed=draw)
            own, learned_from = rows[~learns], rows[learns]
            learned = corpus.learn(corpus.six, learned_from, seed=draw)
            scores = learned.score(np.column_stack(list(corpus.six.values())))
            ranked = RankedRows(scores, corpus.is_good)
        assert ranked is not None
        for target in targets:
            last = None
            if has_second:
                n_pilot = round(_PILOT * n_labels)
                pilot = ranked.certify(rows[:n_pilot], target=target, delta=_DELTA)
                own, last = ranked.second_sheet(pilot, n_labels - n_pilot, rng)
            found = ranked.certify(
                own, target=target, delta=_DELTA, last=last, learned_from=learned_from
            )
            outcomes[target].append(_outcome(found, ranked))
    return [
        {"target": target, "n_labels": n_labels, **_rates(own)} for target, own in outcomes.items()
    ]


class _Outcome(NamedTuple):
    """Of a draw: the share certified and the one that looks good enough; 0 for none."""

    kept: float
    is_missed: bool
    naive_kept: float
    is_naive_missed: bool


def _outcome(found: Certificate, ranked: RankedRows) -> _Outcome:
    """Return what a draw came to."""
    kept = found.chosen.share if found.chosen else 0.0
    looks = [
        j
        for j, own in enumerate(found.shares)
        if own.precision is not None and own.precision >= found.target
    ]
    naive = max(looks, default=None)
    if naive is None:
        return _Outcome(kept, ranked.is_missed(found), 0.0, False)
    is_naive_missed = bool(ranked.precisions[naive] < found.target)
    return _Outcome(kept, ranked.is_missed(found), found.shares[naive].share, is_naive_missed)


def _rates(outcomes: Sequence[_Outcome]) -> dict[str, float]:
    kept, missed, naive_kept, naive_missed = np.array(outcomes, dtype=np.float64).T
    return {
        "kept": round(float(kept.mean()), 4),
        "nothing": float((kept == 0).mean()),
        "missed": float(missed.mean()),
        "naive_kept": round(float(naive_kept.mean()), 4),
        "naive_missed": float(naive_missed.mean()),
    }


def percent(share: float) -> str:
    """Return a share as the pages print it: with a decimal where it would look like none or all.

    Examples
    --------
    >>> percent(0.0), percent(0.004), percent(0.164), percent(0.994), percent(1.0)
    ('0 %', '0.4 %', '16 %', '99.4 %', '100 %')
    """
    is_plain = share in (0.0, 1.0) or 0.01 <= share < 0.99
    return f"{100 * share:.{0 if is_plain else 1}f} %"


def certificate_row(one: Mapping[str, Any]) -> str:
    """Return the line of a table that says what so many labels certify."""
    rates = (one["kept"], one["nothing"], one["missed"], one["naive_missed"])
    target = fraction(one["target"], 2)
    return f"| {one['rank']} | {target} | {one['n_labels']} | {' | '.join(map(percent, rates))} |"


def fraction(value: float, n_digits: int = 3) -> str:
    """Return a number below 1 without its zero.

    Examples
    --------
    >>> fraction(0.70643), fraction(0.8, 2)
    ('.706', '.80')
    """
    return f"{value:.{n_digits}f}".removeprefix("0")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filter_labels")
    parser.add_argument("--sets", default=",".join(TARGETS), help="default %(default)s")
    parser.add_argument("--scores", type=Path, help="folder for scores; those there are taken")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write all numbers here; a set not run stays")
    chosen = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    if chosen.json and chosen.json.is_file():
        found = json.loads(chosen.json.read_text(encoding="utf-8"))
    for name in chosen.sets.split(","):
        judged = SETS[name]()
        assert isinstance(judged, JudgedSet)
        measured_on = environment(chosen.threads)
        print(f"\n{name}: {json.dumps(measured_on)}")
        corpus = Corpus.read(judged, folder=chosen.scores, n_threads=chosen.threads)
        found[name] = {"environment": measured_on, **run(corpus, targets=TARGETS[name])}
        if chosen.json:
            chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def run(corpus: Corpus, *, targets: Sequence[float]) -> dict[str, Any]:
    """Return areas and certificates of a corpus, and print them as they come."""
    auc = areas(corpus)
    own: dict[str, Any] = {
        "n_rows": len(corpus.is_good),
        "n_passages": len(corpus.group_names),
        "share_good": round(float(corpus.is_good.mean()), 4),
        "n_draws": _N_DRAWS,
        "confidence": _CONFIDENCE,
        "auc": auc,
        "certified": [],
    }
    print(f"\n{own['n_rows']:,} questions, {own['share_good']:.1%} good")
    print("| column | AUC |\n| --- | --- |")
    for column, figures in auc["columns"].items():
        print(f"| `{column}` | {fraction(figures['auc'])} |")
    print(json.dumps({name: figures for name, figures in auc.items() if name != "columns"}))
    print("\n| rank | precision | labels | kept | nothing certified | missed | naive missed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    chosen = [(rank, values, False) for rank, values in ranks(corpus, auc).items()]
    chosen.insert(1, (SECOND, corpus.scores["roundtrip"], True))
    for rank, values, has_second in chosen:
        found = [
            {"rank": rank, **one}
            for n_labels in N_LABELS
            for one in certified(
                corpus, values, n_labels=n_labels, targets=targets, has_second=has_second
            )
        ]
        for one in sorted(found, key=itemgetter("target")):
            own["certified"].append(one)
            print(certificate_row(one), flush=True)
    return own


if __name__ == "__main__":
    main()
