"""Loading: a model's files -> an eval-mode fp32 torch model and its tokenizer.

Reads safetensors and GGUF, never a pickle and never a model's own code. But: where the files come
from is ``qaeval_core.models.registry``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from optimum.exporters.tasks import TasksManager
from optimum.utils import NormalizedConfigManager
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoTokenizer
from transformers.pytorch_utils import Conv1D

from qaeval_core.errors import ExportError
from qaeval_core.models.record import GRAPHS, ArtifactRequest
from qaeval_core.models.source import ModelSource
from qaeval_export.facts import ModelFacts, kind_of, pair_template, read_tokenizer
from qaeval_export.sentence_files import SentenceFiles

# The RoBERTa family counts positions from padding_idx + 1.
ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
ENCODER_TYPES = ("bert", "electra", "mpnet", *ROBERTA_TYPES)
CAUSAL_TYPES = ("gpt2", "llama", "mistral", "qwen2")

# Names of optimum's tasks, by role.
_TASKS = {
    "encoder": "feature-extraction",
    "causal_lm": "text-generation",
    "cross_encoder": "text-classification",
    "keyphrase_classifier": "token-classification",
    "reader": "question-answering",
}

# Rotary tables of these do not depend on the length of the text.
_FIXED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A torch model in eval mode and what encodes text for it."""

    source: ModelSource
    model: nn.Module
    tokenizer: Tokenizer
    bos_id: int | None
    eos_id: int | None

    @property
    def config(self) -> Any:
        """The transformers configuration."""
        return self.model.config

    @property
    def model_type(self) -> str:
        """The transformers model type, such as ``bert``."""
        return str(self.config.model_type)


def for_graph(loaded: LoadedModel, request: ArtifactRequest) -> LoadedModel:
    """Return a model whose texts are read as sentence-transformers would, where the graph is one.

    Raises
    ------
    ExportError
        If its files say what is not supported.
    """
    kind = kind_of(GRAPHS[request.graph].model_fields)
    if kind is None:
        return loaded
    tokenizer = SentenceFiles(loaded.source, kind).with_case(loaded.tokenizer)
    return replace(loaded, tokenizer=tokenizer)


def load_model(source: ModelSource, *, role: str, loads_as: str = "") -> LoadedModel:
    """Load a model in fp32 with attention that shows its probabilities.

    Parameters
    ----------
    source : ModelSource
    role : str
    loads_as : str, default ""
        Task that it is loaded for; "" is that of the role.

    Raises
    ------
    ExportError
        If its architecture is not supported, or weights it needs are not in its files.
    """
    files: dict[str, Any] = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    if not source.gguf_file:
        # An adapter's configuration is the whole model's, heads included.
        config = AutoConfig.from_pretrained(
            source.adapter or source.folder, local_files_only=True, trust_remote_code=False
        )
        _check_supported(config, source=source, role=role)
        files |= {"use_safetensors": True, "config": config}
    task = loads_as or _TASKS[role]
    kind = TasksManager.get_model_class_for_task(task, framework="pt", library="transformers")
    model, loading = kind.from_pretrained(
        source.folder,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        **files,
    )
    _check_supported(model.config, source=source, role=role)
    missing = set(loading["missing_keys"])
    if source.adapter is not None:
        model, given = _merge_adapter(model, source)
        missing -= given
    if task == _TASKS["encoder"]:
        missing = {key for key in missing if not key.startswith("pooler.")}
    if missing:
        raise ExportError(
            f"{source.name} has no weights for {len(missing)} parameters, first {min(missing)} "
            "[QA0403]"
        )
    is_plain = not source.gguf_file and (source.folder / "tokenizer.json").is_file()
    auto = None if is_plain else _auto_tokenizer(source)
    tokenizer = _load_tokenizer(source, auto)
    ends: tuple[int | None, int | None] = (None, None)
    if role == "causal_lm":
        ends = _text_ends(source, tokenizer, _named_ends(source, auto), model.config)
    return LoadedModel(source, model.eval(), tokenizer, *ends)


