"""The journal: a reply that was put is there, whoever is killed, and however many write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.errors import RunError
from qaeval_core.llm.journal import Journal, JournalTotals, journal_totals
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.sealed_lines import sealed

ENTRY = JournalEntry(
    key="00" * 32,
    call_id="a-0",
    account="c0ffee",
    base_url="http://localhost/v1",
    model="m",
    run_index=0,
    text="1. So it is.\n<ans>yes</ans>",
    parsed={"n_steps": 1, "answer": "yes"},
    finish_reason="stop",
    n_prompt_tokens=20,
    n_completion_tokens=5,
    usd=0.001,
    at=1e9,
)

# Tells of each reply after put returned; texts of 200 kB, so that a kill often meets a write.
WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.journal import JournalTotals, journal_totals

journal = Journal(Path(sys.argv[1]))
entry = JournalEntry("", "", "c0", "http://localhost/v1", "m", 0, "", None, "stop", 1, 1, 0.5, 0.0)
for number in range(int(sys.argv[3])):
    key = f"{int(sys.argv[2]):08x}{number:08x}"
    journal.put(replace(entry, key=key, call_id=key, text=key * 12_500))
    print(key, flush=True)
"""


def entry(number: int, **changes: object) -> JournalEntry:
    """Return an entry of its own key."""
    key = f"{number:064x}"
    return replace(ENTRY, key=key, call_id=f"a-{number}", **changes)


def line_without(field: str) -> bytes:
    """Return the line of an entry that lacks a field."""
    fields = asdict(entry(1))
    del fields[field]
    return json.dumps(fields).encode()


def start_writer(folder: Path, *, number: int, n_replies: int = 100_000) -> subprocess.Popen[str]:
    """Start a process that puts replies."""
    command = [sys.executable, "-c", WRITER, str(folder), str(number), str(n_replies)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def keys_told(process: subprocess.Popen[str]) -> list[str]:
    """Return the keys whose put had returned, of a process that ends."""
    assert process.stdout is not None
    lines = process.stdout.readlines()
    process.wait()
    process.stdout.close()
    return [line.strip() for line in lines if line.endswith("\n")]


def test_what_was_put_survives_a_kill_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """A reply that was used and is not there is paid again; half a reply is worse."""
    for number in range(3):
        process = start_writer(tmp_path, number=number)
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(5)]
        os.kill(process.pid, signal.SIGKILL)
        told += keys_told(process)
        journal = Journal(tmp_path)
        for key in told:
            found = journal.get(key)
            assert found is not None and found.text == key * 12_500
        assert len(list(journal.entries())) == len(journal)


def test_two_writers_share_a_folder(tmp_path: Path) -> None:
    """Lines of two processes must not mix, and each finds the other's after a look."""
    journal = Journal(tmp_path)
    writers = [start_writer(tmp_path, number=number, n_replies=20) for number in range(2)]
    keys = [key for writer in writers for key in keys_told(writer)]
    assert len(keys) == 40
    assert journal.get(keys[0]) is None
    assert journal.refresh() == 40
    assert journal.refresh() == 0
    assert {journal.get(key).text for key in keys} == {key * 12_500 for key in keys}
    assert journal.notes == []
    assert journal.spent_usd() == 20.0


def test_a_line_is_read_once_its_writer_has_ended_it(tmp_path: Path) -> None:
    """A reader that skips half a line for good would have it paid again."""
    journal = Journal(tmp_path / "a")
    journal.put(entry(1))
    journal.put(entry(2))
    content = next((tmp_path / "a").iterdir()).read_bytes()
    torn = tmp_path / "replies-host-1-x.jsonl"
    torn.write_bytes(content[:-30])
    other = Journal(tmp_path)
    assert (len(other), other.notes) == (1, [f"{torn.name}: the last line is torn, left out"])
    assert other.spent_usd() == 0.001
    torn.write_bytes(content)
    assert other.refresh() == 1
    assert (other.get(entry(2).key), other.notes) == (entry(2), [])


@pytest.mark.parametrize(
    "damage",
    [b"\0" * 700, b'{"key": 5}', b"[1, 2]", b"\xff\xfe", b"", b"[" * 100_000, line_without("usd")],
)
def test_a_damaged_line_costs_itself_alone(tmp_path: Path, damage: bytes) -> None:
    """After a power failure a file may hold zeros; the replies behind them were paid for."""
    journal = Journal(tmp_path)
    for number in range(3):
        journal.put(entry(number))
    journal.close()
    path = next(tmp_path.iterdir())
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damage, lines[2], b""]))
    again = Journal(tmp_path)
    assert [again.get(entry(number).key) is not None for number in range(3)] == [True, False, True]
    where = f"{path.name}: the line at byte {len(lines[0]) + 1}"
    (note,) = again.notes
    assert note.startswith(f"{where} is damaged, left out (")
    assert [found.call_id for found in again.entries()] == ["a-0", "a-2"]
    totals = journal_totals(tmp_path)
    assert (totals.n_replies, totals.usd) == (2, 0.002)
    assert totals.notes == (f"{path.name}: 1 line is torn or damaged, and skipped",)


