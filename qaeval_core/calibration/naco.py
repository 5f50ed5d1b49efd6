"""Calibrate NACo: how many reasoning steps reference questions of a corpus usually take."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from qaeval_core.configure import RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.families.plan import OnBatch
from qaeval_core.job import Inputs, count_rows
from qaeval_core.metrics.calibrated import ComplexityRecord
from qaeval_core.metrics.chat import UNPARSABLE
from qaeval_core.metrics.naco import (
    PROFILES,
    NacoSettings,
    complexity_key,
    expected_complexity,
)
from qaeval_core.planning.compile import plan_chat
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.running.local_calls import ChatRunner
from qaeval_core.running.reader import draw_rows, read_rows


def calibration_roles(config: RunConfig) -> tuple[str, str]:
    """Return what is read: the references where a column is mapped to them, else the candidate."""
    question = "references" if "references" in config.input.columns else "candidate"
    return question, "context"


def with_journal(config: RunConfig, folder: Path) -> RunConfig:
    """Return a configuration whose replies are kept in a folder, unless it names one itself.

    Raises
    ------
    ConfigError
        If other metrics are configured too.
    """
    name, settings = _only_naco(config)
    if settings.journal_path is not None:
        return config
    settings = settings.model_copy(update={"journal_path": str(folder)})
    return config.model_copy(update={"metrics": {name: settings}})


def calibrate_naco(
    config: RunConfig,
    inputs: Inputs,
    *,
    n_questions: int,
    seed: int,
    on_batch: OnBatch | None = None,
    stop: threading.Event | None = None,
) -> ComplexityRecord:
    """Return the expected complexity of a corpus, from a sample of its reference questions.

    Parameters
    ----------
    config : RunConfig
        With one instance, of ``naco``; its journal keeps the replies.
    inputs : Inputs
        With the roles of `calibration_roles`; of several references the first is asked.
    n_questions : int
        At most so many rows are asked.
    seed : int
        Of the sample.
    stop : threading.Event, optional
        Set to stop: RunStoppedError.

    Raises
    ------
    ConfigError
        If other metrics are configured too, or no endpoint is named.
    InputError
        If no question was natural and answered.
    LanguageModelError
        If calls cannot go on; what was paid for is in the journal.
    """
    name, settings = _only_naco(config)
    counts = count_rows(inputs.files, config.input.limit)
    values = read_rows(
        inputs.files,
        draw_rows(sum(counts.values()), n_rows=n_questions, rng=np.random.default_rng(seed)),
        n_rows=counts,
        columns=inputs.columns,
        limits=ReadLimits(config.scoring.max_shard_bytes, config.scoring.max_text_bytes),
    )
    question, context = calibration_roles(config)
    rows = {
        "candidate": [_first(value) for value in values[question]],
        "context": values[context],
    }
    columns = {"candidate": inputs.columns[question], "context": inputs.columns[context]}
    (plan,) = plan_chat(name, config, columns=columns).values()
    runner = ChatRunner(plan, stop=stop)
    prepared = runner.layout.prepare(rows)
    runner.run(prepared, on_batch)
    return _record(settings, prepared.work.statistics(), prompt=str(plan.options["prompt"]))


def _only_naco(config: RunConfig) -> tuple[str, NacoSettings]:
    ((name, settings), *others) = config.metrics.items()
    if others or not isinstance(settings, NacoSettings):
        raise ConfigError("expected complexity is calibrated for one instance of naco alone")
    return name, settings


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else value


def _record(
    settings: NacoSettings, statistics: Mapping[str, pa.Array], *, prompt: str
) -> ComplexityRecord:
    columns = {name: column.to_pylist() for name, column in statistics.items()}
    problems: list[list[str | None]] = columns["problem"]
    counted = [[problem is None for problem in own] for own in problems]
    steps = {
        profile: [
            _steps(*row, unnatural_counts=profile == "authors")
            for row in zip(
                columns["n_steps"],
                columns["is_question"],
                columns["is_natural"],
                counted,
                strict=True,
            )
        ]
        for profile in PROFILES
    }
    e = {profile: expected_complexity(own, profile=profile) for profile, own in steps.items()}
    return ComplexityRecord(
        key=complexity_key(settings, prompt=prompt),
        paper=e["paper"],
        authors=e["authors"],
        n_questions=sum(any(own) for own in counted),
        n_runs=sum(map(sum, counted)),
        n_unreadable=sum(problem == UNPARSABLE for own in problems for problem in own),
        n_failed=sum(problem not in (None, UNPARSABLE) for own in problems for problem in own),
        n_unnatural=sum(natural is False for own in columns["is_natural"] for natural in own),
        n_steps=dict(sorted(Counter(np.concatenate(steps["paper"]).tolist()).items())),
    )


def _steps(
    n_steps: Sequence[int],
    is_question: Sequence[bool],
    is_natural: Sequence[bool],
    is_counted: Sequence[bool],
    *,
    unnatural_counts: bool,
) -> list[int]:
    """Return the steps of a question's runs that count and have n > 0."""
    verdicts = is_question if unnatural_counts else is_natural
    return [
        max(n, 1)
        for n, verdict, counted in zip(n_steps, verdicts, is_counted, strict=True)
        if counted and verdict
    ]
