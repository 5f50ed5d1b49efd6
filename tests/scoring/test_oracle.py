"""QRelScore end to end equals an eager computation of the paper's equations, one pair at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from helpers import as_table, build_needed, short_sample
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.models.registry import resolve_model
from qaeval_core.sample import sample_table
from workshop import save_small

TOLERANCE = 1e-4

Ids = list[int]


@dataclass
class Pair:
    """An encoder and a causal LM, loaded by transformers alone."""

    encoder_name: str
    causal_lm_name: str
    encoder: Any
    causal_lm: Any
    encode_for_encoder: Any
    encode_for_causal_lm: Any
    template: tuple[Ids, Ids, Ids]
    n_encoder_positions: int
    n_causal_positions: int
    bos: int
    eos: int
    artifacts: Path

    def scorer(self, **settings: object) -> Scorer:
        """Return a scorer of one instance ``q`` on these models."""
        config = load_config(overrides={"models.artifacts_path": str(self.artifacts)})
        models = {"encoder": self.encoder_name, "causal_lm": self.causal_lm_name}
        scorer = Scorer({"q": {"metric": "qrelscore", **models, **settings}}, config=config)
        build_needed(scorer.config)
        return scorer


def _plain(path: Path) -> Any:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _embedded(artifacts: Path) -> Pair:
    folder = resolve_model("minilm", role="encoder").folder
    source = resolve_model("smollm2-135m", role="causal_lm")
    tokenizer = AutoTokenizer.from_pretrained(source.folder, gguf_file=source.gguf_file)
    return Pair(
        encoder_name="minilm",
        causal_lm_name="smollm2-135m",
        encoder=AutoModel.from_pretrained(folder, attn_implementation="eager").eval(),
        causal_lm=AutoModelForCausalLM.from_pretrained(
            source.folder, gguf_file=source.gguf_file, dtype=torch.float32
        ).eval(),
        encode_for_encoder=_plain(folder / "tokenizer.json"),
        encode_for_causal_lm=lambda text: tokenizer(text, add_special_tokens=False).input_ids,
        template=([101], [102], [102]),
        n_encoder_positions=512,
        n_causal_positions=1024,
        bos=1,
        eos=2,
        artifacts=artifacts,
    )


def _small(kind: str, folder: Path) -> Pair:
    encoder, causal_lm = save_small(kind, folder / kind), save_small("gpt2", folder / "gpt2")
    template = ([0], [2, 2], [2]) if kind == "roberta" else ([2], [3], [3])
    return Pair(
        encoder_name=str(encoder),
        causal_lm_name=str(causal_lm),
        encoder=AutoModel.from_pretrained(encoder, attn_implementation="eager").eval(),
        causal_lm=AutoModelForCausalLM.from_pretrained(causal_lm).eval(),
        encode_for_encoder=_plain(encoder / "tokenizer.json"),
        encode_for_causal_lm=_plain(causal_lm / "tokenizer.json"),
        template=template,
        n_encoder_positions=512,
        n_causal_positions=512,
        bos=0,
        eos=0,
        artifacts=folder / "artifacts",
    )


def _windows(n_candidate: int, context: Ids, *, n_positions: int, n_special: int) -> list[Ids]:
    room = n_positions - n_special - max(n_candidate, 64)
    return [list(part) for part in np.array_split(context, -(-len(context) // room))]


def _reference_lrm(pair: Pair, x: Ids, context: Ids, *, drop_last: bool) -> float:
    """Mean over layers of eq. 4 with attended matching, all tensors materialized."""
    prefix, middle, suffix = pair.template
    ids = prefix + x + middle + context + suffix
    start = len(prefix) + len(x) + len(middle)
    segments = [int(i >= start) for i in range(len(ids))]
    if pair.encoder.config.type_vocab_size == 1:
        segments = [0] * len(ids)
    with torch.inference_mode():
        out = pair.encoder(
            input_ids=torch.tensor([ids]),
            token_type_ids=torch.tensor([segments]),
            output_attentions=True,
            output_hidden_states=True,
        )
    n_x, n_c = len(x) - drop_last, len(context) - drop_last
    per_layer = []
    for hidden, attention in zip(out.hidden_states[1:], out.attentions, strict=True):
        rows = range(len(prefix), len(prefix) + n_x)
        to_context = attention[0, :, rows, start : start + n_c].amax(dim=0)
        matched = hidden[0, start + to_context.argmax(dim=1)]
        cosine = torch.cosine_similarity(hidden[0, rows], matched, dim=1)
        per_layer.append(cosine.mean().item())
    return float(np.mean(per_layer))


def _token_logprobs(pair: Pair, ids: Ids) -> np.ndarray:
    with torch.inference_mode():
        logits = pair.causal_lm(input_ids=torch.tensor([ids])).logits[0, :-1]
    logprobs = logits.double().log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def _reference_scores(pair: Pair, question: str, context: str, profile: str) -> tuple:
    """Return raw LRM and raw GRG of one row; None where undefined."""
    encode = pair.encode_for_encoder
    x, c = encode(question), encode(context)
    n_special = sum(len(part) for part in pair.template)
    n_positions = pair.n_encoder_positions
    if profile == "authors":
        cut = c[: n_positions - n_special - len(x)]
        lrm = _reference_lrm(pair, x, cut, drop_last=True) if len(x) > 1 else None
        return lrm, _reference_grg_authors(pair, question, context)
    if not x or n_positions - n_special - max(len(x), 64) < 32:
        return None, None
    parts = _windows(len(x), c, n_positions=n_positions, n_special=n_special)
    lrm = float(np.mean([_reference_lrm(pair, x, part, drop_last=False) for part in parts]))
    return lrm, _reference_grg(pair, question, context)


def _reference_grg(pair: Pair, question: str, context: str) -> float:
    x, c = pair.encode_for_causal_lm(question), pair.encode_for_causal_lm(" " + context)
    gains = []
    for part in _windows(len(x), c, n_positions=pair.n_causal_positions, n_special=1):
        base = _token_logprobs(pair, [pair.bos, *part]).sum()
        prompt = _token_logprobs(pair, [pair.bos, *x, *part])[len(x) :].sum()
        gains.append(max((prompt - base) / abs(base), 0.0))
    return float(np.mean(gains))


def _reference_grg_authors(pair: Pair, question: str, context: str) -> float:
    room = pair.n_causal_positions - 2

    def score(text: str) -> float:
        ids = [pair.bos, *pair.encode_for_causal_lm(text)[:room], pair.eos]
        return float(np.exp(_token_logprobs(pair, ids)).mean())

    base = score(context)
    return max((score(f"{question} {context}") - base) / base, 0.0)


def _rows(n_plain: int) -> list[dict[str, str]]:
    rows = [
        {"question": row["question"], "context": row["context"]}
        for row in short_sample(200).to_pylist()[:: 200 // n_plain]
    ]
    long = next(row for row in sample_table().to_pylist() if len(row["context"]) > 7_000)
    context = rows[0]["context"]
    return [
        *rows,
        {"question": long["question"], "context": long["context"]},  # windows
        {"question": "Why", "context": context},  # one token
        {"question": "Who " + "really " * 70 + "knows?", "context": context},  # over 64 tokens
        {"question": "Où est 東京 🐝 naïve?", "context": f"Ωμέγα — {context} €5 🐝"},
    ]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("embedded", marks=pytest.mark.long),
        "bert",
        pytest.param("roberta", marks=pytest.mark.slow),
    ],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if request.param == "embedded":
        return _embedded(request.getfixturevalue("artifacts_root"))
    return _small(request.param, tmp_path_factory.mktemp(request.param))


# Small models every day; the embedded ones, too, in `make long`.
@pytest.mark.parametrize(
    ("pair", "profile"),
    [
        pytest.param("embedded", "paper", marks=pytest.mark.long),
        pytest.param("embedded", "authors", marks=pytest.mark.long),
        pytest.param("bert", "paper", marks=pytest.mark.slow),
        pytest.param("bert", "authors", marks=pytest.mark.slow),
        pytest.param("roberta", "paper", marks=pytest.mark.slow),
        pytest.param("roberta", "authors", marks=pytest.mark.slow),
    ],
    indirect=["pair"],
    scope="module",
)
def test_scores_equal_the_eager_computation(
    pair: Pair, profile: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Protects from any slip between text and score: tokens, template, windows, masks, sums."""
    rows = _rows(2)
    scores = as_table(pair.scorer(profile=profile).score(pa.Table.from_pylist(rows)))
    for row, lrm, grg in zip(
        rows, scores["q_lrm_raw"].to_pylist(), scores["q_grg_raw"].to_pylist(), strict=True
    ):
        expected_lrm, expected_grg = _reference_scores(
            pair, row["question"], row["context"], profile
        )
        for found, expected in ((lrm, expected_lrm), (grg, expected_grg)):
            if expected is None:
                assert found is None
            else:
                assert found == pytest.approx(expected, abs=TOLERANCE), row["question"][:40]


