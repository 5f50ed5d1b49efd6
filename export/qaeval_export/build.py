"""Build: a request -> an artifact folder, complete or not at all.

Steps: find the model, make its graph (``traced`` from torch, or ``adopted`` of an ONNX file), write
the folder under a temporary name, rename it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import onnxruntime
from pydantic import ValidationError

from qaeval_core.errors import ArtifactHashError, ArtifactMissingError, ExportError, first_problem
from qaeval_core.models.artifact import (
    RECORD,
    SEAL,
    Artifact,
    build_lock,
    find_artifact,
    load_artifact,
    seal_of,
)
from qaeval_core.models.open_vino import check_bf16
from qaeval_core.models.record import (
    FORMAT_VERSION,
    GRAPHS,
    ArtifactRecord,
    ArtifactRequest,
    ModelRecord,
)
from qaeval_core.models.registry import resolve_model
from qaeval_core.models.source import ModelSource, file_sha256
from qaeval_export.facts import Made
from qaeval_export.graph_files import tensor_records


def build_artifact(
    request: ArtifactRequest,
    root: Path,
    *,
    force: bool = False,
    on_source: Callable[[ModelSource], None] = lambda _: None,
) -> Artifact:
    """Build an artifact, or return the one that another process has built meanwhile.

    Parameters
    ----------
    request : ArtifactRequest
        Graph, model, precision and options.
    root : Path
        The artifact becomes ``root / request.folder_name``.
    force : bool, default False
        Build it even if it is there.
    on_source : callable, optional
        Called with the model's files before they are loaded.

    Raises
    ------
    ModelUnavailableError, ArtifactHashError
        If the model's files cannot be had, or differ from their pinned hashes.
    ExportError
        If the model is not supported, or the fp32 graph differs from torch; in bf16 also if it
        differs too much from that in fp32.
    DeviceError
        If this CPU does not run graphs in bf16.
    """
    folder = Path(root) / request.folder_name
    with build_lock(folder):
        if not force:
            try:
                return find_artifact(root, request)
            except (ArtifactMissingError, ArtifactHashError):
                pass
        _remove_leftovers(folder)
        temporary = folder.parent / f".building-{folder.name}-{os.getpid()}"
        temporary.mkdir(parents=True)
        try:
            if request.precision == "bf16":
                _write_bf16(request, root, temporary, on_source)
            else:
                _write(request, temporary, on_source)
            _replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return load_artifact(folder)


def _remove_leftovers(folder: Path) -> None:
    """Delete what killed builds of an artifact left, gigabytes each; its lock is held."""
    own = re.compile(rf"\.building-{re.escape(folder.name)}-\d+(-old)?")
    for path in folder.parent.iterdir():
        if own.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _replace(temporary: Path, folder: Path) -> None:
    """Put a finished folder in place; a folder with files in it cannot be renamed over."""
    old = temporary.with_name(f"{temporary.name}-old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(temporary, folder)
    shutil.rmtree(old, ignore_errors=True)


def _write(
    request: ArtifactRequest, folder: Path, on_source: Callable[[ModelSource], None]
) -> None:
    source = resolve_model(request.model, role=request.role, onnx_file=request.onnx_file)
    on_source(source)
    made = _make(source, request, folder)
    made.tokenizer.save(str(folder / "tokenizer.json"))
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    try:
        record = _make_record(source=source, request=request, made=made, files=files)
    except ValidationError as error:
        raise ExportError(f"{source.name}: {first_problem(error)} [QA0411]") from None
    _seal(record, folder)


def _write_bf16(
    request: ArtifactRequest, root: Path, folder: Path, on_source: Callable[[ModelSource], None]
) -> None:
    """Write the record of a graph that runs in bfloat16, beside links to its files in fp32."""
    check_bf16()
    from qaeval_export.bfloat16 import write_bf16  # It loads what the other ways do without.

    plain = replace(request, precision="fp32", allow_lossy=False)
    _seal(write_bf16(build_artifact(plain, root, on_source=on_source), request, folder), folder)


def _seal(record: ArtifactRecord, folder: Path) -> None:
    content = (json.dumps(record.model_dump(mode="json"), indent=2) + "\n").encode()
    (folder / RECORD).write_bytes(content)
    (folder / SEAL).write_text(seal_of(content), encoding="utf-8")


def _make(source: ModelSource, request: ArtifactRequest, folder: Path) -> Made:
    """Save the graph of a request in a folder, of a file that is there or traced from torch."""
    if source.onnx_file is not None:
        from qaeval_export.adopted import adopt  # Each way loads what the other one does without.

        return adopt(source, request, folder)
    from qaeval_export.traced import make_traced

    return make_traced(source, request, folder)


def _make_record(
    *, source: ModelSource, request: ArtifactRequest, made: Made, files: Mapping[str, str]
) -> ArtifactRecord:
    inputs, outputs = tensor_records(made.proto)
    origin: Literal["torch", "onnx"] = "torch" if source.onnx_file is None else "onnx"
    return ArtifactRecord(
        format_version=FORMAT_VERSION,
        graph=request.graph,
        graph_version=GRAPHS[request.graph].version_of(origin),
        options=dict(request.options),
        precision=made.precision,
        requested_precision=request.precision,
        lossy=made.parity is not None and not made.parity.passed,
        model=ModelRecord(
            name=source.name, kind=source.kind, revision=source.revision, files=dict(source.files)
        ),
        files=dict(files),
        tokenizer_hash=files["tokenizer.json"],
        inputs=inputs,
        outputs=outputs,
        opset=next(o.version for o in made.proto.opset_import if o.domain in ("", "ai.onnx")),
        versions=_versions(),
        parity=made.parity,
        source=origin,
        batch_difference=made.batch_difference,
        one_row_batches=made.one_row_batches,
        **asdict(made.facts),
    )


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "onnx", "onnxscript", "tokenizers")
    found = {name: version(name) for name in names}
    # The package is onnxruntime or onnxruntime-gpu; the module says the version in both.
    return {**found, "onnxruntime": onnxruntime.__version__}
