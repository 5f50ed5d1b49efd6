"""Finished run: what a run wrote about itself, read again.

Reads OUT/run.json, OUT/plan.parquet and OUT/report.json; computes nothing. They may come from
anybody: they say what was scored, not where to go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from qaeval_core.configure import RunConfig, make_config
from qaeval_core.errors import ConfigError, InputError
from qaeval_core.models.engine import Device
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.predictions import find_predicted
from qaeval_core.planning.text_files.copies import copies_of
from qaeval_core.storage.arrow import table_at
from qaeval_core.storage.path import AnyPath, StoragePath, as_path, near_folders, read_json
from qaeval_core.store.sample import Sample, read_sample


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a finished run wrote about itself.

    Attributes
    ----------
    families : mapping of family key to signature
    instances : mapping of instance name to signature
    columns : mapping of role to input column
    file_ids : mapping of relative path to file identity at the time of the run
    stopped : mapping of family key to why it ended early; empty where the run is whole
    sample : rows that were scored; None where all were
    """

    out: StoragePath
    config: RunConfig
    families: Mapping[str, str]
    instances: Mapping[str, str]
    columns: Mapping[str, str]
    file_ids: Mapping[str, str]
    stopped: Mapping[str, str]
    device: Device
    environment: Mapping[str, Any]
    sample: Sample | None = None


def read_run(out: AnyPath, *, is_partial: bool = False) -> FinishedRun:
    """Return what a run wrote about itself: one that finished, or in which a family ended early.

    Parameters
    ----------
    out : StoragePath, Path or str
        Of ``qaeval score``: a folder, or the URI of one in a bucket.
    is_partial : bool, default False
        Whether a run that was cut off will do.

    Raises
    ------
    ConfigError
        If this is no OUT of ``qaeval score``, or its scores are not those of its last run.
    StorageError
        If an object store does not answer.
    """
    out = as_path(out)
    content = read_json(out / "run.json")
    if content is None:
        raise ConfigError(
            f"{out} holds no run.json: name the --out folder of a qaeval score{_near(out)} [QA0513]"
        )
    stopped = _stopped_families(out, content)
    if not (out / "_SUCCESS").is_file() and not stopped and not is_partial:
        raise ConfigError(f"{out} is not complete; run the same qaeval score again [QA0512]")
    for key in ("config", "families", "instances"):
        if not isinstance(content.get(key), dict):
            raise ConfigError(f"{out / 'run.json'} is damaged: {key} is not a mapping [QA0514]")
    if content.get("device") not in ("cpu", "cuda"):
        raise ConfigError(
            f"{out / 'run.json'} is damaged: device is {content.get('device')!r} [QA0514]"
        )
    config = make_config(content["config"], packages=_texts(content.get("packages")))
    sample = read_sample(content.get("sample"))
    if (sample is None) != (config.input.sample_groups is None):
        raise ConfigError(
            f"{out / 'run.json'} is damaged: it does not say which rows are sampled [QA0514]"
        )
    return FinishedRun(
        out=out,
        config=config,
        families=_texts(content["families"]),
        instances=_texts(content["instances"]),
        columns=_texts(content.get("columns")),
        file_ids=_planned_files(out / "plan.parquet"),
        stopped=stopped,
        device=content["device"],
        environment=_mapping(content.get("environment")),
        sample=sample,
    )


def check_results_out(out: StoragePath) -> None:
    """Raise ConfigError if results cannot be written there, or a run's files lie there."""
    try:
        is_run = (out / "run.json").is_file()
        next(out.list(), None)  # Of an object that is not there a store does not say why.
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"--out {out}: {error.strerror} [QA0111]") from None
    if is_run:
        raise ConfigError(
            f"--out {out} holds the scores of a run, and results would lie among them; choose "
            "another folder [QA0110]"
        )
    own = out.local
    for folder in (own, *own.parents) if own is not None else ():
        if folder.exists():
            if not folder.is_dir():
                raise ConfigError(f"--out {out}: {folder} is a file; name a folder [QA0111]")
            return


def _near(out: StoragePath) -> str:
    """Return a hint where OUT is not there at all."""
    try:
        return "" if out.is_dir() else near_folders(out)
    except OSError as error:
        # No bucket of that name, or nothing that these credentials may list.
        return f" ({error.strerror})"


def _planned_files(path: StoragePath) -> dict[str, str]:
    try:
        planned = table_at(path, ["relative", "file_id"])
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} is damaged: {error} [QA0514]") from None
    pairs = zip(planned["relative"].to_pylist(), planned["file_id"].to_pylist(), strict=True)
    return dict(pairs)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in _mapping(value).items()}


def _stopped_families(out: StoragePath, run: Mapping[str, Any]) -> Mapping[str, str]:
    """Return why families of an OUT ended early, by key; nothing where a run is whole or killed."""
    report = read_json(out / "report.json")
    if report is None or (out / "_SUCCESS").is_file():
        return {}
    reported = {
        key: _mapping(own).get("signature") for key, own in _mapping(report.get("families")).items()
    }
    # Otherwise the report, and the scores, are those of a run before the last one.
    return _texts(report.get("stopped")) if reported == run.get("families") else {}


def check_address(run: FinishedRun, inputs: Sequence[str], *, hint: str = "") -> None:
    """Raise ConfigError if a run read its input from a server, and nobody names it now."""
    remote = [path for path in run.config.input.paths if "://" in path]
    if remote and not inputs:
        raise ConfigError(
            f"for safety the input address stored in OUT is not used: {remote[0]}; pass it with "
            f"--input{hint} [QA0318]"
        )


def not_found(error: InputError, *, hint: str = "") -> InputError:
    """Return the error of a run's input with what names another place."""
    return InputError(
        f"the input of this run: {error.text} (relative paths start where it ran; --input PATH "
        f"names another place{hint}) [{error.code}]"
    )


def find_sources(
    run: FinishedRun, inputs: Sequence[str], *, hint: str = ""
) -> tuple[list[InputFile], list[str]]:
    """Return the input files of a run, and notes on files left out.

    Parameters
    ----------
    inputs : sequence of str
        Where the input lies now; () is where the run had it, if that is a local path.
    hint : str, default ""
        What else helps whoever asks.

    Raises
    ------
    ConfigError
        If the run read its input from a server that is not named now.
    InputError
        If it is not there.
    """
    check_address(run, inputs, hint=hint)
    section = run.config.input
    try:
        given = section.model_copy(update={"paths": tuple(inputs) or section.paths})
        config = run.config.model_copy(update={"input": given})
        return find_predicted(config, copies_of(section, run.out, is_of_run=True))
    except InputError as error:
        raise not_found(error, hint=hint) from None
