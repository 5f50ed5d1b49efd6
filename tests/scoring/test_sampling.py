"""A sample of whole contexts: which rows are scored, what is said of the others, what is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from helpers import read_scores, run_locally, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import InputError, TooManyQuarantinedError
from qaeval_core.planning.job import make_job, read_inputs
from sampled_rows import NOT_SAMPLED, request, smallest, some, table

N_ROWS, N_CONTEXTS, N_SAMPLED = 120, 23, 5


def scored(out: Path, name: str = "input.parquet") -> list[bool]:
    """Return which rows have a score; the others have to say that they are not sampled."""
    scores = read_scores(out, name)
    is_scored = scores["f1"].is_not_null().to_list()
    reasons = scores["quarantine_reason"].to_list()
    assert reasons == [None if own else NOT_SAMPLED for own in is_scored]
    assert scores["f1_reason"].null_count() == scores.height
    return is_scored


def test_a_sample_is_the_rows_of_whole_contexts(tmp_path: Path) -> None:
    """Protects from rows of one context that are torn apart, and from shifted rows."""
    contexts = some(N_ROWS, N_CONTEXTS)
    source = write_parquet(tmp_path / "input.parquet", table(contexts))
    out = tmp_path / "out"
    outcome, said = run_locally(request(source, out))
    wanted = [own in smallest(contexts, N_SAMPLED) for own in contexts]
    assert 0 < sum(wanted) < N_ROWS
    assert scored(out) == wanted
    assert read_scores(out)["id"].to_list() == list(map(str, range(N_ROWS)))
    assert set(read_scores(out)["f1"].drop_nulls()) == {1.0}
    assert not (out / "quarantine").exists()

    report = outcome.report
    assert report is not None
    assert report["sample"] == {
        "groups": N_SAMPLED,
        "contexts": N_SAMPLED,
        "rows": sum(wanted),
        "rows_without_context": 0,
        "column": "context",
    }
    assert (report["quarantined"], report["not_sampled"]) == (0, N_ROWS - sum(wanted))
    own = report["instances"]["f1"]
    assert (own["scored"], own["undefined"], own["quarantined"]) == (sum(wanted), 0, 0)
    assert own["not_sampled"] == N_ROWS - sum(wanted)
    assert report["columns"]["f1"]["n"] == sum(wanted)
    assert report["columns"]["f1"]["n_undefined"] == 0
    (family,) = report["families"].values()
    assert family["rows"] == sum(wanted)
    assert any(f"sample: {sum(wanted)} of {N_ROWS} rows" in line for line in said)


@pytest.mark.parametrize(
    ("n_files", "rows_per_group", "rows_per_shard"), [(1, 1000, 1000), (3, 7, 5), (4, 16, 3)]
)
def test_files_row_groups_and_shards_do_not_choose(
    n_files: int, rows_per_group: int, rows_per_shard: int, tmp_path: Path
) -> None:
    """Protects from a sample that depends on where rows lie, rather than on their contexts."""
    contexts = some(N_ROWS, N_CONTEXTS)
    whole = table(contexts)
    size = -(-N_ROWS // n_files)
    sources = [
        write_parquet(
            tmp_path / f"part{i}.parquet",
            whole.slice(i * size, size),
            row_group_size=rows_per_group,
            use_dictionary=i % 2 == 0,
        )
        for i in range(n_files)
    ]
    out = tmp_path / "out"
    run_locally(request(sources, out, scoring__rows_per_shard=rows_per_shard))
    found = [own for i in range(n_files) for own in scored(out, f"part{i}.parquet")]
    assert found == [own in smallest(contexts, N_SAMPLED) for own in contexts]


def test_next_week_has_the_contexts_that_are_still_smallest(tmp_path: Path) -> None:
    """Protects from weeks without common rows: an audit compares those in pairs."""
    old, new = some(N_ROWS, 40), some(N_ROWS, 40, week=1)
    weeks = {"old": old, "new": [*new[: N_ROWS // 2], *old[: N_ROWS // 2]]}
    chosen = {}
    for name, contexts in weeks.items():
        source = write_parquet(tmp_path / name / "input.parquet", table(contexts))
        run_locally(request(source, tmp_path / name / "out", input__sample_groups=12))
        is_scored = scored(tmp_path / name / "out")
        chosen[name] = {own for own, is_in in zip(contexts, is_scored, strict=True) if is_in}
        assert chosen[name] == smallest(contexts, 12)
    stayed = chosen["old"] & set(weeks["new"])
    # Whoever is out of the new sample is larger than all that are in it.
    assert len(chosen["old"] & chosen["new"]) >= 3
    assert chosen["old"] & chosen["new"] == stayed & smallest(weeks["new"], 12)
    assert chosen["new"] - chosen["old"]


def test_rows_without_a_context_are_in_no_sample_and_counted(tmp_path: Path) -> None:
    """Protects from a metric's quarantine of rows that nobody paid to look at."""
    contexts = [None if n % 10 == 3 else own for n, own in enumerate(some(N_ROWS, N_CONTEXTS))]
    source = write_parquet(tmp_path / "input.parquet", table(contexts))
    out = tmp_path / "out"
    outcome, said = run_locally(request(source, out))
    wanted = [own in smallest(contexts, N_SAMPLED) for own in contexts]
    assert scored(out) == wanted
    assert outcome.report is not None
    assert outcome.report["sample"]["rows_without_context"] == N_ROWS // 10
    assert outcome.report["quarantined"] == 0
    assert any(f"{N_ROWS // 10} rows have no context" in line for line in said)


