"""Ledger: what a governor must still know after it was killed.

One line of JSON for each fact, appended to ``ledger-<name>.jsonl``: calls sent, calls ended, the
end of a pause, another pace. Times are seconds since 1970: the next governor may live on another
machine.

A killed process loses no line, for a line is one ``write``. A machine that dies loses lines that
were not yet on its disk, and flushing each would cost milliseconds a call. So money is taken from
the disk in blocks: before a budget's sent calls may cost more than its last ``ceiling`` line says,
the next block is written and flushed. After the death of a machine all of its block counts as
spent. One ledger holds all budgets of an account.

A line that was damaged is left out, and what it may have said counts against the run: the block
counts as spent, and a window passes, as after the death of a machine.

A run of a million calls would leave 155 MB: every so many lines the file is replaced, in one step,
by the few that say the same.

But: nothing is decided here; ``llm.governor`` does that. Replies are in ``llm.journal``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from qaeval_core.errors import RunError, StoreLockedError
from qaeval_core.llm.budget import Money
from qaeval_core.llm.limits import NANO
from qaeval_core.llm.sealed_lines import Line, fields_of, lines_of, sealed
from qaeval_core.llm.throttle import Kept
from qaeval_core.storage.files import AppendFile, expanded, make_folder, open_lock, read_own

_MAX_PAUSE_S = 86_400.0
_MAX_WHOLE = 2**63 - 1
_MAX_AT = 1e11  # seconds since 1970: in the year 5138
_TOTALS = ("spent", "n_settled", "n_billed_failures", "n_tokens")

Fact = Mapping[str, Any]


log = logging.getLogger(__name__)
# Lines that are added before the file is written anew: 4 MB, read in 0.2 s at a start.
_MAX_NEW_LINES = 50_000
_MAX_NOTES = 100


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call that its caller was told to send: when, and what was reserved for it."""

    at: float  # seconds since 1970
    n_tokens: int
    nano_usd: int  # billionths of a dollar: sums of integers are exact
    budget: str = "main"

    def facts(self) -> dict[str, object]:
        """Return what a line says of it."""
        return {
            "at": round(self.at, 6),
            "n_tokens": self.n_tokens,
            "nano_usd": self.nano_usd,
            "purse": self.budget,  # Its name in ledgers since the first of them.
        }


