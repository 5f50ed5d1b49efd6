"""METRICS: the only list of metrics."""

from __future__ import annotations

from types import MappingProxyType

from qaeval_core.metrics.spec import MetricSpec

_QRELSCORE_SOURCE = "Liu et al. QRelScore. EMNLP 2022, arXiv:2204.13921, section 2"

METRICS = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            MetricSpec(
                name="qrelscore",
                title="relevance of a question to its context, without references",
                needs=("encoder", "causal_lm"),
                roles=("candidate", "context"),
                outputs=(
                    "",
                    "lrm",
                    "lrm_raw",
                    "lrm_windows",
                    "grg",
                    "grg_raw",
                    "grg_windows",
                ),
                low=0.0,
                high=1.0,
                higher_is_better=True,
                is_symmetric=False,
                over_windows="mean",
                over_references="none",
                over_examples="mean",
                source=_QRELSCORE_SOURCE,
            ),
            MetricSpec(
                name="ref_qrelscore",
                title="QRelScore averaged with its best value over reference questions",
                needs=("encoder", "causal_lm"),
                roles=("candidate", "context", "references"),
                outputs=("", "context", "reference"),
                low=0.0,
                high=1.0,
                higher_is_better=True,
                is_symmetric=False,
                over_windows="mean",
                over_references="max",
                over_examples="mean",
                source=_QRELSCORE_SOURCE + ".3, eq. 10",
            ),
        )
    }
)
