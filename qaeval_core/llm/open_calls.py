"""Open calls: those that were reserved and have no end yet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qaeval_core.llm.lane import Slot
from qaeval_core.llm.ledger import LedgerState, SentCall
from qaeval_core.llm.limits import Limits

# A caller that is so much later than it was told to come is dead; its money is another's.
_LAPSE_S = 5.0


@dataclass(slots=True)
class OpenCall:
    """When a call is to be sent, and what is reserved for it, from which purse."""

    slot: Slot
    nano_usd: int
    purse: str


class OpenCalls(dict[str, OpenCall]):
    """Open calls by their ids."""

    @classmethod
    def taken_over(
        cls, found: LedgerState, *, last_s: float, wall_offset_s: float
    ) -> tuple[list[Slot], OpenCalls]:
        """Return what a predecessor sent in the last span, and its calls without an end.

        Parameters
        ----------
        found : LedgerState
            What it left.
        last_s : float
            No call was sent later.
        wall_offset_s : float
            What the ledger's clock is ahead of the governor's.
        """

        def slot_of(call: SentCall) -> Slot:
            return Slot(min(call.at - wall_offset_s, last_s), call.n_tokens, is_final=True)

        sent = [(call, slot_of(call)) for call in found.recent]
        # The same slot: what the server counted for an open call corrects the window.
        slots = dict(sent)
        calls = {
            call_id: OpenCall(slots.get(call) or slot_of(call), call.nano_usd, call.purse)
            for call_id, call in found.open.items()
        }
        return [slot for _, slot in sent], cls(calls)

    def n_waiting(self, purse: str) -> int:
        """Return how many calls of a purse were not sent yet."""
        return sum(call.purse == purse and not call.slot.is_final for call in self.values())

    def lapsed(self, purse: str, *, now_s: float) -> list[str]:
        """Return the calls of a purse whose callers died while they waited."""
        dead_s = now_s - _LAPSE_S
        return [
            call_id
            for call_id, call in self.items()
            if call.purse == purse and not call.slot.is_final and call.slot.asks_s < dead_s
        ]

    def too_large(self, limits: Limits) -> list[str]:
        """Return calls that wait and that no window can hold."""
        most = limits.tokens_per_minute or math.inf
        return [
            call_id
            for call_id, call in self.items()
            if not call.slot.is_final and call.slot.n_tokens > most
        ]
