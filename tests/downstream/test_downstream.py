"""The downstream experiment: parts, what is asked for, halves, steps, errors; and the whole."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import downstream, downstream_table, question_writer, squad_parts
from benchmarks.downstream import Settings, Work, choose, epochs_for, keep_half
from benchmarks.downstream_table import CONDITIONS, difference, holm, power, summarize, table
from benchmarks.question_writer import WriterTask, answer_spans, prompt
from benchmarks.squad_parts import shorten, split_articles
from helpers import REPOSITORY
from qaeval_core.models.registry import resolve_model
from qaeval_export.training.model import load_tokenizer

PEOPLE = ("Ann Lee", "Bo Hart", "Cy Moss", "Di Fenn", "Ed Vale", "Flo Reed")


def squad(n_articles: int = 6, *, n_passages: int = 3) -> pl.DataFrame:
    """Return passages with three questions each, one with two annotators, one without an answer."""
    rows = []
    for article in range(n_articles):
        for passage in range(n_passages):
            number = 10 * article + passage
            person, year = PEOPLE[number % len(PEOPLE)], 1800 + number
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


@pytest.mark.parametrize("module", [downstream, downstream_table, question_writer, squad_parts])
def test_examples_are_true(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0


def answerable() -> pl.DataFrame:
    return squad().filter(pl.col("answers").list.len() > 0)


def test_no_article_is_in_two_parts() -> None:
    """A reader that has seen the passages that judge it proves nothing."""
    rows = answerable()
    sizes = {"a": 12, "c": 9}
    parts, left = split_articles(rows, sizes=sizes, seed=3)
    assert {name: len(part) for name, part in parts.items()} == sizes
    parts["left"] = rows.filter(pl.col("title").is_in(left))
    assert len(left) == 6 - 2 - 1
    for column in ("title", "context", "id"):
        seen = [set(part[column]) for part in parts.values()]
        assert len(set.union(*seen)) == sum(map(len, seen))
    again, _ = split_articles(rows.reverse().sort("id"), sizes=sizes, seed=3)
    assert all(again[name].equals(parts[name]) for name in sizes)
    with pytest.raises(ValueError, match="9 questions are left for c, not 28"):
        split_articles(rows, sizes={"a": 45, "c": 28}, seed=3)


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


def test_spans_stand_where_they_are_said_to() -> None:
    """Each text once; as many as asked for, drawn by the seed."""
    text = squad()["context"][0] + " Ann Lee sold the old mill in 1799, and 40% of it burned."
    spans = answer_spans(text, most=20, seed=[1])
    assert all(text[start:].startswith(answer) for answer, start in spans)
    assert len({answer for answer, _ in spans}) == len(spans) > 4
    assert {"old mill", "1799", "40%"} <= {answer for answer, _ in spans}
    few = [tuple(answer_spans(text, most=3, seed=[seed])) for seed in range(9)]
    assert all(len(own) == 3 for own in few) and len(set(few)) > 3


def test_a_span_is_marked_in_its_own_sentence() -> None:
    """One that reaches over two sentences is shown in both."""
    passage = "Ann left. Bo sold the\nmill. Nobody came."
    assert prompt(passage, "mill", 22) == "Bo sold the <<mill>>.\nQuestion:"
    assert prompt(passage, "left. Bo", 4) == "Ann <<left. Bo>> sold the mill.\nQuestion:"


def test_the_writer_learns_the_question_alone() -> None:
    """A padded batch has the loss of its rows one by one, over the tokens of the questions."""
    tokenizer = load_tokenizer(resolve_model("minilm", role="encoder")).backend_tokenizer
    rows = answerable().head(5)
    task = WriterTask(rows, rows.head(3), tokenizer)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    inputs = task.collate([(row, 0) for row in range(5)])
    labels = inputs.pop("labels")
    losses = []
    with torch.inference_mode():
        found = float(task.loss(model(**inputs).logits, labels))
        for row in rows.iter_rows(named=True):
            read = prompt(row["context"], row["answers"][0], row["answer_starts"][0])
            before, own = (
                tokenizer.encode(text, add_special_tokens=False).ids
                for text in (read, f" {row['question']}\n")
            )
            logits = model(input_ids=torch.tensor([before + own])).logits[0].log_softmax(dim=-1)
            losses += [
                -float(logits[len(before) + place - 1, token]) for place, token in enumerate(own)
            ]
    assert found == pytest.approx(np.mean(losses), rel=1e-4)


def test_every_condition_takes_as_many_steps() -> None:
    """A half is gone through twice; what cannot come to the same steps is refused."""
    own = {"n_examples": 4800, "batch_size": 16, "n_steps": 300}
    assert [epochs_for(n_rows, **own) for n_rows in (2400, 1200)] == [2, 4]
    with pytest.raises(ValueError, match="600 rows in batches of 16"):
        epochs_for(600, **own)  # 8 x 38 steps
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


def test_where_one_source_errs_the_interval_is_the_plain_one() -> None:
    """Student's t over seeds where passages agree, over passages where seeds do."""
    draw = np.random.default_rng(0)
    zeros = np.zeros((8, 50))
    by_seed = draw.normal(0.02, 0.01, size=(8, 1)) + zeros
    by_passage = draw.normal(0.02, 0.1, size=(1, 50)) + zeros
    for gains, plain in ((by_seed, by_seed[:, 0]), (by_passage, by_passage[0])):
        expected = stats.ttest_1samp(plain, 0.0)
        found = difference(gains, zeros, passages=np.arange(50))
        assert found.p_value == pytest.approx(expected.pvalue)
        assert found.interval == pytest.approx(list(expected.confidence_interval()))
    both = difference(by_seed + by_passage, zeros, passages=np.arange(50))
    assert both.sd_seeds > 0 and both.sd_passages > 0 and 7 < both.freedom < 56
    whole = difference(by_seed + by_passage, zeros, passages=np.arange(50) // 10)
    assert whole.sd_passages != both.sd_passages  # Questions of one passage stand for one.


def test_intervals_hold_for_other_seeds_and_other_passages() -> None:
    """Of 2,000 made experiments 95 %, and as many differences are found as the power says."""
    draw = np.random.default_rng(1)
    passages = np.arange(240) // 4
    missed, n_found, told = 0, 0, []
    for _ in range(2000):
        gains = (
            0.02
            + draw.normal(0, 0.02, size=(8, 1))
            + draw.normal(0, 0.05, size=60)[passages]
            + draw.normal(0, 0.1, size=240)
        )
        found = difference(gains, np.zeros_like(gains), passages=passages)
        missed += not found.interval[0] <= 0.02 <= found.interval[1]
        n_found += found.p_value <= 0.05
        told.append(power(found, 0.02))
    assert 0.035 <= missed / 2000 <= 0.065
    assert n_found / 2000 == pytest.approx(np.mean(told), abs=0.04)


def test_holm_corrects_the_smallest_most() -> None:
    """Each is compared with those that are not smaller; no order is turned."""
    draw = np.random.default_rng(2)
    for _ in range(50):
        raw = draw.random(5) ** 3
        expected = [
            min(1.0, max(raw[k] * (raw >= raw[k]).sum() for k in range(5) if raw[k] <= raw[j]))
            for j in range(5)
        ]
        assert holm(raw.tolist()) == pytest.approx(expected)


def begin(folder: Path, **changed: object) -> Work:
    """Open a work folder of a few rows; nothing is trained."""
    if not (folder / "squad.parquet").is_file():
        squad(12).write_parquet(folder / "squad.parquet")
    given = dict.fromkeys(Settings.__dataclass_fields__, 1)
    given |= {"n_a": 9, "n_writer": 5, "n_b": 54, "n_c": 9, "passage_tokens": 64}
    work = Work(folder / "work", Settings(**{**given, **changed}))  # type: ignore[arg-type]
    work.begin([folder / "squad.parquet", folder / "squad.parquet"])
    return work


def test_a_work_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    """Results of two settings must not meet in one table; an article of two files is taken once."""
    work = begin(tmp_path)
    names = ("a", "c", "gold")
    parts = {name: work.part(name) for name in names}
    assert [len(parts[name]) for name in names] == [9, 9, 27]
    assert len({*parts["a"]["id"], *parts["c"]["id"], *parts["gold"]["id"]}) == 9 + 9 + 27
    assert set(work.part("writer")["id"]) < set(parts["a"]["id"])
    # Written on are all passages of the articles that are left, and no others.
    written_on = set(work.part("passages")["context"])
    assert len(written_on) == len(work.part("passages")) == 10 * 3
    assert written_on > set(parts["gold"]["context"])
    assert not written_on & {*parts["a"]["context"], *parts["c"]["context"]}
    assert all(begin(tmp_path).part(name).equals(rows) for name, rows in parts.items())
    with pytest.raises(SystemExit, match=r"begun with other settings \(n_examples, rank\)"):
        begin(tmp_path, rank=2, n_examples=3)


def test_halves_are_what_they_are_called(tmp_path: Path) -> None:
    """Those of the filter are the same for all seeds but for ties; random ones are not."""
    work = begin(tmp_path)
    draw = np.random.default_rng(0)
    pl.DataFrame(
        {
            "id": [str(row) for row in range(54)],
            "context": ["Ann sold it."] * 54,
            "question": ["Who?"] * 54,
            "answer": ["Ann"] * 54,
            "answer_start": [0] * 54,
            "roundtrip": pl.Series([None, *draw.random(53)]),
        }
    ).write_parquet(work.folder / "b.parquet")
    whole = choose(work, 0, "all")
    assert len(whole) == 54 and whole["answers"].to_list() == [["Ann"]] * 54
    best = choose(work, 0, "roundtrip")
    assert len(best) == 27 and best["roundtrip"].min() >= whole["roundtrip"].median()  # type: ignore[operator]
    assert best["id"].equals(choose(work, 1, "roundtrip")["id"])
    random = [choose(work, seed, "random") for seed in (0, 1)]
    assert len(random[0]) == 27 and not random[0]["id"].equals(random[1]["id"])
    assert choose(work, 0, "gold").equals(work.part("gold"))


def test_the_table_shows_what_was_found() -> None:
    """In percent, and points; the first difference is the one test."""
    draw = np.random.default_rng(0)
    found = {
        str(seed): {
            name: {
                "n_rows": 4 if name == "all" else 2,
                "em": 0.25,
                "f1": 0.5 + 0.01 * seed,
                "rows": {"f1": (draw.random(9) + (name == "gold")).tolist()},
            }
            for name in CONDITIONS
        }
        for seed in range(3)
    }
    summary = summarize(found, contexts=np.array(list("aaabbbccc")))
    assert next(iter(summary["differences"])) == "roundtrip - random"
    assert summary["n_passages_c"] == 3 and summary["n_seeds"] == 3
    lines = table(summary).splitlines()
    assert "| gold | 2 | 25.0 | 51.0 | 50.0, 52.0 |" in lines
    assert sum("the one test" in line for line in lines) == 1
    assert lines[-1].startswith("chance to find a true difference of so many points: 1.0: 0.")


def test_the_page_says_what_the_record_says() -> None:
    """Figures of an experiment that was run again go into the page, too."""
    record = json.loads(downstream.EVIDENCE.read_text(encoding="utf-8"))
    page = (REPOSITORY / "docs" / "filter.md").read_text(encoding="utf-8")
    worth = " ".join(page.partition("## What it is worth")[2].partition("\n## ")[0].split())
    assert " ".join(table(record).split()) in worth
    facts, n_passages = record["facts"], record["facts"]["n_passages"]
    n_steps = record["n_examples"] // record["batch_size"]
    for said in (
        f"stretches of at most {record['passage_tokens']} tokens",
        f"A: {record['n_a']:,} people's questions",
        f"learned on {record['n_writer']:,} of them",
        f"B: {record['n_b']:,} questions that this model wrote",
        f"on {facts['n_passages_b']:,} stretches of",
        f"drawn from the {facts['n_written']:,} that it wrote",
        f"but {facts['n_no_question']} lines that ended in no question mark",
        f"C: {record['n_c']:,} people's questions on {n_passages['c']:,} stretches",
        f"{n_steps} steps of {record['batch_size']} examples",
    ):
        assert said in worth, said


@pytest.mark.long
def test_the_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    """Two and a quarter hours on two cores: its figures are kept, whatever they are."""
    record = downstream.EVIDENCE
    assert downstream.main(["--json", str(record)]) == 0
    told = capsys.readouterr().out
    print(told)
    assert "roundtrip - random" in told and record.is_file()
