"""A node that does not see what a run needs: nothing is lost to it, and nothing is paid there.

The second node is a raylet of this machine in a mount namespace of its own, with an empty file
system over a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from free_ports import free_ports
from helpers import (
    REPOSITORY,
    assert_same_scores,
    may_hide_folders,
    qaeval,
    read_scores,
    short_sample,
    wait_until,
    write_parquet,
)
from llm_server import LlmServer
from naco_jobs import many, settings
from qaeval.on_ray import pipeline
from qaeval.on_ray.actors import ScorePieces
from qaeval.on_ray.nodes import Nodes
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.errors import BlindNodeError, RunError
from qaeval_core.models.open_vino import Bf16Engine, openvino_version
from qaeval_core.planning.job import Job, make_job, read_inputs
from qaeval_core.running.local_executor import LocalPieceExecutor
from qaeval_core.running.visibility import Sight
from qaeval_core.scoring.run import run_job
from qaeval_core.storage.path import as_path
from qaeval_core.store.store import Mark
from ray_head import BIN, Head, ray_start, running_head
from s3_server import S3Server
from word_jobs import is_whole, n_quarantined, request, rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(not may_hide_folders(), reason="no right to make mount namespaces"),
    # Ray Data warns of its own defaults while it copies its context.
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}Warning")
        for kind in ("Deprecation", "Future", "Resource", "User")
    ),
]
N_ROWS = 3_000


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    artifacts = {"QAEVAL_ARTIFACTS": str(tmp_path_factory.mktemp("nodes"))}
    with running_head("disabled", variables=artifacts) as running:
        yield running


@contextlib.contextmanager
def second_node(
    head: Head, *, hidden: Path | None = None, cpuinfo: Path | None = None, n_cpus: int = 4
) -> Iterator[None]:
    """Add a node that finds nothing in a folder, or another CPU."""
    (agent_port,) = free_ports(1)
    cover = f"mount -t tmpfs none '{hidden}' && " if hidden is not None else ""
    cover += f"mount --bind '{cpuinfo}' /proc/cpuinfo && " if cpuinfo is not None else ""
    command = (
        f"{cover}exec '{BIN / 'ray'}' start --block --address={head.address} --num-cpus={n_cpus} "
        f"--num-gpus=0 --disable-usage-stats --object-store-memory={200 << 20} "
        f"--node-ip-address=127.0.0.1 --dashboard-agent-listen-port={agent_port} "
        "--min-worker-port=0 --max-worker-port=0"
    )
    n_before = head.n_nodes()
    process = ray_start(
        ["unshare", "-m", "sh", "-c", command],
        environment=head.environment,
        log=head.folder / "second.log",
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
        wait_until(lambda: head.n_nodes() <= n_before, timeout_s=90)


def score(head: Head, given: dict[str, Any], *, expect: int) -> str:
    words = [f"--set={key}={value}" for key, value in given.items() if "paths" not in key]
    environment = {"RAY_AUTH_MODE": "disabled"}
    os.environ.update(environment)
    try:
        paths = given["input.paths"]
        return qaeval("score", *paths, *words, "--address", head.address, expect=expect, apart=True)
    finally:
        for name in environment:
            del os.environ[name]


@pytest.mark.long
def test_a_node_that_does_not_see_is_refused_before_any_work(head: Head, tmp_path: Path) -> None:
    """OUT: rows went missing in each run, for ever. Input: 118,080 of 200,000 rows quarantined.

    Journal: 438 calls were paid for on a node that kept the replies to itself, then 438 again.
    """
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    seen = write_parquet(tmp_path / "input.parquet", rows())
    unseen = write_parquet(hidden / "input.parquet", rows())
    cider = {
        "metrics.cider.metric": "cider",
        "cider.document_frequencies": frequencies(hidden),
    }
    refused = {
        str(hidden / "out"): request(seen, hidden / "out"),
        str(unseen): request(unseen, tmp_path / "unseen"),
        str(hidden / "frequencies.parquet"): request(seen, tmp_path / "words") | cider,
    }
    with LlmServer() as server:
        asked = settings(server, tmp_path / "naco", many(40), naco__journal_path=hidden / "journal")
        refused[str(hidden / "journal")] = asked | {"metrics.naco.metric": "naco"}
        with second_node(head, hidden=hidden):
            for path, given in refused.items():
                said = score(head, given, expect=1)
                last = said.splitlines()[-2]
                assert last.startswith("error: node ") and f" does not see {path}" in last, said
                out = Path(given["output.path"])
                assert not list(out.glob("families/*/*.parquet"))
                assert not (out / "_SUCCESS").exists()
        assert server.stats()["n_calls"] == 0
        for given in refused.values():
            score(head, given, expect=0)
            assert (Path(given["output.path"]) / "_SUCCESS").exists()
        assert server.stats()["n_ok"] >= 40
        assert server.stats()["n_after_ok"] == 0
    assert is_whole(hidden / "out")


def frequencies(folder: Path) -> str:
    """Return a file of document frequencies, made by a run of its own."""
    source = write_parquet(folder.parent / "corpus.parquet", rows())
    given = request(source, folder.parent / "corpus", metrics__cider__metric="cider")
    config = load_config(overrides=given)
    job = make_job(config, read_inputs(config), device="cpu")
    run_job(job, LocalPieceExecutor(), say=lambda _: None)
    (made,) = (folder.parent / "corpus" / "corpus").glob("*.parquet")
    return str(shutil.copy(made, folder / "frequencies.parquet"))


class SlowPieces(ScorePieces):
    """Pieces that take a while: nodes join and leave in the middle of a run."""

    def __call__(self, batch: Any) -> Any:
        time.sleep(1.0)
        with contextlib.suppress(OSError):  # Where the folder is hidden.
            Path(self._store.out).with_name(f"node-{self._lookout._node}").touch()
        return super().__call__(batch)


@pytest.fixture
def connected(head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(address=head.address, logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.long
def test_a_node_that_joins_later_and_is_blind_is_left_out(
    head: Head, connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces must come back, and no others follow them; an exception would end the run."""
    import sys

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(pipeline, "ScorePieces", SlowPieces)
    (tmp_path / "out").mkdir()
    source = write_parquet(tmp_path / "input.parquet", rows(N_ROWS))
    config = load_config(overrides=request(source, tmp_path / "out" / "results"))
    job = make_job(config, read_inputs(config), device="cpu")
    said: list[str] = []
    # Two actors of three CPUs each: the second one waits for a node.
    layout = pipeline.ActorLayout(2, 1, 3.0, 0.0)
    executor = pipeline.RayExecutor(layout, words=layout, say=said.append)
    failure: list[BaseException] = []

    def score() -> None:
        try:
            run_job(job, executor, say=said.append)
        except BaseException as error:
            failure.append(error)

    run = threading.Thread(target=score)
    run.start()
    with second_node(head, hidden=tmp_path / "out"):
        run.join(timeout=150)
    assert not run.is_alive()
    assert not failure, failure
    assert is_whole(tmp_path / "out" / "results", N_ROWS)
    assert n_quarantined(tmp_path / "out" / "results") == 0
    (named,) = [line for line in said if "is skipped" in line]
    assert "does not see" in named and str(tmp_path / "out") in named


