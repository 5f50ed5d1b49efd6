"""The page that labels a sheet: bounded, safe with any text, and without a score."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl

from filter_corpora import filtered, scored
from qaeval_core.filter.label_page import label_page
from qaeval_core.filter.labels import read_labels

PASSAGE = (
    "Ann keeps bees. " * 400 + "She came to Oslo\nby ship in 1987, not 19870. In oslo she stayed."
)


def page_of(*rows: dict[str, object]) -> str:
    return label_page(rows, sheet="label_sheet.csv", labels="labels.csv")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="rows">(.*?)</script>', page, re.DOTALL)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def pieces(**row: object) -> list[str]:
    (own,) = data_of(page_of({"id": "q", **row}))["rows"]
    found: list[str] = dict(own["texts"])["context"]
    return found


def test_the_answer_is_marked_in_its_context() -> None:
    """In words of its own, in any case; a long context begins near it."""
    found = pieces(question="Where?", context=PASSAGE, answer="Oslo")
    assert found[1::2] == ["Oslo", "oslo"] and found[0].startswith("…")
    assert found[0].endswith("She came to ") and len("".join(found)) < 1_200
    assert pieces(context=PASSAGE, answer="1987")[1::2] == ["1987"]
    assert pieces(context=PASSAGE, answer="Oslo by  ship")[1::2] == ["Oslo\nby ship"]
    assert pieces(context=PASSAGE, candidate="no such", references=["x", "in 1987"])[1] == "in 1987"
    assert pieces(context=["one", "two"], answer="two") == ["one\n\n", "two", ""]
    for nothing in (" ", None, "Paris"):
        whole = pieces(context=PASSAGE, answer=nothing)
        assert len(whole) == 1 and len(whole[0]) == 4_000


def test_the_context_comes_last_and_nothing_else_is_shown() -> None:
    (own,) = data_of(page_of({"id": "q", "context": "c", "question": "w", "answer": "a"}))["rows"]
    assert [name for name, _ in own["texts"]] == ["question", "answer", "context"]
    assert own.keys() == {"id", "texts"}


def test_texts_stay_texts() -> None:
    """What ends a script, turns the line or asks for something from outside is seen, not obeyed."""
    hostile = '</script><img src="https://example.org/x.png" onerror="alert(1)">\u202e\x1b[31m<!--'
    page = page_of({"id": hostile, "question": hostile, "context": hostile, "answer": "x"})
    assert page.count("</script>") == 2 and "<img" not in page and "<!--" not in page
    (own,) = data_of(page)["rows"]
    assert own["id"] == hostile
    shown = dict(own["texts"])["question"][0]
    assert "\\u202e" in shown and "\u202e" not in shown and "\x1b" not in shown
    policy = re.search('Content-Security-Policy" content="(.*?)"', page)
    assert policy
    rule = r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[\w+/]{43}='"
    assert re.fullmatch(rule, policy[1])


def test_a_page_is_bounded_and_holds_the_first_rows() -> None:
    rows = [{"id": f"q{i}", "question": "Why?", "context": f"{i} é" * 3_000} for i in range(2_000)]
    page = page_of(*rows)
    ids = [own["id"] for own in data_of(page)["rows"]]
    assert len(page.encode()) < 2_000_000 and 200 < len(ids) < 2_000
    assert ids == [f"q{i}" for i in range(len(ids))]
    assert f"The first {len(ids):,} of 2,000 rows" in page
    assert "The first" not in page_of(*rows[:3])


def test_a_page_lies_beside_each_sheet(tmp_path: Path) -> None:
    """Written anew by the same command; a folder with what it hands out can still be filled."""
    out, kept = scored(tmp_path / "corpus", 300, f1="f1"), tmp_path / "kept"
    asked: dict[str, Any] = {"rank_by": "f1", "near_duplicates": "none"}

    def labels_of(page: str, name: str, n: int) -> str:
        """Keep labels of the first rows of a page as it hands them out; each third is skipped."""
        ids = [own["id"] for own in data_of((kept / page).read_text())["rows"]]
        lines = [f'"{own}","{("1", "0", "")[i % 3]}"' for i, own in enumerate(ids[:n])]
        (kept / name).write_text("\ufeff" + "\n".join(['"id","good"', *lines, ""]))
        return str(kept / name)

    filtered(out, kept, label_sheet=60, **asked)
    sheet = pl.read_csv(kept / "label_sheet.csv", infer_schema=False)
    data = data_of((kept / "label.html").read_text())
    assert [own["id"] for own in data["rows"]] == sheet["id"].to_list()
    assert data["labels"] == "labels.csv"
    labels = labels_of("label.html", "labels.csv", 30)
    found = read_labels(labels)
    assert (len(found), len(found.blank)) == (20, 10)
    filtered(out, kept, label_sheet=60, **asked)
    filtered(out, kept, label_sheet=20, within_best="auto", labels=labels, precision=0.2, **asked)
    second = data_of((kept / "label_best.html").read_text())
    assert len(second["rows"]) == 20 and second["labels"] == "labels_best.csv"
    assert second["key"] != data["key"]
    result, _ = filtered(out, kept, labels=labels, precision=0.05, **asked)
    assert result.content["certificate"]["n_labels"] == 30 and (kept / "_SUCCESS").exists()
