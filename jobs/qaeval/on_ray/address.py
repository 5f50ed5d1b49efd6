"""Address: which Ray cluster was asked for, and by what.

But: whether anybody answers there is looked at by ``cluster``.
"""

from __future__ import annotations

import os
import re
import sys

from qaeval.command import say
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import ConfigError, RunError

# Settings that say how work is spread: who gives one wants it spread.
_OF_CLUSTERS = {"actors", "llm_actors", "cpus_per_actor", "start_timeout_s"}
_ADDRESS = re.compile(r"(?:ray://)?(?:\[[0-9a-fA-F:.%\w]+\]|[^\s/:@\[\]]+):[0-9]{1,5}")


def given_address(cluster: ClusterSection) -> tuple[str | None, str]:
    """Return the address of the cluster to work on, None for a local one, and what gave it.

    Raises
    ------
    RunError
        If it is none: Ray would go on trying for ten minutes.
    """
    source = "cluster.address or --address" if cluster.address else "RAY_ADDRESS"
    given = cluster.address or os.environ.get("RAY_ADDRESS")
    if not given:
        return None, source
    address = given.strip()
    if address != "auto" and not (
        _ADDRESS.fullmatch(address) and host_and_port(address)[1] < 1 << 16
    ):
        raise RunError(
            f"{given!r} (from {source}) is not the address of a Ray cluster. Give HOST:PORT, "
            "ray://HOST:PORT or auto, or run without Ray: --local [QA0501]"
        )
    return address, source


def check_runs_data(cluster: ClusterSection) -> None:
    """Look whether Ray Data, which scores, runs through an address.

    Raises
    ------
    ConfigError
        If it is one of Ray Client: Ray Data wants a driver that is part of the cluster.
    """
    address, source = given_address(cluster)
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"{address} (from {source}) is a Ray Client address, and Ray Data cannot run through "
            "it. Give HOST:PORT of the head on a machine of the cluster, or submit a job: ray job "
            "submit -- qaeval score ... [QA0501]"
        )


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of an address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host.strip("[]"), int(port)


def is_named(cluster: ClusterSection) -> bool:
    """Return whether a cluster, or how to use one, was asked for.

    Examples
    --------
    >>> is_named(ClusterSection(actors=2)), is_named(ClusterSection(device="cpu"))
    (True, False)
    """
    return (
        _is_connected()
        or given_address(cluster)[0] is not None
        or bool(_OF_CLUSTERS & cluster.model_fields_set)
    )


def announce(cluster: ClusterSection) -> None:
    """Say that Ray is started or connected to; called before Ray is imported, which takes seconds.

    Raises
    ------
    RunError
        If what was given is no address.
    """
    if _is_connected():
        return
    address, _ = given_address(cluster)
    if address is None:
        say("starting Ray on this machine, which takes some seconds")
    else:
        say(f"connecting to the Ray cluster at {address}")


def job_metadata(verb: str, out: str | None, **details: str) -> dict[str, str]:
    """Return what Ray's lists of jobs show of a run, to all who see the cluster.

    URIs hold no secrets; their options are left out all the same.

    Examples
    --------
    >>> job_metadata("score", "s3://bucket/out?region=us-east-1", metrics="f1,sas")
    {'job_name': 'qaeval score', 'qaeval_out': 's3://bucket/out', 'qaeval_metrics': 'f1,sas'}
    """
    shown = {"out": (out or "").partition("?")[0], **details}
    return {"job_name": f"qaeval {verb}", **{f"qaeval_{key}": text for key, text in shown.items()}}


def _is_connected() -> bool:
    """Return whether this process has a cluster already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
