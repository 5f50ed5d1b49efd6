"""Claims outlive a kill of their governor, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from qaeval_core.llm import leases
from qaeval_core.llm.leases import LeaseLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims.jsonl"


def test_claims_of_a_killed_governor_are_found(path: Path) -> None:
    """A request in flight must not be given to a second caller because the governor died."""
    kept = LeaseLog(path, life="one")
    kept.claimed("0a", owner="me")
    kept.claimed("0b", owner="me")
    kept.claimed("0b", owner="you")  # The lease had ended.
    kept.released("0b", owner="me")  # Too late: it is another's.
    kept.claimed("0c", owner="me")
    kept.released("0c", owner="me")
    assert LeaseLog(path, life="one").found == {"0a": "me", "0b": "you"}
    assert LeaseLog(path, life="one").found == {"0a": "me", "0b": "you"}  # Twice killed.


def test_a_new_governor_begins_with_none(path: Path) -> None:
    """The next run must not wait for claims of a run that is dead."""
    LeaseLog(path, life="one").claimed("0a", owner="me")
    assert LeaseLog(path, life="two").found == {}
    assert LeaseLog(path, life="one").found == {}


def test_a_torn_or_damaged_file_is_no_obstacle(path: Path) -> None:
    """A kill in the middle of a write must not keep the governor from starting."""
    kept = LeaseLog(path, life="one")
    kept.claimed("0a", owner="me")
    with path.open("ab") as file:
        file.write(b'[1]\n{"0b":"yo')
    assert LeaseLog(path, life="one").found == {"0a": "me"}
    path.write_bytes(b"\xff\xfe")
    assert LeaseLog(path, life="one").found == {}


def test_the_file_does_not_grow_with_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million requests must not leave 200 MB behind, to be read at each start."""
    monkeypatch.setattr(leases, "_MAX_OLD_LINES", 20)
    kept = LeaseLog(path, life="one")
    kept.claimed("held", owner="me")
    for number in range(500):
        kept.claimed(f"{number}", owner="me")
        kept.released(f"{number}", owner="me")
    assert len(path.read_text().splitlines()) <= 25
    assert LeaseLog(path, life="one").found == {"held": "me"}
