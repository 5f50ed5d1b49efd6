"""Files that forges and archives read: they follow their schemas, and agree with the project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_blocks import CONTRIBUTING
from helpers import REPOSITORY

FORGE = REPOSITORY / ".github"
WORKFLOW = FORGE / "workflows" / "checks.yml"
FORMS = (FORGE / "ISSUE_TEMPLATE" / "fault.yml", FORGE / "ISSUE_TEMPLATE" / "wish.yml")
CITATION = REPOSITORY / "CITATION.cff"
SCHEMAS = [
    ("vendor.github-workflows", WORKFLOW),
    ("custom.github-workflows-require-timeout", WORKFLOW),
    *(("vendor.github-issue-forms", form) for form in FORMS),
    ("vendor.github-issue-config", FORGE / "ISSUE_TEMPLATE" / "config.yml"),
    ("vendor.citation-file-format", CITATION),
]


def project() -> dict[str, Any]:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)["project"]
    assert isinstance(found, dict)
    return found


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_every_file_has_a_schema() -> None:
    """Protects from a template that nobody looks at."""
    assert {path for _, path in SCHEMAS} == {*FORGE.rglob("*.yml"), CITATION}


@pytest.mark.parametrize(("schema", "path"), SCHEMAS, ids=lambda own: Path(own).name)
def test_files_follow_their_schema(schema: str, path: Path) -> None:
    """A forge ignores a file that does not, without a word."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_that_does_not_follow_its_schema_fails(tmp_path: Path) -> None:
    """Protects from a check that lets everything through."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOW.read_text(encoding="utf-8").replace("runs-on:", "runs_on:"))
    with pytest.raises(AssertionError, match="runs"):
        test_files_follow_their_schema("vendor.github-workflows", wrong)


def test_the_workflow_runs_the_checks_on_the_oldest_and_newest_python() -> None:
    """Protects from a workflow that is green and checks something else."""
    workflow = read(WORKFLOW)
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": "make lint test"}
    assert workflow["permissions"] == {"contents": "read"}
    versions = [
        line.rpartition(" ")[2] for line in project()["classifiers"] if re.search(r":: 3\.\d", line)
    ]
    assert job["strategy"]["matrix"]["python"] == [versions[0], versions[-1]]
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert len(used) == 2
    # A tag can be moved to other code.
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", own) for own in used)


def test_the_citation_is_of_this_version() -> None:
    citation = read(CITATION)
    own = project()
    assert citation["version"] == own["version"]
    assert citation["license"] == own["license"]
    assert [paper["year"] for paper in citation["references"]] == [2022, 2021, 2024, 2018, 2021]


def test_forms_ask_for_what_a_fault_needs() -> None:
    """Protects from a report that nobody can repeat."""
    fault, wish = ({part["id"]: part for part in read(form)["body"]} for form in FORMS)
    for name in ("command", "expected", "happened", "version", "machine"):
        assert fault[name]["validations"] == {"required": True}
    assert "qaeval --version" in fault["version"]["attributes"]["description"]
    assert "version" in wish


def test_commands_that_contributors_are_told_are_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)
    text = CONTRIBUTING.read_text(encoding="utf-8")
    told = [name for words in re.findall(r"`make ([a-z ]+)`", text) for name in words.split()]
    assert {"setup", "check", "lint", "test", "slow", "long"} <= set(told) <= set(targets)


def completed(words: str, at: int) -> list[str]:
    """Return what bash is told to complete a word with."""
    variables = {"_QAEVAL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    done = subprocess.run(
        [Path(sys.executable).parent / "qaeval"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.split()


def test_a_shell_completes_verbs_options_and_metrics() -> None:
    assert completed("qaeval sco", 1) == ["score"]
    assert completed("qaeval score --carr", 2) == ["--carry"]
    assert completed("qaeval score --metrics f1,bleu_", 3) == [f"f1,bleu_{n}" for n in (1, 2, 3, 4)]
    assert completed("qaeval metrics sa", 2) == ["sas"]
