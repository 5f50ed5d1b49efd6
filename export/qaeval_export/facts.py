"""Facts: what the record of an artifact says of its model, from the model's files alone.

Needs no torch: a graph that comes ready-made is described by the same functions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import onnx
from tokenizers import Tokenizer

from qaeval_core.errors import ExportError
from qaeval_core.models.record import ParityRecord, Precision, TemplateRecord
from qaeval_core.models.source import ModelSource
from qaeval_export.sentence_files import Kind

_MAX_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes of a model; the fields of ``ArtifactRecord`` of the same names."""

    max_positions: int
    n_layers: int
    dim: int
    vocab: int
    n_matmul_parameters: int
    n_head_parameters: int
    template: TemplateRecord | None
    bos_id: int | None
    eos_id: int | None
    activation: Literal["sigmoid", "identity"] | None = None
    pooling: Literal["mean", "cls", "max"] | None = None


def kind_of(needed: Collection[str]) -> Kind | None:
    """Return what sentence-transformers calls a model of whose graph the record says these."""
    if "pooling" in needed:
        return "SentenceTransformer"
    return "CrossEncoder" if "activation" in needed else None


# Of a text of letters; more are a tokenizer that makes much of little.
_MOST_TOKENS_PER_CHAR = 8
_PROBES = (
    "a",
    "The lighthouse on the northern cliff was built in 1874. e z Why? 灯台",
    "lighthouse" * 4,  # Patterns that go back and forth take for ever on one long word.
)


def read_tokenizer(source: ModelSource) -> Tokenizer:
    """Return a folder's tokenizer, without truncation and padding, once it has split some texts.

    Raises
    ------
    ExportError
        If it cannot be read, fails, or makes far more tokens of a text than it has characters.
    """
    path = source.folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        sizes = [(len(tokenizer.encode(text).ids), len(text)) for text in _PROBES]
    except BaseException as error:
        # Panics of the library in Rust are no exceptions for Python.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split())[:_MAX_CHARS]
        raise ExportError(f"{path} cannot be used: {said} [QA0418]") from None
    for n_tokens, n_chars in sizes:
        if n_tokens > _MOST_TOKENS_PER_CHAR * (n_chars + 1):
            raise ExportError(
                f"{path} splits {n_chars} characters into {n_tokens:,} tokens [QA0418]"
            )
    return tokenizer


def pair_template(source: ModelSource, tokenizer: Tokenizer) -> TemplateRecord:
    """Read the special tokens of a text pair off the tokenizer.

    Raises
    ------
    ExportError
        If a pair is not ``prefix X middle C suffix`` with a prefix of one token: the graph expects
        the candidate at position 1.
    """
    encoding = tokenizer.encode("a", "a")
    parts: list[list[int]] = [[], [], []]
    n_texts, last_text = 0, None
    for token_id, text in zip(encoding.ids, encoding.sequence_ids, strict=True):
        if text is None:
            parts[n_texts].append(token_id)
        elif text != last_text:
            n_texts, last_text = n_texts + 1, text
    prefix, middle, suffix = parts
    alone = tokenizer.encode("a")
    n_alone = sum(text is not None for text in alone.sequence_ids)
    if [*alone.ids[:1], *alone.ids[1 + n_alone :]] != [*prefix, *suffix]:
        raise ExportError(
            f"{source.name}: its tokenizer.json adds {alone.tokens} to one text, not the ends of a "
            "pair [QA0418]"
        )
    if n_texts != 2 or len(prefix) != 1 or not middle or not suffix:
        raise ExportError(
            f"{source.name}: its tokenizer.json adds {encoding.tokens} to a pair, not [CLS] a "
            "[SEP] b [SEP] [QA0418]"
        )
    return TemplateRecord(
        prefix_ids=tuple(prefix), middle_ids=tuple(middle), suffix_ids=tuple(suffix)
    )


@dataclass(frozen=True, slots=True)
class Made:
    """A graph that was saved, and what its record says."""

    proto: onnx.ModelProto
    facts: ModelFacts
    tokenizer: Tokenizer
    precision: Precision
    parity: ParityRecord | None
    batch_difference: float | None
    one_row_batches: bool = False
