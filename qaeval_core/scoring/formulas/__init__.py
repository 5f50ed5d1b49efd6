"""Formulas: raw statistics of families to the columns of an instance, at join time, no model."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from qaeval_core.metrics.model_settings import AnswerSettings
from qaeval_core.metrics.naco_settings import NacoSettings
from qaeval_core.metrics.settings import QRelScoreSettings
from qaeval_core.scoring.formulas.answers import score_answers
from qaeval_core.scoring.formulas.columns import InstanceScores
from qaeval_core.scoring.formulas.naco import score_naco
from qaeval_core.scoring.formulas.qrelscore import score_qrelscore
from qaeval_core.scoring.formulas.words import score_words
from qaeval_core.scoring.plans import InstancePlan


def score_instance(plan: InstancePlan, statistics: Mapping[str, pa.Table]) -> InstanceScores:
    """Return the scores of an instance, and the reason of each row with an undefined one.

    Parameters
    ----------
    plan : InstancePlan
    statistics : mapping of family key to table
        The same rows in the same order, quarantined ones left out.
    """
    if isinstance(plan.settings, QRelScoreSettings):
        return score_qrelscore(plan, plan.settings, statistics)
    if isinstance(plan.settings, NacoSettings):
        return score_naco(plan, plan.settings, statistics)
    if isinstance(plan.settings, AnswerSettings):
        return score_answers(plan, statistics)
    return score_words(plan, statistics)
