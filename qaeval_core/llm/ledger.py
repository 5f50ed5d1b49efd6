"""Ledger: what a governor must still know after it was killed.

One line of JSON for each fact, appended to ``ledger-<name>.jsonl``: calls sent, calls ended, the
end of a pause. Times are seconds since 1970: the next governor may live on another machine.

A killed process loses no line, for a line is one ``write``. A machine that dies loses lines that
were not yet on its disk, and flushing each would cost milliseconds a call. So money is taken from
the disk in blocks: before sent calls may cost more than the last ``ceiling`` line says, the next
block is written and flushed. After the death of a machine all of its block counts as spent.

But: nothing is decided here; ``llm.governor`` does that. Replies are in ``llm.journal``.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from qaeval_core.errors import StoreLockedError
from qaeval_core.llm.append import AppendFile, flush_folder

_MAX_PAUSE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call that its caller was told to send: when, and what was reserved for it."""

    at: float  # seconds since 1970
    n_tokens: int
    nano_usd: int  # billionths of a dollar: sums of integers are exact


@dataclass(slots=True)
class LedgerState:
    """What a ledger says: money spent by calls that ended, calls without an end, and times.

    ``recent`` holds all calls sent in the last span, in order of time, ended or not.
    """

    spent_nano_usd: int = 0
    n_settled: int = 0
    n_billed_failures: int = 0
    n_tokens: int = 0
    open: dict[str, SentCall] = field(default_factory=dict)
    recent: list[SentCall] = field(default_factory=list)
    paused_until: float = 0.0
    ceiling_nano_usd: int = 0
    machine: str | None = None
    is_closed: bool = True
    is_after_crash: bool = False

    @property
    def committed_nano_usd(self) -> int:
        """Money spent, and reserved by open calls."""
        return self.spent_nano_usd + sum(call.nano_usd for call in self.open.values())


