"""Pieces: what is scheduled, as text and as a dataset of Ray Data, and costs that come back."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict

import ray
from ray.data import DataContext

from qaeval_core.scoring.inputs import FileVersion
from qaeval_core.scoring.pass_stats import PassStats
from qaeval_core.scoring.plan import Piece, ReadLimits, RowRange


def pieces_dataset(pieces: Sequence[Piece]) -> ray.data.Dataset:
    """Return a dataset of one block a piece."""
    context = DataContext.get_current()
    context.target_max_block_size = None  # A block is never split.
    # Its default ends a family that waits for a GPU after half an hour.
    context.execution_no_progress_timeout_s = -1
    context.enable_progress_bars = False
    # Its plan and timings are in Ray's own log files; ours are lines of rows/s.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    items = [{"piece": piece_to_json(piece)} for piece in pieces]
    return ray.data.from_items(items, override_num_blocks=len(items))


def piece_to_json(piece: Piece) -> str:
    """Return a piece as text."""
    return json.dumps(asdict(piece))


def piece_from_json(text: str) -> Piece:
    """Return the piece that `piece_to_json` wrote."""
    content = json.loads(text)
    content["families"] = tuple(content["families"])
    content["version"] = FileVersion(**content["version"])
    content["limits"] = ReadLimits(*content["limits"])
    content["shards"] = tuple(RowRange(*rows) for rows in content["shards"])
    return Piece(**content)


def costs_from_json(text: str) -> dict[str, PassStats]:
    """Return what a shard cost, by family."""
    return {key: PassStats(**stats) for key, stats in json.loads(text).items()}
