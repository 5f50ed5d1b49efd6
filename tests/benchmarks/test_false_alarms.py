"""The comparison with evidently: the same splits for both, shares, and the page's figures."""

from __future__ import annotations

import doctest
import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks import false_alarms
from benchmarks.false_alarms import (
    ALPHAS,
    CLUSTER,
    COLUMNS,
    MOVED,
    PEER,
    PEER_SIDES,
    SAME,
    UNDEFINED,
    changes,
    make_peer,
    ours,
    run,
    summarize,
    table,
    write_splits,
)
from helpers import REPOSITORY

RECORD: dict[str, Any] = json.loads(
    (REPOSITORY / "docs/evidence/false_alarms.json").read_text(encoding="utf-8")
)
PAGE = REPOSITORY / "docs" / "audit-comparison.md"


def test_examples_hold() -> None:
    assert doctest.testmod(false_alarms) == (0, 3)


@pytest.mark.shared_data
def test_halves_share_no_passage_and_differ_by_what_is_said(
    shared_data: Path, tmp_path: Path
) -> None:
    source = shared_data / "qgeval" / "qgeval_squad.parquet"
    (paths, other) = write_splits(tmp_path, 2, source=source)
    tables = {name: pl.read_parquet(path) for name, path in paths.items()}
    reference, same = tables["reference"], tables[SAME]
    assert reference.height == same.height == 750
    assert not set(reference[CLUSTER]) & set(same[CLUSTER])
    assert not reference.equals(pl.read_parquet(other["reference"]))
    for name in set(tables) - {"reference", UNDEFINED}:
        assert tables[name].drop(MOVED).equals(same.drop(MOVED))
    shift = tables["+0.4"][MOVED].mean() - same[MOVED].mean()
    spread = pl.read_parquet(source)[MOVED].std()
    assert shift == pytest.approx(0.4 * spread)
    undefined = tables[UNDEFINED]
    assert undefined.drop(MOVED).equals(reference.drop(MOVED))
    is_left = ~undefined[MOVED].is_nan()
    assert 0.3 < is_left.mean() < 0.5
    assert undefined[MOVED].filter(is_left).equals(reference[MOVED].filter(is_left))


@pytest.mark.shared_data
def test_ours_is_silent_and_finds_what_was_done(shared_data: Path, tmp_path: Path) -> None:
    """The first splits of the record; a larger alpha never finds less."""
    source = shared_data / "qgeval" / "qgeval_squad.parquet"
    found = ours(write_splits(tmp_path, 2, source=source))
    assert list(found) == list(ALPHAS)
    for change in changes():
        strict, loose = (found[alpha][change] for alpha in ALPHAS)
        for one, other in zip(strict, loose, strict=True):
            assert set(one["columns"]) <= set(other["columns"])
    assert summarize(found[0.05])["any"] == 0
    assert all(own["columns"] == [MOVED] for own in found[0.01][UNDEFINED])
    assert summarize(found[0.01])["moved"]["+0.8"] == 1


def test_the_page_shows_the_record() -> None:
    """Protects from figures that somebody wrote by hand, and from those of another version."""
    assert table(RECORD) in PAGE.read_text(encoding="utf-8")
    assert (RECORD["n_splits"], RECORD["peer"], RECORD["columns"]) == (
        100,
        list(PEER),
        list(COLUMNS),
    )
    assert PEER[0] in PAGE.read_text(encoding="utf-8")
    assert set(PEER_SIDES.values()) < set(RECORD["sides"])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.shared_data
def test_the_record_can_be_repeated(shared_data: Path, tmp_path: Path) -> None:
    """All splits again, evidently in an environment of its own."""
    try:
        python = make_peer(tmp_path / "evidently")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{PEER[0]} cannot be installed here: {error}")
    again = run(python, RECORD["n_splits"])["sides"]
    for side, own in RECORD["sides"].items():
        assert again[side]["any"] == pytest.approx(own["any"], abs=0.02)
        assert again[side]["columns"] == pytest.approx(own["columns"], abs=0.01)
        assert again[side]["moved"] == pytest.approx(own["moved"], abs=0.02)
