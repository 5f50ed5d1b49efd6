"""Ledger's state: what the lines of a ledger say, one after the other, and in as few as possible.

Facts, which are lines of JSON, in; money, open calls and times out, and back into facts. A fact is
believed as far as it can be: types and ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from qaeval_core.llm.purses import Money
from qaeval_core.llm.throttle import Kept

_MAX_PAUSE_S = 86_400.0
_MAX_WHOLE = 2**63 - 1
_MAX_AT = 1e11  # seconds since 1970: in the year 5138
_TOTALS = ("spent", "n_settled", "n_billed_failures", "n_tokens")

Fact = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call that its caller was told to send: when, and what was reserved for it."""

    at: float  # seconds since 1970
    n_tokens: int
    nano_usd: int  # billionths of a dollar: sums of integers are exact
    purse: str = "main"

    def facts(self) -> dict[str, object]:
        """Return what a line says of it."""
        return {
            "at": round(self.at, 6),
            "n_tokens": self.n_tokens,
            "nano_usd": self.nano_usd,
            "purse": self.purse,
        }


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
    pace: Kept | None = None
    machine: str | None = None
    is_closed: bool = True
    is_after_crash: bool = False

    def of(self, purse: str) -> Money:
        """Return a purse's money."""
        found = self.money.get(purse)
        if found is None:
            found = self.money[purse] = Money()
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
            self.of(call.purse).reserve(call.nano_usd)
        self.open[call_id] = call

    def settle(self, call_id: str, *, cost: int, n_tokens: int) -> None:
        """End a call that brought a reply; one that has ended is left as it is."""
        call = self.open.pop(call_id, None)
        if call is not None:
            self.of(call.purse).settle(call.nano_usd, cost=cost, n_tokens=n_tokens)

    def fail(self, call_id: str, *, is_billed: bool) -> None:
        """End a call without a reply; one that has ended is left as it is."""
        call = self.open.pop(call_id, None)
        if call is not None:
            self.of(call.purse).fail(call.nano_usd, is_billed=is_billed)

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
