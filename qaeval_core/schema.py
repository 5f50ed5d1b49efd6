"""Schema: roles of input columns, and the Arrow contracts of what is written."""

from __future__ import annotations

from types import MappingProxyType

import pyarrow as pa

TEXT = "text"
TEXT_OR_PASSAGES = "text or list of texts"
TEXTS = "list of texts or text"

# Role -> what a value may be. A null or wrongly typed value quarantines the row.
ROLES = MappingProxyType(
    {
        "id": "any",
        "candidate": TEXT,
        "question": TEXT,
        "context": TEXT_OR_PASSAGES,
        "answer": TEXT,
        "references": TEXTS,
    }
)

POSITION = "position"
QUARANTINE_REASON = "quarantine_reason"
QUARANTINE_MESSAGE = "quarantine_message"

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


def is_texts(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold lists of texts."""
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
    )
    return any(check(kind) for check in checks) and is_text(kind.value_type)


def fits_role(kind: pa.DataType, role: str) -> bool:
    """Return whether a column of this type can serve a role.

    Examples
    --------
    >>> fits_role(pa.list_(pa.string()), "context"), fits_role(pa.int64(), "context")
    (True, False)
    """
    allowed = ROLES[role]
    if allowed == "any":
        return True
    return is_text(kind) or (allowed != TEXT and is_texts(kind))
