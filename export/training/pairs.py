"""Pairs: files of text pairs -> training and dev pairs with scores in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.training.tables import read_columns, text_of
from qaeval_core.errors import ConfigError, InputError

__all__ = ["Pairs", "hold_out_pairs", "read_pairs"]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of texts and how similar they are.

    Attributes
    ----------
    text_a, text_b : list of str, one per pair
    score : list of float, one per pair
        In [0, 1], higher is more similar.
    """

    text_a: list[str]
    text_b: list[str]
    score: list[float]

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: Sequence[int]) -> Pairs:
        """Return some of the pairs.

        >>> Pairs(["a", "b"], ["c", "d"], [0.0, 1.0]).take([1])
        Pairs(text_a=['b'], text_b=['d'], score=[1.0])
        """
        return Pairs(
            [self.text_a[row] for row in rows],
            [self.text_b[row] for row in rows],
            [self.score[row] for row in rows],
        )


def read_pairs(paths: Sequence[Path], *, columns: Mapping[str, str], scale: float) -> Pairs:
    """Read pairs from files, in order.

    Parameters
    ----------
    columns : mapping of str to str
        Names in the files of ``text_a``, ``text_b`` and ``score``.
    scale : float
        Scores are divided by it.

    Raises
    ------
    InputError
        If a file, column or value is not as it must be.
    """
    pairs = Pairs([], [], [])
    for path in paths:
        table = read_columns(path, columns.values())
        for side, texts in (("text_a", pairs.text_a), ("text_b", pairs.text_b)):
            column = columns[side]
            texts.extend(
                text_of(value, path=path, column=column, row=row)
                for row, value in enumerate(table[column])
            )
        column = columns["score"]
        pairs.score.extend(
            _score_of(value, scale=scale, where=f"{path}, column {column!r}, row {row}")
            for row, value in enumerate(table[column])
        )
    return pairs


def _score_of(value: object, *, scale: float, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: a number is needed, not {value!r}")
    score = float(value) / scale
    if not 0 <= score <= 1:
        raise InputError(
            f"{where}: {value:g} divided by --scale {scale:g} is {score:g}, not in [0, 1]"
        )
    return score


def hold_out_pairs(pairs: Pairs, *, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """Split pairs into training and dev pairs; the two orders of a pair stay together.

    Examples
    --------
    >>> pairs = Pairs(list("aabc"), list("bcad"), [1.0, 0.0, 1.0, 0.5])
    >>> train, dev = hold_out_pairs(pairs, share=0.3, seed=0)
    >>> len(train), len(dev), sorted([*train.text_a, *dev.text_a])
    (3, 1, ['a', 'a', 'b', 'c'])
    """
    keys = [tuple(sorted(texts)) for texts in zip(pairs.text_a, pairs.text_b, strict=True)]
    distinct = list(dict.fromkeys(keys))
    n_dev = max(1, round(share * len(distinct)))
    if n_dev >= len(distinct):
        raise ConfigError(
            f"--dev-share {share:g} of {len(distinct)} distinct pairs leaves none to train on"
        )
    order = np.random.default_rng(seed).permutation(len(distinct))
    held_out = {distinct[i] for i in order[:n_dev]}
    rows = range(len(pairs))
    return (
        pairs.take([row for row in rows if keys[row] not in held_out]),
        pairs.take([row for row in rows if keys[row] in held_out]),
    )
