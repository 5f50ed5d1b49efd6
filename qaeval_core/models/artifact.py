"""Artifacts: an exported model folder, found, verified, and built where it is missing.

A request in, a verified folder out. An artifact holds ``model.onnx`` (and ``model.onnx.data`` for
graphs too large for one file), ``tokenizer.json``, ``artifact.json`` with the hashes of all these,
and ``artifact.sha256`` with that of the record, so that every byte counts. One that is missing is
built by ``python -m qaeval_export``, once, however many processes ask; torch never enters this one.

But: graphs are run in ``session``; what is exported, and how, ``qaeval_export`` decides.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from qaeval_core.errors import (
    ArtifactHashError,
    ArtifactMissingError,
    ExportError,
    ModelUnavailableError,
    first_problem,
)
from qaeval_core.models.export_process import ExportLimits, run_export
from qaeval_core.models.record import (
    FORMAT_VERSION,
    GRAPHS,
    ArtifactRecord,
    ArtifactRequest,
    export_command,
)
from qaeval_core.models.registry import check_no_code, resolve_model
from qaeval_core.models.source import file_sha256
from qaeval_core.storage.files import expanded, make_folder, open_lock
from qaeval_core.storage.path import check_lasting
from qaeval_core.storage.wary import open_regular, read_whole

RECORD = "artifact.json"
SEAL = "artifact.sha256"

_MOST_RECORD_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """An exported model folder and its record."""

    folder: Path
    record: ArtifactRecord

    @property
    def model_path(self) -> Path:
        """The graph."""
        return self.folder / "model.onnx"

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer, without truncation and padding."""
        return self.folder / "tokenizer.json"

    @property
    def hash(self) -> str:
        """SHA-256, in hex, of what names the numbers: files, graph, options, precision.

        Fields that decide numbers and are not in it (positions, special tokens) follow from the
        model; that they are as they were built is what ``artifact.sha256`` says. It stays as it
        is: signatures and keys of finished runs hold it.
        """
        record = self.record
        parts = {
            "files": record.files,
            "graph": record.graph,
            "graph_version": record.graph_version,
            "options": record.options,
            "precision": record.precision,
        }
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def default_root() -> Path:
    """Return where artifacts lie: ``QAEVAL_ARTIFACTS``, or a folder in the user's cache.

    Raises
    ------
    ConfigError
        If neither is known; lexical metrics need no artifacts, and do not ask.
    """
    named = os.environ.get("QAEVAL_ARTIFACTS") or "~/.cache/qaeval/artifacts"
    check_lasting(named, "QAEVAL_ARTIFACTS")
    return expanded(named, instead="QAEVAL_ARTIFACTS")


def artifact_root(given: str | None) -> Path:
    """Return where a run's artifacts lie: the folder that is given, else `default_root`.

    Raises
    ------
    ConfigError
        If it is relative in a submitted Ray job, or nothing is known.
    """
    check_lasting(given, "models.artifacts_path")
    return Path(given) if given else default_root()


def load_artifact(folder: Path | str, *, verify: bool = True) -> Artifact:
    """Read one artifact folder.

    Parameters
    ----------
    folder : Path or str
        Holds ``artifact.json``.
    verify : bool, default True
        Compare the hash of every file with the record, and the files with its list.

    Returns
    -------
    Artifact

    Raises
    ------
    ArtifactMissingError
        If there is no artifact, it was built for an older graph, or before records were sealed.
    ArtifactHashError
        If a file is missing, differs from its recorded hash or is not in the record, or the
        record is damaged.
    """
    folder = Path(folder)
    record = read_record(folder)
    graph = GRAPHS.get(record.graph)
    version = graph.version_of(record.source) if graph else None
    if record.graph_version != version:
        raise ArtifactMissingError(
            f"{folder} was built for version {record.graph_version} of graph {record.graph}, and "
            f"this program has version {version}; build it again with: "
            f"{_rebuild_command(record, folder)} [QA0405]"
        )
    if verify:
        check_files(folder, record)
    return Artifact(folder=folder, record=record)


