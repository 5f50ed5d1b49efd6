"""calibrate: estimate baselines of a corpus: rescaling constants, expected complexity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from qaeval import arguments
from qaeval.arguments import (
    ColumnOption,
    ConfigOption,
    InputsArgument,
    MetricsOption,
    PluginOption,
    SeedOption,
    SetOption,
    option,
)

EPILOG = """Examples:

  qaeval calibrate data/ --corpus news --out baseline-news.json

  qaeval calibrate data/ --corpus news --column candidate=reference_question \\
    --set naco.base_url=$URL --set naco.model=NAME

  qaeval score data/ --out out --set qrelscore.baseline=baseline-news.json

  qaeval score data/ --out out \\
    --set naco.expected_complexity=complexity-news.json

Exit codes: 0 done; 1 stopped or failed; 2 bad request.
"""


def calibrate(
    inputs: InputsArgument = None,
    column: ColumnOption = None,
    corpus: Annotated[
        str | None,
        option(group=arguments.OUTPUT, metavar="NAME", text="Name of the corpus. Required."),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            group=arguments.OUTPUT,
            metavar="FILE",
            text="JSON file for the result.",
            show_default="baseline-NAME.json or complexity-NAME.json",
        ),
    ] = None,
    metrics: MetricsOption = None,
    plugin: PluginOption = None,
    config: ConfigOption = None,
    setting: SetOption = None,
    n_pairs: Annotated[
        int,
        option(
            group=arguments.RUN,
            metavar="N",
            min=2,
            text="For qrelscore: average over N random pairs of question and context.",
        ),
    ] = 1000,
    n_questions: Annotated[
        int,
        option(
            group=arguments.RUN,
            metavar="N",
            min=1,
            text="For naco: ask N reference questions.",
        ),
    ] = 200,
    seed: SeedOption = 0,
) -> None:
    """Estimate the baselines of a corpus for qrelscore or naco.

    For qrelscore these are the rescaling constants b_LRM and b_GRG: the mean
    raw scores of questions paired with contexts of other rows.

    For naco this is the expected complexity: the usual number of steps in
    which a model answers the reference questions of the corpus.
    """
    # Imported here: --help needs none of it.
    from qaeval.work.calibrate import calibrate_corpus
    from qaeval.work.config import Words

    words = Words(
        inputs=inputs,
        config=config,
        settings=setting,
        metrics=metrics,
        plugins=plugin,
        columns=column,
    )
    calibrate_corpus(
        words, corpus=corpus, out=out, n_pairs=n_pairs, n_questions=n_questions, seed=seed
    )
