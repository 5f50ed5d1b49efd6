"""Reading: who makes Parquet of files of text: this process, or the cluster where it is much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qaeval import command as options
from qaeval.on_ray.address import announce, is_named, job_metadata
from qaeval_core.configure import RunConfig
from qaeval_core.planning.compile import needed_roles
from qaeval_core.planning.job import FoundFiles, Inputs, check_columns, find_files
from qaeval_core.planning.text_files.blocks import BlockTask, TextBlock, read_blocks
from qaeval_core.planning.text_files.copies import MOST_SILENT_MB, Tell, ThreadWorkers, copies_of
from qaeval_core.planning.usual_columns import with_usual_columns
from qaeval_core.running.progress import LabelProgress
from qaeval_core.storage.path import open_out

_PROGRESS_S = 5.0
# A cluster takes seconds to work.
MOST_HERE_MB = 512


class Readers:
    """Reads blocks in this process, or on the cluster that is named, where they are many.

    Parameters
    ----------
    config : RunConfig
    is_local : bool
        Whether no cluster may be used.
    tell : callable
        Gets a label, the megabytes done and all megabytes.
    """

    def __init__(self, config: RunConfig, *, is_local: bool, tell: Tell) -> None:
        self._cluster, self._is_local, self._tell = config.cluster, is_local, tell

    def read(
        self, tasks: Sequence[BlockTask], *, label: str, sizes: Sequence[int]
    ) -> Iterator[list[TextBlock]]:
        """Yield the blocks of each task, in their order."""
        n_megabytes = sum(sizes)
        label = label if n_megabytes > MOST_SILENT_MB else ""
        if self._is_local or n_megabytes <= MOST_HERE_MB or not is_named(self._cluster):
            yield from ThreadWorkers(self._tell).read(tasks, label=label, sizes=sizes)
            return
        announce(self._cluster)
        # Imported here: Ray takes a second that others need not wait.
        from qaeval.on_ray.cluster import connected
        from qaeval.on_ray.nodes import Nodes
        from qaeval.on_ray.tasks import RayTasks

        with connected(self._cluster, job_metadata("score", None)):
            workers = RayTasks(self._tell, Nodes(options.say))
            workers.begin(tasks[0].folder, [tasks[0].reading.uri])
            try:
                yield from workers.map(read_blocks, tasks, label=label, n_rows=sizes)
            finally:
                workers.settle()


def find_files_of(config: RunConfig, *, needs_out: bool, is_local: bool) -> FoundFiles:
    """Find the input files; those of text are read into copies below OUT, if there is one."""
    path = config.output.path
    out = open_out(path) if path is not None and needs_out else None
    with LabelProgress(_PROGRESS_S, unit="MB") as tell:
        readers = Readers(config, is_local=is_local, tell=tell)
        copies = copies_of(config.input, out, workers=readers, tell=tell)
        return find_files(config, needs_out=needs_out, copies=copies)


def read_columns(
    config: RunConfig, files: FoundFiles, *, roles: Sequence[str] | None = None
) -> tuple[RunConfig, Inputs, list[str]]:
    """Find the columns of roles, by their usual names too; return what to say of those as well.

    Parameters
    ----------
    roles : sequence of str, optional
        Default those of the configured metrics.
    """
    asked = needed_roles(config) if roles is None else roles
    config, line = with_usual_columns(config, files.files, roles=asked)
    return config, check_columns(config, files, roles=roles), [line] if line else []
