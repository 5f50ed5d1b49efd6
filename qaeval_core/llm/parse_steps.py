"""Steps of a reply: how many its reasoning takes."""

from __future__ import annotations

from collections.abc import Sequence

from qaeval_core.llm.parse_lines import OPEN, Line, step_labels
from qaeval_core.llm.parse_verdict import is_about_verdict


def count_steps(lines: Sequence[Line], *, answer_place: int) -> int:
    """Return the number of reasoning steps, at least 1.

    Steps are what the labels "Step 1:", "Step 2:" number, or else the items of the outermost list
    between verdict and answer. What only judges the sentence, or only gives the answer, is none;
    nor are items inside an item, and lines that go on with one. Steps below the answer count where
    there are none above it and a label or a header makes them steps.

    Parameters
    ----------
    lines : sequence of Line
        Of the clean reply.
    answer_place : int
        Where its answer stands.
    """
    above = [line for line in lines if line.start <= answer_place]
    inline = max((line.n_listed for line in above if line.is_header), default=0)
    n_steps = _labelled(above) or _listed(_after_verdict(above)) or inline
    if n_steps == 0:
        below = [line for line in lines if line.start > answer_place]
        header = next((i for i, line in enumerate(below) if line.is_header), len(below))
        n_steps = _labelled(below) or _listed(below[header + 1 :])
    return max(n_steps, 1)


def head_of(lines: Sequence[Line], *, answer_place: int) -> list[Line]:
    """Return the lines before the first step, header or answer: those with the verdict."""
    head: list[Line] = []
    for line in lines:
        is_step = line.step or (line.kind and not is_about_verdict(line))
        if (
            line.start > answer_place
            or line.is_header
            or line.is_answer
            or OPEN in line.body
            or is_step
        ):
            break
        head.append(line)
    return head


def _labelled(lines: Sequence[Line]) -> int:
    """Return how many different steps are labelled "Step 1:" and so on."""
    labels = {label for line in lines for label in step_labels(line.body)}
    labels |= {line.step for line in lines if line.step}
    return len(labels - {line.step for line in lines if line.step and line.is_answer})


def _listed(lines: Sequence[Line]) -> int:
    """Return the items of the outermost list."""
    items = [line for line in lines if line.kind and not line.is_answer and not line.is_header]
    if not items:
        return 0
    first = items[0]
    return sum(line.kind == first.kind and line.indent <= first.indent + 1 for line in items)


def _after_verdict(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the lines below the header, else those below what judges the sentence."""
    for i, line in enumerate(lines):
        if line.is_header:
            return lines[i + 1 :]
    for i, line in enumerate(lines):
        if line.kind and not is_about_verdict(line):
            return lines[i:]
    return []
