"""Study expressions: rows chosen by a condition, and binary labels, as a person writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from qaeval_core.errors import ConfigError
from qaeval_core.study.inputs import check_numeric, numbers
from qaeval_core.suggest import nearest


def select_rows(frame: pl.DataFrame, expression: str, option: str) -> pl.Series:
    """Return a boolean column: SQL's comparison operators, and Python's ``==`` and ``!=``.

    Raises
    ------
    ConfigError
        If the expression cannot be read, names an unknown column or is not true or false.
    """
    hint = 'quote names with signs, as in "BLEU-1" > 0.5'
    try:
        parsed = pl.sql_expr(expression)
        roots = parsed.meta.root_names()
        for name in roots:
            if name not in frame.columns and not _fields(frame, name):
                found = nearest(name, frame.columns)
                raise ConfigError(f"{option} {expression!r}: no column {name!r}{found} ({hint})")
        chosen = _with_structs(frame, roots).with_columns(parsed.alias("_chosen"))["_chosen"]
    except pl.exceptions.PolarsError as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{option} {expression!r}: {why} ({hint})") from None
    if frame.height > 1 and _with_structs(frame, roots).select(parsed).height == 1:
        raise ConfigError(f"{option} {expression!r} is one value for all rows, not one for each")
    if chosen.dtype != pl.Boolean:
        raise ConfigError(f"{option} {expression!r} is {chosen.dtype}, not true or false")
    return chosen


def binary_labels(frame: pl.DataFrame, label: str) -> NDArray[np.float64]:
    """Return labels of rows: a column of 0 and 1 or booleans, or an expression.

    Returns
    -------
    float ndarray of shape (n_rows,)
        1.0 for positive rows, 0.0 for negative ones, NaN where undefined.
    """
    if label not in frame.columns:
        return numbers(frame.select(select_rows(frame, label, "--auc").alias("_")), "_")
    check_numeric(frame, label, "--auc")
    values = numbers(frame, label)
    if others := sorted(set(values[~np.isnan(values)].tolist()) - {0.0, 1.0}):
        raise ConfigError(
            f"--auc {label}: holds {others[0]:g}, not only 0 and 1; give a condition, such as "
            f"'{label} >= {others[-1]:g}'"
        )
    return values


def _fields(frame: pl.DataFrame, name: str) -> list[str]:
    return [column for column in frame.columns if column.startswith(f"{name}.")]


def _with_structs(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Put structs back that an expression such as ``peer.f1 = 0`` reads."""
    return frame.with_columns(
        pl.struct(
            pl.col(column).alias(column[len(name) + 1 :]) for column in _fields(frame, name)
        ).alias(name)
        for name in dict.fromkeys(names)
        if name not in frame.columns
    )
