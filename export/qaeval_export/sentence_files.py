"""Sentence files: what sentence-transformers says of a model beside its weights.

Its versions 2 to 6 keep settings in several files, and move them from one to another: what pools,
which texts are cut where, letter case, the activation of a cross-encoder. All of them are read
here. What is not understood is refused by name: the numbers would be others than the library's.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from tokenizers import Tokenizer, normalizers

from qaeval_core.errors import ExportError
from qaeval_core.models.source import ModelSource

_Remade = tuple[str, str, dict[str, tuple[str, bool | None]]]

MAIN_FILE = "config_sentence_transformers.json"
# In the order in which the library looks for them.
_TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Settings that change no number of texts without a prompt, task or chat.
_HARMLESS = re.compile(
    "max_seq_length|do_lower_case|transformer_task|modality_config|module_output_name|unpad_inputs"
    "|query_length|document_length"
)
_PACKAGE = "sentence_transformers."
_TASKS = {"SentenceTransformer": "feature-extraction", "CrossEncoder": "sequence-classification"}
# What the graphs compute: a method of the model, what is taken of its output, and its name.
_OUTPUTS = {
    "SentenceTransformer": ("forward", "last_hidden_state", "token_embeddings"),
    "CrossEncoder": ("forward", "logits", "scores"),
}
# Of these tokenizers transformers makes a part anew, of flags and their defaults, whatever
# tokenizer.json has: the part, its type, and by flag its name there and the default.
_BERT: _Remade = (
    "normalizer",
    "BertNormalizer",
    {
        "do_lower_case": ("lowercase", True),
        "strip_accents": ("strip_accents", None),
        "tokenize_chinese_chars": ("handle_chinese_chars", True),
    },
)
_ROBERTA: _Remade = (
    "pre_tokenizer",
    "ByteLevel",
    {"add_prefix_space": ("add_prefix_space", False)},
)
_REMADE = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert", "mpnet"), _BERT),
    "roberta": _ROBERTA,
}
# These count positions from padding_idx + 1, wherever the padding is.
FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
_POOLINGS: dict[str, Literal["mean", "cls", "max"]] = {
    "mean_tokens": "mean",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",  # the same direction
    "cls_token": "cls",
    "cls": "cls",
    "max_tokens": "max",
    "max": "max",
}

Kind = Literal["SentenceTransformer", "CrossEncoder"]


class SentenceFiles:
    """The files of one model.

    Parameters
    ----------
    source : ModelSource
        A plain model of transformers has none of them, and the library's defaults hold.
    kind : {"SentenceTransformer", "CrossEncoder"}
        What the model is used as.

    Raises
    ------
    ExportError
        If they say what is not supported: another kind of model or module, a default prompt,
        shortened vectors, outputs of another layer, or texts that are cut or padded at their
        beginning.
    """

    def __init__(self, source: ModelSource, kind: Kind) -> None:
        self._source = source
        self._kind = kind
        # An adapter makes another model of its base, which the base's files say nothing of.
        is_own = source.adapter is None
        self._main = self._read(MAIN_FILE) if is_own else {}
        self._modules: list[dict[str, Any]] = self._read("modules.json", []) if is_own else []
        # Files of a bi-encoder whose weights are read as a plain cross-encoder.
        if kind == "CrossEncoder" and self._main.get("model_type") == "SentenceTransformer":
            self._main, self._modules = {}, []
        known = (name for name in _TRANSFORMER_FILES if (source.folder / name).is_file())
        first = next(known, "")
        uses_settings = bool(self._modules) or (is_own and kind == "SentenceTransformer")
        self._settings = self._read(first) if first and uses_settings else {}
        self._tokenizer = self._read("tokenizer_config.json")
        self._model_type = self._read("config.json").get("model_type")
        self._check(first)

    @property
    def is_cross(self) -> bool:
        """Whether it is read as a cross-encoder."""
        return self._kind == "CrossEncoder"

    def _read(self, name: str, missing: Any = None) -> Any:
        path = self._source.folder / name
        if not path.is_file():
            return {} if missing is None else missing
        return json.loads(path.read_text(encoding="utf-8"))

    def _refuse(self, what: str) -> ExportError:
        return ExportError(f"{self._source.name} {what}: not supported [QA0408]")

    def _check(self, settings_file: str) -> None:
        main, kind = self._main, self._kind
        if main.get("model_type", kind) != kind:
            raise self._refuse(f"is a {main['model_type']}, not a {kind} ({MAIN_FILE})")
        prompt = (main.get("prompts") or {}).get(main.get("default_prompt_name"))
        if prompt:
            raise self._refuse(f"begins each text with the prompt {prompt!r} ({MAIN_FILE})")
        if main.get("truncate_dim"):
            raise self._refuse(f"cuts its vectors to {main['truncate_dim']} numbers ({MAIN_FILE})")
        self._check_modules()
        task = self._settings.get("transformer_task") or _TASKS[kind]
        if task != _TASKS[kind]:
            raise self._refuse(f"is a transformer for {task} ({settings_file})")
        for name, value in self._settings.items():
            if value and not _HARMLESS.fullmatch(name):
                raise self._refuse(f"sets {name} to {value!r} ({settings_file})")
        self._check_outputs(settings_file)
        self._check_sides()

    def _check_outputs(self, settings_file: str) -> None:
        method, output, name = _OUTPUTS[self._kind]
        modalities = self._settings.get("modality_config")
        if modalities is not None:
            own = modalities.get("text") or {}
            if (own.get("method"), own.get("method_output_name")) != (method, output):
                raise self._refuse(f"sets modality_config to {modalities!r} ({settings_file})")
        given = self._settings.get("module_output_name")
        if given not in (None, name):
            raise self._refuse(f"sets module_output_name to {given!r} ({settings_file})")

    def _check_sides(self) -> None:
        content = self._read("tokenizer.json")
        cut, padded = (
            str(
                self._tokenizer.get(f"{section}_side")
                or (content.get(section) or {}).get("direction")
                or "right"
            ).lower()
            for section in ("truncation", "padding")
        )
        if cut != "right":
            raise self._refuse(f"cuts texts on the {cut} (tokenizer_config.json)")
        # The library's own numbers depend on what else is in the batch then.
        if padded != "right" and self._model_type not in FROM_PADDING:
            raise self._refuse(f"pads texts on the {padded} (tokenizer_config.json)")

    def _check_modules(self) -> None:
        allowed = {"Transformer"}
        allowed |= set() if self.is_cross else {"Pooling", "Normalize"}
        for module in self._modules:
            path = str(module["type"])
            last = _class_name(path)
            if last not in allowed:
                raise self._refuse(f"ends in {last} (modules.json)")
            if not path.startswith(_PACKAGE):
                raise self._refuse(f"has a module of others, {path} (modules.json)")
            if last == "Transformer" and module.get("path"):
                raise self._refuse(f"has its weights in {module['path']} (modules.json)")

    def activation(self, config: Any) -> Literal["sigmoid", "identity"]:
        """Return what a cross-encoder does with its logit; a sigmoid where nothing is named."""
        older = getattr(config, "sentence_transformers", None) or {}
        oldest = getattr(config, "sbert_ce_default_activation_function", None)
        # The library looks no further than at a null in config.json.
        named = self._main.get("activation_fn") or older.get("activation_fn", oldest)
        named = str(named or "torch.nn.Sigmoid")
        last = _class_name(named)
        if last not in ("Sigmoid", "Identity") or not named.startswith("torch."):
            raise ExportError(
                f"activation {named} is not supported; use Sigmoid or Identity [QA0408]"
            )
        return "sigmoid" if last == "Sigmoid" else "identity"

    def pooling(self) -> Literal["mean", "cls", "max"]:
        """Return how the vectors of tokens become one; a plain encoder takes the mean.

        Raises
        ------
        ExportError
            If that is another way.
        """
        if not self._modules:
            return "mean"  # A folder 1_Pooling that no file names is not looked at.
        folders = [
            str(module.get("path", "1_Pooling"))
            for module in self._modules
            if _class_name(module["type"]) == "Pooling"
        ]
        given = self._read(f"{folders[0]}/config.json") if folders else {}
        if "pooling_mode" in given:  # newer files name it
            named = given["pooling_mode"]
            on = set(named) if isinstance(named, list) else {str(named)}
        else:
            on = {
                key.removeprefix("pooling_mode_") for key, value in given.items() if value is True
            }
        on -= {"include_prompt"}
        found = [_POOLINGS[key] for key in on if key in _POOLINGS]
        if len(folders) > 1 or len(on) != 1 or not found:
            raise ExportError(f"{self._source.name} pools by {sorted(on)}: not supported [QA0408]")
        return found[0]

    def max_tokens(self, config: Any) -> int:
        """Return where texts are cut, special tokens included."""
        given = self._settings.get("max_seq_length")
        if given:
            return int(given)
        # A tokenizer without a limit of its own says 1e30.
        limit = self._tokenizer.get("model_max_length") or config.max_position_embeddings
        return int(min(limit, config.max_position_embeddings))

    def with_case(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return a tokenizer that treats letters as the model's files want: case, accents, signs.

        Raises
        ------
        ExportError
            If they disagree: versions of transformers read such files in different ways.
        """
        content = json.loads(tokenizer.to_str())
        normalizer, named = content["normalizer"], self._tokenizer.get("do_lower_case")
        part, kind, flags = self._remade()
        if flags and (content[part] or {}).get("type") == kind:
            for flag, (name, default) in flags.items():
                content[part][name] = self._tokenizer.get(flag, default)
            tokenizer = Tokenizer.from_str(json.dumps(content))
        elif named is False and _lowers(normalizer):
            raise self._refuse("lowers letters by tokenizer.json, and not by tokenizer_config.json")
        elif flags and "tokenizer_class" in self._tokenizer:
            raise self._refuse(f"has another {part} in tokenizer.json than its class, {kind}")
        if self._settings.get("do_lower_case") and not _lowers(normalizer):
            own = [tokenizer.normalizer] if normalizer is not None else []
            tokenizer = Tokenizer.from_str(json.dumps(content))
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        return tokenizer

    def _remade(self) -> _Remade:
        """Return what transformers makes anew of this tokenizer."""
        named = self._tokenizer.get("tokenizer_class")
        if named is None:
            return _REMADE.get(str(self._model_type), ("", "", {}))
        name = str(named).removesuffix("Fast").removesuffix("Tokenizer").lower()
        return _REMADE.get(name, ("", "", {}))


def _class_name(path: object) -> str:
    return str(path).rpartition(".")[2]


def _lowers(normalizer: Any) -> bool:
    """Return whether a normalizer, as tokenizer.json has it, makes letters small."""
    if normalizer is None:
        return False
    inner = normalizer.get("normalizers", ())
    is_lower = normalizer["type"] == "Lowercase" or normalizer.get("lowercase") is True
    return is_lower or any(map(_lowers, inner))
