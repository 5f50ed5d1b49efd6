"""Cross-encoder: a model that reads two texts at once and says how similar in meaning they are.

Trained by binary cross-entropy on scores in [0, 1]. Every pair is seen in both orders, one in even
and one in odd epochs, and dev scores are means of both.

Source
------
Reimers, Gurevych. Sentence-BERT. EMNLP 2019, arXiv:1908.10084, section 3 (the cross-encoder it
compares with). Risch, Moeller, Gutsch, Pietsch. Semantic Answer Similarity. MRQA 2021,
arXiv:2108.06130, section 4 (its use as a metric).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from scipy.stats import pearsonr, spearmanr
from torch.nn.functional import binary_cross_entropy_with_logits

from qaeval_core.models.source import ModelSource
from qaeval_export.training.inputs import TrainingPairs, check_files, hold_out_pairs, read_pairs
from qaeval_export.training.loop import Task
from qaeval_export.training.model import load_tokenizer
from qaeval_export.training.options import CrossEncoderOptions

_DEV_BATCH = 64


class CrossEncoderTask(Task):
    """Pairs, and how they train and judge a model.

    Parameters
    ----------
    options : CrossEncoderOptions
    source : ModelSource
        Of the base.

    Raises
    ------
    InputError
        If a file, column or value is not as it must be.
    """

    kind = "cross-encoder"

    def __init__(self, options: CrossEncoderOptions, source: ModelSource) -> None:
        self.files = {"--pairs": options.pairs, "--dev": [options.dev] if options.dev else []}
        check_files(self.files)
        pairs = read_pairs(options.pairs, columns=options.columns, scale=options.scale)
        if options.dev:
            self.train = pairs
            self.dev = read_pairs([options.dev], columns=options.columns, scale=options.scale)
        else:
            self.train, self.dev = hold_out_pairs(pairs, share=options.dev_share, seed=options.seed)
        self.n_dev = len(self.dev)
        self.tokenizer = load_tokenizer(source)
        self.n_tokens = _pair_lengths(self.tokenizer, self.train)
        self._max_tokens = options.max_tokens
        self.settings = {
            **{f"--column {name}": column for name, column in options.columns.items()},
            "--scale": options.scale,
        }

    def collate(self, items: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        """Return a batch of pairs, each in the order of its row and epoch."""
        sides: tuple[list[str], list[str]] = ([], [])
        for row, epoch in items:
            swapped = (row + epoch) % 2
            sides[swapped].append(self.train.text_a[row])
            sides[1 - swapped].append(self.train.text_b[row])
        labels = torch.tensor([self.train.score[row] for row, _ in items])
        return {**_encode(self.tokenizer, *sides, max_tokens=self._max_tokens), "labels": labels}

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean binary cross-entropy; logits of shape (n_pairs, 1)."""
        return binary_cross_entropy_with_logits(logits.view(-1), labels)

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return dev scores of a task model: the loss, and how well it agrees with the labels."""
        both = [
            pair_logits(model, self.tokenizer, pairs=pairs, max_tokens=self._max_tokens)
            for pairs in (self.dev, TrainingPairs(self.dev.text_b, self.dev.text_a, self.dev.score))
        ]
        label = torch.tensor(self.dev.score, dtype=torch.float64)
        score = (both[0].sigmoid() + both[1].sigmoid()) / 2
        scores = {"loss": sum(float(self.loss(logit, label)) for logit in both) / 2}
        if len(set(self.dev.score)) > 1:
            scores["pearson"] = float(pearsonr(score.numpy(), label.numpy()).statistic)
            scores["spearman"] = float(spearmanr(score.numpy(), label.numpy()).statistic)
        scores["mean_abs_order_gap"] = float((both[0].sigmoid() - both[1].sigmoid()).abs().mean())
        return scores


def _pair_lengths(tokenizer: Any, pairs: TrainingPairs) -> list[int]:
    """Return the tokens of each pair, special tokens included, uncut."""
    texts = list(zip(pairs.text_a, pairs.text_b, strict=True))
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts)
    return [len(encoding.ids) for encoding in encodings]


def _encode(tokenizer: Any, text_a: list[str], text_b: list[str], *, max_tokens: int) -> Any:
    """Return a padded batch; the longer side of a pair is cut first."""
    return tokenizer(
        text_a,
        text_b,
        padding=True,
        truncation="longest_first",
        max_length=max_tokens,
        return_tensors="pt",
    )


@torch.inference_mode()  # type: ignore[untyped-decorator]
def pair_logits(
    model: Any, tokenizer: Any, *, pairs: TrainingPairs, max_tokens: int
) -> torch.Tensor:
    """Return a logit for each pair, in fp32 on the model's device; float64 of shape (n_pairs,)."""
    model.eval()
    order: Sequence[int] = sorted(
        range(len(pairs)), key=lambda row: len(pairs.text_a[row]) + len(pairs.text_b[row])
    )
    logits = torch.empty(len(pairs), dtype=torch.float64)
    for start in range(0, len(order), _DEV_BATCH):
        rows = order[start : start + _DEV_BATCH]
        batch = pairs.take(rows)
        encoded = _encode(tokenizer, batch.text_a, batch.text_b, max_tokens=max_tokens)
        logits[list(rows)] = model(**encoded.to(model.device)).logits[:, 0].double().cpu()
    return logits