def _merge_adapter(model: nn.Module, source: ModelSource) -> tuple[nn.Module, set[str]]:
    """Merge an adapter into a model; return it, and the parameters that the adapter brings whole.

    Raises
    ------
    ExportError
        If the adapter has weights that the model has no place for.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file

    assert source.adapter is not None
    wrapped = PeftModel.from_pretrained(model, str(source.adapter), is_trainable=False)
    stored = set(load_file(source.adapter / "adapter_model.safetensors"))
    # Embeddings are never adapted; asked whether they are, peft would look the base up in a hub.
    known = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    unknown = sorted(stored - set(known))
    if unknown:
        raise ExportError(
            f"{source.name}: its adapter has an unknown weight, {unknown[0]} [QA0403]"
        )
    prefix = "base_model.model."
    whole = {key.removeprefix(prefix) for key in stored if ".lora_" not in key}
    return wrapped.merge_and_unload(), whole


def _check_supported(config: Any, *, source: ModelSource, role: str) -> None:
    types = CAUSAL_TYPES if role == "causal_lm" else ENCODER_TYPES
    if config.model_type not in types:
        raise ExportError(
            f"{source.name} is of type {config.model_type!r}; for {role} it must be one of "
            f"{', '.join(types)} [QA0408]"
        )
    if role != "causal_lm":
        kind = getattr(config, "position_embedding_type", "absolute") or "absolute"
        if kind != "absolute" or getattr(config, "is_decoder", False):
            raise ExportError(
                f"{source.name} is a decoder or has other than absolute positions; encoders with "
                "absolute positions are supported [QA0408]"
            )
        if role == "cross_encoder" and config.num_labels != 1:
            raise ExportError(
                f"{source.name} has {config.num_labels} outputs; a cross-encoder needs one [QA0408]"
            )
        return
    uses_window = getattr(config, "use_sliding_window", config.model_type == "mistral")
    window = getattr(config, "sliding_window", None)
    if uses_window and window is not None and window < config.max_position_embeddings:
        raise ExportError(
            f"{source.name} attends in windows of {window} tokens, which is not supported [QA0408]"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _FIXED_ROPE_TYPES:
        raise ExportError(
            f"{source.name} has rotary positions of type {rope!r}; supported: "
            f"{', '.join(_FIXED_ROPE_TYPES)} [QA0408]"
        )


def _load_tokenizer(source: ModelSource, auto: Any | None) -> Tokenizer:
    """Return the tokenizer without truncation and padding: stored ones lose text in silence."""
    if auto is None:
        return read_tokenizer(source)
    tokenizer = Tokenizer.from_str(auto.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _auto_tokenizer(source: ModelSource) -> Any:
    files = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    return AutoTokenizer.from_pretrained(
        source.folder, local_files_only=True, trust_remote_code=False, **files
    )


def _text_ends(
    source: ModelSource, tokenizer: Tokenizer, named: Mapping[str, str | None], config: Any
) -> tuple[int, int | None]:
    """Return the ids of begin and end of text; a model without a begin uses its end, as GPT-2."""
    ids: dict[str, int | None] = {}
    for end, token in named.items():
        found = tokenizer.token_to_id(token) if token else None
        if found is None:
            found = getattr(config, f"{end}_token_id", None)
        found = found[0] if isinstance(found, list) else found
        # Subtle: a configuration may name an id by default that this vocabulary does not have.
        in_use = found is not None and tokenizer.id_to_token(found) is not None
        ids[end] = found if in_use and found < config.vocab_size else None
    begin = ids["bos"] if ids["bos"] is not None else ids["eos"]
    if begin is None:
        raise ExportError(
            f"{source.name}: its tokenizer has no token for the begin or end of a text [QA0408]"
        )
    return begin, ids["eos"]


def _named_ends(source: ModelSource, auto: Any | None) -> dict[str, str | None]:
    if auto is not None:
        return {"bos": auto.bos_token, "eos": auto.eos_token}
    named: dict[str, str | None] = {"bos": None, "eos": None}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = source.folder / file
        fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for end, known in named.items():
            token = fields.get(f"{end}_token")
            token = token.get("content") if isinstance(token, dict) else token
            named[end] = token or known
    return named


def make_facts(loaded: LoadedModel, request: ArtifactRequest) -> ModelFacts:
    """Collect the facts of a loaded model that the graph of a request has.

    Raises
    ------
    ExportError
        If the model pools, or ends, in a way that is not supported.
    """
    config, needed = loaded.config, GRAPHS[request.graph].model_fields
    sizes = NormalizedConfigManager.get_normalized_config_class(loaded.model_type)(config)
    layer, is_causal = wanted_layer(loaded, request), request.role == "causal_lm"
    n_matmul = _count_matmul(loaded.model, is_causal=is_causal)
    max_positions = int(config.max_position_embeddings) - first_position(loaded)
    kind = kind_of(needed)
    files = SentenceFiles(loaded.source, kind) if kind is not None else None
    if files is not None:
        max_positions = min(max_positions, files.max_tokens(config))
    return ModelFacts(
        max_positions=max_positions,
        n_layers=layer,
        dim=int(sizes.hidden_size),
        vocab=int(sizes.vocab_size),
        n_matmul_parameters=n_matmul * layer // int(sizes.num_layers),
        n_head_parameters=int(sizes.vocab_size * sizes.hidden_size) if is_causal else 0,
        template=pair_template(loaded.source, loaded.tokenizer) if "template" in needed else None,
        bos_id=loaded.bos_id,
        eos_id=loaded.eos_id,
        activation=files.activation(config) if files and files.is_cross else None,
        pooling=files.pooling() if files and not files.is_cross else None,
    )


def wanted_layer(loaded: LoadedModel, request: ArtifactRequest) -> int:
    """Return the layer whose hidden states a graph reads; 0 is the embeddings.

    Raises
    ------
    ExportError
        If the model has fewer layers.
    """
    n_layers = int(loaded.config.num_hidden_layers)
    asked = request.options.get("layer", "last")
    layer = n_layers if asked == "last" else int(asked)
    if layer > n_layers:
        raise ExportError(
            f"{loaded.source.name} has {n_layers} layers, and layer {layer} was asked for [QA0408]"
        )
    return layer


def in_span_label(config: Any) -> int:
    """Return which output of a keyphrase classifier is "in the answer span".

    Raises
    ------
    ExportError
        If the labels do not say it: two outputs, the second one; or one that is named ANSWER.
    """
    labels = {int(i): str(name) for i, name in config.id2label.items()}
    named = [i for i, name in labels.items() if name.upper() in ("ANSWER", "I-ANSWER", "KEYPHRASE")]
    if len(named) == 1:
        return named[0]
    if len(labels) == 2:
        return 1
    raise ExportError(f"none of the labels {list(labels.values())} is called ANSWER [QA0408]")


def first_position(loaded: LoadedModel) -> int:
    """Return the position id of the first token: padding_idx + 1 in the RoBERTa family, MPNet."""
    if loaded.model_type not in (*ROBERTA_TYPES, "mpnet"):
        return 0
    base: Any = loaded.model.base_model
    padding_idx: int = base.embeddings.padding_idx
    return padding_idx + 1


def _count_matmul(model: nn.Module, *, is_causal: bool) -> int:
    """Count the weights one token is multiplied with, without the output layer."""
    body: Any = model.base_model if is_causal else model.base_model.encoder
    modules = [m for m in body.modules() if isinstance(m, nn.Linear | Conv1D)]
    if isinstance(projection := getattr(model.base_model, "embeddings_project", None), nn.Linear):
        modules.append(projection)
    return sum(module.weight.numel() for module in modules)
