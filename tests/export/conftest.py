"""Artifacts of small random models, each built once for all export tests."""

from __future__ import annotations

import pytest
import torch

from workshop import Workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Return a workshop in a temporary folder."""
    torch.set_num_threads(1)  # Small models; more threads only wait for each other.
    return Workshop(tmp_path_factory.mktemp("workshop"))
