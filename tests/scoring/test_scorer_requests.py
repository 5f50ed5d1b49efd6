"""Scorer: requests that cannot be met raise; what can be met does not depend on neighbors."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from helpers import as_table
from qaeval_core import score_table
from qaeval_core.errors import ConfigError, SchemaError

ROWS = [{"given": "a b", "gold": ["a b"]}]
COLUMNS = {"candidate": "given", "references": "gold"}


@pytest.mark.parametrize("kind", ["mappings", "table", "frame"])
@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({**COLUMNS, "candidate": "givn"}, SchemaError, "'given'.*QA0305"),
        ({**COLUMNS, "candidat": "given"}, ConfigError, "'candidate'.*QA0105"),
        ({**COLUMNS, "answer_type": "nope"}, SchemaError, "'nope'.*QA0305"),
        ({"references": "gold"}, SchemaError, "'question'.*QA0305"),
    ],
)
def test_a_wrong_column_or_role_raises_for_every_kind_of_rows(
    kind: str, columns: dict[str, str], error: type[Exception], message: str
) -> None:
    """Protects from a mistyped name that quarantines every row, or scores another column."""
    table = pa.Table.from_pylist(ROWS)
    rows: Any = {"mappings": ROWS, "table": table, "frame": pl.DataFrame(ROWS)}[kind]
    with pytest.raises(error, match=message):
        as_table(score_table(rows, ["adapted_bleu_4"], columns=columns))


@pytest.mark.parametrize(
    "metrics",
    [
        {"f1": {}, "f1_precision": {"metric": "f1"}},
        {"id": {"metric": "f1"}},
        {"quarantine_reason": {"metric": "f1"}},
    ],
)
def test_two_output_columns_of_one_name_are_refused(metrics: dict[str, Any]) -> None:
    """Protects from a score that replaces another, or an id."""
    with pytest.raises(ConfigError, match="QA0208"):
        as_table(score_table(ROWS, metrics, columns=COLUMNS))


def test_one_name_or_null_settings_will_do_and_no_metric_will_not() -> None:
    """Protects from the letters of a name taken for metrics."""
    for metrics in ("f1", ["f1"], {"f1": None}):
        assert as_table(score_table(ROWS, metrics, columns=COLUMNS))["f1"].to_pylist() == [1.0]
    with pytest.raises(ConfigError, match="QA0206"):
        as_table(score_table(ROWS, [], columns=COLUMNS))
    assert as_table(score_table([], "f1")).num_rows == 0


@pytest.mark.parametrize("neighbor", ["a-\nb", "x \x00 y", "<skipped>", "plain"])
def test_words_of_a_text_do_not_depend_on_its_neighbors(neighbor: str) -> None:
    """Protects from a rule that looks across white space in one text and is kept from it in all."""
    rows = [
        {"candidate": "well-<skipped>\nknown fact here", "references": ["wellknown fact here"]},
        {"candidate": "well-\nknown fact here", "references": ["wellknown fact here"]},
        {"candidate": "nul \x00 sign", "references": ["nul sign"]},
    ]
    metrics = {"bleu_2": {}, "rouge_l": {}, "f1": {}}
    alone = [as_table(score_table([row], metrics)).to_pylist()[0] for row in rows]
    other = {"candidate": neighbor, "references": ["c"]}
    together = as_table(score_table([*rows, other], metrics)).to_pylist()
    assert together[: len(rows)] == alone
    assert [row["bleu_2"] for row in alone[:2]] == [1.0, 1.0]


def test_arrays_and_their_numbers_are_read_as_lists() -> None:
    """Protects from rows out of numpy that are quarantined for their types."""
    row = {
        "candidate": "a b",
        "references": np.array(["a b"]),
        "predicted_spans": np.array([[0, 4]]),
        "gold_spans": [(np.int64(3), np.int32(9))],
    }
    scores = as_table(score_table([row], ["f1", "top_n_accuracy"]))
    assert scores["quarantine_reason"].to_pylist() == [None]
    assert [scores[name].to_pylist() for name in ("f1", "top_n_accuracy")] == [[1.0], [1.0]]


def test_other_languages_lose_all_punctuation() -> None:
    """Protects from quotation marks that make a right answer wrong."""
    pairs = {"zh": [("308。", "308"), ("“Kroll”", "Kroll")], "de": [("„Der Kroll“", "Kroll")]}
    for language, own in pairs.items():
        rows = [{"candidate": left, "references": [right]} for left, right in own]
        scores = as_table(score_table(rows, {"exact_match": {"language": language}}))
        assert scores["exact_match"].to_pylist() == [1.0] * len(own)
