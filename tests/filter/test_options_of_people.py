"""Options as people write them: roles as columns, an order behind a rank, what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from filter_corpora import filtered
from helpers import qaeval
from qaeval_core.errors import QAEvalError, SchemaError

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


BY_ROLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"quota": "context=1"}, {"quota": "text=1"}),
    ({"share": "0.3", "share_per": "context"}, {"share": "0.3", "share_per": "text"}),
    ({"group": "context", "top_k": 2}, {"group": "text", "top_k": 2}),
    ({"keep": ("context <> 'alone'",)}, {"keep": ("text <> 'alone'",)}),
    (
        {"keep": ("length(context) > 9 and id <> 'q60'",)},
        {"keep": ("length(text) > 9 and id <> 'q60'",)},
    ),
    ({"quota": "id=1", "share": "0.5"}, {"share": "0.5"}),
]


@pytest.mark.parametrize(("by_role", "by_name"), BY_ROLE)
def test_roles_name_columns(
    out: Path, tmp_path: Path, by_role: dict[str, Any], by_name: dict[str, Any]
) -> None:
    ids, content, _ = kept_of(out, tmp_path / "role", **by_role)
    same, _, _ = kept_of(out, tmp_path / "name", **by_name)
    assert ids == same and 0 < len(ids) < N_GROUPS * GROUP_SIZE + 1
    for name in ("quota", "share_per", "group"):
        if str(by_role.get(name)).startswith("context"):
            assert content["columns"][name] == "text"


def test_the_role_of_an_id_has_its_name_in_conditions(tmp_path: Path) -> None:
    frame = pl.DataFrame({"key": [None, "a", "b"], "s": [1, 2, 3], "asked": ["x", None, "y"]})
    frame.write_parquet(tmp_path / "rows.parquet")
    result, _ = filtered(
        tmp_path / "rows.parquet", tmp_path / "kept", rank_by="s",
        columns={"id": "key", "question": "asked"},
        keep=("question = 'x' or question = 'y'", "id <> 'b'"),
    )  # fmt: skip
    # What SQL calls unknown is named by its column.
    reasons = {"undefined_key": 1, "undefined_asked": 1, "keep": 1}
    assert result.content["reasons"] == reasons


def test_conditions_read_a_column_of_that_name_before_a_role(tmp_path: Path) -> None:
    texts = {"context": ["x", "y"], "text": ["y", "x"]}
    pl.DataFrame({"id": ["q0", "q1"], "s": [1, 2], **texts}).write_parquet(tmp_path / "a.parquet")
    ids, _, _ = kept_of(tmp_path / "a.parquet", tmp_path / "kept", keep=("context = 'x'",))
    assert ids == ["q0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quota": "contexts=1"}, "--quota: no column 'contexts'; did you mean 'context'"),
        ({"share": 1, "share_per": "contexts"}, "--share-per: no column 'contexts'; did you mean"),
        ({"group": "contexts"}, "--group: no column 'contexts'; did you mean 'context'"),
        ({"group": "tex"}, "--group: no column 'tex'; did you mean 'text'"),
        ({"keep": ("contexts <> ''",)}, "no column 'contexts'; did you mean 'context'"),
    ],
)
def test_roles_are_among_the_names_that_are_near(
    out: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QAEvalError) as raised:
        kept_of(out, tmp_path / "kept", **options)
    assert message in str(raised.value)


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


def test_a_rank_that_is_no_file_is_told_in_words(out: Path, tmp_path: Path) -> None:
    """Neither by a number of the system, nor as a column."""
    words = ["--to", tmp_path / "kept", "--rank-by", "missing.json", "--share", "0.5"]
    said = qaeval("filter", out, *words, expect=2)
    assert "--rank-by missing.json: No such file or directory [QA0703]" in said
    assert "Errno" not in said
