"""Governor's actor: one for each account of a cluster, in a process of its own.

It belongs to no run: each run on the same server and key finds it by the account's name, and it
outlives the driver and the actors that made it. When the last run leaves it ends itself; a run that
died without a word has left after ten minutes of silence.

Killed, it is started again by Ray, within about a second: the ledger and the file of claims say
what it knew, and calls that it did not answer are repeated. Repeating does no harm: a reservation
is named by its caller, and a call ends once.

A request at the server is five calls here (claim, reserve, confirm, settle, release). They cost
this process 2.1 ms of CPU at an even 130 requests/s from two doors (0.3 of a core), nearly all of
it Ray's for the messages. Where requests come faster, a door sends what waits in one message:
0.4 ms a request with 8 under way at once, 0.17 ms with 32, which is 2,400 requests/s.

But: callers use ``jobs.governor``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from qaeval_core.errors import QAEvalError, RunError, StoreLockedError
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.governor import Governor, Reservation, Status
from qaeval_core.llm.leases import LeaseLog
from qaeval_core.llm.ledger import Ledger, ledger_folder
from qaeval_core.llm.limits import Limits
from qaeval_core.llm.throttle import End

# Lost to the budget if the machine dies; a flush of some milliseconds each.
_BLOCK_USD = 0.1
# A predecessor that ends itself lets go of the ledger first; one that is killed, soon after.
_LOCK_TRIES = 10
_LOCK_WAIT_S = 0.1

# A method's name and arguments; whether it went well, and what it returned or raised.
Call = tuple[str, tuple[Any, ...]]
Result = tuple[bool, Any]


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class GovernorActor:
    """The governor of one account; its methods are those of ``Governor``.

    One thread: order is first come, first served.

    Parameters
    ----------
    account : str
        Name of server and key, ``ApiKey.account``.
    folder : str or None
        Of the ledger, on this node; None takes the user's cache.
    limits : Limits
        Until the first reservation says others.
    silent_s : float
        Seconds after which a run that was not heard has left.
    """

    def __init__(self, account: str, folder: str | None, limits: Limits, silent_s: float) -> None:
        self._account = account
        self._folder = ledger_folder(folder)
        self._limits = limits
        self._silent_s = silent_s
        self._governor: Governor | None = None
        self._ledger: Ledger | None = None
        self._claims: LeaseLog | None = None
        # Run -> (its budget, when it was heard); the empty one made this actor.
        self._heard = {"": ("", time.monotonic())}
        myself = ray.get_runtime_context().current_actor
        threading.Thread(target=_sweep, args=(myself, silent_s), daemon=True).start()

    def answer(self, calls: Sequence[Call]) -> list[Result]:
        """Do calls in order, and return what came of each; an error is that of its call alone."""
        results: list[Result] = []
        try:
            self._open()
            for method, arguments in calls:
                results.append(self._result(method, arguments))
        except QAEvalError as error:
            # There is no governor: not one try to open it for each call.
            return [(False, error)] * len(calls)
        return results

    def _result(self, method: str, arguments: Sequence[Any]) -> Result:
        try:
            return True, getattr(self, method)(*arguments)
        except QAEvalError as error:
            return False, error

    def reserve(  # noqa: D102
        self, tokens: int, usd: float, call_id: str, budget: Budget, limits: Limits, run: str
    ) -> Reservation:
        reservation = self._open().reserve(
            tokens=tokens, usd=usd, call_id=call_id, budget=budget, limits=limits
        )
        self._heard[run] = (budget.name, time.monotonic())
        return reservation

    def confirm(self, call_id: str) -> Reservation | None:  # noqa: D102
        return self._open().confirm(call_id)

    def settle(  # noqa: D102
        self, call_id: str, tokens: int, usd: float, n_admitted: int | None
    ) -> None:
        self._open().settle(call_id, tokens=tokens, usd=usd, n_admitted=n_admitted)

    def failed(self, call_id: str, billed: bool, end: End | None) -> float:  # noqa: D102
        return self._open().failed(call_id, billed=billed, end=end)

    def pause(self, seconds: float) -> None:  # noqa: D102
        self._open().pause(seconds)

    def claim(self, key: str, owner: str) -> bool:
        """Return whether the owner may ask; see ``Governor.claim``."""
        is_ours = self._open().claim(key, owner=owner)
        if is_ours and self._claims is not None:
            self._claims.claimed(key, owner=owner)
        return is_ours

    def renew(self, owner: str, budget_name: str, run: str) -> None:
        """Extend the owner's claims; its run is alive."""
        self._open().renew(owner)
        self._heard[run] = (budget_name, time.monotonic())

    def release(self, key: str, owner: str) -> None:
        """End a claim."""
        self._open().release(key, owner=owner)
        if self._claims is not None:
            self._claims.released(key, owner=owner)

    def status(self, budget_name: str, run: str | None = None) -> Status:
        """Return where it stands; the run that asks is alive."""
        if run in self._heard:
            self._heard[run] = (budget_name, time.monotonic())
        return self._open().status(budget_name)

    def open_calls(self) -> frozenset[str]:  # noqa: D102
        return self._open().open_calls

    def spent_at_least(self, usd: float, budget_name: str) -> None:  # noqa: D102
        self._open().spent_at_least(usd, budget=budget_name)

    # Not repeated: the caller sees the actor die, as it should.
    @ray.method(max_task_retries=0)  # type: ignore[untyped-decorator]
    def leave(self, run: str) -> None:
        """Forget a run; end with the last one."""
        self._forget(run)
        self._forget("")
        self._end_if_unused()

    @ray.method(max_task_retries=0)  # type: ignore[untyped-decorator]
    def sweep(self) -> None:
        """Forget runs that were not heard for long; end with the last one."""
        since_s = time.monotonic() - self._silent_s
        for run in [run for run, (_, at_s) in self._heard.items() if at_s < since_s]:
            self._forget(run)
        self._end_if_unused()

    def _open(self) -> Governor:
        """Return the governor, with its ledger taken; not in ``__init__``, whose errors Ray hides.

        Raises
        ------
        StoreLockedError
            If another Ray cluster of this machine has the account's governor. The next call tries
            again.
        """
        if self._governor is None:
            try:
                self._governor = self._make()
            except OSError as error:
                raise RunError(
                    f"cannot keep a ledger in {self._folder}: {error.strerror} (naco.ledger_path)"
                ) from None
        return self._governor

    def _make(self) -> Governor:
        ledger = self._ledger = self._ledger or self._take_ledger()
        self._claims = LeaseLog(
            self._folder / f"claims-{self._account}.jsonl",
            life=ray.get_runtime_context().get_actor_id(),
        )
        governor = Governor(self._limits, ledger=ledger)
        for key, owner in self._claims.found.items():
            governor.claim(key, owner=owner)
        return governor

    def _take_ledger(self) -> Ledger:
        span_s = self._limits.span_s
        for n_left in reversed(range(_LOCK_TRIES)):
            try:
                return Ledger(self._folder, self._account, keep_s=span_s, block_usd=_BLOCK_USD)
            except StoreLockedError as error:
                if n_left == 0:
                    raise StoreLockedError(
                        f"{error}: another Ray of this machine calls the same server with the same "
                        "key. Join that cluster (--address) to share the limits, or wait until its "
                        "run has ended"
                    ) from None
            time.sleep(_LOCK_WAIT_S)
        raise AssertionError

    def _forget(self, run: str) -> None:
        budget_name, _ = self._heard.pop(run, ("", 0.0))
        # Two runs may pay from one budget: its limits hold until the last of them has left.
        is_in_use = budget_name in {name for name, _ in self._heard.values()}
        if self._governor is not None and budget_name and not is_in_use:
            self._governor.unregister(budget_name)

    def _end_if_unused(self) -> None:
        if self._heard:
            return
        # Before the end: the next one may be quicker than the death of this process.
        for file in (self._claims, self._ledger):
            if file is not None:
                with contextlib.suppress(QAEvalError):  # A full disk: nothing is left to be done.
                    file.close()
        ray.actor.exit_actor()


def _sweep(actor: Any, silent_s: float) -> None:
    """Remind the own actor to look for silent runs, which it does on its own thread."""
    # Subtle: waited for. An actor does not end while a call that it made itself is open.
    with contextlib.suppress(RayError):
        while True:
            time.sleep(silent_s / 10)
            ray.get(actor.sweep.remote())
