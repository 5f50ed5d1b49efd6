"""A job on one machine: what is committed is kept, what changed is computed, and no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from helpers import (
    assert_same_scores,
    commits,
    read_scores,
    run_locally,
    short_sample,
    write_parquet,
)
from qaeval_core.configure import load_config
from qaeval_core.errors import ReconcileError, StoreLockedError, TooManyQuarantinedError
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.store.lock import RunLock

N_ROWS = 30


@pytest.fixture
def job(tiny_settings: dict[str, object], tmp_path: Path) -> dict[str, object]:
    write_parquet(tmp_path / "input.parquet", short_sample(N_ROWS))
    return {
        **tiny_settings,
        "input.paths": [str(tmp_path / "input.parquet")],
        "output.path": str(tmp_path / "out"),
        "scoring.rows_per_shard": 7,
    }


def n_computed(outcome_report: dict) -> dict[str, int]:
    """Return rows that each family computed in this run."""
    return {
        key.split("-")[0]: family.get("this_run", {}).get("rows", 0)
        for key, family in outcome_report["families"].items()
    }


def test_second_run_on_a_finished_out_computes_nothing(job: dict, tmp_path: Path) -> None:
    """Protects from paying for a finished run again."""
    first, _ = run_locally(job)
    before = commits(tmp_path / "out", "lrm") | commits(tmp_path / "out", "grg")
    second, said = run_locally(job)
    assert not second.is_new
    assert second.report == first.report
    assert "nothing to do" in said[0]
    assert commits(tmp_path / "out", "lrm") | commits(tmp_path / "out", "grg") == before


def test_every_gpu_has_rows_of_a_small_pass(job: dict, tmp_path: Path) -> None:
    """Two shards of 65,536 rows would leave six of eight GPUs without work."""
    n_rows = 100_000
    one_row = {name: [values[0]] * n_rows for name, values in short_sample(1).to_pydict().items()}
    pa.parquet.write_table(pa.table(one_row), job["input.paths"][0])

    def shards(n_actors: int, **given: object) -> list[int]:
        config = load_config(overrides={**job, "scoring.rows_per_shard": None, **given})
        made = replace(make_job(config, read_inputs(config), device="cpu"), device="cuda")
        (lrm,) = [family for family in made.run.families if family.name == "lrm"]
        pieces = made.pieces([lrm], n_actors=n_actors)
        assert len(pieces) >= n_actors or given
        return [rows.n_rows for piece in pieces for rows in piece.shards]

    assert shards(8) == [4096] * 24 + [1696]  # The least: an eighth of a share is 1,562 rows.
    assert shards(2) == [6250] * 16
    assert shards(2, **{"scoring.rows_per_shard": 60_000}) == [60_000, 40_000]  # as asked


def test_scores_do_not_depend_on_shards_batches_or_padding(job: dict, tmp_path: Path) -> None:
    """Protects from padding leaks and neighbors: one row at a time is the oracle."""
    run_locally(job)
    expected = read_scores(tmp_path / "out")
    for rows_per_shard, max_batch_tokens in ((1, 512), (1000, 512), (1000, 8192)):
        out = tmp_path / f"out-{rows_per_shard}-{max_batch_tokens}"
        run_locally(
            {
                **job,
                "output.path": str(out),
                "scoring.rows_per_shard": rows_per_shard,
                "models.encoder.max_batch_tokens": max_batch_tokens,
                "models.causal_lm.max_batch_tokens": max_batch_tokens,
            }
        )
        assert_same_scores(read_scores(out), expected)


def test_other_shard_size_goes_on_from_what_is_committed(job: dict, tmp_path: Path) -> None:
    """Protects from throwing work away because --rows-per-shard was changed."""
    run_locally({**job, "input.limit": 14})
    outcome, _ = run_locally({**job, "scoring.rows_per_shard": 5})
    assert outcome.report is not None
    assert n_computed(outcome.report) == {"lrm": 16, "grg": 16}


def test_baseline_exponent_and_layers_run_no_model(job: dict, tmp_path: Path) -> None:
    """Protects from a model pass for what is arithmetic."""
    run_locally(job)
    plain = read_scores(tmp_path / "out")
    for setting, value in (
        ("qrelscore.baseline", {"lrm": 0.1, "grg": 0.0}),
        ("qrelscore.exponent", 2.0),
        ("qrelscore.layers", "last"),
        ("qrelscore.gain", "absolute"),
    ):
        outcome, said = run_locally({**job, setting: value})
        assert outcome.is_new
        assert outcome.report is not None
        assert n_computed(outcome.report) == {"lrm": 0, "grg": 0}
        assert sum("nothing to compute" in line for line in said) == 2
    run_locally({**job, "qrelscore.baseline": {"lrm": 0.1, "grg": 0.0}})
    rescaled = read_scores(tmp_path / "out")
    raw = plain["qrelscore_lrm_raw"].to_numpy().astype(np.float64)
    expected = np.clip((raw - 0.1) / 0.9, 0, 1)
    assert np.allclose(rescaled["qrelscore_lrm"].to_numpy(), expected, atol=1e-6)


@pytest.mark.slow
def test_other_matchings_are_passes_of_their_own(job: dict, tmp_path: Path) -> None:
    """Protects from an ablation that scores the default in silence."""
    run_locally(job)
    attended = read_scores(tmp_path / "out")["qrelscore_lrm"].abs()
    weighted = {"qrelscore.matching": "weighted", "qrelscore.aggregate": "average"}
    outcome, _ = run_locally({**job, **weighted})
    assert outcome.report is not None
    assert n_computed(outcome.report) == {"lrm": N_ROWS, "grg": 0}
    averaged = read_scores(tmp_path / "out")["qrelscore_lrm"].abs()
    assert (averaged < attended).all()  # Attention weights are below 1, and most context is far.


def test_absolute_gain_is_not_combined(job: dict, tmp_path: Path) -> None:
    """Protects from a harmonic mean of a ratio and nats."""
    run_locally({**job, "qrelscore.gain": "absolute"})
    scores = read_scores(tmp_path / "out")
    assert "qrelscore" not in scores.columns
    assert "qrelscore_grg" in scores.columns


def test_new_instances_compute_their_own_families_alone(job: dict, tmp_path: Path) -> None:
    """Protects from computing a shared family twice."""
    run_locally(job)
    models = {key.split(".")[-1]: value for key, value in job.items() if "qrelscore." in key}
    with_reference = {**job, "metrics.ref_qrelscore": models}
    outcome, _ = run_locally(with_reference)
    assert outcome.report is not None
    assert n_computed(outcome.report) == {
        "lrm": 0,
        "grg": 0,
        "lrm_references": N_ROWS,
        "grg_references": N_ROWS,
    }
    scores = read_scores(tmp_path / "out")
    mean = (scores["ref_qrelscore_context"] + scores["ref_qrelscore_reference"]) / 2
    assert np.allclose(scores["ref_qrelscore"].to_numpy(), mean.to_numpy(), atol=1e-6)
    assert scores["ref_qrelscore_context"].to_list() == scores["qrelscore"].to_list()

    authors = {"metric": "qrelscore", "profile": "authors", **models}
    outcome, _ = run_locally({**with_reference, "metrics.qrel_authors": authors})
    assert outcome.report is not None
    computed = [
        (key, family.get("this_run", {}).get("rows", 0))
        for key, family in outcome.report["families"].items()
    ]
    assert sum(rows for _, rows in computed) == 2 * N_ROWS
    assert "qrel_authors_lrm" in read_scores(tmp_path / "out").columns


def test_changed_input_file_is_noticed_and_scored_anew(job: dict, tmp_path: Path) -> None:
    """Protects from old scores beside new rows."""
    run_locally(job)
    write_parquet(tmp_path / "input.parquet", short_sample(N_ROWS).slice(3))
    outcome, said = run_locally(job)
    assert any("input.parquet changed since the last run" in line for line in said)
    assert outcome.report is not None
    assert n_computed(outcome.report) == {"lrm": N_ROWS - 3, "grg": N_ROWS - 3}


def test_changed_model_or_option_is_noticed(job: dict, tmp_path: Path) -> None:
    """Protects from scores of two models in one table."""
    run_locally(job)
    outcome, said = run_locally({**job, "qrelscore.max_window_tokens": 256})
    assert any("results are ignored (a model, option or input changed)" in line for line in said)
    assert outcome.report is not None
    assert n_computed(outcome.report) == {"lrm": 0, "grg": N_ROWS}


def test_equal_texts_and_pairs_are_computed_once(job: dict, tmp_path: Path) -> None:
    """Protects from paying for the same context once per question."""
    row = short_sample(1).to_pylist()[0]
    write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist([row] * 6))
    outcome, _ = run_locally(job)
    assert outcome.report is not None
    families = {key.split("-")[0]: value for key, value in outcome.report["families"].items()}
    assert families["lrm"]["forward_sequences"] == 1
    assert families["lrm"]["forward_sequences_avoided"] == 5
    n_windows = read_scores(tmp_path / "out")["qrelscore_grg_windows"][0]
    assert families["grg"]["forward_sequences"] == 2 * n_windows
    assert families["grg"]["forward_sequences_avoided"] == 10 * n_windows


def test_too_many_quarantined_rows_stop_the_run(job: dict, tmp_path: Path) -> None:
    """Protects from a wrong column mapping scored to the end as nulls."""
    table = pa.table({"question": ["Who?", None, None], "context": ["a b", "c d", "e f"]})
    write_parquet(tmp_path / "input.parquet", table)
    strict = {**job, "scoring.max_quarantined": 0.5}
    with pytest.raises(TooManyQuarantinedError, match="2.*3.*QA0511"):
        run_locally(strict)
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    with pytest.raises(TooManyQuarantinedError):
        run_locally(strict)  # Also when everything is committed.
    run_locally(job)


def test_retry_scores_shards_with_quarantined_rows_once_more(job: dict, tmp_path: Path) -> None:
    """Protects from quarantined rows that nothing but a new OUT could retry."""
    table = short_sample(N_ROWS).to_pylist()
    table[8]["question"] = None
    write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist(table))
    run_locally(job)
    outcome, said = run_locally({**job, "scoring.retry_quarantined": True})
    assert outcome.report is not None
    assert n_computed(outcome.report) == {"lrm": 7, "grg": 7}
    assert any("1 shards with unscored rows are scored again" in line for line in said)


def test_second_run_into_a_live_out_is_refused(job: dict, tmp_path: Path) -> None:
    """Protects from two runs writing one OUT; a dead run's lock is taken over."""
    with (
        RunLock(tmp_path / "out"),
        pytest.raises(StoreLockedError, match="QA0505"),
    ):
        run_locally(job)
    dead = {"host": __import__("socket").gethostname(), "pid": 2**22 + 1, "started": 0.0}
    (tmp_path / "out" / ".lock").write_text(json.dumps(dead))
    outcome, _ = run_locally(job)
    assert outcome.is_new
    assert not (tmp_path / "out" / ".lock").exists()


