"""Filter: rows chosen by their scores, on Ray or on this machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from qaeval import command as options
from qaeval.on_ray.address import announce, is_named, job_metadata
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import ConfigError, QAEvalError, nearest
from qaeval_core.filter.plan import FilterPlan, make_plan
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.result import FilterResult, dry_run_lines, result_lines
from qaeval_core.filter.run import run_filter
from qaeval_core.models.cpu import available_cpus
from qaeval_core.running.progress import LabelProgress
from qaeval_core.running.range_executor import LocalRangeExecutor
from qaeval_core.storage.path import StoragePath, open_out
from qaeval_core.tables.corpus import ROLE_NAMES
from qaeval_core.tables.open_corpus import open_corpus

_PROGRESS_S = 5.0


def filter_out(
    out: str,
    request: FilterRequest,
    *,
    to: str | None,
    inputs: Sequence[str],
    dry_run: bool,
    address: str | None,
    local: bool | None,
) -> None:
    """Carry out a request, or show its plan; ends the process where nothing is certified."""
    try:
        if to is None and not dry_run:
            raise ConfigError("no folder for the kept rows; give --to KEPT [QA0107]")
        folder = open_out(to, "--to") if to is not None else None
        corpus = open_corpus(
            out,
            columns=request.columns,
            partial=request.partial,
            inputs=inputs,
            encoding=request.encoding,
        )
        plan = make_plan(request, corpus)
        if dry_run or folder is None or to is None:
            for line in dry_run_lines(plan):
                options.show(line)
            return
        result = _run(plan, folder, address=address, local=local)
        for line in result_lines(result.content, to):
            options.show(line)
    except QAEvalError as error:
        options.fail(error)
    if not result.is_certified:
        sys.exit(options.EXIT_INCOMPLETE)


def whole_numbers(text: str | None) -> tuple[int, ...]:
    """Return the numbers of ``--looks``.

    Raises
    ------
    ConfigError
        If one is no number.
    """
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if not word.isdecimal():
            raise ConfigError(
                f"--looks is {text!r}; give numbers of labels, such as 200,400 [QA0104]"
            )
    return tuple(map(int, words))


def role_columns(words: Sequence[str]) -> dict[str, str]:
    """Return the columns of roles, from the words of ``--column``.

    Raises
    ------
    ConfigError
        If one is not ``role=name``.
    """
    columns = {}
    for text in words:
        role, separator, name = text.partition("=")
        if not separator or role not in ROLE_NAMES:
            hint = "" if role in ROLE_NAMES else nearest(role, ROLE_NAMES)
            raise ConfigError(f"--column takes ROLE=NAME, not {text!r}{hint} [QA0105]")
        columns[role] = name
    return columns


def _run(
    plan: FilterPlan, folder: StoragePath, *, address: str | None, local: bool | None
) -> FilterResult:
    cluster = ClusterSection(address=address)
    if not is_named(cluster) if local is None else local:
        with LabelProgress(_PROGRESS_S) as tell:
            executor = LocalRangeExecutor(tell, n_processes=available_cpus())
            with contextlib.closing(executor):
                return run_filter(plan, folder, executor, say=options.say)
    announce(cluster)
    # Imported here: Ray takes half a second that --help, --dry-run and --local need not pay.
    from qaeval.on_ray.cluster import connected
    from qaeval.on_ray.nodes import Nodes
    from qaeval.on_ray.tasks import RayTasks

    metadata = job_metadata("filter", str(folder))
    with connected(cluster, metadata), LabelProgress(_PROGRESS_S) as tell:
        return run_filter(plan, folder, RayTasks(tell, Nodes(options.say)), say=options.say)
