"""The families: name -> what it reads, which graph it runs, and the class that lays it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qaeval_core.scoring.families.base import FamilyScorer
from qaeval_core.scoring.families.grg import GrgScorer
from qaeval_core.scoring.families.lrm import LrmScorer

__all__ = ["FAMILIES", "FamilyKind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyKind:
    """One family: constants that do not depend on a run."""

    name: str
    graph: str
    model_role: str  # key of ``models.<role>``
    target_role: str  # input role that the candidate is read against
    scorer: type[FamilyScorer]
    version: str  # of the implementation: raise it when numbers change
    rows_per_shard: Mapping[str, int]  # by device: 10 to 60 seconds of work
    max_batch_tokens: Mapping[str, int]  # by device

    @property
    def roles(self) -> tuple[str, ...]:
        """Input roles read."""
        return ("candidate", self.target_role)


# Batches on a CPU: small ones keep activations in cache. Measured on 2 cores, MiniLM: 101 rows/s
# with 512 tokens, 71 with 2,048, 41 with 8,192; 135M causal LM: 8.1 with 1,024, 7.2 with 4,096.
def _lrm(name: str, target_role: str) -> FamilyKind:
    return FamilyKind(
        name=name,
        graph="relevance_matching",
        model_role="encoder",
        target_role=target_role,
        scorer=LrmScorer,
        version="1",
        rows_per_shard={"cpu": 1024, "cuda": 8192},
        max_batch_tokens={"cpu": 512, "cuda": 16384},
    )


def _grg(name: str, target_role: str) -> FamilyKind:
    return FamilyKind(
        name=name,
        graph="token_logprobs",
        model_role="causal_lm",
        target_role=target_role,
        scorer=GrgScorer,
        version="1",
        rows_per_shard={"cpu": 256, "cuda": 4096},
        max_batch_tokens={"cpu": 1024, "cuda": 16384},
    )


FAMILIES: Mapping[str, FamilyKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _lrm("lrm", "context"),
            _grg("grg", "context"),
            _lrm("lrm_references", "references"),
            _grg("grg_references", "references"),
        )
    }
)
