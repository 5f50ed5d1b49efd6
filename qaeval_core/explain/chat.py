"""Explain: families that asked a language model, as the commits and the journal have them.

Nothing is asked and no key is read. Readings of replies are those that are committed; from them and
the row's texts the family's statistics are made again. Where the journal still has a reply's text,
it is read again as well: a reader that reads it otherwise by now is a note, for the scores do not
come from that reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from qaeval_core.errors import ReconcileError, RunError
from qaeval_core.explain.parts import Part, number, on_one_line, short
from qaeval_core.explain.recompute import instances_of
from qaeval_core.explain.stored_row import StoredRow
from qaeval_core.families.chat.family import (
    ChatFamily,
    ChatFamilyPlan,
    ParsedReply,
    Reading,
    is_chat,
)
from qaeval_core.families.contract import statistics_table
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.limits import Message
from qaeval_core.metrics.chat import UNPARSABLE
from qaeval_core.pages.html import Block, Fields, Passage
from qaeval_core.planning.run_plan import InstancePlan
from qaeval_core.running.chat_asker import endpoint_of, read_entry
from qaeval_core.schema import QUARANTINE_REASON
from qaeval_core.storage.path import StoragePath


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRun:
    """One family that asked, for one row.

    Attributes
    ----------
    instances : those that read it
    values : mapping of role to value
        Of the row, as the family reads it.
    messages : sequence of Message
        The prompt; empty where a row is not asked.
    committed : mapping of column to value, or None
        Statistics of the row; None where the row is pending.
    statistics : pyarrow.Table of one row
        Made again from committed readings and the row's texts; nulls where the row is pending.
    """

    plan: ChatFamilyPlan
    instances: tuple[InstancePlan, ...]
    values: Mapping[str, object]
    messages: Sequence[Message]
    committed: Mapping[str, Any] | None
    statistics: pa.Table

    def prompt(self, *, is_reminder: bool) -> Sequence[Message]:
        """Return what was sent, first or after a reply that could not be read."""
        return self.plan.family.remind(self.messages) if is_reminder else self.messages

    def key(self, run: int, *, is_reminder: bool) -> str:
        """Return the name that the journal knows a reply by."""
        messages = self.prompt(is_reminder=is_reminder)
        return endpoint_of(self.plan).request_key(messages, run_index=run)

    @property
    def readings(self) -> list[Reading]:
        """What came of each run, as committed, under the names that the prompt has now."""
        own = self.committed or {}
        keys = own.get("key") or ()
        return [self._reading(own, run, key) for run, key in enumerate(keys)]

    def _reading(self, own: Mapping[str, Any], run: int, key: str | None) -> Reading:
        problem, message = own["problem"][run], own["message"][run]
        if key is None:
            return Reading(reply=None, problem=problem, message=message)
        is_reminder = key == self.key(run, is_reminder=True)
        key = self.key(run, is_reminder=is_reminder)
        if problem not in (None, UNPARSABLE):  # Of a reply that was not read.
            return Reading(reply=None, problem=problem, message=message, key=key)
        is_readable = problem != UNPARSABLE
        said = {name: own[name][run] for name in reading_columns(self.plan.family)}
        unread = None if is_readable else message
        reply = self.plan.family.reply_of({"is_readable": is_readable, "problem": unread, **said})
        return Reading(reply=reply, problem=problem, message=message, key=key)


def reading_columns(family: ChatFamily) -> list[str]:
    """Return the columns of a family's statistics that hold what is read of a reply."""
    read = {field.name for field in fields(family.read_reply(""))} - {"problem"}
    return [name for name in family.schema.names if name in read]


def read_chats(row: StoredRow) -> list[ChatRun]:
    """Return what the families of a run that asked have of a row; nothing is asked.

    Raises
    ------
    ReconcileError
        If a family has no commit with the row, and did not end early either.
    """
    return [_read(row, plan) for plan in row.job.run.families if is_chat(plan)]


def _read(row: StoredRow, plan: ChatFamilyPlan) -> ChatRun:
    prepared = plan.open_layout().prepare({role: row.values[role] for role in plan.columns})
    request = next(iter(prepared.work.requests), None)
    chat = ChatRun(
        plan=plan,
        instances=instances_of(plan, row.job),
        values={role: own[0] for role, own in prepared.validated.values.items() if own},
        messages=request.messages if request is not None else (),
        committed=_committed(row, plan.key),
        statistics=_nothing(plan.pending_schema),
    )
    if chat.committed is None:
        return chat
    if request is not None:
        prepared.work.take(request, chat.readings)
    return replace(chat, statistics=statistics_table(prepared, first_position=row.place.row))


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


