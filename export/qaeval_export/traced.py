"""Traced: a model's weights -> the graph of a request, compared with torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import onnx
import onnxruntime as ort

from qaeval_core.errors import ExportError
from qaeval_core.models.record import GRAPHS, ArtifactRequest, ParityAttempt, ParityRecord
from qaeval_core.models.source import ModelSource
from qaeval_core.terminal import say
from qaeval_export.batch_mates import FP32_LIMIT, difference_by_batch_mates
from qaeval_export.eager import eager_values
from qaeval_export.facts import Made, ModelFacts
from qaeval_export.graph_files import open_graph, save_graph
from qaeval_export.graphs import graph_export
from qaeval_export.loading import LoadedModel, for_graph, load_model, make_facts
from qaeval_export.parity import MIN_SPEARMAN, Parity, compare, parity_pairs
from qaeval_export.precision import convert, rounded
from qaeval_export.tracing import trace

# Of the fixed rows that are run with other batch mates: a graph of ours does nothing across rows.
_EVERY = 4


def make_traced(source: ModelSource, request: ArtifactRequest, folder: Path) -> Made:
    """Load a model, trace its graph, and save it where it is near enough to torch.

    Raises
    ------
    ExportError
        If the model is not supported, or the fp32 graph differs from torch.
    """
    loaded = _load(source, request)
    facts = make_facts(loaded, request)
    proto, parity, apart = _gate(trace(loaded, request), loaded, facts, request, folder)
    return Made(proto, facts, loaded.tokenizer, parity.precision, parity, apart)


def _load(source: ModelSource, request: ArtifactRequest) -> LoadedModel:
    loads_as = GRAPHS[request.graph].loads_as
    return for_graph(load_model(source, role=request.role, loads_as=loads_as), request)


def compare_with_weights(
    source: ModelSource, request: ArtifactRequest, *, precision: str, path: Path
) -> ParityRecord:
    """Return how far a graph that was not traced is from the weights that lie beside it.

    Raises
    ------
    ExportError
        If it is too far.
    """
    graph = graph_export(request.graph)
    loaded = _load(source, request)
    facts = make_facts(loaded, request)
    rows = graph.make_rows(loaded.tokenizer, facts, parity_pairs())
    parity = compare(
        graph.run(open_graph(path), rows), eager_values(loaded, request, rows, oracle=graph.oracle)
    )
    attempt = _judge(parity, tolerance=graph.tolerance[precision], precision=precision)
    if not attempt.passed:
        raise ExportError(
            f"{source.onnx_file} of {request.model} differs from its safetensors: "
            f"{_shown(attempt)} [QA0410]"
        )
    return _record(attempt, parity, n_rows=len(rows), attempts=[attempt])


def _record(
    attempt: ParityAttempt, parity: Parity, *, n_rows: int, attempts: list[ParityAttempt]
) -> ParityRecord:
    where = "on the CPU" if attempt.precision == "fp32" else "each value rounded as on a GPU"
    return ParityRecord(
        **attempt.model_dump(),
        n_values=parity.n_values,
        against=f"torch fp32, {n_rows} fixed rows, {where}",
        attempts=tuple(attempts),
    )


def _gate(
    proto: onnx.ModelProto,
    loaded: LoadedModel,
    facts: ModelFacts,
    request: ArtifactRequest,
    folder: Path,
) -> tuple[onnx.ModelProto, ParityRecord, float]:
    """Save the graph in the asked precision, or in fp32 if that one fails; return what was saved.

    With its parity, and how far a value is moved by the rows beside it: in fp16 by no more than it
    may be from torch.

    fp16 is judged with the roundings of a GPU, which is what runs it: a CPU's kernels drop some and
    sum attention in fp16, so that they can be off by less, or by more.

    Raises
    ------
    ExportError
        If fp32 fails, too: then the graph is wrong.
    """
    graph = graph_export(request.graph)
    rows = graph.make_rows(loaded.tokenizer, facts, parity_pairs())
    expected = eager_values(loaded, request, rows, oracle=graph.oracle)
    attempts: list[ParityAttempt] = []
    for precision in dict.fromkeys([request.precision, "fp32"]):
        converted = convert(proto, precision=precision)
        save_graph(converted, folder)
        with _opened(converted, folder / "model.onnx", precision=precision) as session:
            parity = compare(graph.run(session, rows), expected)
            apart = difference_by_batch_mates(
                partial(graph.run_batch, session), rows[:: _EVERY if len(rows) > _EVERY else 1]
            )
        tolerance = graph.tolerance[precision]
        attempt = _judge(parity, tolerance=tolerance, precision=precision)
        most = FP32_LIMIT if precision == "fp32" else tolerance
        why = f"{_shown(attempt)}: parity gate failed"
        if attempt.passed and apart > most:
            attempt = attempt.model_copy(update={"passed": False})
            why = f"a value moves by {apart:.1e} with the rows beside it (at most {most:g})"
        attempts.append(attempt)
        if attempt.passed or (request.allow_lossy and precision == "fp16"):
            record = _record(attempt, parity, n_rows=len(rows), attempts=attempts)
            return converted, record, apart
        say(f"{precision}: {why}")
    raise ExportError(f"{request.graph} of {request.model} differs from torch: {why} [QA0410]")


@contextmanager
def _opened(
    proto: onnx.ModelProto, path: Path, *, precision: str
) -> Iterator[ort.InferenceSession]:
    """Open a saved graph; one in fp16 as a GPU would compute it."""
    if precision == "fp32":
        yield open_graph(path)
        return
    open_graph(path)  # It loads.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # Goes with a killed build's.
        save_graph(rounded(proto), Path(folder))
        yield open_graph(Path(folder) / "model.onnx")


def _judge(parity: Parity, *, tolerance: float, precision: str) -> ParityAttempt:
    return ParityAttempt(
        precision=precision,
        max_abs_diff=parity.max_abs_diff,
        spearman=parity.spearman,
        tolerance=tolerance,
        passed=parity.max_abs_diff <= tolerance and parity.spearman >= MIN_SPEARMAN,
    )


def _shown(attempt: ParityAttempt) -> str:
    return (
        f"max_abs_diff {attempt.max_abs_diff:.2e} (at most {attempt.tolerance:g}), "
        f"spearman {attempt.spearman:.6f} (at least {MIN_SPEARMAN})"
    )