@dataclass(slots=True)
class LedgerState:
    """What a ledger says: money of each budget, calls without an end, and times.

    Made of its lines, one after the other, and written as few of them. A fact is believed as far as
    it can be: types and ranges.

    ``recent`` holds all calls sent in the last span, in order of time, ended or not.
    """

    money: dict[str, Money] = field(default_factory=dict)
    open: dict[str, SentCall] = field(default_factory=dict)
    recent: list[SentCall] = field(default_factory=list)
    paused_until: float = 0.0
    ceilings: dict[str, int] = field(default_factory=dict)  # by budget
    pace: Kept | None = None
    machine: str | None = None
    is_closed: bool = True
    is_after_crash: bool = False

    def of(self, budget: str) -> Money:
        """Return a budget's money."""
        found = self.money.get(budget)
        if found is None:
            found = self.money[budget] = Money()
        return found

    def copy(self) -> LedgerState:
        """Return a state that changes alone."""
        return replace(
            self,
            money={name: replace(money) for name, money in self.money.items()},
            open=dict(self.open),
            recent=list(self.recent),
            ceilings=dict(self.ceilings),
        )

    def take(self, fact: Fact, *, now: float) -> None:
        """Take one line into account; what it lacks raises, so that nothing is half taken.

        Raises
        ------
        ValueError, LookupError
            If the line is no fact.
        """
        if "sent" in fact or "open" in fact or "recent" in fact:
            self._take_call(fact)
        elif "settled" in fact or "failed" in fact:
            self._end_call(fact)
        elif "paused_until" in fact:
            # However far a clock was set back: no longer than the server had asked for.
            until, at = _time(fact, "paused_until"), _time(fact, "at")
            pause_s = min(until - at, _MAX_PAUSE_S)
            self.paused_until = min(until, now + max(pause_s, 0.0))
        elif "pace" in fact:
            self.pace = Kept.checked(fact["pace"])
        elif "ceiling" in fact:
            self.ceilings[_name(fact, "purse")] = _whole(fact, "ceiling")
        elif "spent" in fact:
            self.of(_name(fact, "purse")).spent += _whole(fact, "spent")
        elif "totals" in fact:
            totals = {name: _whole(fact["totals"], name) for name in _TOTALS}
            self.money[_name(fact, "purse")] = Money(**totals)
        elif "committed" in fact:
            # More than the lines before it say: one of them was damaged.
            money = self.of(_name(fact, "purse"))
            money.spent += max(_whole(fact, "committed") - money.committed, 0)
        elif "machine" in fact:
            self.machine, self.is_closed = _name(fact, "machine"), False
        else:
            self.is_closed = _truth(fact, "closed")

    def _take_call(self, fact: Fact) -> None:
        call = SentCall(
            _time(fact, "at"),
            _whole(fact, "n_tokens"),
            _whole(fact, "nano_usd"),
            _name(fact, "purse"),
        )
        if "recent" in fact:
            self.recent.append(call)
        elif "open" in fact:
            self._open(_name(fact, "open"), call)
        else:
            self.begin(_name(fact, "sent"), call)

    def _end_call(self, fact: Fact) -> None:
        if "settled" in fact:
            cost, n_tokens = _whole(fact, "nano_usd"), _whole(fact, "n_tokens")
            self.settle(_name(fact, "settled"), cost=cost, n_tokens=n_tokens)
        else:
            self.fail(_name(fact, "failed"), is_billed=_truth(fact, "is_billed"))

    def begin(self, call_id: str, call: SentCall) -> None:
        """Take a call that was sent, perhaps for the second time."""
        self.recent.append(call)
        self._open(call_id, call)

    def _open(self, call_id: str, call: SentCall) -> None:
        if call_id not in self.open:
            self.of(call.budget).reserve(call.nano_usd)
        self.open[call_id] = call

    def settle(self, call_id: str, *, cost: int, n_tokens: int) -> None:
        """End a call that brought a reply; one that has ended is left as it is."""
        call = self.open.pop(call_id, None)
        if call is not None:
            self.of(call.budget).settle(call.nano_usd, cost=cost, n_tokens=n_tokens)

    def fail(self, call_id: str, *, is_billed: bool) -> None:
        """End a call without a reply; one that has ended is left as it is."""
        call = self.open.pop(call_id, None)
        if call is not None:
            self.of(call.budget).fail(call.nano_usd, is_billed=is_billed)

    def forget_until(self, at: float) -> None:
        """Forget when calls were sent that no limit counts any more."""
        recent = [call for call in self.recent if call.at > at]
        self.recent = sorted(recent, key=lambda call: call.at)

    def facts(self, *, now: float) -> Iterator[Fact]:
        """Yield the facts, but for the machine, from which all this can be read again."""
        for name, money in self.money.items():
            # Calls without an end have lines of their own.
            totals = {total: getattr(money, total) for total in _TOTALS}
            yield {"totals": totals, "purse": name}
        for name, ceiling in self.ceilings.items():
            yield {"ceiling": ceiling, "purse": name}
        yield {"paused_until": self.paused_until, "at": now}
        if self.pace is not None:
            yield {"pace": asdict(self.pace)}
        for call in self.recent:
            yield {"recent": True, **call.facts()}
        for call_id, call in self.open.items():
            yield {"open": call_id, **call.facts()}
        for name, money in self.money.items():
            # Once more: a damaged line must not give a budget back.
            yield {"committed": money.committed, "purse": name}


