"""A filter that is killed at its N-th change of KEPT; for a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from qaeval_core.storage.objects import ObjectStorage
from qaeval_core.storage.path import as_path


def kill_at(number: int) -> None:
    """Let this process die, as by the kernel, right before its N-th rename, PUT, copy or DELETE."""
    left = number

    def dying(action: Any) -> Any:
        def act(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*given, **named)

        return act

    for name in ("replace", "rename", "unlink"):
        setattr(Path, name, dying(getattr(Path, name)))
    for name in ("put", "put_new", "swap", "copy", "delete", "writer"):
        setattr(ObjectStorage, name, dying(getattr(ObjectStorage, name)))


if __name__ == "__main__":
    from filter_corpora import filtered

    out, kept, number, share = sys.argv[1:]
    kill_at(int(number))
    filtered(as_path(out), as_path(kept), share=share, near_duplicates="exact", top_k=3)
