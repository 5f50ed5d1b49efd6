"""Dry run: what a run would read, share and compute; runs no model, writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from qaeval_core.configure import RunConfig
from qaeval_core.errors import UnreadableFileError
from qaeval_core.families.chat.family import ChatFamilyPlan, ChatWork, is_chat
from qaeval_core.families.contract import FamilyPlan, Prepared
from qaeval_core.families.model_family import is_model
from qaeval_core.families.model_units import Work
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import Asked
from qaeval_core.llm.limits import dollars, estimate_tokens
from qaeval_core.planning.job import Inputs, Job, count_rows
from qaeval_core.planning.sample import chosen_values, sampled_rows
from qaeval_core.running.chat_asker import (
    endpoint_of,
    limits_of,
    prices_of,
)
from qaeval_core.running.piece_worker import UNREADABLE, open_reader
from qaeval_core.storage.files import expanded
from qaeval_core.storage.path import as_path
from qaeval_core.store.pass_stats import PassStats
from qaeval_core.terminal import duration

# Tokenizing is cheap beside scoring, not beside reading: estimate from so many rows.
_MAX_ROWS = 20_000
# Microseconds of one CPU a row: to join it, for each column of scores more, to count its n-grams.
_JOIN_US, _COLUMN_US, _COUNT_US = 2.0, 0.5, 8.0


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
                yield from call_lines(family, _laid_out(job, family), n_left=n_rows)
            if family.after and not _is_there(job, family.frequencies_path):
                yield f"  before it, document frequencies: {_cpu_time(job, _COUNT_US)}"
    n_columns = sum(own.is_score for plan in job.run.instances for own in plan.columns)
    yield (
        f"join: {job.n_rows_total:,} rows into {len(job.files):,} files of scores, "
        f"{_cpu_time(job, _JOIN_US + _COLUMN_US * n_columns)}"
    )


def _is_there(job: Job, name: str) -> bool:
    path = job.store.out / name
    return job.store.call(path.is_file, f"cannot look at {path}")


def _cpu_time(job: Job, microseconds: float) -> str:
    """Return about how long a stage behind the passes takes."""
    return f"about {duration(job.n_rows_total * microseconds / 1e6)} of one CPU"


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
                    chosen = sampled_rows(table, job.sample)
                    values = chosen_values(table, chosen, columns=family.columns, piece=piece)
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


@dataclass(slots=True)
class Calls:
    """What rows would ask for; ``keys`` tells equal requests of several shards apart."""

    n_rows: int = 0
    n_not_sampled: int = 0
    n_quarantined: int = 0
    n_asked: int = 0
    n_unshared: int = 0
    n_in_journal: int = 0
    n_calls: int = 0
    n_prompt_tokens: int = 0
    n_too_large: int = 0
    keys: set[bytes] = field(default_factory=set)


def call_lines(
    plan: ChatFamilyPlan, laid_out: Iterable[Prepared[ChatWork]], *, n_left: int
) -> Iterator[str]:
    """Yield calls, tokens, money and time that are left at most; sends nothing, writes nothing.

    Parameters
    ----------
    laid_out : iterable of Prepared
        Rows that are left to ask for, or the first of them.
    n_left : int
        All rows that are left.
    """
    calls = _measure(plan, laid_out)
    factor = n_left / max(calls.n_rows + calls.n_not_sampled, 1)
    about = "" if factor == 1 else f" (estimated from {calls.n_rows:,} rows)"
    n_calls = calls.n_calls * factor
    n_completion = n_calls * plan.settings.max_tokens
    n_prompt = calls.n_prompt_tokens * factor
    n_equal = calls.n_unshared - calls.n_calls - calls.n_in_journal
    n_without = calls.n_rows - calls.n_quarantined - calls.n_asked
    yield (
        f"  {n_calls:,.0f} calls to {plan.settings.model} at {plan.settings.base_url}; "
        f"{n_equal * factor:,.0f} equal ones are asked once, {calls.n_in_journal * factor:,.0f} "
        f"replies are in the journal, {calls.n_quarantined * factor:,.0f} rows to quarantine, "
        f"{n_without * factor:,.0f} rows are undefined without a call{about}"
    )
    yield f"  {n_prompt:,.0f} prompt tokens by estimate, {n_completion:,.0f} of replies at most"
    yield _money_line(plan, n_prompt=n_prompt, n_completion=n_completion)
    yield _time_line(plan, n_calls=n_calls, n_tokens=n_prompt + n_completion)
    if calls.n_too_large:
        yield (
            f"  {calls.n_too_large * factor:,.0f} calls hold more tokens than tokens_per_minute: "
            "they can never be sent (llm_call_over_limit)"
        )
    key_file = plan.settings.api_key_file
    if key_file is not None and not expanded(key_file).is_file():
        yield f"  key: there is no file {key_file} on this machine; nodes that call must have it"


def _money_line(plan: ChatFamilyPlan, *, n_prompt: float, n_completion: float) -> str:
    if plan.settings.prices is None:
        return f"  money: unknown without {plan.settings.metric}.prices"
    usd = prices_of(plan).cost_usd(
        n_prompt_tokens=round(n_prompt), n_completion_tokens=round(n_completion)
    )
    budget = plan.settings.budget_usd
    shown = "" if budget is None else f"; budget_usd is {dollars(budget)}"
    if budget is not None and budget < usd:
        shown += ", so it may stop before the end"
    return f"  money: {dollars(usd)} for so many tokens{shown}"


def _time_line(plan: ChatFamilyPlan, *, n_calls: float, n_tokens: float) -> str:
    """Return how long the limits make it last: one of the two binds."""
    limits = limits_of(plan)
    windows = {
        "requests_per_minute": n_calls / (limits.requests_per_minute or float("inf")),
        "tokens_per_minute": n_tokens / (limits.tokens_per_minute or float("inf")),
    }
    binding = max(windows, key=lambda name: windows[name])
    if not windows[binding]:
        return "  time: depends on the endpoint; no limit is given" if n_calls else "  time: none"
    seconds = windows[binding] * limits.window_s
    return (
        f"  time: {duration(seconds)} at least, by {binding}; calls that are asked again, for "
        "faults or unreadable replies, come on top"
    )


def _measure(plan: ChatFamilyPlan, laid_out: Iterable[Prepared[ChatWork]]) -> Calls:
    journal = _existing_journal(plan)
    calls = Calls()
    for prepared in laid_out:
        calls.n_rows += prepared.stats.n_rows
        calls.n_not_sampled += prepared.stats.n_not_sampled
        calls.n_quarantined += prepared.stats.n_quarantined
        calls.n_asked += sum(len(request.rows) for request in prepared.work.requests)
        calls.n_unshared += prepared.stats.n_units_unshared
        _count(calls, plan, prepared.work, journal)
    return calls


def _count(calls: Calls, plan: ChatFamilyPlan, work: ChatWork, journal: Journal | None) -> None:
    settings, endpoint = plan.settings, endpoint_of(plan)
    for request in work.requests:
        n_tokens = estimate_tokens(request.messages)
        for run in range(work.n_runs):
            key = endpoint.request_key(request.messages, run_index=run)
            if bytes.fromhex(key) in calls.keys:
                continue
            calls.keys.add(bytes.fromhex(key))
            asked = Asked(endpoint.base_url, endpoint.model, run)
            if journal is not None and journal.get(key, asked) is not None:
                calls.n_in_journal += 1
            else:
                calls.n_calls += 1
                calls.n_prompt_tokens += n_tokens
                most = settings.tokens_per_minute
                calls.n_too_large += most is not None and n_tokens + settings.max_tokens > most


def _existing_journal(plan: ChatFamilyPlan) -> Journal | None:
    """Return the journal if there is one: a dry run makes none."""
    if plan.journal_path is None:
        return None
    folder = as_path(plan.journal_path)
    return Journal(folder, section=plan.section) if folder.is_dir() else None
