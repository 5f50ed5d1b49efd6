"""OpenVINO in tests: in bfloat16 where this CPU has it, else the same engine in fp32."""

from __future__ import annotations

import pytest

from qaeval_core.models import open_vino
from qaeval_core.models.cpu import BF16_FLAGS, bf16_flag, cpu_flags

HAS_BF16 = bool(bf16_flag(cpu_flags()))
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="this CPU has no flag of bf16")


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Give what asks for bfloat16 fp32 where this CPU lacks it: all but roundings is the same."""
    if not HAS_BF16:
        patch.setattr(open_vino, "cpu_flags", lambda: frozenset(BF16_FLAGS))
        patch.setattr(open_vino, "_PRECISION", "f32")
