"""A Ray of ours takes no call without a token, and one of others that does is named."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from helpers import REPOSITORY

_RUN = """
import os, stat, sys
from pathlib import Path
import ray
from qaeval.on_ray import cluster
from qaeval_core.configure import ClusterSection
with cluster.connected(ClusterSection()):
    context = ray.get_runtime_context()
    import grpc
    with grpc.insecure_channel(context.gcs_address) as channel:
        try:
            call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
            print("anybody:", len(call(b"", timeout=9)))
        except grpc.RpcError as error:
            print("anybody:", error.code().name)
    mode = ray.remote(lambda: os.environ.get("RAY_AUTH_MODE"))
    print("mode:", ray.get(mode.remote()))
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    print("reachable:", all(os.stat(p).st_mode & 0o005 for p in [session, *session.parents][:-2]))
    longest = max(len(str(p)) for p in (session / "sockets").iterdir())
    print("socket:", longest <= 107)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [pytest.param({}, marks=pytest.mark.long), {"RAY_AUTH_MODE": "disabled"}]
)
def test_a_local_cluster_takes_no_call_without_a_token(given: dict[str, str]) -> None:
    """Ray below 2.53 let anyone in the network run code while a run lived, token or not."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        env={**environment, **given, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ") for line in done.stdout.splitlines())
    assert said == {
        "anybody": "UNAUTHENTICATED",
        "mode": "token",
        "reachable": "False",
        "socket": "True",
    }


def test_the_folder_of_a_local_cluster_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own is 0777: a neighbor could put a socket of his own into the place of ours."""
    from qaeval.on_ray.local_ray import private_folder

    base = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    folder = private_folder()
    assert folder == private_folder() == base / f"qaeval-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    private_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()
    folder.symlink_to(tmp_path)
    other = private_folder()
    assert other != folder and stat.S_IMODE(other.stat().st_mode) == 0o700
    other.rmdir()
    folder.unlink()
    base.rmdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    assert private_folder().parent == Path("/tmp")


def test_an_open_cluster_is_named_and_an_own_one_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever connects to a cluster without a lock should know it."""
    from qaeval.on_ray import cluster
    from qaeval_core.errors import RunError

    class Context:
        gcs_address = "127.0.0.1:9"

    monkeypatch.setattr(cluster.ray, "get_runtime_context", Context)
    monkeypatch.setattr(cluster, "takes_any_call", lambda _: True)
    cluster._check_door("10.0.0.1:6379")
    assert "10.0.0.1:6379 takes calls without a token" in capsys.readouterr().err
    with pytest.raises(RunError, match="QA0501"):
        cluster._check_door(None)
    monkeypatch.undo()
    assert not cluster.takes_any_call("127.0.0.1:9")


def test_versions_of_ray_without_the_lock_are_not_installed() -> None:
    """The token mode came with 2.52."""
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (ray,) = [name for name in project["dependencies"] if name.startswith("ray")]
    assert ray == "ray[data,default]>=2.52"
