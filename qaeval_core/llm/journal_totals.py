"""Journal's totals: what all replies of a journal cost, and its index for the next to open it.

Both need one reading of the lines that the last index does not know. The driver of a run does so
before its first call and after its last, so that its workers open the journal from the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qaeval_core.errors import RunError, RunStoppedError
from qaeval_core.llm.journal import open_log
from qaeval_core.llm.journal_index import Index, IndexRows, Sums, SumsOf
from qaeval_core.llm.journal_log import INDEX_FOLDER
from qaeval_core.storage.path import AnyPath, as_path
from qaeval_core.storage.retry import Outages

# What is read in a tenth of a second needs no index.
MIN_LINES = 1_000
MIN_OBJECTS = 64


@dataclass(frozen=True, slots=True)
class JournalTotals:
    """Sums over a journal's replies, two to one request as well: both were paid.

    ``notes`` tell what could not be read; ``usd`` holds what can be read of damaged lines' money.
    """

    n_replies: int
    usd: float
    n_prompt_tokens: int
    n_completion_tokens: int
    notes: tuple[str, ...] = ()


def journal_totals(
    folder: AnyPath,
    *,
    outages: Outages | None = None,
    writes_index: bool = False,
    min_lines: int = MIN_LINES,
    min_objects: int = MIN_OBJECTS,
) -> JournalTotals:
    """Return the sums over all lines of a folder.

    Parameters
    ----------
    outages : Outages, optional
        How long an object store is tried.
    writes_index : bool, default False
        Whether an index is written; else nothing is.
    min_lines, min_objects : int
        Lines and files or objects that no index knows for which there is a new one.

    Examples
    --------
    >>> journal_totals("/no/such/folder").notes
    ('cannot read replies in /no/such/folder: No such file or directory',)
    """
    notes: list[str] = []

    def note(where: str, what: str) -> None:
        notes.append(f"{where} is {what}" if where else what)

    log = open_log(as_path(folder), note=note, outages=outages)
    rows, by_segment = IndexRows(), dict[str, SumsOf]()
    sums, damaged = Sums(), dict[str, Sums]()
    try:
        known = Index(log, keeps_rows=writes_index)
        sums, damaged = known.sums, known.damaged
        for read in log.read_rest(known.covered):
            by_segment.setdefault(read.segment, SumsOf()).add(read)
            if writes_index and not read.unended:
                rows.add(read)
        if rows.n_lines >= min_lines or rows.n_objects >= min_objects:
            rows.write(log, known)
    except RunStoppedError:
        raise
    except RunError as error:  # Of a store; who asks ends with it, and the others go on.
        notes.append(str(error))
    except OSError as error:
        note(INDEX_FOLDER, f"not written: {error.strerror}")
    for segment, counted in by_segment.items():
        sums += counted.sums
        if counted.sums.n_damaged:
            damaged = {**damaged, segment: damaged.get(segment, Sums()) + counted.sums}
    return JournalTotals(
        sums.n_replies,
        (sums.nano_usd + sums.damaged_nano_usd) / 1e9,
        sums.n_prompt_tokens,
        sums.n_completion_tokens,
        (*notes, *_told(damaged)),
    )


def _told(damaged: Mapping[str, Sums]) -> list[str]:
    notes = []
    for name, sums in sorted(damaged.items()):
        n_damaged, nano_usd = sums.n_damaged, sums.damaged_nano_usd
        what = "1 line is" if n_damaged == 1 else f"{n_damaged:,} lines are"
        cost = f"; ${nano_usd / 1e9:g} of them count as spent" if nano_usd else ""
        notes.append(f"{name}: {what} torn or damaged, left out{cost}")
    return notes
