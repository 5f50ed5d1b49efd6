"""Small random models as local folders, and artifacts built once for all export tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from qaeval_core.errors import ArtifactMissingError
from qaeval_core.models.artifact import Artifact, ArtifactRequest, default_root, find_artifact
from qaeval_core.models.record import GRAPHS
from qaeval_core.models.registry import resolve_model
from qaeval_core.models.source import ModelSource
from qaeval_export import build, traced
from qaeval_export.loading import LoadedModel, load_model
from qaeval_export.parity import parity_pairs

_SIZES = {
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    # Wide weights: attentions far apart, so that no rounding can swap the largest two.
    "initializer_range": 0.4,
}


def _texts() -> list[str]:
    return [text for pair in parity_pairs() for text in pair]


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    # The trainer numbers letters within words in another order in each run. Texts would then read
    # other weights, and now and then a rounding would be too large for the gate.
    within = sorted({f"##{letter}" for text in _texts() for letter in text if letter != " "})
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=[*special, *within])
    tokenizer.train_from_iterator(_texts(), trainer)
    vocab = tokenizer.get_vocab()
    # A new tokenizer: in the trained one those letters are special tokens.
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    return tokenizer


def _byte_pairs(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        _texts(),
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet),
    )
    return tokenizer


def _roberta_tokenizer() -> Tokenizer:
    tokenizer = _byte_pairs(["<s>", "<pad>", "</s>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def _bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**_SIZES, max_position_embeddings=512))


def _uniform_bert() -> Any:
    model = _bert()
    for layer in model.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.query.weight)
        torch.nn.init.zeros_(layer.attention.self.query.bias)
    return model


def _overflowing_bert() -> Any:
    model = _bert()
    for layer in model.encoder.layer:
        layer.attention.self.value.weight.data *= 1e6  # fp16 ends at 65,504.
        layer.attention.output.dense.weight.data *= 1e-6
    return model


def _roberta() -> Any:
    config = transformers.RobertaConfig(
        **_SIZES, max_position_embeddings=514, type_vocab_size=1, pad_token_id=1
    )
    return transformers.RobertaModel(config)


def _electra() -> Any:
    return transformers.ElectraModel(transformers.ElectraConfig(**_SIZES, embedding_size=16))


def _with_one_output(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of the cross-encoder of a model's type."""

    def make_pair_model() -> Any:
        config = make().config
        config.num_labels = 1
        # Less wide: logits of 5 are off by 1e-5 in fp32 itself, and otherwise on each processor.
        config.initializer_range = 0.2
        return transformers.AutoModelForSequenceClassification.from_config(config)

    return make_pair_model


