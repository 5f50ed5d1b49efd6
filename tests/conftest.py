"""Fixtures of all tests: real artifacts of the embedded models, built once a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qaeval_core.signature import hash_text

if TYPE_CHECKING:
    from answer_models import AnswerModels
    from s3_server import S3Server
    from wall_clock import FakeClock


# Where GITHUB_ACTIONS is set, help would have the signs of a terminal in it.
os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

# Pages and run.json say when they were made: two of one test are to be the same.
os.environ["SOURCE_DATE_EPOCH"] = "1767225600"


@pytest.fixture(scope="session")
def artifacts_root() -> Path:
    """Folder with fp32 artifacts of both embedded models; built on first use, then re-used."""
    from helpers import build_needed
    from qaeval_core.configure import load_config
    from qaeval_core.models.artifact import default_root

    root = default_root()
    build_needed(load_config(overrides={"metrics.qrelscore.metric": "qrelscore"}))
    os.environ["QAEVAL_ARTIFACTS"] = str(root)
    return root


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    """A local server that speaks S3, and credentials for it in the environment."""
    from s3_server import S3Server, s3_credentials

    with s3_credentials(), S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real evaluation data; skipped where absent, required in CI."""
    if not SHARED_DATA.is_dir():
        message = "the shared evaluation data is not there"
        if os.environ.get("QAEVAL_REQUIRE_SHARED_DATA"):
            pytest.fail(message)
        pytest.skip(message)
    return SHARED_DATA


@pytest.fixture(scope="session")
def tiny_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Settings that score with small random models of real architectures: quick, not meaningful."""
    from answer_models import AnswerModels

    models = AnswerModels(_shared(tmp_path_factory, "answers"))
    settings = models.settings("qrelscore")
    models.overrides({"qrelscore": settings})
    return {
        **{f"qrelscore.{role}": own for role, own in settings.items() if role != "metric"},
        "models.artifacts_path": str(models.root),
    }


@pytest.fixture(scope="session")
def answer_models(tmp_path_factory: pytest.TempPathFactory) -> AnswerModels:
    """Small random models of real architectures that judge answers."""
    import torch

    from answer_models import AnswerModels

    torch.set_num_threads(1)  # Small models; more threads only wait for each other.
    return AnswerModels(_shared(tmp_path_factory, "answers"))


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder of this session that the processes of its tests share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name


@pytest.fixture
def retry_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of stores that are tried again: nobody waits."""
    from wall_clock import FakeClock

    clock = FakeClock()
    monkeypatch.setattr("qaeval_core.storage.retry.time", clock)
    return clock


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that shows whether tests depend on their order."""
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files and tests in any order")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Call tests of the embedded models slow: their exports take minutes.

    And leave long tests to those who ask for them: they are neither the default nor just slow.
    """
    for item in items:
        if "artifacts_root" in getattr(item, "fixturenames", ()) and "gpu" not in item.keywords:
            item.add_marker("slow")
    if (seed := config.getoption("shuffle")) is not None:
        # Files stay whole, for what their tests share; each process comes to the same order.
        items.sort(
            key=lambda item: [hash_text(f"{seed} {own}") for own in (item.path, item.nodeid)]
        )
    if "long" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


_MOST_CHARS = 4_000


class FailuresAtOnce:
    """Prints why a test failed as it fails: a run that is cut off never comes to its end.

    Parameters
    ----------
    reporter : TerminalReporter
    """

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.write_line(f"\nFAILED {report.nodeid} ({report.when})")
            self._reporter.write_line(report.longreprtext[-_MOST_CHARS:])


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print failures at once; of several processes, the one that has the terminal does."""
    if not hasattr(config, "workerinput"):
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        config.pluginmanager.register(FailuresAtOnce(reporter))


_CHOSEN = pytest.StashKey[list[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep which tests are to run."""
    session.config.stash[_CHOSEN] = [item.nodeid for item in session.items]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests reported of this machine: figures that depend on it, skipped never.

    And, where all tests together had a time, which ones it left out: pytest-timeout names none.
    """
    config = terminalreporter.config
    if config.getoption("session_timeout", None):
        told = {
            getattr(own, "nodeid", "") for kind in terminalreporter.stats.values() for own in kind
        }
        for name in config.stash.get(_CHOSEN, []):
            if name not in told:
                terminalreporter.write_line(f"NOT RUN {name}")
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    for report in reports:
        for name, figure in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name}: {figure}")
