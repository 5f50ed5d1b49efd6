"""What an artifact was asked to be, and the record of what it is (``artifact.json``).

``ArtifactRequest`` is the question, ``ArtifactRecord`` the answer on disk. Both sides of an export
share these two and no code besides.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qaeval_core.errors import ConfigError
from qaeval_core.models.embedded import model_slug
from qaeval_core.plugins import Catalog, instance_maker

FORMAT_VERSION = 1

# Deeper encoders than any that is known.
_MAX_LAYERS = 64


@dataclass(frozen=True, slots=True)
class GraphOption:
    """An option of a graph: its values, the default first, and its line in ``--help``."""

    values: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What both sides of an export know of a graph.

    Attributes
    ----------
    version : int
        Raised whenever the graph's numbers, inputs or outputs change; an older artifact is then
        rebuilt. Files of others that are taken as they are have one of their own.
    role : str
        The role that its model must have.
    model_fields : tuple of str
        Which of `MODEL_FIELDS` the record of its artifact has; it must not have the others.
    options : mapping of str to GraphOption
    loads_as : str
        Task that transformers loads the model for, such as ``feature-extraction``; "" is that of
        the role, where the role is one of ours.
    export : str
        Where the graph's `GraphExport` is, as ``package.module:NAME``; "" of ours.
    """

    version: int
    role: str
    model_fields: tuple[str, ...]
    options: Mapping[str, GraphOption] = field(default_factory=dict)
    takes_onnx: bool = False  # whether a model's own ONNX file can become it
    onnx_version: int = 2  # 2: compared with itself in other batches
    loads_as: str = ""
    export: str = ""

    def version_of(self, source: str) -> int:
        """Return the version of graphs that were traced from torch, or taken as they are."""
        return self.version if source == "torch" else self.onnx_version


# Fields of a record that some graphs' readers need and the other graphs do not have.
MODEL_FIELDS = ("template", "bos_id", "activation", "pooling")

_MATCHING = {
    "matching": GraphOption(
        ("attended", "weighted"), "Matching of relevance graphs. Default: attended."
    ),
    "aggregate": GraphOption(
        ("max", "average", "mover"), "Aggregation of weighted matching. Default: max."
    ),
}
_LAYERS = GraphOption(
    ("last", *map(str, range(_MAX_LAYERS + 1))),
    "Layer of token_vectors: last, or a number (0: embeddings). Default: last.",
)

# Version 2: attention, RMS norm and rotary positions are operators; fp16 keeps other parts in fp32.
GRAPHS: Catalog[GraphFacts] = Catalog(
    "qaeval.graphs",
    {
        "relevance_matching": GraphFacts(2, "encoder", ("template",), _MATCHING),
        "token_logprobs": GraphFacts(2, "causal_lm", ("bos_id",)),
        "pair_score": GraphFacts(2, "cross_encoder", ("template", "activation"), takes_onnx=True),
        "sentence_vector": GraphFacts(2, "encoder", ("template", "pooling"), takes_onnx=True),
        "token_vectors": GraphFacts(2, "encoder", ("template",), {"layer": _LAYERS}),
        "keyphrase_weights": GraphFacts(2, "keyphrase_classifier", ("template",)),
        # A graph of its own, not an option: artifacts of scores keep their names and hashes.
        "relevance_matches": GraphFacts(2, "encoder", ("template",), _MATCHING),
        "answer_span": GraphFacts(2, "reader", ("template",)),
    },
    instance_maker(GraphFacts),
)

# Of ``answer_span``: tokens of the longest answer, how many of the best ones leave the graph, and
# the score of what is none; fp16 holds it.
MAX_ANSWER_TOKENS = 30
N_ANSWER_SPANS = 5
NO_SPAN = -1e4

Precision = Literal["fp32", "fp16", "bf16"]

# Below it a difference is one of roundings.
_LEAST_DIFFERENCE = 1e-5
# Wider than any model that is known; beyond it a record is damaged, or was made to do harm.
_Count = Annotated[int, Field(ge=0, le=10**12)]
_Size = Annotated[int, Field(ge=1, le=10**7)]
_TokenId = Annotated[int, Field(ge=0, lt=10**7)]


