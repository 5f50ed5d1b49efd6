"""Packages: what a run needs on this machine and does not have, all of it, before the first row.

Modules are looked for and not imported. But: each place that needs a package still says so itself;
it is the last guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from qaeval_core.configure import RunConfig
from qaeval_core.distribution import requirement
from qaeval_core.errors import ArtifactMissingError, PackagesMissingError
from qaeval_core.families.catalog import FAMILIES
from qaeval_core.families.model_family import ModelFamily
from qaeval_core.metrics.base import Read
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.chat import chat_settings
from qaeval_core.models.artifact import artifact_root, find_artifact
from qaeval_core.models.embedded import EMBEDDED
from qaeval_core.models.engine import Device
from qaeval_core.models.record import GRAPHS, ArtifactRequest
from qaeval_core.storage.files import expanded
from qaeval_core.storage.open_uri import BUCKET_SCHEMES
from qaeval_core.text.wordnet import REQUIREMENT as WORDNET
from qaeval_core.text.wordnet import wordnet_folder

_TOKENIZER_PACKAGES = {"spacy": "spacy", "zh": "rjieba"}
_EXPORT = ("torch", "transformers", "optimum", "onnx", "onnxruntime", "onnxscript")
_EXPORT_GGUF = ("gguf", "accelerate")
_EXPORT_ADAPTER = ("peft", "safetensors")
_ADOPT = ("onnx", "onnxruntime")
# PyArrow's own clients read input from the other buckets.
_INPUT_SCHEMES = ("az", "memory")
_TO_EXPORT = "to export the models of "
# One of the two brings what models need; its engine must not lie beside the other one.
_EXTRAS: Mapping[Device, str] = {"cpu": "models", "cuda": "gpu"}
_ENGINES: Mapping[Device, str] = {"cpu": "onnxruntime", "cuda": "onnxruntime-gpu"}


@dataclass(frozen=True, slots=True)
class Missing:
    """One package that is needed and not installed.

    Attributes
    ----------
    package : str
        As a package index knows it.
    needed_by : tuple of str
        Metrics, models or options.
    purpose : str
        What the metrics need it for, "" where it computes them.
    extra : str
        Of this distribution, that brings it; "" where none does.
    requirement : str
        What pip is told to install where its extra is not; "" where the extra always is.
    has_dependencies : bool
        False of a package that ships a model: what it depends on is not needed.
    """

    package: str
    needed_by: tuple[str, ...]
    purpose: str = ""
    extra: str = ""
    requirement: str = ""
    has_dependencies: bool = True


def missing_packages(
    config: RunConfig, *, device: Device, hub: bool = True, on_cluster: bool = False
) -> tuple[Missing, ...]:
    """Return the packages that a run needs on this machine and does not have.

    Parameters
    ----------
    config : RunConfig
    device : {"cpu", "cuda"}
        Decides which artifacts are needed, and which ONNX Runtime.
    hub : bool, default True
        Whether an embedded model whose package is absent may come from the model hub.
    on_cluster : bool, default False
        Rows are scored on other machines: what their workers need is not looked for here.

    Returns
    -------
    tuple of Missing
        Each package once for each purpose; () where nothing is missing.

    Raises
    ------
    QAEvalError
        If an artifact that is there is damaged.
    """
    extra = _extra(device)
    found = [
        *_of_paths(config, extra),
        *_of_metrics(config, device, extra, on_cluster=on_cluster),
        *_of_exports(config, device, extra, hub=hub),
    ]
    merged: dict[tuple[str, str], Missing] = {}
    for one in found:
        key = (one.package, one.purpose)
        names = (*merged[key].needed_by, *one.needed_by) if key in merged else one.needed_by
        merged[key] = replace(one, needed_by=tuple(dict.fromkeys(names)))
    named = {package for package, purpose in merged if not purpose}
    # Named once is enough: a package that scores also exports.
    return tuple(
        one for (package, purpose), one in merged.items() if not purpose or package not in named
    )


def check_packages(*configs: RunConfig, device: Device, on_cluster: bool = False) -> None:
    """Raise one error that names everything that runs need and this machine does not have.

    Raises
    ------
    PackagesMissingError
        If a package is missing; the message ends with a line that installs all of them.
    """
    missing = [
        one
        for config in configs
        for one in missing_packages(config, device=device, on_cluster=on_cluster)
    ]
    if missing:
        raise PackagesMissingError(missing_text(missing))


def opens_nothing(config: RunConfig) -> bool:
    """Return whether a package is missing that opens the input or OUT: neither can be looked at."""
    return any(_of_paths(config, ""))


def missing_text(missing: Iterable[Missing]) -> str:
    """Return which packages are missing, what needs each, and one line that installs all."""
    missing = tuple(missing)
    groups: dict[object, list[Missing]] = {}
    for one in missing:
        groups.setdefault(one.purpose or one.needed_by, []).append(one)
    shown = "; ".join(_group_text(group) for group in groups.values())
    return (
        f"this run needs packages that are not installed: {shown} [QA0004]\n{install_line(missing)}"
    )


def _group_text(group: Sequence[Missing]) -> str:
    packages = ", ".join(dict.fromkeys(one.package for one in group))
    names = ", ".join(dict.fromkeys(name for one in group for name in one.needed_by))
    return f"{packages} ({group[0].purpose}{names})"


def install_line(missing: Iterable[Missing]) -> str:
    """Return one line for a POSIX shell that installs all of them.

    A package that an extra brings is named alone where nothing else needs that extra: ``models``
    are gigabytes.

    Examples
    --------
    >>> engine = Missing("onnxruntime", ("sas",), extra="models")
    >>> words = Missing("rjieba", ("f1",), extra="models", requirement="rjieba")
    >>> model = Missing("a-model", ("a",), requirement="a-model==1", has_dependencies=False)
    >>> install_line([words])
    'pip install rjieba'
    >>> install_line([engine, words, model])
    "pip install 'qaeval-bulk[models]' && pip install --no-deps a-model==1"
    """
    missing = tuple(missing)
    extras = sorted({one.extra for one in missing if one.extra and not one.requirement})
    alone = [one for one in missing if one.requirement and one.extra not in extras]
    plain = [one.requirement for one in alone if one.has_dependencies]
    bare = [one.requirement for one in alone if not one.has_dependencies]
    if extras:
        plain.insert(0, requirement(",".join(extras)))
    commands = [
        f"pip install {options}{' '.join(dict.fromkeys(names))}"
        for options, names in (("", plain), ("--no-deps ", bare))
        if names
    ]
    return " && ".join(commands)


def _of_paths(config: RunConfig, extra: str) -> Iterator[Missing]:
    """Yield what is missing to open the input, OUT and journals."""
    for path, schemes in _paths(config):
        scheme = path.partition("://")[0] if "://" in path else ""
        if scheme in schemes and _is_missing("obstore"):
            yield Missing("obstore", (f"{scheme}://",), extra="cloud")
        if scheme == "hf" and _is_missing("huggingface_hub"):
            yield _client("hf://", extra)


def _paths(config: RunConfig) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield paths and URIs, and the schemes that this project's own stores open there."""
    for path in config.input.paths:
        yield path, _INPUT_SCHEMES
    if config.output.path is not None:
        yield config.output.path, BUCKET_SCHEMES
    for settings in config.metrics.values():
        if "endpoint" in metric_of(settings).needs:
            for read in metric_of(settings).reads(settings):
                yield chat_settings(read).journal_path or "", BUCKET_SCHEMES


