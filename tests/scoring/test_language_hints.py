"""Languages that put no space between words: a run and a filter say what they compare or count."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, run_locally

JAPANESE = ["ミツバチを飼うのは誰ですか?", "水車小屋はどこにありますか?", "蜂蜜を売るのは誰ですか?"]
THAI = ["ใครเลี้ยงผึ้ง", "โรงสีอยู่ที่ไหน", "ใครขายน้ำผึ้ง"]
ENGLISH = ["Who keeps the bees 蜂?", "Where is the mill?", "Who sells the honey?"]


def table(texts: list[str]) -> pa.Table:
    return pa.table(
        {
            "id": list("abc"),
            "question": texts,
            "references": [[text] for text in texts],
            "context": ["a", "b", "c"],
            "s": [0.1, 0.2, 0.3],
        }
    )


@pytest.mark.parametrize(
    ("texts", "settings", "is_told"),
    [
        (JAPANESE, {}, True),
        (THAI, {}, True),
        (JAPANESE, {"f1.tokenizer": "characters"}, False),
        (JAPANESE, {"f1.language": "zh"}, False),
        (ENGLISH, {}, False),
    ],
)
def test_a_metric_of_words_says_that_there_are_none(
    texts: list[str], settings: dict[str, str], is_told: bool, tmp_path: Path
) -> None:
    """Two sentences of which a word differs had F1 0, as if nothing were alike."""
    pq.write_table(table(texts), tmp_path / "in.parquet")
    job = {
        "input.paths": [str(tmp_path / "in.parquet")],
        "output.path": str(tmp_path / "out"),
        "scoring.progress_s": 60,
        "metrics.f1.metric": "f1",
        **settings,
    }
    outcome, said = run_locally(job)
    told = [line for line in said if "without spaces between words" in line]
    assert bool(told) is is_told
    assert all("f1 compares words: --set f1.tokenizer=characters" in line for line in told)
    assert any("without spaces" in note for note in outcome.report["notes"]) is is_told


@pytest.mark.parametrize(("texts", "is_told"), [(JAPANESE, True), (THAI, True), (ENGLISH, False)])
@pytest.mark.parametrize("rules", ["paper", "none"])
def test_rules_that_count_words_say_so(
    texts: list[str], is_told: bool, rules: str, tmp_path: Path
) -> None:
    """Every question was too short, and nothing said why."""
    pq.write_table(table(texts), tmp_path / "in.parquet")
    said = qaeval(
        "filter", tmp_path / "in.parquet", "--rank-by", "s", "--rules", rules, "--dry-run"
    )
    assert ("without spaces between words, which the rules count" in said) is (
        is_told and rules == "paper"
    )
