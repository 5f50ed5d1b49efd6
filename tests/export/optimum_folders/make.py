"""Tiny models, and the folders that optimum's ONNX exporter made of them; kept as test data.

optimum-onnx needs an older transformers than this project. In the project's environment
``python make.py models FOLDER`` writes the models; in one of its own ``python make.py export
FOLDER`` exports them to the folders beside this file::

    pip install --no-deps --target OLD optimum-onnx==0.1.0 optimum==2.1.0 \
        transformers==4.57.6 'tokenizers<0.23' 'huggingface-hub<1.0'
    PYTHONPATH=OLD python make.py export FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent
_SIZES = {
    "vocab_size": 400,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.4,
}
TASKS = {"cross_encoder": "text-classification", "sentence_encoder": "feature-extraction"}
_MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": "", "idx": 0, "name": "0"},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling", "idx": 1, "name": "1"},
]


def write_models(folder: Path) -> None:
    """Write a cross-encoder of RoBERTa's type and a sentence encoder of BERT's."""
    sys.path.insert(0, str(HERE.parents[1]))
    from workshop import _roberta_tokenizer, _word_piece

    torch.manual_seed(5)
    pairs = transformers.RobertaConfig(
        **_SIZES, max_position_embeddings=162, type_vocab_size=1, pad_token_id=1, num_labels=1
    )
    texts = transformers.BertConfig(**_SIZES, max_position_embeddings=160)
    models = {
        "cross_encoder": transformers.AutoModelForSequenceClassification.from_config(pairs),
        "sentence_encoder": transformers.AutoModel.from_config(texts),
    }
    tokenizers = {"cross_encoder": _roberta_tokenizer(), "sentence_encoder": _word_piece()}
    for name, model in models.items():
        own = folder / name
        model.save_pretrained(own)
        tokenizers[name].save(str(own / "tokenizer.json"))
        fields = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 160}
        (own / "tokenizer_config.json").write_text(json.dumps(fields))
    own = folder / "sentence_encoder"
    (own / "modules.json").write_text(json.dumps(_MODULES))
    (own / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (own / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def export(folder: Path) -> None:
    """Export both, and keep what a repository of such a model has."""
    from optimum.exporters.onnx import main_export

    for name, task in TASKS.items():
        main_export(
            folder / name, HERE / name, task=task, library_name="transformers", framework="pt"
        )
        for file in ("model.safetensors", "modules.json", "1_Pooling"):
            source, kept = folder / name / file, HERE / name / file
            if source.is_dir():
                shutil.copytree(source, kept, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy(source, kept)
        for path in HERE.glob(f"{name}/**/*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    {"models": write_models, "export": export}[sys.argv[1]](Path(sys.argv[2]))
