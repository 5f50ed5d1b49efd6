"""Nodes: those of the connected cluster that see what a run needs, and those that are left out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from qaeval_core.errors import BlindNodeError
from qaeval_core.running.visibility import Sight

# A mount whose server is gone does not say no: it says nothing.
_ANSWER_S = 60.0
_LOOK_EVERY_S = 0.5
_ASK_AGAIN_S = 2.0


class _Answer(NamedTuple):
    problem: str | None
    is_silent: bool = False  # whether a store did not answer


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def _answer(sight: Sight) -> _Answer:
    try:
        return _Answer(sight.problem())
    except OSError as error:
        return _Answer(f"{sight.folders[0]} ({error.strerror or error})", is_silent=True)


class Nodes:
    """The nodes of the connected cluster, as far as workers may run there.

    Parameters
    ----------
    say : callable
        Gets one line for each node that is left out, or comes back.
    look : callable, optional
        Called while nodes look; raises to end the wait.
    may_leave_out : bool, default True
        False where one node that does not see all is reason enough not to begin.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        look: Callable[[], None] | None = None,
        may_leave_out: bool = True,
    ) -> None:
        self._say = say
        self._look_up = look or (lambda: None)
        self._may_leave_out = may_leave_out
        self._sight: Sight | None = None
        self._seeing: set[str] = set()
        self._blind: dict[str, str] = {}

    @property
    def sight(self) -> Sight:
        """What workers must see."""
        assert self._sight is not None, "begin comes first"
        return self._sight

    def begin(self, sight: Sight) -> None:
        """Look from every node before any work; leave out the few that do not see all.

        Raises
        ------
        BlindNodeError
            If the driver's node does not, or half of all; it names nodes and paths.
        """
        self._sight = sight
        self._seeing, self._blind = set(), {}
        blind = self._ask()
        n_asked = len(blind) + len(self._seeing)
        is_here = ray.get_runtime_context().get_node_id() in blind
        if blind and (is_here or 2 * len(blind) >= n_asked or not self._may_leave_out):
            lines = [
                f"node {_address(node)} does not see {what} [QA0504]"
                for node, what in blind.items()
            ]
            lines.append(
                "mount it there under the same path, or remove the node, and install the same "
                "versions; nothing was computed"
            )
            raise BlindNodeError("\n".join(lines))
        self.leave_out(blind)

    def look_around(self) -> None:
        """Look from nodes that have joined since, and again from those that were left out."""
        self.leave_out(self._ask())

    def leave_out(self, blind: Mapping[str, str]) -> None:
        """Let no more workers run on nodes that do not see all; each is named once.

        Raises
        ------
        BlindNodeError
            If no node is left.
        """
        for node, what in blind.items():
            if node not in self._blind:
                self._say(f"node {_address(node)} is skipped: it does not see {what}")
        self._blind.update(blind)
        self._seeing -= set(blind)
        if self._blind and not any(node not in self._blind for node in _alive()):
            node, what = next(iter(self._blind.items()))
            raise BlindNodeError(
                f"no node is left to work on: node {_address(node)} does not see {what} [QA0504]"
            )

    def ray_options(self) -> dict[str, Any]:
        """Return what keeps actors off the nodes that are left out."""
        if not self._blind:
            return {}
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(self._blind))})"}}

    def _ask(self) -> dict[str, str]:
        """Ask the nodes that are not known to see all; return what they do not see, by node.

        A store that does not answer is tried again, for as long as it is where something is read.
        """
        until_s = time.monotonic() + self.sight.retry_s
        todo = [node for node in _alive() if node not in self._seeing]
        blind: dict[str, str] = {}
        while True:
            answers = self._answers(todo)
            for node, answer in answers.items():
                if answer.problem is None:
                    self._take_in(node)
                else:
                    blind[node] = answer.problem
            todo = [node for node, answer in answers.items() if answer.is_silent]
            if not todo or time.monotonic() > until_s:
                return {node: what for node, what in blind.items() if node not in self._seeing}
            self._pause(_ASK_AGAIN_S)

    def _answers(self, nodes: Sequence[str]) -> dict[str, _Answer]:
        """Return what nodes answer; those that leave meanwhile do not."""
        asked = {
            _answer.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(self.sight): node
            for node in nodes
        }
        until_s = time.monotonic() + _ANSWER_S
        waiting, answers = list(asked), {}
        while waiting and time.monotonic() < until_s:
            self._look_up()
            done, waiting = ray.wait(waiting, timeout=_LOOK_EVERY_S)
            for ref in done:
                with contextlib.suppress(RayError):  # It left; its successor is another node.
                    answers[asked[ref]] = ray.get(ref)
        for ref in waiting:
            ray.cancel(ref, force=True)
            what = f"{self.sight.folders[0]}: no answer for {_ANSWER_S:g} s"
            answers[asked[ref]] = _Answer(what)
        return answers

    def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._look_up()
            time.sleep(_LOOK_EVERY_S)

    def _take_in(self, node: str) -> None:
        self._seeing.add(node)
        if self._blind.pop(node, None) is not None:
            self._say(f"node {_address(node)} is used again: it sees everything now")


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
