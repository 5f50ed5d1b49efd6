"""GPU: what each family does on a device: one table, and one JSON of all numbers.

Per family the embedded model and a random one of BERT-base's or GPT-2's shape (speed does not
depend on what weights are) at several token budgets: rows/s, share of the measured GEMM peak, what
ONNX Runtime's arena takes, memory and busy time as nvidia-smi tells. After it what people run
otherwise, in fp16 on the same device: torch with SDPA on the same batches, sentence-transformers,
bert-score, the per-row loop. Last, `qaeval score` on a million rows with SAS, and a tenth of them
with QRelScore. No number is judged; what cannot run is skipped by name; what should run and does
not, by an error or because the minutes are over, is told and makes the exit status 1.

usage: python -m benchmarks.gpu [--json FILE] [--minutes N] [--rows N]; --help says the rest
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Settings
from benchmarks.data import Rows, load_rows, repeated
from benchmarks.gpu_arena import arena_log
from benchmarks.gpu_card import cuda_starts, measured_peak, memory_used, nvidia_smi
from benchmarks.gpu_choice import NO_TIME, Choice, Clock
from benchmarks.gpu_job import END_TO_END, end_to_end
from benchmarks.gpu_models import FAMILIES, compile_family, model_folder, roles_of
from benchmarks.gpu_peers import Peer, peers_of
from benchmarks.measure import environment, work_flops
from qaeval_core.errors import DeviceMemoryError
from qaeval_core.families.contract import Prepared
from qaeval_core.families.device_check import check_device
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.engine import Device
from qaeval_core.models.gpu import gpu_facts
from qaeval_core.models.onnx_runtime import load_onnxruntime
from qaeval_core.models.session import Session

_LEFT_OUT = {"skipped": NO_TIME}
# Made once from the device's numbers, and kept by units for what is made of them.
_RESULTS = ("output", "values", "vectors", "text_vectors")

_HELP = """\
columns:
  rows/s     of the model pass, tokenizing apart (the JSON has both): median of the passes
  of peak    operations per second / those of the fp16 matrix product that torch reaches here
             (8192 x 8192, best of 20); fp32 is judged by it as well. Operations are those that the
             graph needs for the real tokens: weights, attention (of an LM the lower triangle) and
             an LM's head where a token is scored. Padding is no work, and LRM's last layer is
             counted as far as it is computed
  busy       share of the time in which a kernel ran, whatever part of the chip it filled:
             nvidia-smi's utilization.gpu, mean over the passes. Low: the device waits for the host.
             It is rough: five samples in a second, and the driver's own means are of 1/6 to 1 s,
             which may begin before the passes. More --seconds tell more
  arena MiB  peak of ONNX Runtime's arena, by its log of a pass before those that are timed: what
             it has allocated for weights and for a batch's values, and keeps. On a CPU its arena
             there: values and the weights that are packed anew, none that are read where they lie
  card MiB   device memory that the family added: nvidia-smi's largest memory.used during the
             passes, less what was used before its session was made. It has the arena and what
             CUDA's libraries take; CUDA's context is there before
  padding    share of the tokens in batches that are none
beside a CPU what a worker does before it trusts a device: up to 40 units of the embedded model
peers        rows/s; torch's batches are cut and tokenized before, the other libraries tokenize in
             their time. MoverScore's are BERTScore's: the same model on the same texts