def find_artifact(root: Path, request: ArtifactRequest, *, compare_model: bool = True) -> Artifact:
    """Load the artifact that answers a request.

    Where the model's own files are at hand, they are compared with the ones the artifact was made
    from. An artifact that fell back to fp32 answers a request for fp16.

    Parameters
    ----------
    root : Path
        Where artifacts lie.
    request : ArtifactRequest
        What is wanted.
    compare_model : bool, default True
        False reads no file of the model: for a request that another one's file names.

    Raises
    ------
    ArtifactMissingError
        If there is none, it is lossy and that is not allowed, or the model's files changed; the
        message holds the command that builds it.
    ArtifactHashError
        If a file differs from its recorded hash.
    """
    folder = Path(root) / request.folder_name
    command = export_command(request, Path(root))
    if not (folder / RECORD).is_file():
        raise ArtifactMissingError(f"no artifact in {folder}; build it with: {command} [QA0405]")
    if not (folder / SEAL).is_file():
        raise ArtifactMissingError(
            f"{folder} has no {SEAL}, because an older version built it. Compare it with its "
            f"model, and keep it if they agree, with: {command} [QA0405]"
        )
    artifact = load_artifact(folder)
    reason = _mismatch(artifact.record, request, compare_model=compare_model)
    if reason:
        raise ArtifactMissingError(
            f"{folder}: {reason}; build it again with: {command} --force [QA0405]"
        )
    return artifact


def ensure_artifact(
    root: Path,
    request: ArtifactRequest,
    *,
    build: bool = True,
    limits: ExportLimits | None = None,
) -> Artifact:
    """Load the artifact that answers a request, building it first where it is missing.

    The export runs in a process of its own, so torch never enters this one. Two processes that
    ask at once build it once.

    Parameters
    ----------
    root : Path
        Where artifacts lie.
    request : ArtifactRequest
        What is wanted.
    build : bool, default True
        False behaves like ``find_artifact``.
    limits : ExportLimits, optional
        What building it may take.

    Raises
    ------
    ArtifactMissingError
        If it is missing, and building is not allowed or torch is not installed.
    ArtifactHashError
        If a file of the artifact or of an embedded model differs from its recorded hash.
    ExportError
        If the export failed, was killed or took too long.
    ConfigError
        If the model brings code.
    """
    try:
        return find_artifact(root, request)
    except ArtifactMissingError as missing:
        if not build:
            raise
        folder = expanded(request.model)
        if folder.is_dir():
            check_no_code(folder)  # Here, not in the export: its message comes at once.
        limits = limits or ExportLimits()
        run_export(request, Path(root), missing=str(missing), limits=limits)
    return find_artifact(root, request)


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """Hold the right to write an artifact folder; a second process waits here.

    The lock belongs to the process and ends with it, so a killed export blocks nobody.

    Raises
    ------
    ExportError
        If the file to lock is a link, a pipe or another user's.
    """
    make_folder(folder.parent, is_private=True)
    path = folder.parent / f".{folder.name}.lock"
    try:
        file = open_lock(path)
    except OSError as error:
        raise ExportError(f"cannot lock {folder}: {error.strerror} [QA0405]") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def read_record(folder: Path) -> ArtifactRecord:
    """Read the record of an artifact folder, and no file beside it.

    Raises
    ------
    ArtifactMissingError
        If there is none, of this format, or it has no checksum.
    ArtifactHashError
        If it is damaged.
    """
    path = folder / RECORD
    try:
        with open_regular(path) as file:
            content = read_whole(file, path, most_bytes=_MOST_RECORD_BYTES)
    except FileNotFoundError:
        raise ArtifactMissingError(
            f"{folder} holds no {RECORD}; build one with: qaeval export --graph GRAPH --model "
            f"MODEL --precision PRECISION --root {folder.parent} [QA0405]"
        ) from None
    _check_seal(folder, content)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise ArtifactHashError(f"{path} is damaged: not JSON [QA0406]") from None
    if not isinstance(fields, dict) or fields.get("format_version") != FORMAT_VERSION:
        raise ArtifactMissingError(
            f"{path} does not have format {FORMAT_VERSION}; build it again with qaeval export "
            "[QA0405]"
        )
    try:
        return ArtifactRecord.model_validate(fields)
    except ValidationError as error:
        raise ArtifactHashError(f"{path} is damaged: {first_problem(error)} [QA0406]") from None


