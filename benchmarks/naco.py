"""Benchmark of NACo: what it takes from the models beside it, and what a call costs.

The language model is the tests' server, a process of this machine: its CPU time counts too. Runs
are whole commands on a Ray of their own. ``beside``: QRelScore alone and with NACo at a tight limit
in the same job, in turn. ``calls``: a limit of many calls a second, and the CPU time of the
governor's process and of the actor that calls. ``noise``: a server that fails a tenth of calls
whatever the pace, asked under a governor and by a plain retry loop with jitter, in turn, each for
as many replies, in this process. ``replies`` (only where named: half an hour): how
many replies of a real model can be read, the embedded SmolLM2 behind ``transformers serve``.

Run ``python -m benchmarks.naco --only calls``. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tenacity

from benchmarks.measure import environment, ratio
from qaeval_core.llm.asker import Asker
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import GovernorClient, in_process
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.limits import Limits, Prices
from qaeval_core.sample import sample_table

_ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(_ROOT / "tests"))

from llm_server import LlmServer  # noqa: E402
from served_model import ServedModel  # noqa: E402

_MAX_TOKENS = 128
_WINDOW_S = 6.0
# The first and the last tenth of the calls are not timed: actors start, and the last ones end.
_TIMED = (0.1, 0.9)
_PROCESSES = {"governor": "GovernorActor", "actor": "AskPieces", "driver": "qaeval.cli"}


def write_rows(path: Path, n_rows: int) -> None:
    """Write rows of the sample corpus that have an answer; those that come again get a number."""
    sample = [row for row in sample_table().to_pylist() if row["answer"]]
    # Spread over the passages, so that few rows have what many have.
    step = next(n for n in range(len(sample) // 3, len(sample)) if math.gcd(n, len(sample)) == 1)
    rows = []
    for i in range(n_rows):
        row = sample[i * step % len(sample)]
        number = f" ({i})" if i >= len(sample) else ""
        rows.append({**row, "id": str(i), "question": row["question"] + number})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def command(source: Path, out: Path, settings: Mapping[str, object]) -> list[str]:
    """Return a command that scores rows."""
    words = [sys.executable, "-m", "qaeval.cli", "score", str(source), "--out", str(out), "--ray"]
    return [*words, *(word for name, value in settings.items() for word in _set(name, value))]


def _set(name: str, value: object) -> tuple[str, str]:
    return "--set", f"{name}={value}"


def naco_settings(
    server: LlmServer | ServedModel, folder: Path, **limits: object
) -> dict[str, object]:
    """Return what NACo needs to ask a server."""
    given = {
        "base_url": server.base_url,
        "model": getattr(server, "model", "m"),
        "expected_complexity": 2,
        "max_tokens": _MAX_TOKENS,
        "ledger_path": folder / "ledgers",
        **limits,
    }
    return {f"naco.{name}": value for name, value in given.items()}


def run_beside(chosen: argparse.Namespace) -> dict[str, object]:
    """Time QRelScore alone and beside NACo, in turn."""
    rates: dict[str, list[float]] = {"alone": [], "beside": []}
    calls_per_s = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "rows.parquet"
        write_rows(source, chosen.rows)
        limit = chosen.requests_per_minute
        for i in range(chosen.repeats):
            rates["alone"].append(_qrelscore_rate(source, folder / f"alone-{i}", {}))
            with LlmServer(requests_per_minute=limit) as server:
                settings = naco_settings(server, folder, requests_per_minute=limit)
                out = folder / f"beside-{i}"
                rates["beside"].append(_qrelscore_rate(source, out, settings))
                calls_per_s.append(_family(out, "naco")["this_run"]["rows_per_s"])
    ratios = ratio(rates["beside"], rates["alone"])
    print(f"qrelscore, {chosen.rows} rows, naco at {limit} requests a minute")
    for side, own in rates.items():
        low, high = min(own), max(own)
        print(f"  {side:<8}{statistics.median(own):8.2f} rows/s   [{low:.2f} .. {high:.2f}]")
    low, high = ratios["lowest_pair"], ratios["highest_pair"]
    print(f"  ratio   {ratios['of_medians']:8.3f}          pairs [{low:.3f} .. {high:.3f}]")
    print(f"  naco    {statistics.median(calls_per_s):8.2f} rows/s beside it")
    return {"rows_per_s": rates, "ratio": ratios, "naco_rows_per_s": calls_per_s}


def _qrelscore_rate(source: Path, out: Path, settings: Mapping[str, object]) -> float:
    """Run a job; return rows/s of QRelScore: of its passes, which follow each other."""
    metrics = "qrelscore,naco" if settings else "qrelscore"
    words = [*command(source, out, settings), "--metrics", metrics]
    subprocess.run(words, cwd=_ROOT, stdout=-3, stderr=-3, check=True)
    passes = [_family(out, name)["this_run"] for name in ("lrm", "grg")]
    return passes[0]["rows"] / sum(own["wall_s"] for own in passes)


def _family(out: Path, name: str) -> dict[str, Any]:
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return next(own for key, own in report["families"].items() if key.split("-")[0] == name)


def run_calls(chosen: argparse.Namespace) -> dict[str, object]:
    """Make calls at a high limit; count what they cost."""
    n_calls = chosen.calls
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.parquet", n_calls)
        limit = round(chosen.calls_per_s * _WINDOW_S)
        log = folder / "server.jsonl"
        log.touch()
        with LlmServer(requests_per_minute=limit, window_s=_WINDOW_S, log_path=str(log)) as server:
            limits = {"requests_per_minute": limit, "limit_window_s": _WINDOW_S}
            limits["max_concurrent"] = chosen.concurrent
            settings = naco_settings(server, folder, **limits)
            words = command(folder / "rows.parquet", folder / "out", settings)
            process = psutil.Popen([*words, "--metrics", "naco"], cwd=_ROOT, stdout=-3, stderr=-3)
            looks = [_look(process, log, at=share * n_calls) for share in _TIMED]
            if code := process.wait():
                raise RuntimeError(f"qaeval ended with {code}")
            stats = server.stats()
    return _show_calls(looks, stats, calls_per_s=limit / _WINDOW_S)


def _look(process: psutil.Process, log: Path, *, at: float) -> dict[str, float]:
    """Wait for so many calls; return their number, the time, and CPU seconds by process."""
    while (n_calls := log.read_bytes().count(b"\n")) < at:
        if process.poll() is not None:
            raise RuntimeError(f"qaeval ended with {process.returncode} after {n_calls} calls")
        time.sleep(0.1)
    found = {"calls": float(n_calls), "at_s": time.perf_counter()}
    for child in [process, *process.children(recursive=True)]:
        title = " ".join(child.cmdline())
        for name, part in _PROCESSES.items():
            if part in title:
                times = child.cpu_times()
                found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def _show_calls(
    looks: Sequence[Mapping[str, float]], stats: Mapping[str, Any], *, calls_per_s: float
) -> dict[str, object]:
    first, last = looks
    n_calls = last["calls"] - first["calls"]
    rate = n_calls / (last["at_s"] - first["at_s"])
    cost_us = {name: 1e6 * (last[name] - first[name]) / n_calls for name in _PROCESSES}
    print(f"calls, at a limit of {calls_per_s:.0f}/s")
    print(f"  made    {rate:8.1f} calls/s   {rate / calls_per_s:.1%} of the limit")
    print(
        f"  most    {stats['max_requests_in_window']:8,} in a window, refused {stats['n_refused']}"
    )
    for name, own in cost_us.items():
        print(f"  {name:<8}{own:8.0f} us of CPU a call")
    return {"calls_per_s": rate, "share": rate / calls_per_s, "cpu_us": cost_us}


def run_replies(chosen: argparse.Namespace) -> dict[str, object]:
    """Ask a small model, with and without an example; count the first replies that are readable."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.parquet", chosen.questions)
        with ServedModel(folder / "served") as server:
            for one_shot in (False, True):
                out = folder / f"out-{one_shot}"
                # The server computes one reply at a time.
                settings = naco_settings(
                    server, folder, one_shot=one_shot, max_concurrent=1, timeout_s=300
                )
                words = command(folder / "rows.parquet", out, settings)
                subprocess.run(
                    [*words, "--metrics", "naco"], cwd=_ROOT, stdout=-3, stderr=-3, check=True
                )
                calls = _family(out, "naco")["calls"]
                n_reminded, n_unread = calls["reminders"], calls["unparsable_runs"]
                shape = "one-shot" if one_shot else "zero-shot"
                print(
                    f"  {shape:<10}{chosen.questions - n_reminded} of {chosen.questions} first "
                    f"replies readable; the reminder recovered {n_reminded - n_unread} of "
                    f"{n_reminded}",
                    flush=True,
                )
                found[shape] = {"reminded": n_reminded, "unreadable": n_unread}
    return found


