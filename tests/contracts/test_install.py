"""How it is installed: extras, what a wheel says of itself, and a name that is taken."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import hatch_build
from helpers import REPOSITORY
from qaeval_core.distribution import NAME, clash_line, requirement
from qaeval_core.distribution import REPOSITORY as ADDRESS

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# What a page or a message may tell to install.
_LINE = re.compile(r"pip install [^`\n]*?'?(qaeval[\w-]*)(?:\[([\w,]+)\])?")


def test_extras_are_named_by_use() -> None:
    assert set(EXTRAS) == {"models", "gpu", "openvino", "cloud", "all", "dev"}
    engines = {"models": "onnxruntime>=", "gpu": "onnxruntime-gpu[cuda,cudnn]>="}
    rest = {}
    for extra, engine in engines.items():
        first, *rest[extra] = EXTRAS[extra]
        assert first.startswith(engine)
    assert rest["models"] == rest["gpu"]
    assert EXTRAS["all"] == [f"{NAME}[models,openvino,cloud]"]


def test_pages_and_messages_name_extras_that_there_are() -> None:
    """Protects from a hint that installs the other project, or an extra that is gone."""
    assert requirement("models") == f"'{NAME}[models]'"
    told = 0
    paths = [
        path
        for root in ("qaeval_core", "jobs", "export", "docs", "benchmarks")
        for path in (REPOSITORY / root).rglob("*")
    ]
    kinds = (".py", ".md", ".yaml", ".txt")
    for path in (own for own in (*paths, *REPOSITORY.iterdir()) if own.suffix in kinds):
        for name, extras in _LINE.findall(path.read_text(encoding="utf-8")):
            told += 1
            assert name == NAME, path
            assert set(extras.split(",")) - {""} <= EXTRAS.keys(), path
    assert told > 5


def metadata_of(wheel: Path) -> tuple[dict[str, list[str]], str]:
    """Return a wheel's fields, and its description."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = [one for one in content.namelist() if one.endswith(".dist-info/METADATA")]
        message = message_from_string(content.read(name).decode())
    return {key: message.get_all(key, []) for key in message}, str(message.get_payload())


def build(source: Path, to: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(to)],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = to.glob("*.whl")
    return wheel


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The little of this checkout that a wheel's own words are made of."""
    folder = tmp_path / "source"
    for name in ("pyproject.toml", "hatch_build.py", "LICENSE", "qaeval_core/distribution.py",
                 "jobs/qaeval/__main__.py", "export/qaeval_export/__init__.py"):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((REPOSITORY / name).read_bytes())
    (folder / "README.md").write_text(
        "[a](docs/a.md), [b](https://b.org), [c](#c)\n![d](docs/d.png)\n"
    )
    return folder


def test_a_wheel_without_an_address_has_no_dead_link(source: Path, tmp_path: Path) -> None:
    assert ADDRESS == ""
    fields, page = metadata_of(build(source, tmp_path / "dist"))
    assert fields["Name"] == [NAME] and set(fields["Provides-Extra"]) == set(EXTRAS)
    assert "Project-URL" not in fields
    assert page.split("\n")[0] == "a, [b](https://b.org), [c](#c)"
    assert "docs/" not in page


def test_an_address_makes_urls_and_links(source: Path, tmp_path: Path) -> None:
    path = source / "qaeval_core" / "distribution.py"
    path.write_text(path.read_text().replace('REPOSITORY = ""', 'REPOSITORY = "https://x.org/y"'))
    fields, page = metadata_of(build(source, tmp_path / "dist"))
    assert "Source, https://x.org/y" in fields["Project-URL"]
    assert "[a](https://x.org/y/blob/main/docs/a.md), [b](https://b.org), [c](#c)" in page
    assert "![d](https://x.org/y/raw/main/docs/d.png)" in page


def test_every_link_of_the_readme_is_known_to_the_hook() -> None:
    page = hatch_build.linked((REPOSITORY / "README.md").read_text(encoding="utf-8"), "")
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", page) == []


def test_the_other_project_is_named_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write to one package: what ran would be neither."""
    assert clash_line() == ""
    other = tmp_path / "qaeval-0.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: qaeval\nVersion: 0.2.3\n")
    roots = (tmp_path, REPOSITORY, REPOSITORY / "jobs")
    for command in (["-m", "qaeval"], ["-c", "from qaeval_core.distribution import main; main()"]):
        done = subprocess.run(
            [sys.executable, *command, "--version"], capture_output=True, text=True, check=False,
            env={"PYTHONPATH": ":".join(map(str, roots)), "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "the distribution qaeval 0.2.3 is installed here" in done.stderr
        assert "pip uninstall qaeval" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long  # Pip reads gigabytes for it.
def test_the_install_line_finds_the_wheel_and_all_that_it_asks(tmp_path: Path) -> None:
    """The line of README and docs/install.md, with the wheel in place of the index's."""
    dist = tmp_path / "dist"
    wheel = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(dist), str(REPOSITORY)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert wheel.returncode == 0, wheel.stderr
    lines = {
        line
        for page in ("README.md", "docs/install.md")
        for line in (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
        if line.startswith(f"pip install '{NAME}[") or line == f"pip install {NAME}"
    }
    assert {f"pip install {NAME}", f"pip install {requirement('models')}"} <= lines
    for line in sorted(lines):
        asked = line.removeprefix("pip install ").strip("'")
        # As in a new environment; of the other two the extras must be known.
        new = ["--ignore-installed"] if asked in (NAME, f"{NAME}[models]") else []
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", *new,
             "--find-links", str(dist), "-c", str(REPOSITORY / "constraints.txt"), asked],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "does not provide the extra" not in done.stderr
