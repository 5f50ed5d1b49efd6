"""Reader: a model that marks the answer of a question in its context, or says that there is none.

Trained by cross-entropy on the first and on the last token of the answer, each over the tokens of
the window's context and its first special token, which stands for "no answer here". Several
annotators mark different spans: a token's label is the share of them.

Source
------
Devlin, Chang, Lee, Toutanova. BERT. NAACL 2019, arXiv:1810.04805, sections 4.2 and 4.3. Rajpurkar,
Jia, Liang. Know What You Don't Know. ACL 2018, arXiv:1806.03822 (questions without an answer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import mannwhitneyu

from qaeval_core.errors import InputError
from qaeval_core.models.record import MAX_ANSWER_TOKENS
from qaeval_core.models.source import ModelSource
from qaeval_export.training.inputs import Question, check_files, split_squad
from qaeval_export.training.loop import Task, dev_batches
from qaeval_export.training.model import load_tokenizer
from qaeval_export.training.options import ReaderOptions

_NOT_READ = -1.0
_MAX_SHOWN = 60

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReaderWindow:
    """A question with as much of its context as fits.

    Attributes
    ----------
    question : int
        Its number; a long context has several windows.
    inputs : dict of str to list of int
        What the model reads.
    spans : list of (start, end)
        First and last token of each annotator's answer that lies in the window.
    context : (start, stop)
        Where the context's tokens lie.
    """

    question: int
    inputs: dict[str, list[int]]
    spans: list[Span]
    context: Span

    def labels(self) -> list[list[float]]:
        """Return for each token the share of annotators that start, and end, there."""
        start, stop = self.context
        shares = [[_NOT_READ, _NOT_READ] for _ in self.inputs["input_ids"]]
        for token in (0, *range(start, stop)):
            shares[token] = [0.0, 0.0]
        spans = self.spans or [(0, 0)]
        for span in spans:
            for side, token in enumerate(span):
                shares[token][side] += 1 / len(spans)
        return shares


class ReaderTask(Task):
    """Windows of questions, and how they train and judge a model.

    Parameters
    ----------
    options : ReaderOptions
    source : ModelSource
        Of the base.

    Raises
    ------
    InputError
        If a file, field or offset is not as it must be.
    """

    kind = "reader"

    def __init__(self, options: ReaderOptions, source: ModelSource) -> None:
        self.files = {"--squad": options.squad, "--dev": [options.dev] if options.dev else []}
        check_files(self.files)
        train, dev = split_squad(
            options.squad,
            options.dev,
            share=options.dev_share,
            seed=options.seed,
            unanswerable=True,
        )
        self.tokenizer = load_tokenizer(source)
        self.settings = {}
        self._train, self._dev = (
            reader_windows(part, self.tokenizer, max_tokens=options.max_tokens)
            for part in (train, dev)
        )
        self._is_answerable = [bool(question.spans) for question in dev]
        self.n_tokens = [len(window.inputs["input_ids"]) for window in self._train]
        self.n_dev = len(self._dev)

    def collate(self, items: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        """Return a batch of windows; every epoch meets the same ones."""
        windows = [self._train[row] for row, _ in items]
        labels = [window.labels() for window in windows]
        n_tokens = max(map(len, labels))
        padded = [own + [[_NOT_READ, _NOT_READ]] * (n_tokens - len(own)) for own in labels]
        return {**self._inputs(windows), "labels": torch.tensor(padded)}

    def logits(self, output: Any) -> torch.Tensor:
        """Return the logits of first and last tokens; shape (n_windows, n_tokens, 2)."""
        return torch.stack([output.start_logits, output.end_logits], dim=2)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of first and last tokens."""
        is_read = labels >= 0
        log_p = logits.float().masked_fill(~is_read, -torch.inf).log_softmax(dim=1)
        return -(labels * log_p)[is_read].sum() / (2 * len(labels))

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return dev scores of a task model.

        ``exact`` and ``overlap_f1`` judge the best span of questions that have an answer, whatever
        the model thinks of "none", by the tokens of the nearest annotator; ``answerable_auc`` is
        how well the difference of its logits from those of "none" tells such questions.
        """
        n_questions = len(self._is_answerable)
        best = [(-torch.inf, 0.0, 0.0)] * n_questions
        null = [torch.inf] * n_questions
        losses = []
        for window, logits in zip(self._dev, self._dev_logits(model), strict=True):
            losses.append(self.loss(logits[None], torch.tensor([window.labels()])))
            start, end, score = best_span(logits, window.context)
            agreed = [overlap_f1((start, end), span) for span in window.spans]
            exact = float((start, end) in window.spans)
            own = window.question
            best[own] = max(best[own], (score, exact, max(agreed, default=0.0)))
            null[own] = min(null[own], float(logits[0].sum()))
        margins = torch.tensor([own[0] for own in best]) - torch.tensor(null)
        is_answerable = torch.tensor(self._is_answerable)
        found = torch.tensor([own[1:] for own in best])[is_answerable].double().mean(dim=0)
        scores = {
            "loss": float(torch.stack(losses).double().mean()),
            "exact": float(found[0]),
            "overlap_f1": float(found[1]),
        }
        if not is_answerable.all():
            with_answer, without = margins[is_answerable], margins[~is_answerable]
            won = mannwhitneyu(with_answer.numpy(), without.numpy()).statistic
            scores["answerable_auc"] = float(won) / (len(with_answer) * len(without))
        return scores

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _dev_logits(self, model: Any) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        lengths = [len(window.inputs["input_ids"]) for window in self._dev]
        for rows in dev_batches(model, lengths):
            inputs = self._inputs([self._dev[row] for row in rows])
            output = model(**{name: values.to(model.device) for name, values in inputs.items()})
            for row, logits in zip(rows, self.logits(output).cpu(), strict=True):
                found[row] = logits[: lengths[row]]
        return [found[row] for row in range(self.n_dev)]

    def _inputs(self, windows: Sequence[ReaderWindow]) -> dict[str, torch.Tensor]:
        fills = {"input_ids": self.tokenizer.pad_token_id}
        n_tokens = max(len(window.inputs["input_ids"]) for window in windows)

        def padded(name: str) -> list[list[int]]:
            rows = (window.inputs[name] for window in windows)
            return [row + [fills.get(name, 0)] * (n_tokens - len(row)) for row in rows]

        return {name: torch.tensor(padded(name)) for name in windows[0].inputs}


def reader_windows(
    questions: Sequence[Question], tokenizer: Any, *, max_tokens: int
) -> list[ReaderWindow]:
    """Return the windows of questions; they overlap by the longest answer.

    Parameters
    ----------
    max_tokens : int
        Of a window, special tokens included.

    Raises
    ------
    InputError
        If a question leaves its context less room than windows share.
    """
    _check_room(questions, tokenizer, max_tokens=max_tokens)
    encoded = tokenizer(
        [question.question for question in questions],
        [question.context for question in questions],
        truncation="only_second",
        max_length=max_tokens,
        stride=MAX_ANSWER_TOKENS,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = []
    for row, number in enumerate(encoded["overflow_to_sample_mapping"]):
        sides = encoded.sequence_ids(row)
        start = sides.index(1) if 1 in sides else len(sides)
        stop = start + sides.count(1)
        offsets = encoded["offset_mapping"][row]
        found = [
            _token_span(offsets, span, start=start, stop=stop) for span in questions[number].spans
        ]
        windows.append(
            ReaderWindow(
                question=number,
                inputs={name: encoded[name][row] for name in tokenizer.model_input_names},
                spans=[span for span in found if span is not None],
                context=(start, stop),
            )
        )
    return windows


def _check_room(questions: Sequence[Question], tokenizer: Any, *, max_tokens: int) -> None:
    asked = [question.question for question in questions]
    n_free = max_tokens - tokenizer.num_special_tokens_to_add(pair=True)
    for text, ids in zip(asked, tokenizer(asked, add_special_tokens=False).input_ids, strict=True):
        if n_free - len(ids) <= MAX_ANSWER_TOKENS:
            raise InputError(
                f"the question {text[:_MAX_SHOWN]!r} has {len(ids)} tokens and leaves "
                f"{max(n_free - len(ids), 0)} of --max-tokens {max_tokens} for the context; at "
                f"least {MAX_ANSWER_TOKENS + 1} are needed [QA0902]"
            )


def _token_span(offsets: Sequence[Span], span: Span, *, start: int, stop: int) -> Span | None:
    """Return the first and last token of an answer; None where the window does not hold it."""
    if start == stop or span[0] < offsets[start][0] or span[1] > offsets[stop - 1][1]:
        return None
    inside = [i for i in range(start, stop) if offsets[i][0] < span[1] and offsets[i][1] > span[0]]
    return (inside[0], inside[-1]) if inside else None


def best_span(logits: torch.Tensor, context: Span) -> tuple[int, int, float]:
    """Return first token, last token and score of the best span of a window's context.

    Parameters
    ----------
    logits : float Tensor of shape (n_tokens, 2)

    Examples
    --------
    >>> logits = torch.tensor([[9.0, 9.0], [0.0, 2.0], [1.0, 0.0], [0.0, 1.5]])
    >>> best_span(logits, (1, 4))
    (2, 3, 2.5)
    """
    start, stop = context
    if start == stop:
        return 0, 0, float("-inf")
    first, last = logits[start:stop].unbind(dim=1)
    n_tokens = torch.arange(stop - start)
    length = n_tokens[None] - n_tokens[:, None]
    is_span = (length >= 0) & (length < MAX_ANSWER_TOKENS)
    scores = (first[:, None] + last[None]).masked_fill(~is_span, -torch.inf)
    at = int(scores.argmax())
    return start + at // len(n_tokens), start + at % len(n_tokens), float(scores.max())


def overlap_f1(found: Span, span: Span) -> float:
    """Return the F1 of the tokens of two spans, ends included.

    Examples
    --------
    >>> overlap_f1((3, 4), (4, 5))
    0.5
    """
    n_both = max(0, min(found[1], span[1]) - max(found[0], span[0]) + 1)
    return 2 * n_both / (found[1] - found[0] + 1 + span[1] - span[0] + 1)
