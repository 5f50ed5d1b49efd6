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
from qaeval_core.filter.corpus_rows import CorpusRows
from qaeval_core.filter.decide import decide
from qaeval_core.filter.facts import ColumnRank, Facts, Stages
from qaeval_core.filter.labels import SheetOrder, read_labels, spread_of
from qaeval_core.filter.plan import make_plan
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import blank_lines, dry_run_lines
from qaeval_core.filter.shares import make_shares, smallest_shares
from qaeval_core.stats.certificate import certify
from qaeval_core.stats.learned_rank import id_hash

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
        return np.sort(order_of(rows).first(N_LABELS)).astype(np.int64)


def order_of(rows: CorpusRows, **options: bool) -> SheetOrder:
    """Return the order of a sheet over the rows that are left."""
    return SheetOrder(rows, rows.is_eligible, **options)


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
        drawn = order_of(rows).first(N_LABELS)
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
    order = order_of(rows)
    is_sheet, is_other_sheet = order.is_sheet, order.is_other_sheet
    assert is_sheet(own) and is_sheet(before) and not is_sheet(other)
    assert (rows.reason[before] != 0).any(), "top-k drops none of it"
    assert is_other_sheet(other)
    # What a person deletes has a place in the files.
    assert is_other_sheet(own[: N_LABELS // 2])
    # The first rows of a sheet are one, and a second sheet has an order of its own.
    assert is_sheet(np.sort(order.ordered(own)[: N_LABELS // 2]))
    second = order_of(rows, is_second=True)
    assert not second.is_sheet(own) and second.is_sheet(second.first(N_LABELS))
    n_both = len(np.intersect1d(own, second.first(N_LABELS)))
    assert n_both == pytest.approx(N_LABELS**2 / N_GROUPS, abs=4 * np.sqrt(N_LABELS))
    # Rows that somebody else drew, from all rows or from those that are left.
    rng = np.random.default_rng(0)
    for n in (len(rows), np.flatnonzero(rows.reason == 0)):
        drawn = np.sort(rng.choice(n, N_LABELS, replace=False))
        assert not is_sheet(drawn) and not is_other_sheet(drawn)
    # A few more labels neither hide another rank's sheet nor spoil one of these rows.
    more = rng.choice(len(rows), 30, replace=False)
    assert is_other_sheet(np.union1d(other, more))
    assert not is_other_sheet(np.union1d(own, more))
    assert not is_other_sheet(np.zeros(0, np.int64))


def test_labels_of_the_best_rows_are_not_spread(corpus: Questions) -> None:
    """Protects from 150 best rows that certify all; equal ranks and samples must not be refused."""
    rows = corpus.rows("b", seed=1, top_k=None)
    order = np.argsort(-rows.rank, kind="stable")
    rng = np.random.default_rng(0)

    def p_value(labeled: NDArray[np.int64]) -> float:
        return spread_of(rows, labeled, rows.is_eligible).p_value

    best = spread_of(rows, order[:150], rows.is_eligible)
    assert best.p_value < 1e-100 and best.middle == pytest.approx(75 / len(order))
    for wrong in (order[:1000:5], order[len(order) // 2 :: 10], order[: int(0.7 * len(order)) : 8]):
        assert p_value(wrong) < 1e-4
    sampled = [p_value(rng.choice(len(rows), 200, replace=False)) for _ in range(400)]
    assert np.mean(np.array(sampled) < 0.05) < 0.1 and min(sampled) > 1e-4
    # A handful of values: half of the labels are of one.
    rows.rank = np.floor(np.clip(rows.rank, -1, 1))
    tied = [p_value(rng.choice(len(rows), 200, replace=False)) for _ in range(200)]
    assert min(tied) > 1e-4
    values = np.unique(rows.rank)
    assert p_value(np.flatnonzero(rows.rank == values[-1])[:100]) < 1e-4


def misses(
    corpus: Questions, sheet: Callable[[int], NDArray[np.int64]], target: float
) -> tuple[int, int]:
    """Return how often rank b is certified by labels of a sheet, and how often wrongly."""
    n_certified = n_wrong = 0
    for seed in range(N_DRAWS):
        rows = corpus.rows("b", seed=seed)
        shares = make_shares(rows)
        share = smallest_shares(rows, shares)
        drawn = sheet(seed)
        drawn = drawn[rows.reason[drawn] == 0]
        found = certify(
            share[drawn].astype(np.intp),
            corpus.is_good[drawn],
            counts=shares.counts,
            target=target,
            delta=0.05,
        ).chosen
        if found is not None:
            n_certified += 1
            kept = share <= shares.counts.index(found.n_rows)
            n_wrong += corpus.is_good[kept].mean() <= target
    return n_certified, n_wrong


@pytest.mark.long
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
        order_of(corpus.rows("b", seed=seed)).is_other_sheet(other)
        for seed, other in enumerate(others)
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
    result, _ = filtered(out, kept, **{**TOP, **given})
    return dict(result.content)


def test_another_ranks_sheet_certifies_nothing(out: Path, tmp_path: Path) -> None:
    labels, _ = sheet_of(out, tmp_path / "f1", rank_by="f1")
    assert certified(out, tmp_path / "kept", labels, rank_by="f1")["certified"]
    for options in ({"rank_by": "rouge_l"}, {"learn": ("f1", "rouge_l")}):
        with pytest.raises(ConfigError, match="QA0701"):
            certified(out, tmp_path / "other", labels, **options)
        assert not (tmp_path / "other" / "_SUCCESS").exists()
    # To learn from them is no harm; they say nothing of what is kept.
    given = {"labels": str(labels), "label": "good", "learn": ("f1", "rouge_l"), "share": "0.5"}
    result, said = filtered(out, tmp_path / "learned", **TOP, **given)
    assert result.content["certificate"] is None
    assert any("QA0701" in line for line in said)
    assert pl.read_parquet(tmp_path / "learned" / "yield.parquet")["n_labels"].is_null().all()


def test_one_sheet_serves_every_rank(out: Path, tmp_path: Path) -> None:
    """Before a rank is learned nobody knows what duplicates and top-k will leave."""
    labels, told = sheet_of(out, tmp_path / "any", n=400, learn=("f1", "rouge_l"), precision=0.2)
    n_left = pl.read_parquet(out / "scores").height
    assert told["n_eligible"] == n_left, "duplicates and top-k have dropped some"
    for options in ({"rank_by": "f1"}, {"rank_by": "rouge_l"}, {"learn": ("f1", "rouge_l")}):
        content = certified(out, tmp_path / "-".join(map(str, options.values())), labels, **options)
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
    assert 90 < n_learned < 180
    assert 0.5 * last.height < content["certificate"]["n_labels"] < 0.85 * last.height
    assert content["certificate"]["n_labels"] + n_learned <= 400


def test_a_blank_row_is_bad_unless_told_otherwise(out: Path, tmp_path: Path) -> None:
    """Rows that people find hard stay blank: left out, they would certify what is not true."""
    labels, _ = sheet_of(out, tmp_path / "f1", rank_by="f1")
    table = pl.read_csv(labels)
    is_left = (pl.col("good") == 0) & (pl.int_range(pl.len()) % 3 == 0)
    some = table.with_columns(good=pl.when(~is_left).then("good"))
    some.write_csv(tmp_path / "some.csv")
    n_blank = some["good"].null_count()
    assert len(read_labels(str(tmp_path / "some.csv"), "good").blank) == n_blank > 10
    whole = certified(out, tmp_path / "whole", labels, rank_by="f1")["certificate"]
    found = certified(out, tmp_path / "kept", tmp_path / "some.csv", rank_by="f1")["certificate"]
    names = ("share", "precision", "lower_bound", "n_labels")
    assert [found[name] for name in names] == [whole[name] for name in names]
    assert found["blank"]["n"] == n_blank and whole["blank"] is None
    result, _ = filtered(
        out, tmp_path / "ignored", **TOP, labels=str(tmp_path / "some.csv"), label="good",
        precision=0.2, rank_by="f1", blank="ignore",
    )  # fmt: skip
    content = result.content
    other = content["certificate"]
    assert other["lower_bound"] > found["lower_bound"] and other["n_labels"] == 200 - n_blank
    assert found["blank"]["otherwise"] == {
        name: other[name] for name in other["blank"]["otherwise"]
    }
    assert other["blank"]["otherwise"]["lower_bound"] == found["lower_bound"]
    for own, said in ((found, "count as bad"), (other, "are left out: that holds only if")):
        assert any(said in line and f"{n_blank} rows" in line for line in blank_lines(own))
    # Only good rows have a label: these are the best, and say nothing of the others.
    good = table.with_columns(good=pl.when(pl.col("good") == 1).then("good"))
    good.write_csv(tmp_path / "good.csv")
    with pytest.raises(ConfigError, match="QA0701"):
        certified(out, tmp_path / "good", tmp_path / "good.csv", rank_by="f1", blank="ignore")
    content = certified(out, tmp_path / "good", tmp_path / "good.csv", rank_by="f1")
    assert content["certificate"]["blank"]["otherwise"]["share"] is None
    some.drop_nulls().write_csv(tmp_path / "part.csv")
    with pytest.raises(ConfigError, match="QA0701"):
        certified(out, tmp_path / "part", tmp_path / "part.csv", rank_by="f1")


def test_labels_of_the_best_rows_are_refused(out: Path, tmp_path: Path) -> None:
    """They say how good the best are, and nothing of the others."""
    table = pl.read_parquet(out / "scores").sort("f1", descending=True)
    for name, rows in (("best", table.head(90)), ("fifth", table.head(400)[::4])):
        path = tmp_path / f"{name}.csv"
        rows.select("id", good=1).write_csv(path)
        with pytest.raises(ConfigError, match="--within-best.*SHARE.*QA0701"):
            certified(out, tmp_path / name, path, rank_by="f1", near_duplicates="none", top_k=None)
        assert not (tmp_path / name / "_SUCCESS").exists()


def test_a_second_sheet_is_of_the_best_rows_alone(out: Path, tmp_path: Path) -> None:
    scores = pl.read_parquet(out / "scores").select("id", "f1")
    best = scores["f1"].quantile(0.88)

    def labeled(name: str) -> str:
        """Label a sheet by F1: few rows are good."""
        sheet = pl.read_csv(tmp_path / "kept" / f"{name}.csv").join(scores, on="id")
        good = (pl.col("f1") >= best).cast(pl.Int8)
        sheet.select("id", good=good).write_csv(tmp_path / f"{name}.csv")
        return str(tmp_path / f"{name}.csv")

    asked = {"rank_by": "f1", "precision": 0.7, **TOP}
    filtered(out, tmp_path / "kept", label_sheet=60, **asked)
    drawn, _ = filtered(
        out, tmp_path / "kept", label_sheet=120, within_best="auto", labels=labeled("label_sheet"),
        label="good", **asked,
    )  # fmt: skip
    within = drawn.content["within"]
    assert 0.2 <= within < 0.6
    assert drawn.content["n_labels"] == min(120, drawn.content["n_eligible"])
    given = {"labels": labeled("label_sheet_best"), "label": "good", **asked}
    with pytest.raises(ConfigError, match="--within-best.*SHARE.*QA0701"):
        filtered(out, tmp_path / "whole", **given)
    with pytest.raises(ConfigError, match="QA0701"):
        filtered(out, tmp_path / "wider", within_best=0.9, **given)
    result, _ = filtered(out, tmp_path / "best", within_best=f"{within:.4f}", **given)
    found = result.content["certificate"]
    assert found["share"] is not None and found["share"] <= found["within"] == within
    kept = pl.read_parquet(tmp_path / "best" / "kept")
    assert (kept["f1"] >= best).mean() > 0.7
    yields = pl.read_parquet(tmp_path / "best" / "yield.parquet")
    assert yields.filter(pl.col("share") > within)["certified"].null_count() > 0


def test_looks_share_what_may_be_wrong(out: Path, tmp_path: Path) -> None:
    """A look that was not planned is refused; one of the same labels and rank is no other look."""
    kept = tmp_path / "kept"
    labels, _ = sheet_of(out, kept, n=300, learn=("f1", "rouge_l"))
    sheet = pl.read_csv(kept / "label_sheet.csv").select("id")
    whole = sheet.join(pl.read_csv(labels), on="id", maintain_order="left")

    def look(n: int, **options: object) -> dict:
        path = tmp_path / f"labels-{n}.csv"
        good = pl.when(pl.int_range(300) < n).then("good")
        whole.with_columns(good=good).write_csv(path)
        return certified(out, kept, path, **{"rank_by": "f1", "looks": (100, 300), **options})

    first = look(100)["certificate"]
    assert first["n_labels"] < 100 and first["blank"] is None
    assert first["look"]["delta"] == pytest.approx(0.05 / 4)
    assert len(look(100, precision=0.3)["looks"]["taken"]) == 1
    with pytest.raises(ConfigError, match="--looks.*50.*100.*QA0702"):
        look(100, looks=(50,))
    second = look(300)
    assert second["certificate"]["n_labels"] > 1.3 * first["n_labels"]
    assert [own["planned"] for own in second["looks"]["taken"]] == [100, 300]
    assert sum(own["delta"] for own in second["looks"]["taken"]) == pytest.approx(0.05)
    others = ({"rank_by": "rouge_l"}, {"learn": ("f1",), "rank_by": None})
    for options in (*others, {**others[0], "looks": ()}):
        with pytest.raises(ConfigError, match="(300|at 400) labels.*QA0702"):
            look(200, **options)
    # Labels that were blank, and were bad, cost nothing; nor does one that is corrected.
    again = look(280)["looks"]["taken"]
    assert [own["delta"] for own in again] == [own["delta"] for own in second["looks"]["taken"]]
    # A lower confidence pays for one more; another folder does not know of these.
    more = look(200, looks=(), confidence=0.9, rank_by="rouge_l")
    assert more["certificate"]["look"]["delta"] == pytest.approx(0.05)
    other = certified(out, tmp_path / "other", labels, rank_by="rouge_l")
    assert [own["n_labels"] for own in other["looks"]["taken"]] == [300]
    # What asks for no precision keeps the account.
    result, _ = filtered(out, kept, rank_by="f1", share="0.5")
    assert len(result.content["looks"]["taken"]) == 3


def test_blank_rows_that_are_left_out_make_each_look_one(out: Path, tmp_path: Path) -> None:
    """Labels that grow under --blank ignore are looks at larger samples, whatever the table is."""
    labels, _ = sheet_of(out, tmp_path / "f1", n=200, rank_by="f1")
    sheet = pl.read_csv(tmp_path / "f1" / "label_sheet.csv").select("id")
    whole = sheet.join(pl.read_csv(labels), on="id", maintain_order="left")

    def look(n: int, **options: object) -> dict:
        path = tmp_path / f"labels-{n}.csv"
        whole.with_columns(good=pl.when(pl.int_range(200) < n).then("good")).write_csv(path)
        return certified(out, tmp_path / "kept", path, rank_by="f1", **options)

    look(100)
    look(150)  # What was bad is filled in.
    assert len(look(150, blank="ignore")["looks"]["taken"]) == 1  # The same labels.
    for n, blank in ((200, "ignore"), (120, "ignore"), (200, "bad")):
        with pytest.raises(ConfigError, match="QA0702"):
            look(n, blank=blank)


def test_a_rank_of_a_file_is_not_certified_by_what_it_was_learned_from(
    out: Path, tmp_path: Path
) -> None:
    """The same labels beside --rank-by combine.json judged the rank that they had made."""
    labels, _ = sheet_of(out, tmp_path / "any", n=400, learn=("f1", "rouge_l"))
    learned = certified(out, tmp_path / "learned", labels, learn=("f1", "rouge_l"))
    combine = str(tmp_path / "learned" / "combine.json")
    again = certified(out, tmp_path / "again", labels, rank_by=combine)
    names = ("n_labels", "share", "p_value", "lower_bound")
    assert [again["certificate"][name] for name in names] == [
        learned["certificate"][name] for name in names
    ]
    assert "q1" not in json.loads(Path(combine).read_text())["learned_from"]
    # Of another sheet all labels count, but for rows that it was learned from.
    taught = set(json.loads(Path(combine).read_text())["learned_from"])
    fresh, _ = sheet_of(out, tmp_path / "fresh", n=150, rank_by=combine, seed=5)
    ids = pl.read_csv(fresh)["id"].to_list()
    n_taught = sum(id_hash(name) in taught for name in ids)
    content = certified(out, tmp_path / "fresh", fresh, rank_by=combine, seed=5)
    assert content["certificate"]["n_labels"] == 150 - n_taught and 0 < n_taught < 50


def test_shares_end_where_ranks_differ(out: Path, tmp_path: Path) -> None:
    """A share that cuts equal rows is a random part of them: it costs a test and says nothing."""
    filtered(out, tmp_path / "kept", rank_by="f1", share="0.5", near_duplicates="none")
    table = pl.read_parquet(out / "scores")["f1"].drop_nulls()
    yields = pl.read_parquet(tmp_path / "kept" / "yield.parquet")
    for cut, n_rows in yields.select("cut", "rows").iter_rows():
        assert n_rows == (table >= cut).sum()
    assert yields["cut"].is_unique().all() and yields.height < 20
    assert yields["rows"][-1] == len(table)


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
    few = "20 labels are too few for that precision: 29 of the kept part are the least"
    request = FilterRequest(rules="none", **TOP, **given)
    assert any(few in line for line in dry_run_lines(make_plan(request, opened(out, request))))
    _, said = filtered(out, tmp_path / "kept", **TOP, **given)
    assert any(few in line for line in said)
    # Of those of a learned rank two thirds are left.
    more, _ = sheet_of(out, tmp_path / "any", n=400, learn=("f1", "rouge_l"))
    given = {"labels": str(more), "label": "good", "precision": 0.2, "learn": ("f1", "rouge_l")}
    _, said = filtered(out, tmp_path / "learned", **TOP, **given)
    assert any("even if all 266 labels turn out good" in line for line in said)
