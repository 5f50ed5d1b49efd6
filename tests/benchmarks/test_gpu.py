"""The benchmark of GPUs without one: its arithmetic, its samples, its peers, and whole on a CPU.

The same command on the CUDA provider of the mock device is in tests/gpu/test_on_mock.py.
"""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from benchmarks import data, gpu, gpu_arena, gpu_card, gpu_exports
from benchmarks.common import make_instance
from benchmarks.data import Rows, load_rows, repeated
from benchmarks.gpu_choice import NO_TIME, Choice, Clock
from benchmarks.gpu_job import end_to_end
from benchmarks.gpu_models import FAMILIES, compile_family, model_folder, roles_of
from benchmarks.gpu_peers import Peer, peers_of
from benchmarks.measure import work_flops
from gpu_reports import assert_rates
from helpers import REPOSITORY
from qaeval_core.families.grg import GrgUnits
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.families.model_units import Units
from qaeval_core.text.token_runs import TokenRuns

# peft reads a property of transformers that has another name now.
_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
# nvidia-smi as it answers: memory grows by 100 MiB a sample, from 1,000 MiB.
_NVIDIA_SMI = """#!{python}
import sys, time
asked = sys.argv[1].removeprefix("--query-gpu=").split(",")
assert sys.argv[3] == "--id=3", sys.argv
values = {{"utilization.gpu": "50", "memory.used": "1000", "power.draw": "[N/A]"}}
values["clocks.sm"] = "1980"
print(", ".join(values[name] for name in asked), flush=True)
while any(word.startswith("--loop-ms=") for word in sys.argv):
    time.sleep(0.02)
    values["memory.used"] = str(min(int(values["memory.used"]) + 100, 1400))
    print(", ".join(values[name] for name in asked), flush=True)
"""


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in nvidia-smi's place, on a machine whose fourth card is CUDA's first."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(_NVIDIA_SMI.format(python=sys.executable), encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")


@pytest.mark.usefixtures("card")
def test_samples_are_of_the_passes_alone() -> None:
    """What the tool said before they began is of a device that waited for it."""
    assert gpu_card.memory_used() == 1000
    with gpu_card.nvidia_smi() as samples:
        assert not samples
        time.sleep(0.5)
    assert samples == {"busy": 0.5, "memory_mib": 1400, "sm_clock_mhz": 1980}


def test_without_the_tool_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is better than one that is not the card's."""
    monkeypatch.setenv("PATH", "")
    assert gpu_card.memory_used() is None
    with gpu_card.nvidia_smi() as samples:
        pass
    assert samples == {}
    assert doctest.testmod(gpu_card).attempted == 2


def test_an_arena_is_read_from_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A product of 4 MiB takes 4 MiB; what is no note of ONNX Runtime's is not lost."""
    square = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1024, 1024])
        for name in ("given", "product")
    ]
    node = onnx.helper.make_node("MatMul", ["given", "given"], ["product"])
    graph = onnx.helper.make_graph([node], "product", square[:1], square[1:])
    versions = {"opset_imports": [onnx.helper.make_opsetid("", 20)], "ir_version": 10}
    onnx.save(onnx.helper.make_model(graph, **versions), tmp_path / "model.onnx")
    given = {"given": np.zeros((1024, 1024), dtype=np.float32)}

    def session() -> onnxruntime.InferenceSession:
        made = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        made.run(None, given)
        return made

    with gpu_arena.arena_log("cpu") as arena:
        os.write(2, b"a warning\n")
        own = session()
        assert not arena
    assert 4 <= arena["arena_peak_mib"] < 8
    with gpu_arena.arena_log("cpu") as arena:
        own.run(None, given)
    assert arena == {}, "it has what it needs"
    session()
    assert capfd.readouterr().err == "a warning\n", "the log is off again"
    assert doctest.testmod(gpu_arena).attempted == 2


_RECORD: Any = SimpleNamespace(
    n_matmul_parameters=100, n_layers=2, dim=4, n_head_parameters=1000, options={}
)


def test_scored_tokens_are_those_of_each_unit() -> None:
    """The head is most of an LM's work: a unit with a prompt scores fewer tokens than its base."""
    sequences = TokenRuns.of([range(10), range(8)])
    units = GrgUnits(sequences, first_scored=np.array([1, 6]), is_mean_probability=False)
    whole, done = work_flops(_RECORD, units)
    assert whole == done == 2 * 100 * 18 + 4 * 2 * 4 * (10**2 + 8**2) + 2 * 1000 * (9 + 2)
    on_gpu = work_flops(_RECORD, units, device="cuda")
    assert on_gpu == (whole, whole - 2 * 2 * 4 * (10**2 + 8**2)), "without the upper triangle"