def _with_two_labels(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of the token classifier of a model's type; label 0 is the answer's."""

    def make_token_model() -> Any:
        config = make().config
        config.num_labels = 2
        config.id2label, config.label2id = {0: "ANSWER", 1: "OTHER"}, {"ANSWER": 0, "OTHER": 1}
        return transformers.AutoModelForTokenClassification.from_config(config)

    return make_token_model


def _answering(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of the reader of a model's type."""
    return lambda: transformers.AutoModelForQuestionAnswering.from_config(make().config)


def _mpnet() -> Any:
    config = transformers.MPNetConfig(**_SIZES, max_position_embeddings=514, pad_token_id=1)
    return transformers.MPNetModel(config)


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=400,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> Any:
    config = transformers.LlamaConfig(
        **_SIZES, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False
    )
    return transformers.LlamaForCausalLM(config)


_SMALL: dict[str, tuple[Callable[[], Any], Callable[[], Tokenizer], dict[str, str]]] = {
    "bert": (_bert, _word_piece, {}),
    "uniform_bert": (_uniform_bert, _word_piece, {}),
    "overflowing_bert": (_overflowing_bert, _word_piece, {}),
    "roberta": (_roberta, _roberta_tokenizer, {}),
    "electra": (_electra, _word_piece, {}),
    "mpnet": (_mpnet, _roberta_tokenizer, {}),
    "bert_pairs": (_with_one_output(_bert), _word_piece, {}),
    "roberta_pairs": (_with_one_output(_roberta), _roberta_tokenizer, {}),
    "electra_pairs": (_with_one_output(_electra), _word_piece, {}),
    "mpnet_pairs": (_with_one_output(_mpnet), _roberta_tokenizer, {}),
    "bert_tokens": (_with_two_labels(_bert), _word_piece, {}),
    "mpnet_tokens": (_with_two_labels(_mpnet), _roberta_tokenizer, {}),
    "bert_answers": (_answering(_bert), _word_piece, {}),
    "roberta_answers": (_answering(_roberta), _roberta_tokenizer, {}),
    "electra_answers": (_answering(_electra), _word_piece, {}),
    "gpt2": (_gpt2, lambda: _byte_pairs(["<|end|>"]), {"eos_token": "<|end|>"}),
    "llama": (
        _llama,
        lambda: _byte_pairs(["<|end|>", "<s>"]),
        {"bos_token": "<s>", "eos_token": "<|end|>"},
    ),
}


def save_small(kind: str, folder: Path) -> Path:
    """Write a small random model of a kind as a local folder."""
    make_model, make_tokenizer, named = _SMALL[kind]
    torch.manual_seed(7)
    make_model().save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


class Workshop:
    """Models by kind, and their artifacts, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "artifacts"
        self._artifacts: dict[str, Artifact] = {}
        self._traced: dict[str, onnx.ModelProto] = {}
        self._loaded: dict[str, LoadedModel] = {}

    def model(self, kind: str) -> str:
        """Return what a user would write to name the model."""
        if kind not in _SMALL:
            return kind
        folder = self.folder / kind
        return str(folder if folder.is_dir() else save_small(kind, folder))

    def artifact(self, graph: str, kind: str, precision: str = "fp32", **options: Any) -> Artifact:
        """Return the artifact of a model, built at its first use."""
        allow_lossy = options.pop("allow_lossy", False)
        request = ArtifactRequest(
            graph, self.model(kind), precision, options, allow_lossy=allow_lossy
        )
        if request.folder_name not in self._artifacts:
            found = None if kind in _SMALL else self._found(request)
            self._artifacts[request.folder_name] = found or self._build(request)
        return self._artifacts[request.folder_name]

    @staticmethod
    def _found(request: ArtifactRequest) -> Artifact | None:
        """Return an artifact that another test has built, with the export as it is now: 100 s."""
        try:
            artifact = find_artifact(default_root(), request)
        except ArtifactMissingError:
            return None
        folder = Path(build.__file__).parent
        sources = [*folder.glob("*.py"), *folder.glob("graphs/*.py")]
        changed_s = max(path.stat().st_mtime for path in sources)
        return artifact if artifact.model_path.stat().st_mtime > changed_s else None

    def build(self, graph: str, model: str) -> Artifact:
        """Build an artifact of any model folder, with nothing kept in memory."""
        return build.build_artifact(ArtifactRequest(graph, model, "fp32"), self.root)

    @staticmethod
    def role(graph: str) -> str:
        """Return the role of a graph's model."""
        return GRAPHS[graph].role

    def loaded(self, kind: str, role: str) -> LoadedModel:
        """Return a model as transformers has it, loaded once: SmolLM2 takes 15 s."""
        return self._load(resolve_model(self.model(kind), role=role), role=role)

    def _load(self, source: ModelSource, *, role: str, loads_as: str = "") -> LoadedModel:
        key = f"{role} {source.folder} {source.adapter}"
        if key not in self._loaded:
            self._loaded[key] = load_model(source, role=role, loads_as=loads_as)
        return self._loaded[key]

    def _build(self, request: ArtifactRequest) -> Artifact:
        """Build with the model traced once, however many precisions are asked for: 10 s each."""
        key = replace(request, precision="fp32", allow_lossy=False).folder_name
        with pytest.MonkeyPatch.context() as patch:
            if key in self._traced:
                patch.setattr(traced, "trace", lambda *_: self._traced[key])
            patch.setattr(traced, "load_model", self._load)
            artifact = build.build_artifact(request, self.root)
        if artifact.record.precision == "fp32":
            self._traced[key] = onnx.load(artifact.model_path)
        return artifact

    def session(self, artifact: Artifact) -> ort.InferenceSession:
        """Open an artifact's graph."""
        return ort.InferenceSession(artifact.model_path, providers=["CPUExecutionProvider"])