@pytest.mark.slow
def test_candidate_longer_than_the_model_is_undefined_and_its_mates_are_not(pair: Pair) -> None:
    """Protects from a crash of the whole batch, and from a cut candidate scored in silence."""
    context = _rows(1)[0]["context"]
    rows = [
        {"question": "word " * 2_000, "context": context},
        {"question": "", "context": context},
        {"question": "Who is it?", "context": ""},
        {"question": "Who is it?", "context": context},
    ]
    scores = as_table(pair.scorer().score(rows))
    assert scores["q_reason"].to_pylist() == [
        "candidate_too_long",
        "empty_candidate",
        "empty_context",
        None,
    ]
    assert [value is None for value in scores["q"].to_pylist()] == [True, True, True, False]


def test_row_alone_equals_row_in_company(pair: Pair) -> None:
    """Protects from scores that depend on neighbors, order or padding."""
    # The windows of an embedded model take a minute: small models have theirs here.
    is_small = pair.n_causal_positions < 1024
    rows = [row for row in _rows(1) if is_small or len(row["context"]) < 7_000]
    scorer = pair.scorer()
    together = as_table(scorer.score(rows))["q"].to_pylist()
    backwards = as_table(scorer.score(rows[::-1]))["q"].to_pylist()[::-1]
    alone = list(itertools.chain(*(as_table(scorer.score([row]))["q"].to_pylist() for row in rows)))
    assert together == pytest.approx(alone, abs=1e-5)
    assert together == pytest.approx(backwards, abs=1e-5)
