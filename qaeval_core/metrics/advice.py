"""Advice: which metric for which job, each line with the figures that it stands on.

The only place of these lines: the table of docs/metrics.md and ``qaeval metrics NAME`` are made of
them, and the figures are those of docs/validity.md, where each has its set and its companions.
"""

from __future__ import annotations

from dataclasses import dataclass

_STATISTICS = {"auc": "AUC", "pearson": "Pearson", "cost": "cost", "beats_wrong": "beats wrong"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of docs/validity.md, with its interval.

    Attributes
    ----------
    judged_set, column, statistic : str
        Its section, line and column there.
    """

    judged_set: str
    column: str
    statistic: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        shown = figure(self.value, self.low, self.high)
        return f"{self.column} {_STATISTICS[self.statistic]} {shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One line: what to use for a job, instead of what, and the figures for it.

    Attributes
    ----------
    use, rather_than : tuple of str
        Metrics of the catalog.
    figures : tuple of Figure
        Of one judged set.
    """

    job: str
    use: tuple[str, ...]
    rather_than: tuple[str, ...] = ()
    figures: tuple[Figure, ...]

    def __str__(self) -> str:
        others = f" rather than {', '.join(self.rather_than)}" if self.rather_than else ""
        figures = ", ".join(map(str, self.figures))
        return (
            f"{self.job}: {', '.join(self.use)}{others}; on {self.figures[0].judged_set}: {figures}"
        )


def advice_for(metric: str) -> tuple[Advice, ...]:
    """Return the first line that a metric is used in, and the first that names others instead."""
    used = [line for line in GUIDE if metric in line.use]
    instead = [line for line in GUIDE if metric in line.rather_than]
    return (*used[:1], *instead[:1])


def figure(value: float, low: float, high: float) -> str:
    """Return a value with its interval as pages write it.

    Examples
    --------
    >>> figure(0.7, -0.04, 1.0)
    '.700 [-.040, 1.000]'
    """
    return f"{_short(value)} [{_short(low)}, {_short(high)}]"


def _short(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


# The first figure is that of the best metric to use, by its main column; the second that of the
# best column of the others. "Rather than" is said where no interval of theirs reaches those of the
# metrics to use.
GUIDE: tuple[Advice, ...] = (
    Advice(
        job="short answers beside gold ones",
        use=("sas", "bertscore"),
        rather_than=("bleu_2", "bleu_3", "bleu_4", "exact_match"),
        figures=(
            Figure("sas", "bertscore_f1", "auc", 0.904, 0.88, 0.926),
            Figure("sas", "bleu_2", "auc", 0.649, 0.623, 0.675),
        ),
    ),
    Advice(
        job="short answers beside gold ones, without a model",
        use=("f1", "rouge_l"),
        rather_than=("bleu_2", "bleu_3", "bleu_4", "adapted_bleu_4", "exact_match"),
        figures=(
            Figure("sas", "rouge_l", "auc", 0.868, 0.842, 0.893),
            Figure("sas", "bleu_2", "auc", 0.649, 0.623, 0.675),
        ),
    ),
    Advice(
        job="answers in sentences, the question at hand",
        use=("sas", "kpqa"),
        rather_than=("bertscore", "f1", "rouge_l", "adapted_rouge_l", "cider"),
        figures=(
            Figure("kpqa_marco", "sas", "auc", 0.886, 0.853, 0.912),
            Figure("kpqa_marco", "bertscore_f1", "auc", 0.741, 0.696, 0.782),
        ),
    ),
    Advice(
        job="answers about a story",
        use=("kpqa", "sas", "bertscore", "bi_encoder", "moverscore"),
        rather_than=("bleu_1", "bleu_2", "bleu_3", "bleu_4", "exact_match"),
        figures=(
            Figure("kpqa_narrative", "kpqa_bertscore", "auc", 0.951, 0.931, 0.97),
            Figure("kpqa_narrative", "bleu_1", "auc", 0.825, 0.786, 0.861),
        ),
    ),
    Advice(
        job="generated questions beside a reference",
        use=("meteor", "ref_qrelscore"),
        rather_than=("bleu_4", "exact_match"),
        figures=(
            Figure("qgeval", "meteor", "auc", 0.718, 0.661, 0.776),
            Figure("qgeval", "bleu_4", "auc", 0.614, 0.569, 0.661),
        ),
    ),
    Advice(
        job="generated questions without a reference: right for their answer",
        use=("roundtrip",),
        rather_than=("qrelscore", "bertscore_free", "q_bleu_free"),
        figures=(
            Figure("qgeval", "roundtrip", "auc", 0.7, 0.646, 0.753),
            Figure("qgeval", "bertscore_free_precision", "auc", 0.563, 0.504, 0.623),
        ),
    ),
    Advice(
        job="would a teacher use this question? no metric predicts it well",
        use=("bertscore_free",),
        rather_than=(),
        figures=(Figure("quiz_design", "bertscore_free_f1", "auc", 0.572, 0.541, 0.611),),
    ),
    Advice(
        job="questions that lost words",
        use=("bertscore", "moverscore", "bi_encoder"),
        rather_than=("q_bleu", "f1", "meteor", "bleu_4"),
        figures=(
            Figure("answerability", "bertscore_f1", "auc", 0.786, 0.754, 0.817),
            Figure("answerability", "q_bleu", "auc", 0.639, 0.602, 0.675),
        ),
    ),
    Advice(
        job="good questions in other words than the reference",
        use=("bi_encoder", "bertscore", "sas"),
        rather_than=("meteor", "rouge_l", "bleu_4", "exact_match"),
        figures=(
            Figure("naco", "bi_encoder", "cost", 0.225, 0.215, 0.236),
            Figure("naco", "meteor", "cost", 0.557, 0.541, 0.573),
        ),
    ),
    Advice(
        job="detecting questions about a different passage, without a reference",
        use=("bertscore_free", "qrelscore"),
        rather_than=("q_bleu_free",),
        figures=(
            Figure("naco", "bertscore_free_f1", "beats_wrong", 0.999, 0.998, 1.0),
            Figure("naco", "q_bleu_free_answerability", "beats_wrong", 0.922, 0.904, 0.938),
        ),
    ),
)
