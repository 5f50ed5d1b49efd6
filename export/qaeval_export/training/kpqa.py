"""KPQA: a keyphrase predictor, which gives each token of a text its chance to be in the answer.

A token classifier on the pair (question, text); the text is the sentence with the answer. Trained
by cross-entropy on the tokens of the text alone.

Source
------
Lee et al. KPQA. NAACL 2021, arXiv:2005.00192, sections 3.1 and 5.1: split 9:1, lowest dev loss. The
authors' program: batches of 64, at most 96 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qaeval_core.errors import InputError
from qaeval_core.models.source import ModelSource
from qaeval_export.training.inputs import check_files, split_squad
from qaeval_export.training.keyphrases import (
    Keyphrase,
    SentenceSplitter,
    keyphrases,
    token_labels,
)
from qaeval_export.training.loop import Task, dev_batches
from qaeval_export.training.model import load_tokenizer
from qaeval_export.training.options import KpqaOptions

_NOT_JUDGED = -1.0


class KpqaTask(Task):
    """Labeled texts, and how they train and judge a model.

    Parameters
    ----------
    options : KpqaOptions
    source : ModelSource
        Of the base.

    Raises
    ------
    InputError
        If a file, field or offset is not as it must be.
    """

    kind = "kpqa"

    def __init__(self, options: KpqaOptions, source: ModelSource) -> None:
        self.files = {"--squad": options.squad, "--dev": [options.dev] if options.dev else []}
        check_files(self.files)
        train, dev = split_squad(
            options.squad, options.dev, share=options.dev_share, seed=options.seed
        )
        splitter = SentenceSplitter(options.language)
        self.tokenizer = load_tokenizer(source)
        self.settings = {"--language": options.language}
        (self._train, self.n_tokens), (self._dev, _) = (
            encode_keyphrases(
                keyphrases(part, splitter), self.tokenizer, max_tokens=options.max_tokens
            )
            for part in (train, dev)
        )
        if not self._train or not self._dev:
            raise InputError(f"--max-tokens {options.max_tokens} cuts off every answer [QA0902]")
        self.n_dev = len(self._dev)

    def collate(self, items: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        """Return a batch of texts; every epoch meets the same ones."""
        return self._pad([self._train[row] for row, _ in items])

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the judged tokens; logits (n_texts, n_tokens, 2)."""
        return _losses(logits, labels).mean()

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return dev scores of a task model, over all tokens of all dev texts."""
        shares, chances, losses = [], [], []
        for example, logits in zip(self._dev, self._dev_logits(model), strict=True):
            labels = torch.tensor(example["labels"])
            judged = labels >= 0
            losses.append(_losses(logits, labels))
            shares.append(labels[judged])
            chances.append(logits[judged].softmax(dim=-1)[:, 1])
        share, chance = torch.cat(shares).numpy(), torch.cat(chances).numpy()
        is_answer, is_marked = share >= 0.5, chance >= 0.5
        n_both = 2 * int((is_answer & is_marked).sum())
        return {
            "loss": float(torch.cat(losses).double().mean()),
            "average_precision": average_precision(is_answer, chance),
            "token_f1": n_both / max(int(is_answer.sum() + is_marked.sum()), 1),
        }

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _dev_logits(self, model: Any) -> list[torch.Tensor]:
        """Return the logits of each dev text, in fp32, without padding."""
        found: dict[int, torch.Tensor] = {}
        for rows in dev_batches(model, [len(example["input_ids"]) for example in self._dev]):
            batch = self._pad([self._dev[row] for row in rows])
            del batch["labels"]
            inputs = {name: values.to(model.device) for name, values in batch.items()}
            for row, logits in zip(rows, model(**inputs).logits.cpu(), strict=True):
                found[row] = logits[: len(self._dev[row]["input_ids"])]
        return [found[row] for row in range(self.n_dev)]

    def _pad(self, examples: Sequence[dict[str, list[Any]]]) -> dict[str, torch.Tensor]:
        fills = {"input_ids": self.tokenizer.pad_token_id, "labels": _NOT_JUDGED}
        n_tokens = max(len(example["input_ids"]) for example in examples)
        return {
            name: torch.tensor(
                [e[name] + [fills.get(name, 0)] * (n_tokens - len(e[name])) for e in examples]
            )
            for name in examples[0]
        }


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each judged token against its share; shape (n_judged,)."""
    judged = labels >= 0
    share = labels[judged].float()
    log_p = logits[judged].float().log_softmax(dim=-1)
    return -(share * log_p[:, 1] + (1 - share) * log_p[:, 0])


def encode_keyphrases(
    examples: Sequence[Keyphrase], tokenizer: Any, *, max_tokens: int
) -> tuple[list[dict[str, list[Any]]], list[int]]:
    """Return the model's inputs with labels, and the tokens of each before it was cut.

    Parameters
    ----------
    max_tokens : int
        Of a pair. The longer side is cut first; a text that loses its answer is left out.

    Returns
    -------
    list of dict
        ``input_ids``, ``attention_mask``, ``token_type_ids`` where the model has them, and
        ``labels``: the share of annotators on tokens of the text, -1 elsewhere.
    list of int
        Tokens of each kept pair, special tokens included, uncut.
    """
    questions, texts = [e.question for e in examples], [e.text for e in examples]
    uncut = tokenizer(questions, texts)["input_ids"]
    encoded = tokenizer(
        questions,
        texts,
        truncation="longest_first",
        max_length=max_tokens,
        return_offsets_mapping=True,
    )
    inputs, n_tokens = [], []
    for row, example in enumerate(examples):
        in_text = [side == 1 for side in encoded.sequence_ids(row)]
        shares = token_labels(encoded["offset_mapping"][row], example.spans)
        labels = [
            share if text else _NOT_JUDGED for share, text in zip(shares, in_text, strict=True)
        ]
        if max(labels) <= 0:
            continue
        fields = {name: encoded[name][row] for name in tokenizer.model_input_names}
        inputs.append({**fields, "labels": labels})
        n_tokens.append(len(uncut[row]))
    return inputs, n_tokens


def average_precision(is_answer: np.ndarray, chance: np.ndarray) -> float:
    """Return the mean precision at the tokens of answers, most likely tokens first.

    Parameters
    ----------
    is_answer : bool array of shape (n_tokens,)
    chance : float array of shape (n_tokens,)

    Returns
    -------
    float
        In [0, 1], higher is better; NaN without answers. Tied tokens count in their order.

    Examples
    --------
    >>> average_precision(np.array([True, False, True]), np.array([0.9, 0.8, 0.7]))
    0.8333333333333333
    """
    hits = is_answer[np.argsort(-chance, kind="stable")]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[hits].mean()) if hits.any() else float("nan")