@dataclass
class KeptReplies:
    """The replies below a folder; read when the first is looked for, and never written."""

    family: ChatFamily
    folder: StoragePath | None

    def is_readable(self, key: str) -> bool | None:
        """Whether the reply to a request has the form that was asked for; None without one."""
        entry = self._find(key)
        return None if entry is None else read_entry(self.family, entry).is_readable

    def of_reading(self, reading: Reading) -> tuple[JournalEntry | None, tuple[str, ...]]:
        """Return the reply that was read as committed, or the nearest to it, and notes on it."""
        key, reply = reading.key, reading.reply
        if key is None:
            return None, ()
        entry = self._find(key)
        if entry is None:
            why = "does not hold it" if self._journal is not None else "is gone, or not readable"
            return None, (f"no reply to show: the journal {self.folder} {why}",)
        others = self._other_readings(entry, reply)
        if others and self._journal is not None:
            # Two writers may have asked at once, and this is the other one's reply.
            same_key = list(self._journal.replies(key))
            entry = min(same_key, key=lambda own: len(self._other_readings(own, reply)))
            others = self._other_readings(entry, reply)
        notes = []
        if entry.text is None:
            notes.append("no reply to show: the run did not keep the texts of replies")
        if others:
            notes.append(f"this version reads the reply differently: {', '.join(others)}")
        return entry, tuple(notes)

    def _find(self, key: str) -> JournalEntry | None:
        return None if self._journal is None else self._journal.get(key)

    @cached_property
    def _journal(self) -> Journal | None:
        try:
            # Looked for first: a journal makes its folder.
            if self.folder is None or not self.folder.is_dir():
                return None
            return Journal(self.folder, of_others=True)  # A colleague's run: shown, not scored by.
        except (RunError, OSError):  # It cannot be read: what is committed is shown.
            return None

    def _other_readings(self, entry: JournalEntry, reply: ParsedReply | None) -> list[str]:
        """Return what is read of a reply now and was not then; nothing of one that is not read."""
        if reply is None:
            return []
        now, then = asdict(read_entry(self.family, entry)), asdict(reply)
        return [
            f"{name} {now[name]!r}, committed {then[name]!r}"
            for name in now
            if now[name] != then[name]
        ]


Data = Mapping[str, Any]


def run_data(chat: ChatRun) -> Iterator[dict[str, Any]]:
    """Yield what is known of each run; readings are as committed, None where there is no reply."""
    kept = KeptReplies(chat.plan.family, chat.plan.journal_folder)
    committed = chat.committed or {}
    for run, reading in enumerate(chat.readings):
        if reading.key is not None:
            is_reminder = reading.key == chat.key(run, is_reminder=True)
        else:
            # A call that got no reply was the reminder if the first one got what cannot be read.
            is_reminder = kept.is_readable(chat.key(run, is_reminder=False)) is False
        entry, notes = kept.of_reading(reading)
        yield {
            "run": run + 1,
            "n_runs": chat.plan.settings.runs,
            "problem": reading.problem,  # why it does not count; None where it counts
            "message": reading.message,
            **{name: committed[name][run] for name in reading_columns(chat.plan.family)},
            "prompt": chat.prompt(is_reminder=is_reminder),
            "is_reminder": is_reminder,
            "key": committed["key"][run],
            "reply": entry.text if entry is not None else None,
            "finish_reason": entry.finish_reason if entry is not None else None,
            "notes": notes,
        }


def run_part(kind: str, run: Data, *, line: str, block: Block) -> Part:
    """Return one run: what was read of its reply, the reply, and the prompt.

    Parameters
    ----------
    line, block : str, Block
        What was read, where the run counts.
    """
    told = f"run {run['run']} of {run['n_runs']}"
    if run["is_reminder"]:
        told += ", after a reminder"
    blocks: list[Block] = [block]
    if run["problem"] is not None:
        why = "" if run["message"] is None else f" ({on_one_line(run['message'])})"
        line = f"does not count, {run['problem']}{why}"
        why = run["problem"] + (f": {run['message']}" if run["message"] else "")
        blocks = [Passage(f"This run does not count: {why}", tone="bad")]
    lines = [line]
    if run["is_reminder"]:
        remark = "The first reply could not be read; this is of the reminder."
        blocks.append(Passage(remark, tone="plain"))
    if run["reply"] is not None:
        ended = f" (ended by: {run['finish_reason']})" if run["finish_reason"] else ""
        blocks.append(Passage(run["reply"], label=f"The model’s reply{ended}"))
        lines.append(f"reply {short(run['reply'])!r}")
    return Part(
        kind=kind,
        data=run,
        line=f"{told}: {'; '.join([*lines, *run['notes']])}",
        title=f"Run {run['run']} of {run['n_runs']}",
        blocks=blocks + [Passage(note, tone="soft") for note in run["notes"]],
        folded_title=f"The prompt{', with the reminder' if run['is_reminder'] else ''}",
        folded=[Passage(own["content"], label=own["role"]) for own in run["prompt"]],
    )


def judge_parts(chat: ChatRun, scores: Mapping[str, object]) -> Iterator[Part]:
    """Yield a row's runs, and the mean of each instance."""
    values: list[float] = []
    for data in run_data(chat):
        own = "none" if data["value"] is None else number(data["value"])
        if data["problem"] is None:
            values.append(data["value"])
        block = Fields("What was read of the reply", (("number", own),))
        yield run_part("judge_run", data, line=f"number {own}", block=block)
    for plan in chat.instances:
        yield _mean(plan, scores, values)


