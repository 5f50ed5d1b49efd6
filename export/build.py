"""Build: a request -> an artifact folder, complete or not at all.

Steps: find the model, load it, trace the graph, compare it with torch, write the folder under a
temporary name, rename it. But: each step's work is in a module of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime as ort

from export.eager import eager_values
from export.graphs import EXPORTS
from export.loading import LoadedModel, ModelFacts, load_model, make_facts
from export.parity import MIN_SPEARMAN, Parity, compare, convert, parity_pairs
from export.tracing import tensor_records, trace
from qaeval_core.errors import ArtifactHashError, ArtifactMissingError, ExportError
from qaeval_core.models.artifact import (
    RECORD,
    SEAL,
    Artifact,
    build_lock,
    check_files,
    find_artifact,
    load_artifact,
    read_record,
    seal_of,
)
from qaeval_core.models.record import (
    FORMAT_VERSION,
    GRAPHS,
    ArtifactRecord,
    ArtifactRequest,
    ModelRecord,
    ParityAttempt,
    ParityRecord,
)
from qaeval_core.models.registry import ModelSource, file_sha256, resolve_model
from qaeval_core.terminal import say

# Protobuf ends at 2 GiB; the rest is room for the graph itself.
_MAX_ONE_FILE_BYTES = 1_800_000_000


def build_artifact(request: ArtifactRequest, root: Path, *, force: bool = False) -> Artifact:
    """Build an artifact, or return the one that another process has built meanwhile.

    Parameters
    ----------
    request : ArtifactRequest
        Graph, model, precision and options.
    root : Path
        The artifact becomes ``root / request.folder_name``.
    force : bool, default False
        Build it even if it is there.

    Raises
    ------
    ModelUnavailableError, ArtifactHashError
        If the model's files cannot be had, or differ from their pinned hashes.
    ExportError
        If the model is not supported, or the fp32 graph differs from torch.
    """
    folder = Path(root) / request.folder_name
    with build_lock(folder):
        if not force:
            try:
                return find_artifact(root, request)
            except (ArtifactMissingError, ArtifactHashError):
                pass
            if _seal_old(folder, request):
                return find_artifact(root, request)
        temporary = folder.parent / f".building-{folder.name}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            _write(request, temporary)
            _replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return load_artifact(folder)


def _replace(temporary: Path, folder: Path) -> None:
    """Put a finished folder in place; a folder with files in it cannot be renamed over."""
    old = temporary.with_name(f"{temporary.name}-old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(temporary, folder)
    shutil.rmtree(old, ignore_errors=True)


def _write(request: ArtifactRequest, folder: Path) -> None:
    source = resolve_model(request.model, role=request.role)
    loaded = load_model(source, role=request.role)
    facts = make_facts(loaded, request)
    proto = trace(loaded, request)
    proto, parity = _gate(proto, loaded, facts, request, folder)
    loaded.tokenizer.save(str(folder / "tokenizer.json"))
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    record = _make_record(
        source=source, request=request, facts=facts, proto=proto, parity=parity, files=files
    )
    content = (json.dumps(record.model_dump(mode="json"), indent=2) + "\n").encode()
    (folder / RECORD).write_bytes(content)
    (folder / SEAL).write_text(seal_of(content), encoding="utf-8")


def _make_record(
    *,
    source: ModelSource,
    request: ArtifactRequest,
    facts: ModelFacts,
    proto: onnx.ModelProto,
    parity: ParityRecord,
    files: Mapping[str, str],
) -> ArtifactRecord:
    inputs, outputs = tensor_records(proto)
    return ArtifactRecord(
        format_version=FORMAT_VERSION,
        graph=request.graph,
        graph_version=GRAPHS[request.graph].version,
        options=dict(request.options),
        precision=parity.precision,
        requested_precision=request.precision,
        lossy=not parity.passed,
        model=ModelRecord(
            name=source.name, kind=source.kind, revision=source.revision, files=dict(source.files)
        ),
        files=dict(files),
        tokenizer_hash=files["tokenizer.json"],
        inputs=inputs,
        outputs=outputs,
        opset=next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")),
        versions=_versions(),
        parity=parity,
        **asdict(facts),
    )


def _seal_old(folder: Path, request: ArtifactRequest) -> bool:
    """Seal an artifact that was built before records had a checksum, if all of it is right.

    Its hash is in the signatures of finished runs, and another version of torch would not give
    the same bytes again: it is kept where its record is what this model's would be today.
    """
    if not (folder / RECORD).is_file() or (folder / SEAL).exists():
        return False
    try:
        record = read_record(folder, is_sealed=False)
        check_files(folder, record)
        source = resolve_model(request.model, role=request.role)
        loaded = load_model(source, role=request.role)
        now = _make_record(
            source=source,
            request=request,
            facts=make_facts(loaded, request),
            proto=onnx.load(folder / "model.onnx", load_external_data=False),
            parity=record.parity,
            files=record.files,
        )
    except (ArtifactMissingError, ArtifactHashError):
        return False
    if now.model_copy(update={"versions": record.versions}) != record:
        return False
    seal = folder.parent / f".{folder.name}-{os.getpid()}.sha256"
    seal.write_text(seal_of((folder / RECORD).read_bytes()), encoding="utf-8")
    os.replace(seal, folder / SEAL)
    say(f"{folder.name}: compared with its model and kept")
    return True


def _gate(
    proto: onnx.ModelProto,
    loaded: LoadedModel,
    facts: ModelFacts,
    request: ArtifactRequest,
    folder: Path,
) -> tuple[onnx.ModelProto, ParityRecord]:
    """Save the graph in the asked precision, or in fp32 if that one fails; return what was saved.

    Raises
    ------
    ExportError
        If fp32 fails, too: then the graph is wrong.
    """
    graph = EXPORTS[request.graph]
    rows = graph.make_rows(loaded.tokenizer, facts, parity_pairs())
    expected = eager_values(loaded, request, rows)
    attempts: list[ParityAttempt] = []
    for precision in dict.fromkeys([request.precision, "fp32"]):
        converted = convert(proto, precision=precision)
        _save(converted, folder)
        session = _open(folder / "model.onnx")
        parity = compare(graph.run(session, rows), expected)
        attempt = _judge(parity, tolerance=graph.tolerance[precision], precision=precision)
        attempts.append(attempt)
        if attempt.passed or (request.allow_lossy and precision == "fp16"):
            against = f"torch fp32, {len(rows)} fixed rows, on the CPU"
            return converted, ParityRecord(
                **attempt.model_dump(),
                n_values=parity.n_values,
                against=against,
                attempts=tuple(attempts),
            )
        say(f"{precision}: {_shown(attempt)}: parity gate failed")
    raise ExportError(
        f"{request.graph} of {request.model} differs from torch: {_shown(attempts[-1])}"
    )


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


def _save(proto: onnx.ModelProto, folder: Path) -> None:
    for file in ("model.onnx", "model.onnx.data"):
        (folder / file).unlink(missing_ok=True)
    n_bytes = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    if n_bytes < _MAX_ONE_FILE_BYTES:
        onnx.save(proto, folder / "model.onnx")
        return
    # Subtle: saving with external data empties the tensors of the proto it is given.
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    onnx.save(copy, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")


def _open(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "tokenizers")
    return {name: version(name) for name in names}
