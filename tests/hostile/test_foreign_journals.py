"""Journals that others wrote to, or a disk has damaged: no wrong reply, no lost money, no hang."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from journals import ASKED, entry, sealed_text
from llm_runs import Run
from llm_server import LlmServer
from qaeval_core.errors import RunError
from qaeval_core.families.chat.naco_family import NacoFamily
from qaeval_core.llm.journal import Journal, journal_totals
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.sealed_lines import MAX_LINE_BYTES
from qaeval_core.running.chat_asker import read_entry

SOMEBODY = 12_345  # a user who is not us
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def foreign_line(of: JournalEntry, **changes: Any) -> bytes:
    """Return a line of somebody who can also seal it."""
    return sealed_text(json.dumps(asdict(of) | changes, separators=(",", ":"))).encode()


def segment(folder: Path, name: str, *lines: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"replies-{name}.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def test_a_line_without_a_checksum_is_damaged(tmp_path: Path) -> None:
    """Its money counts; whether its text is what the server said nobody knows."""
    line = (json.dumps(asdict(entry(1)), separators=(",", ":")) + "\n").encode()
    segment(tmp_path, "x", line, foreign_line(entry(2)))
    journal = Journal(tmp_path)
    assert [journal.get(entry(n).key, ASKED) for n in (1, 2)] == [None, entry(2)]
    assert "no checksum" in journal.notes[0]
    assert journal.spent_usd() == 0.005


N_FLIPS = 1_000


@pytest.mark.parametrize("seed", [1, 2])
def test_no_bit_of_a_journal_turns_in_silence(tmp_path: Path, seed: int) -> None:
    """Replies, tokens and money of other values were read without a word."""
    journal = Journal(tmp_path)
    entries = [entry(number) for number in range(3)]
    for one in entries:
        journal.put(one)
    journal.close()
    path, drawn = next(tmp_path.glob("replies-*")), random.Random(seed)
    content, spent_usd = path.read_bytes(), journal.spent_usd()
    n_lost = 0
    for _ in range(N_FLIPS // 2):
        flipped = bytearray(content)
        at = drawn.randrange(8 * len(content))
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        again, totals = Journal(tmp_path), journal_totals(tmp_path)
        found = [again.get(one.key) for one in entries]
        assert all(one in (None, own) for one, own in zip(found, entries, strict=True))
        assert list(again.entries()) == [one for one in found if one is not None]
        assert totals.n_replies == len(list(again.entries()))
        if None in found or (again.spent_usd(), totals.usd) != (spent_usd, spent_usd):
            assert again.notes and totals.notes
            n_lost += 1
    assert n_lost > N_FLIPS // 4, "a test whose flips hit nothing is worthless"


def test_the_money_of_a_damaged_line_counts(tmp_path: Path) -> None:
    """A budget must not be spent twice because a bit of a text turned."""
    journal = Journal(tmp_path)
    journal.put(entry(1))
    journal.close()
    path = next(tmp_path.glob("replies-*"))
    path.write_bytes(path.read_bytes().replace(b"So it is", b"So it ir"))
    again = Journal(tmp_path)
    assert again.get(entry(1).key) is None
    assert (again.spent_usd(), journal_totals(tmp_path).usd) == (0.002, 0.002)
    assert "its $0.002 count as spent" in again.notes[0]
    assert "$0.002 of them count as spent" in journal_totals(tmp_path).notes[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"usd": 1e6},
        {"usd": -100},
        {"usd": float("nan")},
        {"usd": float("inf")},
        {"usd": True},
        {"usd": 10**400},
        {"n_prompt_tokens": 10**15},
        {"n_prompt_tokens": "20"},
        {"n_completion_tokens": -1},
        {"n_completion_tokens": 2.5},
        {"run_index": None},
        {"text": 123},
        {"finish_reason": 5},
        {"parsed": [1]},
        {"model": None},
        {"key": ["00"]},
        {"key": "zz" * 32},
        {"key": "00 11"},
        {"at": "now"},
    ],
)
def test_a_line_that_cannot_be_is_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A budget that was gone for ever, a sum of -$299.98, or a trace after all was paid."""
    path = segment(tmp_path, "x", foreign_line(entry(1), **changes), foreign_line(entry(2)))
    journal = Journal(tmp_path)
    assert [found.call_id for found in journal.entries()] == ["a-2"]
    assert journal.get(entry(2).key, ASKED) == entry(2)
    assert 0.003 <= journal.spent_usd() <= 0.005
    (note,) = journal.notes
    assert note.startswith(f"{path.name}: the line at byte 0 is damaged, left out (")
    totals = journal_totals(tmp_path)
    assert (totals.n_replies, totals.usd) == (1, journal.spent_usd())


