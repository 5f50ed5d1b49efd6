"""Label sheets: what they are drawn from, and labels that say nothing of the rows that are left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from filter_corpora import filtered, opened, scored
from qaeval_core.errors import ConfigError
from qaeval_core.filter.decide import CorpusRows, decide, make_shares
from qaeval_core.filter.facts import ColumnRank, Facts, Stages
from qaeval_core.filter.labels import (
    LabeledRows,
    is_other_sheet,
    is_sheet,
    read_labels,
    sample_rows,
)
from qaeval_core.filter.plan import make_plan
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import dry_run_lines
from qaeval_core.filter.yields import certificate, smallest_shares

N_GROUPS, GROUP_SIZE, N_LABELS, N_DRAWS = 600, 5, 400, 300


@dataclass(frozen=True)
class Questions:
    """Rows of a corpus in groups; rank a knows which are good, rank b hardly does."""

    is_good: NDArray[np.bool_]
    a: NDArray[np.float64]
    b: NDArray[np.float64]

    def rows(self, rank: str, *, seed: int, top_k: int | None = 1) -> CorpusRows:
        """Return the rows that reach the last stage by a rank; ids' hashes are the seed's."""
        n = len(self.is_good)
        rows = CorpusRows(n, Stages(rank=ColumnRank(rank), group="context"))
        facts = Facts(np.zeros(n, np.uint8), getattr(self, rank))
        facts.tie = np.random.default_rng(seed).integers(1, 2**63, n, dtype=np.uint64)
        facts.group = np.arange(n, dtype=np.uint64) // np.uint64(GROUP_SIZE)
        rows.put(0, facts)
        if top_k is not None:
            request = FilterRequest(near_duplicates="none", top_k=top_k)
            decide(rows, request, near_duplicates=lambda: ())
        return rows

    def sheet(self, rank: str, *, seed: int, top_k: int | None = 1) -> NDArray[np.int64]:
        """Return the rows that a sheet of a rank has; without top-k those that it sees."""
        rows = self.rows(rank, seed=seed, top_k=top_k)
        return sample_rows(rows, N_LABELS).astype(np.int64)

    def labeled(self, drawn: NDArray[np.int64]) -> LabeledRows:
        """Return their labels."""
        return LabeledRows(drawn, self.is_good[drawn], drawn)


@pytest.fixture(scope="module")
def corpus() -> Questions:
    rng = np.random.default_rng(7)
    n = N_GROUPS * GROUP_SIZE
    worth = rng.normal(size=n)
    is_good = worth + rng.normal(scale=0.5, size=n) > 0.2
    a, b = (worth * own + rng.normal(size=n) for own in (4.0, 0.3))
    return Questions(is_good, a, b)


def test_a_sheet_favours_no_row(corpus: Questions) -> None:
    """Protects from a sample that follows the rank, the place in a file, or the order of ties."""
    times = np.zeros(len(corpus.is_good))
    ties = []
    for seed in range(N_DRAWS):
        rows = corpus.rows("a", seed=seed, top_k=None)
        drawn = sample_rows(rows, N_LABELS)
        times[drawn] += 1
        ties.append(np.mean(rows.tie[drawn].astype(np.float64)) / 2.0**62)
    share = N_LABELS / len(times)
    for order in (np.argsort(corpus.a), np.arange(len(times))):
        tenths = [times[own].mean() / N_DRAWS for own in np.array_split(order, 10)]
        error = np.sqrt(share * (1 - share) / (N_DRAWS * len(times) / 10))
        assert np.abs(np.array(tenths) - share).max() < 4 * error
    # Of numbers spread from 0 to 2.
    assert np.mean(ties) == pytest.approx(1.0, abs=4 * 0.58 / np.sqrt(N_DRAWS * N_LABELS))


def test_which_labels_are_a_sheet_of_the_rows_that_are_left(corpus: Questions) -> None:
    rows = corpus.rows("b", seed=1)
    own, before, other = (
        corpus.sheet("b", seed=1),
        corpus.sheet("b", seed=1, top_k=None),
        corpus.sheet("a", seed=1),
    )
    assert is_sheet(rows, own) and is_sheet(rows, before) and not is_sheet(rows, other)
    assert (rows.reason[before] != 0).any(), "top-k drops none of it"
    assert is_other_sheet(rows, other)
    # What a person deletes has a place in the files.
    assert is_other_sheet(rows, own[: N_LABELS // 2])
    # Rows that somebody else drew, from all rows or from those that are left.
    rng = np.random.default_rng(0)
    for n in (len(rows), np.flatnonzero(rows.reason == 0)):
        drawn = np.sort(rng.choice(n, N_LABELS, replace=False))
        assert not is_sheet(rows, drawn) and not is_other_sheet(rows, drawn)
    # A few more labels neither hide another rank's sheet nor spoil one of these rows.
    more = rng.choice(len(rows), 30, replace=False)
    assert is_other_sheet(rows, np.union1d(other, more))
    assert not is_other_sheet(rows, np.union1d(own, more))
    assert not is_other_sheet(rows, np.zeros(0, np.int64))


def misses(
    corpus: Questions, sheet: Callable[[int], NDArray[np.int64]], target: float
) -> tuple[int, int]:
    """Return how often rank b is certified by labels of a sheet, and how often wrongly."""
    n_certified = n_wrong = 0
    for seed in range(N_DRAWS):
        rows = corpus.rows("b", seed=seed)
        shares = make_shares(rows)
        share = smallest_shares(rows, shares)
        labeled = corpus.labeled(sheet(seed))
        found = certificate(rows, share, labeled, target=target, confidence=0.95).chosen
        if found is not None:
            n_certified += 1
            n_wrong += corpus.is_good[share < round(20 * found.share)].mean() <= target
    return n_certified, n_wrong


@pytest.mark.slow
def test_labels_drawn_before_a_rank_is_known_certify_it(corpus: Questions) -> None:
    """At a target of the very precision that a share has, one in twenty may be wrong.

    Labels of another rank's sheet are of rows that it has chosen, and are wrong nearly always.
    """
    rows = corpus.rows("b", seed=0)
    best = smallest_shares(rows, make_shares(rows)) < 8
    target = float(corpus.is_good[best].mean())

    def before(seed: int) -> NDArray[np.int64]:
        return corpus.sheet("a", seed=seed, top_k=None)

    n_certified, n_wrong = misses(corpus, before, target)
    assert n_wrong <= N_DRAWS * 0.05 + 3 * np.sqrt(N_DRAWS * 0.05 * 0.95)
    assert misses(corpus, before, target - 0.25)[0] > N_DRAWS / 2
    n_certified, n_wrong = misses(corpus, lambda seed: corpus.sheet("a", seed=seed), target)
    assert n_wrong > N_DRAWS / 2 and n_wrong > 0.9 * n_certified
    others = (corpus.sheet("a", seed=seed) for seed in range(N_DRAWS))
    assert all(
        is_other_sheet(corpus.rows("b", seed=seed), other) for seed, other in enumerate(others)
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"), 900, f1="f1", rouge_l="rouge_l")


TOP = {"near_duplicates": "exact", "top_k": 2}


def sheet_of(out: Path, kept: Path, n: int = 200, **options: object) -> tuple[Path, dict]:
    """Draw a sheet and label it by F1; return it, and what was said."""
    result, _ = filtered(out, kept, label_sheet=n, **TOP, **options)
    scores = pl.read_parquet(out / "scores").select("id", "f1")
    table = pl.read_csv(kept / "label_sheet.csv").select("id").join(scores, on="id")
    path = kept.with_suffix(".csv")
    table.select("id", good=(pl.col("f1") > 0.45).cast(pl.Int8)).write_csv(path)
    return path, dict(result.content)


def certified(out: Path, kept: Path, labels: Path, **options: object) -> dict:
    """Filter with a precision that is easy to have."""
    given = {"labels": str(labels), "label": "good", "precision": 0.2, **options}
    result, _ = filtered(out, kept, **TOP, **given)
    return dict(result.content)


def test_another_ranks_sheet_certifies_nothing(out: Path, tmp_path: Path) -> None:
    labels, _ = sheet_of(out, tmp_path / "f1", rank_by="f1")
    assert certified(out, tmp_path / "kept", labels, rank_by="f1")["certified"]
    for options in ({"rank_by": "rouge_l"}, {"learn": ("f1", "rouge_l")}):
        with pytest.raises(ConfigError, match="another rank or other options, or a part of one"):
            certified(out, tmp_path / "other", labels, **options)
        assert not (tmp_path / "other" / "_SUCCESS").exists()
    # To learn from them is no harm; they say nothing of what is kept.
    given = {"labels": str(labels), "label": "good", "learn": ("f1", "rouge_l"), "share": "0.5"}
    result, said = filtered(out, tmp_path / "learned", **TOP, **given)
    assert result.content["certificate"] is None
    assert any("nothing can be certified by it" in line for line in said)
    assert pl.read_parquet(tmp_path / "learned" / "yield.parquet")["n_labels"].is_null().all()


def test_one_sheet_serves_every_rank(out: Path, tmp_path: Path) -> None:
    """Before a rank is learned nobody knows what duplicates and top-k will leave."""
    labels, told = sheet_of(out, tmp_path / "any", n=400, learn=("f1", "rouge_l"), precision=0.2)
    n_left = pl.read_parquet(out / "scores").height
    assert told["n_eligible"] == n_left, "duplicates and top-k have dropped some"
    for options in ({"rank_by": "f1"}, {"rank_by": "rouge_l"}, {"learn": ("f1", "rouge_l")}):
        content = certified(out, tmp_path / "-".join(options), labels, **options)
        n_labels = content["certificate"]["n_labels"]
        assert content["certified"] and n_labels < 400
    assert told["n_certifying"] == pytest.approx(n_labels, rel=0.3)


def test_labels_that_a_rank_was_learned_from_do_not_certify_it(out: Path, tmp_path: Path) -> None:
    labels, _ = sheet_of(out, tmp_path / "any", n=400, learn=("f1", "rouge_l"))
    content = certified(out, tmp_path / "kept", labels, learn=("f1", "rouge_l"))
    decisions = pl.read_parquet(tmp_path / "kept" / "decisions")
    given = decisions.join(pl.read_csv(labels), on="id")
    last = given.filter(pl.col("reason").is_null() | (pl.col("reason") == "precision"))
    n_learned = content["learned"]["n_rows"]
    assert 100 < n_learned < 300
    assert 0.2 * last.height < content["certificate"]["n_labels"] < 0.8 * last.height
    assert content["certificate"]["n_labels"] + n_learned <= 400


def test_blank_rows_are_of_a_sheet_as_well(out: Path, tmp_path: Path) -> None:
    labels, _ = sheet_of(out, tmp_path / "f1", rank_by="f1")
    table = pl.read_csv(labels).with_row_index()
    some = table.with_columns(good=pl.when(pl.col("index") < 120).then("good")).drop("index")
    some.write_csv(tmp_path / "some.csv")
    assert len(read_labels(str(tmp_path / "some.csv"), "good").blank) == 80
    content = certified(out, tmp_path / "kept", tmp_path / "some.csv", rank_by="f1")
    assert content["certified"] and content["certificate"]["n_labels"] == 120
    some.drop_nulls().write_csv(tmp_path / "part.csv")
    with pytest.raises(ConfigError, match="Leave its blank rows in it"):
        certified(out, tmp_path / "kept", tmp_path / "part.csv", rank_by="f1")


def test_what_a_certificate_does_not_say_is_said(out: Path, tmp_path: Path) -> None:
    labels, _ = sheet_of(out, tmp_path / "f1", rank_by="f1")
    certified(out, tmp_path / "kept", labels, rank_by="f1")
    content = json.loads((tmp_path / "kept" / "filter.json").read_text())
    said = content["certificate"]["says_nothing_of"]
    for text in ("another corpus", "other options", "other signatures", "labels that are wrong"):
        assert text in said
    assert f"It says nothing of {said}." in (tmp_path / "kept" / "filter.html").read_text()


def test_what_labels_can_certify_at_best_is_said_before(out: Path, tmp_path: Path) -> None:
    labels, _ = sheet_of(out, tmp_path / "f1", n=20, rank_by="f1")
    given = {"labels": str(labels), "label": "good", "precision": 0.9, "rank_by": "f1"}
    few = "20 labels are too few for that precision: 57 of the kept part are the least"
    request = FilterRequest(rules="none", **TOP, **given)
    assert any(few in line for line in dry_run_lines(make_plan(request, opened(out, request))))
    _, said = filtered(out, tmp_path / "kept", **TOP, **given)
    assert any(few in line for line in said)
    # Of those of a learned rank half are left.
    more, _ = sheet_of(out, tmp_path / "any", n=400, learn=("f1", "rouge_l"))
    given = {"labels": str(more), "label": "good", "precision": 0.2, "learn": ("f1", "rouge_l")}
    _, said = filtered(out, tmp_path / "learned", **TOP, **given)
    assert any("even if all 200 labels turn out good" in line for line in said)
