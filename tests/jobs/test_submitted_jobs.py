"""Jobs as people submit them: from a folder of their own, stopped halfway, and listed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from helpers import processes, qaeval, read_scores, short_sample, wait_until, write_parquet
from llm_server import LlmServer
from qaeval.arguments import OUTPUT
from qaeval.cli import app
from qaeval_core.errors import ConfigError
from qaeval_core.storage.path import check_lasting
from qaeval_export.__main__ import main as export_main
from qaeval_export.training.__main__ import main as train_main
from ray_head import Head, running_head

N_ROWS = 12
_OF_SUBMITTED_JOBS = "RAY_JOB_CONFIG_JSON_ENV_VAR"
NACO = ("--set", "naco.model=NAME", "--set", "naco.expected_complexity=2",
        "--set", "naco.base_url=http://127.0.0.1:9/v1")  # fmt: skip

# Whatever a verb writes: the option that names it, and a command with a relative path there.
RELATIVE = {
    "score": ("--out out", "score {rows} --out out --metrics f1"),
    "score, artifacts": (
        "models.artifacts_path artifacts",
        "score {rows} --out {there} --metrics qrelscore --set models.artifacts_path=artifacts",
    ),
    "score, journal": (
        "journal_path journal",
        f"score {{rows}} --out {{there}} --metrics naco {' '.join(NACO)} "
        "--set naco.journal_path=journal",
    ),
    "score, ledger": (
        "ledger_path ledger",
        f"score {{rows}} --out {{there}} --metrics naco {' '.join(NACO)} "
        "--set naco.ledger_path=ledger",
    ),
    "filter": ("--to kept", "filter {out} --to kept --share 0.5"),
    "audit, history": ("--history audits", "audit {out} --history audits --to {there}"),
    "audit": ("--to report", "audit {out} --history {there} --to report"),
    "correlate": ("--out study", "correlate {out} --human is_right --out study"),
    "compare": ("--out c", "compare {out} {out}/scores --out c"),
    "explain, page": ("--html row.html", "explain {out} --row input.parquet:0 --html row.html"),
    "explain, JSON": ("--json row.json", "explain {out} --row input.parquet:0 --json row.json"),
    "report": ("OUT out", "report out"),
    "calibrate": ("--out base.json", "calibrate {rows} --corpus c --out base.json"),
    "demo": ("--out demo_out", "demo"),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small input."""
    return write_parquet(tmp_path_factory.mktemp("rows") / "input.parquet", short_sample(N_ROWS))


