"""Job: a checked request: what to score, with which models, into which store.

Everything that can be wrong with a request is found here, before anything is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from qaeval_core.configure import RunConfig
from qaeval_core.errors import ConfigError, InputError
from qaeval_core.families.contract import FamilyPlan
from qaeval_core.models.artifact import Artifact, artifact_root, ensure_artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.record import ArtifactRecord, ArtifactRequest
from qaeval_core.planning.columns import (
    check_carried,
    check_copied,
    cluster_column,
    column_notes,
    resolve_columns,
)
from qaeval_core.planning.compile import (
    compile_run,
    export_limits,
    needed_roles,
    optional_roles,
)
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.listing import is_glob, matches, split_glob
from qaeval_core.planning.predictions import find_predicted, read_numbers
from qaeval_core.planning.run_plan import CompiledRun, check_output_names
from qaeval_core.planning.shards import Piece, ReadLimits, plan_file
from qaeval_core.planning.text_files.copies import Copies, copies_of
from qaeval_core.signature import hash_text
from qaeval_core.storage.path import StoragePath, as_path, open_out
from qaeval_core.store.commits import Commits
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.sample import Sample
from qaeval_core.store.store import Store

_MIN_PIECE_ROWS = 4096
_MAX_PIECE_ROWS = 65_536
_PIECES_PER_ACTOR = 8
# Several pieces of a family that asks are open at once in one actor: small ones share the work.
_MAX_ASKED_PIECE_ROWS = 512


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request: what to score, with what, into which store."""

    config: RunConfig
    files: tuple[InputFile, ...]
    n_rows: Mapping[str, int]  # by file id; fewer than the file has under limit
    columns: Mapping[str, str]
    run: CompiledRun
    store: Store
    commits: Commits
    device: Device
    notes: tuple[str, ...] = ()

    @property
    def n_rows_total(self) -> int:
        """Rows that count, over all files."""
        return sum(self.n_rows.values())

    @property
    def sample(self) -> Sample | None:
        """Rows that are scored; None where all are."""
        return self.store.sample

    @property
    def n_rows_wanted(self) -> int:
        """Rows that are to be scored: of the sample, or all."""
        return self.n_rows_total if self.sample is None else self.sample.n_rows

    def rows_per_shard(self, family: FamilyPlan) -> int:
        """Return the shard size of a family."""
        return self.config.scoring.rows_per_shard or family.rows_per_shard[self.device]

    def read_limits(self, families: Sequence[FamilyPlan] = ()) -> ReadLimits:
        """Return how much is read at once for some families."""
        given = self.config.scoring
        own = [family.max_shard_bytes or given.max_shard_bytes for family in families]
        return ReadLimits(min([given.max_shard_bytes, *own]), given.max_text_bytes)

    def done_ranges(self, family: FamilyPlan) -> dict[str, list[RowRange]]:
        """Return the committed, disjoint ranges of every file of this job."""
        own = self.commits.of(family.key)
        return {
            file.file_id: own.covered(file.file_id, n_rows=self.n_rows[file.file_id])
            for file in self.files
        }

    def with_store(self, store: Store) -> Job:
        """Return the job with another way to OUT, of which nothing is known yet."""
        return replace(self, store=store, commits=Commits(store))

    def pieces(self, families: Sequence[FamilyPlan], *, n_actors: int) -> list[Piece]:
        """Return what is still to be done for the families of one pass."""
        done = {family.key: self.done_ranges(family) for family in families}
        least, most = _MIN_PIECE_ROWS, _MAX_PIECE_ROWS
        if families[0].resources == "calls":
            n_actors = self.config.cluster.llm_actors
            least, most = 1, _MAX_ASKED_PIECE_ROWS
        per_actor = self.n_rows_total // (_PIECES_PER_ACTOR * max(n_actors, 1))
        rows_per_piece = min(max(per_actor, least), most)
        rows_per_shard = min(self.rows_per_shard(family) for family in families)
        if families[0].resources == "model" and self.config.scoring.rows_per_shard is None:
            # A GPU's shard may hold all rows of a pass: other actors would have none, and the
            # first one nothing to tokenize while its device runs.
            rows_per_shard = min(rows_per_shard, max(per_actor, least))
        return [
            piece
            for file in self.files
            for piece in plan_file(
                file,
                done={key: ranges[file.file_id] for key, ranges in done.items()},
                rows_per_shard=rows_per_shard,
                limits=self.read_limits(families),
                n_rows=self.n_rows[file.file_id],
                rows_per_piece=rows_per_piece,
            )
        ]

    def file_pieces(self, file: InputFile) -> list[Piece]:
        """Return a file's rows as pieces of no family, to read them all."""
        return plan_file(
            file,
            done={"": ()},
            rows_per_shard=_MIN_PIECE_ROWS,
            limits=self.read_limits(),
            n_rows=self.n_rows[file.file_id],
        )

    @property
    def cluster(self) -> tuple[str | None, str]:
        """The column that says which rows belong together, and what they share, for people."""
        config = self.config
        return cluster_column(
            self.files, config.output.cluster, mapping=config.input.columns, known=self.columns
        )

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the scores depend on: the finished run's identity."""
        content: dict[str, object] = {
            "files": [(file.relative, file.file_id) for file in self.files],
            "n_rows": dict(self.n_rows),
            "instances": {plan.name: str(plan.signature) for plan in self.run.instances},
            "families": [plan.key for plan in self.run.families],
            "id": self.columns.get("id"),
            "carry": self.config.output.carry,
            "cluster": self.cluster,
            "statistics": self.config.output.statistics,
        }
        if self.sample is not None:
            content["sample"] = self.sample.name
        if self.config.input.no_answer:
            content["no_answer"] = read_numbers(self.config.input.no_answer)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files and columns of a request, checked before a cluster or model is touched."""

    store: Store
    files: tuple[InputFile, ...]
    columns: Mapping[str, str]
    problems: tuple[str, ...]
    sample: Sample | None = None  # of `running.sampling`, where one is asked for


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """Files of a request, whose columns nobody has looked at."""

    store: Store
    files: tuple[InputFile, ...]
    problems: tuple[str, ...]


def read_inputs(
    config: RunConfig,
    *,
    needs_out: bool = True,
    roles: Sequence[str] | None = None,
    copies: Copies | None = None,
) -> Inputs:
    """Find the input files and check their columns: `find_files` and `check_columns`."""
    found = find_files(config, needs_out=needs_out, copies=copies)
    return check_columns(config, found, roles=roles)


def find_files(
    config: RunConfig, *, needs_out: bool = True, copies: Copies | None = None
) -> FoundFiles:
    """Find the input files; they are none of OUT.

    Parameters
    ----------
    needs_out : bool, default True
        False where nothing is written; ``output.path`` may then be missing.
    copies : Copies, optional
        Of files of text; default below OUT, or in the cache without one.

    Raises
    ------
    ConfigError, InputError
        For whatever is wrong with paths or files.
    """
    if config.output.path is None and needs_out:
        raise ConfigError("no output folder; give --out OUT [QA0107]")
    store = Store(open_out(config.output.path or "."))
    if config.output.path is not None:
        _check_out_not_among_inputs(config.input.paths, store.out)
        store.check_folders()
    copies = copies or copies_of(config.input, store.out if config.output.path else None)
    files, problems = find_predicted(config, copies)
    if config.output.path is not None:
        _check_out_not_taken(config.input.paths, store.out, files)
        _check_names_in(store.out, files)
    return FoundFiles(store, tuple(files), tuple(problems))


def check_columns(
    config: RunConfig, found: FoundFiles, *, roles: Sequence[str] | None = None
) -> Inputs:
    """Find the columns that are read, carried or ids.

    Parameters
    ----------
    roles : sequence of str, optional
        Roles to read; default those of the configured metrics.

    Raises
    ------
    ConfigError, InputError
        For whatever is wrong with columns.
    """
    files = found.files
    columns = resolve_columns(
        files,
        roles=needed_roles(config) if roles is None else roles,
        mapping=config.input.columns,
        optional=optional_roles(config) if roles is None else (),
    )
    check_carried(files, config.output.carry)
    cluster_column(files, config.output.cluster, mapping=config.input.columns, known=columns)
    check_copied(files, id_column=columns.get("id"), carry=config.output.carry)
    notes = column_notes(
        files, columns=columns, mapping=config.input.columns, carry=config.output.carry
    )
    return Inputs(found.store, files, columns, (*found.problems, *notes))


def make_job(
    config: RunConfig,
    inputs: Inputs,
    *,
    device: Device,
    resolve_artifact: Callable[[ArtifactRequest], Artifact] | None = None,
) -> Job:
    """Return the job of a request, building artifacts that are missing.

    Parameters
    ----------
    resolve_artifact : callable, optional
        Finds the artifact of a request in another way: without building it.

    Raises
    ------
    QAEvalError
        For whatever is wrong with models, baselines or output columns.
    """
    if (inputs.sample is None) != (config.input.sample_groups is None):
        raise ValueError("a sample that is asked for is to be found before: with_sample")
    models = config.models

    def ensured(request: ArtifactRequest) -> Artifact:
        root = artifact_root(models.artifacts_path)
        limits = export_limits(models, request)
        return ensure_artifact(root, request, build=models.build, limits=limits)

    n_rows = count_rows(inputs.files, config.input.limit)
    run = compile_run(
        config,
        columns=inputs.columns,
        device=device,
        resolve_artifact=resolve_artifact or ensured,
        corpus=_scored_hash(inputs, n_rows),
    )
    check_output_names(run, carry=config.output.carry)
    store = Store(inputs.store.out, sample=inputs.sample)
    return Job(
        config=config,
        files=inputs.files,
        n_rows=n_rows,
        columns=inputs.columns,
        run=run,
        store=store,
        commits=Commits(store),
        device=device,
        notes=(*inputs.problems, *_precision_notes(run, device)),
    )


# Least time of BERT-base's LRM, and of MiniLM's, in fp32 over that in fp16: `docs/gpu.md`.
_COST_OF_FP32 = ": on a GPU that takes 5 to 7 times as long"


def _precision_notes(run: CompiledRun, device: Device) -> list[str]:
    """Say where a graph runs in another precision than asked for, why, and what that costs."""
    records = {
        artifact.folder.name: artifact.record
        for plan in run.families
        for artifact in plan.artifacts
    }
    return [
        f"{name}: {_why_other_precision(record)}, so {record.precision} runs instead of "
        f"{record.requested_precision}{_COST_OF_FP32 if device == 'cuda' else ''}"
        for name, record in records.items()
        if record.precision != record.requested_precision
    ]


def _why_other_precision(record: ArtifactRecord) -> str:
    if record.source == "onnx" or record.parity is None:
        return "its ONNX file is taken as it is"
    first = record.parity.attempts[0]
    return (
        f"{record.requested_precision} differs from torch by up to {first.max_abs_diff:.2g} "
        f"(tolerance {first.tolerance:g})"
    )


def _check_names_in(out: StoragePath, files: Sequence[InputFile]) -> None:
    """Raise InputError if the scores of a file cannot have its name in OUT."""
    for file in files:
        try:
            out.storage.check_name((out / "scores" / file.relative).key)
        except ValueError as error:
            raise InputError(
                f"{file.relative!r} cannot be a name in {out}: {str(error).splitlines()[0]}; "
                "rename it, or write OUT to a disk [QA0310]"
            ) from None


def _check_out_not_among_inputs(paths: Sequence[str], out: StoragePath) -> None:
    for path in paths:
        if "://" in path and not path.startswith("file://"):
            # Endpoint and region are said in other ways than OUT's: places are compared alone.
            folder, own = _place(path), _place(str(out))
            is_among = own == folder or own.startswith(f"{folder}/")
        else:
            folder = str(as_path(path))
            is_among = Path(folder).is_dir() and out.is_below(as_path(folder))
        if is_among:
            raise ConfigError(f"--out {out} lies inside the input folder {folder} [QA0109]")


# Of what a run writes, besides scores: a file of each depth.
_OWN_FILES = ("plan.parquet", "families/0/0.parquet", "journal/index/0.parquet")


def _check_out_not_taken(
    paths: Sequence[str], out: StoragePath, files: Sequence[InputFile]
) -> None:
    """Raise ConfigError where a glob of the input would take what the run writes."""
    own = _parts(str(out))
    names = [*_OWN_FILES, *(f"scores/{file.relative}" for file in files)]
    for path in filter(is_glob, paths):
        parts = _parts(path)
        taken = next((name for name in names if matches("/".join([*own, name]), parts)), None)
        if taken is not None:
            raise ConfigError(
                f"--out {out} lies where {path} looks for input, so the next run would read its "
                f"{taken} as input [QA0109]"
            )


def _parts(path: str) -> list[str]:
    """Return a path or URI as the parts of a glob; links of a local one are followed."""
    if "://" in path and not path.startswith("file://"):
        return [part for part in _place(path).split("/") if part]
    local = Path(str(as_path(path)))
    base, below = split_glob(str(local)) if is_glob(str(local)) else (str(local), ())
    return [*Path(base).resolve().parts[1:], *below]


def _place(uri: str) -> str:
    """Return what a URI names, without the way to it, as stores take it."""
    scheme, separator, name = uri.partition("?")[0].partition("://")
    return f"{scheme}{separator}" + "/".join(part for part in unquote(name).split("/") if part)


def corpus_hash(files: Sequence[InputFile], n_rows: Mapping[str, int], *more: str) -> str:
    """Return a hash of which rows a run reads, by their files' identities."""
    lines = [f"{file.file_id} {n_rows[file.file_id]}" for file in files]
    return hash_text("\n".join([*lines, *more]))


def _scored_hash(inputs: Inputs, n_rows: Mapping[str, int]) -> str:
    """Return a hash of which rows statistics of the corpus count: of a sample, its rows alone."""
    sample = inputs.sample
    own = () if sample is None else (sample.name,)
    return corpus_hash(inputs.files, n_rows, *own)


def count_rows(files: Sequence[InputFile], limit: int | None) -> dict[str, int]:
    """Return how many rows of each file count, by file id, under a limit on all of them."""
    left = sum(file.n_rows for file in files) if limit is None else limit
    counts = {}
    for file in files:
        counts[file.file_id] = min(file.n_rows, left)
        left -= counts[file.file_id]
    return counts
