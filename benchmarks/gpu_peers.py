"""GPU peers: what people run a model with otherwise, batched, in fp16 on a GPU and fp32 on a CPU.

But: the per-row loops are those of ``benchmarks.peers``, and nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.data import Rows
from benchmarks.peers import GrgPeer, LrmPeer
from export.loading import load_model
from qaeval_core.families.model_family import ModelFamilyPlan
from qaeval_core.models.registry import resolve_model
from qaeval_core.models.session import Device, token_budget_batches

_N_ROWS = 2000
_N_LOOP_ROWS = 40
_BATCH_TOKENS = 16384
_BATCH_ROWS = 256
Values = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Peer:
    """Something that scores rows."""

    run: Any
    n_rows: int = _N_ROWS

    def score(self, values: Values) -> object:
        """Score rows; whatever comes out is on the CPU."""
        return self.run(values)


def peers_of(
    family: str, plan: ModelFamilyPlan, model: str, *, device: Device
) -> Iterator[tuple[str, Peer | str]]:
    """Yield the peers of a family by name, or why one is left out."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        yield "all", "torch sees no CUDA device"
        return
    yield "torch, SDPA, batches", Peer(_TorchBatches(plan, model, device))
    if family == "lrm":
        yield "per-row loop", Peer(_Loop(LrmPeer(model, device=device)), _N_LOOP_ROWS)
    if family == "grg":
        n_window = plan.max_unit_tokens
        loop = GrgPeer(model, max_window_tokens=n_window, device=device)
        yield "per-row loop", Peer(_Loop(loop), _N_LOOP_ROWS)
    if family in ("sas", "bi_encoder"):
        yield "sentence-transformers", Peer(_sentence_transformers(family, device))
    if family == "token_match":
        yield "bert-score", Peer(_bert_score(device))


class _Loop:
    def __init__(self, peer: LrmPeer | GrgPeer) -> None:
        self._peer = peer

    def __call__(self, values: Values) -> object:
        return self._peer.score(Rows(list(values["candidate"]), list(values["context"]), "given"))


class _TorchBatches:
    """The bare model over the same units in the same batches: what a careful script would do.

    It computes no metric: hidden states for encoders, log-probabilities of all tokens for LMs.
    """

    def __init__(self, plan: ModelFamilyPlan, model: str, device: Device) -> None:
        import torch

        role = plan.family.model_role
        loaded = load_model(resolve_model(model, role=role), role=role)
        self._model = loaded.model.to(device)
        if device == "cuda":
            self._model = self._model.to(torch.float16)
        if hasattr(self._model, "set_attn_implementation"):
            self._model.set_attn_implementation("sdpa")
        self._plan, self._device, self._layout = plan, device, plan.open_layout()

    def __call__(self, values: Values) -> object:
        import torch

        own = {role: list(values[role]) for role in self._plan.columns}
        units = self._layout.prepare(own).work.units
        found = []
        with torch.inference_mode():
            for batch in token_budget_batches(units.lengths, max_batch_tokens=_BATCH_TOKENS):
                inputs = units.make_inputs(batch)
                ids = torch.from_numpy(inputs["input_ids"]).to(self._device)
                lengths = torch.from_numpy(units.lengths[batch]).to(self._device)
                mask = torch.arange(ids.shape[1], device=self._device) < lengths[:, None]
                output = self._model(input_ids=ids, attention_mask=mask.long())
                found.append(_reduced(output, ids))
        return np.concatenate(found)


def _reduced(output: Any, ids: Any) -> np.ndarray:
    """Return one number a row, so that little is copied back."""
    logits = getattr(output, "logits", None)
    if logits is None:
        return output.last_hidden_state[:, 0].float().norm(dim=1).cpu().numpy()
    if logits.dim() == 2:
        return logits[:, 0].float().cpu().numpy()
    taken = logits[:, :-1].float().log_softmax(dim=2).gather(2, ids[:, 1:, None])
    return taken[..., 0].sum(dim=1).cpu().numpy()


def _sentence_transformers(family: str, device: Device) -> Any:
    """Return its own batching, on a model of MiniLM's shape: the hub is not asked."""
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers import models as parts

    folder = str(resolve_model("minilm", role="encoder").folder)
    if family == "sas":
        model = CrossEncoder(folder, num_labels=1, device=device)
        if device == "cuda":
            model.model.half()

        def predict(values: Values) -> object:
            references = [own[0] for own in values["references"]]
            pairs = list(zip(values["candidate"], references, strict=True))
            return model.predict(pairs, batch_size=_BATCH_ROWS, show_progress_bar=False)

        return predict
    body = parts.Transformer(folder)
    encoder = SentenceTransformer(
        modules=[body, parts.Pooling(body.get_word_embedding_dimension())], device=device
    )
    if device == "cuda":
        encoder.half()

    def encode(values: Values) -> object:
        sides = [list(values["candidate"]), [own[0] for own in values["references"]]]
        left, right = (
            encoder.encode(side, batch_size=_BATCH_ROWS, normalize_embeddings=True)
            for side in sides
        )
        return (left * right).sum(axis=1)

    return encode


def _bert_score(device: Device) -> Any:
    from bert_score import BERTScorer

    folder = str(resolve_model("minilm", role="encoder").folder)
    scorer = BERTScorer(model_type=folder, num_layers=6, device=device, batch_size=_BATCH_ROWS)
    if device == "cuda":
        scorer._model.half()

    def score(values: Values) -> object:
        references = [own[0] for own in values["references"]]
        return scorer.score(list(values["candidate"]), references)[2].numpy()

    return score
