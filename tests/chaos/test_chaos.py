"""Faults of all kinds on four nodes of this machine: runs end whole, or say in one line why not.

Each part is fifteen faults by a seed, so that one that was stopped is one to run again. Four parts
are sixty faults, and every kind. A fault is done to a run of 60,000 rows whose every score names
its row; then the same command is repeated until it is whole, and all its scores are compared with
those of a run that nothing disturbed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

import tiny_artifacts
from chaos_cluster import Cluster
from chaos_corpus import WORDS, write_corpus
from chaos_faults import HANG_S, KINDS, SECOND_KINDS, Scene, clock_library
from helpers import REPOSITORY, may_hide_folders
from memory_groups import may_make_groups
from qaeval_core.storage.path import as_path
from s3_server import S3Server, s3_credentials

pytestmark = [
    pytest.mark.long,
    pytest.mark.ray,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not may_hide_folders(), reason="no right to make mount namespaces"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler for another clock"),
]
N_ROWS = 60_000
N_NODES = 4
N_FAULTS = 15
N_SEEDS = 4
_DISK_MB = 200
_REPEATS = 7
METRICS = "f1,rouge_l,meteor,cider,sas"


def write_model(folder: Path) -> None:
    """Write an artifact whose score is the sum of a pair's token ids: it names the row."""
    vocab = ["[PAD]", "[CLS]", "[SEP]", *WORDS]
    ids = {word: i for i, word in enumerate(vocab)}
    words = Tokenizer(models.WordLevel(ids, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    proto = onnx.load_from_string(tiny_artifacts.sum_of_ids())
    for name in ("n_tokens", "second_start"):
        proto.graph.input.append(
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n_pairs"])
        )
    inputs = [
        {"name": name, "dtype": "int64", "shape": ["n_pairs", "n_tokens"][:n_axes]}
        for name, n_axes in (("input_ids", 2), ("n_tokens", 1), ("second_start", 1))
    ]
    tiny_artifacts.make_artifact(
        folder,
        model=proto.SerializeToString(),
        tokenizer=words.to_str().encode(),
        inputs=inputs,
        vocab=len(vocab),
        activation="identity",
    )


@dataclass
class Stage:
    """What all faults stand on."""

    cluster: Cluster
    folder: Path
    disk: Path
    s3: S3Server
    environment: Mapping[str, str]
    clock: Path
    wanted: Mapping[str, pa.Table]

    def words(self, out: str) -> list[str]:
        return [
            *("score", str(self.disk / "data"), "--out", out, "--metrics", METRICS),
            *("--set", "sas.cross_encoder=gpt2", "--column", "references=reference"),
            # A task joins 4,000 rows: three a file.
            *("--rows-per-shard", "250", "--set", "scoring.progress_s=0.5"),
            *("--set", "scoring.retry_storage_s=25", "--set", "cluster.no_progress_s=60"),
        ]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    # Short, and not pytest's: the path of a Unix socket ends at 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="qc", dir="/tmp"))
    disk = folder / "d"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "none", disk]
    with s3_credentials(), S3Server() as s3:
        s3.make_bucket("chaos")
        subprocess.run(mount, check=True)
        try:
            write_corpus(disk / "data", n_rows=N_ROWS, n_words=30)
            write_model(folder / "artifacts" / "pair_score-gpt2-fp32")
            own = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "QAEVAL_"))}
            own |= {
                "QAEVAL_ARTIFACTS": str(folder / "artifacts"),
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONUNBUFFERED": "1",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}",
            }
            cluster = Cluster(folder, N_NODES, own)
            made = Stage(cluster, folder, disk, s3, own, clock_library(folder), {})
            alone = [sys.executable, "-m", "qaeval", *made.words(str(folder / "alone")), "--local"]
            done = subprocess.run(alone, env=own, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.wanted = {
                path.name: pq.read_table(path) for path in (folder / "alone" / "scores").iterdir()
            }
            try:
                yield made
            finally:
                cluster.stop()
        finally:
            subprocess.run(["umount", "-l", disk], check=False)
            shutil.rmtree(folder, ignore_errors=True)


def compared(out: str, wanted: Mapping[str, pa.Table]) -> dict[str, int]:
    """Count rows that are lost, doubled, of another row, or quarantined."""
    counts = dict.fromkeys(("lost", "doubled", "mixed", "quarantined"), 0)
    for name, reference in wanted.items():
        path = as_path(out) / "scores" / name
        if not path.is_file():
            counts["lost"] += reference.num_rows
            continue
        own = pq.read_table(path.source())
        ids, ours = reference["id"].to_pylist(), own["id"].to_pylist()
        counts["lost"] += len(set(ids) - set(ours))
        counts["doubled"] += len(ours) - len(set(ours))
        if ids != ours:
            counts["mixed"] += sum(a != b for a, b in zip(ids, ours, strict=False))
            continue
        is_out = np.array([reason is not None for reason in own["quarantine_reason"].to_pylist()])
        is_bad = np.zeros(len(ids), bool)
        for column in reference.column_names:
            if pa.types.is_floating(reference.schema.field(column).type):
                a, b = (table[column].to_numpy(zero_copy_only=False) for table in (reference, own))
                is_near = np.abs(a - b) <= 1e-5 * np.maximum(1, np.abs(a))
                is_bad |= ~(is_near | (np.isnan(a) & np.isnan(b)))
        counts["quarantined"] += int(is_out.sum())
        counts["mixed"] += int((is_bad & ~is_out).sum())
    return counts


def play(scene: Scene, kind: str) -> tuple[list[int], list[str]]:
    """Do a fault to a run, perhaps a second one, and repeat the run until it is whole.

    Returns
    -------
    (list of int, list of str)
        Exit codes in order, and what went against the promise.
    """
    wrong: list[str] = []
    scene.driver = scene.start()
    done = scene.until_work(150)
    if done:
        KINDS[kind](scene)
        if scene.is_alive() and scene.drawn.random() < 0.5 and scene.until_work(20):
            second = scene.drawn.choice(SECOND_KINDS)
            scene.notes.append(second.__name__)
            second(scene)
    exits: list[int] = []
    for _ in range(_REPEATS):
        try:
            code = scene.driver.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            wrong.append("hangs")
            scene.kill()
            code = -9
        exits.append(code)
        may_be_silent = scene.is_killed or code in (0, -signal.SIGINT)
        if not may_be_silent and not scene.is_told():
            wrong.append(f"exit {code} without a message")
        if code not in (0, 1, -signal.SIGINT, -signal.SIGKILL):
            wrong.append(f"exit {code}")
        for node in scene.blind:
            scene.cluster.family(node)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
            node.wait(timeout=60)
        scene.blind.clear()
        if code == 0:
            return exits, wrong
        scene.cluster.heal()
        scene.driver = scene.start()
        scene.until_work(60)
    return exits, [*wrong, "never whole"]


@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_no_fault_loses_a_row_hangs_or_ends_without_a_word(stage: Stage, seed: int) -> None:
    drawn = random.Random(seed)
    may_group = may_make_groups()
    kinds = [kind for kind in KINDS if may_group or not kind.startswith("no_memory")]
    wrong: list[str] = []
    for number in range(N_FAULTS):
        kind = kinds[(seed * N_FAULTS + number) % len(kinds)]
        stage.cluster.heal()
        tag = f"{seed}-{number}-{kind}"
        in_bucket = kind.startswith("s3")
        out = stage.s3.uri(f"chaos/{tag}") if in_bucket else str(stage.disk / tag)
        environment: dict[str, str] = {}
        if kind.startswith("clock"):
            (stage.folder / "clock").write_text("0")
            environment = {
                "LD_PRELOAD": str(stage.clock),
                "CHAOS_CLOCK": str(stage.folder / "clock"),
            }
        log = stage.folder / f"{tag}.log"
        log.touch()
        scene = Scene(
            cluster=stage.cluster,
            words=stage.words(out),
            environment=environment,
            log=log,
            drawn=drawn,
            folder=stage.folder,
            disk=stage.disk,
            s3=stage.s3,
        )
        began = time.monotonic()
        try:
            exits, own = play(scene, kind)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            exits, own = [], [f"{type(error).__name__}: {error}"]
        finally:
            scene.kill()
            for other in scene.others:
                if other.poll() is None:
                    own.append("another run had to be killed")
                    for one in psutil.Process(other.pid).children(recursive=True):
                        one.kill()
                    other.kill()
                    other.wait()
        counts = compared(out, stage.wanted)
        own += [f"{n} rows {what}" for what, n in counts.items() if n]
        passed_s = time.monotonic() - began
        told = f"{kind}, {', '.join(scene.notes) or 'alone'}: exits {exits}, {passed_s:.0f} s"
        print(f"{told}: {'; '.join(own) or 'whole'}", flush=True)
        if own:
            print(log.read_text(errors="replace")[-3_000:], flush=True)
            wrong.append(f"{kind}: {'; '.join(own)}")
        shutil.rmtree(stage.disk / tag, ignore_errors=True)
    assert not wrong, wrong
