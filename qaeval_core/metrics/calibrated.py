"""Baselines: the file that ``qaeval calibrate`` writes and ``baseline:`` names.

A baseline belongs to a model pass, its options and a corpus; used with anything else it would be
a wrong number, so its key must match exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qaeval_core.errors import ConfigError, first_problem
from qaeval_core.metrics.base import Section
from qaeval_core.storage.files import write_json
from qaeval_core.storage.wary import read_given

F = TypeVar("F", bound=BaseModel)


class Baseline(Section):
    """Given baselines b of QRelScore's eq. 5; None leaves that part raw."""

    lrm: Annotated[float, Field(ge=-1.0, lt=1.0)] | None = None
    grg: Annotated[float, Field(ge=-1.0, lt=1.0)] | None = None


class BaselineRecord(BaseModel):
    """One calibrated number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    part: str  # "lrm" or "grg"
    key: str
    value: Annotated[float, Field(ge=-1.0, lt=1.0, allow_inf_nan=False)]
    n_pairs: int
    n_dropped: int
    n_undefined: int
    interval_95: tuple[float, float]


class BaselineFile(BaseModel):
    """Everything calibrated on one corpus."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str
    seed: int
    max_bleu_1: float
    baselines: tuple[BaselineRecord, ...]


def read_baseline(path: str, *, keys: Mapping[str, str]) -> tuple[Baseline, str]:
    """Return the baselines of a file that belong to these keys, and the corpus name.

    Parameters
    ----------
    path : str
        A file written by ``qaeval calibrate``.
    keys : mapping of part to key
        ``lrm`` and ``grg`` -> what the baseline must have been calibrated for.

    Raises
    ------
    ConfigError
        If the file cannot be read, or lacks a baseline for a key.
    """
    content = _load(BaselineFile, path, what="baselines")
    values = {record.key: record.value for record in content.baselines}
    missing = [key for key in keys.values() if key not in values]
    if missing:
        had = "\n  ".join(values) or "nothing"
        raise ConfigError(
            f"{path} was calibrated for other models or options. [QA0216]\nneeded:\n  "
            + "\n  ".join(missing)
            + f"\nthe file has:\n  {had}\nrun `qaeval calibrate` with the same settings"
        )
    return Baseline(**{part: values[key] for part, key in keys.items()}), content.corpus


def _load(kind: type[F], path: str | Path, *, what: str) -> F:
    try:
        return kind.model_validate_json(read_given(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror} [QA0216]") from None
    except ValidationError as error:
        raise ConfigError(
            f"{path} is not a file of {what}, as `qaeval calibrate` writes it: "
            f"{first_problem(error)} [QA0216]"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a file of {what}: not UTF-8 [QA0216]") from None


def write_baselines(path: Path, content: BaselineFile) -> None:
    """Write a baseline file atomically."""
    write_json(path, content.model_dump())


# Looked at where it is read: the formula would refuse it too, once every call is paid.
Steps = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


class ComplexityRecord(BaseModel):
    """What one model needed for the reference questions of a corpus.

    ``n_steps`` says how many natural runs took 1 step, 2 steps, ...
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    paper: Steps
    authors: Steps
    n_questions: int
    n_runs: int
    n_unreadable: int
    n_failed: int
    n_unnatural: int
    n_steps: dict[int, int]


class ComplexityFile(BaseModel):
    """Everything calibrated on one corpus: a record a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str
    complexities: tuple[ComplexityRecord, ...]


def load_complexities(path: str | Path) -> ComplexityFile:
    """Return the content of a file.

    Raises
    ------
    ConfigError
        If it cannot be read, or is another file.
    """
    return _load(ComplexityFile, path, what="expected complexities")


def read_complexity(path: str, *, key: str, profile: str, metric: str) -> tuple[float, str]:
    """Return (e, corpus) for what is asked of a model.

    Raises
    ------
    ConfigError
        If the file cannot be read, or was calibrated for other models or prompts.
    """
    content = load_complexities(path)
    for record in content.complexities:
        if record.key == key:
            return float(getattr(record, profile)), content.corpus
    had = "\n  ".join(record.key for record in content.complexities) or "nothing"
    raise ConfigError(
        f"{path} was calibrated for another model or prompt. [QA0216]\nneeded:\n  {key}\nthe file "
        f"has:\n  {had}\nrun `qaeval calibrate --metrics {metric}` with the same settings"
    )


def write_complexity(path: Path, record: ComplexityRecord, *, corpus: str) -> None:
    """Write a record; those of other models that the file has for this corpus stay.

    Raises
    ------
    ConfigError
        If the file is of another corpus.
    """
    kept: tuple[ComplexityRecord, ...] = ()
    if path.exists():
        old = load_complexities(path)
        if old.corpus != corpus:
            raise ConfigError(f"{path} is of the corpus {old.corpus!r}, not {corpus!r} [QA0216]")
        kept = tuple(known for known in old.complexities if known.key != record.key)
    content = ComplexityFile(corpus=corpus, complexities=(*kept, record))
    write_json(path, content.model_dump())
