"""Pins: signatures, keys of commits, columns and artifact requests stay as users have them.

A changed pin makes every finished run incomparable with the next one, or computes it again. Where
that is meant, run ``python tests/pins/write_pins.py`` and say so in CHANGELOG.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pins.pinned_configs import pinned

PINS = Path(__file__).with_name("pins.json")


def test_signatures_keys_and_columns_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from scores that are computed, and paid, again for a change that changed nothing."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"the {name} here")
    found = pinned()
    wanted = json.loads(PINS.read_text(encoding="utf-8"))
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name] == wanted[name], name
