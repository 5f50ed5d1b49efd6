"""Asking: the questions of a shard through an endpoint, and what each reply says.

A reply that cannot be read is asked for once more, with a reminder of its form. One that was cut,
filtered or refused is not read, for a part of a reply is none; nor is it asked for again, for it
would end alike. A run that has no readable reply does not count, whatever the reason: a fault is
never a score.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from qaeval_core.errors import ConfigError, LanguageModelError, RunError
from qaeval_core.families.chat.family import (
    ChatFamily,
    ChatFamilyPlan,
    ChatWork,
    ParsedReply,
    PromptRequest,
    Reading,
)
from qaeval_core.families.contract import Prepared
from qaeval_core.llm.asker import Answer, Asker
from qaeval_core.llm.budget import Budget
from qaeval_core.llm.client import ChatClient, Endpoint
from qaeval_core.llm.governor_client import GovernorClient, reconcile
from qaeval_core.llm.journal import Journal
from qaeval_core.llm.journal_entry import JournalEntry
from qaeval_core.llm.key import KEY_VARIABLE, ApiKey, check_address
from qaeval_core.llm.limits import Limits, Message, Prices, estimate_tokens
from qaeval_core.llm.reply_body import (
    CUT,
    MAX_REPLY_BYTES,
    OVERLONG,
    end_of,
    is_overlong,
    kept_text,
    whole_text,
)
from qaeval_core.llm.responses import UNEXPECTED
from qaeval_core.llm.retry import RetryRule
from qaeval_core.llm.waits import Patience
from qaeval_core.metrics.chat import UNPARSABLE
from qaeval_core.signature import hash_text
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.storage.retry import Outages
from qaeval_core.store.pass_stats import PassStats

_MAX_CHARS_AT_ONCE = 4000
_MAX_SHOWN_CHARS = 200

# (account, limits, budget) -> the governor of that account, here or in another process.
OpenGovernor = Callable[[str, Limits, Budget], GovernorClient]
# Called with the number of rows as requests are done.
OnRows = Callable[[int], None]


def endpoint_of(plan: ChatFamilyPlan) -> Endpoint:
    """Return where and how a family asks."""
    settings = plan.settings
    return Endpoint(
        base_url=str(settings.base_url),
        model=str(settings.model),
        parameters=settings.parameters,
        timeout_s=settings.timeout_s,
        query=settings.query or {},
        header_names=plan.header_names,
        api=settings.api,
    )


def limits_of(plan: ChatFamilyPlan) -> Limits:
    """Return the limits of the account that a family asks on."""
    settings = plan.settings
    return Limits(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        window_s=settings.limit_window_s,
    )


def budget_of(plan: ChatFamilyPlan) -> Budget:
    """Return what a family pays from: one budget a journal."""
    name = hash_text(str(journal_folder(plan)))
    return Budget(name, plan.settings.budget_usd, section=plan.section)


def prices_of(plan: ChatFamilyPlan) -> Prices:
    """Return what the endpoint charges; nothing where no prices are given."""
    given = plan.settings.prices
    return Prices(given.prompt, given.completion) if given is not None else Prices()


def journal_folder(plan: ChatFamilyPlan) -> StoragePath:
    """Return where replies are kept.

    Raises
    ------
    ConfigError
        If there is neither a setting nor an OUT to say where.
    """
    if plan.journal_path is None:
        raise ConfigError(
            f"{plan.section}journal_path is missing: name a folder for paid replies, because there "
            "is no OUT [QA0207]"
        )
    return as_path(plan.journal_path)


async def open_asker(
    plan: ChatFamilyPlan,
    *,
    open_governor: OpenGovernor,
    n_actors: int = 1,
    outages: Outages | None = None,
) -> tuple[Asker, GovernorClient, str]:
    """Return what asks, its governor, and the name of the account; the key is read here.

    Parameters
    ----------
    n_actors : int, default 1
        Who share ``max_concurrent``.
    outages : Outages, optional
        How long an object store is tried that keeps replies; default once.

    Raises
    ------
    LanguageModelError
        If the key cannot be read, replies or the ledger cannot be kept, or a governor elsewhere
        holds the account: no call can be made.
    """
    try:
        return await _open_asker(plan, open_governor, n_actors, outages)
    except (ConfigError, RunError) as error:
        raise LanguageModelError(str(error)) from None


async def _open_asker(
    plan: ChatFamilyPlan, open_governor: OpenGovernor, n_actors: int, outages: Outages | None
) -> tuple[Asker, GovernorClient, str]:
    settings = plan.settings
    client = _client(plan)
    governor = open_governor(client.account, limits_of(plan), budget_of(plan))
    folder = journal_folder(plan)
    journal = await asyncio.to_thread(
        Journal,
        folder,
        with_text=plan.keeps_replies,
        section=plan.section,
        linger_s=settings.journal_linger_s,
        outages=outages,
    )
    await reconcile(governor, journal, account=client.account)
    asker = Asker(
        client,
        governor,
        journal,
        prices=prices_of(plan),
        parse=plan.family.parsed,
        rule=RetryRule(max_outage_s=settings.max_outage_s),
        # Rounded down: together they make no more than they may.
        max_concurrent=max(settings.max_concurrent // n_actors, 1),
    )
    return asker, governor, client.account


def _client(plan: ChatFamilyPlan) -> ChatClient:
    settings, section = plan.settings, plan.section
    if not settings.allow_insecure:
        check_address(str(settings.base_url), proxy=settings.proxy, section=section)
    read_key = partial(
        ApiKey.read,
        path=settings.api_key_file,
        variable=KEY_VARIABLE if KEY_VARIABLE in os.environ else None,
        headers_path=settings.headers_file,
        allow_insecure=settings.allow_insecure,
        section=section,
    )
    patience = Patience(
        most_s=settings.max_outage_s,
        most_by_clock_s=min(settings.limit_window_s, settings.max_outage_s),
    )
    return ChatClient(
        endpoint_of(plan), read_key(), proxy=settings.proxy, patience=patience, read_key=read_key
    )


async def close_asker(asker: Asker) -> None:
    """End what `open_asker` opened: what is still asked is given up, and its journal closed."""
    try:
        await asker.aclose()
    finally:
        await asyncio.to_thread(asker.journal.close)


async def ask_shard(
    asker: Asker, plan: ChatFamilyPlan, prepared: Prepared[ChatWork], on_rows: OnRows
) -> None:
    """Ask all requests of a shard and keep what came of them.

    Raises
    ------
    QAEvalError
        Of the first request that could not be asked, once every other one has ended: calls under
        way are paid for, so they are waited for.
    """
    work, stats = prepared.work, prepared.stats

    async def ask(request: PromptRequest) -> None:
        runs = (_ask_run(asker, plan, request.messages, run, stats) for run in range(work.n_runs))
        work.take(request, await wait_for_all(runs))
        on_rows(len(request.rows))

    await wait_for_all(ask(request) for request in work.requests)


async def wait_for_all(tasks: Iterable[Awaitable[Any]]) -> list[Any]:
    """Return the results of awaitables; the first error, if any, is raised when all have ended."""
    results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def _ask_run(
    asker: Asker,
    plan: ChatFamilyPlan,
    messages: Sequence[Message],
    run_index: int,
    stats: PassStats,
) -> Reading:
    """Return what came of one run, after one reminder if need be."""
    reading = await _ask_once(asker, plan, messages, run_index, stats)
    if reading.problem != UNPARSABLE:
        return reading
    stats.count("reminders")
    reading = await _ask_once(asker, plan, plan.family.remind(messages), run_index, stats)
    if reading.problem == UNPARSABLE:
        stats.count("unparsable")
    return reading


async def _ask_once(
    asker: Asker,
    plan: ChatFamilyPlan,
    messages: Sequence[Message],
    run_index: int,
    stats: PassStats,
) -> Reading:
    n_tokens = estimate_tokens(messages)
    answer = await asker.ask(messages, n_prompt_tokens=n_tokens, run_index=run_index)
    _count(answer, stats)
    if answer.entry is None:
        stats.count(f"given_up:{answer.reason}")
        return Reading(reply=None, problem=answer.reason, message=answer.message)
    ended = _end_of(answer.entry)
    if ended is not None:
        stats.count(f"no_verdict:{ended}")
        message = _end_message(ended, answer.entry, section=plan.section)
        return Reading(reply=None, problem=ended, message=message, key=answer.entry.key)
    try:
        reply = await _read_answer(plan.family, answer.entry, is_new=answer.is_new)
    except Exception as error:  # An error of this program: this reply's, and no other's.
        stats.count(f"given_up:{UNEXPECTED}")
        message = f"the reply could not be read: {type(error).__name__}: {error}"
        return Reading(reply=None, problem=UNEXPECTED, message=message)
    if reply.is_readable:
        return Reading(reply=reply, key=answer.entry.key)
    return Reading(reply=reply, problem=UNPARSABLE, message=reply.problem, key=answer.entry.key)


def _end_of(entry: JournalEntry) -> str | None:
    """Return why a journaled reply is no verdict; its text may be cut where no mark says so."""
    ended = end_of(entry.finish_reason)
    if ended is None and is_overlong(kept_text(whole_text(entry.text or ""))):
        return CUT
    return ended


def _end_message(ended: str, entry: JournalEntry, *, section: str) -> str:
    """Return how a reply ended that is no verdict, for people."""
    how = f"finish_reason {entry.finish_reason!r}"
    if (ended == CUT and end_of(entry.finish_reason) is None) or entry.finish_reason == OVERLONG:
        return (
            f"cut here: of a reply {MAX_REPLY_BYTES >> 10} kB are read behind its thoughts; ask "
            "for a shorter one"
        )
    if ended == CUT:
        return (
            f"cut after {entry.n_completion_tokens:,} tokens, thoughts included ({how}): give it "
            f"more, --set {section}max_tokens=N"
        )
    said = f": {entry.text[:_MAX_SHOWN_CHARS]}" if entry.text else ""
    return f"the reply ended by {how}{said}"


async def _read_answer(family: ChatFamily, entry: JournalEntry, *, is_new: bool) -> ParsedReply:
    """Return what a reply says; a new one was read for the journal, and is not read again.

    A long one is read beside the event loop. 4,000 characters take 30 ms at most, 64 kB half a
    second: all other calls would wait for it.
    """
    if is_new and entry.parsed is not None:
        return family.reply_of(entry.parsed)
    if len(entry.text or "") <= _MAX_CHARS_AT_ONCE:
        return read_entry(family, entry)
    return await asyncio.to_thread(read_entry, family, entry)


def read_entry(family: ChatFamily, entry: JournalEntry) -> ParsedReply:
    """Return what a journaled reply says: of its text, or what was read of a text that is gone."""
    if entry.text is not None or entry.parsed is None:
        return family.read(kept_text(whole_text(entry.text or "")))
    return family.reply_of(entry.parsed)


def _count(answer: Answer, stats: PassStats) -> None:
    for failure in answer.failures:
        stats.count(f"failed:{failure}")
    for note in answer.notes:
        stats.count(f"noted:{note}")
    if answer.entry is None:
        return
    if answer.is_from_journal:
        stats.count("from_journal")
        return
    entry = answer.entry
    stats.n_tokens += entry.n_prompt_tokens + entry.n_completion_tokens
    stats.count("paid")
    stats.count("prompt_tokens", entry.n_prompt_tokens)
    stats.count("completion_tokens", entry.n_completion_tokens)
    stats.count("nano_usd", round(entry.usd * 1e9))