@dataclass(frozen=True, slots=True)
class ArtifactRequest:
    """Which graph of which model is wanted, how precise.

    Parameters
    ----------
    graph : str
        A key of ``GRAPHS``.
    model : str
        The model as the user wrote it.
    precision : {"fp32", "fp16", "bf16"}
        What is wanted. fp16 falls back to fp32 where its parity gate fails; bf16 never does.
    options : mapping of str to str, default {}
        Options of the graph; missing ones take their default.
    allow_lossy : bool, default False
        Keep a graph in fp16 or bf16 even if its parity gate fails.
    onnx_file : str, default ""
        File of the model that is taken as it is, such as ``onnx/model.onnx``; "" takes one only
        where the model has no safetensors.
    one_row_batches : bool, default False
        Run one row a batch, whatever is beside it.

    Raises
    ------
    ConfigError
        If graph, precision or an option is unknown, or options clash.

    Examples
    --------
    >>> ArtifactRequest("relevance_matching", "minilm", "fp32").folder_name
    'relevance_matching-minilm-fp32'
    >>> weighted = ArtifactRequest("relevance_matching", "minilm", "fp16", {"matching": "weighted"})
    >>> weighted.folder_name
    'relevance_matching_weighted_max-minilm-fp16'
    >>> ArtifactRequest("token_vectors", "minilm", "fp32", {"layer": "2"}).folder_name
    'token_vectors_2-minilm-fp32'
    """

    graph: str
    model: str
    precision: str
    options: Mapping[str, str] = field(default_factory=dict)
    allow_lossy: bool = False
    onnx_file: str = ""
    one_row_batches: bool = False

    def __post_init__(self) -> None:
        if self.graph not in GRAPHS:
            known = ", ".join(GRAPHS)
            raise ConfigError(f"graph {self.graph!r} is unknown; graphs: {known} [QA0417]")
        if self.precision not in (precisions := get_args(Precision)):
            raise ConfigError(
                f"precision {self.precision!r} is unknown; one of {', '.join(precisions)} [QA0417]"
            )
        if self.onnx_file and not GRAPHS[self.graph].takes_onnx:
            known = ", ".join(name for name, facts in GRAPHS.items() if facts.takes_onnx)
            raise ConfigError(
                f"onnx_file={self.onnx_file}: graph {self.graph} is traced from safetensors; ONNX "
                f"files can become {known} [QA0417]"
            )
        object.__setattr__(self, "options", _with_defaults(self.graph, self.options))

    @property
    def role(self) -> str:
        """The role the model must have."""
        return GRAPHS[self.graph].role

    @property
    def folder_name(self) -> str:
        """The artifact's folder under a root; different for different requests."""
        is_default = self.options == _with_defaults(self.graph, {})
        values = [] if is_default else list(self.options.values())
        lossy = "-lossy" if self.allow_lossy and self.precision != "fp32" else ""
        graph = "_".join([self.graph, *values])
        file = f"-{re.sub(r'[^A-Za-z0-9]+', '_', self.onnx_file)}" if self.onnx_file else ""
        alone = "-alone" if self.one_row_batches else ""
        return f"{graph}-{model_slug(self.model)}{file}-{self.precision}{lossy}{alone}"


def _with_defaults(graph: str, options: Mapping[str, str]) -> dict[str, str]:
    known = GRAPHS[graph].options
    for name, value in options.items():
        if name not in known:
            raise ConfigError(
                f"graph {graph} has no option {name!r}; it has {list(known)} [QA0417]"
            )
        if value not in known[name].values:
            raise ConfigError(
                f"{name}={value!r} is unknown; values: {', '.join(known[name].values)} [QA0417]"
            )
    full = {name: options.get(name, option.values[0]) for name, option in known.items()}
    if full.get("matching") == "attended" and full["aggregate"] != "max":
        raise ConfigError(
            f"aggregate={full['aggregate']} needs matching=weighted: attended takes one token "
            "[QA0417]"
        )
    return full


def export_command(request: ArtifactRequest, root: Path) -> str:
    """Return the command line that builds an artifact, ready to paste."""
    return shlex.join(["qaeval", "export", *export_arguments(request, root)])


