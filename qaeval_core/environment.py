"""Environment: what a number may depend on besides data and models."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

_PACKAGES = (
    "qaeval",
    "numpy",
    "pyarrow",
    "onnxruntime",
    "onnxruntime-gpu",
    "tokenizers",
    "ray",
    "nltk",
    "rapidfuzz",
    "sacrebleu",
)


def environment() -> dict[str, Any]:
    """Return what a number may depend on besides data and models."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }
