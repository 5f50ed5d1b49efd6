"""GPU peers: what people run a model with otherwise, in fp16 on a GPU and in fp32 on a CPU.

Each reads the model that its family reads. But: the per-row loops of LRM and GRG are
``benchmarks.peers``, and nothing here is timed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Rows
from benchmarks.peers import GrgPeer, LrmPeer, load_quietly
from qaeval_core.families.model_family import ModelFamilyPlan
from qaeval_core.models.batches import token_budget_batches
from qaeval_core.models.engine import Device

_N_ROWS = 2000
_N_LOOP_ROWS = 40
_BATCH_ROWS = 256
Values = Mapping[str, Sequence[Any]]


class Peer(ABC):
    """Something that scores rows."""

    n_rows = _N_ROWS

    def prepare(self, values: Values) -> Any:
        """Return what `score` takes: as much of the work as it can do apart, such as tokenizing."""
        return values

    @abstractmethod
    def score(self, prepared: Any) -> object:
        """Score rows; whatever comes out is on the CPU."""


def peers_of(
    family: str,
    plan: ModelFamilyPlan,
    model: str,
    folder: Callable[[], Path],
    *,
    device: Device,
    is_half: bool | None = None,
) -> Iterator[tuple[str, Callable[[], Peer] | str]]:
    """Yield what makes each peer of a family, by name, or why one is left out.

    Parameters
    ----------
    model : str
        As the family names it: an embedded model, or a folder.
    folder : callable
        Returns the same model as transformers reads it.
    is_half : bool, optional
        Whether batched peers run in fp16; by default on a GPU. The loops do there alone.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        yield "all", "torch sees no CUDA device"
        return
    if family == "token_transport":
        yield "all", "those of token_match: the same model on the same texts"
        return
    where: dict[str, Any] = {"device": device}
    where["is_half"] = device == "cuda" if is_half is None else is_half
    yield "torch, SDPA, batches", partial(TorchBatches, plan, model, **where)
    if family in ("sas", "bi_encoder"):
        kind = CrossEncoderPeer if family == "sas" else BiEncoderPeer
        yield (
            "sentence-transformers",
            _where_installed("sentence_transformers", lambda: kind(folder(), **where)),
        )
    if family == "token_match":
        n_layers = plan.artifact.record.n_layers
        yield (
            "bert-score",
            _where_installed(
                "bert_score", lambda: BertScorePeer(folder(), n_layers=n_layers, **where)
            ),
        )
    yield "per-row loop", partial(_loop, family, plan, model, device=device)


def _where_installed(module: str, make: Callable[[], Peer]) -> Callable[[], Peer] | str:
    return make if find_spec(module) else f"{module} is not installed"


def _loop(family: str, plan: ModelFamilyPlan, model: str, *, device: Device) -> Peer:
    if family == "lrm":
        return _ReferenceLoop(LrmPeer(model, device=device))
    if family == "grg":
        own = GrgPeer(model, max_window_tokens=plan.max_unit_tokens, device=device)
        return _ReferenceLoop(own)
    return TorchBatches(plan, model, device=device, is_half=device == "cuda", is_loop=True)


class _ReferenceLoop(Peer):
    n_rows = _N_LOOP_ROWS

    def __init__(self, peer: LrmPeer | GrgPeer) -> None:
        self._peer = peer

    def prepare(self, values: Values) -> Rows:
        return Rows(list(values["candidate"]), list(values["context"]), "given")

    def score(self, prepared: Rows) -> object:
        return self._peer.score(prepared)


