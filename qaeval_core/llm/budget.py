"""Budget: what calls may spend, what was spent and reserved, and which runs' limits hold.

Money is counted in billionths of a dollar: sums are exact, and far below any price of a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qaeval_core.errors import BudgetExhaustedError, ConfigError
from qaeval_core.llm.limits import NANO, Limits, dollars

# A run that was killed says no goodbye; its limits must not bind the others for ever.
SILENT_S = 900.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Money for some of an account's calls; None is unlimited.

    Parameters
    ----------
    name : str, default "main"
        Calls with equal names spend the same money, whichever run they are of.
    budget_usd : float or None
        Money that may be spent by all calls of that name, ever; inclusive.
    section : str, default ""
        Of the settings that messages name, with its dot.

    Raises
    ------
    ConfigError
        If the budget is less than 0.
    """

    name: str = "main"
    budget_usd: float | None = None
    section: str = ""

    def __post_init__(self) -> None:
        if self.budget_usd is not None and not self.budget_usd >= 0:
            raise ConfigError(
                f"budget_usd is {self.budget_usd}; it must be 0 or more, or left out [QA0609]"
            )


MAIN_BUDGET = Budget()


@dataclass(slots=True)
class Money:
    """What one budget's calls cost and may cost, in billionths of a dollar, and how they ended."""

    spent: int = 0
    reserved: int = 0
    n_open: int = 0
    n_settled: int = 0
    n_billed_failures: int = 0
    n_tokens: int = 0

    @property
    def committed(self) -> int:
        """Spent and reserved."""
        return self.spent + self.reserved

    def reserve(self, nano: int) -> None:
        """Set aside the most that a call can cost."""
        self.reserved += nano
        self.n_open += 1

    def settle(self, reserved: int, *, cost: int, n_tokens: int) -> None:
        """Pay for a call that brought a reply."""
        self._end(reserved)
        self.spent += cost
        self.n_settled += 1
        self.n_tokens += n_tokens

    def fail(self, reserved: int, *, is_billed: bool) -> None:
        """End a call without a reply; if billed, all that was reserved for it is spent."""
        self._end(reserved)
        if is_billed:
            self.spent += reserved
            self.n_billed_failures += 1

    def _end(self, reserved: int) -> None:
        self.reserved -= reserved
        self.n_open -= 1

    def fits(self, nano: int, budget: Budget) -> bool:
        """Whether a call that may cost so much fits the budget."""
        return budget.budget_usd is None or self.committed + nano <= round(budget.budget_usd * NANO)

    def refusal(self, nano: int, budget: Budget, *, n_waiting: int) -> BudgetExhaustedError:
        """Return the error for a call that does not fit."""
        budget_usd = budget.budget_usd or 0.0
        may_free = self.n_open > 0 and self.spent + nano <= round(budget_usd * NANO)
        return BudgetExhaustedError(
            f"spent {dollars(self.spent / NANO)}, reserved {dollars(self.reserved / NANO)}: a call "
            f"of up to {dollars(nano / NANO)} does not fit {budget.section}budget_usd="
            f"{budget_usd}; raise it and run the same command again [QA0604]",
            may_free=may_free,
            n_waiting=n_waiting,
        )


@dataclass(slots=True)
class _Run:
    budget_name: str
    limits: Limits
    heard_s: float


class Budgets:
    """The budgets of one account, and the runs that pay from them.

    Parameters
    ----------
    limits : Limits
        Of runs that bring none, and while there is no run.
    money : mapping
        By budget, from the ledger.
    silent_s : float, default 900
        Seconds after which a run that was not heard has left.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        money: Mapping[str, Money] | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self._own = limits
        self._money = dict(money or {})
        self._runs: dict[str, _Run] = {}
        self._silent_s = silent_s

    def money(self, name: str) -> Money:
        """Return a budget's money; an unknown one has spent nothing."""
        found = self._money.get(name)
        if found is None:
            found = self._money[name] = Money()
        return found

    @property
    def has_runs(self) -> bool:
        """Whether a run is registered."""
        return bool(self._runs)

    def register(self, name: str, budget_name: str, limits: Limits | None, *, now_s: float) -> bool:
        """Hear of a run; return whether its limits are news.

        Raises
        ------
        ConfigError
            If it counts in windows of another length than the others.
        """
        given = self._own if limits is None else limits
        run = self._runs.get(name)
        if run is not None and (run.limits is given or run.limits == given):
            run.budget_name, run.heard_s = budget_name, now_s
            return False
        others = [other.limits for key, other in self._runs.items() if key != name]
        Limits.smallest([*others, given, Limits(window_s=self._own.window_s)])
        self._runs[name] = _Run(budget_name, given, now_s)
        return True

    def heartbeat(self, name: str, *, now_s: float) -> None:
        """Take notice that a run lives, though it may not reserve for long."""
        run = self._runs.get(name)
        if run is not None:
            run.heard_s = now_s

    def unregister(self, name: str) -> str | None:
        """Forget a run's limits; return its budget if no other run pays from it."""
        run = self._runs.pop(name, None)
        if run is None or any(one.budget_name == run.budget_name for one in self._runs.values()):
            return None
        return run.budget_name

    def smallest_limits(self) -> Limits:
        """Return limits that keep those of every run."""
        return Limits.smallest([run.limits for run in self._runs.values()] or [self._own])

    def silent(self, now_s: float) -> list[str]:
        """Return the runs that were not heard for long: one that was killed says no goodbye."""
        return [name for name, run in self._runs.items() if run.heard_s < now_s - self._silent_s]