per-row loop the same torch model with eager attention over 40 rows, one text or pair a call, and
             nothing shared between rows; in fp16 on a GPU, as the batches. Of LRM and GRG it is
             what the paper's programs do, formula and tokenizing with it; of others the model alone
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and write the JSON; return the exit status."""
    choice = Choice(**vars(_parser().parse_args(arguments)))
    missing = _why_not(choice.device)
    if missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1
    if choice.look:
        return 0
    _hush()
    found = measure(choice)
    if choice.json:
        print(f"all numbers: {choice.json}")
    for failure in found["failures"]:
        print(f"failed: {failure}", file=sys.stderr)
    return int(bool(found["failures"]))


def run_gpu(settings: Settings) -> dict[str, Any]:
    """Return the section of ``benchmarks.qrelscore``: the two families of QRelScore."""
    missing = _why_not("cuda")
    if missing:
        print(f"skipped: {missing}")
        return {"skipped": missing}
    return measure(Choice(families=("lrm", "grg"), rows=10 * settings.n_rows, end_to_end=0))


def _why_not(device: Device) -> str | None:
    providers = load_onnxruntime().get_available_providers()
    if device == "cuda" and "CUDAExecutionProvider" not in providers:
        return "this onnxruntime has no CUDA provider: qaeval-bulk[gpu] in place of [models]"
    if device == "cuda" and not cuda_starts():
        return "ONNX Runtime's CUDA provider does not start: see above, and check the driver"
    return None


def _hush() -> None:
    """Keep progress bars, and notes on heads that adapters bring, out of the table."""
    from transformers.utils import logging as notes

    notes.set_verbosity_error()
    notes.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


def measure(choice: Choice) -> dict[str, Any]:
    """Return all numbers; prints them as they come, and writes them as they come."""
    found: dict[str, Any] = {
        "environment": environment(available_cpus()),
        "gpu": gpu_facts(),
        "device": choice.device,
        "gemm_peak_flops_fp16": None,
        "families": [],
        "failures": [],
    }
    try:
        found["gemm_peak_flops_fp16"] = measured_peak()
    except Exception as error:
        found["failures"].append(f"GEMM peak: {_failed('GEMM peak', error)['failed']}")
    peak = found["gemm_peak_flops_fp16"]
    print(f"device      {choice.device}: {found['gpu'].get('name', found['gpu'].get('problem'))}")
    print(
        f"GEMM peak   {f'{peak / 1e12:.0f} TFLOP/s in fp16' if peak else 'unknown: no torch CUDA'}"
    )
    rows = repeated(load_rows(choice.rows), choice.rows)
    print(f"rows        {rows}")
    print(f"{'family':<15} {'model':<14} {'precision':<9} {'budget':>6} {'rows/s':>9} "
          f"{'of peak':>8} {'busy':>5} {'arena MiB':>9} {'card MiB':>8} "
          f"{'padding':>7}")  # fmt: skip
    clock = choice.clock()
    with tempfile.TemporaryDirectory() as name:
        folder = choice.models
        for family in choice.families:
            for is_random in (False, True) if choice.random else (False,):
                own = {"family": family, "is_random": is_random, "budgets": {}, "peers": {}}
                found["families"].append(own)
                _measure_all(rows, choice, folder, own, peak=peak, clock=clock)
                found["failures"] += _failures(own)
                _write(found, choice.json)
        if choice.end_to_end:
            found["end_to_end"] = {}
            for metric, divisor in END_TO_END.items():
                n_rows = -(-choice.end_to_end // divisor)
                run = partial(end_to_end, choice, Path(name) / metric, metric, n_rows, clock=clock)
                own = _tried(f"end to end, {metric}", run)
                found["end_to_end"][metric] = own
                if "failed" in own:
                    found["failures"].append(f"end to end, {metric}: {own['failed']}")
    if n_left_out := _n_left_out(found["families"]):
        found["failures"].append(f"{n_left_out} measurements did not fit into the minutes")
    found["exports_s"] = clock.ready_s
    _write(found, choice.json)
    return found


def _measure_all(
    rows: Rows,
    choice: Choice,
    folder: Path,
    own: dict[str, Any],
    *,
    peak: float | None,
    clock: Clock,
) -> None:
    """Add what a family does, and its peers do, with one model."""
    family, is_random = own["family"], own["is_random"]
    if clock.is_over():
        own |= _LEFT_OUT
        return
    try:
        with clock.stopped():
            plan = compile_family(
                family,
                device=choice.device,
                folder=folder,
                is_random=is_random,
                precision=choice.precision,
            )
    except Exception as error:
        own |= _failed(family, error)
        return
    measure_family(plan, rows, choice, peak=peak, own=own, clock=clock)
    if choice.check and not is_random and not clock.is_over():
        own["device_check"] = _tried("beside a CPU", partial(look_at_device, plan, rows, choice))
    if choice.peers:
        try:
            measure_peers(plan, rows, choice, folder, own=own, clock=clock)
        except Exception as error:
            own["peers"]["all"] = _failed("all peers", error)


def _failures(own: Mapping[str, Any]) -> Iterator[str]:
    name = own["family"] + (" (random model)" if own["is_random"] else "")
    for part in (own, own.get("device_check", {})):
        if "failed" in part:
            yield f"{name}: {part['failed']}"
    for kind in ("budgets", "peers"):
        for key, part in own[kind].items():
            if "failed" in part:
                yield f"{name}, {key}: {part['failed']}"


def _n_left_out(families: Sequence[Mapping[str, Any]]) -> int:
    parts = list(families)
    for family in families:
        parts += [*family["budgets"].values(), *family["peers"].values()]
    return sum(part.get("skipped") == NO_TIME for part in parts)


def _write(found: Mapping[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _tried(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return measure()
    except Exception as error:
        return _failed(name, error)


def _failed(name: str, error: Exception) -> dict[str, Any]:
    """Return what is told of an error in place of numbers: others are measured all the same.

    Of any error: what a library raises for what it does not take is no list that ends.
    """
    told = f"{type(error).__name__}: {error}"[:1000]
    print(f"  {name:<24} FAILED: {told}", flush=True)
    return {"failed": told}


def measure_family(
    plan: ModelFamilyPlan,
    rows: Rows,
    choice: Choice,
    *,
    peak: float | None,
    own: dict[str, Any],
    clock: Clock,
) -> None:
    """Add a family's numbers at each budget that holds one window."""
    record = plan.artifact.record
    own |= {"model": record.model.name, "precision": record.precision}
    for budget in choice.budgets:
        if budget < plan.max_unit_tokens:
            own["budgets"][budget] = {"skipped": f"a window has {plan.max_unit_tokens} tokens"}
            continue
        if clock.is_over():
            own["budgets"][budget] = _LEFT_OUT
            continue
        # A session of another budget would still be there otherwise, and its memory with it.
        gc.collect()
        try:
            found = measure_budget(plan, rows, choice, budget=budget, peak=peak)
        except DeviceMemoryError as error:
            own["budgets"][budget] = {"skipped": str(error)}
            continue
        except Exception as error:
            own["budgets"][budget] = _failed(f"{plan.name}, {budget}", error)
            continue
        own["budgets"][budget] = found
        print(
            f"{plan.name:<15} {record.model.name[:14]:<14} {record.precision:<9} {budget:>6} "
            f"{found['rows_per_s']:>9,.1f} {_share(found['share_of_peak']):>8} "
            f"{_share(found.get('busy')):>5} {_mib(found.get('arena_peak_mib')):>9} "
            f"{_mib(found.get('memory_added_mib')):>8} {found['padding_share']:>7.1%}",
            flush=True,
        )


