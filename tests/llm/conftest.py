"""Fixtures of the tests of calls to language models."""

from __future__ import annotations

import pytest

from llm_runs import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock at 0."""
    return Clock()
