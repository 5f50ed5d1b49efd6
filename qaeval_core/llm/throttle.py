"""Throttle: the share of the limits that calls use, by what a server answers.

Ends of calls in; a pace in (0, 1], as a share of the limits, out. A server refuses calls for
reasons of its own, whatever the pace: cut by each refusal, the pace would never come back. So it
follows the share of refusals, and whether that share depends on the pace.

Detection
    A cumulative sum (Page 1954) of log likelihood ratios: each call that is sent counts against
    the share ``p1``, each refusal for it, and the sum passes a bound where ``p1 > p0`` explains
    the calls much better. Until something is known 12 % is noise (``p0``); after a cut it is what
    is refused well below the pace that was cut. Calls count when they are sent: a refusal is heard
    at once, a reply seconds later, and whoever counted replies would take the first for all.
Cut and recovery
    CUBIC (RFC 9438): what the server bore becomes the plateau ``top``, the pace is cut to 0.7 of
    it, returns quickly, stays long near the plateau, and goes beyond it faster and faster::

        pace(t) = top (1 + (t - K)^3),   K = 0.3^(1/3),   t in windows since the cut

    so it is back at the plateau after 0.7 windows, and at twice the plateau after 1.7.
Noise
    Calls that are sent below 0.85 of the plateau tell what is refused whatever the pace. If that is
    as much as before the cut, the pace was not the cause: it grows on, and so much is noise from
    then on.
Outage
    Five ends without an answer, when answers are overdue, or twelve, and hardly any call without
    an end: nothing is sent but probes, at growing intervals, until one is answered; then the pace
    goes on where it was. (Adaptive client throttling, from the book on site reliability, sends
    less by chance as fewer calls are accepted; here one call asks for all.) A server that answers
    429 to all, or 503 once more within a window, has used up a quota: the pace is halved as well.

What it costs, by the simulation of the tests at a limit of 1,200: where the server's capacity is
half of it, 96 to 99 % of that is used and 1 % of calls are refused. To find out that capacity has
returned takes some refusals a window: 3 % of calls at a limit of 300, more at smaller ones.

Where an account has no limits there is nothing to take a share of: only outages count.

But: when a call is sent is ``llm.schedule``'s, and a pause that a server asks for is heeded there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# answered: by a reply, or an error of the request's own. refused: 429; told, if it says how long.
# overloaded: 503. faulty: another error, a broken connection, or no answer.
End = Literal["answered", "refused", "told", "overloaded", "faulty"]
REFUSALS: frozenset[End] = frozenset({"refused", "told", "overloaded"})

_CUT = 0.7
_BELOW = 0.85
_PLATEAU_AT = (1.0 - _CUT) ** (1 / 3)  # K, in windows since the cut
_LEAVES_AT = _PLATEAU_AT - (1.0 - _BELOW) ** (1 / 3)
_MIN_PACE = 1 / 64
# Refused shares: noise, as long as nothing is known; p0 = a known share times, and plus, these.
_NOISE = 0.12
_SLACK = (1.2, 0.01)
# p1 - p0, and the sum's bound, while the whole of the limits is used and while less is: there a
# false alarm costs a third of the pace for half a window, here a late one is many refusals.
_EXCESS = {True: 0.13, False: 0.06}
_BOUND = {True: 10.0, False: 5.0}
# A refusal that says how long all are to wait is no noise.
_TOLD_WEIGHT = 2
_MIN_BELOW = 30  # calls that tell the share below the plateau
_MAX_KNOWN = 500  # calls that are remembered of it
_DOUBT = 10  # calls that were not refused, added to what tells the share to cut by
# A server that was asked too much refuses a little longer: so long after a cut nothing is learned.
_SETTLE_SHARE = 1 / 30
_MAX_NOISE = 0.8
_SURPRISE = 2.3  # standard deviations
# Ends without an answer in a row, and their share of what was sent since: where an answer is
# overdue, by what answers took so far, and where it is not.
_STREAK = {True: (5, 0.5), False: (12, 0.9)}
_OVERDUE = 2.0
_LEARN_SHARE = 1 / 16
_FIRST_GAP_SHARE = 1 / 240
_MAX_GAP_SHARE = 1 / 12


@dataclass(slots=True)
class Share:
    """Calls, and how many of them were refused."""

    n: float = 0.0
    n_refused: float = 0.0

    @property
    def refused(self) -> float:
        """The share of refusals."""
        return self.n_refused / self.n if self.n else 0.0

    def add(self, *, is_refused: bool) -> None:
        """Count a call."""
        self.n += 1
        self.n_refused += is_refused


_PRIOR = Share(10.0, 0.2)


@dataclass(slots=True)
class Sent:
    """A call that was told to be sent: its place in the order, when, and what was refused of it."""

    number: int
    at_s: float
    weight: int = 0  # of its refusal
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """What a successor must know; ``since_s`` is when the curve began."""

    top: float
    since_s: float
    is_open: bool
    n_known: float
    n_known_refused: float

    @classmethod
    def checked(cls, fact: Mapping[str, Any]) -> Kept:
        """Return what a file says.

        Raises
        ------
        ValueError
            If it cannot be.
        """
        try:
            kept = cls(**fact)
            is_right = (
                _MIN_PACE <= kept.top <= 1.0
                and 1.0 <= kept.n_known < math.inf
                and 0.0 <= kept.n_known_refused <= kept.n_known
                and math.isfinite(kept.since_s)
                and isinstance(kept.is_open, bool)
            )
        except (TypeError, OverflowError):
            is_right = False
        if not is_right:
            raise ValueError(f"no pace: {fact}")
        return kept


class Throttle:
    """The pace of calls, and whether there is an outage.

    Parameters
    ----------
    window_s : float
        Seconds in which the limits count.

    Examples
    --------
    A server refuses half of the calls: it can do half of the limit, and a bit less is sent.

    >>> throttle = Throttle(window_s=60.0)
    >>> def call(number: int) -> bool:
    ...     sent = throttle.sent(number / 20)
    ...     end = "refused" if number % 2 else "answered"
    ...     return throttle.heard(sent, end, now_s=number / 20 + 0.01)
    >>> n_until_cut = next(number for number in range(1000) if call(number))
    >>> n_until_cut < 60, 0.35 < throttle.pace(n_until_cut / 20) < 0.5
    (True, True)
    """

    def __init__(self, *, window_s: float) -> None:
        self._window_s = window_s
        self._is_open = True  # Nothing is known against the whole of the limits.
        self._top = 1.0
        self._since_s = 0.0
        self._is_below = False
        self._below = Share()
        self._known = Share(_PRIOR.n, _PRIOR.n_refused)
        self._scored = Share()
        self._score = 0.0
        self._n_sent = 0
        self._n_before = 0  # sent at another pace: nothing is learned of them
        self._uncounted: deque[Sent] = deque()
        # What an answer and a refusal take, about.
        self._answer_s = self._refusal_s = window_s / 60
        self._streak: list[End] = []
        self._first: Sent | None = None
        self._gap_s: float | None = None
        self._probe_s = self._cut_s = self._resumed_s = -math.inf
        self._silent_since_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the limits are used in full."""
        return self._is_open and self._gap_s is None

    @property
    def probe_s(self) -> float | None:
        """When the next probe may be sent; None while there is no outage."""
        return None if self._gap_s is None else self._probe_s

    def silent_s(self, now_s: float) -> float:
        """Return how long the outage has lasted; 0 without one."""
        return max(now_s - self._silent_since_s, 1e-3) if self._silent_since_s is not None else 0.0

    def excuse(self, seconds: float) -> None:
        """Take it that a server that asked for a pause is silent for as long."""
        if self._silent_since_s is not None:
            self._silent_since_s += seconds

    def pace(self, at_s: float) -> float:
        """Return the share of the limits that is used at a time."""
        if self._is_open:
            return 1.0
        if self._silent_since_s is not None:
            at_s = self._silent_since_s  # An outage is no time in which the server bore more.
        t = max(at_s - self._since_s, 0.0) / self._window_s
        beyond: float = (t - _PLATEAU_AT) ** 3
        return min(max(self._top * (1.0 + beyond), _MIN_PACE), 1.0)

    def sent(self, at_s: float) -> Sent:
        """Take notice of a call that is told to be sent at a time."""
        self._n_sent += 1
        sent = Sent(self._n_sent, at_s)
        if self._gap_s is not None:
            self._probe_s = at_s + self._gap_s
            self._gap_s = min(2.0 * self._gap_s, _MAX_GAP_SHARE * self._window_s)
        elif at_s >= self._cut_s + _SETTLE_SHARE * self._window_s:
            self._note_pace(at_s)
            self._uncounted.append(sent)
        return sent

    def heard(self, sent: Sent, end: End, *, now_s: float) -> bool:
        """Take notice of a call's end; return whether the pace is another one now."""
        is_outage = self._count_streak(sent, end, now_s=now_s)
        if sent.number <= self._n_before:
            return False
        if self._gap_s is not None:
            return end == "answered" and self._resume(now_s)
        if is_outage:
            self._begin_outage(now_s)
            return True
        if end in REFUSALS:
            self._refusal_s += _LEARN_SHARE * (now_s - sent.at_s - self._refusal_s)
            sent.weight = _TOLD_WEIGHT if end == "told" else 1
            if sent.is_counted:  # As a reply, for it took so long.
                self._count(sent.weight)
        is_excess = self._count_until(now_s - _OVERDUE * self._refusal_s)
        if is_excess:
            self._cut(now_s)
        return is_excess

    def kept(self) -> Kept:
        """Return what a successor must know."""
        known = self._known
        return Kept(self._top, self._since_s, self._is_open, known.n, known.n_refused)

    def take_over(self, kept: Kept, *, now_s: float) -> None:
        """Go on where a predecessor was."""
        self._top, self._is_open = kept.top, kept.is_open
        self._since_s = min(kept.since_s, now_s)  # A clock may have been set back.
        self._known = Share(kept.n_known, kept.n_known_refused)
        self._is_below = self._is_below_plateau(now_s)

    def _noise(self) -> float:
        """Return p0: the share of refusals that is taken for noise."""
        factor, slack = _SLACK
        noise = min(factor * self._known.refused + slack, _MAX_NOISE)
        return max(noise, _NOISE) if self._is_open else noise

    def _count_until(self, until_s: float) -> bool:
        """Count the calls that were sent until then; return whether the pace is too high."""
        waiting = self._uncounted
        while waiting and waiting[0].at_s <= until_s and self._score < _BOUND[self._is_open]:
            sent = waiting.popleft()
            sent.is_counted = True
            if self._is_below_plateau(sent.at_s):
                self._below.add(is_refused=sent.weight > 0)
            self._count(sent.weight)
        return self._score >= _BOUND[self._is_open]

    def _count(self, weight: int) -> None:
        p0 = self._noise()
        p1 = p0 + _EXCESS[self._is_open]
        if weight:
            self._score += weight * math.log(p1 / p0)
        else:
            self._score += math.log((1.0 - p1) / (1.0 - p0))
        self._scored.add(is_refused=weight > 0)
        if self._score <= 0.0:
            self._score, self._scored = 0.0, Share()

    def _is_below_plateau(self, at_s: float) -> bool:
        return not self._is_open and self.pace(at_s) <= _BELOW * self._top

    def _note_pace(self, at_s: float) -> None:
        """Learn what is refused below the plateau; find out whether the whole limit is used."""
        if self._is_open or self._is_below_plateau(at_s):
            return
        if self._is_below:
            if self._below.n < _MIN_BELOW:
                # Not enough calls to tell: stay there.
                self._since_s = at_s - _LEAVES_AT * self._window_s
                return
            self._is_below = False
            self._learn_noise()
        if self.pace(at_s) >= 1.0:
            self._is_open = True
            self._score, self._scored = 0.0, Share()

    def _learn_noise(self) -> None:
        below, known = self._below, self._known
        spread = math.sqrt(below.n * known.refused * (1.0 - known.refused))
        if below.n_refused < below.n * known.refused - _SURPRISE * spread:
            # What was thought to be noise went with the pace.
            known = _PRIOR
        keep = min(1.0, _MAX_KNOWN / known.n)
        self._known = Share(keep * known.n + below.n, keep * known.n_refused + below.n_refused)

    def _cut(self, now_s: float) -> None:
        """Cut the pace by the share that is refused."""
        pace, scored = self.pace(now_s), self._scored
        # Of few calls that were looked at because they were refused, the share is too large.
        excess = max(scored.n_refused / (scored.n + _DOUBT) - self._known.refused, 0.0)
        if self._is_open or self._is_below:
            # It may be noise: what is refused after the cut will tell.
            self._known = scored
            top = pace * max(1.0 - excess, 0.5)
        else:
            top = pace * max(1.0 - excess, _BELOW)
        self._begin(top, now_s)

    def _begin(self, top: float, now_s: float) -> None:
        """Begin a curve."""
        self._top, self._since_s, self._cut_s = max(top, _MIN_PACE), now_s, now_s
        self._is_open, self._is_below = False, True
        self._below = Share()
        self._forget()

    def _forget(self) -> None:
        """Learn nothing of what was sent until now."""
        self._n_before = self._n_sent
        self._uncounted.clear()
        self._score, self._scored = 0.0, Share()

    def _count_streak(self, sent: Sent, end: End, *, now_s: float) -> bool:
        """Return whether nothing is answered any more."""
        if end == "answered":
            self._answer_s += _LEARN_SHARE * (now_s - sent.at_s - self._answer_s)
            if self._first is None or sent.number >= self._first.number:
                self._first = None
                self._streak.clear()
            return False
        if self._first is None or sent.number < self._first.number:
            self._first = sent
        self._streak.append(end)
        is_overdue = now_s - self._first.at_s > _OVERDUE * self._answer_s
        n_least, least_share = _STREAK[is_overdue]
        n_since = self._n_sent - self._first.number + 1
        return len(self._streak) >= max(n_least, least_share * n_since)

    def _begin_outage(self, now_s: float) -> None:
        """Send probes alone; halve the pace as well if it is a quota that is used up."""
        n_refused = sum(end in REFUSALS for end in self._streak)
        n_quota = sum(end in ("refused", "told") for end in self._streak)
        is_again = now_s - self._resumed_s < self._window_s and 2 * n_refused > len(self._streak)
        is_quota = 2 * n_quota > len(self._streak) or is_again
        # Who was cut a moment ago has not seen what that brings.
        if is_quota and now_s - self._cut_s > self._window_s / 2:
            self._begin(self.pace(now_s) / 2, now_s)
        self._forget()
        self._silent_since_s = now_s
        self._gap_s = _FIRST_GAP_SHARE * self._window_s
        self._probe_s = now_s + self._gap_s

    def _resume(self, now_s: float) -> bool:
        self._since_s += self.silent_s(now_s)
        self._gap_s = self._silent_since_s = self._first = None
        self._streak.clear()
        self._resumed_s = now_s
        self._forget()
        return True
