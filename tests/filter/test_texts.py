from __future__ import annotations

import re

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.filter import texts
from qaeval_core.filter.texts import token_text

ASCII = "aZ_9 ?.,'\t\n\x00\x7f"


@given(
    rows=st.lists(st.none() | st.text(ASCII, max_size=9) | st.text(ASCII + "éİßǅ٣½", max_size=9)),
    first=st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_tokens_are_those_of_a_pattern(rows: list[str | None], first: int) -> None:
    """Whichever way a text takes; ASCII goes another one."""
    column = pl.Series(rows, dtype=pl.String)[first:]
    # The pattern of Rust, which has no fractions and all marks among letters; Python's has not.
    expected = column.str.to_lowercase().str.extract_all(r"\w+").list.join(" ")
    assert token_text(column).to_list() == expected.to_list()


def test_tokens_of_more_rows_than_a_step() -> None:
    rows = [f"{'' if i % 3 else '?'}Row {i}, or {'x' * (i % 7)}-" for i in range(3 * 4096 + 5)]
    expected = [" ".join(re.findall(r"\w+", row.lower())) for row in rows]
    assert len(rows) > 3 * texts._ROWS_PER_STEP
    assert token_text(pl.Series(rows)).to_list() == expected
