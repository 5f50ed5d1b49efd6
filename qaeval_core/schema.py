"""Schema: roles of input columns, and the Arrow contracts of what is written."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import pyarrow as pa

TEXT = "text"
TEXT_OR_PASSAGES = "text or list of texts"
TEXTS = "list of texts or text"
TEXT_OR_NULL = "text; null where there is none"
TEXTS_OR_NULL = "list of texts or text; null where there is none"
SPANS = "list of [start, end) pairs of integers"

# Role -> what a value may be. A null or wrongly typed value quarantines the row, unless the role
# takes a null as a value.
ROLES = MappingProxyType(
    {
        "id": "any",
        "candidate": TEXT,
        "question": TEXT,
        "context": TEXT_OR_PASSAGES,
        "answer": TEXT,
        "references": TEXTS,
        "answer_type": TEXT_OR_NULL,
        "candidate_opinion": TEXT_OR_NULL,
        "reference_opinions": TEXTS_OR_NULL,
        "entities": TEXTS_OR_NULL,
        "predicted_spans": SPANS,
        "gold_spans": SPANS,
    }
)

POSITION = "position"
# Of a copy of a file of text: why a line of it is no row.
UNREADABLE_LINE = "__unreadable"
QUARANTINE_REASON = "quarantine_reason"
QUARANTINE_MESSAGE = "quarantine_message"
# In the place of a reason: a row that a sample leaves out, which nobody looked at.
NOT_SAMPLED = "not_sampled"
# Key of a score file's schema metadata: what each score column is, as JSON.
COLUMNS_METADATA = b"qaeval.columns"

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field(POSITION, pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("message", pa.string()),
        pa.field("stage", pa.string(), nullable=False),
    ]
)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold texts (or nothing but nulls)."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_null,
    )
    return any(check(kind) for check in checks)


def is_json(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds JSON, one text a cell."""
    return isinstance(kind, pa.JsonType)


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists."""
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def is_texts(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold lists of texts."""
    return is_list(kind) and (is_text(kind.value_type) or is_json(kind.value_type))


def is_spans(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold lists of [start, end) pairs."""
    if not is_list(kind):
        return False
    pair = kind.value_type
    if pa.types.is_struct(pair):
        names = [field.name for field in pair]
        are_integers = [bool(pa.types.is_integer(field.type)) for field in pair]
        return names == ["start", "end"] and all(are_integers)
    return bool(pa.types.is_null(pair)) or (is_list(pair) and _is_integer_or_null(pair.value_type))


def _is_integer_or_null(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def fits_role(kind: pa.DataType, role: str) -> bool:
    """Return whether a column of this type can serve a role.

    Examples
    --------
    >>> fits_role(pa.list_(pa.string()), "context"), fits_role(pa.int64(), "context")
    (True, False)
    >>> fits_role(pa.list_(pa.list_(pa.int32())), "gold_spans")
    True
    """
    allowed = ROLES[role]
    if allowed == "any" or is_json(kind):
        return True  # What a cell of JSON holds is seen when it is read.
    if allowed == SPANS:
        return is_spans(kind)
    return is_text(kind) or (allowed not in (TEXT, TEXT_OR_NULL) and is_texts(kind))


def is_optional(role: str) -> bool:
    """Return whether a role may have no column, and takes a null as a value."""
    return ROLES[role] in (TEXT_OR_NULL, TEXTS_OR_NULL)


TokenizerName = Literal[
    "squad",
    "whitespace",
    "words",
    "rouge",
    "13a",
    "treebank",
    "coco",
    "spacy",
    "zh",
    "characters",
]
Language = Literal["en", "ar", "de", "es", "fr", "hi", "vi", "zh", "none"]
Stemming = Literal["none", "porter"]
Smoothing = Literal["none", "floor", "add_one", "exponential", "coco"]
