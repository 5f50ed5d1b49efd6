"""A family of models with a role and a graph of its own; nothing of torch is imported here."""

from __future__ import annotations

from qaeval_core.families.bi_encoder import BiEncoderScorer
from qaeval_core.families.model_family import ModelFamily
from qaeval_core.models.record import GraphFacts

FIRST_TOKEN = GraphFacts(
    version=1,
    role="first_encoder",
    model_fields=("template",),
    loads_as="feature-extraction",
    export="qaeval_words.exports:FIRST_TOKEN",
)
FIRST_TOKENS = ModelFamily(
    name="first_tokens",
    graph="first_token",
    model_role="first_encoder",
    target_role="references",
    scorer=BiEncoderScorer,
    version="1",
    rows_per_shard={"cpu": 4096, "cuda": 131072},
    max_batch_tokens={"cpu": 512, "cuda": 16384},
)