def _of_metrics(
    config: RunConfig, device: Device, extra: str, *, on_cluster: bool
) -> Iterator[Missing]:
    """Yield what is missing to plan and compute the metrics."""
    for name, read in _reads(config):
        # The driver itself asks for a tokenizer's version.
        tokenizer = _TOKENIZER_PACKAGES.get(str(read.options.get("tokenizer")))
        if tokenizer is not None and _is_missing(tokenizer):
            yield Missing(tokenizer, (name,), extra=extra, requirement=tokenizer)
        if on_cluster:
            continue
        if read.options.get("synonyms") == "wordnet" and wordnet_folder() is None:
            yield Missing("wn", (name,), requirement=WORDNET)
        is_model = isinstance(FAMILIES[read.family], ModelFamily)
        if is_model and _is_missing("onnxruntime"):
            yield Missing(_ENGINES[device], (name,), extra=extra)
        is_mover = read.graph_options.get("aggregate") == "mover"
        if (is_mover or read.family == "token_transport") and _is_missing("ot"):
            yield Missing("pot", (name,), extra=extra, requirement="pot")


def _of_exports(config: RunConfig, device: Device, extra: str, *, hub: bool) -> Iterator[Missing]:
    """Yield what is missing to build the artifacts that are not there."""
    is_there: dict[str, bool] = {}
    for name, read in _reads(config) if config.models.build else ():
        for request in FAMILIES[read.family].requests(read, config, device=device):
            if request.folder_name not in is_there:
                root = artifact_root(config.models.artifacts_path)
                is_there[request.folder_name] = _is_artifact(root, request)
            if is_there[request.folder_name]:
                continue
            for module in filter(_is_missing, _export_modules(request)):
                package = _ENGINES[device] if module == "onnxruntime" else module
                yield Missing(package, (name,), purpose=_TO_EXPORT, extra=extra)
            yield from _of_model(request.model, hub=hub, extra=extra)


