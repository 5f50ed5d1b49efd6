"""METRICS: the only list of metrics."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from qaeval_core.metrics import model_settings as models
from qaeval_core.metrics import settings as of
from qaeval_core.metrics.naco_settings import NacoSettings
from qaeval_core.metrics.spec import MetricSpec

_QRELSCORE_SOURCE = "Liu et al. QRelScore. EMNLP 2022, arXiv:2204.13921, section 2"
_SQUAD = "Rajpurkar et al. SQuAD. EMNLP 2016, arXiv:1606.05250, section 6.1; evaluation script v1.1"
_ADAPTED = "Yang et al. Adaptations of ROUGE and BLEU. MRQA 2018, section 3"
_BLEU = "Papineni et al. BLEU. ACL 2002"
_Q_BLEU = "Nema, Khapra. Towards a Better Metric for Question Generation. EMNLP 2018, section 4"
_SAS = "Risch et al. SAS. MRQA 2021, arXiv:2108.06130, section "
_BERTSCORE = "Zhang et al. BERTScore. ICLR 2020, arXiv:1904.09675, section 3"
_OPINION_ROLES = ("answer_type", "candidate_opinion", "reference_opinions", "entities")


def _qrelscore(**given: Any) -> MetricSpec:
    common: dict[str, Any] = {
        "module": "qrelscore",
        "settings": of.QRelScoreSettings,
        "needs": ("encoder", "causal_lm"),
        "low": 0.0,
        "high": 1.0,
        "higher_is_better": True,
        "is_symmetric": False,
        "over_windows": "mean",
        "over_examples": "mean",
    }
    return MetricSpec(**{**common, **given})


def _words(**given: Any) -> MetricSpec:
    common: dict[str, Any] = {
        "module": given["name"],
        "needs": ("words",),
        "roles": ("candidate", "references"),
        "outputs": ("",),
        "low": 0.0,
        "high": 1.0,
        "higher_is_better": True,
        "is_symmetric": False,
        "over_windows": "none",
        "over_references": "max",
        "over_examples": "mean",
    }
    return MetricSpec(**{**common, **given})


def _answers(**given: Any) -> MetricSpec:
    common: dict[str, Any] = {
        "module": given["name"],
        "needs": ("encoder",),
        "roles": ("candidate", "references"),
        "low": -1.0,
        "high": 1.0,
        "higher_is_better": True,
        "is_symmetric": False,
        "over_windows": "none",
        "over_references": "max",
        "over_examples": "mean",
    }
    return MetricSpec(**{**common, **given})


def _bleu(order: int) -> MetricSpec:
    return _words(
        name=f"bleu_{order}",
        title=f"n-gram precision up to {order} words, with a penalty for brevity",
        module="bleu",
        settings=of.BleuSettings,
        statistic="ngrams",
        over_references="clip",
        over_examples="sum_of_statistics",
        source=_BLEU,
    )


_ALL = (
    _qrelscore(
        name="qrelscore",
        title="relevance of a question to its context, without references",
        roles=("candidate", "context"),
        outputs=("", "lrm", "lrm_raw", "lrm_windows", "grg", "grg_raw", "grg_windows"),
        count_outputs=("lrm_windows", "grg_windows"),
        over_references="none",
        source=_QRELSCORE_SOURCE,
    ),
    _qrelscore(
        name="ref_qrelscore",
        title="QRelScore averaged with its best value over reference questions",
        roles=("candidate", "context", "references"),
        outputs=("", "context", "reference"),
        over_references="max",
        source=_QRELSCORE_SOURCE + ".3, eq. 10",
    ),
    _words(
        name="exact_match",
        title="1 where the normalised texts are equal",
        settings=of.OverlapSettings,
        statistic="overlap",
        is_symmetric=True,
        source=_SQUAD,
    ),
    _words(
        name="f1",
        title="F-score of the words that both texts have",
        settings=of.OverlapSettings,
        statistic="overlap",
        outputs=("", "precision", "recall"),
        is_symmetric=True,
        source=_SQUAD,
    ),
    _words(
        name="top_n_accuracy",
        title="1 where one of the first n predicted spans overlaps a gold span",
        settings=of.SpanSettings,
        roles=("predicted_spans", "gold_spans"),
        statistic="spans",
        source="Risch et al. SAS. MRQA 2021, arXiv:2108.06130, section 1",
    ),
    *(_bleu(order) for order in (1, 2, 3, 4)),
    _words(
        name="rouge_l",
        title="F-score of the longest common subsequence",
        settings=of.RougeSettings,
        statistic="lcs",
        outputs=("", "precision", "recall"),
        is_symmetric=True,
        over_references="max of each part",
        source="Lin. ROUGE. ACL 2004 workshop, section 3",
    ),
    _words(
        name="meteor",
        title="harmonic mean of word matches by form, stem and synonym, less a penalty for order",
        settings=of.MeteorSettings,
        statistic="alignment",
        source="Lavie, Agarwal. METEOR. WMT 2007, section 2",
    ),
    _words(
        name="cider",
        title="cosine of tf-idf weighted n-grams, clipped (CIDEr-D)",
        settings=of.CiderSettings,
        statistic="tf_idf",
        high=10.0,
        over_references="mean",
        over_examples="sum_of_statistics",
        source="Vedantam et al. CIDEr. CVPR 2015, arXiv:1411.5726, sections 3 and 5",
    ),
    _words(
        name="q_bleu",
        title="BLEU with the answerability of a question",
        settings=of.QBleuSettings,
        statistic="question_words",
        outputs=("", "answerability"),
        source=_Q_BLEU,
    ),
    _words(
        name="q_bleu_free",
        title="Q-BLEU with the context in place of the references",
        module="q_bleu",
        settings=of.QBleuSettings,
        roles=("candidate", "context"),
        statistic="question_words",
        outputs=("", "answerability"),
        over_references="none",
        source=_Q_BLEU + "; Liu et al. QRelScore, section 4",
    ),
    _words(
        name="adapted_bleu_4",
        title="BLEU-4 with a bonus for the right opinion and the right entities",
        module="adapted",
        settings=of.AdaptedBleuSettings,
        optional_roles=_OPINION_ROLES,
        statistic="bonus_ngrams",
        outputs=("", "bonus"),
        text_outputs=("bonus",),
        over_references="clip",
        over_examples="sum_of_statistics",
        source=_ADAPTED + ".1",
    ),
    _words(
        name="adapted_rouge_l",
        title="ROUGE-L with a bonus for the right opinion and the right entities",
        module="adapted",
        settings=of.AdaptedRougeSettings,
        optional_roles=_OPINION_ROLES,
        statistic="bonus_lcs",
        outputs=("", "bonus"),
        text_outputs=("bonus",),
        over_references="max of each part",
        source=_ADAPTED + ".2",
    ),
    _answers(
        name="sas",
        title="similarity of two answers, by a cross-encoder",
        settings=models.SasSettings,
        needs=("cross_encoder",),
        outputs=("", "truncated"),
        count_outputs=("truncated",),
        low=0.0,
        source=_SAS + "3",
    ),
    _answers(
        name="bi_encoder",
        title="cosine of the vectors of two answers",
        settings=models.BiEncoderSettings,
        outputs=("", "truncated"),
        count_outputs=("truncated",),
        is_symmetric=True,
        source="Reimers, Gurevych. Sentence-BERT. EMNLP 2019, arXiv:1908.10084; " + _SAS + "3",
    ),
    _answers(
        name="bertscore",
        title="greedy matches of tokens by the cosine of their vectors",
        settings=models.BertScoreSettings,
        outputs=("precision", "recall", "f1"),
        over_references="best F",
        source=_BERTSCORE,
    ),
    _answers(
        name="bertscore_free",
        title="BERTScore with the context in place of the references",
        module="bertscore",
        settings=models.BertScoreFreeSettings,
        roles=("candidate", "context"),
        outputs=("precision", "recall", "f1"),
        over_references="none",
        source=_BERTSCORE + "; Liu et al. QRelScore, section 4",
    ),
    _answers(
        name="moverscore",
        title="1 less the cost of moving one text's tokens onto the other's",
        settings=models.MoverScoreSettings,
        outputs=("",),
        is_symmetric=True,
        source="Zhao et al. MoverScore. EMNLP 2019, arXiv:1909.02622, section 3",
    ),
    _answers(
        name="kpqa",
        title="BLEU-1, ROUGE-L and BERTScore with words weighed by the question",
        settings=models.KpqaSettings,
        needs=("keyphrase_classifier", "encoder"),
        roles=("question", "candidate", "references"),
        outputs=(
            "bleu_1",
            "rouge_l",
            "bertscore",
            "bertscore_precision",
            "bertscore_recall",
            "weights",
        ),
        detail_outputs=("weights",),
        over_windows="none",
        over_references="max of each part",
        source="Lee et al. KPQA. NAACL 2021, arXiv:2005.00192, section 3",
    ),
    MetricSpec(
        name="naco",
        title="naturalness, answerability and complexity of a question, by a language model",
        module="naco",
        settings=NacoSettings,
        needs=("endpoint",),
        roles=("candidate", "context", "answer"),
        outputs=(
            "",
            "naturalness",
            "answerability",
            "complexity",
            "steps",
            "predicted_answer",
            "runs",
        ),
        count_outputs=("runs",),
        free_text_outputs=("predicted_answer",),
        low=0.0,
        high=1.0,
        higher_is_better=True,
        is_symmetric=False,
        over_windows="none",
        over_references="none",
        over_examples="mean",
        source="Nguyen et al. Reference-based Metrics Disprove Themselves in Question Generation. "
        "Findings of EMNLP 2024, arXiv:2403.12242, section 3",
    ),
)

METRICS = MappingProxyType({spec.name: spec for spec in _ALL})
