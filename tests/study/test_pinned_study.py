"""What studies print and write, held as it was: two small tables, every section of a study.

``python tests/study/test_pinned_study.py`` writes ``pinned_studies.json`` anew, which is for
changes that are meant and told to users.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from qaeval.cli import app

PINNED = Path(__file__).with_name("pinned_studies.json")
SYSTEMS = ("a", "b", "c", "d")
TABLES = ("correlations", "comparisons", "auc", "win_lose", "forward_selection")

ALL_SECTIONS = (
    "--human rating --subset distance<-3 --by kind --system system --question question "
    "--draws 10 --questions-per-draw 5 --auc rating>=4 --win-lose question --min-gap 2 "
    "--compare good,distance --forward-selection --resamples 200 --seed 3"
)
TWO_RATINGS = (
    "--human rating,fluency --metrics good,near,few --with {ratings} --on id=key --cluster question"
    " --compare all --auc is_odd --forward-selection --resamples 100"
)


def score_table() -> pl.DataFrame:
    """Return answers of four systems to 15 questions: good, bad, constant and summed scores."""
    rng = np.random.default_rng(0)
    n = 15 * len(SYSTEMS)
    quality = np.tile(np.arange(len(SYSTEMS)), 15)
    rating = np.clip(np.round(1 + quality + rng.normal(scale=1.0, size=n)), 1, 5)
    good = rating + rng.normal(scale=1.0, size=n)
    totals = np.tile([8.0, 7.0, 6.0, 5.0], (n, 1))
    matches = rng.integers(1, 6, size=(n, 4)).clip(max=totals)
    statistics = np.column_stack([np.full((n, 2), 8.0), matches, totals])
    return pl.DataFrame(
        {
            "id": range(n),
            "question": [None if i == 9 else f"q{i // len(SYSTEMS)}" for i in range(n)],
            "system": [None if i == 17 else SYSTEMS[i % len(SYSTEMS)] for i in range(n)],
            "kind": ["long" if i % 7 else "short" for i in range(n)],
            "rating": [None if i % 20 == 3 else value for i, value in enumerate(rating)],
            "good": [math.nan if i % 20 == 5 else value for i, value in enumerate(good)],
            "near": good.round(1),
            "few": good.round(-1),
            "distance": -good + rng.normal(scale=0.5, size=n),
            "flat": np.zeros(n),
            "bleu_4": matches[:, 3] / 5,
            "bleu_4_statistics": statistics.tolist(),
            "is_odd": np.arange(n) % 2,
        }
    )


def write_tables(folder: Path) -> dict[str, str]:
    """Write the table as ``qaeval score`` does, and a second one with ratings."""
    table = score_table()
    columns: dict[str, dict[str, object]] = {
        name: {
            "metric": name,
            "settings": {},
            "higher_is_better": name != "distance",
            "over_examples": "sum_of_statistics" if name == "bleu_4" else "mean",
            "signature": f"{name}|v:1",
        }
        for name in ("good", "distance", "flat", "bleu_4")
    }
    arrow = table.to_arrow()
    metadata = {b"qaeval.columns": json.dumps(columns).encode()}
    pq.write_table(arrow.replace_schema_metadata(metadata), folder / "scores.parquet")
    rng = np.random.default_rng(1)
    fluency = rng.integers(1, 4, size=table.height)
    ratings = pl.DataFrame({"key": range(5, table.height + 5), "fluency": fluency})
    ratings.write_csv(folder / "ratings.csv")
    return {"scores": str(folder / "scores.parquet"), "ratings": str(folder / "ratings.csv")}


def study_of(options: str, folder: Path) -> dict[str, Any]:
    """Run a study; return what it printed and all that it wrote but page and environment."""
    paths = write_tables(folder)
    out = folder / "study"
    words = [word.format(**paths) for word in options.split()]
    result = CliRunner().invoke(app, ["correlate", paths["scores"], *words, "--out", str(out)])
    assert result.exit_code == 0, result.output
    text = (out / "report.json").read_text().replace(str(folder), "FOLDER")
    report = json.loads(text)
    report.pop("environment")
    assert report.pop("made")["name"] == "study"
    tables = {}
    for name in TABLES:
        frame = pl.DataFrame(report.pop(name), infer_schema_length=None)
        if (path := out / f"{name}.parquet").exists():
            written = pl.read_parquet(path)
            assert written.columns == (frame.columns or written.columns)
            assert written.to_dicts() == frame.to_dicts(), f"{path} and report.json differ"
            frame = written
        tables[name] = {
            "types": {column: str(dtype) for column, dtype in frame.schema.items()},
            "columns": frame.to_dict(as_series=False),
        }
    return {
        "lines": result.output.replace(str(folder), "FOLDER").splitlines(),
        "files": sorted(path.name for path in out.iterdir()),
        "report": report,
        "tables": tables,
    }


STUDIES = {"all sections": ALL_SECTIONS, "two ratings": TWO_RATINGS}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_prints_and_writes_what_it_did(name: str, tmp_path: Path) -> None:
    """Protects files, columns, keys, lines, and every value with its interval to 1e-12."""
    pinned = json.loads(PINNED.read_text("utf-8"))[name]
    found = study_of(STUDIES[name], tmp_path)
    assert found["lines"] == pinned["lines"]
    assert found["files"] == pinned["files"]
    assert list(found["report"].items()) == list(pinned["report"].items())
    for table, expected in pinned["tables"].items():
        own = found["tables"][table]
        assert list(own["types"].items()) == list(expected["types"].items()), table
        for column, values in expected["columns"].items():
            assert_same(own["columns"][column], values, place=(table, column))


def assert_same(found: list[Any], pinned: list[Any], *, place: tuple[str, str]) -> None:
    """Raise unless numbers are equal to 1e-12, and all else wholly."""
    assert [type(value) for value in found] == [type(value) for value in pinned], place
    floats = [i for i, value in enumerate(pinned) if isinstance(value, float)]
    wanted = pytest.approx([pinned[i] for i in floats], rel=0, abs=1e-12)
    assert [found[i] for i in floats] == wanted, place
    others = [i for i, value in enumerate(pinned) if not isinstance(value, float)]
    assert [found[i] for i in others] == [pinned[i] for i in others], place


def main() -> None:
    """Write the pinned studies anew."""
    studies = {}
    for name, options in STUDIES.items():
        with tempfile.TemporaryDirectory() as folder:
            studies[name] = study_of(options, Path(folder))
    lines = [f"{json.dumps(name)}: {json.dumps(study)}" for name, study in studies.items()]
    PINNED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    sys.stdout.write(f"{PINNED}: {PINNED.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
