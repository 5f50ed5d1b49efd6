"""METRICS: our metrics, and those of plugins by their entry points; the short names of some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qaeval_core.metrics.adapted import AdaptedBleu4, AdaptedRougeL
from qaeval_core.metrics.base import AnyMetric, FloatArray, Metric, Settings
from qaeval_core.metrics.bertscore import BertScore, BertScoreFree
from qaeval_core.metrics.bi_encoder import BiEncoder
from qaeval_core.metrics.bleu import Bleu
from qaeval_core.metrics.cider import Cider
from qaeval_core.metrics.exact_match import ExactMatch
from qaeval_core.metrics.f1 import F1
from qaeval_core.metrics.function import FunctionMetric
from qaeval_core.metrics.judge import Judge
from qaeval_core.metrics.kpqa import Kpqa
from qaeval_core.metrics.meteor import Meteor
from qaeval_core.metrics.moverscore import MoverScore
from qaeval_core.metrics.naco import Naco
from qaeval_core.metrics.q_bleu import QBleu, QBleuFree
from qaeval_core.metrics.qrelscore import QRelScore, RefQRelScore
from qaeval_core.metrics.rouge_l import RougeL
from qaeval_core.metrics.roundtrip import Roundtrip
from qaeval_core.metrics.sas import Sas
from qaeval_core.metrics.top_n_accuracy import TopNAccuracy
from qaeval_core.metrics.unknown import UnknownMetric
from qaeval_core.plugins import Catalog, Package, instance_maker

_ALL: tuple[AnyMetric, ...] = (
    QRelScore(),
    RefQRelScore(),
    ExactMatch(),
    F1(),
    TopNAccuracy(),
    *(Bleu(order) for order in (1, 2, 3, 4)),
    RougeL(),
    Meteor(),
    Cider(),
    QBleu(),
    QBleuFree(),
    AdaptedBleu4(),
    AdaptedRougeL(),
    Sas(),
    BiEncoder(),
    BertScore(),
    BertScoreFree(),
    MoverScore(),
    Kpqa(),
    Roundtrip(),
    Naco(),
    Judge(),
)


def make_metric(name: str, found: Any, package: Package) -> AnyMetric:
    """Return the metric that an entry point names: a class, an object or a plain function.

    Raises
    ------
    ConfigError
        If it is none.
    """
    if isinstance(found, Metric | type):
        return _of_metrics(name, found, package)
    return FunctionMetric(found, name=name, package=package)


_of_metrics = instance_maker(Metric)  # type: ignore[type-abstract]
METRICS: Catalog[AnyMetric] = Catalog(
    "qaeval.metrics", {metric.name: metric for metric in _ALL}, make_metric
)
_ALIASES = {"em": "exact_match", "rouge": "rouge_l"}


def metric_name(name: str) -> str:
    """Return the catalog's name of a metric; a name that is none comes back as it is.

    Letter case does not matter, and a few metrics have a short name.

    Examples
    --------
    >>> metric_name("EM"), metric_name("rouge"), metric_name("F1"), metric_name("Mine")
    ('exact_match', 'rouge_l', 'f1', 'Mine')
    """
    lower = name.lower()
    known = _ALIASES.get(lower, lower)
    return known if known in METRICS else name


def metric_of(settings: Settings) -> AnyMetric:
    """Return the metric that settings are of."""
    own = settings.own_metric
    return METRICS[settings.metric] if own is None else own


def packages_of(metrics: Mapping[str, Settings]) -> dict[str, str]:
    """Return what brings each metric of some instances that is not ours, by the metric's name."""
    found = {}
    for settings in metrics.values():
        own = settings.own_metric
        if isinstance(own, UnknownMetric | FunctionMetric):
            found[settings.metric] = str(own.package)
        elif own is None and (package := METRICS.package_of(settings.metric)) is not None:
            found[settings.metric] = str(package)
    return found


def corpus_score(metric: str, settings: Mapping[str, object], sums: FloatArray) -> FloatArray:
    """Return the score of corpora.

    Parameters
    ----------
    metric : str
        Of the catalog, with ``over_examples`` "sum_of_statistics".
    settings : mapping
        The instance's settings, as a file of scores describes them.
    sums : float ndarray of shape (..., n_statistics)
        Statistics summed over rows.

    Returns
    -------
    float ndarray of shape (...)
        NaN where there is no row to sum.

    Raises
    ------
    ConfigError
        If the metric's corpus score is a mean of rows.

    Examples
    --------
    >>> import numpy as np
    >>> corpus_score("cider", {}, np.array([7.5, 3.0]))
    array(2.5)
    """
    own = METRICS[metric]
    return own.corpus(own.settings.model_construct(None, **settings), sums)
