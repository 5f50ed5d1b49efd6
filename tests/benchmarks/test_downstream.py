"""The pure parts of the downstream benchmark: parts, spoiling, halves, steps."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks import downstream, downstream_table, spoiled_questions
from benchmarks.downstream import (
    FEATURES,
    Settings,
    Work,
    choose,
    draw_labels,
    epochs_for,
    keep_half,
    learn,
)
from benchmarks.downstream_table import CONDITIONS, RANKED, difference, summarize, table
from benchmarks.spoiled_questions import (
    CLEAN,
    KINDS,
    shares_words,
    shorten,
    split_articles,
    spoil,
)
from helpers import REPOSITORY

PEOPLE = ("Ann Lee", "Bo Hart", "Cy Moss", "Di Fenn", "Ed Vale", "Flo Reed")


def squad(n_articles: int = 6, *, n_passages: int = 3) -> pl.DataFrame:
    """Return passages with three questions each, one with two annotators, one without an answer."""
    rows = []
    for article in range(n_articles):
        for passage in range(n_passages):
            number = 10 * article + passage
            person, year = PEOPLE[number % len(PEOPLE)], 1800 + number
            # Every passage has the word of one answer, so that its donors are known: mill 7.
            context = f"In {year} {person} of Hill {number} sold mill {number + 100} near mill 7."
            asked = {
                f"Who sold a mill to Mr Gray in {year}?": [person, f"{person} of Hill {number}"],
                f"When did {person} sell the mill of Old Tom?": [str(year)],
                f"What lay near the mill of {person} in article {article}?": ["mill 7"],
                "What was never said?": [],
            }
            rows += [
                {
                    "id": f"{article}-{passage}-{place}",
                    "title": f"article {article}",
                    "context": context,
                    "question": question,
                    "answers": answers,
                    "answer_starts": [context.index(answer) for answer in answers],
                }
                for place, (question, answers) in enumerate(asked.items())
            ]
    return pl.DataFrame(rows, schema_overrides={"answer_starts": pl.List(pl.Int64)})


@pytest.mark.parametrize("module", [downstream, downstream_table, spoiled_questions])
def test_examples_are_true(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0


def answerable(**options: int) -> pl.DataFrame:
    return squad(**options).filter(pl.col("answers").list.len() > 0)


def pairs(seed: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return rows before and after."""
    rows = answerable()
    after = spoil(rows, share=0.5, seed=seed)
    assert after["id"].equals(rows["id"])
    return list(zip(rows.iter_rows(named=True), after.iter_rows(named=True), strict=True))


def test_no_article_is_in_two_parts() -> None:
    """A reader that has seen the passages that judge it proves nothing."""
    rows = answerable()
    sizes = {"a": 12, "b": 9, "c": 7}
    parts = split_articles(rows, sizes=sizes, seed=3)
    assert {name: len(part) for name, part in parts.items()} == sizes
    for column in ("title", "context", "id"):
        seen = [set(part[column]) for part in parts.values()]
        assert len(set.union(*seen)) == sum(map(len, seen))
    again = split_articles(rows.reverse().sort("id"), sizes=sizes, seed=3)
    assert all(again[name].equals(part) for name, part in parts.items())
    with pytest.raises(ValueError, match="9 questions are left for c, not 28"):
        split_articles(rows, sizes={**sizes, "b": 27, "c": 28}, seed=3)


def test_stretches_keep_answers_where_they_stand() -> None:
    """A cut passage is whole sentences, and every annotator's answer is in its stretch."""
    context = "Ann left in 1901. Bo stayed. Cy sold the old mill to Di. Nobody came."
    answers = [["1901"], ["Bo", "Bo stayed"], ["Ann", "Cy"], ["mill"], []]
    rows = pl.DataFrame(
        {
            "id": list("abcde"),
            "title": ["t"] * 5,
            "context": [context] * 5,
            "question": ["?"] * 5,
            "answers": answers,
            "answer_starts": [[context.index(own) for own in given] for given in answers],
        }
    )
    cut = shorten(rows, count_tokens=lambda text: len(text.split()), max_tokens=6)
    assert dict(zip(cut["id"], cut["context"], strict=True)) == {
        "a": "Ann left in 1901. Bo stayed.",
        "b": "Ann left in 1901. Bo stayed.",
    }
    long = shorten(rows, count_tokens=lambda text: len(text.split()), max_tokens=7)
    assert long["id"].to_list() == ["a", "b", "d"]
    for row in long.iter_rows(named=True):
        for answer, start in zip(row["answers"], row["answer_starts"], strict=True):
            assert row["context"][start : start + len(answer)] == answer


