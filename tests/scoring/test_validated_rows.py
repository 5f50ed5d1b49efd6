"""Validation: a row is judged as if it were alone, however many usual rows stand beside it."""

from __future__ import annotations

import random

import pytest

from qaeval_core.families.validate import TextTooLargeError, validate_rows
from qaeval_core.schema import ROLES

USUAL = ["a text", "", ["one", "two"], ["one"], []]
UNUSUAL = [
    None, 3, ["one", None], [None], [3], ("a", "b"), {"a": 1}, [[0, 2]], [{"start": 1, "end": 3}],
    [[2, 0]], TextTooLargeError("9 bytes"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
]  # fmt: skip


@pytest.mark.parametrize("joins_passages", [True, False])
@pytest.mark.parametrize("role", sorted(ROLES.keys() - {"id"}))
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_judged_alone(role: str, joins_passages: bool, seed: int) -> None:
    drawn = random.Random(seed)
    pool = [*USUAL, *UNUSUAL] if seed else USUAL
    given = {role: drawn.choices(pool, k=30), "candidate": drawn.choices(["x", None], k=30)}
    columns = {own: f"column of {own}" for own in given}
    whole = validate_rows(given, columns=columns, joins_passages=joins_passages)
    values = {own: iter(found) for own, found in whole.values.items()}
    for i in range(30):
        row = {own: [texts[i]] for own, texts in given.items()}
        alone = validate_rows(row, columns=columns, joins_passages=joins_passages)
        assert whole.quarantined.get(i) == alone.quarantined.get(0)
        assert (i in whole.good) == (alone.good == [0])
        if alone.good:
            assert {own: [next(found)] for own, found in values.items()} == alone.values
    assert all(next(found, "no more") == "no more" for found in values.values())


def test_forms_of_roles() -> None:
    given = {
        "candidate": ["a", ["b"]],
        "references": ["x", ["y", "z"]],
        "context": [["p", "q"], "r"],
    }
    found = validate_rows(given, columns={role: role for role in given})
    assert found.values == {"candidate": ["a"], "references": [["x"]], "context": ["p q"]}
    assert found.quarantined == {
        1: ("wrong_type_candidate", "column 'candidate': list where text is needed")
    }
    listed = validate_rows(given, columns={role: role for role in given}, joins_passages=False)
    assert listed.values["context"] == [["p", "q"]]
