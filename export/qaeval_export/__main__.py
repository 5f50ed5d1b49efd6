"""Command line of the export: ``python -m qaeval_export``, also run by ``qaeval export``."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from qaeval_core.errors import ArtifactHashError, ArtifactMissingError, ConfigError, QAEvalError
from qaeval_core.models.record import GRAPHS, ArtifactRequest, Precision
from qaeval_core.terminal import say_error, show

if TYPE_CHECKING:
    from qaeval_core.models.artifact import Artifact

_EPILOG = """\
Examples:

  qaeval export --graph relevance_matching --model minilm

  qaeval export --graph relevance_matching --model minilm --matching weighted

  qaeval export --graph token_logprobs --model gpt2 --precision fp16

  qaeval export --graph pair_score --model cross-encoder/stsb-roberta-large

  qaeval export --graph token_vectors --model bert-base-uncased --layer 2

The graphs and their metrics:

  relevance_matching  qrelscore     sentence_vector    bi_encoder
  token_logprobs      qrelscore     token_vectors      bertscore, moverscore
  pair_score          sas           keyphrase_weights  kpqa
  answer_span         roundtrip     relevance_matches  qaeval explain

Exit codes: 0 built, or already there; 1 export failed; 2 bad request.
"""

# Options of all graphs by name; of many values, the help says in words what they are.
_OPTIONS = {name: option for graph in GRAPHS.values() for name, option in graph.options.items()}
_MAX_LISTED = 8


def main(arguments: list[str] | None = None) -> int:
    """Build one artifact and print its folder and parity."""
    args = make_parser().parse_args(arguments)
    # Imported here: --help needs none of it.
    from qaeval_core.models.artifact import default_root
    from qaeval_core.storage.path import check_lasting

    options = {name: value for name in _OPTIONS if (value := getattr(args, name)) is not None}
    try:
        request = ArtifactRequest(
            args.graph,
            args.model,
            args.precision,
            options,
            allow_lossy=args.allow_lossy,
            onnx_file=args.onnx_file,
            one_row_batches=args.one_row_batches,
        )
        check_lasting(args.root, "--root")
        artifact = _build(
            request,
            root=args.root or default_root(),
            force=args.force,
            max_memory_gb=args.max_memory_gb,
        )
    except ConfigError as error:
        say_error(error)
        return 2
    except (QAEvalError, OSError) as error:
        say_error(error)
        return 1
    show(str(artifact.folder))
    show(parity_line(artifact))
    return 0


def parity_line(artifact: Artifact) -> str:
    """Return how far the graph is from torch, in one line."""
    record, parity = artifact.record, artifact.record.parity
    if parity is None:
        moved = f"moved by {record.batch_difference:.1e} at most by the rows beside it"
        return f"{record.precision}, taken as it is: no weights to compare it with; {moved}"
    line = (
        f"{record.precision} against {parity.against}: max_abs_diff {parity.max_abs_diff:.1e} "
        f"(at most {parity.tolerance:g}), spearman {parity.spearman:.6f}"
    )
    if record.lossy:
        return f"{line}; lossy: the parity gate failed"
    if record.precision != record.requested_precision:
        return f"{line}; {record.requested_precision} failed its parity gate"
    return line


def _build(
    request: ArtifactRequest, *, root: Path, force: bool, max_memory_gb: float | None
) -> Artifact:
    from qaeval_core.models.artifact import find_artifact

    if not force:
        try:
            return find_artifact(root, request)
        except (ArtifactMissingError, ArtifactHashError):
            pass  # Missing or damaged: built below.
    _be_quiet()
    from qaeval_export.build import (
        build_artifact,  # Loads torch: not for --help and not for a wrong word.
    )
    from qaeval_export.limits import limit_memory

    limit = partial(limit_memory, max_memory_gb=max_memory_gb)
    return build_artifact(request, root, force=force, on_source=limit)


def _be_quiet() -> None:
    """Keep other programs' progress bars and notes off the terminal; nothing of ours is hidden."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, as the other verbs do."""
        say_error(f"{message} ({self.prog} --help shows examples) [QA0101]")
        self.exit(2)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog="qaeval export",
        usage="%(prog)s --graph GRAPH --model MODEL [OPTIONS]",
        description="Export a model to ONNX ahead of a run. The graph is compared with torch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("Model")
    group.add_argument(
        "--graph",
        required=True,
        choices=list(GRAPHS),
        metavar="GRAPH",
        help="Use of the model; see below. Required.",
    )
    group.add_argument(
        "--model",
        required=True,
        help="Name of a bundled model, folder with safetensors, or hub id[@revision]. Required.",
    )
    group.add_argument(
        "--precision",
        default="fp32",
        choices=get_args(Precision),
        help="Precision of the graph; bf16 needs a CPU that has it (amx_bf16, avx512_bf16). "
        "Default: fp32.",
    )
    group.add_argument(
        "--onnx-file",
        default="",
        metavar="FILE",
        help="Use this ONNX file of the model instead of an export, e.g. onnx/model.onnx.",
    )
    group = parser.add_argument_group("Graph")
    for name, option in _OPTIONS.items():
        listed = option.values if len(option.values) <= _MAX_LISTED else None
        group.add_argument(f"--{name}", choices=listed, help=option.help)
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="Folder of exported models. Default: QAEVAL_ARTIFACTS, else the cache.",
    )
    group = parser.add_argument_group("Run")
    group.add_argument(
        "--one-row-batches",
        action="store_true",
        help="Run one row a batch: for an ONNX file that gives a row other values beside others.",
    )
    group.add_argument(
        "--allow-lossy",
        action="store_true",
        help="Keep a graph in fp16 or bf16 even if it differs too much from fp32.",
    )
    group.add_argument(
        "--max-memory-gb",
        type=float,
        metavar="GB",
        help="Memory that the export may use. Default: 8 and 16 times the model's files.",
    )
    group.add_argument(
        "--force", action="store_true", help="Export again even if the result exists."
    )
    return parser


if __name__ == "__main__":
    # Tracing makes millions of objects that live to the end: looking for cycles among them took a
    # tenth of the time (87 and 77 s for SmolLM2) and saves 3 % of the memory.
    gc.disable()
    sys.exit(main())
