"""Bfloat16: an artifact in fp32 -> the same files, judged as OpenVINO runs them in bfloat16.

No torch is asked: the graph in fp32 has been compared with it, and is what this one is compared
with. The files are the same on the disk, too: only the record is another one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qaeval_core.errors import ExportError
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.batches import exact_batches, exact_widths
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.engine import LoadedGraph
from qaeval_core.models.open_vino import OpenVino, openvino_version
from qaeval_core.models.record import ArtifactRecord, ArtifactRequest, ParityAttempt, ParityRecord
from qaeval_core.terminal import say
from qaeval_export.batch_mates import apart
from qaeval_export.facts import ModelFacts
from qaeval_export.graph_files import open_graph
from qaeval_export.graphs import graph_export
from qaeval_export.parity import MIN_SPEARMAN, Parity, ParityRow, Values, compare, parity_pairs

# Padded tokens of a batch; in the smallest, most rows are alone.
_BUDGETS = (4_096, 512, 1)
_Rows = Sequence[ParityRow]


def write_bf16(plain: Artifact, request: ArtifactRequest, folder: Path) -> ArtifactRecord:
    """Link the files of an artifact in fp32 into a folder, and judge them in bfloat16.

    Parameters
    ----------
    plain : Artifact
        Of the same request in fp32.
    folder : Path
        Empty, on the same disk.

    Raises
    ------
    DeviceError
        If this CPU lacks what bfloat16 needs.
    ExportError
        If it was not traced; if its numbers are too far from fp32, or depend on batches, and the
        request does not allow that.
    """
    if plain.record.source == "onnx":  # It may hold a loop, and OpenVINO cannot stop one.
        raise ExportError(
            f"{request.model} is an ONNX file that is taken as it is, and bf16 needs a graph that "
            "is traced from safetensors; use fp32 [QA0410]"
        )
    for name in plain.record.files:
        _link(plain.folder / name, folder / name)
    engine = OpenVino(folder / "model.onnx", n_threads=available_cpus(), max_batch_s=None)
    parity, difference = _judged(plain, request, _AsSession(engine))
    told = f"max_abs_diff {parity.max_abs_diff:.2e} (at most {parity.tolerance:g}), spearman "
    told += f"{parity.spearman:.6f} (at least {MIN_SPEARMAN}), batches {difference:.1e} (0)"
    if not parity.passed and not request.allow_lossy:
        raise ExportError(
            f"{request.graph} of {request.model} differs from fp32: {told}. allow_lossy keeps it "
            "[QA0410]"
        )
    say(f"bf16: {told}")
    return plain.record.model_copy(
        update={
            "precision": "bf16",
            "requested_precision": "bf16",
            "lossy": not parity.passed,
            "parity": parity,
            "batch_difference": difference,
            "versions": {**plain.record.versions, "openvino": openvino_version()},
        }
    )


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # This file system has no links of the kind.
        shutil.copyfile(source, target)


class _AsSession:
    """An engine that is called as a session of ONNX Runtime is."""

    def __init__(self, engine: LoadedGraph) -> None:
        self._engine = engine

    def run(self, _: None, feed: Mapping[str, NDArray[np.int64]], /) -> Any:
        return [self._engine.run(feed)]


def _judged(
    plain: Artifact, request: ArtifactRequest, session: _AsSession
) -> tuple[ParityRecord, float]:
    """Return how far values are from fp32, and how far batches move them."""
    graph = graph_export(request.graph)
    facts = ModelFacts(**{own.name: getattr(plain.record, own.name) for own in fields(ModelFacts)})
    tokenizer = Tokenizer.from_file(str(plain.tokenizer_path))
    rows = graph.make_rows(tokenizer, facts, parity_pairs())
    expected = graph.run(open_graph(plain.model_path), rows)
    run = partial(graph.run_batch, session)
    large, *others = (list(_in_exact_batches(run, rows, facts, budget)) for budget in _BUDGETS)
    difference = max(apart(large, other) for other in others)
    found = compare(large, expected)
    tolerance = graph.tolerance.get("bf16", 0.0)
    attempt = ParityAttempt(
        precision="bf16",
        max_abs_diff=found.max_abs_diff,
        spearman=found.spearman,
        tolerance=tolerance,
        passed=_passes(found, tolerance) and difference == 0.0,
    )
    against = f"its graph in fp32, {len(rows)} fixed rows, on a CPU"
    record = ParityRecord(
        **attempt.model_dump(), n_values=found.n_values, against=against, attempts=(attempt,)
    )
    return record, difference


def _passes(found: Parity, tolerance: float) -> bool:
    return found.max_abs_diff <= tolerance and found.spearman >= MIN_SPEARMAN


def _in_exact_batches(
    run: Any, rows: _Rows, facts: ModelFacts, max_batch_tokens: int
) -> Iterator[Values]:
    """Yield each row's values, run as scoring runs it: one width a batch, two rows at least."""
    has_short_steps = facts.bos_id is None  # As families of causal models have it.
    lengths = np.array([len(row.ids) for row in rows])
    widths = exact_widths(lengths, has_short_steps=has_short_steps)
    widths = np.minimum(widths, facts.max_positions)
    candidates = exact_widths(
        np.array([len(row.candidate_ids) for row in rows]), has_short_steps=False
    )
    found: dict[int, Values] = {}
    for batch in exact_batches(widths, candidates, max_batch_tokens=max_batch_tokens):
        own = [replace(rows[i], width=int(widths[i])) for i in batch]
        values = run(own * 2 if len(own) == 1 else own)
        found.update(zip(batch.tolist(), values, strict=False))
    yield from (np.asarray(found[i], dtype=np.float64) for i in range(len(rows)))