class Ledger:
    """The facts of one governor; one process at a time may hold it.

    Parameters
    ----------
    folder : Path
        The journal's folder; made if it is not there.
    name : str, default "main"
        Tells governors that share the folder apart.
    keep_s : float, default 60
        How long a call that was sent matters to the limits: their span.
    block_usd : float, default 0
        Money taken from the disk at once; 0 flushes nothing for money's sake.
    wall : callable, default time.time
        Seconds since 1970.

    Attributes
    ----------
    found : LedgerState
        What it said when it was opened.
    notes : list of str
        Lines that could not be read.

    Raises
    ------
    StoreLockedError
        If another process holds it.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> ledger = Ledger(folder, wall=lambda: 1000.0)
    >>> ledger.sent("a-1", SentCall(at=999.0, n_tokens=300, nano_usd=2_000))
    >>> ledger.close()
    >>> found = Ledger(folder, wall=lambda: 1001.0).found
    >>> found.committed_nano_usd, list(found.open), len(found.recent)
    (2000, ['a-1'], 1)
    """

    def __init__(
        self,
        folder: Path,
        name: str = "main",
        *,
        keep_s: float = 60.0,
        block_usd: float = 0.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"ledger-{name}.jsonl"
        self.notes: list[str] = []
        self._wall = wall
        self._block = round(block_usd * 1e9)
        self._lock = _lock(self.path.with_suffix(".lock"))
        self.found = self._read(keep_s)
        self._open = {call_id: call.nano_usd for call_id, call in self.found.open.items()}
        self._committed = self._ceiling = self.found.committed_nano_usd
        self._rewrite()
        self._file = AppendFile(self.path)

    def sent(self, call_id: str, call: SentCall) -> None:
        """Note that a caller was told to send; told again, the call counts at both times."""
        self._committed += call.nano_usd - self._open.get(call_id, 0)
        self._open[call_id] = call.nano_usd
        facts: list[dict[str, object]] = [{"sent": call_id, **_facts(call)}]
        is_over = self._block > 0 and self._committed > self._ceiling
        if is_over:
            self._ceiling = self._committed + self._block
            facts.insert(0, {"ceiling": self._ceiling})
        self._append(facts, flush=is_over)

    def settled(self, call_id: str, *, n_tokens: int, nano_usd: int) -> None:
        """Note what a call used and cost in the end."""
        self._committed += nano_usd - self._open.pop(call_id, 0)
        self._append([{"settled": call_id, "n_tokens": n_tokens, "nano_usd": nano_usd}])

    def failed(self, call_id: str, *, is_billed: bool) -> None:
        """Note that a call brought no reply; if billed, what was reserved for it is spent."""
        reserved = self._open.pop(call_id, 0)
        self._committed -= 0 if is_billed else reserved
        self._append([{"failed": call_id, "is_billed": is_billed}])

    def paused(self, until: float) -> None:
        """Note when the server wants to hear from us again, and flush it."""
        self._append([{"paused_until": until, "at": self._wall()}], flush=True)

    def close(self) -> None:
        """Flush, and let the next governor in."""
        self._append([{"closed": True}], flush=True)
        self._file.close()
        os.close(self._lock)

    def _append(self, facts: list[dict[str, object]], *, flush: bool = False) -> None:
        self._file.append("".join(map(_line, facts)))
        if flush:
            self._file.flush()

    def _read(self, keep_s: float) -> LedgerState:
        state, now = LedgerState(), self._wall()
        content = self.path.read_bytes() if self.path.exists() else b""
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                _apply(state, json.loads(line), now=now)
            except (ValueError, KeyError, TypeError):
                self.notes.append(f"{self.path.name}: line {number} is torn, ignored")
        state.is_after_crash = not state.is_closed and state.machine != _machine()
        if state.is_after_crash:
            lost = state.ceiling_nano_usd - state.committed_nano_usd
            state.spent_nano_usd += max(lost, 0)
        recent = [call for call in state.recent if call.at > now - keep_s]
        state.recent = sorted(recent, key=lambda call: call.at)
        return state

    def _rewrite(self) -> None:
        """Replace the file, in one step, by the few lines that still matter."""
        found = self.found
        totals = {
            "spent_nano_usd": found.spent_nano_usd,
            "n_settled": found.n_settled,
            "n_billed_failures": found.n_billed_failures,
            "n_tokens": found.n_tokens,
        }
        facts: list[dict[str, object]] = [{"totals": totals, "machine": _machine()}]
        facts += [{"paused_until": found.paused_until, "at": self._wall()}]
        facts += [{"recent": True, **_facts(call)} for call in found.recent]
        facts += [{"open": call_id, **_facts(call)} for call_id, call in found.open.items()]
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(map(_line, facts))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        flush_folder(self.path.parent)


def _line(fact: Mapping[str, object]) -> str:
    return json.dumps(fact, separators=(",", ":")) + "\n"


def _facts(call: SentCall) -> dict[str, object]:
    return {"at": round(call.at, 6), "n_tokens": call.n_tokens, "nano_usd": call.nano_usd}


def _apply(state: LedgerState, fact: Mapping[str, Any], *, now: float) -> None:
    """Take one line into account; what it lacks raises, so that nothing is half taken."""
    if "sent" in fact or "open" in fact or "recent" in fact:
        call = SentCall(float(fact["at"]), int(fact["n_tokens"]), int(fact["nano_usd"]))
        if "open" not in fact:
            state.recent.append(call)
        if "recent" not in fact:
            state.open[fact.get("sent") or fact["open"]] = call
    elif "settled" in fact or "failed" in fact:
        _end(state, fact)
    elif "paused_until" in fact:
        # However far a clock was set back: no longer than the server had asked for.
        pause_s = min(float(fact["paused_until"]) - float(fact["at"]), _MAX_PAUSE_S)
        state.paused_until = min(float(fact["paused_until"]), now + max(pause_s, 0.0))
    elif "ceiling" in fact:
        state.ceiling_nano_usd = int(fact["ceiling"])
    elif "totals" in fact:
        state.machine, state.is_closed = str(fact["machine"]), False
        for name, value in fact["totals"].items():
            setattr(state, name, int(value))
    else:
        state.is_closed = bool(fact["closed"])


def _end(state: LedgerState, fact: Mapping[str, Any]) -> None:
    call_id = fact.get("settled") or fact["failed"]
    is_settled, is_billed = "settled" in fact, bool(fact.get("is_billed"))
    cost = int(fact["nano_usd"]) if is_settled else None
    n_tokens = int(fact["n_tokens"]) if is_settled else 0
    call = state.open.pop(call_id, None)
    if call is None:
        return
    state.n_settled += is_settled
    state.n_billed_failures += is_billed
    state.n_tokens += n_tokens
    if cost is not None:
        state.spent_nano_usd += cost
    elif is_billed:
        state.spent_nano_usd += call.nano_usd


def _machine() -> str:
    """Name this machine since its last start: another name means that it may have died."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip() if boot.exists() else f"{psutil.boot_time():.0f}"
    return f"{socket.gethostname()} {started}"


def _lock(path: Path) -> int:
    """Return the open lock file; the lock ends with the process, however that ends."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(file, 200).decode(errors="replace").strip()
        os.close(file)
        raise StoreLockedError(
            f"{path.with_suffix('.jsonl')} is held by another governor ({holder})"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return file
