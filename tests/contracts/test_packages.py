"""What is installed: three packages of their own names, whatever the user's folders are called."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from helpers import REPOSITORY, assert_same_scores, read_scores, short_sample, write_parquet
from ray_head import running_head

ROOTS = {
    REPOSITORY: "qaeval_core",
    REPOSITORY / "jobs": "qaeval",
    REPOSITORY / "export": "qaeval_export",
}
N_ROWS = 4
SCORE = ("input.parquet", "--metrics", "bi_encoder,f1", "--column", "candidate=question",
         "--column", "references=context")  # fmt: skip
# Of a project that has nothing to do with this one.
OF_THE_USER = """raise SystemExit("this is the user's own")\n"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, REPOSITORY)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def of_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and this one's other packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    # A folder named so is looked in, but the links in it to checkouts are not followed.
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with packages of the names of this checkout's folders."""
    for name in ("jobs", "export"):
        (tmp_path / name).mkdir()
        for module in ("__init__", "__main__", "cli", "score"):
            (tmp_path / name / f"{module}.py").write_text(OF_THE_USER)
    write_parquet(tmp_path / "input.parquet", short_sample(N_ROWS))
    return tmp_path


def pip(*words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(project: Path, *command: str | Path, **variables: str) -> str:
    """Run a command in the project's folder; return what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=project,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_three_packages_and_their_data(wheel: Path) -> None:
    """Packages named ``jobs`` or ``export`` would be found in place of the user's own, or not."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(ROOTS.values())
    wanted = {
        str(path.relative_to(root))
        for root, package in ROOTS.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(wanted) > 200 and {"qaeval_core/py.typed", "qaeval/py.typed"} <= wanted
    assert wanted == {name for name in names if ".dist-info/" not in name}


def test_import_qaeval_loads_nothing_and_scores(of_wheel: Path, project: Path) -> None:
    """The first lines that users write: one import, and a score."""
    code = (
        "import qaeval, sys\n"
        "print([name for name in ('numpy', 'pyarrow', 'polars', 'ray') if name in sys.modules])\n"
        "rows = [{'candidate': 'in Oslo', 'references': ['Oslo, in 1987']}]\n"
        "print(qaeval.score_table(rows, ['f1'])[0]['f1'], 'ray' in sys.modules)\n"
    )
    assert run(project, of_wheel / "python", "-c", code) == "[]\n0.8 False\n"


@pytest.mark.parametrize("install", ["wheel", "editable"])
@pytest.mark.parametrize("command", ["qaeval", "python -m qaeval"])
def test_a_project_with_folders_of_these_names_is_no_hindrance(
    install: str, command: str, project: Path, request: pytest.FixtureRequest
) -> None:
    """From such a folder the command line ended in an error, or ran the user's own code."""
    programs = programs_of(install, request)
    program, *words = command.split()
    assert "qrelscore" in run(project, programs / program, *words, "metrics")
    for verb in ("export", "train"):  # They hand over to another process.
        assert f"qaeval {verb} " in run(project, programs / program, *words, verb, "--help")
    (where,) = run(
        project, programs / "python", "-c", "import qaeval; print(qaeval.__file__)"
    ).splitlines()
    assert Path(where).is_relative_to(REPOSITORY / "jobs") == (install == "editable")


@pytest.mark.long
@pytest.mark.parametrize("install", ["wheel", "editable"])
def test_a_run_from_such_a_project_exports_and_scores(
    install: str, project: Path, request: pytest.FixtureRequest
) -> None:
    """The export is another process: it must not find the user's folder of that name either."""
    program = programs_of(install, request) / "qaeval"
    artifacts = str(project / "artifacts")
    run(project, program, "score", *SCORE, "--out", "out", "--local", QAEVAL_ARTIFACTS=artifacts)
    assert read_scores(project / "out")["bi_encoder"].null_count() == 0


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(420)
def test_a_job_is_submitted_from_such_a_project(project: Path, artifacts_root: Path) -> None:
    """Workers look into the folder of the job before they look among what is installed."""
    settings = ("--set", f"models.artifacts_path={artifacts_root}")
    with running_head("disabled") as head:
        code, log = head.submit(
            *("python", "-m", "qaeval.cli", "score", *SCORE, *settings, "--out", project / "out"),
            working_dir=project,
        )
    assert code == 0, log
    run(project, Path(sys.executable).with_name("qaeval"), "score", *SCORE, *settings,
        "--out", "local", "--local")  # fmt: skip
    assert_same_scores(read_scores(project / "out"), read_scores(project / "local"))


def programs_of(install: str, request: pytest.FixtureRequest) -> Path:
    """Return the folder of the programs of an install."""
    if install == "editable":
        return Path(sys.executable).parent
    return request.getfixturevalue("of_wheel")
