"""Pins of what a GPU worker installs, against what the extra asks for and the engine refuses."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from helpers import REPOSITORY
from qaeval_core.models.engine import Device
from qaeval_core.models.onnx_runtime import MIN_ONNXRUNTIME

_ENGINES: dict[Device, str] = {"cpu": "onnxruntime", "cuda": "onnxruntime-gpu"}
# The Requires-Dist of the wheel onnxruntime_gpu 1.31.1 (PyPI), and what those wheels require:
# cuBLAS is cuDNN's, nvJitLink cuFFT's.
_WHEEL = Version("1.31.1")
_ASKED = {
    "cuda": (
        "nvidia-cuda-nvrtc~=13.0",
        "nvidia-cuda-runtime~=13.0",
        "nvidia-cufft~=12.0",
        "nvidia-curand~=10.0",
    ),
    "cudnn": ("nvidia-cudnn-cu13~=9.0",),
}
_ASKED_BY_THOSE = ("nvidia-cublas", "nvidia-nvjitlink")


def pins(name: str) -> dict[str, Version]:
    """Return the versions that a file of constraints names, by package."""
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in found), "a line that pins nothing"
    return {canonicalize_name(package): Version(version) for package, version in found}


def extra(name: str) -> list[Requirement]:
    """Return what an extra of the project asks for."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in project["optional-dependencies"][name]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_engine_that_is_refused_is_older_than_what_the_extra_asks(device: Device) -> None:
    """An extra that asks more than the check lets kernels through that nobody has looked at."""
    engine = extra({"cpu": "models", "cuda": "gpu"}[device])[0]
    assert engine.name == _ENGINES[device]
    assert str(engine.specifier) == f">={'.'.join(map(str, MIN_ONNXRUNTIME[device]))}"
    assert engine.specifier.contains(pins("constraints.txt")[engine.name])


def test_every_package_of_cuda_that_the_extra_pulls_is_pinned() -> None:
    """A worker that is built next month gets the CUDA that was looked at, not the newest."""
    engine = extra("gpu")[0]
    assert engine.extras == set(_ASKED)
    # Another wheel: look what it requires, and write it above.
    assert pins("constraints.txt")["onnxruntime-gpu"] == _WHEEL
    asked = [Requirement(line) for name in _ASKED for line in _ASKED[name]]
    pinned = pins("constraints-gpu.txt")
    assert set(pinned) == {own.name for own in asked} | set(_ASKED_BY_THOSE)
    wrong = [own for own in asked if not own.specifier.contains(pinned[own.name])]
    assert wrong == []
    assert not set(pinned) & set(pins("constraints.txt"))  # Beside it: one pin each.


def test_what_the_wheel_requires_is_as_written_here() -> None:
    """Protects from a list that was right for another wheel; told where one is installed."""
    try:
        told = metadata.requires("onnxruntime-gpu") or []
    except metadata.PackageNotFoundError:
        pytest.skip("no onnxruntime-gpu is installed here")
    found: dict[str, set[str]] = {}
    for line in told:
        if extra_name := re.search(r"extra == [\"'](\w+)[\"']", line):
            own = Requirement(line)
            found.setdefault(extra_name[1], set()).add(f"{own.name}{own.specifier}")
    assert {name: found[name] for name in _ASKED} == {k: set(v) for k, v in _ASKED.items()}
