"""Passages: SQuAD -> the questions to train a reader on, without those of judged passages.

``python -m recipes.reader_minilm.passages --squad FILE --judged FILE --out DIR`` writes
``train.parquet`` and ``dev.parquet``, a tenth of the passages, with the columns of SQuAD, and says
the counts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from qaeval_core.terminal import say

_DEV_SHARE = 0.1
# Of the training questions without an answer: they teach "none" alone, and are half of SQuAD 2.0.
_UNANSWERABLE_SHARE = 0.5
_SEED = 0


def normalized(text: str) -> str:
    """Return a passage's words, in lower case.

    Examples
    --------
    >>> normalized("The mill, (by then) closed.") == normalized("the mill by then  closed")
    True
    """
    return " ".join(re.findall(r"\w+", text.lower()))


def split_passages(
    squad: pl.DataFrame, judged: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return training and dev questions, and how many passages were left out.

    Parameters
    ----------
    squad : DataFrame
        With a column ``context``.
    judged : sequence of str
        Passages that a reader must not have seen.
    """
    key = pl.col("context").map_elements(normalized, return_dtype=pl.String)
    rows = squad.with_columns(passage=key)
    left_out = rows.filter(pl.col("passage").is_in(set(map(normalized, judged))))
    kept = rows.join(left_out, on="passage", how="anti", maintain_order="left")
    passages = kept["passage"].unique(maintain_order=True)
    n_dev = round(_DEV_SHARE * len(passages))
    dev = passages.gather(np.random.default_rng(_SEED).permutation(len(passages))[:n_dev])
    is_dev = pl.col("passage").is_in(dev.implode())
    train, held_out = (kept.filter(chosen).drop("passage") for chosen in (~is_dev, is_dev))
    draws = pl.Series(np.random.default_rng(_SEED).random(len(train)))
    is_answerable = pl.col("answers").list.len() > 0
    train = train.filter(is_answerable | (draws < _UNANSWERABLE_SHARE))
    return train, held_out, left_out["passage"].n_unique()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(prog="recipes.reader_minilm.passages")
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--judged", type=Path, required=True, help="with a column passage")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    squad = pl.read_parquet(asked.squad)
    judged = pl.read_parquet(asked.judged, columns=["passage"])["passage"].to_list()
    train, dev, n_left_out = split_passages(squad, judged)
    asked.out.mkdir(parents=True, exist_ok=True)
    say(f"{n_left_out} judged passages left out")
    for name, rows in (("train", train), ("dev", dev)):
        rows.write_parquet(asked.out / f"{name}.parquet")
        answerable = rows.filter(pl.col("answers").list.len() > 0)
        say(
            f"{name}: {rows['context'].n_unique():,} passages, {len(rows):,} questions, "
            f"{len(answerable):,} with an answer"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
