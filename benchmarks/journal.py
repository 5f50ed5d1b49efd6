"""Benchmark of the journal in an object store: replies a second, by how long a reply lingers.

The store is the tests' S3 server behind a proxy that adds 30 ms to each request, the language model
the tests' server; both are processes or threads of this machine, and their CPU time counts too. A
journal on the disk is beside them.

Run ``python -m benchmarks.journal``. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from benchmarks.measure import environment
from qaeval_core.llm.asker import Asker
from qaeval_core.llm.batches import BatchLog
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor import Governor
from qaeval_core.llm.governor_client import GovernorClient, in_process
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.limits import Limits, Prices

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from llm_server import LlmServer
from s3_proxy import S3Proxy
from s3_server import S3Server, s3_credentials

_LINGERS_S = (None, 0.0, 0.1, 0.25)  # None: on the disk


class _Timed(Journal):
    """A journal that notes how long each put took."""

    waits_s: list[float]

    def put_soon(self, entry: JournalEntry) -> Future[None]:
        started_s = time.perf_counter()
        stored = super().put_soon(entry)
        stored.add_done_callback(lambda _: self.waits_s.append(time.perf_counter() - started_s))
        return stored


async def _ask(server: LlmServer, journal: Journal, *, n: int, n_at_once: int) -> None:
    limits = Limits()
    asker = Asker(
        ChatClient(Endpoint(server.base_url, "m", {"max_tokens": 128})),
        GovernorClient(in_process(Governor(limits)), limits=limits, budget=Budget()),
        journal,
        prices=Prices(),
        max_concurrent=n_at_once,
    )
    prompts = ([{"role": "user", "content": f"Which house is number {i}?"}] for i in range(n))
    await asyncio.gather(*(asker.ask(prompt, n_prompt_tokens=18) for prompt in prompts))
    await asker.aclose()


def _measured(folder: str, linger_s: float | None, chosen: argparse.Namespace) -> dict[str, float]:
    with LlmServer(latency_s=chosen.latency_s) as server:
        journal = _Timed(folder, linger_s=linger_s or 0.0)
        journal.waits_s = []
        started_s = time.perf_counter()
        asyncio.run(_ask(server, journal, n=chosen.replies, n_at_once=chosen.concurrent))
        wall_s = time.perf_counter() - started_s
    journal.close()
    log = journal._log
    n_puts = log.n_puts if isinstance(log, BatchLog) else 0
    return {
        "replies_per_s": chosen.replies / wall_s,
        "puts_per_s": n_puts / wall_s,
        "replies_a_put": chosen.replies / n_puts if n_puts else 0.0,
        "wait_ms": 1e3 * statistics.mean(journal.waits_s),
        "most_wait_ms": 1e3 * max(journal.waits_s),
        "most_unwritten": log.most_unwritten if isinstance(log, BatchLog) else 0,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask with each linger."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journal")
    parser.add_argument("--replies", type=int, default=1500, help="default %(default)s")
    parser.add_argument("--concurrent", type=int, default=64, help="default %(default)s")
    parser.add_argument("--latency-s", type=float, default=0.4, help="default %(default)s")
    parser.add_argument("--delay-s", type=float, default=0.03, help="default %(default)s")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found: dict[str, object] = {"environment": environment(1)}
    print(f"{chosen.replies} replies, {chosen.concurrent} calls at once of {chosen.latency_s} s")
    print("linger   replies/s   PUT/s   replies a PUT   wait ms, mean / max   most unwritten")
    with (
        s3_credentials(),
        S3Server() as store,
        S3Proxy(store.port) as proxy,
        tempfile.TemporaryDirectory() as disk,
    ):
        store.make_bucket("bucket")
        proxy.delay_s = chosen.delay_s
        for linger_s in _LINGERS_S:
            name = "disk" if linger_s is None else f"{linger_s:g} s"
            folder = disk if linger_s is None else proxy.uri(f"bucket/{linger_s:g}/journal")
            own = _measured(folder, linger_s, chosen)
            found[name] = own
            print(
                f"{name:<8}{own['replies_per_s']:10.1f}{own['puts_per_s']:8.1f}"
                f"{own['replies_a_put']:16.1f}{own['wait_ms']:14.0f} / {own['most_wait_ms']:.0f}"
                f"{own['most_unwritten']:17,.0f}"
            )
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
