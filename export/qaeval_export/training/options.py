"""Options: what a training job is asked for, and the command line that asks."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from qaeval_core.errors import nearest
from qaeval_core.terminal import say_error

# Low-rank factors start at zero and need a larger step than weights that are trained already.
_LEARNING_RATE_LORA = 5e-4
_LEARNING_RATE_FULL = 5e-5
_COLUMNS = ("text_a", "text_b", "score")
# What every wrong command line raises; typer exports its children alone.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)

_EPILOG = """Examples:

  qaeval train cross-encoder --pairs pairs.parquet --out sas-mine

  qaeval train cross-encoder --pairs sts.jsonl --scale 5 --out sas-mine \\
    --column text_a=sentence1 --column text_b=sentence2 --bf16

  qaeval train kpqa --squad train-v1.1.json --out kpqa-mine

  qaeval train kpqa --squad dev.parquet --out kpqa-mine --dry-run

  qaeval train reader --squad train-v2.0.json --out reader-mine

The same command resumes from the last checkpoint. OUT/model is a model
folder for every setting that takes one.

Exit codes: 0 done; 1 stopped or failed (run it again); 2 bad request.
"""

_INPUT, _OUTPUT, _MODEL, _TRAINING, _RUN = "Input", "Output", "Model", "Training", "Run"


def _positive(given: str) -> float:
    value = _number(given)
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"{given!r} is not a number above 0")
    return value


def _share(given: str) -> float:
    value = _number(given)
    if not 0 < value < 1:
        raise typer.BadParameter(f"{given!r} is not a number between 0 and 1")
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
            raise typer.BadParameter(
                f"{word!r} is not of the form name=column{nearest(name, _COLUMNS)}"
            )
    return words or []


def _option(*names: str, group: str, metavar: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=group, metavar=metavar, help=text, **more)


# Those whose defaults are the jobs' own.
_Epochs = Annotated[
    int, _option(group=_TRAINING, metavar="N", min=1, text="Passes over the training examples.")
]
_BatchSize = Annotated[
    int, _option(group=_TRAINING, metavar="N", min=1, text="Examples in one step.")
]
_MaxTokens = Annotated[
    int,
    _option(
        group=_TRAINING, metavar="N", min=1, text="Longest pair in tokens. Longer pairs are cut."
    ),
]
_SQUAD = _option(
    group=_INPUT,
    metavar="FILE",
    text="SQuAD JSON, or Parquet with context, question, answers and answer_starts. Repeatable.",
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

    dev: Annotated[
        Path | None,
        _option(
            group=_INPUT,
            metavar="FILE",
            text="Examples that epochs are evaluated on.",
            show_default="a held-out share",
        ),
    ] = None
    dev_share: Annotated[
        float,
        _option(
            group=_INPUT,
            parser=_share,
            metavar="SHARE",
            text="Share of examples to hold out if --dev is not given.",
        ),
    ] = 0.1
    out: Annotated[
        Path, _option(group=_OUTPUT, metavar="OUT", text="Folder for checkpoints and results.")
    ]
    base: Annotated[
        str,
        _option(
            group=_MODEL,
            metavar="MODEL",
            text="Encoder to start from: name of a bundled model, folder or hub id.",
        ),
    ] = "minilm"
    rank: Annotated[
        int,
        _option(
            group=_MODEL,
            metavar="N",
            min=0,
            text="Rank of the low-rank adapter. 0 trains all weights.",
        ),
    ] = 32
    epochs: _Epochs
    batch_size: _BatchSize
    rate: Annotated[
        float | None,
        _option(
            "--learning-rate",
            group=_TRAINING,
            parser=_positive,
            metavar="NUMBER",
            text="Highest learning rate.",
            show_default=f"{_LEARNING_RATE_LORA:g}, or {_LEARNING_RATE_FULL:g} with --rank 0",
        ),
    ] = None
    max_tokens: _MaxTokens
    seed: Annotated[
        int,
        _option(
            group=_RUN,
            metavar="N",
            min=0,
            text="Random seed. The same seed and input give the same result.",
        ),
    ] = 0
    bf16: Annotated[
        bool,
        _option(
            "--bf16",
            group=_TRAINING,
            metavar="",
            text="Train in bfloat16. Scores are still computed in fp32.",
        ),
    ] = False
    keep_last: Annotated[
        bool,
        _option(
            "--keep-last",
            group=_TRAINING,
            metavar="",
            text="Keep the weights of the last epoch instead of the best one.",
        ),
    ] = False
    checkpoint_steps: Annotated[
        int, _option(group=_RUN, metavar="N", min=1, text="Steps between checkpoints.")
    ] = 200
    threads: Annotated[
        int | None,
        _option(group=_RUN, metavar="N", min=1, text="CPU threads to use.", show_default="all"),
    ] = None
    dry_run: Annotated[
        bool,
        _option(
            "--dry-run",
            group=_RUN,
            metavar="",
            text="Show the planned work and its cost. Write nothing.",
        ),
    ] = False

    @property
    def learning_rate(self) -> float:
        """The highest one; it rises over the first tenth of the steps and falls to 0 linearly."""
        return self.rate or (_LEARNING_RATE_LORA if self.rank else _LEARNING_RATE_FULL)


# The classes below are the commands: typer reads their fields and returns what it makes of them.
app = typer.Typer(
    add_completion=False,
    help="Train your own model for sas, kpqa or roundtrip.\n\nIt writes an adapter, and the "
    "model merged with it.",
    epilog=_EPILOG,
)


@app.command(
    "cross-encoder",
    help="Train a cross-encoder for sas.\n\nIt predicts how similar two texts are, from 0 to 1.",
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
        _option(
            group=_INPUT,
            metavar="FILE",
            text="Parquet or JSONL with text_a, text_b, and score from 0 to 1. Repeatable.",
        ),
    ]
    column: Annotated[
        list[str] | None,
        _option(
            group=_INPUT,
            metavar="ROLE=NAME",
            callback=_check_columns,
            text="Read text_a, text_b or score from the column NAME. Repeatable.",
        ),
    ] = None
    scale: Annotated[
        float,
        _option(
            group=_INPUT,
            parser=_positive,
            metavar="NUMBER",
            text="Highest score in the files. Scores are divided by it.",
        ),
    ] = 1.0
    epochs: _Epochs = 3
    batch_size: _BatchSize = 32
    max_tokens: _MaxTokens = 128

    @property
    def columns(self) -> dict[str, str]:
        """Names in the files of ``text_a``, ``text_b`` and ``score``."""
        given = (word.partition("=") for word in self.column or ())
        return {**{name: name for name in _COLUMNS}, **{name: column for name, _, column in given}}


@app.command(
    "kpqa",
    help="Train a keyphrase predictor for kpqa.\n\nIt predicts which tokens of a text answer a "
    "question.",
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
    language: Annotated[
        str,
        _option(
            group=_INPUT,
            metavar="CODE",
            text="Language whose rules split sentences, as a spaCy code.",
        ),
    ] = "en"
    epochs: _Epochs = 5
    batch_size: _BatchSize = 64
    max_tokens: _MaxTokens = 96


@app.command(
    "reader",
    help="Train a reader for roundtrip.\n\nIt finds the answer to a question in a context.",
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
    command = typer.main.get_command(app)
    words = None if arguments is None else list(arguments)
    try:
        options = command.main(args=words, prog_name="qaeval train", standalone_mode=False)
    except _UsageError as error:
        say_error(f"{error.format_message()} (qaeval train --help shows examples) [QA0101]")
        sys.exit(2)
    if not isinstance(options, AnyOptions):
        sys.exit(options)  # The status of --help.
    return options