def test_quarantined_rows_of_the_sample_stay_quarantined(tmp_path: Path) -> None:
    """Protects from one count for what is broken and what nobody looked at."""
    contexts = some(N_ROWS, N_CONTEXTS)
    rows = table(contexts).to_pylist()
    for row in rows[::2]:
        row["candidate"] = None
    rows[1]["candidate"] = ""
    source = write_parquet(
        tmp_path / "input.parquet", table(contexts).from_pylist(rows, schema=table(contexts).schema)
    )
    out = tmp_path / "out"
    outcome, _ = run_locally(request(source, out))
    sampled = smallest(contexts, N_SAMPLED)
    counts = Counter(
        NOT_SAMPLED
        if row["context"] not in sampled
        else "null_candidate"
        if row["candidate"] is None
        else "scored"
        for row in rows
    )
    reasons = read_scores(out)["quarantine_reason"].fill_null("scored").to_list()
    assert Counter(reasons) == counts
    assert min(counts.values()) > 0
    report = outcome.report
    assert report is not None
    assert report["quarantined_by_reason"] == {"null_candidate": counts["null_candidate"]}
    assert report["not_sampled"] == counts[NOT_SAMPLED]
    quarantine = pl.read_parquet(out / "quarantine" / "input.parquet")
    assert quarantine["reason"].to_list() == ["null_candidate"] * counts["null_candidate"]


def test_a_limit_of_quarantined_rows_is_a_share_of_the_sample(tmp_path: Path) -> None:
    """Protects from a limit that rows which nobody looked at make meaningless."""
    contexts = some(N_ROWS, N_CONTEXTS)
    rows = table(contexts, candidate=pa.nulls(N_ROWS, pa.string()))
    source = write_parquet(tmp_path / "input.parquet", rows)
    n_sampled = sum(own in smallest(contexts, N_SAMPLED) for own in contexts)
    with pytest.raises(TooManyQuarantinedError, match=f"{n_sampled}.*QA0511"):
        run_locally(request(source, tmp_path / "out", scoring__max_quarantined=0.5))


