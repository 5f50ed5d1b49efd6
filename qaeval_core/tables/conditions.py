"""Conditions: expressions that see one row at a time and no file, and the rows they choose.

The grammar is SQL's, read by polars. Rows are looked at some at a time, so an expression that
looks at others (an average, a rank) would depend on how many; and SQL can name files to read. Only
functions that are known to see one value are let through.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from qaeval_core.errors import (
    ConfigError,
    nearest,
)
from qaeval_core.planning.text_files.sheets import decimal_comma
from qaeval_core.tables.score_tables import (
    _fields,
    _with_structs,
    check_numeric,
    column_of,
    flat_columns,
    numbers,
)

# Texts and names in quotes.
QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_SUB_QUERY = re.compile(r"\bselect\b", re.IGNORECASE)
_DECIMAL = re.compile(
    rf"{QUOTED.pattern}|(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=e))(?:e[+-]?\d+)?", re.I
)

# polars names what it does not know by its parser's own structure.
_STRUCTURE = re.compile(r"(expression \w+) ?\{.*\}")
_MAX_CHARS = 200

# Of polars' SQL, as its documentation lists them: those of one row.
FUNCTIONS = frozenset(
    """
    abs ceil ceiling exp floor ln log log10 log2 mod pow power round sign sqrt
    bit_length char_length character_length concat concat_ws contains ends_with initcap left
    length lower lpad ltrim octet_length position regexp_like replace reverse right rpad rtrim
    split_part starts_with strpos strptime substr substring trim upper
    coalesce greatest if ifnull least nullif cast try_cast
    array_contains array_length array_get date day extract hour minute month second year
    """.split()  # noqa: SIM905
)
# Words of SQL that a parenthesis may follow.
_WORDS = frozenset(
    """
    and or not in is like ilike between when then else case on as by any all
    """.split()  # noqa: SIM905
)
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*\(")
_REFUSED = re.compile(r"\b(select|over|from|unnest|explode|values|table)\b", re.IGNORECASE)
# EXTRACT(YEAR FROM x), SUBSTRING(x FROM 1) and TRIM(x FROM y) are SQL's own words.
_OWN_FROM = re.compile(r"\b((?:extract|substring|trim)\s*\([^()]*?)\bfrom\b", re.IGNORECASE)


# An expression of thousands of conditions is read for minutes.
_MOST_CONDITIONS = 500
_JOINS = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
# The ends of calls: two texts, as of REPLACE, and a length, as of LPAD.
_TEXT = r"'((?:[^']|'')*)'"
_REPLACED = re.compile(rf",\s*{_TEXT}\s*,\s*{_TEXT}\s*\)")
_PADDED = re.compile(rf",\s*\d{{1,4}}\s*(?:,\s*{_TEXT}\s*)?\)")
# How many times as long a text may become.
_MOST_GROWTH = 100.0


def _check_size(expression: str, plain: str, calls: Counter[str], option: str) -> None:
    """Raise ConfigError if an expression takes minutes to read, or far more memory than its rows.

    Parameters
    ----------
    plain : str
        The expression without what stands in quotes.
    """
    n_conditions = len(_JOINS.findall(plain)) + 1
    if n_conditions > _MOST_CONDITIONS:
        raise ConfigError(
            f"{option} has {n_conditions:,} conditions; at most {_MOST_CONDITIONS} are allowed. "
            "Compare a column with many values by IN ('a', 'b', ...) [QA0316]"
        )
    replaced = _REPLACED.findall(expression)
    growth = math.prod(max(len(new) / max(len(old), 1), 1.0) for old, new in replaced)
    if calls["replace"] and (growth > _MOST_GROWTH or len(replaced) < calls["replace"]):
        raise ConfigError(
            f"{option} {_short(expression)}: REPLACE takes a text and another one, and may make a "
            f"text at most {_MOST_GROWTH:g} times as long [QA0316]"
        )
    if calls["lpad"] + calls["rpad"] > len(_PADDED.findall(expression)):
        raise ConfigError(
            f"{option} {_short(expression)}: LPAD and RPAD take a length of at most 9999 [QA0316]"
        )


def _short(expression: str) -> str:
    return repr(expression if len(expression) <= _MAX_CHARS else f"{expression[:_MAX_CHARS]}...")


def check_condition(
    expression: str, fields: Sequence[pa.Field], option: str = "--keep"
) -> list[str]:
    """Return the columns that a condition reads.

    Parameters
    ----------
    expression : str
    fields : sequence of pyarrow.Field
        Columns that it may name.
    option : str
        What the user wrote it behind.

    Raises
    ------
    ConfigError
        If it cannot be read, names no column that is there, is not true or false, or looks at
        more than one row.
    """
    plain = QUOTED.sub(lambda found: '""' if found[0][0] == '"' else "''", expression)
    counted = Counter(name.lower() for name in _CALL.findall(plain))
    _check_size(expression, plain, counted, option)
    calls = counted.keys() - _WORDS
    if refused := _REFUSED.search(_OWN_FROM.sub(r"\1", plain)):
        raise ConfigError(
            f"{option} {expression!r}: {refused[1].upper()} reads more than one row; a condition "
            "reads one [QA0316]"
        )
    if unknown := sorted(calls - FUNCTIONS):
        raise ConfigError(
            f"{option} {expression!r}: {unknown[0]!r} is not a function of one "
            f"row{nearest(unknown[0], sorted(FUNCTIONS))} [QA0316]"
        )
    plain_fields = [
        pa.field(field.name, field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in fields
    ]
    empty = pl.DataFrame(pl.from_arrow(pa.schema(plain_fields).empty_table()))
    select_rows(flat_columns(empty), expression, option)
    known = {field.name for field in fields}
    names = [column_of(name, known) for name in pl.sql_expr(expression).meta.root_names()]
    if not names:
        raise ConfigError(f"{option} {expression!r} names no column [QA0316]")
    return list(dict.fromkeys(names))


def select_rows(frame: pl.DataFrame, expression: str, option: str) -> pl.Series:
    """Return a boolean column: SQL's comparison operators, and Python's ``==`` and ``!=``.

    Raises
    ------
    ConfigError
        If the expression cannot be read, names an unknown column or is not true or false.
    """
    hint = 'quote names with signs, as in "BLEU-1" > 0.5'
    if _SUB_QUERY.search(QUOTED.sub("''", expression)):
        raise ConfigError(
            f"{option} {expression!r}: sub-queries are not allowed, because they could read any "
            "file [QA0316]"
        )
    roots: list[str] = []
    try:
        parsed = pl.sql_expr(expression)
        roots += parsed.meta.root_names()
        for name in roots:
            if name not in frame.columns and not _fields(frame, name):
                found = nearest(name, frame.columns)
                raise ConfigError(
                    f"{option} {expression!r}: no column {name!r}{found} ({hint}) [QA0316]"
                )
        beside = _with_structs(frame, roots)
        chosen = beside.with_columns(parsed.alias("_chosen"))["_chosen"]
        # polars compares texts with 9.5 as texts, but refuses to compare them with 9.
        whole = _DECIMAL.sub(lambda own: own[0] if own[0][0] in "'\"" else "1", expression)
        beside.clear().select(pl.sql_expr(whole))
    except pl.exceptions.PolarsError as error:
        why = _STRUCTURE.sub(r"\1", str(error).splitlines()[0])
        commas = (decimal_comma(frame[name]) for name in roots if name in frame.columns)
        why += next(filter(None, commas), "")
        raise ConfigError(f"{option} {expression!r}: {why} ({hint}) [QA0316]") from None
    if frame.height > 1 and beside.select(parsed).height == 1:
        raise ConfigError(
            f"{option} {expression!r} has one value for all rows, not one for each row [QA0316]"
        )
    if chosen.dtype != pl.Boolean:
        raise ConfigError(
            f"{option} {expression!r} is {chosen.dtype}, and must be true or false [QA0316]"
        )
    return chosen


def binary_labels(frame: pl.DataFrame, label: str, option: str = "--auc") -> NDArray[np.float64]:
    """Return labels of rows: a column of 0 and 1 or booleans, or an expression.

    Returns
    -------
    float ndarray of shape (n_rows,)
        1.0 for positive rows, 0.0 for negative ones, NaN where undefined.
    """
    if label not in frame.columns:
        return numbers(frame.select(select_rows(frame, label, option).alias("_")), "_")
    check_numeric(frame, label, option)
    values = numbers(frame, label)
    if others := sorted(set(values[~np.isnan(values)].tolist()) - {0.0, 1.0}):
        raise ConfigError(
            f"{option} {label}: it holds {others[0]:g}, not only 0 and 1; give a condition, such "
            f"as '{label} >= {others[-1]:g}' [QA0315]"
        )
    return values
