"""Benchmark of answers judged by models beside all ways that people have, and memory.

The peers are sentence-transformers' CrossEncoder and SentenceTransformer, bert-score, and what is
in `benchmarks.transformers_peers`, with the same weights on the same rows: in PyTorch in fp32 and
in bf16, as it is and compiled, and on the backends of sentence-transformers, `benchmarks.backends`.
The rows are answers of five systems and the first gold answer: once as they come, with repeats, and
once each distinct row alone. Those of Roundtrip are questions on contexts, five a context.
Run ``python -m benchmarks.answers --only sas``. Prints numbers and never judges one.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks.backends import BackendPeer
from benchmarks.data import load_rows
from benchmarks.measure import environment, gemm_peak, interleave, model_flops, ratio
from benchmarks.transformers_peers import kpqa_peer, moverscore_peer, roundtrip_peer
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.families.model_family import FamilyRunner, ModelFamilyPlan
from qaeval_core.models.cpu import available_cpus, bf16_flag, cpu_flags
from qaeval_core.models.registry import resolve_model

_DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "squad"
# The peers' own defaults.
_BATCH = 32
_BERT_SCORE_BATCH = 64
_TOKENIZER = {"tokenizer_class": "BertTokenizerFast", "model_max_length": 512}

_PAIR = ("candidate", "references")
_TOLERANCE = 1e-4
_N_QUESTIONS = 220
# The peer cuts what is longer than a window, where qaeval reads two.
_MOST_CHARACTERS = 1500

Peer = Callable[..., np.ndarray]  # of columns of texts


def load_pairs(reads: Sequence[str] = _PAIR) -> pl.DataFrame:
    """Return answers of five systems with the first gold answer, question by question."""
    gold = pl.read_parquet(_DATA / "squad_v2_dev.parquet")
    wide = pl.read_parquet(_DATA / "squad_v11_dev_predictions.parquet")
    systems = [name for name in wide.columns if name.startswith("pred_")]
    first = gold.select("id", "question", references=pl.col("answers").list.slice(0, 1)).filter(
        pl.col("references").list.len() > 0
    )
    long = (
        wide.join(first, on="id", maintain_order="left")
        .with_columns(candidate=pl.concat_list(systems))
        .explode("candidate")
        .drop_nulls("candidate")
        .select(reads)
    )
    return long


def load_questions(reads: Sequence[str]) -> pl.DataFrame:
    """Return questions on contexts of one window; which answer was given costs nothing."""
    rows = load_rows(_N_QUESTIONS)
    found = pl.DataFrame({"candidate": rows.questions, "context": rows.contexts})
    is_short = pl.col("context").str.len_chars() <= _MOST_CHARACTERS
    return found.filter(is_short).with_columns(answer=pl.lit("the")).select(reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A metric, and how others compute it.

    Attributes
    ----------
    column : str
    models : dict of str to str
        Model of each role.
    in_torch : callable
        Makes a peer of folders with these models, ``precision`` and ``is_compiled``.
    reads : tuple of str
        Columns of the rows.
    load : callable
        Returns these columns of all rows.
    kind : str
        As what backends of sentence-transformers run it; "" where they do not.
    """

    column: str
    models: dict[str, str]
    in_torch: Callable[..., Peer]
    reads: tuple[str, ...] = _PAIR
    load: Callable[[Sequence[str]], pl.DataFrame] = load_pairs
    kind: str = ""


# What people have, and what no program can save by scoring a pair once.
ROW_SETS: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "as_they_come": lambda pairs: pairs,
    "distinct": lambda pairs: pairs.unique(maintain_order=True),
}


@cache
def _saved(name: str, role: str) -> Path:
    """Return a folder with the weights that qaeval runs, as transformers saves them.

    Of an encoder without more, sentence-transformers takes the mean of its tokens.
    """
    from qaeval_export.loading import load_model

    folder = Path(tempfile.mkdtemp(prefix="qaeval-peer-"))
    atexit.register(shutil.rmtree, folder)
    loaded = load_model(resolve_model(name, role=role), role=role)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER), "utf-8")
    return folder


