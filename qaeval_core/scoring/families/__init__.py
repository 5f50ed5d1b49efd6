"""Families: raw statistics of rows, by the name that a metric reads them by."""

from __future__ import annotations

from collections.abc import Mapping

from qaeval_core.scoring.families.asked import ASKED_FAMILIES
from qaeval_core.scoring.families.models import MODEL_FAMILIES
from qaeval_core.scoring.families.words.family import WORD_FAMILIES
from qaeval_core.scoring.plans import Family

# In the order of their passes: words; families of one model beside each other, cheap ones first.
FAMILIES: Mapping[str, Family] = {**WORD_FAMILIES, **MODEL_FAMILIES, **ASKED_FAMILIES}
