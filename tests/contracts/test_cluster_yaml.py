"""cluster.yaml: what `ray up` would refuse, and what must never be on a cluster."""

from __future__ import annotations

import copy
import re
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from helpers import REPOSITORY

PATH = REPOSITORY / "cluster.yaml"

SECRETS = {
    "AWS key id": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "AWS secret key": r"(?i)aws_?(secret|credentials|session)",
    "private key": r"-----BEGIN",
    "Ray token": r"\b[0-9a-f]{64}\b|RAY_AUTH_TOKEN\s*[=:]",
    "key of a hub or a language model": r"\b(hf_|sk-|ghp_)\w{16,}",
}


@pytest.fixture
def config() -> dict[str, Any]:
    """The file as Ray reads it."""
    return yaml.safe_load(PATH.read_text(encoding="utf-8"))


@pytest.fixture
def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """The file with Ray's defaults filled in: what runs on the nodes."""
    return prepare_config(config)


def head_commands(prepared: dict[str, Any]) -> list[str]:
    return prepared["head_setup_commands"] + prepared["head_start_ray_commands"]


def worker_commands(prepared: dict[str, Any]) -> list[str]:
    return prepared["worker_setup_commands"] + prepared["worker_start_ray_commands"]


def extras(commands: list[str]) -> set[str]:
    """Return the extras of this project that commands install."""
    return {
        extra
        for found in re.findall(r"\.\[([\w,]+)\]", "\n".join(commands))
        for extra in found.split(",")
    }


def test_ray_accepts_the_file(prepared: dict[str, Any]) -> None:
    """The validator that `ray up` runs first."""
    validate_config(prepared)


def _misspell(config: dict[str, Any]) -> None:
    config["idle_timeout_minuets"] = 5


def _lose_the_head(config: dict[str, Any]) -> None:
    config["head_node_type"] = "haed"


def _break_a_type(config: dict[str, Any]) -> None:
    config["available_node_types"]["gpu"]["resources"]["GPU"] = "one"


def _ask_for_too_many(config: dict[str, Any]) -> None:
    config["available_node_types"]["gpu"]["min_workers"] = config["max_workers"] + 1


@pytest.mark.parametrize("damage", [_misspell, _lose_the_head, _break_a_type, _ask_for_too_many])
def test_ray_refuses_a_broken_copy(config: dict[str, Any], damage: Any) -> None:
    """A validator that accepts anything would make the test above worthless."""
    broken = copy.deepcopy(config)
    damage(broken)
    with pytest.raises((jsonschema.ValidationError, ValueError)):
        validate_config(prepare_config(broken))


def test_the_dashboard_listens_on_the_head_alone(prepared: dict[str, Any]) -> None:
    """On 0.0.0.0 the job API would offer the network to run code; Ray's own default is that."""
    starts = [line for line in head_commands(prepared) if "ray start --head" in line]
    hosts = [host for line in starts for host in re.findall(r"--dashboard-host[= ](\S+)", line)]
    assert hosts == ["127.0.0.1"]
    assert "0.0.0.0" not in PATH.read_text(encoding="utf-8")


def test_nodes_ask_for_a_token(prepared: dict[str, Any]) -> None:
    """Without one, whoever reaches a port of Ray runs code on every node."""
    for commands in (head_commands(prepared), worker_commands(prepared)):
        assert any("RAY_AUTH_MODE=token" in line for line in commands)
    assert prepared["file_mounts"]["/home/ubuntu/.ray/auth_token"] == "~/.ray/auth_token"


@pytest.mark.parametrize("kind", SECRETS)
def test_no_secret_is_in_the_file(kind: str) -> None:
    """The file is public."""
    assert re.search(SECRETS[kind], PATH.read_text(encoding="utf-8")) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AWS key id", "AKIA" + "ABCDEFGH12345678"),
        ("AWS secret key", "aws_secret_access_key: abc"),
        ("private key", "-----BEGIN RSA PRIVATE KEY-----"),
        ("Ray token", "export RAY_AUTH_TOKEN=abc"),
        ("key of a hub or a language model", "hf_" + "a" * 34),
    ],
)
def test_a_secret_would_be_found(kind: str, text: str) -> None:
    """A pattern that matches nothing would make the test above worthless."""
    assert re.search(SECRETS[kind], text)


def test_no_node_gets_both_builds_of_onnx_runtime(prepared: dict[str, Any]) -> None:
    """They are one module: side by side, the GPU build falls back to the CPU in silence."""
    head, worker = head_commands(prepared), worker_commands(prepared)
    assert extras(head) == {"all"} and "onnxruntime-gpu" not in " ".join(head)
    assert extras(worker) == {"cloud"}
    assert "'onnxruntime-gpu[cuda,cudnn]'" in " ".join(worker)


def test_the_head_takes_no_work(config: dict[str, Any]) -> None:
    """A scoring actor on the head slows the driver, and can take the whole cluster with it."""
    assert config["available_node_types"]["head"]["resources"] == {"CPU": 0}
    assert any("--num-cpus=0" in line for line in config["head_start_ray_commands"])


def test_commands_are_shell_that_ray_can_wrap(prepared: dict[str, Any]) -> None:
    """Ray runs `... && (command)`: a comment at the end of one would swallow the bracket."""
    lines = prepared["initialization_commands"] + head_commands(prepared)
    for line in lines + worker_commands(prepared):
        checked = subprocess.run(
            ["bash", "-n", "-c", f"true && ({line})"], capture_output=True, text=True
        )
        assert checked.returncode == 0, f"{line}\n{checked.stderr}"


def test_mounted_files_are_there(config: dict[str, Any]) -> None:
    """A renamed folder would be found missing only when a cluster starts."""
    sources = [path for path in config["file_mounts"].values() if not path.startswith("~")]
    assert [path for path in sources if not (REPOSITORY / path).exists()] == []
    assert {"qaeval_core", "jobs", "export", "pyproject.toml", "constraints.txt"} <= set(sources)
