"""Options: what a training job is asked for, and the command line that asks."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from qaeval_core.errors import nearest
from qaeval_core.terminal import say

# Low-rank factors start at zero and need a larger step than weights that are trained already.
_LEARNING_RATE_LORA = 5e-4
_LEARNING_RATE_FULL = 5e-5
_COLUMNS = ("text_a", "text_b", "score")
# What every wrong command line raises; typer exports its children alone.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

# The marks keep line ends as they are.
_EPILOG = """\b
Examples:
qaeval train cross-encoder --pairs pairs.parquet --out sas-mine
qaeval train cross-encoder --pairs sts.jsonl --dev dev.jsonl --scale 5 \\
  --base bert-base-uncased --column text_a=sentence1 \\
  --column text_b=sentence2 --epochs 2 --bf16 --out sas-mine
qaeval train kpqa --squad train-v1.1.json --out kpqa-mine
qaeval train kpqa --squad dev.parquet --out kpqa-mine --dry-run
qaeval train reader --squad train-v2.0.json --out reader-mine

The same command again goes on from the last checkpoint. OUT/model is a model folder for every
option that takes one. Exit status: 0 done, 1 stopped or failed (run again), 2 wrong request.
"""


def _positive(given: str) -> float:
    value = _number(given)
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"a number above 0 is needed: {given!r}")
    return value


def _share(given: str) -> float:
    value = _number(given)
    if not 0 < value < 1:
        raise typer.BadParameter(f"a share between 0 and 1 is needed: {given!r}")
    return value


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return math.nan


def _check_columns(words: list[str] | None) -> list[str]:
    for word in words or ():
        name, separator, column = word.partition("=")
        if not separator or not column or name not in _COLUMNS:
            raise typer.BadParameter(f"takes name=column, not {word!r}{nearest(name, _COLUMNS)}")
    return words or []


# Those whose defaults are the jobs' own.
_Epochs = Annotated[int, typer.Option(min=1, help="passes over the training examples")]
_BatchSize = Annotated[int, typer.Option(min=1, help="examples a step")]
_MaxTokens = Annotated[int, typer.Option(min=1, help="of a pair; longer ones are cut")]
_SQUAD = typer.Option(
    metavar="FILE",
    help="SQuAD JSON, or Parquet with context, question, answers, answer_starts; may be repeated",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What all jobs take.

    Attributes
    ----------
    out : Path
        Folder of checkpoints and results.
    base : str
        Embedded name, folder, or hub id of the encoder to start from.
    epochs, batch_size : int
    rate : float or None
        What was asked for; ``learning_rate`` is what is used.
    rank : int
        Of the low-rank factors; 0 trains every weight.
    max_tokens : int
        Longest pair, special tokens included; longer ones are cut.
    dev : Path or None
    dev_share : float
        Held out where no dev file is given.
    keep_last : bool
        Keep the weights of the last epoch, whatever its dev loss: trainings of equal length stay
        of equal length.
    """

    out: Annotated[Path, typer.Option(metavar="DIR", help="folder of the results")]
    base: Annotated[str, typer.Option(help="embedded name, folder, or hub id")] = "minilm"
    epochs: _Epochs
    batch_size: _BatchSize
    rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            parser=_positive,
            metavar="NUMBER",
            help=f"default {_LEARNING_RATE_LORA:g}, with --rank 0 {_LEARNING_RATE_FULL:g}",
        ),
    ] = None
    rank: Annotated[int, typer.Option(min=0, help="of the adapter; 0: train all")] = 32
    max_tokens: _MaxTokens
    dev: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="examples to judge epochs by; else a held-out share"),
    ] = None
    dev_share: Annotated[
        float, typer.Option(parser=_share, metavar="SHARE", help="held out if no --dev")
    ] = 0.1
    seed: Annotated[int, typer.Option(min=0, help="of splits, batches and new weights")] = 0
    bf16: Annotated[bool, typer.Option("--bf16", help="train in bfloat16 (scores stay fp32)")] = (
        False
    )
    keep_last: Annotated[
        bool, typer.Option("--keep-last", help="keep the last epoch's weights, not the best one's")
    ] = False
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="steps between checkpoints")] = 200
    threads: Annotated[int | None, typer.Option(min=1, help="of the CPU; default all")] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print counts, tokens and steps; train nothing")
    ] = False

    @property
    def learning_rate(self) -> float:
        """The highest one; it rises over the first tenth of the steps and falls to 0 linearly."""
        return self.rate or (_LEARNING_RATE_LORA if self.rank else _LEARNING_RATE_FULL)


