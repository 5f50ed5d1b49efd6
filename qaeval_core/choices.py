"""Choices: names that settings and the code they choose must agree on."""

from __future__ import annotations

from typing import Literal

Tokeniser = Literal[
    "squad",
    "whitespace",
    "words",
    "rouge",
    "13a",
    "treebank",
    "coco",
    "spacy",
    "zh",
    "characters",
]
Language = Literal["en", "de", "es", "fr", "zh", "none"]
Stemming = Literal["none", "porter"]
Smoothing = Literal["none", "floor", "add_one", "exponential", "coco"]
