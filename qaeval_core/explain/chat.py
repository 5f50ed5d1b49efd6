"""Explain: families that asked a language model, as the commits and the journal have them.

Nothing is asked and no key is read. Readings of replies are those that are committed; from them and
the row's texts the family's statistics are made again. Where the journal still has a reply's text,
it is read again as well: a reader that reads it otherwise by now is a note, for the scores do not
come from that reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from qaeval_core.errors import ReconcileError, RunError
from qaeval_core.explain.finished_run import StoredRow
from qaeval_core.explain.recompute import instances_of
from qaeval_core.families.chat.family import (
    ChatFamily,
    ChatFamilyPlan,
    ChatReply,
    Reading,
    is_chat,
)
from qaeval_core.families.shard import statistics_table
from qaeval_core.llm.client import Message
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.planning.run_plan import InstancePlan
from qaeval_core.running.chat_asker import endpoint_of, lay_out_chat, read_entry
from qaeval_core.schema import QUARANTINE_REASON


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """One family that asked, for one row.

    Attributes
    ----------
    instances : those that read it
    messages : sequence of Message
        The prompt; empty where a row is not asked.
    gold : str or None
        The gold answer.
    committed : mapping of column to value, or None
        Statistics of the row; None where the row is pending.
    statistics : pyarrow.Table of one row
        Made again from committed readings and the row's texts; nulls where the row is pending.
    """

    plan: ChatFamilyPlan
    instances: tuple[InstancePlan, ...]
    messages: Sequence[Message]
    gold: str | None
    committed: Mapping[str, Any] | None
    statistics: pa.Table

    @property
    def n_runs(self) -> int:
        """How often the row was asked."""
        return len(self.committed["problem"] or ()) if self.committed is not None else 0

    def key(self, run: int, *, is_reminder: bool) -> str:
        """Return the name that the journal knows a reply by."""
        messages = self.plan.family.remind(self.messages) if is_reminder else self.messages
        return endpoint_of(self.plan).request_key(messages, run_index=run)

    def committed_reply(self, run: int) -> ChatReply | None:
        """Return what was read of a reply, None where there was none."""
        if self.committed is None or self.committed["key"][run] is None:
            return None
        return self.plan.family.committed_reply(self.committed, run)


def read_asked(row: StoredRow) -> list[AskedRun]:
    """Return what the families of a run that asked have of a row; nothing is asked.

    Raises
    ------
    ReconcileError
        If a family has no commit with the row, and did not end early either.
    """
    return [_read(row, plan) for plan in row.job.run.families if is_chat(plan)]


def _read(row: StoredRow, plan: ChatFamilyPlan) -> AskedRun:
    prepared = lay_out_chat(plan, {role: row.values[role] for role in plan.columns})
    request = next(iter(prepared.work.requests), None)
    given = prepared.validated.values.get("answer")
    asked = AskedRun(
        plan=plan,
        instances=instances_of(plan, row.job),
        messages=request.messages if request is not None else (),
        gold=str(given[0]) if given else None,
        committed=_committed(row, plan.key),
        statistics=_nothing(plan.pending_schema),
    )
    if asked.committed is None:
        return asked
    if request is not None:
        readings = [_reading(asked, asked.committed, i) for i in range(asked.n_runs)]
        prepared.work.take(request, readings)
    return replace(asked, statistics=statistics_table(prepared, first_position=row.place.row))


def _committed(row: StoredRow, key: str) -> Mapping[str, Any] | None:
    """Return the committed statistics of a row, None where the family ended before it."""
    try:
        (committed,) = row.statistics(key).to_pylist()
    except ReconcileError:
        if key in row.run.stopped:
            return None
        raise
    found: Mapping[str, Any] = committed
    return found


def _nothing(schema: pa.Schema) -> pa.Table:
    """Return the statistics of a pending row."""
    nulls = {field.name: pa.nulls(1, field.type) for field in schema}
    return pa.table({QUARANTINE_REASON: pa.nulls(1, pa.string()), **nulls})


def _reading(asked: AskedRun, committed: Mapping[str, Any], run: int) -> Reading:
    """Return a committed reading, under the name that the row's prompt has now."""
    key = committed["key"][run]
    if key is not None:
        is_reminder = key == asked.key(run, is_reminder=True)
        key = asked.key(run, is_reminder=is_reminder)
    return Reading(
        reply=asked.committed_reply(run),
        problem=committed["problem"][run],
        message=committed["message"][run],
        key=key,
    )


@dataclass
class KeptReplies:
    """The replies below a folder; read when the first is looked for, and never written."""

    folder: Path
    family: ChatFamily

    def find(self, key: str) -> JournalEntry | None:
        """Return the reply to a request, None where there is none."""
        return None if self._journal is None else self._journal.get(key)

    def of_reading(
        self, key: str | None, reading: ChatReply | None
    ) -> tuple[JournalEntry | None, tuple[str, ...]]:
        """Return the reply that was read as committed, or the nearest to it, and notes on it."""
        if key is None or reading is None:
            return None, ()
        entry = self.find(key)
        if entry is None:
            why = "does not hold it" if self._journal is not None else "is gone, or not readable"
            return None, (f"no reply to show: the journal {self.folder} {why}",)
        others = self._other_readings(entry, reading)
        if others and self._journal is not None:
            # Two writers may have asked at once, and this is the other one's reply.
            same_key = [own for own in self._journal.entries() if own.key == key]
            entry = min(same_key, key=lambda own: len(self._other_readings(own, reading)))
            others = self._other_readings(entry, reading)
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

    def _other_readings(self, entry: JournalEntry, reading: ChatReply) -> list[str]:
        """Return what is read of a reply now and was not then."""
        now, then = asdict(read_entry(self.family, entry)), asdict(reading)
        return [
            f"{name} {now[name]!r}, committed {then[name]!r}"
            for name in now
            if now[name] != then[name]
        ]
