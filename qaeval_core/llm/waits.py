"""Waits: for how long a server asks its callers to wait, in seconds, whatever way it says so.

A point in time is compared with the server's own ``Date``: clocks differ, and one that is two hours
ahead would stop an account for as long. Without a ``Date`` it is believed for a while alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

# x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, ratelimit-remaining, ...
_REMAINING = re.compile(
    r"^(?P<before>(?:[\w-]+-)?ratelimit-(?:[\w-]+-)?)remaining(?P<after>[\w-]*)$"
)
_UNIT_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_LENGTH = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|us|µs|d|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|d|h|m|s)")
_MAX_LENGTH_S = 1e8  # Three years: a larger number is a point in time.
_MAX_PAUSE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long the word of a server is heeded, in seconds.

    Attributes
    ----------
    most_s : float, default a day
        Any wait.
    most_by_clock_s : float, default a day
        Until a point in time that a server names which does not say what time it has.
    """

    most_s: float = _MAX_PAUSE_S
    most_by_clock_s: float = _MAX_PAUSE_S


class Waits(NamedTuple):
    """What a response asks for, in seconds: of all calls, and of this one."""

    pause_s: float | None
    wait_s: float | None


def waits_of(headers: Mapping[str, str], *, now: float, patience: Patience) -> Waits:
    """Return what a response asks for, as far as it is heeded.

    Examples
    --------
    >>> ahead = {"Date": "Thu, 01 Jan 1970 02:00:00 GMT",
    ...          "Retry-After": "Thu, 01 Jan 1970 02:00:02 GMT"}
    >>> waits_of(ahead, now=0.0, patience=Patience())
    Waits(pause_s=None, wait_s=2.0)
    >>> del ahead["Date"]
    >>> waits_of(ahead, now=0.0, patience=Patience(most_by_clock_s=60.0)).wait_s
    60.0
    """
    told = (
        exhausted_s(headers, now=now, most_by_clock_s=patience.most_by_clock_s),
        retry_after_s(headers, now=now, most_by_clock_s=patience.most_by_clock_s),
    )
    return Waits(*(None if own is None else min(own, patience.most_s) for own in told))


def retry_after_s(
    headers: Mapping[str, str], *, now: float, most_by_clock_s: float = _MAX_PAUSE_S
) -> float | None:
    """Return after how long a call is to be repeated, at most a day; None if nothing is said.

    ``retry-after-ms`` is more exact than ``Retry-After``, and counts alone.

    Examples
    --------
    >>> retry_after_s({"Retry-After": "20"}, now=0.0)
    20.0
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    seconds = duration_s(lower.get("retry-after-ms", "") + "ms", now=now)
    if seconds is None:
        seconds = _told_s(lower.get("retry-after", ""), lower, now, most_by_clock_s)
    return None if seconds is None else min(seconds, _MAX_PAUSE_S)


def _told_s(
    text: str, lower: Mapping[str, str], now: float, most_by_clock_s: float
) -> float | None:
    """Return the seconds that a header means, by the clock of the server if it is known."""
    server_now = _moment_s(lower.get("date", ""))
    if server_now is not None:
        return duration_s(text, now=server_now)
    seconds = duration_s(text, now=now)
    if seconds is None or duration_s(text, now=now + 1.0) == seconds:
        return seconds  # No point in time, or one that has passed.
    return min(seconds, most_by_clock_s)


def exhausted_s(
    headers: Mapping[str, str], *, now: float, most_by_clock_s: float = _MAX_PAUSE_S
) -> float | None:
    """Return after how long the account's limits allow a call, at most a day; None if they do now.

    That is the longest reset of a limit of which nothing remains.

    Parameters
    ----------
    headers : mapping
        Names in any case.
    now : float
        Seconds since 1970, to turn points in time into waits where there is no ``Date``.
    most_by_clock_s : float, default a day
        The longest wait that ``now`` is believed for.

    Examples
    --------
    >>> exhausted_s({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s",
    ...              "x-ratelimit-remaining-requests": "7"}, now=0.0)
    360.0
    >>> exhausted_s({"x-ratelimit-remaining-tokens": "150"}, now=0.0)
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    pauses = [_told_s(reset, lower, now, most_by_clock_s) for reset in _exhausted(lower)]
    known = [pause_s for pause_s in pauses if pause_s is not None]
    return min(max(known), _MAX_PAUSE_S) if known else None


def _exhausted(lower: Mapping[str, str]) -> list[str]:
    """Return when limits of which nothing remains are reset."""
    resets = []
    for name, value in lower.items():
        match = _REMAINING.match(name)
        if match and re.fullmatch(r"-?\d+(\.0*)?", value) and float(value) <= 0:
            resets.append(lower.get(f"{match['before']}reset{match['after']}", ""))
    return resets


def duration_s(text: str, *, now: float) -> float | None:
    """Return the seconds that a header means, at least 0, or None if it means nothing.

    Examples
    --------
    >>> [duration_s(text, now=0.0) for text in ("6m0s", "1.5s", "20ms", "3", "1h2m", "soon")]
    [360.0, 1.5, 0.02, 3.0, 3720.0, None]
    >>> duration_s("Thu, 01 Jan 1970 00:01:00 GMT", now=20.0)
    40.0
    >>> duration_s("1700000060", now=1.7e9), duration_s("1700000060000", now=1.7e9)
    (60.0, 60.0)
    """
    if _LENGTH.fullmatch(text):
        return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    try:
        seconds = float(text)
    except ValueError:
        moment = _moment_s(text)
        return None if moment is None else max(moment - now, 0.0)
    if not math.isfinite(seconds):
        return None
    if seconds > 1000 * _MAX_LENGTH_S:
        seconds /= 1000
    return max(seconds - now if seconds > _MAX_LENGTH_S else seconds, 0.0)


def _moment_s(text: str) -> float | None:
    """Return the seconds since 1970 of a date, or None if it is none."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(text)
            if date.tzinfo is None:
                date = date.replace(tzinfo=UTC)
            return date.timestamp()
        except (ValueError, OverflowError):  # A zone of more hours than a clock can hold.
            continue
    return None