class TorchBatches(Peer):
    """The bare model over the same units in the same batches: what a careful script would do.

    It computes no metric: hidden states for encoders, log-probabilities of all tokens for LMs.

    Parameters
    ----------
    is_loop : bool, default False
        One unit a call, of each row anew, with the eager attention of the other loops: what a
        paper's program does.
    """

    def __init__(
        self,
        plan: ModelFamilyPlan,
        model: str,
        *,
        device: Device,
        is_half: bool,
        is_loop: bool = False,
    ) -> None:
        import torch

        role = plan.family.model_role
        self._model: Any = load_quietly(model, role=role).model.to(device)
        if is_half:
            self._model = self._model.to(torch.float16)
        self._model.set_attn_implementation("eager" if is_loop else "sdpa")
        self._is_loop = is_loop
        self.n_rows = _N_LOOP_ROWS if is_loop else _N_ROWS
        self._is_lm = role == "causal_lm"
        self._plan, self._device, self._layout = plan, device, plan.open_layout()
        self._max_tokens = max(plan.family.max_batch_tokens[device], plan.max_unit_tokens)

    def prepare(self, values: Values) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return batches: token ids, and how many each row has."""
        own = {role: list(values[role]) for role in self._plan.columns}
        if not self._is_loop:
            return self._batches(own)
        n = len(next(iter(own.values())))
        rows = ({role: column[i : i + 1] for role, column in own.items()} for i in range(n))
        return [batch for row in rows for batch in self._batches(row)]

    def _batches(self, values: Values) -> list[tuple[np.ndarray, np.ndarray]]:
        units = self._layout.prepare(values).work.units
        batches = token_budget_batches(units.lengths, max_batch_tokens=self._max_tokens)
        if self._is_loop:
            batches = ([i] for batch in batches for i in batch)
        return [(units.make_inputs(batch)["input_ids"], units.lengths[batch]) for batch in batches]

    def score(self, prepared: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return one number a unit, so that little is copied back."""
        import torch

        found = []
        with torch.inference_mode():
            for given, n_tokens in prepared:
                ids = torch.from_numpy(given).to(self._device)
                lengths = torch.from_numpy(n_tokens).to(self._device)
                mask = torch.arange(ids.shape[1], device=self._device) < lengths[:, None]
                output = self._model(input_ids=ids, attention_mask=mask.long())
                found.append(_reduced(output, ids, is_lm=self._is_lm))
        return np.concatenate(found)


def _reduced(output: Any, ids: Any, *, is_lm: bool) -> np.ndarray:
    """Return one number a row: of an LM its log-probability, of others what their head gives."""
    if is_lm:
        logprobs = output.logits[:, :-1].float().log_softmax(dim=2)
        return logprobs.gather(2, ids[:, 1:, None])[..., 0].sum(dim=1).cpu().numpy()
    # Hidden states, logits of a row or of its tokens, of starts of answers.
    return output[0].float().flatten(start_dim=1).amax(dim=1).cpu().numpy()


class CrossEncoderPeer(Peer):
    """``CrossEncoder.predict`` of sentence-transformers, with its own batches."""

    def __init__(self, folder: Path, *, device: Device, is_half: bool) -> None:
        from sentence_transformers import CrossEncoder

        self._model = CrossEncoder(str(folder), num_labels=1, device=device)
        if is_half:
            self._model.half()

    def score(self, prepared: Values) -> np.ndarray:
        """Return a score a row."""
        pairs = list(zip(_first_references(prepared), prepared["candidate"], strict=True))
        return np.asarray(
            self._model.predict(pairs, batch_size=_BATCH_ROWS, show_progress_bar=False)
        )


class BiEncoderPeer(Peer):
    """``SentenceTransformer.encode`` of both sides: mean of tokens, unit length."""

    def __init__(self, folder: Path, *, device: Device, is_half: bool) -> None:
        from sentence_transformers import SentenceTransformer

        # Of a plain model it makes one that takes the mean of tokens.
        self._model = SentenceTransformer(str(folder), device=device)
        if is_half:
            self._model.half()

    def score(self, prepared: Values) -> np.ndarray:
        """Return a cosine a row."""
        sides = [list(prepared["candidate"]), _first_references(prepared)]
        left, right = (
            self._model.encode(side, batch_size=_BATCH_ROWS, normalize_embeddings=True)
            for side in sides
        )
        return (left * right).sum(axis=1)


class BertScorePeer(Peer):
    """``BERTScorer.score``, with its own batches."""

    def __init__(self, folder: Path, *, n_layers: int, device: Device, is_half: bool) -> None:
        from bert_score import BERTScorer

        self._scorer = BERTScorer(
            model_type=str(folder), num_layers=n_layers, device=device, batch_size=_BATCH_ROWS
        )
        if is_half:
            self._scorer._model.half()

    def score(self, prepared: Values) -> np.ndarray:
        """Return F a row."""
        found = self._scorer.score(list(prepared["candidate"]), _first_references(prepared))
        return np.asarray(found[2])


def _first_references(values: Values) -> list[str]:
    return [str(own[0]) for own in values["references"]]