@pytest.mark.parametrize("seed", range(8))
def test_half_is_spoiled_a_third_each_way_and_never_stays_right(seed: int) -> None:
    """Each way changes what it says and nothing else; the answer is wrong and in the passage."""
    n_seen = dict.fromkeys((CLEAN, *KINDS), 0)
    donors = {row["question"]: row for row in answerable().iter_rows(named=True)}
    for before, after in pairs(seed):
        how = after["how"]
        n_seen[how] += 1
        start = after["answer_start"]
        assert after["context"] == before["context"]
        assert after["context"][start:].startswith(after["answer"])
        if how == "wrong_span":
            assert after["question"] == before["question"]
            assert not shares_words(after["answer"], before["answers"])
            continue
        assert (after["answer"], start) == (before["answers"][0], before["answer_starts"][0])
        assert (after["question"] == before["question"]) == (how == CLEAN)
        if how == "entity_swap":
            old, new = set(before["question"].split()), set(after["question"].split())
            put_in = new - old
            assert put_in and not any(word.strip("?") in before["context"] for word in put_in)
        if how == "other_question":
            donor = donors[after["question"]]
            assert donor["context"] != before["context"]
            assert not any(answer in before["context"] for answer in donor["answers"])
    assert n_seen == {CLEAN: 27, **dict.fromkeys(KINDS, 9)}


def test_a_question_whose_answer_the_passage_has_spoils_nothing() -> None:
    """Mill 7 lies in every passage: asking for it is a question of each."""
    for seed in range(8):
        swapped = [after for _, after in pairs(seed) if after["how"] == "other_question"]
        assert not any(after["question"].startswith("What lay near") for after in swapped)


def test_an_answer_inside_a_right_one_is_not_wrong() -> None:
    """A second annotator's longer answer counts: a part of it is no wrong span."""
    context = "The old mill of Ann Lee burned. Bo came."
    rows = pl.DataFrame(
        {
            "id": ["a", "b", "c"],
            "title": ["t"] * 3,
            "context": [context] * 3,
            "question": ["What burned?", "Whose mill burned?", "Who came?"],
            "answers": [["mill", "The old mill of Ann Lee"], ["Ann Lee"], ["Bo"]],
            "answer_starts": [[8, 0], [16], [31]],
        }
    )
    corpus = spoiled_questions._Corpus(list(rows.iter_rows(named=True)))
    found = {
        spoiled_questions._wrong_span(corpus.rows[0], corpus, np.random.default_rng(seed))["answer"]
        for seed in range(20)
    }
    assert found == {"Bo"}


def test_spoiling_is_decided_by_the_seed() -> None:
    """The same seed gives the same rows; another one others."""
    rows = answerable()
    one, again, other = (spoil(rows, share=0.5, seed=seed) for seed in (1, 1, 2))
    assert one.equals(again) and not one.equals(other)
    assert one["how"].to_list() != other["how"].to_list()
    with pytest.raises(ValueError, match="too few questions can be spoiled"):
        spoil(rows.head(1), share=1.0, seed=0)


def test_every_condition_takes_as_many_steps() -> None:
    """A half is gone through twice; what cannot come to the same steps is refused."""
    own = {"n_examples": 1500, "batch_size": 16, "n_steps": 94}
    for n_rows in (1500, 750, 500):
        epochs = epochs_for(n_rows, **own) if n_rows != 500 else 0
        assert epochs * n_rows == (1500 if epochs else 0)
    with pytest.raises(ValueError, match="500 rows in batches of 16"):
        epochs_for(500, **own)  # 3 x 32 steps
    with pytest.raises(ValueError, match="700 rows"):
        epochs_for(700, **own)


def test_the_better_half_depends_on_no_order() -> None:
    """Ties are cut by id: shuffled rows give the same half, of the same size."""
    draw = np.random.default_rng(0)
    ids = [f"row {i}" for i in range(101)]
    scores = draw.integers(0, 3, size=101).astype(float)
    scores[:9] = np.nan
    kept = keep_half(scores, ids, seed=0)
    assert kept.sum() == 50 and not kept[:9].any()
    assert scores[kept].min() >= np.nanmax(scores[9:][~kept[9:]])
    order = draw.permutation(101)
    shuffled = keep_half(scores[order], [ids[row] for row in order], seed=0)
    assert (shuffled == kept[order]).all()
    tied = np.zeros(101)
    halves = {tuple(keep_half(tied, ids, seed=seed)) for seed in range(3)}
    assert len(halves) == 3 and all(0 < sum(half[:50]) < 50 for half in halves)


