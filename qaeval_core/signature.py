"""Signatures: how a score was made, as one canonical line and its short hash.

Settings in, text out. Equal signatures mean comparable scores; a family's commits are keyed by the
hash of its signature, so whatever changes a number must be in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

N_HASH_CHARS = 12


@dataclass(frozen=True, slots=True)
class Signature:
    """How a score was made.

    Examples
    --------
    >>> signature = Signature("grg", {"profile": "paper", "max_window_tokens": 1024}, "1")
    >>> str(signature)
    'grg|max_window_tokens:1024|profile:paper|v:1'
    >>> len(signature.short_hash)
    12
    """

    name: str
    settings: Mapping[str, object]
    version: str

    def __str__(self) -> str:
        parts = [f"{key}:{_shown(value)}" for key, value in sorted(self.settings.items())]
        return "|".join([self.name, *parts, f"v:{self.version}"])

    @property
    def short_hash(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical line."""
        return hash_text(str(self))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return json.dumps(dict(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def hash_text(text: str, *, n_chars: int = N_HASH_CHARS) -> str:
    """Return the first hex digits of the SHA-256 of a text.

    >>> hash_text("a", n_chars=8)
    'ca978112'
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:n_chars]


def hash_content(content: bytes, *, n_chars: int = N_HASH_CHARS) -> str:
    """Return the first hex digits of the SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()[:n_chars]


def hash_file(path: str | Path, *, n_chars: int = N_HASH_CHARS) -> str:
    """Return the first hex digits of the SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:n_chars]


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
