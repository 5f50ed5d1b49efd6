"""Lexical metrics on inputs as people have them: every row leaves once, and says why."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import as_table, read_scores, run_locally, write_parquet
from qaeval_core import Scorer
from qaeval_core.errors import SchemaError
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.scoring.run import RunOutcome

TEXT_METRICS = [
    spec.name for spec in METRICS.values() if spec.needs == ("words",) and "candidate" in spec.roles
]
TEXTS = pa.list_(pa.string())
ODD_TEXTS = (
    "good 👩‍👧‍👦 day 👍🏽",
    "e\u0301 is not \u00e9",
    "\u202eright to left שלום",
    "zero\u200bwidth\ufeff",
    "null \x00 sign",
    "\U0010ffff\ue000 private",
    "\t\n\r\x0b\x1c\x85\u2028\u3000",
    "ǅ İ ß ﬁ Σς",
    "<skipped> &amp;quot; -\n",
)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    return {
        "input.paths": [str(tmp_path / "input.parquet")],
        "output.path": str(tmp_path / "out"),
    }


def run(job: dict[str, object], *names: str, **settings: object) -> tuple[pl.DataFrame, dict]:
    """Run metrics with default settings; return scores and report, its counts checked."""
    metrics = {f"metrics.{name}": {} for name in names}
    outcome, _ = run_locally({**job, **metrics, **settings})
    return checked(outcome, Path(str(job["output.path"])))


def checked(outcome: RunOutcome, out: Path) -> tuple[pl.DataFrame, dict]:
    """Return scores and report of a run, after counting every row of every instance."""
    report = outcome.report
    assert report is not None
    scores = read_scores(out)
    for name, counts in report["instances"].items():
        parts = (counts["scored"], counts["undefined"], counts["quarantined"])
        assert sum(parts) == report["rows"] == scores.height, name
        is_quarantined = scores["quarantine_reason"].is_not_null()
        is_undefined = scores[f"{name}_reason"].is_not_null()
        assert not (is_quarantined & is_undefined).any()
        assert (scores[name].is_null() == (is_quarantined | is_undefined)).all(), name
        assert parts[1:] == (is_undefined.sum(), is_quarantined.sum())
        assert sum(counts["undefined_by_reason"].values()) == parts[1]
    return scores, report


def texts_table(
    candidates: list[str | None], references: list[list[str | None] | None], **more: object
) -> pa.Table:
    columns = {
        "candidate": pa.array(candidates, pa.string()),
        "references": pa.array(references, TEXTS),
    }
    return pa.table({**columns, **more})


def test_every_kind_of_missing_opinion_is_scored_plainly_and_counted(
    job: dict, tmp_path: Path
) -> None:
    """Protects from a yes/no row without opinions dropped, or given a bonus."""
    n_rows = 12
    types = ["yes_no"] * 6 + ["entity"] * 3 + ["Description", "opinion", None]
    table = texts_table(
        ["Yes, Ann keeps bees"] * n_rows,
        [["Ann keeps bees", "no bees"]] * n_rows,
        answer_type=types,
        candidate_opinion=["Yes", None, "yes", "Yes", "maybe", "YES"] + [None] * 6,
        reference_opinions=pa.array(
            [["Yes", "No"], ["Yes", "No"], None, ["Yes"], ["Yes", "No"], [None, "No"]] + [None] * 6,
            TEXTS,
        ),
        entities=pa.array([None] * 6 + [["Ann"], None, [""]] + [None] * 3, TEXTS),
    )
    write_parquet(tmp_path / "input.parquet", table)
    plain = {"metrics.plain": {"metric": "rouge_l", "tokenizer": "13a", "beta": 1.2}}
    scores, report = run(job, "adapted_bleu_4", "adapted_rouge_l", **plain)
    kinds = [
        *("yes_no", "missing_candidate_opinion", "missing_reference_opinions"),
        *("opinions_do_not_pair_with_references", "unknown_opinion", "yes_no"),
        *("entity", "missing_entities", "missing_entities"),
        *("description", "unknown_answer_type", "missing_answer_type"),
    ]
    assert scores["adapted_bleu_4_bonus"].to_list() == kinds
    assert scores["adapted_rouge_l_bonus"].to_list() == kinds
    assert scores["quarantine_reason"].null_count() == n_rows
    has_more = [a > b for a, b in zip(scores["adapted_rouge_l"], scores["plain"], strict=True)]
    assert has_more == [i in (0, 6) for i in range(n_rows)]
    assert report["instances"]["adapted_rouge_l"]["bonus"]["missing_entities"] == 2


def test_columns_of_opinions_may_be_absent(job: dict, tmp_path: Path) -> None:
    """Protects from a job refused because a dataset knows no opinions."""
    write_parquet(tmp_path / "input.parquet", texts_table(["a b"], [["a b c"]]))
    scores, _ = run(job, "adapted_bleu_4", "adapted_rouge_l")
    assert scores["adapted_rouge_l_bonus"].to_list() == ["missing_answer_type"]
    typed = texts_table(["a b"], [["a b c"]], answer_type=["entity"])
    write_parquet(tmp_path / "input.parquet", typed)
    scores, _ = run(job, "adapted_bleu_4", "adapted_rouge_l")
    assert scores["adapted_rouge_l_bonus"].to_list() == ["missing_entities"]


def test_nulls_among_references_are_quarantined_and_no_references_are_undefined(
    job: dict, tmp_path: Path
) -> None:
    """Protects from a null taken for an empty reference, under every lexical metric."""
    table = texts_table(
        ["bees", "bees", "bees", None, "", "bees", "mill"],
        [["bees"], [], ["bees", None], ["bees"], [""], None, ["mill"]],
        context=["bees"] * 7,
    )
    write_parquet(tmp_path / "input.parquet", table)
    scores, report = run(job, *TEXT_METRICS)
    assert report["quarantined_by_reason"] == {
        "null_in_list_references": 1,
        "null_candidate": 1,
        "null_references": 1,
    }
    for name in TEXT_METRICS:
        reasons = scores[f"{name}_reason"].to_list()
        no_references = None if name == "q_bleu_free" else "no_references"
        assert reasons == [None, no_references, None, None, None, None, None], name
        assert scores[name][4] == (METRICS[name].high if name != "q_bleu_free" else 0.0)


@pytest.mark.parametrize("n_rows", [0, 3])
def test_files_without_a_good_row_are_scored(job: dict, tmp_path: Path, n_rows: int) -> None:
    """Protects from a crash where a shard has no row at all, or none that is not quarantined."""
    no_texts = pa.array([None] * n_rows, pa.string())
    table = texts_table([None] * n_rows, [None] * n_rows, context=no_texts)
    write_parquet(tmp_path / "input.parquet", table)
    scores, report = run(job, *TEXT_METRICS)
    assert report["quarantined"] == n_rows
    good = texts_table(["a"], [["a"]], context=["a"])
    write_parquet(tmp_path / "input.parquet", good)
    other, _ = run({**job, "output.path": str(tmp_path / "other")}, *TEXT_METRICS)
    assert scores.schema == other.schema


def test_damaged_row_group_is_quarantined_for_every_statistic(job: dict, tmp_path: Path) -> None:
    """Protects from one bad disk sector costing a file of words, or one of its metrics."""
    texts = [f"Ann keeps hive {i} behind the mill" for i in range(6)]
    table = texts_table(texts, [[text] for text in texts], context=texts)
    path = tmp_path / "input.parquet"
    pq.write_table(table, path, row_group_size=3, use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    scores, _ = run(job, *TEXT_METRICS, **{"scoring.rows_per_shard": 3})
    assert scores["quarantine_reason"].to_list() == [None] * 3 + ["unreadable"] * 3
    assert scores["f1"].to_list() == [1.0] * 3 + [None] * 3


def test_chinese_is_undefined_where_a_rule_finds_no_word_and_scored_where_one_does(
    job: dict, tmp_path: Path
) -> None:
    """Protects from 1 or 0 for texts of which nothing was read."""
    table = texts_table(
        ["他在北京大学", "他在北京大学", "", "他 7"],
        [["他在上海大学"], ["he is in Beijing"], [""], ["7 他"]],
    )
    write_parquet(tmp_path / "input.parquet", table)
    rules = {
        f"metrics.{rule}": {"metric": "rouge_l", "tokenizer": rule} for rule in ("zh", "characters")
    }
    scores, report = run(job, "rouge_l", **rules)
    # Of the last a number is left, by which any two such texts would be equal.
    assert scores["rouge_l"].to_list() == [None, 0.0, 1.0, None]
    assert scores["rouge_l_reason"].to_list() == ["no_words", None, None, "no_words"]
    assert report["instances"]["rouge_l"]["undefined_by_reason"] == {"no_words": 2}
    assert scores["zh"].to_list() == pytest.approx([2 / 3, 0.0, 1.0, 0.5])
    assert scores["characters"].to_list() == pytest.approx([4 / 6, 0.0, 1.0, 0.5])


@pytest.mark.parametrize("candidate", ["北京", ""])
def test_one_reference_without_words_does_not_undo_the_others(
    job: dict, tmp_path: Path, candidate: str
) -> None:
    """Protects from a perfect BLEU, or none at all, for a text of which no word is known."""
    write_parquet(tmp_path / "input.parquet", texts_table([candidate], [["上海", "Peking"]]))
    names = [name for name in TEXT_METRICS if name not in ("q_bleu_free", "exact_match", "f1")]
    rule = {f"metrics.{name}": {"tokenizer": "rouge"} for name in names}
    scores, _ = run(job, **rule)
    assert scores.select(names).row(0) == (0.0,) * len(names)


def test_odd_unicode_scores_the_same_in_a_job_and_in_memory(job: dict, tmp_path: Path) -> None:
    """Protects from signs that Parquet, a tokenizer or a hash cannot carry."""
    table = texts_table(
        list(ODD_TEXTS), [[text, "plain words"] for text in ODD_TEXTS], context=list(ODD_TEXTS)
    )
    write_parquet(tmp_path / "input.parquet", table)
    scores, _ = run(job, *TEXT_METRICS)
    in_memory = pl.DataFrame(pl.from_arrow(Scorer(TEXT_METRICS).score(table)))
    for name in TEXT_METRICS:
        assert scores[name].to_list() == pytest.approx(in_memory[name].to_list(), nan_ok=True), name
    assert scores["exact_match"].to_list() == [1.0] * len(ODD_TEXTS)


@pytest.mark.slow
def test_texts_of_50_000_words_take_seconds(job: dict, tmp_path: Path) -> None:
    """Protects from steps that are quadratic in the words: hours for one long answer."""
    chance = np.random.default_rng(4)
    words = [f"word{i}" for i in range(5_000)]
    long = [" ".join(chance.choice(words, size=50_000)) for _ in range(3)]
    table = texts_table([long[0]] * 2, [[long[1], long[2]], [long[0]]], context=[long[1]] * 2)
    write_parquet(tmp_path / "input.parquet", table)
    started = time.process_time()  # By the clock on the wall, other work would count.
    scores, _ = run(job, *TEXT_METRICS)
    assert time.process_time() - started < 60  # Some 20 s; a quadratic step takes an hour.
    assert scores["bleu_4"][1] == scores["rouge_l"][1] == 1.0
    assert 0 < scores["rouge_l"][0] < 0.5


SPANS = [
    [[0, 4], [10, 14]],
    [[3, 3]],
    [],
    None,
    [[5, 2]],
    [[-1, 2]],
    [[1, 2, 3]],
    [[0, 1]] * 5 + [[12, 15]],
]


@pytest.mark.parametrize("form", ["lists", "structs"])
def test_spans_are_lists_or_structs_and_wrong_ones_are_quarantined(
    job: dict, tmp_path: Path, form: str
) -> None:
    """Protects from a span with its ends swapped counted as a miss."""
    predicted, kind = SPANS, pa.list_(pa.list_(pa.int64()))
    if form == "structs":
        pairs = [None if own is None else [span[:2] for span in own] for own in SPANS]
        predicted = [own and [{"start": a, "end": b} for a, b in own] for own in pairs]
        kind = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))
    gold = pa.array([[[12, 20]]] * len(SPANS), pa.list_(pa.list_(pa.int16())))
    table = pa.table({"predicted_spans": pa.array(predicted, kind), "gold_spans": gold})
    write_parquet(tmp_path / "input.parquet", table)
    scores, _ = run(job, "top_n_accuracy", **{"metrics.ten": {"metric": "top_n_accuracy", "n": 10}})
    wrong = "wrong_type_predicted_spans" if form == "lists" else None
    assert scores["quarantine_reason"].to_list() == [
        *(None, None, None, "null_predicted_spans"),
        *("invalid_span_predicted_spans", "invalid_span_predicted_spans", wrong, None),
    ]
    missed = None if wrong else 0.0
    assert scores["top_n_accuracy"].to_list() == [1.0, 0.0, 0.0, None, None, None, missed, 0.0]
    assert scores["ten"][7] == 1.0
    messages = pl.read_parquet(tmp_path / "out" / "quarantine" / "input.parquet")["message"]
    assert "5" in messages[1] and "ends before it starts" in messages[1]


def test_spans_of_other_types_are_refused_before_anything_runs(job: dict, tmp_path: Path) -> None:
    """Protects from texts or fractions read as places."""
    for values in ([["0-4"]], [[[0.5, 1.5]]], [[0, 4]]):
        table = pa.table({"predicted_spans": values, "gold_spans": [[[0, 4]]]})
        write_parquet(tmp_path / "input.parquet", table)
        with pytest.raises(SchemaError, match="QA0306"):
            run(job, "top_n_accuracy")


def test_tables_in_any_chunks_score_as_one(tmp_path: Path) -> None:
    """Protects from a chunk without rows, and from a slice read from its array's start."""
    table = texts_table(["a b", "c", "d"], [["a"], ["c", "d"], []])
    chunks = [table.slice(0, 0), table.slice(0, 1), table.slice(3), table.slice(1, 2)]
    expected = Scorer(["f1", "cider"]).score(table)
    assert Scorer(["f1", "cider"]).score(pa.concat_tables(chunks)).equals(expected)
    large = pa.schema(
        [("candidate", pa.large_string()), ("references", pa.large_list(pa.string()))]
    )
    assert Scorer(["f1", "cider"]).score(table.cast(large).slice(1)).num_rows == 2
    assert Scorer(["f1"]).score(table.slice(1)).equals(Scorer(["f1"]).score(table).slice(1))


def test_half_a_surrogate_pair_in_a_mapping_is_quarantined() -> None:
    """Protects from a tokenizer that fails on a text that no file could hold."""
    rows = [
        {"candidate": "half \ud800", "references": ["whole"]},
        {"candidate": "whole", "references": ["half \udfff"]},
        {"candidate": "whole", "references": ["whole"]},
    ]
    table = as_table(Scorer({"rouge_l": {"tokenizer": "spacy"}}).score(rows))
    reasons = ["invalid_utf8_candidate", "invalid_utf8_references", None]
    assert table["quarantine_reason"].to_pylist() == reasons
