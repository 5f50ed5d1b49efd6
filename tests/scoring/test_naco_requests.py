"""Before and while NACo asks: what it would cost, what is wrong with a request, how it goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import (
    qaeval,
    run_locally,
    write_parquet,
)
from llm_server import LlmServer
from naco_jobs import many, settings, table
from qaeval_core import Scorer
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.errors import ConfigError
from qaeval_core.families.chat.family import ChatFamilyPlan
from qaeval_core.planning.job import Job, make_job, read_inputs


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    """A server without limits or faults."""
    with LlmServer(latency_s=0.002) as running:
        yield running


def test_rows_in_memory_leave_no_file_open(server: LlmServer, tmp_path: Path) -> None:
    """A service that scores what comes would run out of descriptors after a thousand calls."""
    scorer = Scorer(
        {
            "naco": {
                "base_url": server.base_url,
                "model": "m",
                "expected_complexity": 2,
                "journal_path": str(tmp_path / "journal"),
                "ledger_path": str(tmp_path / "ledgers"),
            }
        }
    )
    for number in range(3):
        scores = scorer.score(table([f"Who is number {number}?"]))
        assert scores["quarantine_reason"].null_count == 1
    assert len(list((tmp_path / "journal").glob("replies-*.jsonl"))) == 3
    opened = (entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    assert [path for path in opened if path.is_relative_to(tmp_path)] == []


def make(config: RunConfig) -> Job:
    """Return the job of a configuration."""
    return make_job(config, read_inputs(config), device="cpu")


def test_dry_run_tells_calls_tokens_money_and_time_and_sends_nothing(
    server: LlmServer, tmp_path: Path
) -> None:
    """Protects from a surprise on the bill."""
    rows = table([*(f"Who is {i}?" for i in range(60)), *["Who is 1?"] * 40, None, "", " "])
    source = write_parquet(tmp_path / "input.parquet", rows)
    before = server.stats()["n_calls"]
    words: list[str | Path] = ["score", source, "--metrics", "naco", "--dry-run"]
    for setting in (
        f"base_url={server.base_url}",
        "model=m",
        "expected_complexity=2",
        "requests_per_minute=60",
        "tokens_per_minute=1000000",
        "prices={prompt: 1, completion: 2}",
        "budget_usd=0.01",
        "runs=2",
        "max_tokens=100",
    ):
        words += ["--set", f"naco.{setting}"]
    output = qaeval(*words, "--out", tmp_path / "out")
    assert "120 calls to m" in output
    assert "80 equal ones are asked once" in output
    assert "1 rows to quarantine, 2 rows are undefined without a call" in output
    assert "12,000 of replies at most" in output
    assert "2m00s at least, by requests_per_minute" in output
    assert "it may stop before the end" in output
    assert server.stats()["n_calls"] == before
    assert not (tmp_path / "out").exists()


def test_progress_tells_calls_limit_refusals_money_and_time(
    server: LlmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects from hours in which nobody knows whether the limit is used, or what it costs."""
    job = settings(
        server,
        tmp_path,
        many(60),
        naco__requests_per_minute=1200,
        naco__prices={"prompt": 1.0, "completion": 2.0},
    )
    run_locally({**job, "scoring.progress_s": 1.0})
    lines = [line for line in capsys.readouterr().err.splitlines() if "calls/s" in line]
    assert len(lines) >= 2
    shown = r"naco: \d+/60 rows .* rows/s, ETA \d+s, [\d.]+ calls/s, \d+ under way, "
    shown += r"\d+ % of the limit in use, 0 refused \(429, 503\), \$0\.\d+ spent"
    assert re.fullmatch(shown, lines[1]), lines[1]


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        ("naco.base_url", "--set.*naco.base_url.*QA0207"),
        ("naco.model", "--set.*QA0207"),
        ("naco.expected_complexity", "QA0207"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_paid(
    server: LlmServer, tmp_path: Path, missing: str, hint: str
) -> None:
    """Protects from a bill for scores that cannot be computed."""
    before = server.stats()["n_calls"]
    job = settings(server, tmp_path, many(3))
    del job[missing]
    config = load_config(overrides=job)
    with pytest.raises(ConfigError, match=hint):
        make(config)
    assert server.stats()["n_calls"] == before


def test_what_is_missing_is_said_before_models_and_a_cluster(tmp_path: Path) -> None:
    """Protects from minutes of exports, and of a cluster that starts, for a key that is missing."""
    source = write_parquet(tmp_path / "input.parquet", many(3))
    out, models = tmp_path / "out", tmp_path / "models"
    words: list[str | Path] = ["score", source, "--out", out, "--metrics", "qrelscore,naco"]
    words += ["--address", "127.0.0.1:9", "--set", f"models.artifacts_path={models}"]
    output = qaeval(*words, expect=2)
    assert "naco.base_url is missing" in output
    assert not models.exists()


@pytest.mark.parametrize(
    ("key", "value", "one_shot"),
    [
        ("requests_per_minute", 5, True),
        ("requests_per_minute", 5, False),
        ("budget_usd", 5, True),
        ("timeout_s", 5, False),
    ],
)
def test_two_instances_must_agree_on_what_they_share(
    server: LlmServer, tmp_path: Path, key: str, value: int, *, one_shot: bool
) -> None:
    """Protects from two limits on one key, of which neither holds: of one family, and of two."""
    job = settings(server, tmp_path, many(3), naco__prices={"prompt": 1.0, "completion": 2.0})
    other = {key.replace("naco.", "metrics.b."): job[key] for key in job if "naco." in key}
    other |= {"metrics.b.metric": "naco", "metrics.b.one_shot": one_shot}
    assert make(load_config(overrides={**job, **other}))
    with pytest.raises(ConfigError, match=f"{key}.*QA0209"):
        make(load_config(overrides={**job, **other, f"metrics.b.{key}": value}))


@pytest.mark.parametrize("given", ["sk-0123456789", "AIzaSyD4x9secret0123456789"])
def test_a_key_in_the_place_of_its_file_is_not_repeated(given: str) -> None:
    """Protects from a key in a terminal's history, a log, and run.json."""
    with pytest.raises(ConfigError, match="QA0202") as refused:
        load_config(overrides={"naco.api_key_file": given})
    assert given not in str(refused.value)


def test_paths_are_those_of_who_submits(
    server: LlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a journal that lies wherever a worker happens to run."""
    monkeypatch.chdir(tmp_path)
    job = settings(server, tmp_path, many(2), naco__api_key_file="./key", naco__ledger_path="l")
    for out in ("out", f"file://{tmp_path}/out"):
        config = load_config(overrides={**job, "output.path": out})
        made = make(config)
        (plan,) = made.run.families
        assert isinstance(plan, ChatFamilyPlan)
        assert plan.journal_path == str(tmp_path / "out" / "journal")
        assert plan.settings.api_key_file == str(tmp_path / "key")
        assert plan.settings.ledger_path == str(tmp_path / "l")
