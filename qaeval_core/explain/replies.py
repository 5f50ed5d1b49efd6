"""Explain: the replies of a journal, which may be gone, and may not hold their texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from qaeval_core.errors import RunError
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.scoring.asking import read_entry
from qaeval_core.scoring.families.chat.naco_reply import Reply


@dataclass
class KeptReplies:
    """The replies below a folder; read when the first is looked for, and never written."""

    folder: Path

    def find(self, key: str) -> JournalEntry | None:
        """Return the reply to a request, None where there is none."""
        return None if self._journal is None else self._journal.get(key)

    def of_reading(
        self, key: str | None, reading: Reply | None
    ) -> tuple[JournalEntry | None, tuple[str, ...]]:
        """Return the reply that was read as committed, or the nearest to it, and notes on it."""
        if key is None or reading is None:
            return None, ()
        entry = self.find(key)
        if entry is None:
            why = "does not hold it" if self._journal is not None else "is gone, or not readable"
            return None, (f"no reply to show: the journal {self.folder} {why}",)
        others = _other_readings(entry, reading)
        if others and self._journal is not None:
            # Two writers may have asked at once, and this is the other one's reply.
            same_key = [own for own in self._journal.entries() if own.key == key]
            entry = min(same_key, key=lambda own: len(_other_readings(own, reading)))
            others = _other_readings(entry, reading)
        notes = []
        if entry.text is None:
            notes.append("no reply to show: the run kept no texts of replies")
        if others:
            notes.append(f"the reply is read otherwise by now: {', '.join(others)}")
        return entry, tuple(notes)

    @cached_property
    def _journal(self) -> Journal | None:
        if not self.folder.is_dir():  # Looked for first: a journal makes its folder.
            return None
        try:
            return Journal(self.folder, of_others=True)  # A colleague's run: shown, not scored by.
        except RunError:  # It cannot be read: what is committed is shown.
            return None


def _other_readings(entry: JournalEntry, reading: Reply) -> list[str]:
    """Return what is read of a reply now and was not then."""
    now, then = asdict(read_entry(entry)), asdict(reading)
    return [
        f"{name} {now[name]!r}, committed {then[name]!r}" for name in now if now[name] != then[name]
    ]
