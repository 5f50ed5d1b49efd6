"""An OUT that the code of this version wrote: made once, then resumed by every later version.

``PYTHONPATH=tests python tests/pins/old_out.py FOLDER`` makes one.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from helpers import run_locally, write_parquet
from llm_server import LlmServer
from tiny_artifacts import make_cross_encoder

OLD_OUT = Path(__file__).with_name("old_out")
FILE = "FILE"  # In the names of commits, in place of what names the input: place and time.
_CANDIDATES = ["the red mill", "the barn", "", "the barn red red", None, "mill"]
_REFERENCES = [["the mill", "the red mill"], ["the red barn"], ["mill"], [], ["the"], ["mill"]]


def rows() -> pa.Table:
    """Return rows of which some are undefined and one is quarantined."""
    number = range(len(_CANDIDATES))
    return pa.table(
        {
            "id": [f"row {n}" for n in number],
            "candidate": _CANDIDATES,
            "references": pa.array(_REFERENCES, pa.list_(pa.string())),
            "context": ["Ann has kept the red barn since 1987."] * len(_CANDIDATES),
            "answer": ["Ann"] * len(_CANDIDATES),
        }
    )


def settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run, but for where its files lie."""
    return {
        "metrics.f1.metric": "f1",
        "metrics.bleu_4.metric": "bleu_4",
        "bleu_4.tokenizer": "squad",  # Keys of others hold the version of a library.
        "metrics.rouge_l.metric": "rouge_l",
        "metrics.sas.metric": "sas",
        "metrics.naco.metric": "naco",
        "sas.cross_encoder": "gpt2",  # What the made up artifact says that it is.
        "naco.model": "m",
        "naco.expected_complexity": 2,
        "naco.ledger_path": str(folder / "ledgers"),
        "models.build": False,
        "models.artifacts_path": str(folder / "artifacts"),
        "scoring.rows_per_shard": 4,
        "output.statistics": True,
        "output.path": str(folder / "out"),
        "input.paths": [str(folder / "input.parquet")],
    }


def write(folder: Path) -> None:
    """Run, and keep commits, scores, artifact and input."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as made, LlmServer() as server:
        work = Path(made)
        write_parquet(work / "input.parquet", rows())
        make_cross_encoder(work / "artifacts" / "pair_score-gpt2-fp32")
        run_locally({**settings(work), "naco.base_url": server.base_url})
        for path in (work / "out" / "families").rglob("*.parquet"):
            _, _, of_rows = path.name.partition("-")
            kept = folder / "families" / path.parent.name / f"{FILE}-{of_rows}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, kept)
        shutil.copy(work / "out" / "scores" / "input.parquet", folder / "scores.parquet")
        shutil.copy(work / "input.parquet", folder / "input.parquet")
        shutil.copytree(work / "artifacts", folder / "exported")  # git knows no "artifacts".
        (folder / "server.json").write_text(json.dumps({"base_url": server.base_url}) + "\n")
        print(pq.read_table(folder / "scores.parquet").to_pandas().to_string())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
