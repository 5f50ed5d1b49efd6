"""Retry: a disk or store that does not answer is asked again for a while, then the run ends.

What fails for a few seconds is no verdict on rows, nor a reason to lose hours of work. How long a
store has been out counts from its first failure after its last success, so several calls that fail
one after the other share one patience.

Source
------
Exponential backoff with full jitter: Brooker, "Exponential Backoff and Jitter", AWS Architecture
Blog 2015; the loop is tenacity's.

But: which errors are a store's, and which are content, is the caller's to say.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from qaeval_core.errors import StorageError
from qaeval_core.storage.wary import UnfitFileError

T = TypeVar("T")

# How long a job of scoring tries; filters and audits have no setting of it.
STORAGE_SETTING = "scoring.retry_storage_s"
_MAX_WAIT_S = 15.0
# How often somebody who waits looks whether the run was told to stop.
_LOOK_EVERY_S = 0.5
_MAX_REASON_CHARS = 300
# Nothing that time heals: the request is at fault, or the program.
_LASTING = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL, errno.EBADF, errno.ENOTSUP})


class Outages:
    """Retries what a store refuses, and knows how long each store has been out.

    Parameters
    ----------
    retry_s : float, default 0
        How long after a store's first failure it is still tried; 0 tries once.
    tell : callable, optional
        Gets what a line of progress shall end with; "" once the store answers again.
    look : callable, optional
        Called while waiting; raises to end the wait.
    setting : str, default ""
        What a user sets to have stores tried for longer; messages name it.

    Examples
    --------
    >>> answers = iter([OSError("Connection reset"), 7])
    >>> def ask() -> int:
    ...     answer = next(answers)
    ...     if isinstance(answer, OSError):
    ...         raise answer
    ...     return answer
    >>> Outages(retry_s=60.0).call(ask, store="s3://bucket", what="cannot read a.parquet")
    7
    """

    def __init__(
        self,
        *,
        retry_s: float = 0.0,
        tell: Callable[[str], None] | None = None,
        look: Callable[[], None] | None = None,
        setting: str = "",
    ) -> None:
        self._retry_s = retry_s
        self._setting = f" ({setting})" if setting else ""
        self._tell = tell or (lambda _: None)
        self.look = look or (lambda: None)
        self._since: dict[str, float] = {}  # store -> when it first failed after its last success
        self._lock = threading.Lock()
        self.note = ""

    def call(self, action: Callable[[], T], *, store: str, what: str) -> T:
        """Return what an action returns, tried again while it raises OSError.

        Parameters
        ----------
        store : str
            What fails and recovers as one: a folder, a bucket.
        what : str
            What could not be done, for the message: "cannot read a.parquet".

        Raises
        ------
        StorageError
            If the store was out for longer than ``retry_s``.
        """
        since_s: list[float] = []  # of this call: others may succeed meanwhile, with other work

        def is_storage(error: BaseException) -> bool:
            if not isinstance(error, OSError):
                return False
            with self._lock:
                since_s.append(self._since.setdefault(store, time.monotonic()))
            return True

        def out_s() -> float:
            return time.monotonic() - since_s[0]

        def is_over(state: RetryCallState) -> bool:
            error = _error(state)
            is_lasting = isinstance(error, OSError) and error.errno in _LASTING
            return is_lasting or isinstance(error, UnfitFileError) or out_s() >= self._retry_s

        def say(state: RetryCallState) -> None:
            self._set_note(
                f"{what}: {_reason(state)}; out for {out_s():.0f} s, trying again for up to "
                f"{self._retry_s:g} s"
            )

        def give_up(state: RetryCallState) -> T:
            raise StorageError(
                f"{what}: {_reason(state)}; tried for {out_s():.0f} s{self._setting}. Committed "
                "work is kept; run the same command again [QA0507]"
            ) from None

        result = Retrying(
            retry=retry_if_exception(is_storage),
            wait=wait_random_exponential(multiplier=0.5, max=_MAX_WAIT_S),
            stop=is_over,
            sleep=self._sleep,
            before_sleep=say,
            retry_error_callback=give_up,
        )(action)
        with self._lock:
            is_back = self._since.pop(store, None) is not None
        if since_s or is_back:
            self._set_note("")
        return result

    def _set_note(self, note: str) -> None:
        self.note = note
        self._tell(note)

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.look()
            time.sleep(min(left_s, _LOOK_EVERY_S))


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


def _reason(state: RetryCallState) -> str:
    error = _error(state)
    said = error.strerror if isinstance(error, OSError) and error.strerror else error
    text = " ".join(str(said).split())
    # Arrow's own words name the file once more, and the disk's reason at their end.
    found = re.search(r"Detail: \[errno \d+\] (.+)", text)
    return found[1] if found else text[:_MAX_REASON_CHARS]
