"""Ledger: what a governor must still know after it was killed.

One line of JSON for each fact, appended to ``ledger-<name>.jsonl``: calls sent, calls ended, the
end of a pause. Times are seconds since 1970: the next governor may live on another machine.

A killed process loses no line, for a line is one ``write``. A machine that dies loses lines that
were not yet on its disk, and flushing each would cost milliseconds a call. So money is taken from
the disk in blocks: before a purse's sent calls may cost more than its last ``ceiling`` line says,
the next block is written and flushed. After the death of a machine all of its block counts as
spent. One ledger holds all purses of an account.

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
from qaeval_core.llm.purses import NANO, Money

_MAX_PAUSE_S = 86_400.0
_TOTALS = ("spent", "n_settled", "n_billed_failures", "n_tokens")


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call that its caller was told to send: when, and what was reserved for it."""

    at: float  # seconds since 1970
    n_tokens: int
    nano_usd: int  # billionths of a dollar: sums of integers are exact
    purse: str = "main"


@dataclass(slots=True)
class LedgerState:
    """What a ledger says: money of each purse, calls without an end, and times.

    ``recent`` holds all calls sent in the last span, in order of time, ended or not.
    """

    money: dict[str, Money] = field(default_factory=dict)
    open: dict[str, SentCall] = field(default_factory=dict)
    recent: list[SentCall] = field(default_factory=list)
    paused_until: float = 0.0
    ceilings: dict[str, int] = field(default_factory=dict)  # by purse
    machine: str | None = None
    is_closed: bool = True
    is_after_crash: bool = False

    def of(self, purse: str) -> Money:
        """Return a purse's money."""
        return self.money.setdefault(purse, Money())


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
        Money that a purse takes from the disk at once; 0 flushes nothing for money's sake.
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
    >>> found.of("main").committed, list(found.open), len(found.recent)
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
        self._block = round(block_usd * NANO)
        self._lock = _lock(self.path.with_suffix(".lock"))
        self.found = self._read(keep_s)
        self._open = dict(self.found.open)
        self._committed = {name: money.committed for name, money in self.found.money.items()}
        self._ceilings = dict(self._committed)
        self._rewrite()
        self._file = AppendFile(self.path)

    def sent(self, call_id: str, call: SentCall) -> None:
        """Note that a caller was told to send; told again, the call counts at both times."""
        known = self._open.get(call_id)
        self._commit(call.purse, call.nano_usd - (known.nano_usd if known else 0))
        self._open[call_id] = call
        facts: list[dict[str, object]] = [{"sent": call_id, **_facts(call)}]
        committed = self._committed[call.purse]
        is_over = self._block > 0 and committed > self._ceilings.get(call.purse, 0)
        if is_over:
            facts.insert(0, self._set_ceiling(call.purse, committed + self._block))
        self._append(facts, flush=is_over)

    def settled(self, call_id: str, *, n_tokens: int, nano_usd: int) -> None:
        """Note what a call used and cost in the end."""
        call = self._open.pop(call_id, None)
        if call is not None:
            self._commit(call.purse, nano_usd - call.nano_usd)
            self._append([{"settled": call_id, "n_tokens": n_tokens, "nano_usd": nano_usd}])

    def failed(self, call_id: str, *, is_billed: bool) -> None:
        """Note that a call brought no reply; if billed, what was reserved for it is spent."""
        call = self._open.pop(call_id, None)
        if call is not None:
            self._commit(call.purse, 0 if is_billed else -call.nano_usd)
            self._append([{"failed": call_id, "is_billed": is_billed}])

    def spent(self, purse: str, *, nano_usd: int) -> None:
        """Note that more was spent than calls say: a ledger had been lost."""
        self._commit(purse, nano_usd)
        self._append([{"spent": nano_usd, "purse": purse}])

    def left(self, purse: str) -> None:
        """Note that no more calls of a purse will come: a machine's death costs it no block."""
        if self._ceilings.get(purse, 0) > self._committed.get(purse, 0):
            # On the disk before it: the calls that it counts.
            self._append([self._set_ceiling(purse, self._committed[purse])], flush=True)

    def _commit(self, purse: str, nano_usd: int) -> None:
        self._committed[purse] = self._committed.get(purse, 0) + nano_usd

    def _set_ceiling(self, purse: str, ceiling: int) -> dict[str, object]:
        self._ceilings[purse] = ceiling
        return {"ceiling": ceiling, "purse": purse}

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
            for purse, ceiling in state.ceilings.items():
                money = state.of(purse)
                money.spent += max(ceiling - money.committed, 0)
        recent = [call for call in state.recent if call.at > now - keep_s]
        state.recent = sorted(recent, key=lambda call: call.at)
        return state

    def _rewrite(self) -> None:
        """Replace the file, in one step, by the few lines that still matter."""
        found = self.found
        facts: list[dict[str, object]] = [{"machine": _machine()}]
        facts += [{"totals": _totals(money), "purse": name} for name, money in found.money.items()]
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
    return {
        "at": round(call.at, 6),
        "n_tokens": call.n_tokens,
        "nano_usd": call.nano_usd,
        "purse": call.purse,
    }


def _totals(money: Money) -> dict[str, int]:
    """Return what calls that ended add up to; those without an end have lines of their own."""
    return {name: getattr(money, name) for name in _TOTALS}


def _apply(state: LedgerState, fact: Mapping[str, Any], *, now: float) -> None:
    """Take one line into account; what it lacks raises, so that nothing is half taken."""
    if "sent" in fact or "open" in fact or "recent" in fact:
        _take_call(state, fact)
    elif "settled" in fact or "failed" in fact:
        _end_call(state, fact)
    elif "paused_until" in fact:
        # However far a clock was set back: no longer than the server had asked for.
        pause_s = min(float(fact["paused_until"]) - float(fact["at"]), _MAX_PAUSE_S)
        state.paused_until = min(float(fact["paused_until"]), now + max(pause_s, 0.0))
    elif "ceiling" in fact:
        state.ceilings[str(fact["purse"])] = int(fact["ceiling"])
    elif "spent" in fact:
        state.of(str(fact["purse"])).spent += int(fact["spent"])
    elif "totals" in fact:
        totals = {name: int(fact["totals"][name]) for name in _TOTALS}
        state.money[str(fact["purse"])] = Money(**totals)
    elif "machine" in fact:
        state.machine, state.is_closed = str(fact["machine"]), False
    else:
        state.is_closed = bool(fact["closed"])


def _take_call(state: LedgerState, fact: Mapping[str, Any]) -> None:
    at, n_tokens, nano_usd = float(fact["at"]), int(fact["n_tokens"]), int(fact["nano_usd"])
    call = SentCall(at, n_tokens, nano_usd, str(fact["purse"]))
    if "open" not in fact:
        state.recent.append(call)
    if "recent" not in fact:
        call_id = str(fact.get("sent") or fact["open"])
        if call_id not in state.open:
            state.of(call.purse).reserve(nano_usd)
        state.open[call_id] = call


def _end_call(state: LedgerState, fact: Mapping[str, Any]) -> None:
    is_settled = "settled" in fact
    cost, n_tokens = (int(fact["nano_usd"]), int(fact["n_tokens"])) if is_settled else (0, 0)
    is_billed = False if is_settled else bool(fact["is_billed"])
    call = state.open.pop(fact.get("settled") or fact["failed"], None)
    if call is None:
        return
    money = state.of(call.purse)
    if is_settled:
        money.settle(call.nano_usd, cost=cost, n_tokens=n_tokens)
    else:
        money.fail(call.nano_usd, is_billed=is_billed)


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
