"""A package with an entry in each group, installed: used by every verb, here and on Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from helpers import REPOSITORY, write_parquet
from ray_head import running_head
from sentence_models import WORDS, write_plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PACKAGE = Path(__file__).parents[1] / "plugin_package"
ALL = "coverage,capped_ratio,first_cosine,f1"
REPLY = "Verdict: natural\nSteps:\n1. a\n2. b\nAnswer: <ans>Ann</ans>"
N_ROWS = 120


def pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Environment:
    """The programs of an environment with a wheel of this checkout and the package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        venv.create(folder / "env", with_pip=False)
        (self.site,) = (folder / "env").glob("lib/python*/site-packages")
        wheels = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "wheels")
        pip(*wheels, REPOSITORY, PACKAGE)
        self.install("qaeval-bulk", "qaeval-words")
        # The other packages are those of this environment; its links to checkouts are not followed.
        (self.site / "others.pth").write_text(sysconfig.get_path("purelib"))

    def install(self, *names: str) -> None:
        found = ("--no-deps", "--no-index", "--find-links", self.folder / "wheels")
        pip("--python", self.python, "install", *found, *names)

    @property
    def variables(self) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return {
            **own,
            "SHELVES": str(self.folder / "shelves"),
            "QAEVAL_ARTIFACTS": str(self.folder / "artifacts"),
            "HOME": str(self.folder / "home"),
        }

    def qaeval(self, *words: str | Path, expect: int = 0) -> str:
        done = subprocess.run(
            [self.python, "-m", "qaeval", *map(str, words)],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment, rows and a model of a few thousand weights."""
    own = Environment(tmp_path_factory.mktemp("plugins"))
    write_plain(own.folder / "model")
    words = [word.lower() for word in WORDS]
    rows = [
        {
            "id": f"q{i}",
            "context": f"{words[i % 12]} {words[i % 7]} {i}",
            "question": f"what is {words[i % 5]} {i}",
            "candidate": f"{words[i % 12]} is {words[i % 5]}",
            "references": [f"{words[i % 12]} in {words[i % 3]}", "a king"],
            "answer": "Ann",
            "rating": i % 4,
        }
        for i in range(N_ROWS)
    ]
    write_parquet(own.folder / "rows.parquet", pa.Table.from_pylist(rows))
    changed = [{**row, "candidate": row["references"][0]} for row in rows]
    write_parquet(own.folder / "changed.parquet", pa.Table.from_pylist(changed))
    return own


def score(*words: str | Path) -> list[str | Path]:
    """Return the words of a run with all metrics of the package."""
    return [
        "score", *words, "--metrics", ALL, "--carry", "rating",
        "--set", "capped_ratio.cap=0.5", "--set", "first_cosine.encoder=model/encoder",
        "--set", "models.first_encoder.max_batch_tokens=256",
    ]  # fmt: skip


def scores_of(out: Path, name: str = "rows.parquet") -> pl.DataFrame:
    return pl.read_parquet(out / "scores" / name)


def check_scores(scores: pl.DataFrame) -> None:
    assert scores["coverage"].to_list()[0] == pytest.approx(2 / 3)
    assert scores["capped_ratio"].max() == 0.5
    assert scores["first_cosine"].null_count() == 0
    assert -1 <= scores["first_cosine"].min() <= scores["first_cosine"].max() <= 1


@pytest.fixture(scope="module")
def scored(installed: Environment) -> Path:
    """An OUT of the package's metrics."""
    installed.qaeval(*score("rows.parquet", "--out", "out", "--local"))
    return installed.folder / "out"


def test_function_class_and_model_metrics_score(installed: Environment, scored: Path) -> None:
    check_scores(scores_of(scored))
    about = json.loads((scored / "run.json").read_text())
    assert set(about["packages"].values()) == {"qaeval-words 1.2"}
    assert about["config"]["models"]["first_encoder"]["max_batch_tokens"] == 256
    listed = installed.qaeval("metrics")
    assert "capped_ratio" in listed and "Share of the first reference's words" in listed
    shown = installed.qaeval("metrics", "capped_ratio")
    assert "capped_ratio.cap=1.0" in shown and "largest score" in shown
    (family,) = (scored / "families").glob("first_tokens-*")
    assert family.is_dir()


def use_all_verbs(installed: Environment, to: str) -> None:
    """Filter, audit, report, correlate and explain the OUT."""
    kept = ("filter", "out", "--rank-by", "coverage", "--share", "0.5", "--rules", "none")
    installed.qaeval(*kept, "--to", f"{to}_kept", "--keep", "capped_ratio >= 0.1", "--local")
    installed.qaeval("audit", "out", "--history", f"{to}_history", "--to", f"{to}_audit", "--pin")
    installed.qaeval("report", "out")
    said = installed.qaeval("correlate", "out", "--human", "rating", "--cluster", "none")
    assert all(name in said for name in ALL.split(","))
    shown = installed.qaeval("explain", "out", "--id", "q7")
    assert all(name in shown for name in ALL.split(","))


def test_every_verb_uses_its_metrics(installed: Environment, scored: Path) -> None:
    use_all_verbs(installed, "with")
    shown = installed.qaeval("explain", "out", "--id", "q7")
    assert "is not recomputed" not in shown


def test_a_statistic_of_its_own_alerts(installed: Environment, scored: Path) -> None:
    installed.qaeval(*score("changed.parquet", "--out", "changed", "--local"))
    history = ("--history", "moved", "--cluster", "id")
    installed.qaeval("audit", "out", *history, "--to", "moved_1", "--pin")
    said = installed.qaeval("audit", "changed", *history, "--to", "moved_2", expect=3)
    assert "median_shift of coverage is 0." in said
    tests = pl.read_parquet(installed.folder / "moved_2" / "audit.parquet")
    own = tests.filter(pl.col("statistic") == "median_shift")
    assert own.height >= 4 and own["p_adjusted"].is_between(0, 1).all()
    assert (own["p_adjusted"] >= own["p"]).all()
    assert "median_shift" in (installed.folder / "moved_2" / "audit.html").read_text()


def test_its_store_takes_input_and_out(installed: Environment, scored: Path) -> None:
    shelf = installed.folder / "shelves" / "top"
    (shelf / "data").mkdir(parents=True)
    shutil.copy(installed.folder / "rows.parquet", shelf / "data")
    installed.qaeval(*score("shelf://top/data", "--out", "shelf://top/out", "--local"))
    check_scores(scores_of(shelf / "out"))
    installed.qaeval("filter", "shelf://top/out", "--to", "shelf://top/kept", "--rank-by", "f1",
                     "--share", "0.5", "--rules", "none", "--input", "shelf://top/data",
                     "--local")  # fmt: skip
    assert (shelf / "kept" / "filter.json").is_file()
    said = installed.qaeval("score", "rows.parquet", "--out", "shelv://top/o", expect=2)
    assert "did you mean 'shelf'?" in said


class _Plain(BaseHTTPRequestHandler):
    """Answers ``/ask`` as the package's API has it."""

    asked: list[dict[str, object]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, **body})
        content = json.dumps({"said": REPLY}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server that speaks no API of ours."""
    _Plain.asked.clear()
    own = ThreadingHTTPServer(("127.0.0.1", 0), _Plain)
    thread = threading.Thread(target=own.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{own.server_address[1]}"
    finally:
        own.shutdown()
        thread.join()
        own.server_close()


def chat(url: str, out: str) -> list[str]:
    return [
        "score", "rows.parquet", "--out", out, "--metrics", "naco", "--limit", "6",
        "--column", "candidate=question", "--set", f"naco.base_url={url}", "--set", "naco.model=m",
        "--set", "naco.api=plain", "--set", "naco.expected_complexity=4",
    ]  # fmt: skip


def test_its_chat_api_is_asked(installed: Environment, server: str) -> None:
    installed.qaeval(*chat(server, "chat"), "--local")
    assert scores_of(installed.folder / "chat")["naco"].null_count() == 0
    assert {asked["path"] for asked in _Plain.asked} == {"/ask"}
    assert all(asked["length"] == 512 and "what is" in str(asked["text"]) for asked in _Plain.asked)
    n_asked = len(_Plain.asked)
    assert n_asked == 6
    installed.qaeval(*chat(server, "chat"), "--local")
    assert len(_Plain.asked) == n_asked
    wrong = [word.replace("api=plain", "api=plane") for word in chat(server, "chat_2")]
    assert "metrics.naco.api: unknown 'plane'" in installed.qaeval(*wrong, expect=2)


@pytest.mark.ray
def test_all_of_it_works_on_ray(installed: Environment, scored: Path, server: str) -> None:
    shelf = installed.folder / "shelves" / "ray"
    (shelf / "data").mkdir(parents=True)
    shutil.copy(installed.folder / "rows.parquet", shelf / "data")
    with running_head(
        "disabled", variables=installed.variables, python=installed.python, takes_jobs=False
    ) as head:
        address = ("--address", head.address)
        out = shelf / "out"
        installed.qaeval(*score("shelf://ray/data", "--out", "shelf://ray/out"), *address)
        check_scores(scores_of(out))
        assert scores_of(out).equals(scores_of(scored))
        installed.qaeval(*chat(server, "chat_ray"), *address)
        assert scores_of(installed.folder / "chat_ray")["naco"].null_count() == 0
        installed.qaeval("filter", "shelf://ray/out", "--to", "shelf://ray/kept", "--rank-by",
                         "coverage", "--share", "0.5", "--rules", "none",
                         "--input", "shelf://ray/data", *address)  # fmt: skip
        history = ("--history", "ray_history", "--cluster", "id")
        installed.qaeval("audit", "out", *history, "--to", "ray_1", "--pin", *address)
        installed.qaeval(*score("changed.parquet", "--out", "changed_ray", "--local"))
        said = installed.qaeval(
            "audit", "changed_ray", *history, "--to", "ray_2", *address, expect=3
        )
        assert "median_shift of " in said


@pytest.mark.ray
def test_workers_without_the_package_are_refused_by_name(installed: Environment) -> None:
    """They would fail, or score by another version."""
    with running_head("disabled", takes_jobs=False) as head:
        said = installed.qaeval(
            *score("rows.parquet", "--out", "refused"), "--address", head.address, expect=1
        )
    assert "does not see the driver's qaeval-words 1.2 (it has none)" in said
    assert not (installed.folder / "refused" / "_SUCCESS").exists()


def test_without_it_all_but_score_goes_on(installed: Environment, scored: Path) -> None:
    """The package is uninstalled for it, and put back for whatever test comes next."""
    pip("--python", installed.python, "uninstall", "--yes", "qaeval-words")
    try:
        use_all_verbs(installed, "without")
        shown = installed.qaeval("explain", "out", "--id", "q7")
        assert "coverage is not recomputed: its metric is not installed here" in shown
        for words in (["--metrics", ALL], []):
            said = installed.qaeval("score", "rows.parquet", "--out", "out", *words, expect=2)
            assert "of qaeval-words 1.2, which is not installed here" in said
        said = installed.qaeval("explain", "out", "--id", "q7", "--instance", "coverage", expect=2)
        assert "coverage is of qaeval-words 1.2, which is not installed here" in said
    finally:
        installed.install("qaeval-words")
