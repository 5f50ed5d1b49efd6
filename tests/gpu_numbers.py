"""Numbers of graphs on a device beside torch's, in batches and alone: for the tests marked gpu.

The texts are those of an export's parity gate, for its tolerances are of texts: random tokens
attend to nothing in particular. Batches hold rows of all lengths, and every row is read.

Kinds of models that are not embedded stand there as small random ones, made once a process.

QAEVAL_GPU_TESTS_ON=cpu runs the same without a device: a graph in fp16 as one that rounds as a GPU.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.gpu_exports import artifact_in
from benchmarks.peers import load_quietly
from qaeval_core.models.artifact import Artifact
from qaeval_core.models.engine import Device
from qaeval_core.models.record import ArtifactRecord, ArtifactRequest
from qaeval_core.models.session import Session
from qaeval_export.eager import eager_values
from qaeval_export.graph_files import save_graph
from qaeval_export.graphs import EXPORTS
from qaeval_export.loading import make_facts
from qaeval_export.parity import ParityRow, Values, parity_pairs
from qaeval_export.precision import rounded
from workshop import Workshop

WHERE: Device = "cpu" if os.environ.get("QAEVAL_GPU_TESTS_ON") == "cpu" else "cuda"

# Of eight rows, as the export's own run has them; the first of each is the longest.
_N_BATCHES, _N_SHORT = 3, 7
# Of values of LRM that may be beyond the tolerance where it takes one token: at a near-tie of
# attentions another one is taken, and its cosine is another.
_SHARE = {"fp32": 0.02, "fp16": 0.1}


@dataclass(frozen=True)
class Subject:
    """A graph, its model, embedded or a small random one of a kind, and how LRM matches."""

    graph: str
    model: str
    matching: str = "attended"
    is_small: bool = False

    def __str__(self) -> str:
        kind = "-weighted" if self.matching == "weighted" else ""
        return f"{self.graph}{kind}-{'small-' * self.is_small}{self.model}"

    def request(self, precision: str) -> ArtifactRequest:
        """Return the request of its artifact."""
        is_lrm = self.graph.startswith("relevance_")
        options = {"matching": self.matching} if is_lrm else {}
        model = small_models().model(self.model) if self.is_small else self.model
        return ArtifactRequest(self.graph, model, precision, options)

    def artifact(self, root: Path, precision: str) -> Artifact:
        """Return a graph that has a precision whether or not its parity gate passes.

        Those of small models are not kept in the folder of artifacts.
        """
        request = self.request(precision)
        if self.is_small:
            lossy = {"allow_lossy": precision == "fp16"}
            return small_models().artifact(
                self.graph, self.model, precision, **request.options, **lossy
            )
        return artifact_in(root, request.graph, request.model, precision, request.options)


SUBJECTS = (
    Subject("relevance_matching", "minilm"),
    Subject("relevance_matching", "minilm", "weighted"),
    Subject("token_logprobs", "smollm2-135m"),
    Subject("token_vectors", "minilm"),
    Subject("sentence_vector", "minilm"),
    Subject("pair_score", "sas-minilm"),
    Subject("keyphrase_weights", "kpqa-minilm"),
    Subject("answer_span", "reader-minilm"),
    # What explains one pair; LayerNorm, GELU and learned positions in a causal LM; attention that
    # is told a bias and lengths.
    Subject("relevance_matches", "bert", is_small=True),
    Subject("token_logprobs", "gpt2", is_small=True),
    Subject("sentence_vector", "mpnet", is_small=True),
)


@cache
def small_models() -> Workshop:
    """Return where small models and their artifacts lie while the process runs."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Workshop(Path(folder))


def text_pairs() -> list[tuple[str, str]]:
    """Return pairs of one word to some 500 tokens, a long one first in each batch.

    Examples
    --------
    >>> pairs = text_pairs()
    >>> len(pairs), [len(context.split()) > 250 for _, context in pairs[:9]].count(True)
    (24, 2)
    """
    given = parity_pairs()
    long = " ".join(context for _, context in given[3::16])
    short = [given[i] for i in np.random.default_rng(0).permutation(len(given))]
    pairs = []
    for i in range(_N_BATCHES):
        pairs.append((short[-1 - i][0], long))
        pairs += short[i * _N_SHORT : (i + 1) * _N_SHORT]
    return pairs


@cache
def in_torch(subject: Subject) -> tuple[Sequence[ParityRow], list[Values]]:
    """Return rows of token ids, and what torch computes of each alone, in fp32 on the CPU."""
    request = subject.request("fp32")
    loaded = load_quietly(request.model, role=request.role)
    # SmolLM2 would take most of the time, and a causal LM reads no lengths.
    pairs = text_pairs()[: 1 + _N_SHORT if request.role == "causal_lm" else None]
    rows = EXPORTS[subject.graph].make_rows(loaded.tokenizer, make_facts(loaded, request), pairs)
    return rows, eager_values(loaded, request, rows)


def open_session(artifact: Artifact, folder: Path) -> Session:
    """Open a graph where the tests run; the folder is for what stands for it on a CPU."""
    if WHERE == "cpu" and artifact.record.precision == "fp16":
        save_graph(rounded(onnx.load(artifact.model_path)), folder)
        return Session(replace(artifact, folder=folder))
    return Session(artifact, device=WHERE)


def in_batches(session: Session, rows: Sequence[ParityRow]) -> list[Values]:
    """Return the values of each row, of padded batches of eight."""
    graph = EXPORTS[session.artifact.record.graph]
    return graph.run(_AsEngine(session), rows)  # type: ignore[arg-type]


def alone(session: Session, rows: Sequence[ParityRow]) -> list[Values]:
    """Return the values of each row, of a batch of its own."""
    return [values for row in rows for values in in_batches(session, [row])]


class _AsEngine:
    """A session, called as one of ONNX Runtime."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, _: None, inputs: dict[str, Any]) -> list[Any]:
        return [self._session.run(inputs)]


def assert_near(
    found: Sequence[Values], expected: Sequence[Values], record: ArtifactRecord
) -> None:
    """Assert that values differ by no more than the export's parity gate allows.

    Where LRM takes one token, by no more but for a share, and by a tenth of it at the median.
    """
    apart = differences(found, expected)
    tolerance = EXPORTS[record.graph].tolerance[record.precision]
    beyond, largest = float((apart > tolerance).mean()), float(apart.max())
    told = f"{beyond:.1%} of {len(apart)} values beyond {tolerance:g}, the largest {largest:.2g}"
    if record.options.get("matching") == "attended":
        assert beyond <= _SHARE[record.precision], told
        assert np.median(apart) <= tolerance / 10, told
    else:
        assert largest <= tolerance, told


def differences(found: Sequence[Values], expected: Sequence[Values]) -> Values:
    """Return how far values are apart, all in one row; infinite where one is no number."""
    apart = [np.abs(a - b).ravel() for a, b in zip(found, expected, strict=True)]
    return np.nan_to_num(np.concatenate(apart), nan=np.inf)
