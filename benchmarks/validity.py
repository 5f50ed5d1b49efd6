"""Benchmark of validity: how far each metric agrees with people, on every judged set at hand.

Scores of `Scorer` beside people's verdicts: Pearson, Spearman and AUC by the code of
``qaeval correlate``, with intervals that draw whole contexts; where people only wrote questions in
new words, what a metric takes off them. ``python -m benchmarks.validity`` scores, judges, times,
and writes the page docs/validity.md and the record behind it, docs/evidence/validity.json:

    python -m benchmarks.validity --only judged --scores docs/evidence/scores   # hours without them
    python -m benchmarks.validity --only speed                            # on a calm machine
    python -m benchmarks.validity --only page

A section that is not asked for stays as the record has it. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.against_best import by_family
from benchmarks.judged_sets import SETS, JudgedSet, RewordedSet, metrics_of
from benchmarks.measure import environment
from benchmarks.training_texts import ADAPTERS, seen_texts
from benchmarks.validity_page import PAGE, RECORD, load_record, page, write_record
from qaeval_core import Scorer
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.models.cpu import available_cpus
from qaeval_core.stats.bootstrap import percentile_interval, scaled_bootstrap
from qaeval_core.stats.ranking import weighted_auc
from qaeval_core.study.inputs import cluster_codes
from qaeval_core.study.records import Statistic, StudyRequest
from qaeval_core.study.run import run_study

N_RESAMPLES = 1000
_SEED = 0
_PACKAGES = ("scipy", "polars", "tokenizers", "nltk")
# A difference below this is rounding: scores of models have 32 bits.
_NO_DIFFERENCE = 1e-6
# A metric is timed on as many rows as take it this long, and no fewer than these.
_TIMED_S = 2.0
_FEWEST_TIMED = 20
_N_REPEATS = 3

FloatArray = NDArray[np.float64]


def score_columns(metrics: Iterable[str]) -> dict[str, str]:
    """Return the columns that hold scores, and the metric of each.

    Raw parts are left out: without a baseline they are the parts themselves.
    """
    return {
        f"{name}_{column.name}" if column.name else name: name
        for name in metrics
        for column in METRICS[name].columns
        if column.is_score and not column.name.endswith("_raw")
    }


def score(
    judged: JudgedSet | RewordedSet,
    *,
    metrics: Sequence[str],
    n_threads: int,
    folder: Path | None = None,
) -> pl.DataFrame:
    """Return the scores of a set beside what judges them; those that the folder has are taken."""
    path = folder / f"{judged.name}.parquet" if folder is not None else None
    if path is not None and path.exists():
        found = pl.read_parquet(path)
    else:
        found = _scored(judged, metrics, n_threads=n_threads)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            found.write_parquet(path)
    beside = judged.rows.drop(judged.roles())
    return pl.concat([beside, found.select(list(score_columns(metrics)))], how="horizontal")


def _scored(
    judged: JudgedSet | RewordedSet, metrics: Sequence[str], *, n_threads: int
) -> pl.DataFrame:
    """Return the score columns of all rows."""
    found = Scorer(metrics, n_threads=n_threads).score(judged.rows.select(judged.roles()))
    assert isinstance(found, pl.DataFrame)
    return found.select(list(score_columns(metrics)))


def agreement(
    judged: JudgedSet, scores: pl.DataFrame, *, metrics: Sequence[str], n_resamples: int
) -> dict[str, Any]:
    """Return how far each column of scores agrees with people.

    Parameters
    ----------
    scores : DataFrame
        Of `score`.
    """
    columns = score_columns(metrics)
    # No metadata say which way a column points: all of these point up.
    assert all(METRICS[name].higher_is_better for name in metrics)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.parquet"
        scores.write_parquet(path)
        study = run_study(
            StudyRequest(
                scores=(str(path),),
                human=("human",),
                metrics=tuple(columns),
                auc="is_good",
                cluster="cluster",
                n_resamples=n_resamples,
                seed=_SEED,
            )
        )
    found: dict[str, dict[str, Any]] = {
        name: {"metric": columns[name], "undefined": int(scores[name].is_null().sum())}
        for name in columns
    }
    for one in (*study.of("correlations"), *study.of("auc")):
        found[one.metric][one.coefficient or "auc"] = _figure(one)
    return {
        "behind_best": {"auc": _areas_behind(scores, columns, n_resamples=n_resamples)},
        "n_rows": scores.height,
        "n_clusters": scores["cluster"].n_unique(),
        "share_good": round(float(scores["is_good"].mean()), 4),
        "columns": {
            name: {key: own[key] for key in own if key != "kendall"} for name, own in found.items()
        },
    }


def _areas_behind(
    scores: pl.DataFrame, columns: Mapping[str, str], *, n_resamples: int
) -> dict[str, dict[str, list[float]]]:
    """Return how far each metric's AUC is from the best one's, on the same resamples."""
    good = scores["is_good"].to_numpy()
    own = [scores[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in columns]

    def areas(weights: FloatArray) -> FloatArray:
        # Undefined rows are left out of that column's figure alone, as on the page.
        return np.stack(
            [
                weighted_auc(values[there], good[there], weights[there])
                for values in own
                for there in [~np.isnan(values)]
            ]
        )

    values = areas(np.ones((scores.height, 1)))[:, 0]
    resampled = scaled_bootstrap(
        areas, values, scores.height, n_resamples=n_resamples, seed=_SEED,
        clusters=cluster_codes(scores, "cluster"),
    )  # fmt: skip
    return by_family(columns, values, resampled)


def _figure(one: Statistic) -> list[float] | None:
    return None if np.isnan(one.value) else _rounded(one.value, one.low, one.high)


def _rounded(*values: float) -> list[float]:
    return [round(float(value), 4) for value in values]


def rewording(
    judged: RewordedSet, scores: pl.DataFrame, *, metrics: Sequence[str], n_resamples: int
) -> dict[str, Any]:
    """Return what each column of scores takes off questions that people wrote in new words.

    The original, the new ones and a wrong one, which is the original of another passage, are scored
    against the same context, answer and reference.
    """
    kinds = {
        kind: scores.filter(kind=kind).sort("pair", maintain_order=True)
        for kind in ("original", "new", "wrong")
    }
    new = kinds["new"]
    each = len(new) // len(kinds["original"])
    found, drawn = {}, []
    for name, metric in score_columns(metrics).items():
        figures, values, resampled = _change(
            new[name].cast(pl.Float64).fill_null(np.nan).to_numpy(),
            _repeated(kinds["original"][name], each),
            _repeated(kinds["wrong"][name], each),
            clusters=cluster_codes(new, "cluster"),
            n_resamples=n_resamples,
        )
        found[name] = {"metric": metric, **figures}
        # Higher is better, and of what has no scale no cost is known.
        sign = np.array([1.0, -1.0 if "cost" in figures else np.nan])
        drawn.append((sign * values[2:4], sign[:, None] * resampled[2:4]))
    values, resampled = (np.stack(own, axis=1) for own in zip(*drawn, strict=True))
    columns = score_columns(metrics)
    return {
        "behind_best": {
            "beats_wrong": by_family(columns, values[0], resampled[0]),
            "cost": by_family(columns, values[1], resampled[1]),
        },
        "n_rows": len(new),
        "n_clusters": scores["cluster"].n_unique(),
        "columns": found,
    }


def _repeated(column: pl.Series, each: int) -> FloatArray:
    return np.repeat(column.cast(pl.Float64).fill_null(np.nan).to_numpy(), each)


def _change(
    new: FloatArray,
    original: FloatArray,
    wrong: FloatArray,
    *,
    clusters: NDArray[np.intp],
    n_resamples: int,
) -> tuple[dict[str, Any], FloatArray, FloatArray]:
    """Return the paired difference, the share that falls, and both beside those of wrong ones.

    Returns
    -------
    (figures, values of shape (5,), resampled values of shape (5, n_resamples))
    """
    defined = ~np.isnan(new + original + wrong)
    change = np.where(defined, new - original, 0.0)
    loss = np.where(defined, original - wrong, 0.0)
    falls = (defined & (change < -_NO_DIFFERENCE)).astype(np.float64)
    gap = new - wrong
    wins = np.where(np.abs(gap) <= _NO_DIFFERENCE, 0.5, gap > 0)
    sides = np.stack([change, falls, np.where(defined, wins, 0.0), loss, defined])

    def ratios(weights: FloatArray) -> FloatArray:
        changed, fallen, won, lost, n = sides @ weights
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.stack([changed / n, fallen / n, won / n, -changed / lost, lost / n])

    values = ratios(np.ones((len(new), 1)))[:, 0]
    resampled = scaled_bootstrap(
        ratios, values, len(new), n_resamples=n_resamples, seed=_SEED, clusters=clusters
    )
    bounded = resampled.copy()
    bounded[1:3] = bounded[1:3].clip(0.0, 1.0)  # Shares: draws were moved away from their value.
    edges = [percentile_interval(side) for side in bounded]
    figures = {
        name: _rounded(value, edge.low, edge.high)
        for name, value, edge in zip(
            ("change", "falls", "beats_wrong", "cost"), values[:4], edges[:4], strict=True
        )
    }
    # What takes nothing off a wrong question has no scale to say what it takes off a good one.
    if not edges[4].low > 0:
        figures.pop("cost")
    return {"undefined": int((~defined).sum()), **figures}, values, resampled


def run_judged(
    *, names: Sequence[str], n_threads: int, n_resamples: int, folder: Path | None
) -> dict[str, Any]:
    """Score and judge sets."""
    found: dict[str, Any] = {}
    for name in names:
        judged = SETS[name]()
        metrics = metrics_of(judged)
        started = time.perf_counter()
        scores = score(judged, metrics=metrics, n_threads=n_threads, folder=folder)
        if isinstance(judged, JudgedSet):
            own = agreement(judged, scores, metrics=metrics, n_resamples=n_resamples)
            own |= {key: getattr(judged, key) for key in ("human", "good", "cluster")}
        else:
            own = rewording(judged, scores, metrics=metrics, n_resamples=n_resamples)
        models = [ADAPTERS[metric] for metric in metrics if metric in ADAPTERS]
        seen = {model: seen_texts(judged, model) for model in models}
        found[name] = {"title": judged.title, "data": judged.data, "seen": seen, **own}
        print(f"{name}: {own['n_rows']:,} rows, {time.perf_counter() - started:.0f} s", flush=True)
        for column, figures in own["columns"].items():
            print(f"  {column:<28}{figures}")
    return found


def run_speed(*, names: Sequence[str], n_threads: int) -> dict[str, Any]:
    """Time every metric alone on every set that it applies to; models are loaded before."""
    found: dict[str, Any] = {}
    for name in names:
        judged = SETS[name]()
        rows = judged.rows.select(judged.roles())
        found[name] = {}
        for metric in metrics_of(judged):
            n_rows, rate = _rate(metric, rows, n_threads=n_threads)
            found[name][metric] = {"rows": n_rows, "rows_per_s": float(f"{rate:.3g}")}
            load = os.getloadavg()[0]
            print(f"{name:<16}{metric:<18}{rate:12,.1f} rows/s of {n_rows:,}, load {load:.1f}")
    return found


def _rate(metric: str, rows: pl.DataFrame, *, n_threads: int) -> tuple[int, float]:
    scorer = Scorer([metric], n_threads=n_threads)

    def seconds(n_rows: int) -> float:
        started = time.perf_counter()
        scorer.score(rows.head(n_rows))
        return time.perf_counter() - started

    seconds(_FEWEST_TIMED)  # loads the model
    first = seconds(_FEWEST_TIMED)
    if first > _TIMED_S:
        return _FEWEST_TIMED, _FEWEST_TIMED / min(first, seconds(_FEWEST_TIMED))
    n_rows = int(min(_FEWEST_TIMED * _TIMED_S / first, rows.height))
    # The fastest: others use the machine, and nothing makes a call faster than it is.
    return n_rows, n_rows / min(seconds(n_rows) for _ in range(_N_REPEATS))


def _environment(n_threads: int) -> dict[str, Any]:
    found = environment(n_threads)
    versions = dict(found["versions"]) if isinstance(found["versions"], Mapping) else {}
    found["load_average"] = round(os.getloadavg()[0], 2)
    found["versions"] = {**versions, **{name: version(name) for name in _PACKAGES}}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections and write record and page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validity")
    parser.add_argument("--only", default="judged,speed,page", help="default %(default)s")
    parser.add_argument("--sets", default=",".join(SETS), help="default %(default)s")
    parser.add_argument("--scores", type=Path, help="keep scores here, and take those that are")
    parser.add_argument("--resamples", type=int, default=N_RESAMPLES, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="default all")
    chosen = parser.parse_args(arguments)
    names, sections = chosen.sets.split(","), chosen.only.split(",")
    record = load_record()
    if "judged" in sections:
        record["n_resamples"] = chosen.resamples
        record["judged_on"] = _environment(chosen.threads)
        judged = run_judged(
            names=names,
            n_threads=chosen.threads,
            n_resamples=chosen.resamples,
            folder=chosen.scores,
        )
        for own in judged.values():
            own["revision"] = record["judged_on"]["revision"]
        record["sets"] = record.get("sets", {}) | judged
    if "speed" in sections:
        before = os.getloadavg()[0]
        rates = run_speed(names=names, n_threads=chosen.threads)
        record["timed_on"] = _environment(chosen.threads) | {"load_before": round(before, 2)}
        record["speed"] = record.get("speed", {}) | rates
    for key in ("sets", "speed"):
        record[key] = {name: record[key][name] for name in SETS if name in record.get(key, {})}
    write_record(record)
    PAGE.write_text(page(record), encoding="utf-8")
    print(f"written: {RECORD}, {PAGE}")


if __name__ == "__main__":
    main()