def seal_of(content: bytes) -> str:
    """Return what ``artifact.sha256`` holds for the bytes of a record; `sha256sum -c` reads it."""
    return f"{hashlib.sha256(content).hexdigest()}  {RECORD}\n"


def _check_seal(folder: Path, content: bytes) -> None:
    try:
        with open_regular(folder / SEAL) as file:
            seal = file.read(_MOST_RECORD_BYTES)
    except FileNotFoundError:
        raise ArtifactMissingError(
            f"{folder} has no {SEAL}, because an older version built it. The qaeval export that "
            "built it compares it with its model, and keeps it if they agree [QA0405]"
        ) from None
    if seal != seal_of(content).encode():
        raise ArtifactHashError(
            f"{folder / RECORD} is damaged: its SHA-256 is not the one in {SEAL}. If you trust "
            "neither file, delete the folder; it is built again [QA0406]"
        )


def check_files(folder: Path, record: ArtifactRecord) -> None:
    """Raise ArtifactHashError unless a folder holds the files of a record, and no other ones."""
    for needed in ("model.onnx", "tokenizer.json"):
        if needed not in record.files:
            raise ArtifactHashError(
                f"{folder / RECORD} is damaged: it lacks the file {needed} [QA0406]"
            )
    for file, expected in record.files.items():
        if Path(file).name != file:
            raise ArtifactHashError(
                f"{folder / RECORD} is damaged: {file!r} is not a file name [QA0406]"
            )
        _check_file(folder / file, expected)
    # A graph may read weights from any file beside it.
    stray = sorted({path.name for path in folder.iterdir()} - {*record.files, RECORD, SEAL})
    if stray:
        raise ArtifactHashError(
            f"{folder} holds {stray[0]!r}, which its record does not name. Delete that file, or "
            "the folder, which is built again [QA0406]"
        )


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ArtifactHashError(f"{path} is missing; its record says SHA-256 {expected} [QA0406]")
    found = file_sha256(path)
    if found != expected:
        raise ArtifactHashError(f"{path} has SHA-256 {found}, its record says {expected} [QA0406]")


def _rebuild_command(record: ArtifactRecord, folder: Path) -> str:
    # A folder model is recorded by its last part alone; the user knows where it lies.
    name = record.model.name
    if record.model.kind == "hub":
        name = f"{name}@{record.model.revision}"
    request = ArtifactRequest(record.graph, name, record.requested_precision, record.options)
    return f"{export_command(request, folder.parent)} --force"


def _mismatch(
    record: ArtifactRecord, request: ArtifactRequest, *, compare_model: bool
) -> str | None:
    """Return why a record does not answer a request, or None."""
    asked = (request.graph, dict(request.options), request.precision)
    found = (record.graph, record.options, record.requested_precision)
    if asked != found:
        return f"holds {found}, not {asked}"
    if record.lossy and not request.allow_lossy:
        return "its precision failed the parity gate and allow_lossy is not set"
    if record.model.kind == "hub" or not compare_model:
        return None  # A hub revision never changes; the hub is not asked at run time.
    try:
        source = resolve_model(
            request.model, role=request.role, onnx_file=request.onnx_file, ask_hub=False
        )
    except ModelUnavailableError:
        return None  # An artifact may be shipped to where its model is not.
    if source.kind == record.model.kind and dict(source.files) != record.model.files:
        changed = sorted(set(source.files.items()) ^ set(record.model.files.items()))
        return f"model files changed: {', '.join(sorted({name for name, _ in changed}))}"
    return None