def test_one_blind_node_of_three_is_left_out_and_asked_again(
    head: Head, connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler cannot take it away: seven runs in a row were refused for one of many."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    source = write_parquet(tmp_path / "input.parquet", rows())
    given = request(source, hidden / "out", metrics__cider__metric="cider")  # Two passes and more.
    look, n_asked = Nodes._answers, list[int]()

    def count(self: Nodes, nodes: Any) -> Any:
        n_asked.append(len(nodes))
        return look(self, nodes)

    monkeypatch.setattr(Nodes, "_answers", count)
    with second_node(head, hidden=None), second_node(head, hidden=hidden):
        wait_until(lambda: head.n_nodes() == 3, timeout_s=60)
        config = load_config(overrides=given)
        layout = pipeline.ActorLayout(2, 1, 1.0, 0.0)
        refusing = pipeline.RayExecutor(layout, words=layout, may_leave_out=False)
        with pytest.raises(BlindNodeError, match="QA0504"):
            run_job(make_job(config, read_inputs(config), device="cpu"), refusing, say=print)
        assert not list(hidden.glob("out/families/*/*.parquet"))
        n_asked.clear()
        said: list[str] = []
        executor = pipeline.RayExecutor(layout, words=layout, say=said.append)
        run_job(make_job(config, read_inputs(config), device="cpu"), executor, say=said.append)
    (named,) = [line for line in said if "is skipped" in line]
    assert f"it does not see {hidden / 'out'}" in named
    assert n_asked[0] == 3 and len(n_asked) > 2 and set(n_asked[1:]) == {1}
    assert is_whole(hidden / "out")


def cpu_with(flags: str, path: Path) -> Path:
    path.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
    return path


def test_nodes_whose_cpus_lack_bf16_are_left_out_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would compute it in fp32: the scores of a run would be of two kinds."""
    able, unable = cpu_with("amx_bf16", tmp_path / "able"), cpu_with("", tmp_path / "unable")
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nexec unshare -m sh -c 'mount --bind {able} /proc/cpuinfo && "
        f'exec {BIN / "python"} "$@"\' python "$@"\n'
    )
    python.chmod(0o755)
    said: list[str] = []
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    sight = Sight(Mark(".none.mark"), (), bf16=Bf16Engine(openvino_version(), "amx_bf16"))
    with running_head("disabled", python=python) as head:
        ray.init(address=head.address, logging_level="ERROR", log_to_driver=False)
        try:
            with second_node(head, cpuinfo=unable):
                wait_until(lambda: head.n_nodes() == 2, timeout_s=60)
                with pytest.raises(BlindNodeError, match="amx_bf16.*QA0504"):
                    Nodes(said.append).begin(sight)  # Half of the nodes.
                with second_node(head, cpuinfo=able):
                    wait_until(lambda: head.n_nodes() == 3, timeout_s=60)
                    nodes = Nodes(said.append)
                    nodes.begin(sight)
                    assert nodes.ray_options()
                    with pytest.raises(BlindNodeError, match="amx_bf16.*QA0504"):
                        Nodes(said.append, may_leave_out=False).begin(sight)
        finally:
            ray.shutdown()
    (named,) = said
    assert "is skipped: it does not see the driver's CPU flag amx_bf16" in named


@pytest.fixture
def bucket(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store, and a connected cluster that knows its credentials."""
    store.make_bucket("silence")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with running_head("disabled") as own:
        ray.init(address=own.address, logging_level="ERROR", log_to_driver=False)
        yield store
        ray.shutdown()


@pytest.mark.long
@pytest.mark.parametrize("is_back", [True, False])
def test_a_store_that_does_not_answer_makes_no_node_blind(
    bucket: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    """Three of four nodes were given up in an outage of ten seconds, for the rest of the run."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    out = bucket.uri(f"silence/{is_back}")
    patience = 120.0 if is_back else 4.0
    config = load_config(overrides=request(source, out, scoring__retry_storage_s=patience))
    job = make_job(config, read_inputs(config), device="cpu")
    layout = pipeline.ActorLayout(2, 1, 1.0, 0.0)
    said: list[str] = []
    executor = pipeline.RayExecutor(layout, words=layout, say=said.append)
    make = executor.make_pass

    def shut(*given: Any) -> Any:
        made = make(*given)

        def run() -> None:
            bucket.door.shut()  # Before the first worker looks.
            if is_back:
                threading.Timer(8.0, bucket.door.open).start()
            made()

        return run

    monkeypatch.setattr(executor, "make_pass", shut)
    try:
        if is_back:
            run_job(job, executor, say=said.append)
        else:
            with pytest.raises(
                RunError, match=r"tried for \d+ s \(scoring\.retry_storage_s\).*QA0507"
            ):
                run_job(job, executor, say=said.append)
    finally:
        bucket.door.open()
    assert not [line for line in said if "is skipped" in line], said
    assert (as_path(out) / "_SUCCESS").exists() == is_back


class LosingExecutor(pipeline.RayExecutor):
    """An executor in whose cluster a given file is gone once all have looked."""

    lost: Path

    def begin(self, sight: Sight) -> None:
        super().begin(sight)
        self.lost.unlink()


class ShippingExecutor(pipeline.RayExecutor):
    """An executor that tells how many artifacts were read for nodes that do not see them."""

    n_read = 0

    def _run_rounds(self, work: Any, *given: Any) -> None:
        super()._run_rounds(work, *given)
        self.n_read += ray.get(work._shipping.source.n_read.remote())


@pytest.mark.long
@pytest.mark.parametrize(
    "is_blind",
    [pytest.param(True, id="blind"), pytest.param(False, id="seeing")],
)
def test_a_node_that_joins_later_gets_the_artifacts_that_it_does_not_see(
    head: Head,
    connected: None,
    tmp_path: Path,
    tiny_settings: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    is_blind: bool,
) -> None:
    """It had none where the run began on one node; where folders are shared, all were shipped."""
    import sys

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(pipeline, "ScorePieces", SlowPieces)
    artifacts = shutil.copytree(str(tiny_settings["models.artifacts_path"]), tmp_path / "hidden")
    received = Path(head.environment["QAEVAL_ARTIFACTS"]) / "shipped"
    source = write_parquet(tmp_path / "input.parquet", pa.concat_tables([short_sample(80)] * 6))
    given = {
        **tiny_settings,
        "models.artifacts_path": str(artifacts),
        "metrics.qrelscore.metric": "qrelscore",
        "input.paths": [str(source)],
        "output.path": str(tmp_path / "out"),
        "scoring.rows_per_shard": 1,
        "cluster.address": head.address,
    }
    config = load_config(overrides=given)
    job = make_job(config, read_inputs(config), device="cpu")
    said: list[str] = []
    # Two actors of three CPUs each: the second one waits for a node.
    layout = pipeline.ActorLayout(2, 1, 3.0, 0.0)
    executor = ShippingExecutor(layout, words=layout, say=said.append)
    failure: list[BaseException] = []

    def score() -> None:
        try:
            run_job(job, executor, say=said.append)
        except BaseException as error:
            failure.append(error)

    run = threading.Thread(target=score)
    run.start()
    with second_node(head, hidden=artifacts if is_blind else None):
        run.join(timeout=240)
    assert not run.is_alive()
    assert not failure, failure
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert len(list(tmp_path.glob("node-*"))) == 2, "the second node had nothing to do"
    run_job(replace_out(config, tmp_path / "alone"), LocalPieceExecutor(), say=lambda _: None)
    assert_same_scores(read_scores(tmp_path / "out"), read_scores(tmp_path / "alone"))
    # The first of both passes may be over when the node joins.
    assert (executor.n_read > 0) == is_blind
    assert len(list(received.glob("*/artifact.json"))) == executor.n_read
    shutil.rmtree(received, ignore_errors=True)


def replace_out(config: RunConfig, out: Path) -> Job:
    """Return the job of a configuration with another OUT."""
    output = config.output.model_copy(update={"path": str(out)})
    own = config.model_copy(update={"output": output})
    return make_job(own, read_inputs(own), device="cpu")


def test_a_run_with_no_node_left_ends(head: Head, connected: None, tmp_path: Path) -> None:
    """Blind workers that wait for others to end their work would wait for ever."""
    (tmp_path / "folder").mkdir()
    given = frequencies(tmp_path / "folder")
    source = write_parquet(tmp_path / "input.parquet", rows())
    overrides = request(
        source, tmp_path / "out", metrics__cider__metric="cider", cider__document_frequencies=given
    )
    config = load_config(overrides=overrides)
    job = make_job(config, read_inputs(config), device="cpu")
    layout = pipeline.ActorLayout(2, 1, 1.0, 0.0)
    executor = LosingExecutor(layout, words=layout)
    executor.lost = Path(given)
    with pytest.raises(BlindNodeError, match=r"frequencies\.parquet.*QA0504"):
        run_job(job, executor, say=lambda _: None)
    assert not list((tmp_path / "out").glob("families/*/*.parquet"))
    assert not (tmp_path / "out" / "scores").exists()


@pytest.mark.long
def test_a_node_that_joins_late_and_shares_no_file_system_scores_into_a_bucket(
    tiny_settings: dict[str, object], tmp_path: Path, store: S3Server
) -> None:
    """Input and OUT are in the bucket; models come from the driver's node, once asked for."""
    store.make_bucket("bucket")
    root = Path(str(tiny_settings["models.artifacts_path"]))
    source = store.put(short_sample(6), "bucket/data/input.parquet")
    settings = {**tiny_settings, "cluster.actors": 1, "cluster.start_timeout_s": 120}
    words = [word for item in settings.items() for word in ("--set", "{}={}".format(*item))]
    # No node but the one to come has so many CPUs.
    own = [*words, "--metrics", "qrelscore", "--set", "cluster.cpus_per_actor=6"]
    with running_head("disabled", variables={"QAEVAL_ARTIFACTS": str(root)}) as head:
        out = store.uri("bucket/late")
        call = [BIN / "python", "-m", "qaeval.cli", "score", source, *own, "--out", out]
        process = subprocess.Popen(
            [*call, "--address", head.address],
            cwd=REPOSITORY,
            env=head.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with second_node(head, hidden=root, n_cpus=6):
            said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
    qaeval("score", source, *own, "--out", tmp_path / "out", "--local")
    found = pl.from_arrow(pq.read_table((as_path(out) / "scores" / "input.parquet").source()))
    assert_same_scores(found, read_scores(tmp_path / "out"))
    assert found["qrelscore"].null_count() == 0
