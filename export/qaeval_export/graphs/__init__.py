"""Graphs: modules that reduce inside, one file a graph. The only place for torch arithmetic.

To add one: its file here and a line below, its line in ``qaeval_core.models.record.GRAPHS``, and
its oracle in ``qaeval_export.eager``. A plugin's facts name its `GraphExport`, which has an oracle.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from qaeval_core.errors import ConfigError
from qaeval_core.models.record import GRAPHS
from qaeval_export.graphs.answer_span import ANSWER_SPAN
from qaeval_export.graphs.base import GraphExport
from qaeval_export.graphs.keyphrase_weights import KEYPHRASE_WEIGHTS
from qaeval_export.graphs.pair_score import PAIR_SCORE
from qaeval_export.graphs.relevance_matching import RELEVANCE_MATCHES, RELEVANCE_MATCHING
from qaeval_export.graphs.sentence_vector import SENTENCE_VECTOR
from qaeval_export.graphs.token_logprobs import TOKEN_LOGPROBS
from qaeval_export.graphs.token_vectors import TOKEN_VECTORS

EXPORTS: Mapping[str, GraphExport] = MappingProxyType(
    {
        "relevance_matching": RELEVANCE_MATCHING,
        "token_logprobs": TOKEN_LOGPROBS,
        "pair_score": PAIR_SCORE,
        "sentence_vector": SENTENCE_VECTOR,
        "token_vectors": TOKEN_VECTORS,
        "keyphrase_weights": KEYPHRASE_WEIGHTS,
        "relevance_matches": RELEVANCE_MATCHES,
        "answer_span": ANSWER_SPAN,
    }
)


def graph_export(name: str) -> GraphExport:
    """Return how a graph of ours, or of a plugin, is exported.

    Raises
    ------
    ConfigError
        If a plugin's facts name no `GraphExport` with an oracle.
    """
    if name in EXPORTS:
        return EXPORTS[name]
    where, package = GRAPHS[name].export, GRAPHS.package_of(name)
    module, separator, attribute = where.partition(":")
    if not separator:
        raise ConfigError(
            f"graph {name} of {package}: export is {where!r}, and must be module:NAME [QA0211]"
        )
    found = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(found, GraphExport) or found.oracle is None:
        raise ConfigError(
            f"graph {name} of {package}: {where} is not a GraphExport with an oracle [QA0211]"
        )
    return found
