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
import errno
import json
import os
import re
from functools import partial
from pathlib import Path

from qaeval_core.errors import ConfigError, ModelUnavailableError, nearest
from qaeval_core.models.embedded import EMBEDDED, embedded_models, find_embedded
from qaeval_core.models.record import GRAPHS
from qaeval_core.models.source import ModelSource, file_sha256, has_hub_client, snapshot_from_hub
from qaeval_core.storage.files import expanded

# Smaller files are read whatever they hold; of larger ones an eighth must be there.
_LEAST_SPARSE_BYTES = 64 << 20
_MOST_HOLES = 8
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
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")


def resolve_model(
    name: str, *, role: str, onnx_file: str = "", ask_hub: bool = True
) -> ModelSource:
    """Find a model's files and check the ones whose hashes are pinned.

    Parameters
    ----------
    name : str
        Embedded name, path of a folder, or hub id with an optional ``@revision``.
    role : str
        What the model is needed for: the role of a graph.
    onnx_file : str, default ""
        File of the model to take as it is; "" takes one where there are no safetensors.
    ask_hub : bool, default True
        False finds what is on this machine alone.

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
    if not any(facts.role == role for facts in GRAPHS.values()):
        known = dict.fromkeys(facts.role for facts in GRAPHS.values())
        raise ConfigError(f"no model role {role!r}; roles: {', '.join(known)} [QA0401]")
    if name in EMBEDDED:
        if onnx_file:
            raise ConfigError(
                f"model {name!r} is embedded and has no ONNX file {onnx_file!r} [QA0401]"
            )
        return find_embedded(name, role=role, ask_hub=ask_hub)
    path = expanded(name)
    if path.is_dir():
        return _from_folder(path, onnx_file)
    _check_hub_name(name)
    if not ask_hub:
        raise ModelUnavailableError(
            f"model {name!r} is on the model hub, which is not used here [QA0402]"
        )
    return _from_hub(name, onnx_file)


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
                f"{folder} has no ONNX file {asked!r}{nearest(asked, known)} [QA0403]"
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
            "save_pretrained(..., safe_serialization=True) [QA0403]"
        )
    missing = [file for file in needed if not (folder / file).is_file()]
    if missing:
        raise ModelUnavailableError(f"{folder} has no {' and no '.join(missing)} [QA0403]")


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
            raise ModelUnavailableError(f"{path} is damaged: {error} [QA0403]") from None
        if not isinstance(fields, dict):
            raise ModelUnavailableError(f"{path} is damaged: it is not a JSON object [QA0403]")
        attention = [fields.get(key) for key in ("attn_implementation", "_attn_implementation")]
        named = "auto_map" if "auto_map" in fields else None
        if any("/" in str(value) for value in attention):  # A kernel of the model hub.
            named = "attn_implementation"
        if named is not None:
            raise ConfigError(
                f"{path} names code that comes with the model ({named}). Such code is never run; "
                "use a model of an architecture that transformers has, saved without it [QA0407]"
            )


def _hash_used(folder: Path, onnx_file: str | None) -> dict[str, str]:
    patterns = [*_USED_FILES, *(_with_data(onnx_file) if onnx_file else ())]
    used = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    for path in sorted(used):
        _check_dense(path)
    return {str(path.relative_to(folder)): file_sha256(path) for path in sorted(used)}


def _check_dense(path: Path) -> None:
    """Raise ModelUnavailableError if a file is nearly all holes: hours of zeros would be read."""
    n_bytes = path.stat().st_size
    if n_bytes < _LEAST_SPARSE_BYTES:
        return
    n_data = end = 0
    with path.open("rb") as file:
        while end < n_bytes:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
                end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return  # This store does not tell.
                break  # Behind the last data there are none.
            n_data += end - start
    if n_data * _MOST_HOLES < n_bytes:
        raise ModelUnavailableError(
            f"{path} declares {n_bytes:,} bytes, and holds {n_data:,}: it is not a model [QA0403]"
        )


def _with_data(onnx_file: str) -> tuple[str, ...]:
    """Return an ONNX file and the names that its external data may have."""
    return (onnx_file, f"{onnx_file}_data", f"{onnx_file}.data")


def _check_hub_name(name: str) -> None:
    if not _HUB_NAME.fullmatch(name) or name.startswith((".", "/", "~")):
        raise ModelUnavailableError(
            f"model {name!r}: no such folder, and not a name of the model hub [QA0401]"
        )
    # A hub id without an owner is one of a few old ones; near an embedded name it is a typing slip.
    near = difflib.get_close_matches(name.lower(), EMBEDDED, n=1, cutoff=0.7)
    if "/" not in name and near:
        raise ModelUnavailableError(
            f"model {name!r} is unknown; did you mean {near[0]!r}? [QA0401]"
        )


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

    ONNX files are fetched where one is asked for, or there are no safetensors. The last part of the
    folder that is returned is the commit.
    """
    ways_out = f"an embedded model ({', '.join(embedded_models())}); a local folder"
    if not has_hub_client():
        raise ModelUnavailableError(
            f"model {hub_id!r} is on the model hub: pip install huggingface_hub, or use {ways_out} "
            "[QA0402]"
        )
    ask = partial(snapshot_from_hub, hub_id, ways_out=ways_out)
    path = ask(revision=revision, patterns=_USED_FILES, ignored=["*/*"])
    if (path / "modules.json").is_file():
        ask(revision=path.name, patterns=[_POOLING_FILE])
    if onnx_file or not any(path.glob("*.safetensors")):
        wanted = (onnx_file,) if onnx_file else _ONNX_FILES
        ask(revision=path.name, patterns=[file for name in wanted for file in _with_data(name)])
    return path
