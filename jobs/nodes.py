"""Nodes: which nodes of the cluster see what a run needs, and which are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from qaeval_core.errors import BlindNodeError
from qaeval_core.scoring.sight import Sight

# A mount whose server is gone does not say no: it says nothing.
_LOOK_TIMEOUT_S = 60.0


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def _problem(sight: Sight) -> str | None:
    return sight.problem()


class Nodes:
    """The nodes of the connected cluster, as far as workers may run there.

    Parameters
    ----------
    say : callable
        Gets one line for each node that is left out.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._sight: Sight | None = None
        self._seeing: set[str] = set()
        self._blind: dict[str, str] = {}

    @property
    def sight(self) -> Sight:
        """What workers must see."""
        assert self._sight is not None, "begin comes first"
        return self._sight

    def begin(self, sight: Sight) -> None:
        """Look from every node before any work.

        Raises
        ------
        BlindNodeError
            If one does not see something; it names node and path.
        """
        self._sight = sight
        # The driver's node made the folders and read the files.
        self._seeing = {ray.get_runtime_context().get_node_id()}
        problems = self._look()
        if problems:
            lines = [
                f"node {_address(node)} does not see {what}" for node, what in problems.items()
            ]
            raise BlindNodeError(
                "\n".join(lines) + "\nmount it there under the same path, or take the node away; "
                "nothing was computed"
            )

    def look_around(self) -> None:
        """Look from nodes that have joined since; those that do not see all are left out."""
        self.leave_out(self._look())

    def leave_out(self, blind: Mapping[str, str]) -> None:
        """Let no more workers run on nodes that do not see all; each is named once.

        Raises
        ------
        BlindNodeError
            If no node is left.
        """
        for node, what in blind.items():
            if node not in self._blind:
                self._say(f"node {_address(node)} is left out: it does not see {what}")
        self._blind.update(blind)
        self._seeing -= set(blind)
        if self._blind and not any(node not in self._blind for node in _alive()):
            node, what = next(iter(self._blind.items()))
            raise BlindNodeError(
                f"no node is left to work on: node {_address(node)} does not see {what}"
            )

    def ray_options(self) -> dict[str, Any]:
        """Return what keeps actors off the nodes that are left out."""
        if not self._blind:
            return {}
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(self._blind))})"}}

    def _look(self) -> dict[str, str]:
        """Return what nodes that were not asked yet do not see, by node."""
        new = [node for node in _alive() if node not in self._seeing | set(self._blind)]
        asked = {
            node: _problem.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(self.sight)
            for node in new
        }
        problems = {}
        for node, ref in asked.items():
            try:
                problem = ray.get(ref, timeout=_LOOK_TIMEOUT_S)
            except GetTimeoutError:
                problem = f"{self.sight.folders[0]}: no answer for {_LOOK_TIMEOUT_S:g} s"
            except RayError:
                continue  # It left again; its successor is another node.
            if problem is None:
                self._seeing.add(node)
            else:
                problems[node] = problem
        return problems


def _alive() -> list[str]:
    """Return the nodes that workers may run on: a head without CPUs may be there for others."""
    return [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) > 0
    ]


def _address(node_id: str) -> str:
    found = [node for node in ray.nodes() if node["NodeID"] == node_id]
    if not found:
        return node_id
    return f"{found[0]['NodeManagerHostname']} ({found[0]['NodeManagerAddress']})"
