"""FAMILIES: the only list of families, by the name that a metric reads them by."""

from __future__ import annotations

from collections.abc import Mapping

from qaeval_core.families.chat.family import ChatFamily
from qaeval_core.families.chat.judge_family import JudgeFamily
from qaeval_core.families.chat.naco_family import NacoFamily
from qaeval_core.families.contract import Family
from qaeval_core.families.models import MODEL_FAMILIES
from qaeval_core.families.words.family import WORD_FAMILIES

_CHAT: tuple[ChatFamily, ...] = (NacoFamily(), JudgeFamily())
CHAT_FAMILIES: Mapping[str, ChatFamily] = {family.name: family for family in _CHAT}
# In the order of their passes: words; families of one model beside each other, cheap ones first.
FAMILIES: Mapping[str, Family] = {**WORD_FAMILIES, **MODEL_FAMILIES, **CHAT_FAMILIES}
