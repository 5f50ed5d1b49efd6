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
    use : tuple of str
        Metrics of the catalog, the fastest first: none is shown worse than the best of its family.
    rather_than : tuple of str
        Those that are shown worse on two judged sets.
    family : str
        What is compared: ``all`` metrics, those with a ``reference``, those with ``no reference``,
        or those of ``words`` alone.
    also_on : str
        The second judged set; "" where no other one has such rows.
    figures : tuple of Figure
        Of the first judged set.
    """

    job: str
    use: tuple[str, ...]
    rather_than: tuple[str, ...] = ()
    family: str = "all"
    also_on: str = ""
    figures: tuple[Figure, ...]

    def __str__(self) -> str:
        others = f" rather than {', '.join(self.rather_than)}" if self.rather_than else ""
        return f"{self.job}: {', '.join(self.use)}{others}; {self.where}"

    @property
    def where(self) -> str:
        """The sets that it stands on, with figures of the first one."""
        figures = ", ".join(map(str, self.figures))
        also = f"; also on {self.also_on}" if self.rather_than else ""
        return f"on {self.figures[0].judged_set}: {figures}{also}"


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


# By docs/evidence/validity.json, whose ``behind_best`` is Hsu's comparison with the best, by main
# columns. The first figure is of the best metric to use, the second of the best other one.
GUIDE: tuple[Advice, ...] = (
    Advice(
        job="short answers beside gold ones",
        use=("sas", "bertscore"),
        rather_than=("f1", "rouge_l", "meteor", "bleu_1", "bleu_2", "exact_match"),
        also_on="kpqa_narrative",
        figures=(
            Figure("sas", "bertscore_f1", "auc", 0.904, 0.88, 0.926),
            Figure("sas", "meteor", "auc", 0.879, 0.852, 0.905),
        ),
    ),
    Advice(
        job="short answers beside gold ones, without a model",
        use=("f1", "rouge_l", "meteor"),
        rather_than=("bleu_1", "bleu_2", "bleu_3", "bleu_4", "adapted_bleu_4", "exact_match"),
        family="words",
        also_on="kpqa_narrative",
        figures=(
            Figure("sas", "meteor", "auc", 0.879, 0.852, 0.905),
            Figure("sas", "bleu_1", "auc", 0.846, 0.818, 0.872),
        ),
    ),
    Advice(
        job="answers in sentences, the question at hand",
        use=("sas",),
        rather_than=("f1", "rouge_l", "adapted_rouge_l", "meteor", "cider", "bleu_4"),
        also_on="kpqa_narrative",
        figures=(
            Figure("kpqa_marco", "sas", "auc", 0.886, 0.852, 0.912),
            Figure("kpqa_marco", "f1", "auc", 0.703, 0.657, 0.746),
        ),
    ),
    Advice(
        job="answers in sentences, to questions of a search engine",
        use=("sas", "kpqa"),
        figures=(Figure("kpqa_marco", "sas", "auc", 0.886, 0.852, 0.912),),
    ),
    Advice(
        job="answers about a story",
        use=("sas", "bertscore", "bi_encoder", "moverscore"),
        figures=(Figure("kpqa_narrative", "sas", "auc", 0.94, 0.917, 0.962),),
    ),
    Advice(
        job="generated questions beside a reference",
        use=("rouge_l", "f1", "meteor", "q_bleu", "ref_qrelscore"),
        figures=(Figure("qgeval", "meteor", "auc", 0.718, 0.658, 0.78),),
    ),
    Advice(
        job="generated questions without a reference: right for their answer",
        use=("roundtrip",),
        rather_than=("qrelscore", "q_bleu_free"),
        family="no reference",
        also_on="quiz_design",
        figures=(
            Figure("qgeval", "roundtrip", "auc", 0.7, 0.642, 0.756),
            Figure("qgeval", "qrelscore", "auc", 0.551, 0.481, 0.621),
        ),
    ),
    Advice(
        job="would a teacher use this question? no metric predicts it well",
        use=("bertscore_free", "roundtrip"),
        family="no reference",
        figures=(Figure("quiz_design", "bertscore_free_f1", "auc", 0.572, 0.538, 0.615),),
    ),
    Advice(
        job="questions that lost words",
        use=("bertscore",),
        rather_than=("bleu_2", "bleu_3", "bleu_4", "exact_match"),
        also_on="qgeval",
        figures=(
            Figure("answerability", "bertscore_f1", "auc", 0.786, 0.752, 0.818),
            Figure("answerability", "bleu_2", "auc", 0.61, 0.573, 0.647),
        ),
    ),
    Advice(
        job="good questions in other words than the reference",
        use=("bi_encoder",),
        family="reference",
        figures=(Figure("naco", "bi_encoder", "cost", 0.225, 0.215, 0.236),),
    ),
    Advice(
        job="detecting questions about a different passage, without a reference",
        use=("bertscore_free",),
        family="no reference",
        figures=(Figure("naco", "bertscore_free_f1", "beats_wrong", 0.999, 0.996, 1.0),),
    ),
)
