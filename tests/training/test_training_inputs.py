"""What a training job reads: good files become examples, bad ones a message that says where."""

from __future__ import annotations

import doctest
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qaeval_core.errors import ConfigError, InputError, SchemaError, UnreadableFileError
from qaeval_export.training.__main__ import main
from qaeval_export.training.inputs import (
    Question,
    TrainingPairs,
    check_file,
    hold_out_contexts,
    hold_out_pairs,
    read_pairs,
    read_squad,
)
from qaeval_export.training.options import parse_options

PLAIN = {"text_a": "text_a", "text_b": "text_b", "score": "score"}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as Parquet or JSONL, by the file's name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["pairs.parquet", "pairs.jsonl"])
def test_pairs_are_read_under_other_names_and_scales(tmp_path: Path, name: str) -> None:
    """STS-B calls its columns otherwise and scores from 0 to 5; halved scores would go unseen."""
    rows = [{"one": "a", "two": "b", "sts": 5}, {"one": "c", "two": "", "sts": 0}]
    path = write_rows(tmp_path / name, rows)
    columns = {"text_a": "one", "text_b": "two", "score": "sts"}
    pairs = read_pairs([path, path], columns=columns, scale=5.0)
    assert pairs == TrainingPairs(["a", "c"] * 2, ["b", ""] * 2, [1.0, 0.0] * 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text_a": "a", "text_c": "b", "score": 1}], "'text_b'.*'text_[ac]'.*QA0305"),
        ([{"text_a": "a", "text_b": None, "score": 1}], "'text_b'.*0.*QA0901"),
        ([{"text_a": "a", "text_b": 7, "score": 1}], "'text_b'.*0.*QA0901"),
        (
            [{"text_a": "a", "text_b": "b", "score": s} for s in (1.0, 3.0)],
            r"'score'.*1.*3.*--scale.*1.*3.*\[0.*1\].*QA0901",
        ),
        ([{"text_a": "a", "text_b": "b", "score": "1"}], "'score'.*0.*QA0901"),
        ([{"text_a": "a", "text_b": "b", "score": float("nan")}], "QA0901"),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_bad_pair_is_named(
    tmp_path: Path, suffix: str, rows: list[dict[str, Any]], message: str
) -> None:
    """One bad row of millions, found after an hour of training, would cost the hour."""
    path = write_rows(tmp_path / f"pairs.{suffix}", rows)
    with pytest.raises(InputError, match=message) as error:
        read_pairs([path], columns=PLAIN, scale=1.0)
    assert str(path) in str(error.value)


def test_damaged_and_empty_files_are_named(tmp_path: Path) -> None:
    """A half-copied file must not train a model on half the data."""
    broken = tmp_path / "pairs.parquet"
    broken.write_bytes(b"PAR1, once")
    with pytest.raises(UnreadableFileError, match=r"pairs\.parquet.*Parquet.*QA0304"):
        read_pairs([broken], columns=PLAIN, scale=1.0)
    lines = tmp_path / "pairs.jsonl"
    lines.write_text('{"text_a": "a", "text_b": "b", "score": 1}\n{"text_a": "a", "te')
    with pytest.raises(UnreadableFileError, match="2.*JSON.*QA0304"):
        read_pairs([lines], columns=PLAIN, scale=1.0)
    lines.write_bytes(b'{"text_a": "a", "text_b": "\xff", "score": 1}\n')
    with pytest.raises(UnreadableFileError, match="1.*JSON.*'utf-8'.*QA0304"):
        read_pairs([lines], columns=PLAIN, scale=1.0)
    lines.write_text(f'{{"text_a": "a", "text_b": "b", "score": 1{"0" * 400}}}')
    with pytest.raises(InputError, match="'score'.*0.*QA0901"):
        read_pairs([lines], columns=PLAIN, scale=1.0)
    lines.write_text("")
    with pytest.raises(InputError, match="QA0901"):
        read_pairs([lines], columns=PLAIN, scale=1.0)
    with pytest.raises(InputError, match=r"'pairs\.jsonl'.*QA0301"):
        check_file(tmp_path / "pairs.json", option="--pairs")


def test_held_out_pairs_never_come_back_swapped() -> None:
    """(b, a) in training and (a, b) in dev would make a memory look like understanding."""
    texts = [f"text {i % 20}" for i in range(60)]
    pairs = TrainingPairs(texts, texts[1:] + texts[:1], [0.5] * 60)
    swapped = TrainingPairs(pairs.text_b, pairs.text_a, pairs.score)
    both = TrainingPairs(*(getattr(pairs, n) + getattr(swapped, n) for n in pairs.__slots__))
    train, dev = hold_out_pairs(both, share=0.2, seed=3)
    keys = [{frozenset(p) for p in zip(s.text_a, s.text_b, strict=True)} for s in (train, dev)]
    assert keys[0] & keys[1] == set()
    assert len(train) + len(dev) == 120
    assert len(keys[1]) == 4
    assert hold_out_pairs(both, share=0.2, seed=3)[1] == dev
    with pytest.raises(ConfigError, match="QA0104"):
        hold_out_pairs(TrainingPairs(["a"], ["b"], [1.0]), share=0.5, seed=0)


def squad_json(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a file of one question, laid out as SQuAD."""
    asked = {"id": "q1", "question": "Who?", "answers": answers}
    return {"data": [{"title": "t", "paragraphs": [{"context": "Ann came.", "qas": [asked]}]}]}


def test_squad_is_read_from_json_and_parquet(tmp_path: Path) -> None:
    """SQuAD comes as JSON, and as Parquet in two layouts; all mean the same spans."""
    texts, starts = ["Ann", "Ann came"], [0, 0]
    expected = [Question("Ann came.", "Who?", ((0, 3), (0, 8)))]
    json_path = tmp_path / "squad.json"
    answers = [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=True)]
    json_path.write_text(json.dumps(squad_json(answers)))
    row = {"context": "Ann came.", "question": "Who?"}
    flat = write_rows(
        tmp_path / "flat.parquet",
        [
            {**row, "answers": texts, "answer_starts": starts},
            {**row, "answers": [], "answer_starts": []},  # unanswerable
            {**row, "answers": ["yes"], "answer_starts": [-1]},
        ],
    )
    nested = write_rows(
        tmp_path / "nested.parquet",
        [{**row, "answers": {"text": texts, "answer_start": starts}}],
    )
    assert [read_squad([path]) for path in (json_path, flat, nested)] == [expected] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer_starts": [1]}, "0.*'Ann'.*1.*QA0901"),
        ({"answers": ["Ann", "Bo"]}, "0.*2.*1.*QA0901"),
        ({"context": None}, "0.*'context'.*QA0901"),
        ({"answers": ["yes"]}, "QA0901"),
    ],
)
def test_a_bad_question_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """A wrong offset labels the wrong words, and no loss would show it."""
    row = {"context": "Ann came.", "question": "Who?", "answers": ["Ann"], "answer_starts": [0]}
    path = write_rows(tmp_path / "squad.parquet", [{**row, **change}])
    with pytest.raises(InputError, match=message):
        read_squad([path])


def test_a_question_without_answers_is_named(tmp_path: Path) -> None:
    """A null in the column of answers ended in a traceback."""
    row = {"context": "Ann came.", "question": "Who?"}
    rows = [{**row, "answers": {"text": ["Ann"], "answer_start": [0]}}, {**row, "answers": None}]
    path = write_rows(tmp_path / "nested.parquet", rows)
    with pytest.raises(InputError, match="1.*QA0901"):
        read_squad([path])


def test_json_that_is_not_squad_is_named(tmp_path: Path) -> None:
    """Another JSON file must be told apart from an empty SQuAD."""
    path = tmp_path / "squad.json"
    path.write_text('{"data": [{"title": "t"}]}')
    with pytest.raises(SchemaError, match="SQuAD.*'paragraphs'.*QA0304"):
        read_squad([path])
    path.write_text('{"data": [')
    with pytest.raises(UnreadableFileError, match="QA0304"):
        read_squad([path])


def test_questions_of_a_context_stay_together() -> None:
    """Another question on a known sentence is no test of a model."""
    questions = [Question(f"context {i % 10}", f"question {i}", ((0, 1),)) for i in range(50)]
    train, dev = hold_out_contexts(questions, share=0.2, seed=1)
    assert {q.context for q in train} & {q.context for q in dev} == set()
    assert (len(train), len(dev)) == (40, 10)
    assert hold_out_contexts(questions, share=0.2, seed=2)[1] != dev


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cross-encoder --pairs a --out o --epoch 2", "--epochs"),
        ("cross-encoder --out o", "--pairs"),
        ("cross-encoder --pairs a --out o --column txt_a=b", "did you mean 'text_a'"),
        ("kpqa --squad a --out o --rank -1", "--rank"),
        ("kpqa --squad a --out o --learning-rate nan", "'nan' is not a number above 0"),
        ("kpqa --squad a --out o --dev-share 1", "'1' is not a number between 0 and 1"),
        ("kpqqa", "kpqqa"),
    ],
)
def test_a_wrong_word_ends_with_status_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelled option that is dropped in silence trains another model than was asked for."""
    with pytest.raises(SystemExit) as end:
        parse_options(words.split())
    assert end.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_missing_file_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler runs a status of 1 again, and this one would never succeed."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "1" if name != "TRANSFORMERS_VERBOSITY" else "error")
    for name in ("TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0")
    (tmp_path / "pairs.jsonl").touch()
    words = ["--pairs", str(tmp_path / "pair.jsonl"), "--out", str(tmp_path / "out")]
    assert main(["cross-encoder", *words]) == 2
    shown = capsys.readouterr().err
    assert "pair.jsonl: no such file; did you mean 'pairs.jsonl'?" in shown
    assert not (tmp_path / "out").exists()


MODULES = [
    *("cross_encoder", "folder", "inputs", "job", "keyphrases", "kpqa", "loop", "model"),
    *("options", "reader", "results"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    """An example that no longer holds misleads whoever reads it first."""
    module = importlib.import_module(f"qaeval_export.training.{name}")
    assert doctest.testmod(module).failed == 0


def test_help_shows_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    """An example that does not run is worse than none."""
    with pytest.raises(SystemExit) as end:
        parse_options(["cross-encoder", "--help"])
    assert end.value.code == 0
    text = re.sub(r"\\\s*\n", " ", capsys.readouterr().out)
    examples = [line.split()[2:] for line in text.splitlines() if "  qaeval train" in line]
    assert len(examples) >= 4
    for words in examples:
        assert parse_options(words).out.name.endswith("-mine")