def test_what_lrm_leaves_out_is_no_work() -> None:
    """Otherwise its share of the peak would count operations that nobody does."""
    units = Units(TokenRuns.of([range(10)]), told={"n_candidate": np.array([2])})
    whole, done = work_flops(_RECORD, units)
    assert whole == 2 * 100 * 10 + 4 * 2 * 4 * 10**2
    # The last layer: 6 of 10 tokens need keys and values alone, 2 of 50 / 16 weights.
    assert whole - done == 6 * (2 * (100 / 2 - 2 * 4**2) + 4 * 4 * 10)


def test_a_machine_without_cuda_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    """`make bench` on a CPU goes on; who asks for this benchmark alone gets exit status 1."""
    for words in ([], ["--look"]):
        assert gpu.main(words) == 1
        assert "no CUDA provider" in capsys.readouterr().err
    assert gpu.main(["--look", "--device", "cpu"]) == 0
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        assert not gpu_card.cuda_starts()
    assert "no CUDA provider" in gpu.run_gpu(SimpleNamespace(n_rows=1))["skipped"]


def test_what_does_not_fit_into_the_minutes_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine with a GPU is paid by the hour; half of the evidence must not look whole."""
    path = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--until", str(time.time()), "--json", str(path)]
    assert gpu.main(words) == 1
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [own["skipped"] for own in found["families"]] == 16 * [NO_TIME]
    said = capsys.readouterr().err
    assert "16 measurements did not fit into the minutes" in said
    assert f"end to end, sas: {NO_TIME}" in said and f"end to end, qrelscore: {NO_TIME}" in said


def test_machines_without_squad_measure_as_many_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """140 rows are one batch of a large budget, and equal texts are run once."""
    assert repeated(load_rows(7), 7) == load_rows(7)
    monkeypatch.setattr(data, "SQUAD", Path("nowhere"))
    rows = repeated(load_rows(2000), 2000)
    assert len(rows) == len(set(rows.questions)) == 2000
    assert len(set(rows.contexts)) == 400, "five questions a context, as elsewhere"
    gpu.main(["--device", "cpu", "--until", "0", "--end-to-end", "0"])
    told = "2000 rows, 400 contexts, the project's sample corpus, for lack of SQuAD: 140 rows, "
    assert f"{told}repeated with a number behind each text" in capsys.readouterr().out


def test_families_of_one_graph_are_exported_once() -> None:
    families = [family for family, is_random in gpu_exports._TASKS if is_random]
    assert families[0] == "grg" and set(FAMILIES) - set(families) == {"token_transport"}


def test_rows_that_do_not_end_in_time_are_told(tmp_path: Path) -> None:
    """A million rows are no fewer where time is short: they fail."""
    found = end_to_end(Choice(device="cpu"), tmp_path / "sas", "sas", 10, clock=Clock(0.2))
    assert found == {"failed": "10 rows did not end in the 0 s left for them"}


def test_the_clock_stands_still_while_models_are_exported() -> None:
    clock = Clock(0.4, kept_s=0.2)
    with clock.stopped():
        time.sleep(0.5)
    assert not clock.is_over() and clock.ready_s >= 0.5
    time.sleep(0.25)
    assert clock.is_over() and clock.left_s() > 0, "what comes last has its share"


def test_a_quarter_is_kept_for_the_rows_end_to_end() -> None:
    until = time.time() + 3.0
    with_rows, without = (Choice(until=until, end_to_end=n).clock() for n in (10, 0))
    assert not with_rows.is_over()
    time.sleep(2.3)
    assert with_rows.is_over() and not without.is_over()
    assert 0 < with_rows.left_s() < 0.75


# SmolLM2 and its peers take minutes of a CPU: a small LM is below, SmolLM2 is in `random_models`.
@pytest.mark.long
def test_all_of_it_on_a_cpu(artifacts_root: Path, tmp_path: Path) -> None:
    """The one command for the first hour on a GPU must not fail in it."""
    families = [name for name in FAMILIES if name != "grg"]
    path = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--rows", "2", "--budgets", "1024", "--repeats", "1"]
    words += ["--seconds", "0", "--no-random", "--end-to-end", "3", "--json", str(path)]
    words += ["--families", ",".join(families), "--models", str(tmp_path / "models")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    assert_rates(found, n_rows=3, families=families)
    for own in found["families"]:
        peers = {name for name, peer in own["peers"].items() if peer.get("rows_per_s")}
        wanted = {"torch, SDPA, batches", _LOOP, *_OTHERS.get(own["family"], ())}
        assert peers == (set() if own["family"] == _WITHOUT_PEERS else wanted)
        assert all(budget["arena_peak_mib"] > 0 for budget in own["budgets"].values())
        assert own["device_check"]["max_abs_diff"] == 0, "a CPU beside itself"


_LOOP = "per-row loop"
_WITHOUT_PEERS = "token_transport"  # Those of token_match are its own.
_OTHERS = {
    "sas": ["sentence-transformers"],
    "bi_encoder": ["sentence-transformers"],
    "token_match": ["bert-score"],
}


@pytest.mark.long
@pytest.mark.timeout(1800)  # An export of GPT-2's shape beside others took ten minutes.
@pytest.mark.filterwarnings(_PEFT)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_models_of_base_shapes(family: str, tmp_path: Path) -> None:
    """Their exports, and peers on them, are code that nothing else runs."""
    path = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--rows", "4", "--budgets", "4096", "--repeats", "1"]
    words += ["--seconds", "0", "--end-to-end", "0", "--json", str(path)]
    words += ["--models", str(tmp_path / "models")]
    assert gpu.main([*words, "--families", family]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    embedded, random = found["families"]
    assert random["is_random"] and random["model"] != embedded["model"]
    assert random["budgets"]["4096"]["model_flops"] > 0
    assert set(random["peers"]) == set(embedded["peers"])
    if family != _WITHOUT_PEERS:
        assert all(peer["rows_per_s"] > 0 for peer in random["peers"].values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models lie as transformers reads them."""
    return tmp_path_factory.mktemp("gpu_models")


