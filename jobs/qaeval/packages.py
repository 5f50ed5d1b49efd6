"""Packages: look, before anything is read or started, whether runs find their packages here."""

from __future__ import annotations

import os

from qaeval_core.configure import RunConfig
from qaeval_core.planning.packages import (
    check_packages,
    missing_packages,
    missing_text,
    opens_nothing,
)
from qaeval_core.running.local_executor import local_device


def check_before_input(config: RunConfig) -> None:
    """Raise PackagesMissingError, naming all, where a package is missing that opens the input."""
    if opens_nothing(config):
        is_named = "metrics" in config.model_fields_set
        check_before_rows(config if is_named else config.model_copy(update={"metrics": {}}))


def check_before_rows(*configs: RunConfig, is_local: bool = True) -> None:
    """Raise PackagesMissingError, naming all, where runs lack a package on this machine.

    Of a cluster that is given nothing is known yet; it is looked at once it is connected.

    Parameters
    ----------
    is_local : bool, default True
        Runs go on no cluster.
    """
    if is_local or not has_cluster(configs[0]):
        check_packages(*configs, device=local_device(configs[0].cluster))


def has_cluster(config: RunConfig) -> bool:
    """Return whether a Ray cluster is given: its workers have packages of their own."""
    return bool(config.cluster.address or os.environ.get("RAY_ADDRESS"))


def missing_lines(config: RunConfig) -> str:
    """Return what a run lacks on this machine, "" where it lacks nothing."""
    missing = missing_packages(
        config, device=local_device(config.cluster), on_cluster=has_cluster(config)
    )
    return missing_text(missing).replace("\n", "\n  ") if missing else ""
