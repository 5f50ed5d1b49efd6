"""What an export must know of each graph, and what graphs have in common.

A graph stands in one module: its torch module, its inputs (with what they are traced, and what they
are for the fixed rows of ``qaeval_export.parity``), and how far its numbers may be from torch.
``EXPORTS`` of this package lists them.

But: what readers of a graph must know is in ``qaeval_core.models.record``, and the numbers that it
is compared with are in ``qaeval_export.eager``, which shares no code with these modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qaeval_core.models.record import ArtifactRequest
from qaeval_export.loading import LoadedModel
from qaeval_export.parity import Oracle, ParityRow, RowMaker, Values

# Rows of one batch; texts of unlike length stand together, so padding is exercised.
_N_BATCH = 8

Axes = tuple[str | int, ...]
GraphRows = Sequence[ParityRow]
Output = NDArray[np.float64]


class RunsGraph(Protocol):
    """A session of ONNX Runtime, or what is called as one."""

    def run(self, names: None, feed: Any, /) -> Any:
        """Return the outputs for a batch."""


class Input(NamedTuple):
    """An input of a graph: what it is traced with, its axes, and what it is for a batch of rows.

    A str in ``axes`` names one that varies.
    """

    example: Tensor
    axes: Axes
    of_rows: Callable[[GraphRows], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphExport:
    """One graph, as the export needs it.

    Attributes
    ----------
    make : callable
        Loaded model, request -> module, axes of its output. ExportError if the model does not fit.
    inputs : mapping of str to Input
        In the order of the module's ``forward``.
    output : str
        Its name.
    make_rows : callable
        The fixed pairs -> rows of token ids, as the model reads them.
    values : callable
        The output for a batch -> the values of each row, in the form of the oracle's.
    tolerance : mapping of str to float
        Largest allowed difference of one value from torch fp32, by precision.
    oracle : callable, optional
        Of a plugin's graph: loaded model, request, row -> the row's values, in torch fp32, by code
        that shares nothing with the graph. Those of ours are in ``qaeval_export.eager``.
    """

    make: Callable[[LoadedModel, ArtifactRequest], tuple[nn.Module, Axes]]
    inputs: Mapping[str, Input]
    output: str
    make_rows: RowMaker
    values: Callable[[Output, GraphRows], list[Values]]
    tolerance: Mapping[str, float]
    oracle: Oracle | None = None

    def run(self, session: RunsGraph, rows: GraphRows) -> list[Values]:
        """Run the graph on padded batches and return each row's values."""
        found: list[Values] = []
        for start in range(0, len(rows), _N_BATCH):
            found += self.run_batch(session, rows[start : start + _N_BATCH])
        return found

    def run_batch(self, session: RunsGraph, rows: GraphRows) -> list[Values]:
        """Run the graph on one padded batch and return each row's values."""
        feed = {name: of_rows(rows) for name, (_, _, of_rows) in self.inputs.items()}
        (output,) = session.run(None, feed)
        return self.values(np.asarray(output, dtype=np.float64), rows)


def padded_ids(rows: GraphRows) -> NDArray[np.int64]:
    """Return the rows' token ids, right-padded with their last one; shape (n_rows, n_tokens)."""
    width = padded_width(rows)
    return np.asarray([row.ids + row.ids[-1:] * (width - len(row.ids)) for row in rows])


def padded_width(rows: GraphRows) -> int:
    """Return how many tokens the rows of a batch are padded to."""
    return max(max(len(row.ids), row.width) for row in rows)


def per_row(example: list[int], read: Callable[[ParityRow], int], *, axis: str = "n_rows") -> Input:
    """Return an input of one number a row."""
    return Input(
        torch.tensor(example), (axis,), lambda rows: np.asarray([read(row) for row in rows])
    )


# Three rows of different lengths; no two axes have equal size, or they would be tied.
TEXTS = {
    "input_ids": Input(
        torch.ones(3, 24, dtype=torch.long), ("n_rows", "n_tokens_padded"), padded_ids
    ),
    "n_tokens": per_row([24, 22, 20], lambda row: len(row.ids)),
}
PAIRS = {**TEXTS, "second_start": per_row([9, 7, 8], lambda row: row.second_start)}


def asked_rows(asked: Callable[[ParityRow], range]) -> Input:
    """Return the input row * n_tokens + position of each row's asked positions."""

    def of_rows(rows: GraphRows) -> NDArray[np.int64]:
        width = padded_width(rows)
        return np.concatenate([np.asarray(asked(row)) + i * width for i, row in enumerate(rows)])

    return Input(torch.arange(30), ("n_asked",), of_rows)


def asked_values(
    asked: Callable[[ParityRow], range],
) -> Callable[[Output, GraphRows], list[Values]]:
    """Return what cuts an output of all asked positions into those of each row."""
    return lambda output, rows: np.split(output, np.cumsum([len(asked(row)) for row in rows])[:-1])


def row_values(output: Output, _: GraphRows) -> list[Values]:
    """Return the one value, or vector, of each row."""
    return list(output[:, None])
