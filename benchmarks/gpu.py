"""GPU: what each family does on a device, in ten minutes: one table, and one JSON of all numbers.

Per family the embedded model and a random one of BERT-base's or GPT-2's shape (speed does not
depend on what weights are) at several token budgets: rows/s, share of the measured GEMM peak,
memory and busy time as nvidia-smi tells. Beside it, in turn, what people run otherwise, in fp16 on
the same device: torch with SDPA on the same batches, sentence-transformers, bert-score, the per-row
loop. Last, `qaeval score` on a million rows. Nothing is judged; what cannot run is skipped by name.

usage: python -m benchmarks.gpu [--json FILE] [--rows N] [--end-to-end N]; --help says the rest
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.common import Settings
from benchmarks.data import Rows, load_rows
from benchmarks.gpu_peers import peers_of
from benchmarks.measure import environment, interleave, model_flops
from qaeval_core.configure import load_config
from qaeval_core.errors import DeviceMemoryError
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.models.artifact import default_root, ensure_artifact
from qaeval_core.models.gpu import gpu_facts
from qaeval_core.models.registry import resolve_model
from qaeval_core.models.session import Device, available_cpus
from qaeval_core.planning.compile import compile_run

BUDGETS = (1024, 4096, 16384, 65536)
_N_ROWS = 4000
_N_END_TO_END = 1_000_000
_N_REPEATS = 3
_GEMM_SIZE = 8192
_SAMPLE_MS = 200
_COLUMNS = {"candidate": "candidate", "context": "context", "references": "references"}
# Family -> the metric that reads it, the setting that names its model, its role, and the random
# model's shape.
_FAMILIES = {
    "lrm": ("qrelscore", "encoder", "encoder", "bert"),
    "grg": ("qrelscore", "causal_lm", "causal_lm", "gpt2"),
    "sas": ("sas", "model", "cross_encoder", "bert-classifier"),
    "bi_encoder": ("bi_encoder", "encoder", "encoder", "bert"),
    "token_match": ("bertscore", "encoder", "encoder", "bert"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write the JSON."""
    chosen = _parser().parse_args(arguments)
    found = measure(
        device=chosen.device,
        n_rows=chosen.rows,
        budgets=chosen.budgets,
        families=chosen.families,
        has_random=not chosen.no_random,
        has_peers=not chosen.no_peers,
        n_end_to_end=chosen.end_to_end,
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(f"all numbers: {chosen.json}")


def run_gpu(settings: Settings) -> dict[str, Any]:
    """Return the section of ``benchmarks.qrelscore``: the two families of QRelScore."""
    return measure(families=("lrm", "grg"), n_rows=10 * settings.n_rows, n_end_to_end=0)


def measure(
    *,
    device: Device = "cuda",
    n_rows: int = _N_ROWS,
    budgets: Sequence[int] = BUDGETS,
    families: Sequence[str] = tuple(_FAMILIES),
    has_random: bool = True,
    has_peers: bool = True,
    n_end_to_end: int = _N_END_TO_END,
) -> dict[str, Any]:
    """Return all numbers; prints them as they come."""
    peak = measured_peak()
    results: dict[str, Any] = {
        "environment": environment(available_cpus()),
        "gpu": gpu_facts(),
        "device": device,
        "gemm_peak_flops_fp16": peak,
        "families": [],
    }
    print(f"device      {device}: {results['gpu'].get('name', results['gpu'].get('problem'))}")
    print(
        f"GEMM peak   {f'{peak / 1e12:.0f} TFLOP/s in fp16' if peak else 'unknown: no torch CUDA'}"
    )
    rows = load_rows(n_rows)
    print(f"rows        {rows}")
    print(f"{'family':<12} {'model':<14} {'precision':<9} {'budget':>6} {'rows/s':>9} "
          f"{'of peak':>8} {'busy':>5} {'MiB':>7} {'padding':>7}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for family in families:
            for model in [None, *(["random"] if has_random else [])]:
                plan = compile_family(family, model, device=device, folder=Path(folder))
                own = measure_family(plan, rows, device=device, budgets=budgets, peak=peak)
                own["family"], own["is_random"] = family, model is not None
                if has_peers:
                    name = plan.artifact.record.model.name
                    path = str(Path(folder, _FAMILIES[family][3])) if model else name
                    own["peers"] = measure_peers(family, plan, path, rows, device=device)
                results["families"].append(own)
        if n_end_to_end:
            results["end_to_end"] = end_to_end(n_end_to_end, Path(folder), device=device)
    return results


def compile_family(
    family: str, model: str | None, *, device: Device, folder: Path
) -> ModelFamilyPlan:
    """Return a family of the embedded model, or of a random one of a base model's shape."""
    metric, setting, role, shape = _FAMILIES[family]
    given: dict[str, object] = {f"metrics.{metric}.metric": metric}
    if model is not None:
        given[f"metrics.{metric}.{setting}"] = str(random_model(shape, folder / shape))
        # Ranks of random scores differ in fp16: the parity gate is for weights that mean much.
        given[f"models.{role}.allow_lossy"] = True
        given["models.artifacts_path"] = str(folder / "artifacts")
    config = load_config(overrides=given)
    root = Path(config.models.artifacts_path or default_root())
    run = compile_run(
        config,
        columns=_COLUMNS,
        device=device,
        resolve_artifact=lambda request: ensure_artifact(root, request),
    )
    plans = [plan for plan in run.families if plan.name == family]
    assert isinstance(plans[0], ModelFamilyPlan)
    return plans[0]


def random_model(shape: str, folder: Path) -> Path:
    """Write a random model of a base model's shape."""
    import torch
    import transformers as hf

    if folder.is_dir():
        return folder
    torch.manual_seed(0)
    model = {
        "bert": lambda: hf.BertModel(hf.BertConfig()),
        "bert-classifier": lambda: hf.BertForSequenceClassification(hf.BertConfig(num_labels=1)),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(bos_token_id=0, eos_token_id=0)),
    }[shape]()
    return save_random(model, folder, embedded="smollm2-135m" if shape == "gpt2" else "minilm")


def save_random(model: Any, folder: Path, *, embedded: str) -> Path:
    """Write a model with the tokenizer of an embedded one: both vocabularies fit."""
    from export.loading import load_model

    role = "causal_lm" if embedded == "smollm2-135m" else "encoder"
    model.save_pretrained(folder)
    loaded = load_model(resolve_model(embedded, role=role), role=role)
    loaded.tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": None, "eos_token": None}  # The ids of the model's config count.
    (folder / "tokenizer_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return folder


def roles_of(rows: Rows) -> dict[str, list[object]]:
    """Return rows as any family reads them: neighbouring questions are each other's references."""
    references = [[text] for text in [*rows.questions[1:], *rows.questions[:1]]]
    return {**rows.roles(), "references": list(references)}


def measure_family(
    plan: ModelFamilyPlan, rows: Rows, *, device: Device, budgets: Sequence[int], peak: float | None
) -> dict[str, Any]:
    """Return rows/s of the model pass at each budget; tokenising is done before and told apart."""
    record = plan.artifact.record
    own: dict[str, Any] = {
        "model": record.model.name,
        "precision": record.precision,
        "budgets": {},
    }
    values = {role: roles_of(rows)[role] for role in plan.columns}
    for budget in budgets:
        if budget < plan.max_unit_tokens:
            continue
        # Numbers are compared by the tests marked gpu.
        runner = FamilyRunner(
            plan, device=device, max_batch_tokens=budget, checks_device=False, n_threads=None
        )
        started = time.perf_counter()
        prepared = runner.layout.prepare(values)
        encode_s = time.perf_counter() - started
        try:
            runner.run(prepared)  # Warm: the arena grows once.
        except DeviceMemoryError as error:
            own["budgets"][budget] = {"skipped": str(error)}
            continue
        seconds = []
        with nvidia_smi() as samples:
            for _ in range(_N_REPEATS):
                again = runner.layout.prepare(values)
                started = time.perf_counter()
                runner.run(again)
                again.work.statistics()
                seconds.append(time.perf_counter() - started)
        stats, lengths = prepared.stats, prepared.work.units.lengths
        inputs = prepared.work.units.make_inputs(range(min(len(lengths), 1)))
        n_scored = len(lengths) * len(inputs.get("target_ids", ()))
        flops = model_flops(record, lengths, n_scored=n_scored)
        median_s = statistics.median(seconds)
        found = {
            "rows_per_s": len(rows) / median_s,
            "seconds": seconds,
            "encode_rows_per_s": len(rows) / encode_s,
            "share_of_peak": flops / median_s / peak if peak else None,
            "padding_share": 1 - stats.n_tokens / stats.n_padded_tokens,
            "n_batches": stats.n_batches,
            "n_halvings": stats.n_halvings,
            **samples,
        }
        own["budgets"][budget] = found
        print(
            f"{plan.name:<12} {record.model.name[:14]:<14} {record.precision:<9} {budget:>6} "
            f"{found['rows_per_s']:>9,.0f} {_share(found['share_of_peak']):>8} "
            f"{_share(found.get('busy')):>5} {found.get('memory_mib') or '-':>7} "
            f"{found['padding_share']:>7.1%}",
            flush=True,
        )
    return own


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def measure_peers(
    family: str, plan: ModelFamilyPlan, model: str, rows: Rows, *, device: Device
) -> dict[str, Any]:
    """Return rows/s of what runs the same model otherwise."""
    found: dict[str, Any] = {}
    for name, peer in peers_of(family, plan, model, device=device):
        if isinstance(peer, str):
            found[name] = {"skipped": peer}
            print(f"  {name:<24} skipped: {peer}")
            continue
        own = rows.head(peer.n_rows)
        values = roles_of(own)
        peer.score(values)
        seconds = interleave({name: lambda p=peer, v=values: p.score(v)}, n_repeats=_N_REPEATS)
        rate = len(own) / statistics.median(seconds[name])
        found[name] = {"rows_per_s": rate, "n_rows": len(own), "seconds": seconds[name]}
        print(f"  {name:<24} {rate:>24,.0f} rows/s", flush=True)
    return found


@contextmanager
def nvidia_smi() -> Iterator[dict[str, float]]:
    """Sample busy share and memory; the dict is filled at the end, and empty without the tool."""
    found: dict[str, float] = {}
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,power.draw,clocks.sm"]
    query += ["--format=csv,noheader,nounits", f"--loop-ms={_SAMPLE_MS}", "--id=0"]
    try:
        process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    except OSError:
        yield found
        return
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or []), daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.terminate()
        process.wait()
        reader.join()
        seen = [[float(x) for x in line.split(",")] for line in lines if "[" not in line]
        if seen:
            busy, memory, power, clock = zip(*seen, strict=True)
            found["busy"] = statistics.mean(busy) / 100
            found["memory_mib"] = max(memory)
            found["power_w"], found["sm_clock_mhz"] = max(power), max(clock)


def measured_peak() -> float | None:
    """Return the best fp16 FLOP/s of a large product; None where torch has no CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    left = torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda", dtype=torch.float16)
    best_s = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        left @ left
        torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * _GEMM_SIZE**3 / best_s


def end_to_end(n_rows: int, folder: Path, *, device: Device) -> dict[str, Any]:
    """Return what `qaeval score` takes for many rows: start, read, tokenise, run, commit, join."""
    rows = load_rows(8000)
    turns = -(-n_rows // len(rows))
    # No question twice: equal pairs are run once, and would look like speed.
    table = pl.DataFrame(
        {
            "id": range(n_rows),
            "question": [f"{q} ({i})" for i in range(turns) for q in rows.questions][:n_rows],
            "context": (rows.contexts * turns)[:n_rows],
        }
    )
    table.write_parquet(folder / "rows.parquet", row_group_size=50_000)
    words = ["--set", f"cluster.device={device}", "--local", "--metrics", "qrelscore"]
    words += ["--set", "models.check_device=false"] if device == "cpu" else []
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "score", folder / "rows.parquet",
         "--out", folder / "out", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wall_s = time.perf_counter() - started
    if done.returncode != 0:
        print(f"end to end  failed: {done.stderr.strip()[-500:]}")
        return {"failed": done.stderr[-2000:]}
    report: Mapping[str, Any] = json.loads((folder / "out" / "report.json").read_text("utf-8"))
    passes = {key: family.get("this_run") for key, family in report["families"].items()}
    print(f"end to end  {n_rows:,} rows in {wall_s:.0f} s: {n_rows / wall_s:,.0f} rows/s")
    return {"n_rows": n_rows, "wall_s": wall_s, "passes": passes}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial")
    parser.add_argument("--rows", type=int, default=_N_ROWS)
    parser.add_argument("--budgets", type=_numbers, default=BUDGETS, help="tokens of a batch")
    parser.add_argument("--families", type=_names, default=tuple(_FAMILIES))
    parser.add_argument("--end-to-end", type=int, default=_N_END_TO_END, metavar="ROWS")
    parser.add_argument("--no-random", action="store_true", help="embedded models alone")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in _FAMILIES:
            raise argparse.ArgumentTypeError(f"no {name!r}; families: {', '.join(_FAMILIES)}")
    return names


if __name__ == "__main__":
    main()
