"""Tiny readers, and what transformers 4's pipeline answered with them; both are kept as test data.

Version 5 has no such pipeline. In the project's environment ``python make.py models`` writes the
models; with transformers 4 on the path ``python make.py answers`` asks them::

    pip install --target OLD --no-deps transformers==4.57.6 'tokenizers<0.23' 'huggingface-hub<1.0'
    PYTHONPATH=OLD python make.py answers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent
CONTEXTS = (
    "Anna painted the sea every day, yet she never learned to swim.",
    "The mill closed in the autumn of 1923; its owner, an old man by then, kept the key.",
    "A kilogram of apples costs €2.40, pears cost €3.10.",
    "Der Fluss fließt durch die Altstadt.",
    "Bees need water in summer, and they fly up to three kilometres to find it.",
    "Nobody knew why the clock in the tower had stopped at a quarter past four.",
)
QUESTIONS = ("Who painted?", "When did the mill close?", "What does it cost?", "Why?", "bees water")
SPECIAL = {
    "bert": {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    },
    "roberta": {
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "model_input_names": ["input_ids", "attention_mask"],
    },
}
_SIZES = {
    "vocab_size": 400,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.6,
}


def write_models() -> None:
    """Write a random model of each kind, with the vocabulary that tests have."""
    sys.path.insert(0, str(HERE.parents[1]))
    from workshop import _roberta_tokenizer, _word_piece

    configs = {
        "bert": transformers.BertConfig(**_SIZES, max_position_embeddings=160),
        "roberta": transformers.RobertaConfig(
            **_SIZES, max_position_embeddings=162, type_vocab_size=1, pad_token_id=1
        ),
    }
    tokenizers = {"bert": _word_piece(), "roberta": _roberta_tokenizer()}
    for kind, config in configs.items():
        torch.manual_seed(11)
        transformers.AutoModelForQuestionAnswering.from_config(config).save_pretrained(HERE / kind)
        tokenizers[kind].no_truncation()
        tokenizers[kind].no_padding()
        tokenizers[kind].save(str(HERE / kind / "tokenizer.json"))


def answer(ask: transformers.Pipeline, question: str, context: str) -> dict[str, object]:
    """Return the span that the pipeline found.

    Spans of tokens: where it takes whole words, it adds up the scores of spans in equal words.
    """
    found = ask(
        question=question,
        context=context,
        max_answer_len=30,
        max_seq_len=150,
        align_to_words=False,
    )
    return {name: found[name] for name in ("start", "end", "answer")}


def write_answers() -> None:
    """Ask each question of each context."""
    found: dict[str, object] = {"transformers": transformers.__version__}
    for kind, special in SPECIAL.items():
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(HERE / kind / "tokenizer.json"), **special
        )
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(HERE / kind)
        ask = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer)
        found[kind] = [
            {"question": question, "context": context, **answer(ask, question, context)}
            for context in CONTEXTS
            for question in QUESTIONS
        ]
    (HERE / "answers.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    {"models": write_models, "answers": write_answers}[sys.argv[1]]()
