"""GPU: the comparison of LRM and GRG in fp16 on CUDA, on random weights of BERT-base and GPT-2.

Speed does not depend on what the weights are; the scores mean nothing.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import onnxruntime as ort
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PretrainedConfig

from benchmarks.against_loop import compare
from benchmarks.common import Settings, make_instance
from benchmarks.data import load_rows
from benchmarks.peers import GrgPeer, LrmPeer
from export.loading import load_model
from qaeval_core.models.registry import resolve_model
from qaeval_core.models.session import Device

# A GPU's batch holds 16,384 tokens: 200 rows would be three batches.
_ROWS_FACTOR = 10
_GEMM_SIZE = 8192


def run_gpu(settings: Settings) -> dict[str, object]:
    """Time both families on the GPU and print them; says so where there is no GPU."""
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        print("skipped: this onnxruntime has no CUDA provider")
        return {"skipped": "no CUDA provider"}
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return {"skipped": "no CUDA device"}
    peak_flops = settings.peak_tflops * 1e12 if settings.peak_tflops else _measured_peak()
    print(f"{torch.cuda.get_device_name()}, peak {peak_flops / 1e12:.0f} TFLOP/s fp16")
    return compare_random_models(
        settings,
        configs={"encoder": BertConfig(), "causal_lm": GPT2Config(bos_token_id=0, eos_token_id=0)},
        peak_flops=peak_flops,
        device="cuda",
    )


def compare_random_models(
    settings: Settings,
    *,
    configs: dict[str, PretrainedConfig],
    peak_flops: float,
    device: Device,
) -> dict[str, object]:
    """Build random models of these shapes, export them, and compare both families."""
    results: dict[str, object] = {"peak_flops": peak_flops}
    rows = load_rows(_ROWS_FACTOR * settings.n_rows)
    with tempfile.TemporaryDirectory() as folder:
        folders = {role: Path(folder, role) for role in configs}
        _save(BertModel(configs["encoder"]), folders["encoder"], "encoder")
        _save(GPT2LMHeadModel(configs["causal_lm"]), folders["causal_lm"], "causal_lm")
        overrides: dict[str, object] = {"models.artifacts_path": str(Path(folder, "artifacts"))}
        for role, path in folders.items():
            overrides[f"qrelscore.{role}"] = str(path)
            # Ranks of random scores differ in fp16: the parity gate is for weights that mean much.
            overrides[f"models.{role}.allow_lossy"] = True
        _, instance = make_instance(overrides, device=device)
        n_window = instance.settings.max_window_tokens
        peers = {
            "lrm": LrmPeer(str(folders["encoder"]), device=device),
            "grg": GrgPeer(str(folders["causal_lm"]), max_window_tokens=n_window, device=device),
        }
        for name, peer in peers.items():
            own = compare(
                instance, name, peer, rows, settings, peak_flops=peak_flops, device=device
            )
            busy = own["stats"]["seconds"]["run"] / sum(own["stats"]["seconds"].values())
            print(f"  idle share            {1 - busy:9.1%}          of the wall, no batch running")
            results[name] = own | {"idle_share": 1 - busy}
    return results


def _save(model: torch.nn.Module, folder: Path, role: str) -> None:
    """Save a random model with the tokenizer of the embedded model of its role.

    Both vocabularies fit: 30,522 of 30,522 entries, and 49,152 of GPT-2's 50,257.
    """
    embedded = {"encoder": "minilm", "causal_lm": "smollm2-135m"}[role]
    model.save_pretrained(folder)
    loaded = load_model(resolve_model(embedded, role=role), role=role)
    loaded.tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": None, "eos_token": None}  # The ids of the model's config count.
    (folder / "tokenizer_config.json").write_text(json.dumps(ends), encoding="utf-8")


def _measured_peak() -> float:
    left = torch.randn(_GEMM_SIZE, _GEMM_SIZE, device="cuda", dtype=torch.float16)
    best_s = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        started = time.perf_counter()
        left @ left
        torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - started)
    return 2 * _GEMM_SIZE**3 / best_s
