"""Predictions joined by id, and questions without an answer, counted as SQuAD 2.0's rule says."""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import qaeval, write_parquet
from qaeval_core.errors import ConfigError
from qaeval_core.planning.predictions import named_files, read_predictions

N = 30
DATA = [
    {
        "id": f"q{i}",
        "question": f"Who, {i}?",
        "answers": {"text": [] if i % 3 == 0 else ["Ann", "Ann A."], "answer_start": [0]},
    }
    for i in range(N)
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "data.parquet", pa.Table.from_pylist(DATA))


def scores(out: Path) -> list[dict]:
    return pq.ParquetDataset(out / "scores").read().to_pylist()


FORMS = {
    "object.json": lambda texts: json.dumps(texts),
    "rows.jsonl": lambda texts: "".join(
        json.dumps({"qid": name, "prediction_text": own}) + "\n" for name, own in texts.items()
    ),
    "list.json": lambda texts: json.dumps(
        [{"id": name, "response": own, "n": 1} for name, own in texts.items()]
    ),
    "rows.csv": lambda texts: (
        "id,whatever\n" + "".join(f'{name},"{own}"\n' for name, own in texts.items())
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_predictions_of_any_form_are_joined_by_id(tmp_path: Path, data: Path, name: str) -> None:
    """In whatever order; what does not fit is counted and named."""
    texts = {f"q{i}": "Ann" if i % 2 else "" for i in reversed(range(N - 2))}
    texts["elsewhere"] = "x"
    (tmp_path / name).write_text(FORMS[name](texts))
    said = qaeval(
        "score", data, "--predictions", tmp_path / name, "--out", tmp_path / "out",
        "--metrics", "exact_match", "--unanswerable", "empty", "--local",
    )  # fmt: skip
    assert f"{name}: 2 rows have no prediction, such as 'q28', 'q29'" in said
    assert f"{name}: predictions of no row: 1, such as 'elsewhere'" in said
    found = scores(tmp_path / "out")
    assert [row["id"] for row in found] == [row["id"] for row in DATA]
    assert [row["exact_match"] for row in found[:-2]] == [
        float((i % 3 == 0) == (i % 2 == 0)) for i in range(N - 2)
    ]
    assert {row["quarantine_reason"] for row in found[-2:]} == {"null_candidate"}


def test_missing_predictions_may_be_empty_and_repeated_ones_must_agree(
    tmp_path: Path, data: Path
) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"q1": "Ann", "q1": "Ann", "q2": "Bo"}')
    words = ("--metrics", "exact_match", "--local", "--missing", "empty")
    said = qaeval("score", data, "--predictions", path, "--out", tmp_path / "out", *words)
    assert "p.json: predictions repeated with the same text: 1" in said
    found = scores(tmp_path / "out")
    assert [row["exact_match"] for row in found if row["id"] in ("q1", "q2", "q4")] == [1, 0, 0]
    path.write_text('{"q1": "Ann", "q1": "Bo"}')
    said = qaeval("score", data, "--predictions", path, "--out", tmp_path / "o", *words, expect=2)
    assert "'q1'" in said and "[QA0313]" in said


def test_several_systems_are_a_column_and_one_that_joins_is_scored_alone(
    tmp_path: Path, data: Path
) -> None:
    """Every verb reads what was joined, wherever data and predictions are now."""
    for name, text in (("a", "Ann"), ("b", "Bo")):
        (tmp_path / f"{name}.json").write_text(json.dumps({f"q{i}": text for i in range(N)}))
    words = ("--out", tmp_path / "out", "--metrics", "f1", "--local", "--unanswerable", "empty")
    qaeval("score", data, "--predictions", f"A={tmp_path}/a.json", *words)
    both = ("--predictions", f"A={tmp_path}/a.json", "--predictions", f"B={tmp_path}/b.json")
    said = qaeval("score", data, *both, *words)
    assert "30/30 rows" in said  # Of 60 those of B alone.
    found = scores(tmp_path / "out")
    assert Counter(row["system"] for row in found) == {"A": N, "B": N}
    assert {row["f1"] for row in found if row["system"] == "B"} == {0.0}
    for path in (data, tmp_path / "a.json", tmp_path / "b.json"):
        path.unlink()
    qaeval(
        "filter", tmp_path / "out", "--to", tmp_path / "kept", "--rules", "none", "--local",
        "--keep", "system = 'A' AND f1 > 0", "--near-duplicates", "none",
    )  # fmt: skip
    qaeval("explain", tmp_path / "out", "--row", "A/data.parquet:4")
    assert "A f1: HasAns 1 (20 rows), NoAns 0 (10 rows)" in said


def test_what_cannot_be_joined_is_said(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"q1": 5}')
    words = ("--out", tmp_path / "out", "--metrics", "f1", "--local")
    for given, code in (
        (("--predictions", path), "QA030"),
        (("--predictions", tmp_path / "none.json"), "QA0302"),
        (("--predictions", path, "--predictions", path), "QA0106"),
        (("--no-answer", path), "QA0103"),
    ):
        assert f"[{code}" in qaeval("score", data, *given, *words, expect=2)
    path.write_text('{"q1": "x"}')
    taken = pa.Table.from_pylist([{"id": "q1", "prediction": "x", "references": "y"}])
    taken_path = write_parquet(tmp_path / "taken.parquet", taken)
    said = qaeval("score", taken_path, "--predictions", path, *words, expect=2)
    assert "'prediction' already" in said and "[QA0308]" in said
    nameless = write_parquet(tmp_path / "nameless.parquet", taken.drop_columns(["id"]))
    assert "[QA0313]" in qaeval("score", nameless, "--predictions", path, *words, expect=2)
    with pytest.raises(ConfigError, match="QA0106"):
        named_files(["a=x", "a=y"])
    assert named_files(["s3://bucket/a=b.json"]) == [("", "s3://bucket/a=b.json")]
    assert read_predictions("", str(path)).texts == {"q1": "x"}
    encodings = (("utf-8-sig", None), ("utf-16", None), ("cp1252", "cp1252"), ("utf-8", "cp1252"))
    for encoding, given in encodings:
        path.write_bytes('{"q1": "é"}'.encode(encoding))
        assert read_predictions("", str(path), encoding=given).texts == {"q1": "é"}


# The oracle: SQuAD 2.0's rule, as its description says it.
def normal(text: str) -> str:
    plain = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact(gold: str, said: str) -> float:
    return float(normal(gold) == normal(said))


def f1(gold: str, said: str) -> float:
    one, other = normal(gold).split(), normal(said).split()
    if not one or not other:
        return float(one == other)
    n_same = sum((Counter(one) & Counter(other)).values())
    if not n_same:
        return 0.0
    precision, recall = n_same / len(other), n_same / len(one)
    return 2 * precision * recall / (precision + recall)


def best_threshold(
    raw: dict[str, float], said: dict[str, str], has: dict[str, bool], chances: dict[str, float]
) -> tuple[float, float]:
    current = best = float(sum(not own for own in has.values()))
    threshold = 0.0
    for name in sorted(chances, key=lambda own: chances[own]):
        if name not in raw:
            continue
        current += raw[name] if has[name] else -1 if said[name] else 0
        if current > best:
            best, threshold = current, chances[name]
    return best / len(raw), threshold


def test_squad_2_is_counted_as_its_rule_says(tmp_path: Path, shared_data: Path) -> None:
    """EM, F1, HasAns, NoAns and thresholds to the last digit, on its dev questions."""
    path = shared_data / "squad/squad_v2_dev.parquet"
    rows = pq.read_table(path).to_pylist()
    golds = {row["id"]: list(row["answers"]) for row in rows}
    drawn = random.Random(2)
    said = {}
    for name, own in golds.items():
        words = (drawn.choice(own) if own else "an old answer").split()
        kept = words[: drawn.randint(1, len(words))]
        said[name] = "" if drawn.random() < 0.4 else " ".join(kept)
    chances = {name: drawn.randint(0, 40) / 40 for name in said}
    (tmp_path / "said.json").write_text(json.dumps(said))
    (tmp_path / "chances.json").write_text(json.dumps(chances))
    qaeval(
        "score", path, "--predictions", tmp_path / "said.json", "--no-answer",
        tmp_path / "chances.json", "--unanswerable", "empty", "--metrics", "exact_match,f1",
        "--out", tmp_path / "out", "--local",
    )  # fmt: skip
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    has = {name: bool(own) for name, own in golds.items()}
    assert 100 < sum(has.values()) < len(has) - 100
    for name, score in (("exact_match", exact), ("f1", f1)):
        raw = {own: max(score(gold, said[own]) for gold in golds[own] or [""]) for own in golds}
        found = report["answerability"][""][name]
        parts = {"all": (True, False), "has_answer": (True,), "no_answer": (False,)}
        for part, wanted in parts.items():
            values = [raw[own] for own in golds if has[own] in wanted]
            assert found[part] == {"rows": len(values), "mean": sum(values) / len(values)}
        assert (found["best"], found["best_threshold"]) == best_threshold(raw, said, has, chances)
        assert report["columns"][name]["mean"] == pytest.approx(found["all"]["mean"], abs=1e-9)
