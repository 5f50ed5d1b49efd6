"""Retry: how often a call is sent again, and when so many failed that the others would as well."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qaeval_core.errors import EndpointRefusedError
from qaeval_core.llm.responses import ChatFailure

# Requests that fail alike, and none is answered between them: it is not they.
_OTHERS = 3


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and after how long a call is sent again.

    A refusal (429, 503, no connection) says nothing against the row, so rows are given up after
    many more of them than of faults. Where ``max_given_up`` requests in a row were given up the
    fault is the server's: the others would be lost alike. What fails while the server answers
    nobody counts against no row; after ``max_outage_s`` of it no more is asked, after
    ``max_unheard_s`` if it never answered.
    """

    max_faults: int = 6
    max_given_up: int = 20
    max_refusals: int = 60
    first_wait_s: float = 0.5
    max_wait_s: float = 30.0
    max_outage_s: float = 300.0
    max_unheard_s: float = 60.0

    def is_over(self, refusals: Sequence[bool]) -> bool:
        """Whether a call that failed so often, by a refusal or a fault each time, is given up.

        >>> RetryRule(max_faults=2).is_over([True, True, False])
        False
        """
        n_faults = len(refusals) - sum(refusals)
        return n_faults >= self.max_faults or sum(refusals) >= self.max_refusals

    def wait_s(self, n_failures: int, *, rng: random.Random) -> float:
        """Return a wait that doubles with each failure, less up to a half by chance."""
        longest_s = min(self.first_wait_s * 2.0 ** (n_failures - 1), self.max_wait_s)
        # By chance: calls that failed together must not come back together.
        return longest_s * rng.uniform(0.5, 1.0)


class CircuitBreaker:
    """Counts requests that ended without a reply, in a row.

    A request that the server refuses (400) is that row's own fault, unless no request was ever
    answered: a wrong parameter, or a model that is not there, is the fault of all. A reply of an
    earlier run shows as much, for it was asked for with the same model and parameters.

    Parameters
    ----------
    rule : RetryRule
        How many in a row are too many, and for how long nobody may be answered.

    Examples
    --------
    >>> breaker = CircuitBreaker(RetryRule(max_given_up=2))
    >>> refused = ChatFailure("row_undefined", "llm_bad_request", "http://h/v1 answered 400: no")
    >>> breaker.count(refused)
    >>> print(breaker.count(refused))
    the server refused the first 2 requests; the last error: http://h/v1 answered 400: no. Check \
the model and the parameters [QA0603]
    >>> breaker.replied()
    >>> [breaker.count(refused) for _ in range(3)]
    [None, None, None]
    """

    def __init__(self, rule: RetryRule) -> None:
        self._rule = rule
        self._n = 0
        self._has_reply = False
        self._failing: set[str] = set()
        self._failed: Counter[str] = Counter()

    def replied(self) -> None:
        """Take notice of a reply, paid for now or earlier."""
        self._n = 0
        self._has_reply = True
        self._failing.clear()

    def is_outage(self, key: str, failure: ChatFailure) -> bool:
        """Return whether a request failed because the server answers nobody.

        A fault may be the request's own where no others were asked: some make a server fail.
        """
        self._failing.add(key)
        self._failed[failure.reason] += 1
        is_others = failure.is_refusal or len(self._failing) >= _OTHERS
        return failure.silent_s > 0 and is_others

    def check_outage(self, failure: ChatFailure) -> EndpointRefusedError | None:
        """Return the error that stops the rest if an outage lasts too long."""
        rule = self._rule
        unheard_s = min(rule.max_unheard_s, rule.max_outage_s)
        if failure.silent_s <= (rule.max_outage_s if self._has_reply else unheard_s):
            return None
        return EndpointRefusedError(
            f"no answer for {failure.silent_s:.0f} s; the last error: {failure.message}. Check "
            "that the server is up and that base_url is right. The same command resumes [QA0603]"
        )

    def with_counts(self, error: EndpointRefusedError) -> EndpointRefusedError:
        """Return an error that says what failed: of rows that are not committed nothing else does.

        >>> breaker = CircuitBreaker(RetryRule())
        >>> breaker.is_outage("a", ChatFailure("retry", "llm_timeout", "late"))
        False
        >>> print(breaker.with_counts(EndpointRefusedError("no key [QA0603]")))
        no key (1 call failed: llm_timeout 1) [QA0603]
        """
        n = self._failed.total()
        shown = ", ".join(f"{reason} {own:,}" for reason, own in self._failed.most_common())
        failed = f"({n:,} call{'' if n == 1 else 's'} failed: {shown})"
        return EndpointRefusedError(f"{error.text} {failed} [{error.code}]")

    def count(self, failure: ChatFailure) -> EndpointRefusedError | None:
        """Take notice of a request's end without a reply; return the error that stops the rest."""
        is_refused = failure.kind == "row_undefined"
        if is_refused and self._has_reply:
            return None
        self._n += 1
        if self._n < self._rule.max_given_up:
            return None
        if is_refused:
            return EndpointRefusedError(
                f"the server refused the first {self._n} requests; the last error: "
                f"{failure.message}. Check the model and the parameters [QA0603]"
            )
        return EndpointRefusedError(
            f"{self._n} requests in a row failed; the last error: {failure.message}. Check that "
            "the server is up and that base_url is right [QA0603]"
        )
