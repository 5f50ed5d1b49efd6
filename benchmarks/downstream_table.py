"""Table of the downstream experiment: means, and differences with seeds and passages in the error.

Results in, numbers and Markdown out; nothing is trained here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONDITIONS = ("all", "random", "roundtrip", "gold")
PRIMARY = ("roundtrip", "random")
# Whether a filter repairs, what is lost by taking fewer, and how far people's questions are.
OTHERS = (("roundtrip", "all"), ("all", "random"), ("gold", "roundtrip"), ("gold", "all"))
LEVEL = 0.05
EFFECTS = (0.01, 0.015, 0.02, 0.03)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """F1 of one condition less another's, paired by seed and question.

    Attributes
    ----------
    mean : float
        In shares of 1, as F1 is.
    interval : list of float
        Of 95 %, for other seeds and other passages.
    p_value : float
        Of two sides.
    sd_passages, sd_seeds : float
        Standard errors of the mean that C's passages and the seeds account for.
    freedom : float
        Degrees of freedom of Student's t.
    """

    mean: float
    interval: list[float]
    p_value: float
    sd_passages: float
    sd_seeds: float
    freedom: float


def difference(left: FloatArray, right: FloatArray, *, passages: NDArray[np.intp]) -> Difference:
    """Return how a condition differs from another.

    Both seeds and passages are drawn, so their variances add; degrees of freedom by Satterthwaite.

    Parameters
    ----------
    left, right : float ndarray of shape (n_seeds, n_questions)
        F1 of each question.
    passages : int ndarray of shape (n_questions,)
        Number of each question's passage, from 0.
    """
    gains = left - right
    n_seeds = len(gains)
    of_question = gains.mean(axis=0)
    mean = float(of_question.mean())
    n, sums = np.bincount(passages), np.bincount(passages, weights=of_question)
    n_passages = len(n)
    of_passages = n_passages / (n_passages - 1) * ((sums - mean * n) ** 2).sum() / n.sum() ** 2
    of_seeds = float(gains.mean(axis=1).var(ddof=1)) / n_seeds
    freedom, error = _error(of_passages, n_passages, of_seeds, n_seeds)
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Difference(
        mean, [mean - half, mean + half], p_value, math.sqrt(of_passages), math.sqrt(of_seeds),
        freedom,
    )  # fmt: skip


def _error(
    of_passages: float, n_passages: int, of_seeds: float, n_seeds: int
) -> tuple[float, float]:
    """Return degrees of freedom and standard error of a sum of two variances."""
    total = of_passages + of_seeds
    if not total:
        return float(n_seeds - 1), 0.0
    parts = of_passages**2 / (n_passages - 1) + of_seeds**2 / (n_seeds - 1)
    return total**2 / parts, math.sqrt(total)


def power(found: Difference, effect: float) -> float:
    """Return the chance that the test finds a true difference of so much, with errors as found.

    Examples
    --------
    >>> found = Difference(0.0, [-0.02, 0.02], 1.0, 0.006, 0.008, 20.0)
    >>> [round(power(found, effect), 2) for effect in (0.0, 0.02, 0.03)]
    [0.05, 0.48, 0.81]
    """
    quantile = stats.t.ppf(1 - LEVEL / 2, found.freedom)
    moved = effect / math.hypot(found.sd_passages, found.sd_seeds)
    above, below = (stats.nct.sf(quantile, found.freedom, way * moved) for way in (1, -1))
    return float(above + below)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    corrected = np.minimum(np.maximum.accumulate(np.take(p_values, order) * factors), 1.0)
    found = np.empty(len(p_values))
    found[order] = corrected
    return [float(value) for value in found]


def summarize(found: Mapping[str, Mapping[str, Any]], *, contexts: NDArray[Any]) -> dict[str, Any]:
    """Return means of the conditions, and how they differ.

    Parameters
    ----------
    found : mapping of seed to mapping of condition to result
    contexts : ndarray of str
        Passages of C's questions.
    """
    passages = np.unique(contexts, return_inverse=True)[1]
    scores = {
        name: np.array([own[name]["rows"]["f1"] for own in found.values()]) for name in CONDITIONS
    }
    conditions = {
        name: {
            "n_rows": own[0]["n_rows"],
            "roundtrip": [one["roundtrip"] for one in own if "roundtrip" in one],
            "em": [one["em"] for one in own],
            "f1": [one["f1"] for one in own],
        }
        for name in CONDITIONS
        for own in [[by_name[name] for by_name in found.values()]]
    }
    pairs = (PRIMARY, *OTHERS)
    each = {pair: difference(*(scores[name] for name in pair), passages=passages) for pair in pairs}
    corrected = holm([each[pair].p_value for pair in OTHERS])
    differences = {" - ".join(pair): asdict(own) for pair, own in each.items()}
    for pair, p_value in zip(OTHERS, corrected, strict=True):
        differences[" - ".join(pair)]["p_holm"] = p_value
    return {
        "n_seeds": len(found),
        "n_passages_c": int(passages.max()) + 1,
        "conditions": conditions,
        "differences": differences,
        "power": {f"{effect:.3f}": power(each[PRIMARY], effect) for effect in EFFECTS},
    }


def table(summary: Mapping[str, Any]) -> str:
    """Return the summary as tables of Markdown, in percent."""
    lines = [
        "| trained on | questions | EM | F1 | lowest and highest F1 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, own in summary["conditions"].items():
        em, f1 = (100 * float(np.mean(own[key])) for key in ("em", "f1"))
        ends = f"{100 * min(own['f1']):.1f}, {100 * max(own['f1']):.1f}"
        lines.append(f"| {name} | {own['n_rows']:,} | {em:.1f} | {f1:.1f} | {ends} |")
    lines += ["", "| F1 less | points, 95 % interval | p | by Holm |", "| --- | --- | --- | --- |"]
    for name, own in summary["differences"].items():
        low, high = (100 * end for end in own["interval"])
        corrected = _p_value(own["p_holm"]) if "p_holm" in own else "the one test"
        mean = f"{100 * own['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"
        lines.append(f"| {name} | {mean} | {_p_value(own['p_value'])} | {corrected} |")
    found = ", ".join(f"{100 * float(k):.1f}: {own:.2f}" for k, own in summary["power"].items())
    return "\n".join([*lines, "", f"chance to find a true difference of so many points: {found}"])


def _p_value(p_value: float) -> str:
    return f"{p_value:.3f}" if p_value >= 0.0005 else "< 0.001"
