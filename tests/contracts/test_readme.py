"""The README's code blocks run, in order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers import REPOSITORY, qaeval
from llm_server import LlmServer

README = REPOSITORY / "README.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Run by CI and by whoever sets the project up.
SETUP_COMMANDS = ("make demo", "make test")


def blocks(language: str) -> list[str]:
    return [body for kind, body in _BLOCK.findall(README.read_text()) if kind == language]


def test_there_is_something_to_run() -> None:
    """Protects from a README whose blocks lost their language and run no more."""
    assert len(blocks("sh")) >= 5
    assert len(blocks("python")) >= 1
    assert any(command in blocks("sh")[0] for command in SETUP_COMMANDS)


@pytest.mark.ray
@pytest.mark.slow
def test_code_blocks_run_in_order(tmp_path: Path, artifacts_root: Path) -> None:
    """Protects from commands in prose that no longer work."""
    with LlmServer() as server:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "BASE_URL": server.base_url,
            "HOME": str(tmp_path / "home"),  # Where ledgers go.
            "QAEVAL_ARTIFACTS": str(artifacts_root),
        }
        for kind, body in _BLOCK.findall(README.read_text()):
            if kind not in ("sh", "python") or any(command in body for command in SETUP_COMMANDS):
                continue
            command = ["sh", "-e", "-c", body] if kind == "sh" else [sys.executable, "-c", body]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"


def test_yaml_blocks_are_yaml_and_hold_no_secret() -> None:
    """Protects from a manifest that no cluster accepts."""
    for body in blocks("yaml"):
        for document in yaml.safe_load_all(body):
            assert isinstance(document, dict)
        assert not re.search(r"(api[_-]?key|token|password)\s*:\s*['\"]?[A-Za-z0-9]{16,}", body)


def test_help_of_every_verb_shows_examples() -> None:
    """Protects from a verb nobody can find out how to use."""
    from typer.testing import CliRunner

    from jobs.cli import app

    for verb in ("score", "calibrate", "correlate", "metrics", "explain", "demo"):
        shown = CliRunner().invoke(app, [verb, "--help"])
        assert shown.exit_code == 0
        assert f"qaeval {verb}" in shown.output
    # It takes over its process: not in this one.
    for kind in ("cross-encoder", "kpqa"):
        assert f"qaeval train {kind}" in qaeval("train", kind, "--help")