def export_arguments(request: ArtifactRequest, root: Path) -> list[str]:
    """Return the arguments of ``qaeval export`` that build an artifact."""
    arguments = ["--graph", request.graph, "--model", request.model]
    arguments += ["--precision", request.precision]
    for name, option in GRAPHS[request.graph].options.items():
        if request.options[name] != option.values[0]:
            arguments += [f"--{name}", request.options[name]]
    arguments += ["--onnx-file", request.onnx_file] if request.onnx_file else []
    arguments += ["--allow-lossy"] if request.allow_lossy else []
    arguments += ["--one-row-batches"] if request.one_row_batches else []
    return [*arguments, "--root", str(root)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelRecord(_Record):
    """The model an artifact was made from."""

    name: str
    kind: Literal["package", "folder", "hub"]
    revision: str | None
    files: dict[str, str]


class TensorRecord(_Record):
    """One input or output; a str in ``shape`` is an axis that varies."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class TemplateRecord(_Record):
    """Special tokens of an encoder's pair: prefix, candidate, middle, context, suffix."""

    prefix_ids: Annotated[tuple[_TokenId, ...], Field(min_length=1, max_length=1)]
    middle_ids: Annotated[tuple[_TokenId, ...], Field(min_length=1, max_length=16)]
    suffix_ids: Annotated[tuple[_TokenId, ...], Field(min_length=1, max_length=16)]


class ParityAttempt(_Record):
    """How far one precision's numbers were from torch fp32."""

    precision: Precision
    max_abs_diff: float
    spearman: float
    tolerance: float
    passed: bool


class ParityRecord(ParityAttempt):
    """The parity of the graph that was kept, and of every graph that was tried."""

    n_values: int
    against: str
    attempts: tuple[ParityAttempt, ...]


class ArtifactRecord(_Record):
    """``artifact.json``: everything a reader of the graph has to know.

    ``max_positions`` counts the tokens one row may have. ``n_matmul_parameters`` are the weights
    one token is multiplied with in the body, ``n_head_parameters`` those of the output layer.
    ``template`` belongs to encoders, ``bos_id`` and ``eos_id`` to causal LMs, ``activation`` (of
    the logit) to cross-encoders, ``pooling`` to sentence vectors.
    """

    format_version: int
    graph: str
    graph_version: int
    options: dict[str, str]
    precision: Precision
    requested_precision: Precision
    lossy: bool
    model: ModelRecord
    files: dict[str, str]
    tokenizer_hash: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    opset: _Size
    versions: dict[str, str]
    max_positions: Annotated[int, Field(ge=1, le=1_000_000)]
    n_layers: Annotated[int, Field(ge=0, le=1_000)]
    dim: _Size
    vocab: _Size
    n_matmul_parameters: _Count
    n_head_parameters: _Count
    template: TemplateRecord | None
    bos_id: _TokenId | None
    eos_id: _TokenId | None
    activation: Literal["sigmoid", "identity"] | None = None
    pooling: Literal["mean", "cls", "max"] | None = None
    parity: ParityRecord | None  # None of an ONNX file without weights to compare it with
    source: Literal["torch", "onnx"] = "torch"  # traced from torch, or a file taken as it is
    # How far one value of fixed rows is moved by the rows beside it; None where nobody looked, as
    # at graphs of ours that were built before.
    batch_difference: Annotated[float, Field(ge=0)] | None = None
    one_row_batches: bool = False

    @property
    def batch_mates(self) -> str:
        """How far the rows beside a row may move its values, for signatures.

        A power of ten: roundings differ between machines, and a second export is the same model.
        """
        if self.one_row_batches:
            return "none"
        bound = max(self.batch_difference or 0.0, _LEAST_DIFFERENCE)
        return f"{10.0 ** math.ceil(math.log10(bound)):.0e}"

    @model_validator(mode="after")
    def _check_whole(self) -> ArtifactRecord:
        if self.files.get("tokenizer.json") != self.tokenizer_hash:
            raise ValueError("tokenizer_hash is not that of tokenizer.json")
        if self.parity is None:
            if self.source != "onnx" or self.lossy:
                raise ValueError("parity is missing")
            if self.batch_difference is None:
                raise ValueError("batch_difference is missing")
        elif (self.precision, self.lossy) != (self.parity.precision, not self.parity.passed):
            raise ValueError("precision and lossy are not those of parity")
        ids = [self.bos_id, self.eos_id]
        if self.template is not None:
            ids += [*self.template.prefix_ids, *self.template.middle_ids, *self.template.suffix_ids]
        beyond = [i for i in ids if i is not None and i >= self.vocab]
        if beyond:
            raise ValueError(f"token id {beyond[0]} is not below vocab, {self.vocab}")
        if self.graph in GRAPHS:
            self._check_model_fields(GRAPHS[self.graph].model_fields)
        return self

    def _check_model_fields(self, needed: tuple[str, ...]) -> None:
        """Raise where a field that the graph's families read is not there."""
        for name in MODEL_FIELDS:
            if (getattr(self, name) is not None) != (name in needed):
                state = "is missing" if name in needed else "belongs to other graphs"
                raise ValueError(f"{name} {state}: {self.graph}")
