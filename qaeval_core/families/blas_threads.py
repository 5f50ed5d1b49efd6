"""BLAS threads: matrices of one pair of texts are multiplied by one thread, whatever machine it is.

numpy's BLAS would take all CPUs for them. Its threads wait for each other by spinning, beside an
engine and a tokenizer that want the same CPUs: 804 us of CPU a pair of sentences with two threads,
28 with one. Numbers are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import threadpoolctl

# Subtle: the number of threads is the process's. Of two who are inside together the second one
# would find 1 and leave it behind for good. Threads gain little here: the interpreter is held.
_alone = threading.RLock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS take one thread inside, and as many as before after it; one caller at a time.

    But: it takes 20 us, so it stands around the pairs of a shard and not around each.
    """
    with _alone, _libraries().limit(limits=1):
        yield


@cache
def _libraries() -> Any:
    # To look for them takes a millisecond.
    return threadpoolctl.ThreadpoolController().select(user_api="blas")
