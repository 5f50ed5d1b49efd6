"""A filter that is killed at its N-th change of names in KEPT; for a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any


def kill_at(number: int) -> None:
    """Let this process die, as by the kernel, right before its N-th rename or deletion."""
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


if __name__ == "__main__":
    from filter_corpora import filtered

    out, kept, number, share = sys.argv[1:]
    kill_at(int(number))
    filtered(Path(out), Path(kept), share=share, near_duplicates="exact", top_k=3)