def test_a_full_disk_is_an_error_and_loses_nothing_before_or_after(tmp_path: Path) -> None:
    """A line that ends in its middle must not swallow the one that follows."""
    code = """
import resource, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from test_journal import entry
from qaeval_core.errors import RunError
from qaeval_core.llm.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.put(entry(1))
size = next(Path(sys.argv[1]).iterdir()).stat().st_size
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
for number in (2, 3):
    try:
        journal.put(entry(number))
    except RunError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.put(entry(4))
assert journal.get(entry(2).key) is None
assert journal.get(entry(4).key) == entry(4)
"""
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the disk took" in done.stdout and "File too large" in done.stdout
    again = Journal(tmp_path)
    assert [found.call_id for found in again.entries()] == ["a-1", "a-4"]
    assert len(again.notes) == 1


def test_texts_are_dropped_where_they_are_not_wanted(tmp_path: Path) -> None:
    """``--no-replies``: scores can be made again, what a model said cannot be read."""
    journal = Journal(tmp_path, with_text=False)
    journal.put(entry(1))
    found = Journal(tmp_path).get(entry(1).key)
    assert found == replace(entry(1), text=None)
    assert "So it is" not in next(tmp_path.iterdir()).read_text()


def test_of_two_replies_to_one_request_both_were_paid(tmp_path: Path) -> None:
    """Two processes that ask at once pay twice; the journal must not hide it."""
    for number in range(2):
        journal = Journal(tmp_path)
        journal.put(replace(ENTRY, call_id=f"{number}-1", text=str(number)))
    again = Journal(tmp_path)
    assert len(again) == 1
    assert again.spent_usd() == 0.002
    assert len(list(again.entries())) == 2


def test_threads_put_at_once(tmp_path: Path) -> None:
    """Calls end in any order; a flush that one left to another must not be skipped by both."""
    journal = Journal(tmp_path)

    def put(first: int) -> None:
        for number in range(first, first + 20):
            journal.put(entry(number))
            assert journal.get(entry(number).key) == entry(number)

    threads = [threading.Thread(target=put, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Journal(tmp_path)) == len(journal) == 160


@given(text=st.text(st.characters(), max_size=50))
@settings(max_examples=25, deadline=None)
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Models write line ends, half emoji and zeros; a journal of lines must not break on them."""
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    for said in (text, text + "\ud83d", "\r\n\u2028\0" + text):
        journal.put(replace(ENTRY, key=f"{hash(said) & 0xFFFF:04x}", text=said))
    journal.close()
    texts = {found.text for found in Journal(folder).entries()}
    assert texts == {text, text + "\ud83d", "\r\n\u2028\0" + text}


def test_a_journal_is_lines_of_json(tmp_path: Path) -> None:
    """People look into it with their own tools."""
    Journal(tmp_path).put(entry(1))
    (line,) = next(tmp_path.iterdir()).read_text().splitlines()
    assert json.loads(line)["parsed"] == {"n_steps": 1, "answer": "yes"}


def test_lines_of_a_newer_version_are_read(tmp_path: Path) -> None:
    """A field that this version does not know is no reason to pay for the reply again."""
    fields = asdict(entry(1)) | {"n_cached_tokens": 7}
    (tmp_path / "replies-host-1-x.jsonl").write_text(sealed(fields))
    journal = Journal(tmp_path)
    assert (journal.get(entry(1).key), journal.notes) == (entry(1), [])


def test_totals_count_all_that_was_paid_and_say_what_they_left_out(tmp_path: Path) -> None:
    """A report that counts the index counts one of two replies to a request; of a torn line, which
    was paid for, the money counts where it can be read."""
    for _ in range(2):
        journal = Journal(tmp_path)
        for number in range(3):
            journal.put(entry(number))
        journal.close()
    path = min(tmp_path.iterdir())
    path.write_bytes(b"zeros\n" + path.read_bytes()[:-9])
    (tmp_path / "ledger-main.jsonl").write_text("{}\n")
    said = "2 lines are torn or damaged, and skipped; $0.001 of them count as spent"
    notes = (f"{path.name}: {said}",)
    assert journal_totals(tmp_path) == JournalTotals(5, 0.006, 100, 25, notes)


@pytest.mark.parametrize("folder", ["a file", "a file/below", "/proc/nope"])
def test_a_folder_that_cannot_be_is_named_with_its_key(tmp_path: Path, folder: str) -> None:
    """A trace of thirty lines does not say which setting is wrong."""
    (tmp_path / "a file").write_text("")
    with pytest.raises(RunError) as refused:
        Journal(tmp_path / folder, section="naco.")
    assert str(refused.value).startswith(f"cannot keep replies in {tmp_path / folder}: ")
    assert str(refused.value).endswith(" (naco.journal_path) [QA0606]")


def test_a_segment_that_is_gone_is_an_error_with_a_name(tmp_path: Path) -> None:
    """Someone tidies up while a run reads."""
    journal = Journal(tmp_path)
    journal.put(entry(1))
    next(tmp_path.iterdir()).unlink()
    with pytest.raises(RunError, match="QA0606"):
        journal.get(entry(1).key)
