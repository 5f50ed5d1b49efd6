"""Dry run: what a run would read, share and compute; runs no model, writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from qaeval_core.configure import RunConfig
from qaeval_core.errors import UnreadableFileError
from qaeval_core.families.chat.family import is_chat
from qaeval_core.families.contract import FamilyPlan, Prepared
from qaeval_core.families.model_family import is_model
from qaeval_core.families.model_units import Work
from qaeval_core.planning.job import Inputs, Job, count_rows
from qaeval_core.planning.sample import chosen_values, sampled_rows
from qaeval_core.running.piece_worker import UNREADABLE, open_reader
from qaeval_core.store.pass_stats import PassStats

# Tokenising is cheap beside scoring, not beside reading: estimate from so many rows.
_MAX_ROWS = 20_000


def input_lines(inputs: Inputs, config: RunConfig) -> Iterator[str]:
    """Yield what the inputs are."""
    n_rows = sum(file.n_rows for file in inputs.files)
    n_bytes = sum(file.version.size_bytes for file in inputs.files)
    yield f"input: {len(inputs.files):,} files, {n_rows:,} rows, {n_bytes / 2**20:,.1f} MiB"
    if config.input.limit is not None:
        yield f"limit: the first {min(config.input.limit, n_rows):,} rows"
    if inputs.sample is not None:
        yield inputs.sample.line(sum(count_rows(inputs.files, config.input.limit).values()))
    yield from (f"note: {problem}" for problem in inputs.problems)
    yield "columns: " + ", ".join(f"{role}={name}" for role, name in inputs.columns.items())


def dry_run_lines(job: Job) -> Iterator[str]:
    """Yield, per family, what is left to do: shards, rows, distinct units, tokens."""
    verb = "score" if job.sample is None else "look at"
    for families in job.run.passes:
        pieces = job.pieces(families, n_actors=1)
        for family in families:
            own = [piece for piece in pieces if family.key in piece.families]
            n_rows = sum(piece.n_rows for piece in own)
            n_shards = sum(len(piece.shards) for piece in own)
            done = job.n_rows_total - n_rows
            yield (
                f"{family.title}: {n_rows:,} rows to {verb} in {n_shards:,} shards, {done:,} "
                "committed"
            )
            if own and is_model(family):
                yield _units_line(_laid_out(job, family), n_rows=n_rows)
            if own and is_chat(family):
                # Imported here: HTTP takes a tenth of a second that other runs need not pay.
                from qaeval_core.dry_run_calls import call_lines

                yield from call_lines(family, _laid_out(job, family), n_left=n_rows)


def _laid_out(job: Job, family: FamilyPlan) -> Iterator[Prepared[Any]]:
    """Yield parts of the rows that are left to score, laid out."""
    layout = family.open_layout()
    reader = open_reader(family.columns, job.store)
    n_rows = 0
    for piece in job.pieces([family], n_actors=1):
        for rows in piece.shards:
            if n_rows >= _MAX_ROWS:
                return
            left = rows.n_rows
            try:
                for part, table in reader.parts(piece, rows):
                    chosen, max_bytes = sampled_rows(table, job.sample), piece.limits.text_bytes
                    values = chosen_values(
                        table, chosen, columns=family.columns, max_bytes=max_bytes
                    )
                    prepared = layout.prepare(values, chosen=chosen)
                    n_rows, left = n_rows + prepared.stats.n_rows, left - part.n_rows
                    yield prepared
            except UnreadableFileError as error:
                # As the run would: a verdict on these rows, and on no others.
                n_rows += left
                yield layout.quarantined(n_rows=left, reason=UNREADABLE, message=str(error))


def _units_line(laid_out: Iterable[Prepared[Work]], *, n_rows: int) -> str:
    stats, n_tokens = PassStats(), 0
    for prepared in laid_out:
        stats.add(prepared.stats)
        n_tokens += int(prepared.work.units.lengths.sum())
    factor = n_rows / max(stats.n_rows + stats.n_not_sampled, 1)
    about = "" if factor == 1 else f" (estimated from {stats.n_rows:,} rows)"
    return (
        f"  {stats.n_units * factor:,.0f} distinct units of "
        f"{stats.n_units_unshared * factor:,.0f}, {n_tokens * factor:,.0f} tokens, "
        f"{stats.n_quarantined * factor:,.0f} rows to quarantine{about}"
    )
