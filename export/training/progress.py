"""Progress: lines for people, on standard error."""

from __future__ import annotations

from qaeval_core.terminal import duration

__all__ = ["step_line"]


def step_line(
    *,
    step: int,
    n_steps: int,
    loss: float,
    n_done: int,
    rows_per_step: float,
    elapsed_s: float,
) -> str:
    """Return one line of progress.

    Parameters
    ----------
    n_done : int
        Steps of this process; a resumed run's earlier ones have no time here.

    Examples
    --------
    >>> step_line(step=30, n_steps=90, loss=0.5, n_done=10, rows_per_step=32.0, elapsed_s=4.0)
    'step 30/90 (33 %), loss 0.5000, 80.0 examples/s, ETA 24s'
    """
    steps_per_s = n_done / max(elapsed_s, 1e-9)
    left_s = (n_steps - step) / max(steps_per_s, 1e-9)
    return (
        f"step {step:,}/{n_steps:,} ({100 * step / n_steps:.0f} %), loss {loss:.4f}, "
        f"{steps_per_s * rows_per_step:,.1f} examples/s, ETA {duration(left_s)}"
    )