def _mean(plan: InstancePlan, scores: Mapping[str, object], values: list[float]) -> Part:
    score, reason = scores[plan.column("")], scores[plan.reason_column]
    shown = " + ".join(map(number, values))
    equation = f"({shown}) / {len(values)} = {score:.4f}" if values else f"undefined: {reason}"
    settings = plan.settings.model_dump()
    low, high = settings["scale"]
    fields = (
        ("prompt", str(settings["prompt_file"])),
        ("read", settings["read"]),
        ("scale", f"{low:g} to {high:g}"),
        ("runs that count", str(len(values))),
        (plan.name, equation),
    )
    return Part(
        kind="judge_mean",
        data={"instance": plan.name, "values": values, "score": score, "reason": reason},
        line=f"{plan.name}: {equation}",
        blocks=(Fields(f"{plan.name}, computed again from these runs", fields),),
    )


def naco_parts(chat: ChatRun, scores: Mapping[str, object]) -> Iterator[Part]:
    """Yield a row's runs, and the formula of each instance."""
    for own in run_data(chat):
        score = (chat.committed or {})["answer_f1"][own["run"] - 1]
        data = {
            **own,
            "answer_f1": score if own["key"] is not None else None,
            "gold_answer": chat.values.get("answer"),
        }
        yield run_part("naco_run", data, line=_reading_line(data), block=_reading(data))
    for plan in chat.instances:
        yield _formula(plan, scores)


def _verdict(run: Data) -> str:
    if run["is_question"] is None:
        return "no verdict"
    if not run["is_question"]:
        return "not a question"
    return "natural" if run["is_natural"] else "unnatural"


def _reading_line(run: Data) -> str:
    """Return what was read of a reply that counts, in one line."""
    if not run["is_question"]:
        return _verdict(run)
    told = f"{_verdict(run)}, {run['n_steps']} step{'' if run['n_steps'] == 1 else 's'}"
    if run["answer"] is not None:
        told += f", answer {short(run['answer'])!r}, F1 {run['answer_f1']:.4f}"
        told += f" with {short(run['gold_answer'])!r}"
    elif run["says_unanswerable"]:
        told += ", says that the passages do not answer"
    return told


def _reading(run: Data) -> Block:
    score = run["answer_f1"]
    values = [
        ("verdict", _verdict(run)),
        ("reasoning steps", _or_none(run["n_steps"])),
        ("answer", _or_none(run["answer"])),
        ("gold answer", _or_none(run["gold_answer"])),
        ("F1 of both answers", "none" if score is None else number(score)),
    ]
    if run["says_unanswerable"]:
        values.append(("passages", "do not answer it, says the reply"))
    return Fields("What was read of the reply", values)


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def _formula(plan: InstancePlan, scores: Data) -> Part:
    """Return NACo of one instance: its parts, computed again from the runs that count."""
    settings = plan.settings.model_dump()
    expected, weights = settings["expected_complexity"], list(settings["weights"].values())
    parts = {
        name: scores[plan.column(name)]
        for name in ("naturalness", "answerability", "complexity", "steps")
    }
    n, a, c, s = parts.values()
    score, reason = scores[plan.column("")], scores[plan.reason_column]
    n_counted = int(scores[plan.column("runs")] or 0)
    equation = f"undefined: {reason}" if score is None else _equation(score, (n, a, c), weights)
    letters = {"n": n, "a": a, "c": c, "s": s, "e": expected}
    shown = ", ".join(f"{name} {number(own)}" for name, own in letters.items() if own is not None)
    values = {
        "n: naturalness": n,
        "a: answerability": a,
        "s: mean steps": s,
        "e: expected steps": expected,
        "c: complexity, min(s, e) / max(s, e)": c,
    }
    fields = [
        *((name, "undefined" if own is None else number(own)) for name, own in values.items()),
        ("runs that count", str(n_counted)),
        ("profile", settings["profile"]),
        ("weights of n, a, c", ", ".join(f"{weight:g}" for weight in weights)),
        (plan.name, equation),
    ]
    return Part(
        kind="naco_formula",
        data={
            "instance": plan.name,
            "profile": settings["profile"],
            "expected_complexity": expected,
            "weights": weights,
            "n_counted": n_counted,
            **parts,
            "score": score,
            "reason": reason,
        },
        line=f"{plan.name}, profile {settings['profile']}: {shown}; {equation}",
        blocks=(Fields(f"{plan.name}, computed again from these runs", fields),),
    )


def _equation(
    score: float, parts: tuple[float | None, float | None, float | None], weights: Sequence[float]
) -> str:
    """Return how the score comes about, in numbers."""
    n, a, c = parts
    if not n or not a or c is None:
        return f"0, because {'a' if n else 'n'} = 0"
    terms = zip(weights, (n, a, c), strict=True)
    total = " + ".join(f"{weight:g} × {value:.4g}" for weight, value in terms)
    return f"({total}) / {sum(weights):g} = {score:.4f}"
