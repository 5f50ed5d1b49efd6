"""Options as people write them: roles as columns, an order behind a rank, what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from filter_corpora import filtered
from qaeval_core.errors import SchemaError

N_GROUPS, GROUP_SIZE = 40, 5


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Rows of several passages, whose score is their number; one passage has a row alone."""
    n = N_GROUPS * GROUP_SIZE
    passages = [f"passage {row // GROUP_SIZE}" for row in range(n)]
    pl.DataFrame(
        {"id": [f"q{row}" for row in range(n + 1)], "s": range(n + 1), "text": [*passages, "alone"]}
    ).write_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def kept_of(out: Path, kept: Path, **options: Any) -> tuple[list[str], dict[str, Any], list[str]]:
    asked = {"rank_by": "s", "near_duplicates": "none", "columns": {"context": "text"}, **options}
    result, said = filtered(out, kept, **asked)
    content = json.loads((kept / "filter.json").read_text())
    assert result.content["kept"] == content["kept"]
    return sorted(pl.read_parquet(kept / "kept")["id"], key=lambda own: int(own[1:])), content, said


@pytest.mark.parametrize(
    ("rank", "expected"),
    [("s", "198 199 200"), ("s:desc", "198 199 200"), ("s:asc", "0 1 2")],
)
def test_a_rank_may_name_its_order(out: Path, tmp_path: Path, rank: str, expected: str) -> None:
    ids, content, _ = kept_of(out, tmp_path / "kept", rank_by=rank, budget=3)
    assert ids == [f"q{number}" for number in expected.split()]
    assert content["rank"] == {
        "name": "s", "columns": ["s"], "higher_is_better": rank != "s:asc",
    }  # fmt: skip


def test_a_column_of_that_name_comes_first(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": ["q0", "q1"], "s": [1, 2], "s:asc": [1, 2]})
    frame.write_parquet(tmp_path / "rows.parquet")
    ids, _, _ = kept_of(
        tmp_path / "rows.parquet", tmp_path / "kept", rank_by="s:asc", budget=1, columns={}
    )
    assert ids == ["q1"]


@pytest.mark.parametrize("rank", ["t:asc", "s:up", "s:", ":asc"])
def test_unknown_columns_and_orders_are_named(out: Path, tmp_path: Path, rank: str) -> None:
    with pytest.raises(SchemaError, match=r"--rank-by: no column.*QA0305"):
        kept_of(out, tmp_path / "kept", rank_by=rank)


def test_a_quota_may_name_a_role(out: Path, tmp_path: Path) -> None:
    by_role, content, _ = kept_of(out, tmp_path / "role", quota="context=1")
    by_name, _, _ = kept_of(out, tmp_path / "name", quota="text=1")
    assert by_role == by_name and len(by_role) == N_GROUPS + 1
    assert content["columns"]["quota"] == "text"
    with pytest.raises(SchemaError, match=r"--quota: no column 'contexts'.*QA0305"):
        kept_of(out, tmp_path / "none", quota="contexts=1")


@pytest.mark.parametrize(
    ("options", "asked", "n_kept"),
    [
        ({"share": "0.5"}, 100, 100),
        ({"budget": 50}, 50, 50),
        ({"budget": 500}, 500, 201),
        ({"share": "0.5", "share_per": "context"}, 100, 100),
        ({"share": "0.1", "share_per": "context"}, 20, 20),
        ({"budget": 100, "share_per": "context"}, 100, 100),
        ({"budget": 500, "share_per": "context"}, 500, 201),
        ({"budget": 100, "share_per": "context", "quota": "context=1"}, 100, N_GROUPS + 1),
        ({"budget": 100, "quota": "context=equal"}, 100, N_GROUPS * 2 + 1),
        ({"share": "0.5", "quota": "context=3"}, 60, 60),
        ({"quota": "context=3"}, None, N_GROUPS * 3 + 1),
    ],
)
def test_what_differs_from_what_was_asked_is_said(
    out: Path, tmp_path: Path, options: dict[str, Any], asked: int | None, n_kept: int
) -> None:
    from qaeval_core.filter.result import result_lines

    ids, content, _ = kept_of(out, tmp_path / "kept", **options)
    assert (content["asked"], len(ids)) == (asked, n_kept)
    notes = [line for line in result_lines(content, "kept") if "asked for" in line]
    page = (tmp_path / "kept" / "filter.html").read_text()
    assert ("asked for" in page) == bool(notes) == (asked not in (None, n_kept))
    if notes:
        assert f"{asked:,} rows" in notes[0] and f"{n_kept:,} are kept" in notes[0]
