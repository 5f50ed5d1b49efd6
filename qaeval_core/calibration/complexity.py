"""Expected complexity: how many reasoning steps reference questions of a corpus usually take."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from qaeval_core.configure import RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.families.contract import OnBatch
from qaeval_core.metrics.base import Settings
from qaeval_core.metrics.calibrated import ComplexityRecord
from qaeval_core.metrics.catalog import metric_of
from qaeval_core.metrics.targets import Targets
from qaeval_core.planning.compile import plan_chat
from qaeval_core.planning.job import Inputs, count_rows
from qaeval_core.planning.shards import ReadLimits
from qaeval_core.running.local_asking import ChatRunner
from qaeval_core.running.reader import draw_rows, read_rows
from qaeval_core.running.sampling import rows_of_sample
from qaeval_core.running.score_rows import ArrowStatistics


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
    name, settings = _only(config)
    (plan,) = plan_chat(name, config, columns={}).values()
    if plan.settings.journal_path is not None:
        return config
    settings = settings.model_copy(update={"journal_path": str(folder)})
    return config.model_copy(update={"metrics": {name: settings}})


def calibrate_complexity(
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
        With one instance, of a metric that has one; its journal keeps the replies.
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
    name, settings = _only(config)
    counts = count_rows(inputs.files, config.input.limit)
    sampled = rows_of_sample(inputs.files, counts, inputs.sample)
    rng = np.random.default_rng(seed)
    values = read_rows(
        inputs.files,
        draw_rows(sum(counts.values()), n_rows=n_questions, rng=rng, among=sampled),
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
    read = Targets(ArrowStatistics(pa.table(dict(prepared.work.statistics()))))
    found = metric_of(settings).calibrate(settings, plan.name, read, plan.facts)
    return ComplexityRecord(key=found.key, **found.record)


def _only(config: RunConfig) -> tuple[str, Settings]:
    ((name, settings), *others) = config.metrics.items()
    if others:
        raise ConfigError(
            f"expected complexity is calibrated for one instance of {settings.metric} at a time "
            "[QA0217]"
        )
    return name, settings


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else value
