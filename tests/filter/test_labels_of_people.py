"""Labels as people give them: which row, column and value is wrong, and what a sheet needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from qaeval_core.errors import QAEvalError
from qaeval_core.filter.labels import read_labels


def sheet(folder: Path, cells: list[str], name: str = "good") -> str:
    path = folder / "labels.csv"
    rows = "".join(f"q{i},{cell}\n" for i, cell in enumerate(cells))
    path.write_text(f"id,{name}\n{rows}")
    return str(path)


@pytest.mark.parametrize("label", [None, "good", "good == 1", "good > 0.5"])
def test_one_wrong_cell_is_named(tmp_path: Path, label: str | None) -> None:
    """One ``?`` among 100 labels said: cannot compare string with numeric type (i32)."""
    path = sheet(tmp_path, [*["1", "0", ""] * 5, "?", "1"])
    with pytest.raises(QAEvalError) as caught:
        read_labels(path, label)
    said = str(caught.value)
    assert "labels.csv, row 16 (id 'q15'): column 'good' holds '?'" in said
    assert caught.value.code == "QA0315"


def test_a_label_of_another_scale_is_named(tmp_path: Path) -> None:
    with pytest.raises(QAEvalError, match=r"row 3 \(id 'q2'\).*holds 4, .*QA0315"):
        read_labels(sheet(tmp_path, ["1", "0", "4"]))


@pytest.mark.parametrize("label", [None, "good == 1"])
def test_blank_cells_are_counted_and_a_sheet_that_nobody_filled_in_says_so(
    tmp_path: Path, label: str | None
) -> None:
    """Also those with blanks in them, and lines at the end."""
    labels = read_labels(sheet(tmp_path, ["1", "", " ", "0", " 1"]), label)
    assert labels.is_good == {"q0": True, "q3": False, "q4": True} and labels.blank == ("q1", "q2")
    with pytest.raises(QAEvalError, match="no row has a label.*QA0315"):
        read_labels(sheet(tmp_path, ["", "", ""]), label)


def test_a_sheet_of_ours_needs_no_label_and_others_say_their_columns(tmp_path: Path) -> None:
    assert read_labels(sheet(tmp_path, ["1", "0"])).is_good == {"q0": True, "q1": False}
    with pytest.raises(QAEvalError, match=r"no column 'good'.*--label: rating \[QA0305"):
        read_labels(sheet(tmp_path, ["1", "0"], name="rating"))


def test_words_are_labels_of_a_condition(tmp_path: Path) -> None:
    labels = read_labels(sheet(tmp_path, ["yes", "no", ""]), "good == 'yes'")
    assert labels.is_good == {"q0": True, "q1": False} and labels.blank == ("q2",)
