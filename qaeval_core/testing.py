"""Testing: whether a metric keeps the contract that runs rely on, for whoever writes one.

::

    from qaeval_core.testing import check_metric

    def test_my_metric():
        check_metric(MyMetric())
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.metrics.base import AnyMetric, Column, Metric, Scores
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.planning.run_plan import CompiledRun, InstancePlan
from qaeval_core.running.score_rows import score_instance
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.scorer import Scorer

RoleValues = Mapping[str, object]
# Below it a difference is one of roundings, which depend on the batch of a model.
TOLERANCE = 1e-4

_TEXTS = (
    ("Who wrote the play?", "It was written by Ann Hill in 1902.", "Ann Hill", "Ann Hill"),
    ("When was it shown?", "It was shown in May 1904, in Leeds.", "in May 1904", "May 1904"),
    ("Where does the river end?", "The river ends in a lake north of Ulm.", "a lake", "the lake"),
    ("How many bridges are there?", "The town has seven bridges.", "seven bridges", "seven"),
    ("What color is the gate?", "Its gate is green, its roof red.", "red", "green"),
    ("Wie heißt der Berg?", "Der Berg heißt Watzmann.", "Watzmann", "der Watzmann"),
)


class MetricCheckError(AssertionError):
    """A metric breaks its contract.

    Attributes
    ----------
    check : str
        pickling, signature, shape, type, nan_score, undefined_reason, row_order or
        batch_independence.
    """

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


def example_rows() -> list[dict[str, object]]:
    """Return rows with a value of every role, of which the last three are odd ones.

    Their candidate has no word, there are no references, and all texts are the same.
    """
    rows = [
        _row(question, context, answer, candidate, [answer, f"the answer is {answer}"])
        for question, context, answer, candidate in _TEXTS
    ]
    rows.append({**_row(*_TEXTS[0], ["Ann Hill"]), "candidate": "..."})
    rows.append(_row(*_TEXTS[1], []))
    rows.append(_row("same", "same", "same", "same", ["same"]))
    return rows


def _row(
    question: str, context: str, answer: str, candidate: str, references: list[str]
) -> dict[str, object]:
    return {
        "question": question,
        "context": context,
        "answer": answer,
        "candidate": candidate,
        "references": references,
        "answer_type": None,
        "candidate_opinion": None,
        "reference_opinions": None,
        "entities": None,
        "predicted_spans": [[0, 1]],
        "gold_spans": [[0, 2]],
    }


def check_metric(
    metric: AnyMetric | Callable[..., Any],
    *,
    settings: Mapping[str, object] | None = None,
    rows: Sequence[RoleValues] | None = None,
) -> None:
    """Check that a metric keeps the contract: what it returns, and that rows do not meet.

    Parameters
    ----------
    metric : Metric or function
    settings : mapping, optional
        Of the instance; default the metric's own.
    rows : sequence of mapping of role to value, optional
        At least three; default `example_rows`. Of these, six must not be undefined in silence.

    Raises
    ------
    MetricCheckError
        By the name of the first check that fails.
    QAEvalError
        If the metric cannot be run: settings, models or roles are missing.

    Examples
    --------
    >>> from qaeval_core.metrics.f1 import F1
    >>> check_metric(F1())
    """
    own = metric if isinstance(metric, Metric) else FunctionMetric(metric)
    given = example_rows() if rows is None else list(rows)
    copied = _pickled(own)
    first, again = (_Trial(each, settings or {}) for each in (own, copied))
    if first.signature != again.signature:
        raise MetricCheckError(
            "signature", f"two of a copy differ: {first.signature}, {again.signature}"
        )
    whole = first.columns(given)
    backwards = first.columns(given[::-1])
    for name, values in whole.items():
        if not _are_equal(values, backwards[name][::-1]):
            _fail_by_order(name, values, backwards[name])
    alone = [first.columns([row]) for row in given]
    for name, values in whole.items():
        single = np.concatenate([own[name] for own in alone])
        if not _are_equal(values, single):
            at = next(i for i in range(len(values)) if not _are_equal(values[[i]], single[[i]]))
            raise MetricCheckError(
                "batch_independence",
                f"{name or own.name} of row {at} is {single[at]} alone, {values[at]} with others",
            )


class _Trial:
    """A metric under its own name, and what it returns of rows."""

    def __init__(self, metric: AnyMetric, settings: Mapping[str, object]) -> None:
        self._metric = metric
        self._scorer = Scorer({metric.name: {**settings, "metric": metric}})
        roles = dict.fromkeys([*metric.roles_of(self._settings), *metric.optional_roles])
        self._run: CompiledRun = self._scorer.compile({role: role for role in roles})

    @property
    def _settings(self) -> Any:
        return self._scorer.config.metrics[self._metric.name]

    @property
    def signature(self) -> str:
        return str(self._plan.signature)

    @property
    def _plan(self) -> InstancePlan:
        return self._run.instances[0]

    def columns(self, rows: Sequence[RoleValues]) -> dict[str, NDArray[Any]]:
        """Return the columns of rows, and their reasons; of shape (n_rows,) each."""
        roles = dict.fromkeys(role for plan in self._run.families for role in plan.columns)
        values = {role: [row.get(role) for row in rows] for role in roles}
        tables = self._scorer.statistics(self._run, values)
        good = _good(tables.values(), len(rows))
        kept = {key: table.filter(pa.array(good)) for key, table in tables.items()}
        scores = score_instance(self._plan, kept)
        n_rows = int(good.sum())
        found = {
            own.name: _checked(self._metric.name, own, scores, n_rows) for own in self._plan.columns
        }
        self._check_reasons(
            scores,
            found.get(""),
            [row for row, own in zip(rows, good.tolist(), strict=True) if own],
        )
        return {**found, "reason": np.array(scores.reasons, dtype=object)}

    def _check_reasons(
        self, scores: Scores, main: NDArray[Any] | None, rows: Sequence[RoleValues]
    ) -> None:
        if len(scores.reasons) != len(rows):
            raise MetricCheckError("shape", f"{len(scores.reasons)} reasons of {len(rows)} rows")
        if main is None:
            return
        for i, (value, reason) in enumerate(zip(main, scores.reasons, strict=True)):
            if reason is not None and not isinstance(reason, str):
                raise MetricCheckError("type", f"the reason of row {i} is {reason!r}, no text")
            if not np.isnan(value) or reason is not None:
                continue
            if _is_ordinary(rows[i]):
                raise MetricCheckError("nan_score", f"row {i} has texts, the score NaN, no reason")
            raise MetricCheckError("undefined_reason", f"row {i} is undefined without a reason")


def _good(tables: Any, n_rows: int) -> NDArray[np.bool_]:
    """Return which rows no family has quarantined."""
    good = np.ones(n_rows, dtype=bool)
    for table in tables:
        good &= np.array([own is None for own in table.column(QUARANTINE_REASON).to_pylist()])
    return good


def _is_ordinary(row: RoleValues) -> bool:
    """Return whether every text of a row has a letter or digit, and every list a text."""
    texts: list[object] = []
    for role in ("candidate", "references", "question", "context", "answer"):
        value = row.get(role, "a")
        texts += (value or [""]) if isinstance(value, list) else [value]
    return all(any(map(str.isalnum, str(text))) for text in texts)


def _checked(metric: str, column: Column, scores: Scores, n_rows: int) -> NDArray[Any]:
    """Return a column as an array; raise where it is none of its kind."""
    name = f"{metric}_{column.name}" if column.name else metric
    if column.name not in scores.columns:
        raise MetricCheckError("shape", f"{name} is declared, and not returned")
    given = scores.columns[column.name]
    if column.is_number:
        values = np.asarray(given)
        if values.dtype.kind not in ("iu" if column.kind == "count" else "fiu"):
            raise MetricCheckError("type", f"{name} has the type {values.dtype}, no numbers")
        values = values.astype(np.float64)
    else:
        if not all(text is None or isinstance(text, str) for text in given):
            raise MetricCheckError("type", f"{name} holds other than texts")
        values = np.array(list(given), dtype=object)
    if values.shape != (n_rows,):
        raise MetricCheckError("shape", f"{name} has the shape {values.shape}, of {n_rows} rows")
    if column.is_number and np.isinf(values).any():
        raise MetricCheckError("type", f"{name} holds an infinite number")
    return values


def _are_equal(left: NDArray[Any], right: NDArray[Any]) -> bool:
    if left.shape != right.shape:
        return False
    if left.dtype == object:
        return bool(left.tolist() == right.tolist())
    return bool(np.allclose(left, right, rtol=0.0, atol=TOLERANCE, equal_nan=True))


def _fail_by_order(name: str, values: NDArray[Any], backwards: NDArray[Any]) -> None:
    """Raise for rows that came back in another order, or whose values depend on it."""
    same = sorted(map(str, values)) == sorted(map(str, backwards))
    what = "rows come back in another order" if same else "values depend on the order of rows"
    raise MetricCheckError("row_order", f"{name or 'the score'}: {what}")


def _pickled(metric: AnyMetric) -> AnyMetric:
    try:
        copied: AnyMetric = pickle.loads(pickle.dumps(metric))
    except Exception as error:
        raise MetricCheckError(
            "pickling", f"workers cannot get it: {type(error).__name__}: {error}"
        ) from error
    return copied