def run_noise(chosen: argparse.Namespace) -> dict[str, object]:
    """Ask a server that fails whatever the pace, with a governor and without one."""
    limit = chosen.noisy_limit
    found: dict[str, dict[str, float]] = {}
    for name, ask in (("governor", _ask_governed), ("retries", _ask_in_a_loop)):
        with tempfile.TemporaryDirectory() as folder:
            faults = {"error_503": 0.025, "error_500": 0.025, "reset": 0.025, "truncated": 0.025}
            settings = {"faults": faults, "requests_per_minute": limit, "window_s": _WINDOW_S}
            with LlmServer(**settings) as server:
                started_s = time.perf_counter()
                asyncio.run(ask(server, Path(folder), limit=limit, n=chosen.replies))
                wall_s = time.perf_counter() - started_s
                stats = server.stats()
        found[name] = {
            "replies_per_s": chosen.replies / wall_s,
            "share_of_limit": stats["n_calls"] / wall_s / limit * _WINDOW_S,
            "refused": stats["n_refused"],
            "calls": stats["n_calls"],
            "most_in_a_window": stats["max_requests_in_window"],
        }
    print(f"noise, {chosen.replies} replies at a limit of {limit} in {_WINDOW_S:.0f} s")
    for name, own in found.items():
        print(
            f"  {name:<9}{own['replies_per_s']:7.2f} replies/s   {own['calls']:6,} calls, "
            f"{own['refused']:,} refused, at most {own['most_in_a_window']} in a window"
        )
    rates = [own["replies_per_s"] for own in found.values()]
    print(f"  ratio    {rates[0] / rates[1]:7.3f}")
    return {**found, "ratio": rates[0] / rates[1]}