def measure_budget(
    plan: ModelFamilyPlan, rows: Rows, choice: Choice, *, budget: int, peak: float | None
) -> dict[str, Any]:
    """Return rows/s of the model pass; tokenizing is done before and told apart."""
    values = {role: roles_of(rows)[role] for role in plan.columns}
    layout = plan.open_layout()
    started = time.perf_counter()
    prepared = layout.prepare(values)
    encode_s = time.perf_counter() - started
    memory_before = memory_used()
    with arena_log(choice.device) as arena:
        # Numbers are compared by the tests marked gpu.
        runner = FamilyRunner(
            plan, device=choice.device, max_batch_tokens=budget, checks_device=False, n_threads=None
        )
        runner.run(prepared)  # Warm: the arena grows once.
    prepared.work.statistics()
    stats = prepared.stats
    found = {
        "encode_rows_per_s": len(rows) / encode_s,
        "padding_share": 1 - stats.n_tokens / stats.n_padded_tokens,
        "n_units": stats.n_units,
        "n_batches": stats.n_batches,
        "n_halvings": stats.n_halvings,
    }
    with nvidia_smi() as samples:
        seconds = timed(partial(_pass, runner, prepared), choice)
    if samples and memory_before is not None:
        samples["memory_added_mib"] = samples.get("memory_mib", memory_before) - memory_before
    median_s = statistics.median(seconds)
    whole, done = work_flops(plan.artifact.record, prepared.work.units, device=choice.device)
    return {
        "rows_per_s": len(rows) / median_s,
        "rows_per_s_with_encoding": len(rows) / (median_s + encode_s),
        "seconds": seconds,
        "model_flops": whole,
        "done_flops": done,
        "share_of_peak": done / median_s / peak if peak else None,
        **found,
        **arena,
        **samples,
    }


