"""Complexities: the file that ``qaeval calibrate`` writes and ``naco.expected_complexity`` names.

An expected complexity belongs to a corpus and to what was asked of which model; used with anything
else it would be a wrong number, so its key must match exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qaeval_core.errors import ConfigError
from qaeval_core.files import read_given, write_json

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
    try:
        return ComplexityFile.model_validate_json(read_given(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path} is no file of expected complexities, as `qaeval calibrate --metrics naco` "
            f"writes it: {where}: {first['msg']}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no file of expected complexities: not UTF-8") from None


def read_complexity(path: str, *, key: str, profile: str) -> tuple[float, str]:
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
        f"{path} was calibrated for another model or prompt.\nneeded:\n  {key}\nthe file has:\n"
        f"  {had}\nrun `qaeval calibrate --metrics naco` with the same settings"
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
            raise ConfigError(f"{path} is of corpus {old.corpus!r}, not {corpus!r}")
        kept = tuple(known for known in old.complexities if known.key != record.key)
    content = ComplexityFile(corpus=corpus, complexities=(*kept, record))
    write_json(path, content.model_dump())