def _of_model(name: str, *, hub: bool, extra: str) -> Iterator[Missing]:
    """Yield what is missing to have a model's own files."""
    entry = EMBEDDED.get(name)
    has_client = not _is_missing("huggingface_hub")
    if entry is not None and _is_missing(entry.module) and not (hub and has_client):
        yield Missing(
            entry.requirement.partition("==")[0],
            (f"model {name}",),
            requirement=entry.requirement,
            has_dependencies=False,
        )
    if entry is None and not has_client and not expanded(name).is_dir():
        yield _client(f"model {name}", extra)


def _client(needed_by: str, extra: str) -> Missing:
    package = "huggingface_hub"
    return Missing(package, (needed_by,), extra=extra, requirement=package)


def _export_modules(request: ArtifactRequest) -> tuple[str, ...]:
    """Return the modules that an export imports for certain."""
    entry = EMBEDDED.get(request.model)
    if entry is not None:
        gguf = _EXPORT_GGUF if entry.gguf_file else ()
        return (*_EXPORT, *gguf, *(_EXPORT_ADAPTER if entry.adapter else ()))
    # A model of the hub may turn out to be an ONNX file that is taken as it is.
    folder = expanded(request.model)
    has_weights = folder.is_dir() and any(folder.glob("*.safetensors"))
    return _EXPORT if has_weights or not GRAPHS[request.graph].takes_onnx else _ADOPT


def _is_artifact(root: Path, request: ArtifactRequest) -> bool:
    try:
        find_artifact(root, request)
    except ArtifactMissingError:
        return False
    return True


def _reads(config: RunConfig) -> Iterator[tuple[str, Read]]:
    """Yield the families that each instance reads."""
    for name, settings in config.metrics.items():
        for read in metric_of(settings).reads(settings):
            yield name, read


def _extra(device: Device) -> str:
    """Return which extra brings what models need beside the engine that is there, or will be."""
    has_gpu_engine = any(metadata.distributions(name=_ENGINES["cuda"]))
    return _EXTRAS["cuda" if has_gpu_engine else device]


def _is_missing(module: str) -> bool:
    return find_spec(module) is None
