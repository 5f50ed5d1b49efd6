"""Whole runs of NACo against the test server: inputs, commands, and what their scores must be."""

from __future__ import annotations

import json
import re
import shutil
import string
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa

from helpers import qaeval, start_qaeval
from llm_server import LlmServer
from qaeval_core.families.chat.naco_prompt import make_prompt
from qaeval_core.families.chat.naco_reply import Reply
from qaeval_core.llm.client import Endpoint
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.ledger import Ledger, LedgerState
from qaeval_core.sample import sample_table

EXPECTED_STEPS = 2
MAX_TOKENS = 100
PRICES = "{prompt: 1.0, completion: 2.0}"  # The server's own, in dollars per million.
_COMMON_WORDS = "passage sentence verdict answer reply it of and is to"

Row = Mapping[str, str]
Messages = Sequence[Mapping[str, str]]


def questions(n_rows: int, *, first: int = 0, n_contexts: int = 1) -> list[Row]:
    """Return rows of the sample corpus, made distinct by a number.

    Parameters
    ----------
    first : int, default 0
        The first row's number.
    n_contexts : int, default 1
        Contexts, cut to 400 characters each, that a row's passage is joined from.
    """
    sample = [row for row in sample_table().to_pylist() if row["answer"]]
    contexts = sorted({row["context"][:400] for row in sample})
    rows = []
    for number in range(first, first + n_rows):
        row = sample[number % len(sample)]
        others = (contexts[(number + i) % len(contexts)] for i in range(1, n_contexts))
        rows.append(
            {
                "id": f"q{number}",
                "question": f"{row['question']} ({number})",
                "context": " ".join([row["context"][:400], *others]),
                # The server answers with a word of the whole prompt: some shall be right.
                "answer": f"{row['answer']}, {_COMMON_WORDS}",
            }
        )
    return rows


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_pylist(list(map(dict, rows)))


def messages_of(row: Row) -> Messages:
    """Return the prompt of a row."""
    return make_prompt(question=row["question"], passages=[row["context"]], one_shot=False)


@dataclass(frozen=True)
class NacoRun:
    """One command ``qaeval score --metrics naco``, its files in one folder.

    ``settings`` are those of ``naco``, ``words`` whatever else the command shall have.
    """

    server: LlmServer
    source: Path
    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    words: Sequence[str | Path] = ()

    @property
    def given(self) -> dict[str, object]:
        """The settings of ``naco``: by default, the server's limits in full."""
        allowed = self.server.settings
        limits = {
            "requests_per_minute": allowed.requests_per_minute,
            "tokens_per_minute": allowed.tokens_per_minute,
            "limit_window_s": allowed.window_s,
        }
        return {
            "base_url": self.server.base_url,
            "model": "m",
            "expected_complexity": EXPECTED_STEPS,
            "max_tokens": MAX_TOKENS,
            "prices": PRICES,
            # Never into the user's own folder.
            "ledger_path": self.folder / "ledgers",
            "journal_path": self.out / "journal",
            **{name: limit for name, limit in limits.items() if limit is not None},
            **self.settings,
        }

    @property
    def out(self) -> Path:
        """Where scores go."""
        return self.folder / "out"

    @property
    def journal(self) -> Path:
        """Where replies go."""
        return Path(str(self.given["journal_path"]))

    @property
    def command(self) -> list[str | Path]:
        """The words after ``qaeval``."""
        settings = [f"naco.{name}={value}" for name, value in self.given.items()]
        set_words = [word for setting in settings for word in ("--set", setting)]
        return [
            "score",
            self.source,
            "--out",
            self.out,
            "--ray",  # The last word of the two counts.
            "--metrics",
            "naco",
            *set_words,
            *self.words,
        ]

    def run(self, *, expect: int = 0) -> str:
        """Run the command to its end; return what it printed."""
        return qaeval(*self.command, expect=expect)

    def start(self) -> subprocess.Popen[str]:
        """Start the command."""
        return start_qaeval(*self.command)

    def key(self, messages: Messages) -> str:
        """Return the name of a request, in the journal and in the server's counts."""
        given = self.given
        parameters = {"temperature": 0.7, "top_p": 1.0, "max_tokens": given["max_tokens"]}
        endpoint = Endpoint(str(given["base_url"]), str(given["model"]), parameters)
        return endpoint.request_key(messages, run_index=0)

    def scores(self) -> pl.DataFrame:
        """Return the scores of all input files, in the order of their names."""
        paths = sorted((self.out / "scores").rglob("*.parquet"))
        return pl.concat([pl.read_parquet(path) for path in paths])

    def calls(self) -> dict[str, Any]:
        """Return what the report says of the calls of all commits."""
        report = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        (family,) = report["families"].values()
        calls: dict[str, Any] = family["calls"]
        return calls

    def ledger(self) -> LedgerState:
        """Return what the ledger says; of a copy, for a governor may hold it."""
        (path,) = Path(str(self.given["ledger_path"])).glob("ledger-*.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(path, folder)
            ledger = Ledger(Path(folder), path.stem.removeprefix("ledger-"))
            found = ledger.found
            ledger.close()
        return found


def journaled_keys(folder: Path) -> set[str]:
    """Return the names of all requests whose replies are in a journal."""
    return {entry.key for entry in Journal(folder).entries()} if folder.is_dir() else set()


def expected_scores(reply: Reply, *, gold: str) -> dict[str, float | None]:
    """Return the scores of one readable reply, by the equations, one number at a time."""
    if not (reply.is_question and reply.is_natural):
        return {"": 0.0, "naturalness": 0.0, "answerability": 0.0, "complexity": None}
    answerability = _f1(reply.answer or "", gold)
    steps = max(reply.n_steps, 1)
    complexity = min(steps, EXPECTED_STEPS) / max(steps, EXPECTED_STEPS)
    naco = (1.0 + answerability + complexity) / 3 if answerability > 0 else 0.0
    parts = {"naturalness": 1.0, "answerability": answerability, "complexity": complexity}
    return {"": naco, **parts}


def _f1(answer: str, gold: str) -> float:
    def words(text: str) -> Counter[str]:
        kept = "".join(char for char in text.lower() if char not in string.punctuation)
        return Counter(re.sub(r"\b(a|an|the)\b", " ", kept).split())

    n_common = (words(answer) & words(gold)).total()
    return 2 * n_common / (words(answer).total() + words(gold).total()) if n_common else 0.0


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill -9 a driver, the Ray that it started, and all of that one's workers."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=20)
    process.communicate()
