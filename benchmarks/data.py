"""Data: real rows where they are at hand, the sample corpus elsewhere, and texts of full windows.

But: nothing is downloaded, and nothing here is timed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from qaeval_core.families.model_units import CANDIDATE_RESERVE_TOKENS
from qaeval_core.models.artifact import Artifact
from qaeval_core.sample import sample_table
from qaeval_core.text.encode import TextEncoder

SQUAD = Path(__file__).resolve().parents[2] / "shared" / "data" / "squad" / "squad_v2_dev.parquet"
QUESTIONS_PER_CONTEXT = 5
_SEED = 20221207


@dataclass(frozen=True, slots=True)
class Rows:
    """Questions with their contexts, and where they come from."""

    questions: list[str]
    contexts: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.questions)

    def __str__(self) -> str:
        return f"{len(self)} rows, {len(set(self.contexts))} contexts, {self.source}"

    def roles(self) -> dict[str, list[object]]:
        """Return the rows as a family reads them."""
        return {"candidate": list(self.questions), "context": list(self.contexts)}

    def head(self, n_rows: int | None) -> Rows:
        """Return the first rows; all of them for None."""
        return Rows(self.questions[:n_rows], self.contexts[:n_rows], self.source)


def load_rows(n_rows: int) -> Rows:
    """Return ``n_rows`` rows, five questions a context, contexts spread over the whole corpus.

    The sample corpus has 28 contexts: it gives at most 140 rows.
    """
    if SQUAD.is_file():
        table, source = pl.read_parquet(SQUAD, columns=["context", "question"]), "SQuAD 2.0 dev"
    else:
        table = pl.from_arrow(sample_table().select(["context", "question"]))
        source = "the project's sample corpus, for lack of SQuAD"
    grouped = (
        table.group_by("context", maintain_order=True)
        .agg(pl.col("question").head(QUESTIONS_PER_CONTEXT))
        .filter(pl.col("question").list.len() == QUESTIONS_PER_CONTEXT)
    )
    n_contexts = min(-(-n_rows // QUESTIONS_PER_CONTEXT), grouped.height)
    # Neighbors are paragraphs of one article: spread, so that lengths are the corpus's.
    spread = [i * grouped.height // n_contexts for i in range(n_contexts)]
    chosen = grouped[spread].explode("question")
    return Rows(chosen["question"].to_list(), chosen["context"].to_list(), source).head(n_rows)


def repeated(rows: Rows, n_rows: int) -> Rows:
    """Return as many rows as are asked for: where there are fewer, the same ones again.

    Each turn adds its number to all texts: what is equal is run once, and would look like speed.
    """
    turns = -(-n_rows // len(rows))
    if turns == 1:
        return rows.head(n_rows)
    questions = [f"{text} ({i})" for i in range(turns) for text in rows.questions]
    contexts = [f"{text} ({i})" for i in range(turns) for text in rows.contexts]
    source = f"{rows.source}: {len(rows)} rows, repeated with a number behind each text"
    return Rows(questions, contexts, source).head(n_rows)


def full_window_rows(artifact: Artifact, n_rows: int, *, n_unit_tokens: int) -> Rows:
    """Return rows each of which is one unit of exactly ``n_unit_tokens`` tokens.

    The candidate has 64 tokens, the room that windows keep for it; words are single tokens.
    """
    template = artifact.record.template
    parts = (template.prefix_ids, template.middle_ids, template.suffix_ids) if template else ((0,),)
    n_context = n_unit_tokens - CANDIDATE_RESERVE_TOKENS - sum(map(len, parts))
    words = _single_token_words(TextEncoder(artifact.tokenizer_path))
    draw = random.Random(_SEED)
    questions = [" ".join(draw.choices(words, k=CANDIDATE_RESERVE_TOKENS)) for _ in range(n_rows)]
    contexts = [" ".join(draw.choices(words, k=n_context)) for _ in range(n_rows)]
    return Rows(questions, contexts, f"drawn from {len(words)} words of one token each")


def _single_token_words(encoder: TextEncoder) -> list[str]:
    texts = " ".join(sample_table()["context"].to_pylist()).lower().split()
    words = sorted({word for word in texts if word.isascii() and word.isalpha()})
    alone = encoder.encode(words)
    after_space = encoder.encode([" " + word for word in words])
    lengths = zip(words, alone, after_space, strict=True)
    return [word for word, a, b in lengths if len(a) == len(b) == 1]


def write_files(folder: Path, rows: Rows, *, n_files: int, rows_per_file: int) -> None:
    """Write Parquet files of equal size, the rows over and over."""
    endless = itertools.cycle(zip(rows.questions, rows.contexts, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n_files):
        pairs = list(itertools.islice(endless, rows_per_file))
        _table(pairs, first_id=i * rows_per_file).write_parquet(folder / f"rows-{i:03d}.parquet")


def _table(pairs: Sequence[tuple[str, str]], *, first_id: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": [str(first_id + i) for i in range(len(pairs))],
            "question": [question for question, _ in pairs],
            "context": [context for _, context in pairs],
        }
    )