def _pass(runner: FamilyRunner, prepared: Prepared) -> None:
    """Run a shard that is laid out, and make statistics of it, as if it had not run yet."""
    for name in _RESULTS:
        prepared.work.units.__dict__.pop(name, None)
    runner.run(prepared)
    prepared.work.statistics()


def timed(run: Callable[[], object], choice: Choice) -> list[float]:
    """Return the seconds of each run: so many, and more until they have taken long enough."""
    seconds: list[float] = []
    while len(seconds) < choice.repeats or sum(seconds) < choice.seconds:
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return seconds


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def look_at_device(plan: ModelFamilyPlan, rows: Rows, choice: Choice) -> dict[str, Any]:
    """Return what a worker's look at its device finds, and takes; a session is there before."""
    units = plan.open_layout().prepare({r: roles_of(rows)[r] for r in plan.columns}).work.units
    session = Session(plan.artifact, device=choice.device)
    session.run(units.make_inputs([0]))
    found = check_device(session, units, family=plan.name)
    print(
        f"  {'beside a CPU':<24} {found['seconds']:>24,.2f} s for {found['rows']} units: "
        f"half within {found['median_abs_diff']:.1e}, all {found['max_abs_diff']:.1e}"
    )
    return found


def measure_peers(
    plan: ModelFamilyPlan,
    rows: Rows,
    choice: Choice,
    folder: Path,
    *,
    own: dict[str, Any],
    clock: Clock,
) -> None:
    """Add rows/s of what runs the same model otherwise."""
    family, is_random = own["family"], own["is_random"]
    as_folder = partial(model_folder, family, plan, folder, is_random=is_random)
    model = str(as_folder()) if is_random else own["model"]
    for name, make in peers_of(family, plan, model, as_folder, device=choice.device):
        if clock.is_over():
            own["peers"][name] = _LEFT_OUT
            continue
        if isinstance(make, str):
            own["peers"][name] = {"skipped": make}
            print(f"  {name:<24} skipped: {make}")
            continue
        found = _tried(name, partial(_measure_peer, make, rows, choice))
        own["peers"][name] = found
        if "failed" not in found:
            print(f"  {name:<24} {found['rows_per_s']:>24,.1f} rows/s", flush=True)


def _measure_peer(make: Callable[[], Peer], rows: Rows, choice: Choice) -> dict[str, Any]:
    peer = make()
    own = rows.head(peer.n_rows)
    prepared = peer.prepare(roles_of(own))
    peer.score(prepared)
    # No busy time is sampled meanwhile, so fewer passes do.
    seconds = timed(partial(peer.score, prepared), replace(choice, seconds=choice.seconds / 2))
    median_s = statistics.median(seconds)
    return {"rows_per_s": len(own) / median_s, "n_rows": len(own), "seconds": seconds}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, default = parser.add_argument, Choice()
    add("--device", choices=("cuda", "cpu"), default=default.device, help="cpu: a trial")
    add("--rows", type=int, default=default.rows, help="of each family; default %(default)s")
    add("--budgets", type=_numbers, default=default.budgets, help="tokens of a batch: 4096,16384")
    add("--families", type=_names, default=default.families, help=", ".join(FAMILIES))
    add("--precision", choices=("auto", "fp16", "fp32"), default=default.precision)
    add("--repeats", type=int, default=default.repeats, help="passes at least")
    add("--seconds", type=float, default=default.seconds,
        help="that all passes take at least, peers' half of it; default %(default)g")  # fmt: skip
    add("--end-to-end", type=int, default=default.end_to_end, metavar="ROWS",
        help="of SAS, a tenth for QRelScore; 0: none; default %(default)s")  # fmt: skip
    add("--minutes", type=float, default=default.minutes,
        help="of all but exports, a quarter end to end; default %(default)g")  # fmt: skip
    add("--until", type=float, metavar="TIME", help="in their place: seconds since 1970")
    add("--models", type=Path, default=default.models,
        help="where random models are kept; default %(default)s")  # fmt: skip
    add("--no-random", dest="random", action="store_false", help="embedded models alone")
    add("--no-peers", dest="peers", action="store_false")
    add("--look", action="store_true", help="whether the device is there, and no more")
    add("--no-check", dest="check", action="store_false",
        help="for a device whose numbers are garbage")  # fmt: skip
    add("--json", type=Path, help="written after each family")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in FAMILIES:
            raise argparse.ArgumentTypeError(f"no {name!r}; families: {', '.join(FAMILIES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