@pytest.mark.parametrize("n_groups", [N_CONTEXTS, N_CONTEXTS + 1, 10_000])
def test_as_many_groups_as_contexts_are_all_rows(n_groups: int, tmp_path: Path) -> None:
    """Protects from a last context that falls out, and a cut that does not hold all."""
    contexts = some(N_ROWS, N_CONTEXTS)
    source = write_parquet(tmp_path / "input.parquet", table(contexts))
    outcome, _ = run_locally(request(source, tmp_path / "out", input__sample_groups=n_groups))
    assert scored(tmp_path / "out") == [True] * N_ROWS
    assert outcome.report is not None
    assert outcome.report["not_sampled"] == 0
    assert outcome.report["sample"]["contexts"] == N_CONTEXTS
    for line in outcome.report["families"].values():
        assert line["rows"] == N_ROWS


def test_lists_of_passages_are_contexts_and_a_list_of_one_is_its_text(tmp_path: Path) -> None:
    """Protects from a sample that a change of type from text to list would draw anew."""
    contexts = some(N_ROWS, N_CONTEXTS)
    rows = table(contexts)
    lists = pa.array([[own] for own in contexts], pa.list_(pa.string()))
    rows = rows.set_column(rows.column_names.index("context"), "context", lists)
    source = write_parquet(tmp_path / "input.parquet", rows)
    run_locally(request(source, tmp_path / "out"))
    assert scored(tmp_path / "out") == [own in smallest(contexts, N_SAMPLED) for own in contexts]


def test_a_limit_counts_before_the_sample(tmp_path: Path) -> None:
    """Protects from contexts beyond the limit that take places of the sample."""
    contexts = some(N_ROWS, 60)
    source = write_parquet(tmp_path / "input.parquet", table(contexts))
    run_locally(request(source, tmp_path / "out", input__limit=30))
    assert scored(tmp_path / "out") == [own in smallest(contexts[:30], 5) for own in contexts[:30]]


def test_what_counts_over_the_corpus_counts_the_sample(tmp_path: Path) -> None:
    """Protects from document frequencies and sums of rows that were not to be looked at."""
    contexts = some(N_ROWS, N_CONTEXTS)
    whole = table(contexts, candidate=[f"{n % 7} bees live here" for n in range(N_ROWS)])
    wanted = [own in smallest(contexts, N_SAMPLED) for own in contexts]
    metrics = {"metrics.cider.metric": "cider", "metrics.bleu_2.metric": "bleu_2"}
    reports, tables = [], []
    for name, rows in (("all", whole), ("own", whole.filter(pa.array(wanted)))):
        source = write_parquet(tmp_path / name / "input.parquet", rows)
        n_groups = N_SAMPLED if name == "all" else None
        given = request(source, tmp_path / name / "out", input__sample_groups=n_groups)
        outcome, _ = run_locally({**given, **metrics})
        assert outcome.report is not None
        reports.append(outcome.report["columns"])
        tables.append(read_scores(tmp_path / name / "out").filter(pl.col("cider").is_not_null()))
    columns = ["id", "cider", "bleu_2"]
    assert tables[0].height == sum(wanted)
    assert tables[0].select(columns).equals(tables[1].select(columns))
    assert tables[0]["cider"].n_unique() > 1
    for metric in ("cider", "bleu_2"):
        own, expected = reports
        assert own[metric]["corpus"] == pytest.approx(expected[metric]["corpus"], rel=1e-12)
        assert own[metric]["mean"] == pytest.approx(expected[metric]["mean"], rel=1e-12)


def test_no_context_at_all_is_said(tmp_path: Path) -> None:
    """Protects from a run that scores nothing and looks as if all were well."""
    source = write_parquet(tmp_path / "input.parquet", table([None] * 8))
    with pytest.raises(InputError, match="QA0319"):
        run_locally(request(source, tmp_path / "out"))


def test_a_job_without_its_sample_is_refused(tmp_path: Path) -> None:
    """Protects from a caller that forgets the sample, and scores and pays for all rows."""
    source = write_parquet(tmp_path / "input.parquet", table(some(8, 4)))
    config = load_config(overrides=request(source, tmp_path / "out"))
    with pytest.raises(ValueError, match="with_sample"):
        make_job(config, read_inputs(config), device="cpu")
