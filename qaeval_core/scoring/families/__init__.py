"""Families: raw statistics of rows, by the name that a metric reads them by."""

from __future__ import annotations

from collections.abc import Mapping

from qaeval_core.scoring.families.chat.family import ChatFamily
from qaeval_core.scoring.families.chat.naco_family import NacoFamily
from qaeval_core.scoring.families.models import MODEL_FAMILIES
from qaeval_core.scoring.families.words.family import WORD_FAMILIES
from qaeval_core.scoring.plans import Family

CHAT_FAMILIES: Mapping[str, ChatFamily] = {family.name: family for family in (NacoFamily(),)}
# In the order of their passes: words; families of one model beside each other, cheap ones first.
FAMILIES: Mapping[str, Family] = {**WORD_FAMILIES, **MODEL_FAMILIES, **CHAT_FAMILIES}