def _prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What color has the house at {number} in the street?"}]


async def _ask_governed(server: LlmServer, folder: Path, *, limit: int, n: int) -> None:
    limits, budget = Limits(requests_per_minute=limit, window_s=_WINDOW_S), Budget()
    endpoint = Endpoint(server.base_url, "m", {"max_tokens": _MAX_TOKENS})
    journal = Journal(folder)
    asker = Asker(
        ChatClient(endpoint),
        GovernorClient(in_process(Governor(limits)), limits=limits, budget=budget),
        journal,
        prices=Prices(),
    )
    await asyncio.gather(*(asker.ask(_prompt(i), n_prompt_tokens=18) for i in range(n)))
    await asker.aclose()
    journal.close()


async def _ask_in_a_loop(server: LlmServer, _: Path, *, limit: int, n: int) -> None:
    """Ask with as many at once, and retry what fails after a wait that doubles, with jitter."""
    turn = asyncio.Semaphore(32)
    url = f"{server.base_url}/chat/completions"

    @tenacity.retry(
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=30),
        retry=tenacity.retry_if_exception_type((httpx.HTTPError, ValueError)),
    )
    async def ask(number: int) -> None:
        async with turn:
            body = {"model": "m", "messages": _prompt(number), "max_tokens": _MAX_TOKENS}
            (await http.post(url, json=body)).raise_for_status().json()

    async with httpx.AsyncClient(timeout=120) as http:
        await asyncio.gather(*(ask(number) for number in range(n)))


SECTIONS = {"beside": run_beside, "calls": run_calls, "noise": run_noise, "replies": run_replies}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.naco")
    parser.add_argument(
        "--only",
        default="beside,calls,noise",
        help=f"of {', '.join(SECTIONS)}; default %(default)s",
    )
    parser.add_argument("--rows", type=int, default=200, help="of beside; default %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="of beside; default %(default)s")
    parser.add_argument(
        "--requests-per-minute", type=int, default=240, help="of beside; default %(default)s"
    )
    parser.add_argument("--calls", type=int, default=4000, help="default %(default)s")
    parser.add_argument("--calls-per-s", type=float, default=200.0, help="default %(default)s")
    parser.add_argument("--questions", type=int, default=56, help="of replies; default %(default)s")
    parser.add_argument("--replies", type=int, default=960, help="of noise; default %(default)s")
    parser.add_argument(
        "--noisy-limit", type=int, default=120, help="in 6 s, of noise; default %(default)s"
    )
    parser.add_argument("--concurrent", type=int, default=32, help="calls under way at once")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found: dict[str, object] = {"environment": environment(1)}
    print(json.dumps(found["environment"]))
    for name in chosen.only.split(","):
        print(f"\n== {name} ==  load average {os.getloadavg()[0]:.2f}", flush=True)
        found[name] = SECTIONS[name](chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