def _sentence_model(kind: str, folder: Path, precision: str, *, is_compiled: bool) -> Any:
    import sentence_transformers as peers
    import torch

    model = getattr(peers, kind)(str(folder), device="cpu")
    if precision == "bf16":
        model.bfloat16()
    if is_compiled:
        model[0].forward = torch.compile(model[0].forward, dynamic=True)
    return model


def sas_peer(folders: Sequence[Path], **ways: Any) -> Peer:
    """Return CrossEncoder.predict on the weights of ``sas-minilm``."""
    model = _sentence_model("CrossEncoder", folders[0], **ways)

    def predict(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        pairs = list(zip(references, candidates, strict=True))
        return np.asarray(model.predict(pairs, batch_size=_BATCH, show_progress_bar=False))

    return predict


def bi_encoder_peer(folders: Sequence[Path], **ways: Any) -> Peer:
    """Return SentenceTransformer.encode of both sides on the weights of ``minilm``."""
    model = _sentence_model("SentenceTransformer", folders[0], **ways)

    def cosines(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        sides = [
            model.encode(
                list(own), batch_size=_BATCH, show_progress_bar=False, normalize_embeddings=True
            )
            for own in (candidates, references)
        ]
        return np.asarray((sides[0] * sides[1]).sum(axis=1))

    return cosines


def bertscore_peer(folders: Sequence[Path], precision: str, *, is_compiled: bool) -> Peer:
    """Return bert-score's F on the weights of ``minilm``, last layer."""
    import torch
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=str(folders[0]), num_layers=6, device="cpu")
    if precision == "bf16":
        scorer._model.bfloat16()
    if is_compiled:
        scorer._model.forward = torch.compile(scorer._model.forward, dynamic=True)

    def score(candidates: Sequence[str], references: Sequence[str]) -> np.ndarray:
        found = scorer.score(list(candidates), list(references), batch_size=_BERT_SCORE_BATCH)
        return np.asarray(found[2])

    return score


_ENCODER = {"encoder": "minilm"}
SECTIONS = {
    "sas": Section(
        column="sas",
        models={"cross_encoder": "sas-minilm"},
        in_torch=sas_peer,
        kind="CrossEncoder",
    ),
    "bi_encoder": Section(
        column="bi_encoder",
        models=_ENCODER,
        in_torch=bi_encoder_peer,
        kind="SentenceTransformer",
    ),
    "bertscore": Section(column="bertscore_f1", models=_ENCODER, in_torch=bertscore_peer),
    "moverscore": Section(column="moverscore", models=_ENCODER, in_torch=moverscore_peer),
    "kpqa": Section(
        column="kpqa_bertscore",
        models={"keyphrase_classifier": "kpqa-minilm", **_ENCODER},
        in_torch=kpqa_peer,
        reads=("question", "candidate", "references"),
    ),
    "roundtrip": Section(
        column="roundtrip_confidence",
        models={"reader": "reader-minilm"},
        in_torch=roundtrip_peer,
        reads=("candidate", "context", "answer"),
        load=load_questions,
    ),
}


def saved_models(section: Section) -> list[Path]:
    """Return a folder for each model of a section."""
    return [_saved(model, role) for role, model in section.models.items()]


def make_peers(name: str, n_threads: int) -> dict[str, Peer]:
    """Return the ways that users of a metric have on this CPU, by name."""
    import torch

    torch.set_num_threads(n_threads)
    section = SECTIONS[name]
    folders = saved_models(section)
    # Without instructions for it, PyTorch takes a sixth of its rate in bf16: nobody would.
    precisions = ["fp32", *(["bf16"] if bf16_flag(cpu_flags()) else [])]
    peers = {
        f"{way}{precision}": section.in_torch(folders, precision=precision, is_compiled=bool(way))
        for way in ("", "torch.compile ")
        for precision in precisions
    }
    backends = [("onnx", "fp32"), *(("openvino", precision) for precision in precisions)]
    for backend, precision in backends if section.kind else ():
        peers[f"{backend} {precision}"] = BackendPeer(
            folders[0],
            kind=section.kind,
            backend=backend,
            precision=precision,
            n_threads=n_threads,
        )
    return peers


def make_scorers(name: str, n_threads: int) -> dict[str, Scorer]:
    """Return qaeval in fp32, and in bf16 where this CPU computes it."""
    section = SECTIONS[name]
    scorers = {"qaeval": Scorer([name], n_threads=n_threads)}
    if bf16_flag(cpu_flags()):
        overrides = {f"models.{role}.precision": "bf16" for role in section.models}
        config = load_config(overrides=overrides)
        scorers["qaeval bf16"] = Scorer([name], config=config, n_threads=n_threads)
    return scorers


def compare(
    name: str, rows: pa.Table, peers: Mapping[str, Peer], *, n_threads: int, n_repeats: int
) -> dict[str, Any]:
    """Time a metric and its peers in turn; tokenizing counts on all sides, loading on none."""
    section = SECTIONS[name]
    scorers = make_scorers(name, n_threads)
    texts = [
        [one if isinstance(one, str) else one[0] for one in rows.column(read).to_pylist()]
        for read in section.reads
    ]
    found = {
        side: own.score(rows).column(section.column).to_numpy(zero_copy_only=False)
        for side, own in scorers.items()
    }
    own = found["qaeval"]
    defined = np.flatnonzero(~np.isnan(own))
    found |= {side: peer(*texts) for side, peer in peers.items()}
    differences = {side: np.abs(own - other) for side, other in found.items() if side != "qaeval"}
    differing = [i for i in defined.tolist() if differences["fp32"][i] > _TOLERANCE]
    alone = {i: float(peers["fp32"](*([own[i]] for own in texts))[0]) for i in differing}
    sides: dict[str, Callable[[], object]] = {
        side: partial(one.score, rows) for side, one in scorers.items()
    }
    sides.update({one: partial(peer, *texts) for one, peer in peers.items()})
    seconds = interleave(sides, n_repeats=n_repeats)
    rates = {side: [rows.num_rows / one for one in own_s] for side, own_s in seconds.items()}
    result: dict[str, Any] = {
        "rows": rows.num_rows,
        "distinct_pairs": len(set(zip(*texts, strict=True))),
        "rows_per_s": rates,
        "max_abs_diff": {one: float(own[defined].max()) for one, own in differences.items()},
        "n_differing": len(differing),
        # A peer whose score of a pair depends on its batch mates: run alone, it has another.
        "max_abs_diff_alone": max((abs(own[i] - alone[i]) for i in differing), default=0.0),
        "n_undefined": int(len(own) - len(defined)),
        **_work(section, scorers["qaeval"], rows, seconds["qaeval"], n_threads=n_threads),
        "ratios": {one: ratio(rates["qaeval"], rates[one]) for one in peers},
    }
    bf16 = "qaeval bf16"
    if bf16 in scorers:
        result["bf16"] = {
            **_work(section, scorers[bf16], rows, seconds[bf16], n_threads=n_threads),
            "ratios": {one: ratio(rates[bf16], rates[one]) for one in ("qaeval", *peers)},
        }
    return result


def _work(
    section: Section, scorer: Scorer, rows: pa.Table, seconds: Sequence[float], *, n_threads: int
) -> dict[str, object]:
    """Return tokens, padding, and the share of the GEMM peak of the work that is left to do."""
    values = {role: rows.column(role).to_pylist() for role in section.reads}
    stats, flops, precision = [], 0.0, ""
    for plan in scorer.compile({role: role for role in section.reads}).families:
        assert isinstance(plan, ModelFamilyPlan)
        runner = FamilyRunner(plan, n_threads=n_threads)
        prepared = runner.layout.prepare(values)
        runner.run(prepared)
        stats.append(prepared.stats)
        precision = plan.artifact.record.precision
        flops += model_flops(plan.artifact.record, prepared.work.units.lengths, n_scored=0)
    peak = max(gemm_peak(n_threads, precision).values()) * 1e9
    n_tokens, run_s = sum(own.n_tokens for own in stats), sum(own.seconds["run"] for own in stats)
    return {
        "units": sum(own.n_units for own in stats),
        "units_unshared": sum(own.n_units_unshared for own in stats),
        "tokens_per_s": n_tokens / statistics.median(seconds),
        "padding_share": 1 - n_tokens / sum(own.n_padded_tokens for own in stats),
        "model_seconds": run_s,
        "share_of_peak": flops / run_s / peak,
        "gemm_gflops": peak / 1e9,
    }


def show(name: str, result: dict[str, Any]) -> None:
    """Print one comparison."""
    print(f"{name}: {result['rows']:,} rows, {result['distinct_pairs']:,} distinct")
    for side, rates in result["rows_per_s"].items():
        low, high = min(rates), max(rates)
        print(f"  {side:<20}{statistics.median(rates):10.1f} rows/s   [{low:.1f} .. {high:.1f}]")
    _show_side("qaeval", result)
    if "bf16" in result:
        _show_side("qaeval bf16", result["bf16"])
    for side, difference in result["max_abs_diff"].items():
        print(f"  max |diff| {side:<20}{difference:10.1e}")
    print(f"  undefined       {result['n_undefined']:10,}          (empty texts)")
    if result["n_differing"]:
        alone = result["max_abs_diff_alone"]
        print(
            f"  {result['n_differing']} rows differ by more than {_TOLERANCE:g}: there scores of "
            f"the fp32 peer depend on batch mates; alone it differs by {alone:.1e}"
        )


def _show_side(name: str, found: dict[str, Any]) -> None:
    for side, own in found["ratios"].items():
        print(
            f"  {name} to {side:<20}{own['of_medians']:6.2f} times  "
            f"pairs [{own['lowest_pair']:.2f} .. {own['highest_pair']:.2f}]"
        )
    print(
        f"  {name} runs {found['units']:,} units of {found['units_unshared']:,}; "
        f"{found['tokens_per_s']:,.0f} useful tokens/s, padding {found['padding_share']:.1%}"
    )
    print(
        f"  {name} reaches {found['share_of_peak']:.1%} of the peak while the model runs "
        f"({found['model_seconds']:.2f} s), of {found['gemm_gflops']:.0f} GFLOP/s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the chosen sections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers")
    parser.add_argument(
        "--only", default=",".join([*SECTIONS, "memory"]), help="default %(default)s"
    )
    parser.add_argument("--rows", default=",".join(ROW_SETS), help="default %(default)s")
    parser.add_argument("--pairs", type=int, default=5000, help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of every side")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = parser.parse_args(arguments)
    found: dict[str, object] = {"environment": environment(chosen.threads)}
    print(json.dumps(found["environment"]))
    for name in chosen.only.split(","):
        print(f"\n== {name} ==  load average {os.getloadavg()[0]:.2f}", flush=True)
        if name == "memory":
            from benchmarks.answers_memory import run_memory

            found[name] = run_memory(n_threads=chosen.threads)
            continue
        peers = make_peers(name, chosen.threads)
        read = SECTIONS[name].load(SECTIONS[name].reads)
        found[name] = own = {}
        tables = {
            rows: ROW_SETS[rows](read).head(chosen.pairs).to_arrow()
            for rows in chosen.rows.split(",")
        }
        if tables.get("as_they_come") == tables.get("distinct"):  # None repeats.
            tables.pop("as_they_come", None)
        for rows, table in tables.items():
            own[rows] = compare(
                name, table, peers, n_threads=chosen.threads, n_repeats=chosen.repeats
            )
            show(name, own[rows])
        for peer in peers.values():
            if isinstance(peer, BackendPeer):
                peer.close()
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
