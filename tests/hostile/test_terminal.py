"""Words of others reach the terminal as they look, and move nothing there."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from helpers import REPOSITORY, run_locally, write_parquet
from qaeval.cli import app
from qaeval_core.errors import nearest
from qaeval_core.explain.page import escaped
from qaeval_core.running.progress import Counts, ProgressPrinter
from qaeval_core.terminal import say, say_error, visible

# Clears the screen, begins a line of its own, turns the direction, and is a C1 control.
EVIL = "x\x1b[2J\r\nerror: all is lost\u202e\x9b31m\u2028\u2066\x00"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def invoke(*words: str | Path, expect: int = 2) -> str:
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == expect, shown.output
    assert not OBEYED.search(shown.output), ascii(shown.output)
    assert "\nerror: all is lost" not in shown.output
    return shown.output


def test_nothing_is_obeyed_and_nothing_is_lost() -> None:
    """What a terminal would obey is shown; all other text, whatever its script, is as it was."""
    shown = visible(EVIL)
    assert not OBEYED.search(shown) and "\n" not in shown
    assert shown == "x␛[2J␍␊error: all is lost\\u202e\\u009b31m\\u2028\\u2066␀"
    for text in (
        "naïve θάλασσα 灯台",
        "👩\u200d👩\u200d👧 क्\u200dष می\u200cروم",
        "שלום עולם",
        "$\\frac{",
    ):
        assert visible(text) == text
    assert visible("a\nb\tc", keep="\n\t") == "a\nb\tc"
    assert visible("\udcff\U000e0041") == "\\udcff\\U000e0041"


def test_lines_after_the_first_stand_further_in(capsys: pytest.CaptureFixture[str]) -> None:
    """A server's text with a line end wrote an "error:" line of its own."""
    say_error(f"refused: {EVIL}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and not lines[1].startswith("error")
    say(f"note: {EVIL}")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_terminal_of_few_letters_gets_numbers() -> None:
    """An exception while an error is printed would hide the error."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    say("\x1b ü", stream=stream)
    stream.seek(0)
    assert stream.read() == "\\u241b \\xfc\n"


def test_all_output_goes_through_one_door() -> None:
    """A print beside it would show what it is given."""
    for folder in ("jobs", "qaeval_core", "export"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if path.name == "terminal.py":
                continue
            code = re.sub(r"^ *(>>>|\.\.\.) .*$", "", path.read_text(), flags=re.MULTILINE)
            assert not re.search(r"(?<![\w.])print\(|typer\.echo", code), path


def test_progress_shows_what_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Notes of progress hold words of servers; square brackets were taken for colors."""
    stream = io.StringIO()
    printer = ProgressPrinter("naco", n_rows_total=9, interval_s=0.0, stream=stream)
    printer.update(Counts(1.0, note=f"last: [/red] {EVIL}"), is_last=True)
    assert not OBEYED.search(stream.getvalue())

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    printer = ProgressPrinter("naco", n_rows_total=9, interval_s=0.0, stream=screen)
    printer.update(Counts(1.0, note=f"last: [/red] {EVIL}"), is_last=True)
    assert "\x1b[2J" not in screen.getvalue() and "\x9b" not in screen.getvalue()


def test_ten_names_are_suggested_at_most() -> None:
    """A table of ten thousand columns listed all of them."""
    hint = nearest("zzz", [f"column {i} {EVIL}{'y' * 500}" for i in range(10_000)])
    assert "and 9,990 more" in hint and len(hint) < 2_000
    assert not OBEYED.search(hint)


def test_columns_with_control_characters_are_named_in_one_line(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "in.parquet", pa.table({EVIL: ["a"], "other": ["b"]}))
    said = invoke("score", source, "--out", tmp_path / "out", "--metrics", "f1", "--local")
    assert "choose one of" in said or "no column" in said


def test_keys_of_a_run_file_and_the_holder_of_a_lock_are_shown(tmp_path: Path) -> None:
    rows = {"candidate": ["a"], "references": [["a"]]}
    source = write_parquet(tmp_path / "in.parquet", pa.table(rows))
    out = tmp_path / "out"
    run_locally({"input.paths": [str(source)], "output.path": str(out), "metrics.f1.metric": "f1"})
    content = json.loads((out / "run.json").read_text())
    content["config"][EVIL] = 1
    (out / "run.json").write_text(json.dumps(content))
    assert "unknown key" in invoke("explain", out, "--row", "in.parquet:0")
    (out / ".lock").write_text(json.dumps({"host": EVIL, "pid": EVIL, "token": EVIL}))
    said = invoke("score", source, "--out", out, "--metrics", "exact_match", "--local", expect=1)
    assert "another run" in said and "delete" in said


def test_values_of_groups_and_metadata_are_shown(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "human": [1.0, 2.0, 2.0], "group": [EVIL] * 3})
    source = write_parquet(tmp_path / "in.parquet", table)
    words = ("correlate", source, "--human", "human", "--metrics", "a", "--resamples", "20")
    assert "all is lost" in invoke(*words, "--by", "group", expect=0)


def test_the_page_shows_what_would_turn_it(tmp_path: Path) -> None:
    """Bidi marks in a text turned the words around it."""
    page = escaped(f"<b>{EVIL}\n\t")
    assert not OBEYED.search(page.replace("\t", "")) and page.endswith("␀\n\t")
    assert page.startswith("&lt;b&gt;x␛[2J␍\nerror: all is lost\\u202e")


@pytest.mark.parametrize("content", ["[1]", '{"a": [1]}', '{"a": {"settings": 1}}', "{"])
def test_damaged_metadata_of_columns_is_one_message(tmp_path: Path, content: str) -> None:
    """Lists where a mapping was expected ended in a traceback."""
    table = pa.table({"a": [1.0, 2.0], "human": [1.0, 2.0]})
    metadata = {b"qaeval.columns": content.encode()}
    path = tmp_path / "in.parquet"
    pq.write_table(table.replace_schema_metadata(metadata), path)
    assert "qaeval.columns) is damaged" in invoke("correlate", path, "--human", "human")


@pytest.mark.parametrize("name", ["$\\frac{", "a$b$c_{", EVIL])
def test_names_of_columns_are_no_mathematics(tmp_path: Path, name: str) -> None:
    """A drawing library read "$" as the beginning of a formula, and ended in a traceback."""
    values: dict[str, Any] = {name: [1.0, 2.0, 3.0], "human": [1.0, 2.0, 2.0], "group": [name] * 3}
    source = write_parquet(tmp_path / "in.parquet", pa.table(values))
    words = ("correlate", source, "--human", "human", "--metrics", name, "--resamples", "20")
    invoke(*words, "--by", "group", "--out", tmp_path / "study", expect=0)
    assert (tmp_path / "study" / "correlate.html").is_file()
