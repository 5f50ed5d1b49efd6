"""Jobs of words: one pass for all statistics, each committed alone, corpus statistics kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import assert_same_scores, read_scores, run_locally, write_parquet
from qaeval_core.errors import ConfigError
from qaeval_core.families.words.family import WORD_FAMILIES

N_ROWS = 20
TEXTS = (
    "Ann keeps the bees behind the old mill",
    "Who keeps bees behind a mill?",
    "The miller sold honey in 1987 and bought the mill",
    "Honey was sold by Ann",
)


def make_table(n_rows: int = N_ROWS, *, shift: int = 0) -> pa.Table:
    """Return rows of mixed texts with one or two references."""
    rows = [
        {
            "candidate": TEXTS[(i + shift) % 4],
            "references": [TEXTS[(i * 3 + 1) % 4], f"{TEXTS[i % 3]} {i}"][: 1 + i % 2],
        }
        for i in range(n_rows)
    ]
    return pa.Table.from_pylist(rows)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, object]:
    write_parquet(tmp_path / "input.parquet", make_table())
    return {
        "input.paths": [str(tmp_path / "input.parquet")],
        "output.path": str(tmp_path / "out"),
        "scoring.rows_per_shard": 6,
    }


def with_metrics(job: Mapping[str, object], *names: str, **settings: object) -> dict[str, object]:
    return {**job, **{f"metrics.{name}": {} for name in names}, **settings}


def n_computed(report: Mapping | None) -> dict[str, int]:
    """Return rows that each statistic computed in this run."""
    assert report is not None
    found = {}
    for family in report["families"].values():
        parts = dict(part.split(":", 1) for part in family["signature"].split("|")[1:])
        found[parts["statistic"]] = family.get("this_run", {}).get("rows", 0)
    return found


def all_commits(out: Path) -> dict[str, tuple[int, int]]:
    """Return family and name -> (inode, modification time); all statistics of words have a name."""
    return {
        str(path.relative_to(out)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in out.glob("families/*/*.parquet")
    }


def frequencies_file(out: Path) -> Path:
    (path,) = out.glob("corpus/*.parquet")
    return path


def test_added_metric_computes_its_own_statistic_alone(job: dict, tmp_path: Path) -> None:
    """Protects from paying for finished statistics again, and from touching their commits."""
    run_locally(with_metrics(job, "bleu_4", "f1"))
    before = all_commits(tmp_path / "out")
    outcome, said = run_locally(with_metrics(job, "bleu_4", "f1", "rouge_l", "bleu_1", "meteor"))
    assert n_computed(outcome.report) == {
        "ngrams": 0,
        "overlap": 0,
        "lcs": N_ROWS,
        "alignment": N_ROWS,
    }
    assert "words (ngrams): all 20 rows are done, nothing to compute" in said
    after = all_commits(tmp_path / "out")
    assert len(before) == 8 and len(after) == 16  # Four shards of two, then four statistics.
    assert before.items() <= after.items()


def test_settings_of_formulas_compute_nothing(job: dict, tmp_path: Path) -> None:
    """Protects from a pass for what is arithmetic on stored counts."""
    run_locally(with_metrics(job, "bleu_4", "rouge_l", "meteor", "cider", "adapted_bleu_4"))
    before = all_commits(tmp_path / "out")
    outcome, _ = run_locally(
        {
            **with_metrics(job, "bleu_2"),
            "metrics.bleu_4": {"smoothing": "floor"},
            "metrics.rouge_l": {"beta": 1.2, "over_references": "max"},
            "metrics.meteor": {"alpha": 0.5, "beta": 1.0, "gamma": 0.1},
            "metrics.cider": {"sigma": 2.0, "over_references": "max"},
            "metrics.adapted_bleu_4": {"alpha": 1.0, "beta": 0.5},
        }
    )
    assert set(n_computed(outcome.report).values()) == {0}
    assert all_commits(tmp_path / "out") == before


def test_statistics_of_every_kind_resume_under_another_shard_size(
    job: dict, tmp_path: Path
) -> None:
    """Protects from work thrown away, or rows of two shards mixed, by another rows_per_shard."""
    names = ("bleu_4", "f1", "rouge_l", "meteor", "cider", "q_bleu", "adapted_rouge_l")
    run_locally({**with_metrics(job, *names), "input.limit": 12})
    outcome, _ = run_locally({**with_metrics(job, *names), "scoring.rows_per_shard": 5})
    computed = n_computed(outcome.report)
    # The corpus has changed from 12 rows to 20, so CIDEr's weights have, too.
    assert computed.pop("tf_idf") == N_ROWS
    assert set(computed.values()) == {8}
    whole = {**with_metrics(job, *names), "scoring.rows_per_shard": 1_000}
    run_locally({**whole, "output.path": str(tmp_path / "whole")})
    assert_same_scores(
        read_scores(tmp_path / "out"), read_scores(tmp_path / "whole"), tolerance=1e-12
    )


def test_statistics_with_other_committed_ranges_share_a_pass(job: dict, tmp_path: Path) -> None:
    """Protects from a row computed twice, or never, where two statistics have other gaps."""
    run_locally({**with_metrics(job, "bleu_4"), "input.limit": 12})
    run_locally({**with_metrics(job, "f1"), "input.limit": 7, "scoring.rows_per_shard": 4})
    outcome, said = run_locally(with_metrics(job, "bleu_4", "f1", "rouge_l"))
    assert n_computed(outcome.report) == {"ngrams": 8, "overlap": 13, "lcs": N_ROWS}
    assert "words (ngrams): 12 rows are done, 8 remain" in said
    assert "words (overlap): 7 rows are done, 13 remain" in said
    whole = with_metrics(job, "bleu_4", "f1", "rouge_l", **{"output.path": str(tmp_path / "whole")})
    run_locally(whole)
    assert_same_scores(read_scores(tmp_path / "out"), read_scores(tmp_path / "whole"), tolerance=0)


def test_lost_commit_of_one_statistic_is_computed_alone(job: dict, tmp_path: Path) -> None:
    """Protects from a gap that a shared pass takes for done."""
    run_locally(with_metrics(job, "bleu_4", "f1", "cider"))
    expected = read_scores(tmp_path / "out")
    victim = min((tmp_path / "out").glob("families/words-*/*-000000000006-*.parquet"))
    victim.unlink()
    (tmp_path / "out" / "_SUCCESS").unlink()
    outcome, _ = run_locally(with_metrics(job, "bleu_4", "f1", "cider"))
    assert sorted(n_computed(outcome.report).values()) == [0, 0, 0, 6]
    assert_same_scores(read_scores(tmp_path / "out"), expected, tolerance=0)


def test_cider_twice_on_one_out_computes_nothing(job: dict, tmp_path: Path) -> None:
    """Protects from counting a corpus again for every run."""
    first, _ = run_locally(with_metrics(job, "cider"))
    assert n_computed(first.report) == {"document_frequencies": N_ROWS, "tf_idf": N_ROWS}
    file = frequencies_file(tmp_path / "out")
    kept = (file.stat().st_ino, file.stat().st_mtime_ns), all_commits(tmp_path / "out")
    second, said = run_locally(with_metrics(job, "cider"))
    assert not second.is_new
    assert "nothing to do" in said[0]
    (tmp_path / "out" / "_SUCCESS").unlink()
    third, _ = run_locally(with_metrics(job, "cider"))
    assert n_computed(third.report) == {"document_frequencies": 0, "tf_idf": 0}
    now = (file.stat().st_ino, file.stat().st_mtime_ns), all_commits(tmp_path / "out")
    assert now == kept


def test_changed_input_gives_new_corpus_statistics(job: dict, tmp_path: Path) -> None:
    """Protects from weights of an old corpus for new rows."""
    run_locally(with_metrics(job, "cider"))
    old = frequencies_file(tmp_path / "out")
    write_parquet(tmp_path / "input.parquet", make_table(9, shift=1))
    outcome, said = run_locally(with_metrics(job, "cider"))
    assert any("input.parquet changed since the last run" in line for line in said)
    assert n_computed(outcome.report) == {"document_frequencies": 9, "tf_idf": 9}
    assert len(list((tmp_path / "out").glob("corpus/*.parquet"))) == 2
    assert old.exists()
    run_locally(with_metrics(job, "cider", **{"output.path": str(tmp_path / "fresh")}))
    assert_same_scores(read_scores(tmp_path / "out"), read_scores(tmp_path / "fresh"), tolerance=0)


def test_a_file_more_is_a_larger_corpus_for_all_rows(job: dict, tmp_path: Path) -> None:
    """Protects from rows of one run weighted by two corpora."""
    both = {**job, "input.paths": [str(tmp_path / "in")]}
    write_parquet(tmp_path / "in" / "a.parquet", make_table())
    run_locally(with_metrics(both, "cider"))
    alone = read_scores(tmp_path / "out", "a.parquet")["cider"]
    write_parquet(tmp_path / "in" / "b.parquet", make_table(8, shift=2))
    outcome, _ = run_locally(with_metrics(both, "cider"))
    assert n_computed(outcome.report) == {"document_frequencies": 8, "tf_idf": N_ROWS + 8}
    assert read_scores(tmp_path / "out", "a.parquet")["cider"].to_list() != alone.to_list()
    files = [read_scores(tmp_path / "out", f"{name}.parquet") for name in ("a", "b")]
    whole = pa.concat_tables([make_table(), make_table(8, shift=2)])
    write_parquet(tmp_path / "input.parquet", whole)
    run_locally(with_metrics(job, "cider", **{"output.path": str(tmp_path / "one")}))
    found = [score for file in files for score in file["cider"].to_list()]
    assert found == pytest.approx(read_scores(tmp_path / "one")["cider"].to_list(), abs=1e-12)


def test_given_document_frequencies_are_used_and_none_are_counted(
    job: dict, tmp_path: Path
) -> None:
    """Protects from a small sample weighted by itself where a corpus was named."""
    run_locally(with_metrics(job, "cider"))
    file = frequencies_file(tmp_path / "out")
    few = make_table().slice(3, 4)
    write_parquet(tmp_path / "few.parquet", few)
    given = {
        **job,
        "input.paths": [str(tmp_path / "few.parquet")],
        "output.path": str(tmp_path / "given"),
        "metrics.cider": {"document_frequencies": str(file)},
        "metrics.own": {"metric": "cider"},
    }
    outcome, _ = run_locally(given)
    assert n_computed(outcome.report)["tf_idf"] == 4
    found = read_scores(tmp_path / "given", "few.parquet")
    whole = read_scores(tmp_path / "out")["cider"].to_list()
    assert found["cider"].to_list() == pytest.approx(whole[3:7], abs=1e-12)
    assert found["own"].to_list() != found["cider"].to_list()
    assert outcome.report is not None
    signatures = [outcome.report["instances"][name]["signature"] for name in ("cider", "own")]
    assert signatures[0] != signatures[1]


def test_document_frequencies_of_other_words_are_refused(job: dict, tmp_path: Path) -> None:
    """Protects from weights of words that this run splits, stems or cases otherwise."""
    run_locally(with_metrics(job, "cider"))
    file = str(frequencies_file(tmp_path / "out"))
    for other in ({"tokenizer": "coco"}, {"stemming": "porter"}, {"lowercase": False}):
        request = {**job, "metrics.cider": {"document_frequencies": file, **other}}
        with pytest.raises(ConfigError, match="13a.*QA0219"):
            run_locally(request)
    for path, message in (
        (tmp_path / "input.parquet", "QA0219"),
        (tmp_path / "none.parquet", "no such file of document frequencies"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_locally({**job, "metrics.cider": {"document_frequencies": str(path)}})


def test_every_statistic_has_its_rows_in_every_commit(job: dict, tmp_path: Path) -> None:
    """Protects from a statistic of the catalog that no test of jobs runs."""
    table = make_table().to_pylist()
    for row in table:
        row.update(context="Ann", predicted_spans=[[0, 3]], gold_spans=[[2, 9]])
    write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist(table))
    names = ("f1", "bleu_4", "rouge_l", "meteor", "cider", "q_bleu", "top_n_accuracy")
    outcome, _ = run_locally(with_metrics(job, *names, "adapted_bleu_4", "adapted_rouge_l"))
    assert n_computed(outcome.report) == dict.fromkeys(WORD_FAMILIES, N_ROWS)
    for path in (tmp_path / "out").glob("families/words-*/*.parquet"):
        start, stop = (int(part) for part in path.stem.split("-")[1:])
        assert pq.read_metadata(path).num_rows == stop - start
