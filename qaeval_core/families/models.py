"""MODEL_FAMILIES: the families that run a model, and what is theirs: graph, roles, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from qaeval_core.families.answer_span import AnswerSpanScorer
from qaeval_core.families.bi_encoder import BiEncoderScorer
from qaeval_core.families.grg import GrgScorer
from qaeval_core.families.kpqa_weights import KpqaWeightsScorer
from qaeval_core.families.lrm import LrmScorer
from qaeval_core.families.model_family import ModelFamily
from qaeval_core.families.model_units import ModelScorer
from qaeval_core.families.sas import SasScorer
from qaeval_core.families.token_match import (
    ContextMatchScorer,
    TokenMatchScorer,
    TransportScorer,
)
from qaeval_core.families.token_units import TokenFrequenciesScorer

# Vectors of a shard's tokens are held until its texts are matched: a MiB of text has some 250,000
# tokens, of 1.5 kB each in 384 dimensions.
_TOKEN_SHARD_BYTES = 1 << 20


# Batches on a CPU: small ones keep activations in cache. Measured on 2 cores, MiniLM: 101 rows/s
# with 512 tokens, 71 with 2,048, 41 with 8,192; 135M causal LM: 8.1 with 1,024, 7.2 with 4,096.
# Shards of a GPU: at the rates that an H100's bound and one core's tokens allow 1 s (bi-encoder) to
# 5 s (GRG), LRM 3 s on MiniLM and 7 to 11 s on BERT-base. Not more: a commit costs 12 ms and 1 us a
# row, a row laid out 1.4 to 4.4 kB, of two shards at a time, and 64 MiB of text, which are read at
# once, are 77,000 rows of SQuAD. A pass over fewer rows is cut smaller (`Job.pieces`).
def _lrm(name: str, target_role: str) -> ModelFamily:
    return ModelFamily(
        name=name,
        graph="relevance_matching",
        model_role="encoder",
        target_role=target_role,
        scorer=LrmScorer,
        version="1",
        rows_per_shard={"cpu": 1024, "cuda": 65536},
        max_batch_tokens={"cpu": 512, "cuda": 16384},
    )


def _grg(name: str, target_role: str) -> ModelFamily:
    return ModelFamily(
        name=name,
        graph="token_logprobs",
        model_role="causal_lm",
        target_role=target_role,
        scorer=GrgScorer,
        version="1",
        rows_per_shard={"cpu": 1024, "cuda": 16384},
        max_batch_tokens={"cpu": 1024, "cuda": 16384},
    )


def _answers(name: str, **given: Any) -> ModelFamily:
    """Return a family of short texts: thousands of rows in some seconds."""
    common: dict[str, Any] = {
        "name": name,
        "model_role": "encoder",
        "target_role": "references",
        "version": "1",
        "rows_per_shard": {"cpu": 4096, "cuda": 131072},
        "max_batch_tokens": {"cpu": 512, "cuda": 16384},
    }
    return ModelFamily(**{**common, **given})


def _tokens(name: str, scorer: type[ModelScorer], **given: Any) -> ModelFamily:
    return _answers(
        name,
        graph="token_vectors",
        scorer=scorer,
        max_shard_bytes=_TOKEN_SHARD_BYTES,
        **given,
    )


_TOKEN_FREQUENCIES = _tokens(
    "token_frequencies", TokenFrequenciesScorer, runs_model=False, reads_candidate=False
)

MODEL_FAMILIES: Mapping[str, ModelFamily] = MappingProxyType(
    {
        family.name: family
        for family in (
            _answers("sas", graph="pair_score", model_role="cross_encoder", scorer=SasScorer),
            _answers("bi_encoder", graph="sentence_vector", scorer=BiEncoderScorer),
            _TOKEN_FREQUENCIES,
            _tokens("token_match", TokenMatchScorer, counts=_TOKEN_FREQUENCIES),
            _tokens("token_match_context", ContextMatchScorer, target_role="context"),
            _tokens("token_transport", TransportScorer, counts=_TOKEN_FREQUENCIES),
            _answers(
                "kpqa_weights",
                graph="keyphrase_weights",
                model_role="keyphrase_classifier",
                scorer=KpqaWeightsScorer,
                reads_question=True,
            ),
            _answers(
                "answer_span",
                graph="answer_span",
                model_role="reader",
                target_role="context",
                scorer=AnswerSpanScorer,
                rows_per_shard={"cpu": 1024, "cuda": 65536},
                reads_answer=True,
            ),
            _lrm("lrm", "context"),
            _grg("grg", "context"),
            _lrm("lrm_references", "references"),
            _grg("grg_references", "references"),
        )
    }
)
