"""Write tiny models as the installed sentence-transformers does, with the scores that it gives.

``python tests/sentence_models.py``, in an environment with the version to add, writes below
``export/written_by``: folders of other versions are tested as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

try:
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
except ModuleNotFoundError:  # Before version 6.
    from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

WORDS = ["oslo", "bergen", "king", "queen", "city", "is", "a", "in", "the", "of", "Oslo", "King"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LONG = "oslo is a city in the king of oslo bergen queen in the city of a king of the queen"
# (candidate, reference): the long ones are cut.
PAIRS = [
    ("oslo is a city", LONG),
    (LONG, "king"),
    ("king", "Oslo is the King of a city"),
    ("Oslo is the King of a city", "oslo is a city"),
]
WIDTH = 16


def write_plain(folder: Path) -> None:
    """Write an encoder and a classifier of one output, as transformers does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]))
    sizes: dict[str, Any] = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": 64,
    }
    torch.manual_seed(5)
    models = {
        "encoder": BertModel(BertConfig(**sizes)),
        "cross": BertForSequenceClassification(BertConfig(num_labels=1, **sizes)),
    }
    for name, model in models.items():
        for parameter in model.parameters():
            parameter.data *= 6  # Far from each other, so that a wrong reading shows.
        model.save_pretrained(folder / name)
        tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False)
        tokenizer.save_pretrained(folder / name)


def cosines(folder: Path) -> list[float]:
    """Return what the library says of the pairs, in one padded batch."""
    model = SentenceTransformer(str(folder), device="cpu")
    left, right = (
        model.encode([pair[side] for pair in PAIRS], convert_to_tensor=True) for side in (0, 1)
    )
    return [float(value) for value in torch.nn.functional.cosine_similarity(left, right)]


def predictions(folder: Path) -> list[float]:
    """Return the same of a cross-encoder, which reads the reference first."""
    model = CrossEncoder(str(folder), device="cpu")
    return [float(value) for value in model.predict([(right, left) for left, right in PAIRS])]


def main() -> None:
    """Write both kinds of model, and their scores."""
    version = ".".join(sentence_transformers.__version__.split(".")[:2])
    folder = Path(__file__).parent / "export" / "written_by" / version
    plain = folder / "plain"
    write_plain(plain)
    # Version 6 does not write it where it would read it again.
    is_lower = version.startswith("5.")
    encoder = Transformer(str(plain / "encoder"), max_seq_length=8, do_lower_case=is_lower)
    modules = [encoder, Pooling(WIDTH, pooling_mode="cls"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "bi"))
    cross = CrossEncoder(
        str(plain / "cross"), device="cpu", max_length=16, activation_fn=torch.nn.Identity()
    )
    cross.save_pretrained(str(folder / "cross"))
    for path in sorted(plain.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    plain.rmdir()
    for page in folder.rglob("README.md"):
        page.unlink()
    scores = {"bi": cosines(folder / "bi"), "cross": predictions(folder / "cross")}
    (folder / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