@pytest.fixture
def made(
    family: str, artifacts_root: Path, tiny_settings: dict[str, object], folder: Path
) -> tuple[ModelFamilyPlan, str]:
    """A family of its embedded model, and its name; SmolLM2 takes minutes, so a small LM for it."""
    assert artifacts_root.is_dir()
    torch.set_num_threads(1)  # Small batches; more threads only wait for each other.
    if family != "grg":
        plan = compile_family(family, device="cpu", folder=folder)
        return plan, plan.artifact.record.model.name
    settings = {"metrics.qrelscore.metric": "qrelscore", **tiny_settings}
    plan = make_instance(settings)[1].families["grg"]
    assert isinstance(plan, ModelFamilyPlan)
    return plan, str(tiny_settings["qrelscore.causal_lm"])


def peers(
    family: str, made: tuple[ModelFamilyPlan, str], folder: Path, *, is_half: bool
) -> Iterator[tuple[str, Peer]]:
    """Yield the peers of a family, on a CPU."""
    as_folder = partial(model_folder, family, made[0], folder, is_random=False)
    for label, make in peers_of(family, *made, as_folder, device="cpu", is_half=is_half):
        assert not isinstance(make, str), make
        yield label, make()


def _shorter(text: Any) -> Any:
    return text if isinstance(text, list) else " ".join(text.split()[:8])


@pytest.mark.long
@pytest.mark.filterwarnings(_PEFT)
@pytest.mark.parametrize("family", ["grg", "lrm", *_OTHERS])
def test_peers_run_in_fp16(family: str, made: tuple[ModelFamilyPlan, str], folder: Path) -> None:
    """On a GPU they do: what their libraries do with halves is not to be found out there."""
    # A CPU has no quick arithmetic of halves: short texts.
    rows = roles_of(load_rows(3))
    values = {role: [_shorter(own) for own in column] for role, column in rows.items()}
    halves, wholes = (dict(peers(family, made, folder, is_half=half)) for half in (True, False))
    assert _LOOP in wholes
    for label, peer in wholes.items():
        found, wanted = (each.score(each.prepare(values)) for each in (halves[label], peer))
        assert len(wanted) >= 3 and np.isfinite(wanted).all(), label
        np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2, err_msg=label)
        # The loops run in fp16 on a GPU alone.
        assert np.array_equal(found, wanted) == (label == _LOOP), label


@pytest.mark.slow
@pytest.mark.filterwarnings(_PEFT)
@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name not in ("lrm", "grg", _WITHOUT_PEERS)]
)
def test_a_loop_runs_what_the_batches_run(
    family: str, made: tuple[ModelFamilyPlan, str], folder: Path
) -> None:
    """One unit a call, and for each row anew: of what rows share a loop has no advantage."""
    own = dict(peers(family, made, folder, is_half=False))
    batched, loop = own["torch, SDPA, batches"], own[_LOOP]
    assert (batched.n_rows, loop.n_rows) == (2000, 40)
    # The third row is the first again.
    values = {role: [*column, column[0]] for role, column in roles_of(load_rows(2)).items()}
    units = loop.prepare(values)
    assert [len(ids) for ids, _ in units] == [1] * len(units)
    found, wanted = loop.score(units), batched.score(batched.prepare(values))
    n_units = [len(loop.prepare({r: [c[i]] for r, c in values.items()})) for i in range(3)]
    assert n_units[0] == n_units[2] and len(found) == sum(n_units) > len(wanted)
    np.testing.assert_allclose(np.unique(found), np.unique(wanted), atol=1e-4)


