"""Limits: what a key allows in a window.

Limits belong to an account, a server and a key; money belongs to a budget (``llm.budget``).

But: when calls may be sent is ``llm.schedule``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qaeval_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key allows; None is unlimited.

    Parameters
    ----------
    requests_per_minute : int or None
        Requests in any window of ``window_s``; inclusive.
    tokens_per_minute : int or None
        Tokens in any window, prompt and ``max_tokens`` counted when a call is sent; inclusive.
    window_s : float, default 60
        Length of the server's window; another one scales a minute down, in tests.
    jitter_share : float, default 0.02
        J / W: how much later than its send time a call may arrive. Half of it is for whoever sends
        (who asks again when it wakes later), half for the network: 0.6 s each in a minute.

    Raises
    ------
    ConfigError
        If a limit is not positive.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    window_s: float = 60.0
    jitter_share: float = 0.02

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "window_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; a limit is more than 0, or left out")

    @property
    def jitter_s(self) -> float:
        """J: how late a call may arrive, in seconds."""
        return self.jitter_share * self.window_s

    @property
    def span_s(self) -> float:
        """S = W + J, in seconds."""
        return self.window_s + self.jitter_s

    @classmethod
    def smallest(cls, several: Iterable[Limits]) -> Limits:
        """Return limits that keep all of several, of which there is at least one.

        Raises
        ------
        ConfigError
            If they count in windows of different lengths.

        Examples
        --------
        >>> both = Limits.smallest([Limits(600, 90_000), Limits(requests_per_minute=60)])
        >>> both.requests_per_minute, both.tokens_per_minute
        (60, 90000)
        """
        every = list(several)
        lengths = sorted({limits.window_s for limits in every})
        if len(lengths) > 1:
            raise ConfigError(
                f"runs on one key count in windows of {lengths[0]:g} s and {lengths[-1]:g} s; "
                "a server has one"
            )
        return cls(
            requests_per_minute=_least(limits.requests_per_minute for limits in every),
            tokens_per_minute=_least(limits.tokens_per_minute for limits in every),
            window_s=lengths[0],
            jitter_share=max(limits.jitter_share for limits in every),
        )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
