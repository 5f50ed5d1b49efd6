"""Artifacts that were damaged, changed or made up: refused by name, never loaded as they are."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qaeval_core.errors import ArtifactHashError, ArtifactMissingError, ModelError, QAEvalError
from qaeval_core.models.artifact import load_artifact
from qaeval_core.models.session import Session
from qaeval_core.text.encode import TextEncoder
from tiny_artifacts import VOCAB, endless, make_artifact, sum_of_ids, write_record

N_FLIPS = 1_000
FILES = ("artifact.json", "artifact.sha256", "model.onnx", "tokenizer.json")


def record_of(folder: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder / "artifact.json").read_text())
    return fields


def test_a_whole_artifact_runs(tmp_path: Path) -> None:
    """What the tests below refuse has to be loaded while it is whole."""
    artifact = load_artifact(make_artifact(tmp_path / "a"))
    ids = TextEncoder(artifact.tokenizer_path).encode(["the red barn"])
    output = Session(artifact, n_threads=1).run({"input_ids": np.stack(ids)})
    assert output.tolist() == pytest.approx([(3 + 6 + 5) / 10])


def test_no_flipped_bit_is_loaded(tmp_path: Path) -> None:
    """A bit in max_positions cut texts elsewhere: mean .783 became .598, under the same key."""
    folder = make_artifact(tmp_path / "a")
    contents = {name: (folder / name).read_bytes() for name in FILES}
    drawn = random.Random(0)
    for i in range(N_FLIPS):
        # The record as often as all the rest: it has the fewest bytes.
        name = "artifact.json" if i % 2 else drawn.choice(FILES)
        damaged = bytearray(contents[name])
        damaged[drawn.randrange(len(damaged))] ^= 1 << drawn.randrange(8)
        (folder / name).write_bytes(damaged)
        os.utime(folder / name, ns=(i, i))  # The clock of the disk is coarser than this loop.
        with pytest.raises((ArtifactHashError, ArtifactMissingError)):
            load_artifact(folder)
        (folder / name).write_bytes(contents[name])
        os.utime(folder / name, ns=(N_FLIPS + i, N_FLIPS + i))
    assert load_artifact(folder).record.max_positions == 512


def test_a_graph_without_an_end_is_stopped(tmp_path: Path) -> None:
    """One operator that never ends held a worker for good, and the run with it."""
    artifact = load_artifact(make_artifact(tmp_path / "a", model=endless()))
    session = Session(artifact, n_threads=1, max_batch_s=0.2)
    ids = {"input_ids": np.ones((1, 3), np.int64)}
    for _ in range(2):
        with pytest.raises(ModelError, match=r"input_ids.*\(1.*3\).*QA0414"):
            session.run(ids)


def test_a_hash_is_not_kept_where_a_file_has_its_old_time_again(tmp_path: Path) -> None:
    """Size and time of change can be set by whoever writes."""
    folder = make_artifact(tmp_path / "a")
    load_artifact(folder)
    path = folder / "model.onnx"
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    new = tmp_path / "new"
    new.write_bytes(content)
    new.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ArtifactHashError, match=r"model\.onnx.*SHA-256.*QA0406"):
        load_artifact(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_positions", n) for n in (0, 1, -5, 511)),
        ("n_layers", 1),
        ("activation", "identity"),
        ("vocab", 10**6),
        ("template", {"prefix_ids": [1], "middle_ids": [2], "suffix_ids": [3]}),
        ("bos_id", 3),
    ],
)
def test_a_changed_record_is_refused(tmp_path: Path, field: str, value: object) -> None:
    """Its hash says nothing of these fields, and each of them changes the numbers."""
    folder = make_artifact(tmp_path / "a")
    write_record(folder, {**record_of(folder), field: value}, is_sealed=False)
    with pytest.raises(ArtifactHashError, match=r"artifact\.json.*QA0406"):
        load_artifact(folder)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        *(("max_positions", n, "max_positions") for n in (0, -5, 1_000_001, 1.5)),
        ("vocab", 0, "vocab"),
        ("vocab", 2, "token id 2 is not below vocab, 2"),
        ("n_layers", -1, "n_layers"),
        ("dim", 0, "dim"),
        ("eos_id", -1, "eos_id"),
        ("bos_id", 3, "bos_id belongs to other graphs"),
        ("template", None, "template is missing"),
        ("template", {"prefix_ids": [], "middle_ids": [2], "suffix_ids": [2]}, "prefix_ids"),
        ("template", {"prefix_ids": [-1], "middle_ids": [2], "suffix_ids": [2]}, "prefix_ids"),
        ("activation", None, "activation is missing"),
        ("activation", "tanh", "activation"),
        ("pooling", "mean", "pooling belongs to other graphs"),
        ("tokenizer_hash", "0" * 64, "tokenizer_hash"),
        ("precision", "fp16", "precision"),
        ("lossy", True, "lossy"),
        ("files", {}, "tokenizer_hash"),
        ("extra", 1, "extra"),
    ],
)
def test_a_record_out_of_range_is_refused_although_it_is_sealed(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    """Whoever makes an artifact makes its checksum too: a range is the second lock."""
    folder = make_artifact(tmp_path / "a", **{field: value})
    with pytest.raises(ArtifactHashError, match=f"{said}.*QA0406"):
        load_artifact(folder)


def test_an_artifact_without_a_checksum_is_not_loaded(tmp_path: Path) -> None:
    """Otherwise whoever changes a record takes its checksum away."""
    folder = make_artifact(tmp_path / "a", is_sealed=False)
    with pytest.raises(ArtifactMissingError, match="QA0405"):
        load_artifact(folder)


def test_files_are_those_of_the_record(tmp_path: Path) -> None:
    """`files` without model.onnx let any graph in, and a graph may read weights beside it."""
    folder = make_artifact(tmp_path / "stray")
    (folder / "weights.bin").write_bytes(b"1")
    with pytest.raises(ArtifactHashError, match=r"'weights\.bin'.*QA0406"):
        load_artifact(folder)
    folder = make_artifact(tmp_path / "unlisted")
    fields = record_of(folder)
    del fields["files"]["model.onnx"]
    write_record(folder, fields)
    with pytest.raises(ArtifactHashError, match=r"model\.onnx.*QA0406"):
        load_artifact(folder)
    fields["files"] |= {"model.onnx": "0" * 64, "../model.onnx": "0" * 64}
    write_record(folder, fields)
    with pytest.raises(ArtifactHashError):
        load_artifact(folder)


def open_and_run(folder: Path, ids: list[list[int]]) -> Any:
    artifact = load_artifact(folder)
    return Session(artifact, n_threads=1).run({"input_ids": np.array(ids, dtype=np.int64)})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": b"garbage"}, r"model\.onnx.*QA0414"),
        ({"model": b"\n"}, r"model\.onnx.*QA0414"),
        (
            {"inputs": [{"name": "ids", "dtype": "int64", "shape": ["n_pairs", "n_tokens"]}]},
            "'ids'.*QA0415",
        ),
        ({"outputs": []}, "its record has.*QA0415"),
        ({"model": sum_of_ids(axes=(0,))}, r"\(3,\).*QA0414"),
        ({"outputs": [{"name": "logit", "dtype": "float32", "shape": [7]}]}, r"\(7,\).*QA0414"),
        ({"model": sum_of_ids(axes=(5,))}, r"model\.onnx.*QA0414"),
    ],
)
def test_a_wrong_graph_is_one_message(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """ONNX Runtime's own exceptions reached the user as tracebacks."""
    folder = make_artifact(tmp_path / "a", **changes)
    with pytest.raises(ModelError, match=said):
        open_and_run(folder, [[1, 2, 3], [1, 2, 4]])


