"""Options: what a training job is asked for, and the command line that asks."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from qaeval_core.suggest import nearest

__all__ = ["CrossEncoderOptions", "KpqaOptions", "TrainingOptions", "parse_options"]

# Low-rank factors start at zero and need a larger step than weights that are trained already.
_LEARNING_RATE_LORA = 5e-4
_LEARNING_RATE_FULL = 5e-5

_EPILOG = """\
examples:
  qaeval train cross-encoder --pairs pairs.parquet --out sas-mine
  qaeval train cross-encoder --pairs sts.jsonl --dev dev.jsonl --scale 5 --base bert-base-uncased \\
    --column text_a=sentence1 --column text_b=sentence2 --epochs 2 --bf16 --out sas-mine
  qaeval train kpqa --squad train-v1.1.json --out kpqa-mine
  qaeval train kpqa --squad dev.parquet --out kpqa-mine --dry-run

The same command again goes on from the last checkpoint. OUT/model is a model folder for every
option that takes one. Exit status: 0 done, 1 stopped or failed (run again), 2 wrong request.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What both jobs take.

    Attributes
    ----------
    base : str
        Embedded name, folder, or hub id of the encoder to start from.
    out : Path
        Folder of checkpoints and results.
    epochs, batch_size : int
    learning_rate : float
        Highest one; it rises over the first tenth of the steps and falls to 0 linearly.
    rank : int
        Of the low-rank factors; 0 trains every weight.
    max_tokens : int
        Longest pair, special tokens included; longer ones are cut.
    dev_share : float
        Held out where no dev file is given.
    """

    base: str
    out: Path
    epochs: int
    batch_size: int
    learning_rate: float
    rank: int
    max_tokens: int
    dev_share: float
    seed: int
    bf16: bool
    checkpoint_steps: int
    threads: int | None
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoderOptions(TrainingOptions):
    """Training pairs of texts with a similarity.

    Attributes
    ----------
    pairs : tuple of Path
        Parquet or JSONL.
    dev : Path or None
    columns : mapping of str to str
        Names in the files of ``text_a``, ``text_b`` and ``score``.
    scale : float
        Scores are divided by it, to lie in [0, 1].
    """

    pairs: tuple[Path, ...]
    dev: Path | None
    columns: Mapping[str, str]
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KpqaOptions(TrainingOptions):
    """Training questions with the place of their answers.

    Attributes
    ----------
    squad : tuple of Path
        SQuAD JSON, or Parquet with its fields as columns.
    dev : Path or None
    language : str
        Whose rules split contexts into sentences.
    """

    squad: tuple[Path, ...]
    dev: Path | None
    language: str


def parse_options(arguments: Sequence[str] | None) -> CrossEncoderOptions | KpqaOptions:
    """Return the options of a command line; exits with status 2 if it is wrong."""
    parser = _make_parser()
    args, unknown = parser.parse_known_args(arguments)
    kind = args.kind
    if unknown:
        known = _KNOWN_FLAGS[kind]
        parser.error(f"unknown argument {unknown[0]!r}{nearest(unknown[0], known)}")
    rate = args.learning_rate
    common = {
        "base": args.base,
        "out": args.out,
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "learning_rate": rate or (_LEARNING_RATE_LORA if args.rank else _LEARNING_RATE_FULL),
        "rank": args.rank,
        "max_tokens": args.max_tokens,
        "dev_share": args.dev_share,
        "seed": args.seed,
        "bf16": args.bf16,
        "checkpoint_steps": args.checkpoint_steps,
        "threads": args.threads,
        "dry_run": args.dry_run,
    }
    if kind == "kpqa":
        return KpqaOptions(**common, squad=tuple(args.squad), dev=args.dev, language=args.language)
    columns = _columns(parser, args.column)
    return CrossEncoderOptions(
        **common, pairs=tuple(args.pairs), dev=args.dev, columns=columns, scale=args.scale
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} ({self.prog} --help shows examples)\n")


_KNOWN_FLAGS: dict[str, list[str]] = {}


def _make_parser() -> argparse.ArgumentParser:
    looks: dict[str, Any] = {
        "epilog": _EPILOG,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = _Parser(prog="qaeval train", **looks)
    parser.description = "Train a model that a metric needs: an adapter, and the merged model."
    verbs = parser.add_subparsers(dest="kind", required=True, metavar="cross-encoder | kpqa")
    cross = verbs.add_parser(
        "cross-encoder", help="similarity of two texts (sas)", allow_abbrev=False, **looks
    )
    cross.description = "Train a cross-encoder: how similar in meaning two texts are, in [0, 1]."
    _add_cross_encoder(cross)
    _add_common(cross, epochs=3, batch_size=32, max_tokens=128)
    kpqa = verbs.add_parser(
        "kpqa", help="tokens that answer a question (kpqa)", allow_abbrev=False, **looks
    )
    kpqa.description = "Train a keyphrase predictor: which tokens of a text answer a question."
    _add_kpqa(kpqa)
    _add_common(kpqa, epochs=5, batch_size=64, max_tokens=96)
    for name, verb in (("cross-encoder", cross), ("kpqa", kpqa)):
        _KNOWN_FLAGS[name] = [flag for action in verb._actions for flag in action.option_strings]
    return parser


def _add_cross_encoder(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--pairs",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="Parquet or JSONL with text_a, text_b and score in [0, 1]; may be repeated",
    )
    add("--dev", type=Path, metavar="FILE", help="pairs to judge epochs by; else a held-out share")
    add(
        "--column",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="what text_a, text_b or score is called in the files",
    )
    add("--scale", type=_positive, default=1.0, help="highest score of the files (default 1)")


def _add_kpqa(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--squad",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="SQuAD JSON, or Parquet with context, question, answers, answer_starts; repeatable",
    )
    add("--dev", type=Path, metavar="FILE", help="to judge epochs by; else a share of contexts")
    add("--language", default="en", help="whose rules split sentences (spaCy's code; default en)")


def _add_common(
    parser: argparse.ArgumentParser, *, epochs: int, batch_size: int, max_tokens: int
) -> None:
    add = parser.add_argument
    add("--base", default="minilm", help="embedded name, folder, or hub id (default minilm)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    add("--epochs", type=_count, default=epochs, help=f"default {epochs}")
    add("--batch-size", type=_count, default=batch_size, help=f"default {batch_size}")
    add(
        "--learning-rate",
        type=_positive,
        help=f"default {_LEARNING_RATE_LORA:g}, with --rank 0 {_LEARNING_RATE_FULL:g}",
    )
    add("--rank", type=_natural, default=32, help="of the adapter; 0: train all (default 32)")
    add("--max-tokens", type=_count, default=max_tokens, help=f"of a pair; default {max_tokens}")
    add("--dev-share", type=_share, default=0.1, help="held out if no --dev (default 0.1)")
    add("--seed", type=_natural, default=0, help="default 0")
    add("--bf16", action="store_true", help="train in bfloat16 (scores stay fp32)")
    add("--checkpoint-steps", type=_count, default=200, help="steps between checkpoints")
    add("--threads", type=_count, help="of the CPU; default all")
    add("--dry-run", action="store_true", help="print counts, tokens and steps; train nothing")


def _columns(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, str]:
    columns = {"text_a": "text_a", "text_b": "text_b", "score": "score"}
    for word in words:
        name, separator, column = word.partition("=")
        if not separator or not column or name not in columns:
            parser.error(f"--column takes name=column, not {word!r}{nearest(name, columns)}")
        columns[name] = column
    return columns


def _count(text: str) -> int:
    return _whole(text, least=1)


def _natural(text: str) -> int:
    return _whole(text, least=0)


def _whole(text: str, *, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"a whole number of at least {least} is needed: {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed: {text!r}")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"a share between 0 and 1 is needed: {text!r}")
    return value
