"""Grant and status: what a governor answers."""

from __future__ import annotations

from dataclasses import dataclass

from qaeval_core.llm.limits import Limits


@dataclass(frozen=True, slots=True)
class Grant:
    """When to send: not before ``wait_s``, nor later than ``wait_s + late_s``, after asking.

    If it is not ``is_final``, or it got later, confirm instead of sending. ``wait_s`` of one that
    is not final may end before the call's time, which may have moved forward until then.
    """

    call_id: str
    wait_s: float
    late_s: float
    is_final: bool


@dataclass(frozen=True, slots=True)
class Status:
    """Where a governor stands: use, pauses and counts of all, money and calls of one purse."""

    n_requests_in_use: int
    n_tokens_in_use: int
    n_open: int
    n_settled: int
    n_billed_failures: int
    n_refused: int
    n_late: int
    spent_usd: float
    reserved_usd: float
    paused_s: float
    pace_factor: float
    limits: Limits
    silent_s: float = 0.0  # for so long the server has answered nobody
    n_sent: int = 0  # told to send, by this governor, of all purses

    @property
    def binding_use(self) -> float:
        """Share of the limit that binds, in use over the last window; in [0, 1]."""
        shares = [0.0]
        if self.limits.requests_per_minute:
            shares.append(self.n_requests_in_use / self.limits.requests_per_minute)
        if self.limits.tokens_per_minute:
            shares.append(self.n_tokens_in_use / self.limits.tokens_per_minute)
        return max(shares)