@pytest.mark.parametrize("beyond", [len(VOCAB), 10**9, -1])
def test_token_ids_beyond_the_model_are_one_message(tmp_path: Path, beyond: int) -> None:
    """On a GPU a lookup beyond the table returns zeros, and so a score."""
    folder = make_artifact(tmp_path / "a")
    assert len(open_and_run(folder, [[1, len(VOCAB) - 1]])) == 1
    with pytest.raises(ModelError, match="QA0415"):
        open_and_run(folder, [[1, 2], [1, beyond]])


@pytest.mark.parametrize("content", [b"garbage", b"{}", b"[" * 100_000, b"\xff"])
def test_a_wrong_tokenizer_is_one_message(tmp_path: Path, content: bytes) -> None:
    folder = make_artifact(tmp_path / "a", tokenizer=content)
    with pytest.raises(ModelError, match=r"tokenizer\.json.*QA0418"):
        TextEncoder(load_artifact(folder).tokenizer_path)


def test_a_pattern_without_end_is_one_message(tmp_path: Path) -> None:
    """The library panics then, which is no Exception: nothing caught it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    folder = make_artifact(tmp_path / "a", tokenizer=tokenizer.to_str().encode())
    encoder = TextEncoder(load_artifact(folder).tokenizer_path)
    with pytest.raises(QAEvalError, match="QA0418"):
        encoder.encode(["a" * 200 + "!"])