def test_what_is_learned_from_shares_no_passage_with_what_certifies() -> None:
    """And labels of rows that are not learned from change no score."""
    contexts = [f"passage {i // 3}" for i in range(300)]
    labeled = draw_labels(contexts, n_labels=90, seed=1)
    rows = [*labeled.learned, *labeled.held]
    assert len(set(rows)) == 90
    learned, held = ({contexts[row] for row in part} for part in (labeled.learned, labeled.held))
    assert learned and held and not learned & held
    draw = np.random.default_rng(0)
    is_clean = draw.random(300) < 0.5
    features = np.column_stack([is_clean + draw.normal(size=300), draw.normal(size=(300, 3))])
    features[5, 0] = np.nan
    own = {"contexts": contexts, "seed": 1}
    scores = learn(features, is_clean, labeled.learned, **own)
    assert scores[is_clean].mean() > scores[~is_clean].mean() + 0.5
    other = is_clean.copy()
    other[np.setdiff1d(np.arange(300), labeled.learned)] ^= True
    assert np.array_equal(learn(features, other, labeled.learned, **own), scores)


def test_a_difference_is_paired_by_question() -> None:
    """Equal gains on every question leave no doubt; the spread is that of the seeds."""
    low = np.tile([0.0, 0.5], 20)
    runs = {
        seed: {
            "left": {"f1": float(low.mean()) + gain, "rows": {"f1": (low + gain).tolist()}},
            "right": {"f1": float(low.mean()), "rows": {"f1": low.tolist()}},
        }
        for seed, gain in enumerate((0.1, 0.2, 0.3))
    }
    found = difference(runs, "left", "right", passages=np.arange(40) // 4)
    assert found["mean"] == pytest.approx(0.2) and found["spread"] == pytest.approx(0.1)
    assert found["interval"] == pytest.approx([0.2, 0.2])


def begin(folder: Path, **changed: int) -> Work:
    """Open a work folder of a few rows; nothing is trained."""
    if not (folder / "squad.parquet").is_file():
        squad(12).write_parquet(folder / "squad.parquet")
    given = dict.fromkeys(Settings.__dataclass_fields__, 1)
    given |= {"n_a": 9, "n_b": 54, "n_c": 9, "n_dev": 9, "passage_tokens": 64, "n_labels": 20}
    return Work(
        folder / "work",
        Settings(**{**given, **changed}),
        squad=folder / "squad.parquet",
        n_threads=1,
    )


def test_a_work_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    """Results of two settings must not meet in one table."""
    parts = begin(tmp_path).parts
    assert not set(parts["a"]["context"]) & set(parts["c"]["context"])
    assert all(parts[name].equals(rows) for name, rows in begin(tmp_path).parts.items())
    with pytest.raises(SystemExit, match=r"begun with other settings \(n_labels, rank\)"):
        begin(tmp_path, rank=2, n_labels=3)


def test_halves_are_of_the_rows_that_a_seed_spoiled(tmp_path: Path) -> None:
    """And what is said of a half is true of it."""
    work = begin(tmp_path)
    whole, facts = choose(work, 0, "unfiltered", tmp_path)
    assert len(whole) == 54 and facts == {"share_clean": 0.5}
    oracle, facts = choose(work, 0, "oracle", tmp_path)
    assert set(oracle["how"]) == {CLEAN} and facts["share_clean"] == facts["auc"] == 1.0
    held = facts["held_labels"]
    assert held["n"] == held["clean"] > 0
    assert held["bound"] == pytest.approx(0.05 ** (1 / held["n"]))
    random, facts = choose(work, 0, "random", tmp_path)
    assert len(random) == 27 == sum(facts["kept"].values())
    assert facts["share_clean"] == (random["how"] == CLEAN).mean()
    other, _ = choose(work, 1, "random", tmp_path)
    assert random["id"].to_list() != other["id"].to_list()


def test_learned_scores_read_both_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank learned from one good and one useless column keeps more clean rows than chance."""
    work = begin(tmp_path, n_labels=54)
    is_clean = (downstream.seed_rows(work, 0)["how"] == CLEAN).to_numpy()
    draw = np.random.default_rng(0)
    columns = {name: draw.random(54) for name in FEATURES}
    columns["qrelscore"] += 2.0 * is_clean
    found = pl.DataFrame({name: columns[name] for name in FEATURES[:-1]})
    monkeypatch.setattr(downstream, "roundtrip_scores", lambda *_: found)
    monkeypatch.setattr(downstream, "qrelscores", lambda *_: columns["qrelscore"])
    shares = {name: choose(work, 0, name, tmp_path)[1]["share_clean"] for name in RANKED}
    assert shares["learned"] > 0.9 > shares["roundtrip"] and shares["qrelscore"] == 1.0


def test_the_table_shows_means_and_spreads() -> None:
    """Over seeds, in percent; the random half is what the others are compared with."""

    def result(condition: str, seed: int) -> dict[str, Any]:
        f1 = 0.5 + 0.01 * seed + (0.1 if condition == "oracle" else 0.0)
        facts = {"em": 0.25, "f1": f1, "share_clean": 0.5, "rows": {"f1": [f1] * 9}}
        if condition != "unfiltered":
            facts["kept"] = {CLEAN: 6, **dict.fromkeys(KINDS, seed)}
            facts |= {"auc": 0.75, "auc_by_kind": dict.fromkeys(KINDS, 0.75), "held_labels": {}}
        return facts

    runs = {seed: {name: result(name, seed) for name in CONDITIONS} for seed in range(3)}
    summary = summarize(
        {"base": {"em": 0.2, "f1": 0.4}, "seeds": runs}, contexts=np.array(list("aaabbbccc"))
    )
    assert summary["random"]["kept"] == {CLEAN: [6, 6, 6], **{kind: [0, 1, 2] for kind in KINDS}}
    assert summary["random"]["by_seed"] == {"em": [0.25] * 3, "f1": [0.5, 0.51, 0.52]}
    assert "kept" not in summary["unfiltered"]
    lines = table(summary, n_seeds=3).splitlines()
    assert lines[2] == "| nothing | 20.0 | 40.0 | | | |"
    assert "| oracle | 25.0 ± 0.0 | 61.0 ± 1.0 | 50.0 ± 0.0 |  | +10.0 [+10.0, +10.0] |" in lines
    assert "| roundtrip | 25.0 ± 0.0 | 51.0 ± 1.0 | 50.0 ± 0.0 | 0.750 ± 0.000 |" in lines[5]
    assert len(lines) == 3 + len(CONDITIONS)


def test_pages_say_what_was_measured() -> None:
    """The table of docs/filter.md is that of the record."""
    record = json.loads((REPOSITORY / "docs/evidence/downstream.json").read_text(encoding="utf-8"))
    guide = (REPOSITORY / "docs/filter.md").read_text(encoding="utf-8")
    summary = record["summary"]
    base = [f"{100 * summary['base'][name]:.1f}" for name in ("em", "f1")]
    assert f"| nothing (the reader of A) | {' | '.join(base)} |" in guide
    for name in CONDITIONS:
        own = summary[name]
        told = [f"{100 * mean:.1f} ± {100 * sd:.1f}" for mean, sd in (own["em"], own["f1"])]
        clean = f"{100 * own['share_clean'][0]:.0f} %"
        line = next(line for line in guide.splitlines() if f" | {' | '.join(told)} | " in line)
        assert f" | {clean} | " in line, name
        if name in RANKED:
            mean, sd = own["auc"]
            assert f" | {mean:.3f} ± {sd:.3f} | ".replace(" 0.", " .") in line, name
        if name != "random":
            low, high = own["less_random"]["interval"]
            middle = own["less_random"]["mean"]
            assert f"{100 * middle:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]" in line, name


def test_the_page_says_what_rows_cost_and_what_scores_tell() -> None:
    """Beside all of B, and by how rows were spoiled: no figure there that the record lacks."""
    record = json.loads((REPOSITORY / "docs/evidence/downstream.json").read_text(encoding="utf-8"))
    text = " ".join((REPOSITORY / "docs/filter.md").read_text(encoding="utf-8").split())
    text = text[text.index("## What it is worth") : text.index("## Python")]
    summary = record["summary"]
    cost = 100 * (summary["base"]["f1"] - summary["unfiltered"]["f1"][0])

    def gain(name: str) -> str:
        own = summary[name]["less_unfiltered"]
        low, high = (100 * end for end in own["interval"])
        return f"{100 * own['mean']:.1f} [{low:.1f}, {high:.1f}]"

    assert (
        f"Unfiltered, the spoiled questions cost the reader {cost:.1f} points of F1. "
        f"Above that are the half of `roundtrip` by {gain('roundtrip')}, as far as the clean half "
        f"({gain('oracle')}) but for noise, the learned one by "
        f"{gain('learned')}, and that of `qrelscore` by {gain('qrelscore')}: no better"
    ) in text
    for name in (*RANKED, "random"):
        areas = [summary[name]["auc_by_kind"][kind] for kind in KINDS]
        cells = " | ".join(f"{mean:.3f} ± {sd:.3f}".replace("0.", ".") for mean, sd in areas)
        title = f"`{name}`" if name in ("roundtrip", "qrelscore") else name
        assert f"| {title} | {cells} |" in text
    assert "learned rank tells it depends on the seed most, and so does its F1" in text
    for spread in (
        {name: summary[name]["auc_by_kind"]["wrong_span"][1] for name in RANKED},
        {name: summary[name]["f1"][1] for name in RANKED},
    ):
        assert max(RANKED, key=spread.__getitem__) == "learned"
