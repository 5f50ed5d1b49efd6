"""Cluster: connect to Ray or start a local one, and lay out scoring actors on it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import ray
from ray import cloudpickle
from ray._private.state import available_resources_per_node
from ray.autoscaler.sdk import request_resources
from ray.job_config import JobConfig

from qaeval.command import say
from qaeval.on_ray.address import given_address, host_and_port
from qaeval.on_ray.life import ask_alive, is_answer, watched
from qaeval.on_ray.local_ray import MEMORY, init_ray, requiring_token, start_here
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import RunError
from qaeval_core.models.cpu import available_cpus
from qaeval_core.models.engine import Device
from qaeval_core.plugins import MODULES

_CPUS_PER_ACTOR = 4
_DOOR_TIMEOUT_S = 5.0
# A head that is being started again is waited for so long.
_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class ActorLayout:
    """How many scoring actors, and what each reserves."""

    n_actors: int
    n_threads: int | None
    num_cpus: float
    num_gpus: float

    @property
    def environment(self) -> dict[str, str]:
        """What its workers must find in their environment before any library is loaded.

        Tokenizing takes as many threads as an actor has CPUs, not those of the whole node. numpy's
        BLAS need not start threads that it is told not to use (`families.blas_threads`).
        """
        if not self.num_gpus:
            return {}
        return {"RAYON_NUM_THREADS": str(self.n_threads or 1), "OMP_NUM_THREADS": "1"}


def memory_environment() -> dict[str, str]:
    """Return what workers of a cluster need of `MEMORY`; a local Ray's inherit it.

    Words grew from 583 to 691 MB in seven minutes on a cluster, and over 4 million rows to 0.87 GB
    where 0.47 is enough.
    """
    return {name: value for name, value in MEMORY.items() if name not in os.environ}


@contextlib.contextmanager
def connected(cluster: ClusterSection, metadata: Mapping[str, str] | None = None) -> Iterator[None]:
    """Connect to the cluster at ``address``, or start a local one and shut it down after.

    Parameters
    ----------
    cluster : ClusterSection
    metadata : mapping, optional
        What Ray's lists of jobs show of this one; everybody who sees the cluster reads it.
    """
    for module in MODULES:  # Of --plugin: nodes need not have them.
        cloudpickle.register_pickle_by_value(module)
    if ray.is_initialized():
        yield
        return
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:  # As `MEMORY` says, for this process.
        pa.set_memory_pool(pa.system_memory_pool())
    # Ray's core logs an error for every actor pool of Ray Data (its issue 53727); what fails here
    # comes back as an exception.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    options: dict[str, object] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address, source = given_address(cluster)
    if not (address or "").startswith("ray://"):  # Ray's client takes what JSON can say alone.
        options["job_config"] = JobConfig(metadata=dict(metadata or {}))
    if address is not None:
        _check_answers(address, source)
        options["address"] = address
    with contextlib.nullcontext() if address else requiring_token():
        if address is None:
            start_here(options)
        else:
            try:
                init_ray(options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                where = f"{address} (from {source})"
                raise RunError(f"cannot reach a Ray cluster at {where}: {error} [QA0501]") from None
        try:
            _check_door(address)
            with watched(f"the Ray cluster at {address}" if address else "the local Ray"):
                yield
        finally:
            ray.shutdown()


def _check_door(address: str | None) -> None:
    """Look whether the cluster takes calls without a token: an own one may not, others are named.

    Raises
    ------
    RunError
        If it is one that this process has started, or this process insists on tokens: it would
        refuse the cluster's calls, which takes every worker for one that nobody needs.
    """
    if not takes_any_call(ray.get_runtime_context().gcs_address):
        return
    if address is None:
        raise RunError("the local Ray accepts calls without a token, so it is not used [QA0501]")
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        raise RunError(
            f"the Ray cluster at {address} has no token, and RAY_AUTH_MODE=token in this "
            "environment asks for one. Start the cluster with tokens, or unset RAY_AUTH_MODE here "
            "[QA0501]"
        )
    say(
        f"warning: the Ray cluster at {address} takes calls without a token. Whoever can reach it "
        "can run code on it. RAY_AUTH_MODE=token closes it"
    )


def _check_answers(address: str, source: str) -> None:
    """Look whether anybody answers at an address; Ray itself goes on trying for ten minutes.

    Parameters
    ----------
    source : str
        What gave the address, for the message.

    Raises
    ------
    RunError
        If nobody does so for `_ANSWER_S`.
    """
    if address == "auto":
        return  # Ray looks it up.
    host, port = host_and_port(address)
    is_plain = not address.startswith("ray://") and os.environ.get("RAY_USE_TLS") in (None, "", "0")
    until = time.monotonic() + _ANSWER_S
    while True:
        why = _why_no_answer(host, port, is_plain=is_plain)
        if why is None:
            return
        if time.monotonic() > until:
            raise RunError(
                f"cannot reach a Ray cluster at {address} (from {source}): {why}, for "
                f"{_ANSWER_S:.0f} s. Start it, name another, or run without Ray: --local [QA0501]"
            )
        time.sleep(1.0)


def _why_no_answer(host: str, port: int, *, is_plain: bool) -> str | None:
    """Return why there is no Ray at a port; None where there is one, or may be."""
    try:
        with socket.create_connection((host, port), timeout=_DOOR_TIMEOUT_S):
            pass
    except OSError as error:
        return error.strerror or str(error)
    if not is_plain:
        return None  # Of an encrypted one no more can be seen from here.
    done = ask_alive(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _DOOR_TIMEOUT_S)
    return None if is_answer(done) else "the process that listens there is not Ray, or hangs"


def takes_any_call(gcs_address: str) -> bool:
    """Return whether a cluster answers who shows no token; False where it does not answer."""
    return ask_alive(gcs_address, _DOOR_TIMEOUT_S).exception() is None


def cluster_device(cluster: ClusterSection) -> Device:
    """Return where models run: on GPUs if the connected cluster has any, unless told."""
    if cluster.device != "auto":
        return cluster.device
    return "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"


def layout(cluster: ClusterSection, device: Device) -> ActorLayout:
    """Return how many actors the connected cluster gets.

    One per GPU, with its share of the node's CPUs less one; on CPUs one per four, or one per node
    with fewer. Every CPU node keeps one CPU unreserved: a pool that reserves all of them starves
    the cluster's light tasks in silence.
    """
    wait_for_resources(cluster, device)
    resources = ray.cluster_resources()
    if device == "cuda":
        num_cpus = _cpus_beside_a_gpu(cluster)
        n_threads = max(int(num_cpus), 1)
        return ActorLayout(cluster.actors or int(resources["GPU"]), n_threads, num_cpus, 1.0)
    node_cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    node_cpus = [cpus for cpus in node_cpus if cpus > 0]
    smallest = min(node_cpus)
    if not cluster.address and len(node_cpus) == 1:
        smallest = min(smallest, available_cpus())
    per_node = max(smallest // int(cluster.cpus_per_actor or _CPUS_PER_ACTOR), 1)
    n_threads = int(cluster.cpus_per_actor or smallest // per_node)
    n_actors = cluster.actors or per_node * len(node_cpus)
    reserved = max(n_threads - 1 / per_node, 0.5)
    total = sum(node_cpus)
    if n_actors * reserved > total:
        reserved = max(total / n_actors * 0.9, 0.1)
    return ActorLayout(n_actors, max(n_threads, 1), reserved, 0.0)


def _cpus_beside_a_gpu(cluster: ClusterSection) -> float:
    """Return the CPUs that an actor of a GPU reserves: its share of a node, or what was asked."""
    shares = []
    for node in ray.nodes():
        n_gpus = node["Resources"].get("GPU", 0) if node["Alive"] else 0
        n_cpus = node["Resources"].get("CPU", 0)
        if n_gpus >= 1:
            shares.append(max(n_cpus - 1, 0.5 * min(n_cpus, 1)) / n_gpus)
    share = float(min(shares, default=0.0))
    if not cluster.address and len(ray.nodes()) == 1:  # Its logical CPUs are more than the real.
        share = min(share, max(available_cpus() - 1, 1) / ray.cluster_resources()["GPU"])
    wanted = cluster.cpus_per_actor or (float(int(share)) if share >= 1 else share)
    return min(wanted, share)


def words_layout(cluster: ClusterSection, device: Device) -> ActorLayout:
    """Return how many actors the statistics of words get: one per CPU, on every node.

    They run on one core each, also where models run on GPUs; ``cluster.actors`` limits them where
    models run on CPUs too. Every node of a given cluster keeps one CPU for light tasks; a local
    cluster has logical ones for them.
    """
    most = cluster.actors if cluster.actors and device == "cpu" else sys.maxsize
    if not cluster.address and len(ray.nodes()) == 1:
        return ActorLayout(min(available_cpus(), _local_cpus(), most), 1, 1.0, 0.0)
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    n_actors = max(sum(max(own - 1, 1) for own in cpus if own > 0), 1)
    return ActorLayout(min(n_actors, most), 1, 0.9, 0.0)


def _local_cpus() -> int:
    return max(int(ray.cluster_resources().get("CPU", 1)) - 1, 1)


def wait_for_resources(cluster: ClusterSection, device: Device) -> None:
    """Wait until the cluster has a CPU or GPU to run on; clusters may still be scaling up."""
    wanted = "GPU" if device == "cuda" else "CPU"
    if ray.cluster_resources().get(wanted, 0) >= 1:
        return
    deadline = time.monotonic() + cluster.start_timeout_s
    # A cluster that scales from nothing starts a node only when asked.
    request_resources(bundles=[{wanted: 1}] * (cluster.actors or 1))
    try:
        while ray.cluster_resources().get(wanted, 0) < 1:
            if time.monotonic() > deadline:
                raise RunError(
                    f"the cluster has no {wanted} after {cluster.start_timeout_s:.0f} s "
                    "(cluster.start_timeout_s) [QA0503]"
                )
            time.sleep(1.0)
    finally:
        request_resources(bundles=[])  # From here on the actors themselves are the demand.


def has_room(layout: ActorLayout) -> bool:
    """Return whether a node of the connected cluster has room for one more actor."""
    return any(
        free.get("CPU", 0) >= layout.num_cpus and free.get("GPU", 0) >= layout.num_gpus
        for free in available_resources_per_node().values()
    )