@pytest.mark.parametrize(
    "changes", [{"base_url": "http://evil/v1"}, {"model": "cheap"}, {"run_index": 7}]
)
def test_a_reply_of_another_server_or_model_is_none(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A forged line under the key of a request took a score from 0.72 to 0."""
    segment(tmp_path, "0-forged", foreign_line(entry(1), **changes, text="Not a question."))
    segment(tmp_path, "1-own", foreign_line(entry(1)))
    journal = Journal(tmp_path)
    assert journal.get(entry(1).key, ASKED) == entry(1)
    assert "its server, model or run is not that of its key" in journal.notes[0]
    (tmp_path / "replies-1-own.jsonl").unlink()
    alone = Journal(tmp_path)
    assert alone.get(entry(1).key, ASKED) is None
    alone.put(entry(1))
    assert alone.get(entry(1).key, ASKED) == entry(1), "or it is asked again at each look"


def test_a_line_that_changed_since_it_was_read_is_none(tmp_path: Path) -> None:
    """The reply to another request stood at its place."""
    path = segment(tmp_path, "x", foreign_line(entry(1)))
    journal = Journal(tmp_path)
    path.write_bytes(foreign_line(entry(2)))
    assert journal.get(entry(1).key) is None
    assert "replies to another request" in journal.notes[0]
    path.write_bytes(b"{}\n")
    journal = Journal(tmp_path)
    assert journal.get(entry(1).key) is None


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link(path: Path) -> None:
    victim = path.parent.parent / "secret.jsonl"
    victim.write_bytes(foreign_line(entry(1)))
    path.symlink_to(victim)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def of_somebody(path: Path) -> None:
    path.write_bytes(foreign_line(entry(1)))
    os.chown(path, SOMEBODY, SOMEBODY)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "put", [a_pipe, a_link, a_device, pytest.param(of_somebody, marks=as_root)]
)
def test_only_regular_files_of_ones_own_are_read(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    """A pipe kept the run waiting for ever, /dev/zero took all memory, replies were forged."""
    folder = tmp_path / "journal"
    segment(folder, "own", foreign_line(entry(2)))
    put(folder / "replies-evil.jsonl")
    journal = Journal(folder)
    assert [found.call_id for found in journal.entries()] == ["a-2"]
    assert "replies-evil.jsonl is left out: " in journal.notes[0]
    totals = journal_totals(folder)
    assert totals.n_replies == 1
    assert "cannot read replies-evil.jsonl: " in totals.notes[0]


@as_root
def test_replies_of_somebody_can_be_shown(tmp_path: Path) -> None:
    """``qaeval explain`` of a colleague's run: nothing is scored by them."""
    of_somebody(tmp_path / "replies-a.jsonl")
    assert Journal(tmp_path, of_others=True).get(entry(1).key) == entry(1)


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    """3 GB for a line of zeros."""
    path = segment(tmp_path, "x", b"0" * (3 * MAX_LINE_BYTES) + b"\n", foreign_line(entry(2)))
    journal = Journal(tmp_path)
    assert journal.get(entry(2).key) == entry(2)
    assert journal.notes[0].startswith(f"{path.name}: the line at byte 0 is damaged")


def test_a_reply_that_is_too_long_for_a_line_keeps_what_was_read_of_it(tmp_path: Path) -> None:
    """What is written must be read again, or it is paid again."""
    long = entry(1, text="\u00e4" * MAX_LINE_BYTES)
    Journal(tmp_path).put(long)
    assert Journal(tmp_path).get(long.key) == replace(long, text=None)


@pytest.mark.parametrize(
    "parsed",
    [
        {"answer": "yes"},
        {"is_readable": True, "n_steps": "two"},
        {"is_readable": True, "n_steps": -5},
        {"is_readable": True, "evil": 1},
        {"is_readable": 1},
    ],
)
def test_what_was_read_of_a_reply_is_checked_where_its_text_is_gone(
    parsed: dict[str, Any],
) -> None:
    """A trace, after all was paid, in every run."""
    assert not read_entry(NacoFamily(), entry(1, text=None, parsed=parsed)).is_readable
    assert read_entry(NacoFamily(), entry(1, text=None)).n_steps == 1


def test_a_forged_reply_is_asked_again(tmp_path: Path) -> None:
    """A whole run: the reply of another model counted, without a call or a word."""
    with LlmServer() as server:
        with Run(server, tmp_path) as run:
            (first,) = asyncio.run(run.ask([1]))
        (path,) = tmp_path.glob("replies-*")
        path.write_bytes(foreign_line(replace(first.entry, model="cheap", text="Not a question.")))
        with Run(server, tmp_path) as run:
            (again,) = asyncio.run(run.ask([1]))
    assert not again.is_from_journal
    assert again.entry.model == "m" and again.entry.text != "Not a question."


def test_journals_are_private(tmp_path: Path) -> None:
    """Replies, and what was asked, were readable by all users."""
    folder = tmp_path / "journal"
    before = os.umask(0o022)
    try:
        Journal(folder).put(entry(1))
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def test_a_full_note_book_takes_no_memory(tmp_path: Path) -> None:
    """A folder may hold a million lines of nonsense."""
    segment(tmp_path, "x", b"nonsense\n" * 5_000)
    notes = Journal(tmp_path).notes
    assert len(notes) == 101
    assert notes[-1] == "4,900 more"


def test_a_pipe_in_the_place_of_a_known_segment_is_an_error(tmp_path: Path) -> None:
    """Somebody replaces a file between two looks."""
    path = segment(tmp_path, "x", foreign_line(entry(1)))
    journal = Journal(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match="QA0606"):
        journal.get(entry(1).key)
