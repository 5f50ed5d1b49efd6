"""Usual columns: which columns of the input have a usual name of a role."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from qaeval_core.configure import RunConfig
from qaeval_core.errors import SchemaError
from qaeval_core.planning.columns import fitting_fields
from qaeval_core.planning.inputs import InputFile
from qaeval_core.planning.usual_names import NAMES, QUESTIONS_OF_SYSTEMS, references_of, usual_form
from qaeval_core.schema import fits_role


@dataclass(frozen=True, slots=True)
class Usual:
    """Columns of usual names.

    Attributes
    ----------
    columns : mapping of role to column
        Where one column alone fits.
    doubtful : mapping of role to columns
        Where several do: nothing is guessed.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    doubtful: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def line(self, roles: Collection[str], *, option: str) -> str:
        """Return which columns are read for these roles, and which option names others, or ""."""
        shown = [f"{role}={name}" for role, name in self.columns.items() if role in roles]
        return f"columns: {', '.join(shown)}. {option} names others" if shown else ""


def usual_columns(
    kinds: Mapping[str, pa.DataType],
    mapping: Mapping[str, str],
    *,
    roles: Collection[str] | None = None,
) -> Usual:
    """Return the columns that have a usual name of a role, and a type that fits it.

    A role that is mapped, or has a column of its own name, needs none. References are those of
    what the candidate is: a question is not compared with answers.

    Parameters
    ----------
    kinds : mapping of column to type
    mapping : mapping of role to column
        As the user says it.
    roles : collection of str, optional
        What is read, where that is known. Who reads no references judges questions: what a system
        answered is no candidate of theirs.

    Examples
    --------
    >>> text = pa.string()
    >>> usual_columns({"question": text, "prediction": text, "gold": text}, {}).columns
    {'candidate': 'prediction', 'references': 'gold'}
    >>> usual_columns({"question": text, "answers": pa.list_(text)}, {}).columns
    {}
    """
    found: dict[str, str] = {}
    doubtful: dict[str, Sequence[str]] = {}
    has_question = "question" in mapping or any(
        usual_form(name) in ("question", *NAMES["question"]) for name in kinds
    )
    judges_questions = has_question and roles is not None and "references" not in roles
    for role in NAMES:
        if role in mapping or role in kinds:
            continue
        names = NAMES[role]
        if role == "candidate" and judges_questions:
            names = QUESTIONS_OF_SYSTEMS
        if role == "references":
            names = references_of(mapping.get("candidate") or found.get("candidate"), kinds)
        columns = [
            name
            for name, kind in kinds.items()
            if usual_form(name) in (role, *names)
            and name not in mapping.values()
            and _fits(kind, role)
        ]
        if len(columns) == 1:
            found[role] = columns[0]
        elif columns:
            doubtful[role] = columns
    return Usual(found, doubtful)


def _fits(kind: pa.DataType, role: str) -> bool:
    return fits_role(kind, role) or len(fitting_fields(kind, role)) == 1


def kinds_of(files: Sequence[InputFile]) -> dict[str, pa.DataType]:
    """Return the type of each column, of the first file in which it holds anything."""
    kinds: dict[str, pa.DataType] = {}
    for file in files:
        for column in file.schema:
            if pa.types.is_null(kinds.get(column.name, pa.null())):
                kinds[column.name] = column.type
    return kinds


def with_usual_columns(
    config: RunConfig, files: Sequence[InputFile], *, roles: Collection[str]
) -> tuple[RunConfig, str]:
    """Return a configuration that maps roles to columns of usual names, and a line that says so.

    Parameters
    ----------
    roles : collection of str
        What is read; of others nothing is said.

    Raises
    ------
    SchemaError
        If several columns fit one of these roles.
    """
    mapping = config.input.columns
    usual = usual_columns(kinds_of(files), mapping, roles=roles)
    for role in roles:
        check_clear(usual, role)
    if not usual.columns:
        return config, ""
    columns = {**usual.columns, **mapping}
    section = config.input.model_copy(update={"columns": columns})
    line = usual.line(roles, option="--column ROLE=NAME")
    return config.model_copy(update={"input": section}), line


def check_clear(usual: Usual, role: str) -> None:
    """Raise SchemaError if several columns fit a role."""
    if role in usual.doubtful:
        columns = usual.doubtful[role]
        raise SchemaError(
            f"the columns {', '.join(map(repr, columns))} all look like {role}; choose one, such "
            f"as --column {role}={columns[0]} [QA0323]"
        )
