"""The families: name -> what it reads, which graph it runs, and the class that lays it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qaeval_core.scoring.families.base import FamilyScorer
from qaeval_core.scoring.families.bi_encoder import BiEncoderScorer
from qaeval_core.scoring.families.grg import GrgScorer
from qaeval_core.scoring.families.kpqa_weights import KpqaWeightsScorer
from qaeval_core.scoring.families.lrm import LrmScorer
from qaeval_core.scoring.families.sas import SasScorer
from qaeval_core.scoring.families.token_frequencies import TokenFrequenciesScorer
from qaeval_core.scoring.families.token_match import (
    ContextMatchScorer,
    TokenMatchScorer,
    TransportScorer,
)
from qaeval_core.scoring.sharing import SharedPairs, share_pairs

__all__ = ["FAMILIES", "FamilyKind"]

Values = Mapping[str, Sequence[object]]

# Vectors of a shard's tokens are held until its texts are matched: a MiB of text has some 250,000
# tokens, of 1.5 kB each in 384 dimensions.
_TOKEN_SHARD_BYTES = 1 << 20


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
    max_shard_bytes: int | None = None  # of text; None is the run's
    runs_model: bool = True
    reads_candidate: bool = True
    reads_question: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """Input roles read."""
        question = ("question",) if self.reads_question else ()
        candidate = ("candidate",) if self.reads_candidate else ()
        return (*question, *candidate, self.target_role)

    def share(self, values: Values) -> SharedPairs[Any]:
        """Return the distinct pairs of good rows."""
        targets = [
            [str(text) for text in value] if isinstance(value, list) else [str(value)]
            for value in values[self.target_role]
        ]
        if not self.reads_candidate:
            return share_pairs([""] * len(targets), targets)
        candidates = [str(text) for text in values["candidate"]]
        if not self.reads_question:
            return share_pairs(candidates, targets)
        questions = [str(text) for text in values["question"]]
        return share_pairs(
            list(zip(questions, candidates, strict=True)),
            [[(q, text) for text in own] for q, own in zip(questions, targets, strict=True)],
        )


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


def _answers(name: str, **given: Any) -> FamilyKind:
    """Return a family that judges answers: short texts, thousands of rows in some seconds."""
    common: dict[str, Any] = {
        "name": name,
        "model_role": "encoder",
        "target_role": "references",
        "version": "1",
        "rows_per_shard": {"cpu": 4096, "cuda": 16384},
        "max_batch_tokens": {"cpu": 512, "cuda": 16384},
    }
    return FamilyKind(**{**common, **given})


def _tokens(name: str, scorer: type[FamilyScorer], **given: Any) -> FamilyKind:
    return _answers(
        name,
        graph="token_vectors",
        scorer=scorer,
        max_shard_bytes=_TOKEN_SHARD_BYTES,
        **given,
    )


FAMILIES: Mapping[str, FamilyKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _answers("sas", graph="pair_score", model_role="cross_encoder", scorer=SasScorer),
            _answers("bi_encoder", graph="sentence_vector", scorer=BiEncoderScorer),
            _tokens(
                "token_frequencies",
                TokenFrequenciesScorer,
                runs_model=False,
                reads_candidate=False,
            ),
            _tokens("token_match", TokenMatchScorer),
            _tokens("token_match_context", ContextMatchScorer, target_role="context"),
            _tokens("token_transport", TransportScorer),
            _answers(
                "kpqa_weights",
                graph="keyphrase_weights",
                model_role="keyphrase_classifier",
                scorer=KpqaWeightsScorer,
                reads_question=True,
            ),
            _lrm("lrm", "context"),
            _grg("grg", "context"),
            _lrm("lrm_references", "references"),
            _grg("grg_references", "references"),
        )
    }
)