def _whole(fact: Fact, name: str) -> int:
    value = fact[name] if isinstance(fact, Mapping) else None
    if type(value) is not int or not 0 <= value <= _MAX_WHOLE:
        raise ValueError(f"{name} is no count")
    return value


def _time(fact: Fact, name: str) -> float:
    value = fact[name]
    # NaN compares false; an int of a thousand digits is compared without being converted.
    if type(value) not in (int, float) or not abs(value) < _MAX_AT:
        raise ValueError(f"{name} is no time")
    return float(value)


def _name(fact: Fact, name: str) -> str:
    value = fact[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _truth(fact: Fact, name: str) -> bool:
    value = fact[name]
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")
    return value


def ledger_folder(given: str | None) -> Path:
    """Return where ledgers lie on the machine that asks.

    Parameters
    ----------
    given : str or None
        A folder; None takes one in the user's cache.

    Examples
    --------
    >>> ledger_folder("/data/ledgers").as_posix()
    '/data/ledgers'
    >>> ledger_folder(None).parts[-3:]
    ('.cache', 'qaeval', 'ledgers')
    """
    return expanded(given or "~/.cache/qaeval/ledgers", instead="ledger_path")


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
        Money that a budget takes from the disk at once; 0 flushes nothing for money's sake.
    wall : callable, default time.time
        Seconds since 1970.
    section : str, default ""
        Of the settings that messages name, with its dot.

    Attributes
    ----------
    found : LedgerState
        What it said when it was opened.
    notes : list of str
        Lines that could not be read; warned of as well.

    Raises
    ------
    StoreLockedError
        If another process holds it.
    RunError
        If it cannot be kept there; from the other methods, if it cannot be written.

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
        section: str = "",
    ) -> None:
        self.path = folder / f"ledger-{name}.jsonl"
        self.notes: list[str] = []
        self._wall = wall
        self._keep_s = keep_s
        self._block = round(block_usd * NANO)
        try:
            make_folder(folder, is_private=True)
            self._lock = _lock(self.path.with_suffix(".lock"))
        except OSError as error:
            raise _refusal(folder, error.strerror, section) from None
        try:
            self._start()
        except (OSError, RunError) as error:
            os.close(self._lock)  # Or the next try would find it held by another.
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise _refusal(folder, why, section) from None

    def _start(self) -> None:
        self.found = self._read()
        # What the lines say by now; ``found`` is its reader's.
        self._state = self.found.copy()
        # What is on the disk once it is written anew, below.
        self._state.ceilings = {}
        self._first = {name: money.committed for name, money in self.found.money.items()}
        self._file = AppendFile(self.path)
        self._rewrite()

    def sent(self, call_id: str, call: SentCall) -> None:
        """Note that a caller was told to send; told again, the call counts at both times."""
        facts: list[Fact] = [{"sent": call_id, **call.facts()}]
        is_known = call_id in self._state.open
        committed = self._state.of(call.budget).committed + (0 if is_known else call.nano_usd)
        ceiling = self._state.ceilings.get(call.budget, self._first.get(call.budget, 0))
        is_over = self._block > 0 and committed > ceiling
        if is_over:
            ceiling = committed + self._block
            facts.insert(0, {"ceiling": ceiling, "purse": call.budget})
        self._write(facts, flush=is_over)
        if is_over:
            self._state.ceilings[call.budget] = ceiling
        self._state.begin(call_id, call)

    def settled(self, call_id: str, *, n_tokens: int, nano_usd: int) -> None:
        """Note what a call used and cost in the end."""
        if call_id in self._state.open:
            self._write([{"settled": call_id, "n_tokens": n_tokens, "nano_usd": nano_usd}])
            self._state.settle(call_id, cost=nano_usd, n_tokens=n_tokens)

    def failed(self, call_id: str, *, is_billed: bool) -> None:
        """Note that a call brought no reply; if billed, what was reserved for it is spent."""
        if call_id in self._state.open:
            self._write([{"failed": call_id, "is_billed": is_billed}])
            self._state.fail(call_id, is_billed=is_billed)

    def spent(self, budget: str, *, nano_usd: int) -> None:
        """Note that more was spent than calls say: a ledger had been lost."""
        self._append({"spent": nano_usd, "purse": budget})
        # Said again in sum: no ceiling covers it, if its line is damaged.
        self._append({"committed": self._state.of(budget).committed, "purse": budget})

    def left(self, budget: str) -> None:
        """Note that no more calls of a budget will come: a machine's death costs it no block."""
        if budget in self._state.ceilings:
            committed = self._state.of(budget).committed
            if self._state.ceilings[budget] > committed:
                # On the disk before it: the calls that it counts.
                self._append({"ceiling": committed, "purse": budget}, flush=True)

    def paused(self, until: float) -> None:
        """Note when the server wants to hear from us again, and flush it."""
        self._append({"paused_until": until, "at": self._wall()}, flush=True)

    def paced(self, kept: Kept) -> None:
        """Note that calls are sent at another pace."""
        self._append({"pace": asdict(kept)})

    def close(self) -> None:
        """Flush, and let the next governor in."""
        self._append({"closed": True}, flush=True)
        self._file.close()
        os.close(self._lock)

    def _append(self, fact: Fact, *, flush: bool = False) -> None:
        self._write([fact], flush=flush)
        self._state.take(fact, now=self._wall())

    def _write(self, facts: list[Fact], *, flush: bool = False) -> None:
        # Before it is too long: where the last window alone is longer, less often.
        if self._n_new_lines >= max(_MAX_NEW_LINES, len(self._state.recent) // 2):
            self._rewrite()
        self._file.append("".join(map(sealed, facts)))
        self._n_new_lines += len(facts)
        if flush:
            self._file.flush()

    def _read(self) -> LedgerState:
        state, now = LedgerState(), self._wall()
        has_damage = False
        for number, line in enumerate(self._lines(), start=1):
            try:
                state.take(fields_of(line), now=now)
            except LookupError:
                continue  # A fact that a newer version wrote: whole, and none of ours.
            except ValueError:
                has_damage = True
                self._note(f"line {number} is {'torn' if line.is_torn else 'damaged'}, ignored")
        state.is_after_crash = has_damage or not (state.is_closed or state.machine == _machine())
        if has_damage:
            self._note("the missing part counts as spent, and one window passes first")
        if state.is_after_crash:
            for budget, ceiling in state.ceilings.items():
                money = state.of(budget)
                money.spent += max(ceiling - money.committed, 0)
        state.forget_until(now - self._keep_s)
        return state

    def _lines(self) -> Iterator[Line]:
        if os.path.lexists(self.path):
            with read_own(self.path) as file:
                yield from lines_of(file)

    def _note(self, what: str) -> None:
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(f"{self.path.name}: {what}")
            log.warning("%s: %s", self.path, what)

    def _rewrite(self) -> None:
        """Replace the file, in one step, by the few lines that still matter."""
        now = self._wall()
        self._state.forget_until(now - self._keep_s)
        facts = [{"machine": _machine()}, *self._state.facts(now=now)]
        self._file.rewrite(map(sealed, facts))
        self._n_new_lines = 0


def _refusal(folder: Path, why: str | None, section: str) -> RunError:
    return RunError(
        f"cannot keep the record of calls in {folder}: {why} ({section}ledger_path) [QA0606]"
    )


def _machine() -> str:
    """Name this machine since its last start: another name means that it may have died."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip() if boot.exists() else f"{psutil.boot_time():.0f}"
    return f"{socket.gethostname()} {started}"


def _lock(path: Path) -> int:
    """Return the open lock file; the lock ends with the process, however that ends."""
    file = open_lock(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(file, 200).decode(errors="replace").strip()
        os.close(file)
        raise StoreLockedError(
            f"another process holds {path.with_suffix('.jsonl')} ({holder}) [QA0607]"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return file
