"""Nothing is told to anybody: no file below HOME, no host is asked, whatever an engine would do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import REPOSITORY, short_sample, write_parquet

# No network but this process's own, in which not even the loopback is up.
ALONE = ("unshare", "--user", "--map-root-user", "--net")


def run(home: Path, *words: str | Path, before: tuple[str | Path, ...] = ()) -> str:
    """Run Python in an empty network with a home of its own; return what it printed."""
    # Nothing else: the engine writes nothing where CI, GITHUB_ACTIONS or their like are set, and
    # elsewhere where XDG_CACHE_HOME is.
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    roots = (REPOSITORY, REPOSITORY / "jobs", REPOSITORY / "export")
    done = subprocess.run(
        [*before, sys.executable, *words],
        cwd=home.parent,
        env={
            **environment,
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "QAEVAL_ARTIFACTS": str(home.parent / "artifacts"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


# Ends a process that asks for an address, or for a connection to one.
SILENT = (
    "import os, sys; sys.addaudithook(lambda event, _: os._exit(7) "
    "if event in ('socket.connect', 'socket.getaddrinfo') else None); "
)


def is_empty(home: Path) -> bool:
    return [path for path in home.rglob("*") if not path.is_dir()] == []


@pytest.fixture(scope="module")
def alone() -> tuple[str, ...]:
    """What a command begins with to have no network."""
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody have an empty network")
    return ALONE


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "from qaeval_core.models.onnx_runtime import load_onnxruntime; load_onnxruntime()",
        SILENT + "from qaeval_core.models.open_vino import load_openvino; load_openvino()",
        "import qaeval_export.graphs.base",
        "import qaeval_export.precision",
        "import qaeval.cli; import onnxruntime",
    ],
)
def test_an_engine_that_is_loaded_writes_nothing(home: Path, statement: str) -> None:
    """It writes a device id and an event store below HOME as it is loaded, unless told before."""
    run(home, "-c", statement)
    assert is_empty(home)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_engine_alone_would_write(home: Path, engine: str) -> None:
    """A check that sees nothing would make the tests above worthless."""
    run(home, "-c", f"import {engine}; assert {engine}.__version__ >= '1.29'")
    assert not is_empty(home)


def test_what_a_user_has_set_stays(home: Path) -> None:
    """Who wants to tell may."""
    code = (
        "import os; os.environ['ORT_DISABLE_TELEMETRY'] = '0'; import qaeval_core\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    assert run(home, "-c", code) == "0\n"


def test_ray_reports_no_usage(home: Path) -> None:
    """A local Ray that is started here would report what runs, by default."""
    code = (
        "import qaeval.on_ray.cluster\n"
        "from ray._common.usage.usage_lib import usage_stats_enabled\n"
        "print(usage_stats_enabled())"
    )
    assert run(home, "-c", code) == "False\n"


@pytest.mark.slow  # An export, and runs in processes of their own.
def test_no_command_writes_below_home_or_asks_anybody(home: Path, alone: tuple[str, ...]) -> None:
    """Of score with its export, explain, ``Scorer``; a firewall must have no question."""
    from workshop import save_small

    folder = home.parent
    model = save_small("bert", folder / "bert")
    write_parquet(folder / "input.parquet", short_sample(3))
    own = ("--metrics", "bi_encoder", "--set", f"bi_encoder.encoder={model}",
           "--column", "candidate=question", "--column", "references=context")  # fmt: skip
    commands: dict[str, tuple[str | Path, ...]] = {
        "score": ("-m", "qaeval", "score", "input.parquet", "--out", "out", "--local", *own),
        "explain": ("-m", "qaeval", "explain", "out", "--row", "input.parquet:0"),
        "Scorer": (
            "-c",
            "from qaeval_core import Scorer\n"
            f"scorer = Scorer({{'bi_encoder': {{'encoder': {str(model)!r}}}}})\n"
            "print(scorer.score([{'candidate': 'a dog', 'references': ['the dog']}]))",
        ),
    }  # fmt: skip
    traced = folder / "calls.txt"
    for name, words in commands.items():
        before = alone
        if shutil.which("strace"):
            calls = "trace=connect,sendto,sendmsg"
            before = (*alone, "strace", "-f", "-qq", "-e", calls, "-A", "-o", str(traced))
        run(home, *words, before=before)
        assert is_empty(home), name
    if traced.exists():
        asked = re.findall(r"^.*AF_INET6?\b.*$", traced.read_text(errors="replace"), re.MULTILINE)
        assert asked == []
