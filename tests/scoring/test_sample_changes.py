"""A sample that is gone on with, or changed: what is computed again, and what is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from answer_models import ANSWER_METRICS, AnswerModels
from helpers import (
    assert_same_scores,
    commits,
    qaeval,
    read_scores,
    run_locally,
    short_sample,
    start_qaeval,
    wait_until,
    write_parquet,
)
from qaeval_core.calibration.baselines import draw_pairs
from qaeval_core.configure import load_config
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.running.sampling import with_sample
from sampled_rows import NOT_SAMPLED, request, smallest, some, table

N_ROWS = 40
WORDS = ["Anna", "painted", "the", "sea", "every", "day", "since", "1874"]


def families(outcome: Any, what: str) -> dict[str, int]:
    """Return a number of each family of a report, by name without hash."""
    return {key.rsplit("-", 1)[0]: own[what] for key, own in outcome.report["families"].items()}


def test_another_sample_computes_what_is_new_in_it(
    tiny_settings: dict[str, object], tmp_path: Path
) -> None:
    """Protects from paying for a row twice, and from rows that a change loses or keeps."""
    rows = short_sample(N_ROWS)
    contexts = rows["context"].to_pylist()
    n_contexts = len(set(contexts))
    assert n_contexts >= 4
    source = write_parquet(tmp_path / "input.parquet", rows)
    settings = {
        **tiny_settings,
        "metrics.qrelscore.metric": "qrelscore",
        "input.paths": [str(source)],
        "scoring.rows_per_shard": 16,
    }
    whole, _ = run_locally({**settings, "output.path": str(tmp_path / "whole")})
    expected = read_scores(tmp_path / "whole")
    units: dict[int | None, dict[str, int]] = {None: families(whole, "forward_sequences")}
    for n in (1, 3):
        own = {"input.sample_groups": n, "output.path": str(tmp_path / f"alone{n}")}
        units[n] = families(run_locally({**settings, **own})[0], "forward_sequences")
    assert units[1]["lrm"] < units[3]["lrm"] < units[None]["lrm"]

    out = tmp_path / "out"
    lrm = {n: own["lrm"] for n, own in units.items()}
    # Of each sample in turn, what it has to compute; commits of a sample that comes again are used.
    wanted = [(1, lrm[1]), (3, lrm[3] - lrm[1]), (1, lrm[1]), (2, 0), (None, lrm[None] - lrm[3])]
    for i, (n, n_units) in enumerate(wanted):
        own = {"input.sample_groups": n, "output.path": str(out)}
        outcome, said = run_locally({**settings, **own})
        scores = read_scores(out)
        is_in = [own in smallest(contexts, n or n_contexts) for own in contexts]
        assert scores["quarantine_reason"].to_list() == [
            None if own else NOT_SAMPLED for own in is_in
        ]
        assert_same_scores(
            scores.filter(is_in).drop("quarantine_reason"),
            expected.filter(is_in).drop("quarantine_reason"),
        )
        assert families(outcome, "rows") == {"lrm": sum(is_in), "grg": sum(is_in)}
        assert families(outcome, "forward_sequences")["lrm"] == n_units
        assert any("the sample changed" in line for line in said) == (i > 0)


def test_baselines_are_of_the_sample(tiny_settings: dict[str, object], tmp_path: Path) -> None:
    """Protects from scores of a sample that are measured from pairs of other rows."""
    rows = short_sample(N_ROWS)
    source = write_parquet(tmp_path / "input.parquet", rows)
    given = {"metrics.qrelscore.metric": "qrelscore", "input.paths": [str(source)]}
    config = load_config(overrides={**tiny_settings, **given, "input.sample_groups": 3})
    inputs = with_sample(config, read_inputs(config, needs_out=False))
    pairs = draw_pairs(make_job(config, inputs, device="cpu"), n_pairs=50, seed=0)
    contexts = rows["context"].to_pylist()
    assert set(pairs.contexts) == smallest(contexts, 3) < set(contexts)
    own = {row["question"] for row in rows.to_pylist() if row["context"] in set(pairs.contexts)}
    assert set(pairs.questions) <= own


def test_more_input_is_a_new_sample_of_all_of_it(tmp_path: Path) -> None:
    """Protects from a cut that was drawn from fewer files than are there."""
    first, second = some(60, 20), some(60, 20, week=1)
    a = write_parquet(tmp_path / "a.parquet", table(first))
    b = write_parquet(tmp_path / "b.parquet", table(second))
    out = tmp_path / "out"
    run_locally(request([a], out))
    run_locally(request([a, b], out))
    chosen = smallest([*first, *second], 5)
    for name, contexts in (("a.parquet", first), ("b.parquet", second)):
        is_in = [own in chosen for own in contexts]
        assert read_scores(out, name)["f1"].is_not_null().to_list() == is_in


def test_a_finished_run_is_finished(tmp_path: Path) -> None:
    """Protects from a second run that draws, computes or writes anything anew."""
    source = write_parquet(tmp_path / "input.parquet", table(some(60, 20)))
    out = tmp_path / "out"
    run_locally(request(source, out))
    before = commits(out, "words"), (out / "scores" / "input.parquet").stat().st_mtime_ns
    outcome, said = run_locally(request(source, out))
    assert not outcome.is_new
    assert any("nothing to do" in line for line in said)
    assert (commits(out, "words"), (out / "scores" / "input.parquet").stat().st_mtime_ns) == before


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_sample(tmp_path: Path) -> None:
    """Protects from shards of two samples in one OUT, and from work done twice after kill -9."""
    n_rows = 3_000
    contexts = some(n_rows, 300)
    source = write_parquet(tmp_path / "input.parquet", table(contexts))
    words = ["score", source, "--local", "--metrics", "f1", "--column", "references=reference"]
    words += ["--set", "input.sample_groups=40", "--rows-per-shard", "2", "--out"]
    out = tmp_path / "out"
    process = start_qaeval(*words, out)
    wait_until(lambda: len(commits(out, "words")) >= 5, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = commits(out, "words")
    assert 5 <= len(before) < n_rows / 2
    assert not (out / "_SUCCESS").exists()

    output = qaeval(*words, out)
    assert "rows are done" in output
    after = commits(out, "words")
    assert {name: after[name] for name in before} == before
    assert len(after) == n_rows / 2
    is_in = [own in smallest(contexts, 40) for own in contexts]
    assert read_scores(out)["f1"].is_not_null().to_list() == is_in


@pytest.mark.slow
def test_every_family_takes_over_what_it_knows(answer_models: AnswerModels, tmp_path: Path) -> None:
    """Protects from statistics of one family that do not go together with those of another run."""
    contexts = [f"Passage {i % 5}: Anna painted the sea." for i in range(14)]
    chance = np.random.default_rng(4)
    texts = [" ".join(chance.choice(WORDS, size=n % 6)) for n in range(28)]
    rows = pa.table(
        {
            "question": [f"What did Anna paint in {1870 + i % 4}?" for i in range(14)],
            "candidate": texts[:14],
            "references": [[text] for text in texts[14:]],
            "context": contexts,
            "answer": texts[14:],
        }
    )
    source = write_parquet(tmp_path / "input.parquet", rows)
    names = [
        *(metric.name for metric in ANSWER_METRICS),
        "rouge_l",
        "bleu_4",
        "meteor",
        "q_bleu",
        "adapted_rouge_l",
    ]
    models = {name: answer_models.settings(name) for name in names}
    settings = {
        **answer_models.overrides(models),
        "input.paths": [str(source)],
        "scoring.rows_per_shard": 2,  # Some shards have no row of a sample.
    }
    run_locally({**settings, "output.path": str(tmp_path / "whole")})
    expected = read_scores(tmp_path / "whole").drop("quarantine_reason")
    for n in (1, 3, None, 2):
        own = {"input.sample_groups": n, "output.path": str(tmp_path / "out")}
        run_locally({**settings, **own})
        scores = read_scores(tmp_path / "out")
        is_in = [own in smallest(contexts, n or 5) for own in contexts]
        assert scores["quarantine_reason"].is_null().to_list() == is_in
        found = scores.filter(is_in).drop("quarantine_reason")
        assert_same_scores(found, expected.filter(is_in))
