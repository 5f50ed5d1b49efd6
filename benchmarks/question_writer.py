"""Question writer: a small causal model that learns to ask for a marked span of a sentence.

It is trained on people's questions, and writes questions for spans of other passages: the data of
an augmentation, noise as it comes. Nothing is filtered but lines that are no question. Spans are
found by their looks alone (names, numbers, short phrases after an article), so they are simpler
than people's answers. Decoding is greedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from peft import LoraConfig, get_peft_model

from benchmarks.squad_parts import sentences
from qaeval_core.models.registry import resolve_model
from qaeval_export.loading import load_model
from qaeval_export.training.loop import Task, dev_batches, train
from qaeval_export.training.model import load_merged, save_adapter
from qaeval_export.training.options import TrainingOptions

MAX_NEW_TOKENS = 32
_IGNORED = -100
_BATCH = 32

_SPAN = re.compile(
    r"(?P<name>[A-Z][\w'-]+(?: (?:of |the |de |and )?[A-Z][\w'-]+)*)"
    r"|(?P<number>\d[\d,.]*\d%?|\d%?)"
    r"|\b(?:the|a|an) (?P<phrase>[a-z-]{3,}(?: [a-z-]{3,})?)"
    r"(?= (?:of|in|to|and|is|was|by|that)\b|[,.;])"
)


def answer_spans(passage: str, *, most: int, seed: Sequence[int]) -> list[tuple[str, int]]:
    """Return spans that could be answers with their places, each text once, drawn by chance.

    A single word with a capital is no name where a sentence begins with it.

    Examples
    --------
    >>> text = "They met Ann Lee in 1901. People sold the old mill of Bo."
    >>> answer_spans(text, most=9, seed=[0])
    [('Ann Lee', 9), ('1901', 20), ('old mill', 42), ('Bo', 54)]
    """
    found: dict[str, int] = {}
    for match in _SPAN.finditer(passage):
        kind = match.lastgroup or ""
        text, start = match[kind], match.start(kind)
        begins = not passage[:start].strip() or passage[:start].rstrip()[-1] in '.!?"('
        if not (kind == "name" and begins and " " not in text):
            found.setdefault(text, start)
    spans = list(found.items())
    chosen = np.random.default_rng(list(seed)).permutation(len(spans))[:most]
    return [spans[place] for place in sorted(chosen)]


def prompt(passage: str, answer: str, start: int) -> str:
    """Return what the model reads: the sentence of a span, in which the span is marked.

    Examples
    --------
    >>> prompt("Ann left. Bo sold the mill.", "Bo", 10)
    '<<Bo>> sold the mill.\\nQuestion:'
    """
    end = start + len(answer)
    first = next(own for own in reversed(sentences(passage)) if own[0] <= start)[0]
    last = next(own for own in sentences(passage) if end <= own[1])[1]
    marked = f"{passage[first:start]}<<{answer}>>{passage[end:last]}"
    return f"{' '.join(marked.split())}\nQuestion:"


class WriterTask(Task):
    """People's questions, each to be written from its first answer's sentence.

    Parameters
    ----------
    rows, dev : DataFrame
        SQuAD's columns.
    tokenizer : Tokenizer
    """

    kind = "writer"

    def __init__(self, rows: pl.DataFrame, dev: pl.DataFrame, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._rows, self._dev = self._examples(rows), self._examples(dev)
        self.n_tokens = [len(ids) for ids, _ in self._rows]
        self.n_dev = len(self._dev)

    def collate(self, items: list[tuple[int, int]]) -> dict[str, Any]:
        """Return padded inputs: the ends of all rows are aligned, and there is what is learned."""
        return self._inputs([self._rows[row] for row, _ in items])

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of the questions' tokens."""
        return torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED
        )

    @torch.inference_mode()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Return the mean loss of the dev questions."""
        losses = []
        for batch in dev_batches(model, [len(ids) for ids, _ in self._dev]):
            inputs = self._inputs([self._dev[row] for row in batch])
            labels = inputs.pop("labels")
            losses.append(float(self.loss(model(**inputs).logits, labels)))
        return {"loss": float(np.mean(losses))}

    def _examples(self, rows: pl.DataFrame) -> list[tuple[list[int], int]]:
        """Return ids of each row, and how many at their end are the question's."""
        found = []
        for row in rows.iter_rows(named=True):
            read = prompt(row["context"], row["answers"][0], row["answer_starts"][0])
            own = ids_of(self._tokenizer, f" {' '.join(row['question'].split())}\n")
            found.append((ids_of(self._tokenizer, read) + own, len(own)))
        return found

    def _inputs(self, examples: Sequence[tuple[list[int], int]]) -> dict[str, Any]:
        inputs = left_padded([ids for ids, _ in examples])
        n_learned = 1 + max(n for _, n in examples)
        labels = inputs["input_ids"][:, -n_learned:].clone()
        for row, (_, n) in enumerate(examples):
            labels[row, : n_learned - n] = _IGNORED
        # No more of tokens x vocabulary than is learned from.
        return inputs | {"labels": labels, "logits_to_keep": n_learned}


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text, without a beginning or an end."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def left_padded(rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Return a causal model's inputs, padded at the beginning, places counted without padding.

    Examples
    --------
    >>> left_padded([[7, 8], [9]])["position_ids"].tolist()
    [[0, 1], [0, 0]]
    """
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(own)) + list(own) for own in rows])
    mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in rows])
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places}


def train_writer(
    out: Path, *, base: str, rows: pl.DataFrame, dev: pl.DataFrame, options: TrainingOptions
) -> None:
    """Train a writer and keep its adapter; a training that was stopped goes on."""
    if (out / "adapter_config.json").is_file():
        return
    loaded = load_model(resolve_model(base, role="causal_lm"), role="causal_lm")
    layers = LoraConfig(
        r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear"
    )  # fmt: skip
    adapter = get_peft_model(loaded.model, layers)
    out.mkdir(parents=True, exist_ok=True)
    train(WriterTask(rows, dev, loaded.tokenizer), loaded.model, options, out / "checkpoints")
    save_adapter(adapter, out, base=base, dtype=torch.float32)


class QuestionWriter:
    """A trained writer.

    Parameters
    ----------
    folder : Path
        Of the adapter.
    base : str
        The causal model that it was trained from.
    """

    def __init__(self, folder: Path, *, base: str) -> None:
        loaded = load_model(resolve_model(base, role="causal_lm"), role="causal_lm")
        self._model: Any = load_merged(loaded.model, folder)
        self._tokenizer = loaded.tokenizer
        (self._end,) = ids_of(self._tokenizer, "\n")

    def write(self, asked: Sequence[tuple[str, str, int]]) -> list[str | None]:
        """Return a question for each passage, answer and its place; None where a line is none."""
        prompts = [ids_of(self._tokenizer, prompt(*one)) for one in asked]
        found: list[str | None] = [None] * len(asked)
        for batch in _batches([len(ids) for ids in prompts]):
            lines = self._lines([prompts[row] for row in batch])
            for row, line in zip(batch, lines, strict=True):
                if line.endswith("?"):
                    found[row] = line
        return found

    @torch.inference_mode()
    def _lines(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        inputs = left_padded(prompts)
        del inputs["position_ids"]  # Made from the mask, for each new token.
        written = self._model.generate(
            **inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=self._end, pad_token_id=self._end,
        )  # fmt: skip
        width = inputs["input_ids"].shape[1]
        return [self._tokenizer.decode(own).strip() for own in written[:, width:].tolist()]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    yield from (order[start : start + _BATCH] for start in range(0, len(order), _BATCH))