@pytest.fixture(scope="module")
def out(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its scores."""
    folder = tmp_path_factory.mktemp("scored") / "out"
    qaeval("score", rows, "--out", folder, "--metrics", "f1", "--carry", "label")
    return folder


@pytest.mark.parametrize("case", RELATIVE)
def test_what_is_written_has_an_absolute_path_in_a_job(
    case: str, rows: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from scores, and replies that were paid for, in a folder that Ray deletes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(_OF_SUBMITTED_JOBS, "{}")
    named, command = RELATIVE[case]
    words = command.format(rows=rows, out=out, there=tmp_path / "there").split()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert f"{named} is relative" in said and "[QA0108]" in said
    assert "Give an absolute path" in said
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


def test_every_option_that_names_what_is_written_is_tried() -> None:
    """Protects from a new option that writes into Ray's copy."""
    tried = {
        (case.partition(",")[0], named.partition(" ")[0]) for case, (named, _) in RELATIVE.items()
    }
    verbs = typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    written = {
        (verb, option.opts[0])
        for verb, command in verbs
        for option in command.params
        if getattr(option, "rich_help_panel", None) == OUTPUT
        and option.metavar in ("DIR", "FILE", "KEPT", "OUT", "REPORT")
    }
    assert len(written) >= 8 and written <= tried


@pytest.mark.parametrize(
    ("named", "main", "words"),
    [
        ("--root models", export_main,
         ["--graph", "pair_score", "--model", "sas-minilm", "--root", "models"]),
        ("--out mine", train_main,
         ["cross-encoder", "--pairs", "pairs.jsonl", "--scale", "5", "--out", "mine"]),
    ],
)  # fmt: skip
def test_so_have_models(
    named: str, main: Callable[[list[str]], int], words: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(_OF_SUBMITTED_JOBS, "{}")
    assert main(words) == 2
    assert f"{named} is relative" in capsys.readouterr().err


def test_only_a_job_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from a refusal at home, and of what is absolute or of a bucket."""
    check_lasting("out", "--out")
    monkeypatch.setenv(_OF_SUBMITTED_JOBS, "{}")
    for lasting in (None, "/data/out", "~/out", "s3://bucket/out", "file:///data/out"):
        check_lasting(lasting, "--out")
    for relative in ("out", "./out", "../out", "file://out", Path("a/b")):
        with pytest.raises(ConfigError, match="QA0108"):
            check_lasting(relative, "--out")


def state_of(head: Head, submission: str) -> str:
    (job,) = [own for own in json.loads(head.jobs()) if own["submission_id"] == submission]
    return str(job["status"])


@pytest.mark.ray
@pytest.mark.long  # A cluster of its own, and jobs that start in it.
@pytest.mark.timeout(600)
def test_a_job_from_a_folder_of_its_own(tmp_path: Path) -> None:
    """Its folder is shipped, read and not written to; a stopped job is not one that succeeded.

    The folder has packages that are named as this project's source folders are.
    """
    project = tmp_path / "project"
    for name in ("jobs", "export"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("")
    write_parquet(project / "rows.parquet", short_sample(N_ROWS))
    score = ("qaeval", "score", "rows.parquet")
    f1 = (*score, "--metrics", "f1")
    with running_head("token") as head, LlmServer(latency_s=1.5) as server:
        code, log = head.submit(*f1, "--out", tmp_path / "out", working_dir=project)
        assert code == 0, log
        assert read_scores(tmp_path / "out", "rows.parquet").height == N_ROWS
        actors = head.actors()
        classes = {actor["class_name"] for actor in actors}
        assert "MapWorker(MapBatches(qaeval ScorePieces words (overlap)))" in classes, classes
        names = [actor["name"] for actor in actors]
        assert any(own.startswith("qaeval coordinator of words (overlap) ") for own in names)

        code, log = head.submit(*f1, "--out", "out", working_dir=project)
        assert code != 0 and "--out out is relative" in log and "[QA0108]" in log, log

        settings = (f"base_url={server.base_url}", "model=m", "expected_complexity=2",
                    "max_concurrent=1")  # fmt: skip
        naco = (*score, "--metrics", "naco", "--out", tmp_path / "judged",
                *(word for own in settings for word in ("--set", f"naco.{own}")))  # fmt: skip
        # As docs/cluster.md has it: time for the batch in hand.
        patience = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}})
        later = ("--no-wait", "--submission-id", "stopped", "--runtime-env-json", patience)
        code, log = head.submit(*naco, working_dir=project, options=later)
        assert code == 0, log
        wait_until(lambda: bool(server.stats()["n_calls"]))
        head.ray_job("stop", "stopped")
        assert state_of(head, "stopped") == "STOPPED"
        _, log = head.ray_job("logs", "stopped")
        assert "stopped as asked; run the same command again to resume" in log, log
        assert not (tmp_path / "judged" / "_SUCCESS").exists()

        # By something else than Ray, as when a machine is shut down.
        n_calls = server.stats()["n_calls"]
        later = ("--no-wait", "--submission-id", "ended")
        code, log = head.submit(*naco, working_dir=project, options=later)
        assert code == 0, log
        title = "/bin/qaeval score rows.parquet"
        wait_until(
            lambda: server.stats()["n_calls"] > n_calls and bool(processes(head.pid, title=title))
        )
        # The driver's parent, which passes signals on, comes before it.
        parent, *_ = processes(head.pid, title=title)
        parent.send_signal(signal.SIGTERM)
        wait_until(lambda: state_of(head, "ended") != "RUNNING")
        assert state_of(head, "ended") == "FAILED"

        code, log = head.submit(*naco, working_dir=project, options=("--submission-id", "again"))
        assert code == 0, log
        assert state_of(head, "again") == "SUCCEEDED"
        assert read_scores(tmp_path / "judged", "rows.parquet").height == N_ROWS

        code, log = head.drive(
            *("score", project / "rows.parquet", "--metrics", "f1", "--out", tmp_path / "driver")
        )
        assert code == 0, log
        code, log = head.drive(
            *("filter", tmp_path / "driver", "--to", tmp_path / "kept"),
            *("--rules", "none", "--share", "0.5"),
        )
        assert code == 0, log
        drivers = [own for own in json.loads(head.jobs()) if own["type"] == "DRIVER"]
        assert [own["metadata"] for own in drivers] == [
            {"job_name": "qaeval score", "qaeval_out": str(tmp_path / "driver"),
             "qaeval_metrics": "f1"},
            {"job_name": "qaeval filter", "qaeval_out": str(tmp_path / "kept")},
        ]  # fmt: skip
