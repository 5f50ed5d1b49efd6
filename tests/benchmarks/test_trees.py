"""The record of passes before and after the graphs for GPUs, and the page that repeats it."""

from __future__ import annotations

import json
import statistics

from helpers import REPOSITORY

_NAMES = {
    "lrm": "LRM",
    "grg": "GRG",
    "sas": "SAS",
    "bi_encoder": "bi-encoder",
    "token_match": "BERTScore",
    "token_transport": "MoverScore",
    "kpqa_weights": "KPQA's weights",
    "answer_span": "reader of roundtrip",
}


def test_the_page_says_what_graphs_for_gpus_cost_a_cpu() -> None:
    """Protects from a pass that fused attention makes slower where there is no GPU."""
    path = REPOSITORY / "docs" / "evidence" / "gpu_cpu.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    page = (REPOSITORY / "docs" / "gpu-bounds.md").read_text(encoding="utf-8")
    assert f"{found['rows']} rows" in page and found["other_revision"] in page
    told = set()
    for key, own in found["families"].items():
        family, _, metrics = key.partition(" of ")
        name = _NAMES[family] + " in KPQA" * (metrics == "kpqa" and family == "token_match")
        before, after = (statistics.median(own[side]) for side in ("other_s", "this_s"))
        ratio, lowest, highest = (f(own["ratios"]) for f in (statistics.median, min, max))
        line = (
            f"| {name} | {before:.2f} | {after:.2f} | {ratio:.2f} | {lowest:.2f} to {highest:.2f} |"
        )
        assert line in page
        assert ratio > 0.98
        told.add(family)
    assert told == set(_NAMES)