def test_damaged_commit_is_named_and_never_joined(job: dict, tmp_path: Path) -> None:
    """Protects from success over a half-written file."""
    run_locally(job)
    victim = min((tmp_path / "out").glob("families/lrm-*/*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-20])
    (tmp_path / "out" / "_SUCCESS").unlink()
    with pytest.raises(ReconcileError, match=victim.name):
        run_locally(job)
    victim.unlink()
    outcome, _ = run_locally(job)
    assert outcome.report is not None
    assert n_computed(outcome.report)["lrm"] == 7


def test_every_row_is_scored_undefined_or_quarantined(job: dict, tmp_path: Path) -> None:
    """Protects from averages over hidden NaN: the three counts add up to the rows."""
    rows = short_sample(6).to_pylist()
    rows[1]["question"] = ""
    rows[2]["context"] = ""
    rows[3]["context"] = None
    rows[4]["question"] = "word " * 2000
    write_parquet(tmp_path / "input.parquet", pa.Table.from_pylist(rows))
    outcome, _ = run_locally(job)
    assert outcome.report is not None
    counts = outcome.report["instances"]["qrelscore"]
    assert (counts["scored"], counts["undefined"], counts["quarantined"]) == (2, 3, 1)
    assert counts["undefined_by_reason"] == {
        "empty_candidate": 1,
        "empty_context": 1,
        "candidate_too_long": 1,
    }
    column = outcome.report["columns"]["qrelscore"]
    assert (column["n"], column["n_undefined"]) == (2, 3)
