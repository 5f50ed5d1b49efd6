"""The record of runs of a hundred million rows, and the page that repeats it."""

from __future__ import annotations

import re

import pytest

from helpers import REPOSITORY

_DOCS = REPOSITORY / "docs"
RECORD = (_DOCS / "evidence" / "long_scale.txt").read_text(encoding="utf-8")
PAGE = (_DOCS / "scale.md").read_text(encoding="utf-8")
ROWS = {
    "passes": "passes of `f1,rouge_l`", "join": "join",
    "put parts of files together": "parts of files put together",
    "check what is written": "contents checked", "count ids": "ids counted",
    "all else": "all else: plan, listings, report, page",
}  # fmt: skip
CIDER = {
    "passes": "passes", "join": "join",
    "words (tf_idf): document frequencies": "document frequencies of commits",
    "words (tf_idf): document frequencies added up": "frequencies added up",
}  # fmt: skip


def runs(metrics: str, n_files: int) -> list[dict[str, str]]:
    """Return the seconds by stage, and the driver's memory, of runs of growing size."""
    found = []
    line = rf"^    {metrics}: [\d,]+ rows in {n_files} files: .*?\((.*)\); driver ([\d,]+) MB"
    for stages, memory in re.findall(line, RECORD, re.MULTILINE):
        own = dict(re.findall(r"([a-z][^,]*?) ([\d.]+) s(?:, |$)", stages))
        found.append({**own, "memory": memory})
    return found


def cells(title: str) -> list[list[str]]:
    """Return the cells behind a title, of each row that begins with it."""
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| {title} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")[1:]] for line in lines]


@pytest.mark.parametrize(
    ("metrics", "n_files", "rows", "table"),
    [("f1,rouge_l", 10, ROWS, 0), ("cider", 1, CIDER, 1)],
)
def test_the_page_says_what_was_measured(
    metrics: str, n_files: int, rows: dict[str, str], table: int
) -> None:
    found = runs(metrics, n_files)
    assert len(found) == (3, 2)[table]
    for name, title in {**rows, "memory": "memory of the driver, MB"}.items():
        own = [each[name] for each in found]
        assert own in [each[: len(own)] for each in cells(title)], title
    assert all(int(each["memory"].replace(",", "")) < 2_000 for each in found)
