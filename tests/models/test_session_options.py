"""How ONNX Runtime is told to run a graph, read back from its own options."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from qaeval_core.errors import DeviceError
from qaeval_core.models import onnx_runtime as engine
from qaeval_core.models.artifact import load_artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.session import Session
from tiny_artifacts import make_artifact

_SPINNING = "session.intra_op.allow_spinning"


@pytest.fixture
def options_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Options that a session hands over, also where there is no such device."""
    artifact = load_artifact(make_artifact(tmp_path / "artifact"))
    made: list[ort.SessionOptions] = []
    make = engine._session_options
    monkeypatch.setattr(
        engine, "_session_options", lambda *args, **kw: made.append(make(*args, **kw)) or made[-1]
    )

    def find(device: Device, n_threads: int) -> ort.SessionOptions:
        with contextlib.suppress(DeviceError):
            Session(artifact, device=device, n_threads=n_threads)
        return made[-1]

    return find


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_session_keeps_patterns_or_the_scores_of_all_layers(
    options_of: Any, device: Device
) -> None:
    """Either one takes gigabytes of a device at 16,384 tokens, and no score tells of it."""
    found = options_of(device, 2)
    assert not found.enable_mem_pattern
    assert found.execution_order == ort.ExecutionOrder.PRIORITY_BASED
    assert found.enable_cpu_mem_arena
    assert found.inter_op_num_threads == 1


@pytest.mark.parametrize(("device", "n_threads"), [("cpu", 8), ("cuda", 2)])
def test_threads_beside_a_gpu_are_few_and_do_not_spin(
    options_of: Any, device: Device, n_threads: int
) -> None:
    """They take time from who tokenizes; on a CPU all of an actor's threads compute, and spin."""
    found = options_of(device, 8)
    assert found.intra_op_num_threads == n_threads
    if device == "cuda":
        assert found.get_session_config_entry(_SPINNING) == "0"
    else:
        with pytest.raises(RuntimeError, match=_SPINNING):
            found.get_session_config_entry(_SPINNING)


def test_one_thread_beside_a_gpu_stays_one(options_of: Any) -> None:
    """Two are a limit: an actor that reserves one CPU has no second one."""
    assert options_of("cuda", 1).intra_op_num_threads == 1


def test_a_limit_of_batches_takes_one_thread_for_all_of_them(tmp_path: Path) -> None:
    """One for each batch took more of the CPU than all else that is done for it."""
    session = Session(load_artifact(make_artifact(tmp_path / "a")), n_threads=1, max_batch_s=600)
    before = threading.active_count()
    for _ in range(5):
        session.run({"input_ids": np.ones((1, 3), np.int64)})
        assert threading.active_count() == before + 1