# The classes below are the commands: typer reads their fields and returns what it makes of them.
_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Train a model that a metric needs: an adapter, and the merged model.",
    epilog=_EPILOG,
)


@_app.command(
    "cross-encoder",
    help="Train a cross-encoder (sas): how similar in meaning two texts are, in [0, 1].",
    epilog=_EPILOG,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoderOptions(TrainingOptions):
    """Training pairs of texts with a similarity.

    Attributes
    ----------
    pairs : list of Path
        Parquet or JSONL.
    column : list of str or None
        As given; ``columns`` says what they mean.
    scale : float
        Scores are divided by it, to lie in [0, 1].
    """

    pairs: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Parquet or JSONL with text_a, text_b and score in [0, 1]; may be repeated",
        ),
    ]
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            callback=_check_columns,
            help="what text_a, text_b or score is called in the files",
        ),
    ] = None
    scale: Annotated[
        float, typer.Option(parser=_positive, metavar="NUMBER", help="highest score of the files")
    ] = 1.0
    epochs: _Epochs = 3
    batch_size: _BatchSize = 32
    max_tokens: _MaxTokens = 128

    @property
    def columns(self) -> dict[str, str]:
        """Names in the files of ``text_a``, ``text_b`` and ``score``."""
        given = (word.partition("=") for word in self.column or ())
        return {**{name: name for name in _COLUMNS}, **{name: column for name, _, column in given}}


@_app.command(
    "kpqa",
    help="Train a keyphrase predictor (kpqa): which tokens of a text answer a question.",
    epilog=_EPILOG,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class KpqaOptions(TrainingOptions):
    """Training questions with the place of their answers.

    Attributes
    ----------
    squad : list of Path
        SQuAD JSON, or Parquet with its fields as columns.
    language : str
        Whose rules split contexts into sentences.
    """

    squad: Annotated[list[Path], _SQUAD]
    language: Annotated[str, typer.Option(help="whose rules split sentences (spaCy's code)")] = "en"
    epochs: _Epochs = 5
    batch_size: _BatchSize = 64
    max_tokens: _MaxTokens = 96


@_app.command(
    "reader",
    help="Train a reader (roundtrip): where in a context the answer of a question stands.",
    epilog=_EPILOG,
)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions(TrainingOptions):
    """Training questions with the place of their answers, or with none.

    Attributes
    ----------
    squad : list of Path
        SQuAD JSON, or Parquet with its fields as columns; 2.0 has questions without an answer.
    """

    squad: Annotated[list[Path], _SQUAD]
    epochs: _Epochs = 3
    batch_size: _BatchSize = 32
    max_tokens: _MaxTokens = 384


AnyOptions = CrossEncoderOptions | KpqaOptions | ReaderOptions


def parse_options(arguments: Sequence[str] | None) -> AnyOptions:
    """Return the options of a command line; exits with status 2 if it is wrong."""
    command = typer.main.get_command(_app)
    words = None if arguments is None else list(arguments)
    try:
        options = command.main(args=words, prog_name="qaeval train", standalone_mode=False)
    except _UsageError as error:
        say(f"error: {error.format_message()} (qaeval train --help shows examples)")
        sys.exit(2)
    if not isinstance(options, AnyOptions):
        sys.exit(options)  # The status of --help.
    return options
