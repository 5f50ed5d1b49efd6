"""A device's numbers are compared with a CPU's before they are scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qaeval_core.errors import DeviceError
from qaeval_core.families import device_check
from qaeval_core.families.device_check import check_device
from qaeval_core.families.token_units import TokenUnits
from qaeval_core.models.artifact import ensure_artifact
from qaeval_core.models.record import ArtifactRequest
from qaeval_core.models.session import Session
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.text.token_runs import TokenRuns
from tiny_runner import sas_runner


class _Wrong(Session):
    """A device that is off by so much in so large a share of values."""

    offset = 0.0
    share = 1.0

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        output = super().run(inputs).copy()
        flat = output.reshape(-1)
        flat[: round(len(flat) * self.share)] += self.offset
        return output


class _Deaf(Session):
    """A device that is told no lengths: what pads a row is attended to."""

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        n_rows, width = inputs["input_ids"].shape
        return super().run({**inputs, "n_tokens": np.full(n_rows, width)})


class _Overflowing(Session):
    """A device on which half of each vector is infinite."""

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        output = super().run(inputs).copy()
        output[..., ::2] = np.inf
        return output


@pytest.fixture(scope="module")
def device(artifacts_root: Path) -> _Wrong:
    request = ArtifactRequest("token_vectors", "minilm", "fp32")
    return _Wrong(ensure_artifact(artifacts_root, request), n_threads=1)


def units_of(device: Session) -> TokenUnits:
    lengths = [3, 9, 200, 1, 30]
    runs = TokenRuns.of([range(1000, 1000 + n) for n in lengths])
    return TokenUnits(runs, device.artifact)


def test_equal_numbers_pass_and_are_reported(device: _Wrong) -> None:
    """What is in report.json says how many numbers stood the test, and how well."""
    device.offset = 0.0
    found = check_device(device, units_of(device), family="token_match")
    assert found["rows"] == 5 and found["values"] == (3 + 9 + 200 + 1 + 30 + 5 * 2) * 384
    assert found["max_abs_diff"] <= found["tolerance"]
    assert found["on_cpu_at_export"] == device.artifact.record.parity.max_abs_diff
    together = found["beside_longer_ones"]
    assert together["rows"] == 4 and together["values"] == (3 + 9 + 1 + 30 + 4 * 2) * 384
    assert together["max_abs_diff"] <= found["tolerance"]


def test_a_device_that_attends_to_padding_is_refused(device: _Wrong) -> None:
    """Alone no row is padded: only beside longer ones its numbers are other ones."""
    deaf = _Deaf(device.artifact, n_threads=1)
    with pytest.raises(DeviceError, match="19,584.*4.*QA0416"):
        check_device(deaf, units_of(device), family="token_match")


@pytest.mark.parametrize(("offset", "share"), [(0.05, 0.1), (np.nan, 0.1), (-1.0, 1.0)])
def test_other_numbers_end_the_run(device: _Wrong, offset: float, share: float) -> None:
    """A device that computes nothing, or NaN, would fill a corpus with scores of nothing."""
    device.offset, device.share = offset, share
    with pytest.raises(DeviceError, match="(?s)token_match.*QA0416"):
        check_device(device, units_of(device), family="token_match")


def test_single_values_beyond_the_tolerance_are_told_and_pass(device: _Wrong) -> None:
    """Where an argmax turns at a near-tie its cosine jumps: that is rounding, not a broken card."""
    device.offset, device.share = 0.05, 0.04
    found = check_device(device, units_of(device), family="lrm")
    assert found["share_beyond_tolerance"] == pytest.approx(0.04, abs=0.005)


def test_what_is_infinite_on_both_is_no_difference(
    device: _Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What overflows in fp16 does so everywhere: that is the model's matter, and no warning."""
    monkeypatch.setattr(device_check, "Session", _Overflowing)
    overflowing = _Overflowing(device.artifact, n_threads=1)
    found = check_device(overflowing, units_of(device), family="token_match")
    assert found["max_abs_diff"] <= found["tolerance"]
    assert found["beside_longer_ones"]["max_abs_diff"] <= found["tolerance"]


def test_a_device_that_failed_scores_no_later_shard(tmp_path: Path) -> None:
    """Pieces are queued at an actor: those behind the first were committed, unlooked at."""
    runner = sas_runner(tmp_path / "artifact")
    wrong = _Wrong(runner.plan.artifact, n_threads=1)
    wrong.offset = 5.0
    runner._session, runner._is_new_device = wrong, True
    rows = {"candidate": ["the red mill"], "references": [["the mill"]]}
    for _ in range(2):
        with pytest.raises(DeviceError, match="QA0416"):
            runner.score(rows)
    wrong.offset = 0.0
    runner.score(rows)
    assert not runner._is_new_device


def test_devices_are_of_this_run_and_in_no_commit() -> None:
    """A commit has the same bytes on every card; each worker's device is in the report once."""
    stats = PassStats(n_rows=3, devices=[{"gpu": {"name": "A"}}])
    assert stats.counts_json() == PassStats(n_rows=3).counts_json()
    stats.add(PassStats(devices=[{"gpu": {"name": "B"}}]))
    assert [each["gpu"]["name"] for each in stats.devices] == ["A", "B"]
    assert PassStats.from_json(stats.counts_json()).devices == []
