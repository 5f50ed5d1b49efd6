"""Pass stats: what model passes cost, in counts and seconds that add up over shards."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class PassStats:
    """What a pass cost; all counts are sums, so stats of shards add up.

    Rows that a sample leaves out are ``n_not_sampled``, and in no other count.
    """

    n_rows: int = 0
    n_quarantined: int = 0
    n_units: int = 0
    n_units_unshared: int = 0
    n_batches: int = 0
    n_tokens: int = 0
    n_padded_tokens: int = 0
    n_truncated: int = 0
    n_halvings: int = 0
    n_not_sampled: int = 0
    calls: dict[str, int] = field(default_factory=dict)  # to a language model, by what came of them
    seconds: dict[str, float] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)  # one of each worker of a GPU

    def add(self, other: PassStats) -> None:
        """Add another shard's stats."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, n_calls in other.calls.items():
            self.count(name, n_calls)
        for name, value in other.seconds.items():
            self.spend(name, value)
        self.devices += other.devices

    def count(self, name: str, n_calls: int = 1) -> None:
        """Add to a count of calls."""
        self.calls[name] = self.calls.get(name, 0) + n_calls

    @property
    def has_given_up(self) -> bool:
        """Whether there were calls to a language model that brought no reply."""
        return any(name.startswith("given_up:") for name in self.calls)

    def spend(self, name: str, seconds: float) -> None:
        """Add seconds to a phase: read, encode, wait, run or commit."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def counts_json(self) -> str:
        """Return the counts without seconds and devices: the same work gives the same bytes."""
        counts = {n: getattr(self, n) for n in self.__slots__ if n not in ("seconds", "devices")}
        for name in ("calls", "n_not_sampled"):
            if not counts[name]:
                del counts[name]
        return json.dumps(counts)

    @classmethod
    def from_json(cls, text: str | bytes) -> PassStats:
        """Return the stats that `counts_json` wrote.

        Raises
        ------
        ValueError, TypeError
            If they are no counts.
        """
        found = cls(**json.loads(text))
        counts = [getattr(found, name) for name in COUNTS]
        for count in (*counts, *found.calls.values()):
            if type(count) is not int or count < 0:
                raise ValueError(f"{count!r} is no count")
        return found


# Those that are whole numbers; calls are counts by kind.
COUNTS = tuple(name for name in PassStats.__slots__ if name not in ("calls", "seconds", "devices"))