def ours(family: str, plan: ModelFamilyPlan, rows: Rows) -> np.ndarray:
    """Return the one number a row that a library gives, from the family's statistics."""
    runner = FamilyRunner(plan)
    values = roles_of(rows)
    found = runner.score({role: values[role] for role in plan.columns})
    if family == "sas":
        logits = np.concatenate(found["logit"].to_pylist())
        return 1 / (1 + np.exp(-logits))
    if family == "bi_encoder":
        return np.concatenate(found["cosine"].to_pylist())
    sides = [
        [np.average(best, weights=weight) for best, weight in zip(*columns, strict=True)]
        for columns in (
            (found[f"best_{side}"].to_pylist(), found[f"{side}_weights"].to_pylist())
            for side in ("candidate", "reference")
        )
    ]
    precision, recall = map(np.array, sides)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.slow
@pytest.mark.filterwarnings(_PEFT)
@pytest.mark.parametrize("family", ["sas", "bi_encoder", "token_match"])
def test_libraries_run_the_model_of_the_family(
    family: str, made: tuple[ModelFamilyPlan, str], folder: Path
) -> None:
    """A rate beside that of another model would compare nothing."""
    rows = load_rows(4)
    _, (_, library), _ = peers(family, made, folder, is_half=False)
    found = library.score(library.prepare(roles_of(rows)))
    np.testing.assert_allclose(found, ours(family, made[0], rows), atol=1e-4)


class _Broken(Peer):
    def score(self, prepared: Any) -> object:
        raise RuntimeError("CUDA out of memory")


@pytest.mark.slow
@pytest.mark.usefixtures("artifacts_root")
def test_a_peer_that_fails_costs_no_other_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour on a GPU may be the only one; what went wrong in it is told."""
    monkeypatch.setattr(
        gpu, "peers_of", lambda *_, **__: [("broken", _Broken), ("absent", "not installed")]
    )
    path = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--rows", "4", "--budgets", "1024", "--repeats", "1"]
    words += ["--seconds", "0", "--no-random", "--end-to-end", "0", "--json", str(path)]
    words += ["--models", str(tmp_path / "models")]
    assert gpu.main([*words, "--families", "sas"]) == 1
    assert "failed: sas, broken: RuntimeError: CUDA out of memory" in capsys.readouterr().err
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found["failures"]) == 1
    for own in found["families"]:
        assert own["peers"]["absent"] == {"skipped": "not installed"}
        assert own["budgets"]["1024"]["rows_per_s"] > 0


def test_the_page_has_what_was_recorded() -> None:
    """Every row of the table, and what is said of numbers beside a CPU."""
    record = json.loads((REPOSITORY / "docs/evidence/gpu.json").read_text(encoding="utf-8"))
    page = (REPOSITORY / "docs/gpu.md").read_text(encoding="utf-8")
    names = {"sas": "SAS", "token_match": "BERTScore", "bi_encoder": "bi-encoder",
             "kpqa_weights": "KPQA weights", "answer_span": "reader"}  # fmt: skip
    rows = []
    for own in record["families"]:
        best = max(own["budgets"].values(), key=lambda budget: budget["rows_per_s"])
        peers = {name: found["rows_per_s"] for name, found in own["peers"].items()}
        bare, loop = (peers.pop(name) for name in ("torch, SDPA, batches", "per-row loop"))
        library = f"{peers.popitem()[1]:,.0f} " if peers else ""
        model = "BERT-base" if own["is_random"] else own["model"]
        rows.append(
            f"| {names[own['family']]}, {model} | {100 * best['share_of_peak']:.0f} % "
            f"| {100 * best['busy']:.0f} % | {best['rows_per_s']:,.0f} "
            f"| {best['rows_per_s_with_encoding']:,.0f} "
            f"| {bare:,.0f} ({best['rows_per_s'] / bare:.2f}) | {library}| {loop:,.0f} |"
        )
        if (beside := own.get("device_check")) is not None:
            assert beside["share_beyond_tolerance"] == 0
            assert beside["beside_longer_ones"]["share_beyond_tolerance"] == 0
    own_part = page.partition("\n## On one H100\n")[2].partition("\n## ")[0]
    table = [line for line in own_part.splitlines() if line.startswith("| ")]
    assert table[2:] == rows  # Without the two lines of the heading.
