"""Journals of the tests of journals: entries, folders of both kinds, writers to be killed."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qaeval_core.llm.journal_entry import Asked, JournalEntry
from qaeval_core.storage.path import StoragePath

ASKED = Asked("http://localhost/v1", "m", 0)

# Puts replies from several threads, and tells of each after put returned.
WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from qaeval_core.llm.journal import Journal
sys.path.insert(0, sys.argv[1])
from journals import entry

uri, first, n = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
journal = Journal(uri, linger_s=float(sys.argv[5]))

def put(number):
    journal.put(entry(number))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()

with ThreadPoolExecutor(8) as pool:
    list(pool.map(put, range(first, first + n)))
"""


def sealed_text(line: str) -> str:
    """Return an object of JSON as a line with its checksum, whatever it says."""
    body = line.strip()[:-1]
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'


def entry(number: int, **changes: Any) -> JournalEntry:
    """Return an entry of its own key, call and cost."""
    made = JournalEntry(
        key=f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:048x}",
        call_id=f"a-{number}",
        account="c0ffee",
        base_url=ASKED.base_url,
        model=ASKED.model,
        run_index=0,
        text=f"Steps:\n1. So it is.\n<ans>{number}</ans>",
        parsed={"is_readable": True, "n_steps": 1, "answer": str(number)},
        finish_reason="stop",
        n_prompt_tokens=20,
        n_completion_tokens=5,
        usd=0.001 * (number % 7 + 1),
        at=1e9,
    )
    return replace(made, **changes)


def usd_of(numbers: Iterable[int]) -> float:
    """Return what entries cost."""
    return sum(round(entry(number).usd * 1e9) for number in numbers) / 1e9


def start_writer(
    folder: StoragePath, *, first: int, n_replies: int = 100_000, linger_s: float = 0.02
) -> subprocess.Popen[str]:
    """Start a process that puts replies."""
    tests = str(Path(__file__).parent)
    words = [tests, str(folder), str(first), str(n_replies), str(linger_s)]
    command = [sys.executable, "-c", WRITER, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> Iterator[int]:
    """Yield the numbers whose put had returned, until the process ends."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield int(line)
    process.wait()
    process.stdout.close()


def batches(folder: StoragePath) -> list[str]:
    """Return the names of a journal's batches."""
    return sorted(own.name for own in folder.list(is_deep=True) if own.name.endswith(".jsonl"))
