"""Benchmark of filtering: what a reader gains from questions that a filter kept.

A reader trained on passages A is trained further on questions of passages B, and judged on passages
C. Half of B's questions are spoiled on purpose (`benchmarks.spoiled_questions`). The steps are as
many whatever was kept of B: all of it, a random half, the better half by a score, or the clean
half, which no filter knows. The parts are articles of SQuAD 2.0 dev.
``python -m benchmarks.downstream``
takes hours; it keeps what is done in ``--work`` and goes on from there. Prints numbers and never
judges one.

The scores of B: ``roundtrip`` by the reader of A, ``qrelscore`` of the embedded models, and a rank
learned from both with labels ("is it spoiled?") of a random sample of rows. The halves are those of
``qaeval filter``.

But: what spoils a question here is not what a generator does wrong, and one base model is no other.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from benchmarks.data import SQUAD
from benchmarks.downstream_table import BASE, CONDITIONS, RANKED, summarize, table
from benchmarks.measure import environment
from benchmarks.spoiled_questions import CLEAN, KINDS, shorten, split_articles, spoil
from qaeval_core import Scorer, filter_table
from qaeval_core.configure import load_config
from qaeval_core.models.registry import resolve_model
from qaeval_core.stats.design_effect import binomial_bound
from qaeval_core.stats.learned_rank import fit_rank
from qaeval_core.stats.ranking import auc
from qaeval_core.storage.files import write_json
from qaeval_core.terminal import say
from qaeval_export.training.job import run_job
from qaeval_export.training.loop import dev_batches
from qaeval_export.training.model import load_task_model, load_tokenizer
from qaeval_export.training.options import ReaderOptions
from qaeval_export.training.reader import best_span

# Those that need no slow score come first, for all seeds: a run that is cut short has them.
_ORDER = (("unfiltered", "random", "roundtrip", "oracle"), ("qrelscore", "learned"))
FEATURES = ("roundtrip", "roundtrip_confidence", "roundtrip_null_margin", "qrelscore")
_DELTA = 0.05
_N_DEV_FEW = 32

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides the numbers; a work folder begun with others is refused.

    Attributes
    ----------
    n_a, n_b, n_c, n_dev : int
        Questions of each part. Dev is printed while training and decides nothing.
    passage_tokens : int
        Of a stretch of a passage.
    n_examples : int
        Seen by each further training, whatever was kept.
    n_labels : int
        Rows of B whose label is revealed; half of their passages are learned from.
    split_seed : int
        Of the split by article and of the reader of A.
    """

    n_a: int
    n_b: int
    n_c: int
    n_dev: int
    passage_tokens: int
    max_tokens: int
    batch_size: int
    rank: int
    a_epochs: int
    a_learning_rate: float
    n_examples: int
    learning_rate: float
    n_labels: int
    split_seed: int


class Work:
    """The work folder: data, the reader of A, and what each training came to."""

    def __init__(self, folder: Path, settings: Settings, *, squad: Path, n_threads: int) -> None:
        self.folder = folder
        self.settings = settings
        self.n_threads = n_threads
        folder.mkdir(parents=True, exist_ok=True)
        decided = asdict(settings) | {"squad": hashlib.sha256(squad.read_bytes()).hexdigest()}
        path = folder / "settings.json"
        if not path.is_file():
            write_json(path, decided)
        elif (before := _read_json(path)) != decided:
            changed = sorted(name for name in decided if before.get(name) != decided[name])
            raise SystemExit(f"{folder} was begun with other settings ({', '.join(changed)})")
        self.base = _make_base(folder / BASE)
        self.parts = self._parts(squad)

    def _parts(self, squad: Path) -> dict[str, pl.DataFrame]:
        own = self.settings
        sizes = {"dev": own.n_dev, "a": own.n_a, "b": own.n_b, "c": own.n_c}
        paths = {name: self.folder / f"{name}.parquet" for name in sizes}
        if not all(path.is_file() for path in paths.values()):
            tokenizer = load_tokenizer(resolve_model(str(self.base), role="encoder"))
            rows = shorten(
                pl.read_parquet(squad),
                count_tokens=lambda text: len(tokenizer.tokenize(text)),
                max_tokens=own.passage_tokens,
            )
            for name, part in split_articles(rows, sizes=sizes, seed=own.split_seed).items():
                _write_parquet(part, paths[name])
        # A short training spends as much time on 150 dev questions as on its own.
        if not (few := self.folder / "dev-few.parquet").is_file():
            _write_parquet(pl.read_parquet(paths["dev"]).head(_N_DEV_FEW), few)
        return {name: pl.read_parquet(path) for name, path in paths.items()}

    def train(
        self, out: Path, *, base: Path, squad: Path, dev: str, epochs: int, **options: Any
    ) -> None:
        """Train a reader, or go on training it; the last weights are kept, whatever dev says."""
        own = self.settings
        run_job(
            ReaderOptions(
                out=out, base=str(base), squad=[squad], dev=self.folder / dev,
                epochs=epochs, batch_size=own.batch_size, rank=own.rank,
                max_tokens=own.max_tokens, threads=self.n_threads, keep_last=True, **options,
            )
        )  # fmt: skip

    def reader(self) -> Path:
        """Return the reader of A, trained where it is not there yet."""
        own, out = self.settings, self.folder / "reader-a"
        self.train(
            out, base=self.base, squad=self.folder / "a.parquet", dev="dev.parquet",
            epochs=own.a_epochs, rate=own.a_learning_rate, seed=own.split_seed,
        )  # fmt: skip
        return out / "model"

    def kept(self, path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what a file holds; makes it where it is not there."""
        if not path.is_file():
            started = time.monotonic()
            made = make()
            write_json(path, {**made, "seconds": time.monotonic() - started})
            say(f"{path.relative_to(self.folder)}: {time.monotonic() - started:.0f} s")
        found: dict[str, Any] = _read_json(path)
        return found


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write a table so that it is whole or not there."""
    table.write_parquet(path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


def _make_base(folder: Path) -> Path:
    """Return a copy of MiniLM that is trained without dropout.

    Drawing random numbers is a third of a training step on one CPU core. LoRA's own dropout stays.
    """
    if not (folder / "config.json").is_file():
        shutil.copytree(resolve_model("minilm", role="encoder").folder, folder, dirs_exist_ok=True)
        fields = _read_json(folder / "config.json")
        fields |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        # Last: the copy is whole once it is there.
        (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def epochs_for(n_rows: int, *, n_examples: int, batch_size: int, n_steps: int) -> int:
    """Return how often rows are gone through, so that every training has as many steps.

    Raises
    ------
    ValueError
        If whole epochs do not come to ``n_examples`` examples in ``n_steps`` steps.

    Examples
    --------
    >>> [epochs_for(n, n_examples=1500, batch_size=16, n_steps=94) for n in (1500, 750)]
    [1, 2]
    """
    epochs = n_examples // n_rows
    if epochs * n_rows != n_examples or epochs * -(-n_rows // batch_size) != n_steps:
        raise ValueError(
            f"{n_rows} rows in batches of {batch_size} do not come to {n_examples} examples in "
            f"{n_steps} steps"
        )
    return epochs


def keep_half(scores: FloatArray, ids: Sequence[str], *, seed: int) -> NDArray[np.bool_]:
    """Return which rows ``qaeval filter`` keeps of a table where it may keep half of them.

    Examples
    --------
    >>> keep_half(np.array([0.1, np.nan, 0.9, 0.5]), ["a", "b", "c", "d"], seed=0).tolist()
    [False, False, True, True]
    """
    rows = pl.DataFrame({"id": ids, "score": pl.Series(scores).fill_nan(None)})
    filtered = filter_table(
        rows, rank_by="score", budget=len(ids) // 2, rules="none", near_duplicates="none", seed=seed
    )
    kept: NDArray[np.bool_] = filtered.decisions["kept"].to_numpy()
    return kept


@dataclass(frozen=True, slots=True)
class Labeled:
    """Rows whose label is revealed: those learned from, and the others, which certify."""

    learned: NDArray[np.intp]
    held: NDArray[np.intp]


def draw_labels(contexts: Sequence[str], *, n_labels: int, seed: int) -> Labeled:
    """Return a simple random sample of rows, cut in two by passage."""
    rows = np.random.default_rng([seed, 2]).permutation(len(contexts))[:n_labels]
    own = [contexts[row] for row in rows]
    digests = (hashlib.sha256(f"{seed}:{context}".encode()).digest() for context in own)
    is_learned = np.array([digest[0] >= 128 for digest in digests])
    return Labeled(rows[is_learned], rows[~is_learned])


def learn(
    features: FloatArray,
    is_clean: NDArray[np.bool_],
    rows: NDArray[np.intp],
    *,
    contexts: Sequence[str],
    seed: int,
) -> FloatArray:
    """Return the logit of each row, of a rank learned from some of them."""
    learned = fit_rank(
        features[rows],
        dict.fromkeys(FEATURES, ""),
        is_good=is_clean[rows],
        groups=[contexts[row] for row in rows],
        seed=seed,
    )
    return learned.score(features)


def seed_rows(work: Work, seed: int) -> pl.DataFrame:
    """Return B as this seed spoils it."""
    path = work.folder / f"seed-{seed}" / "b.parquet"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        _write_parquet(spoil(work.parts["b"], share=0.5, seed=seed), path)
    return pl.read_parquet(path)


def roundtrip_scores(work: Work, seed: int, rows: pl.DataFrame, reader: Path) -> pl.DataFrame:
    """Return the columns of ``roundtrip`` by the reader of A."""
    path = work.folder / f"seed-{seed}" / "b-roundtrip.parquet"
    if not path.is_file():
        config = load_config(overrides={"models.artifacts_path": str(work.folder / "artifacts")})
        scorer = Scorer(
            {"roundtrip": {"reader": str(reader)}}, config=config, n_threads=work.n_threads
        )
        _write_parquet(scorer.score(rows.select("id", "question", "context", "answer")), path)
    return pl.read_parquet(path)


def qrelscores(work: Work, rows: pl.DataFrame) -> FloatArray:
    """Return ``qrelscore`` of each row; pairs that an earlier seed had are not scored again."""
    path = work.folder / "qrelscore.parquet"
    pair = ["question", "context"]
    known = pl.read_parquet(path) if path.is_file() else None
    new = rows.select(pair).unique(maintain_order=True)
    if known is not None:
        new = new.join(known, on=pair, how="anti", maintain_order="left")
    scorer = Scorer(["qrelscore"], n_threads=work.n_threads)
    for chunk in new.iter_slices(100):
        scored = chunk.with_columns(scorer.score(chunk)["qrelscore"].cast(pl.Float64))
        known = scored if known is None else pl.concat([known, scored])
        _write_parquet(known, path)
        say(f"qrelscore: {len(known):,} pairs")
    assert known is not None
    joined = rows.select(pair).join(known, on=pair, how="left", maintain_order="left")
    return joined["qrelscore"].to_numpy()


def scores_of(work: Work, seed: int, rows: pl.DataFrame, name: str, reader: Path) -> FloatArray:
    """Return what a half is chosen by: higher is better."""
    is_clean = (rows["how"] == CLEAN).to_numpy()
    if name == "random":
        return np.random.default_rng([seed, 3]).random(len(rows))
    if name == "oracle":
        return is_clean.astype(np.float64)
    if name == "qrelscore":
        return qrelscores(work, rows)
    found = roundtrip_scores(work, seed, rows, reader)
    if name == "roundtrip":
        return found["roundtrip"].cast(pl.Float64).to_numpy()
    columns = [*(found[own].cast(pl.Float64).to_numpy() for own in FEATURES[:-1])]
    features = np.column_stack([*columns, qrelscores(work, rows)])
    contexts = rows["context"].to_list()
    labeled = draw_labels(contexts, n_labels=work.settings.n_labels, seed=seed)
    return learn(features, is_clean, labeled.learned, contexts=contexts, seed=seed)


def choose(work: Work, seed: int, condition: str, reader: Path) -> tuple[pl.DataFrame, Any]:
    """Return what of B is trained on, and what is known of the choice."""
    rows = seed_rows(work, seed)
    is_clean = (rows["how"] == CLEAN).to_numpy()
    if condition == "unfiltered":
        return rows, {"share_clean": float(is_clean.mean())}
    scores = scores_of(work, seed, rows, condition, reader)
    kept = keep_half(scores, rows["id"].to_list(), seed=seed)
    labeled = draw_labels(rows["context"].to_list(), n_labels=work.settings.n_labels, seed=seed)
    # The learned score is judged on rows that it has not seen; so are the others, to compare.
    judged = np.ones(len(rows), dtype=bool)
    judged[labeled.learned] = False
    how = rows["how"].to_numpy()
    good = scores[judged & is_clean]
    facts = {
        "share_clean": float(is_clean[kept].mean()),
        "kept": {kind: int((how[kept] == kind).sum()) for kind in (CLEAN, *KINDS)},
        "auc": auc(positive=good, negative=scores[judged & ~is_clean]),
        "auc_by_kind": {
            kind: auc(positive=good, negative=scores[judged & (how == kind)]) for kind in KINDS
        },
        "n_undefined": int(np.isnan(scores).sum()),
    }
    held = labeled.held[kept[labeled.held]]
    n_good = int(is_clean[held].sum())
    facts["held_labels"] = {
        "n": len(held),
        "clean": n_good,
        "bound": float(binomial_bound(np.array(len(held)), np.array(n_good), _DELTA)),
    }
    return rows.filter(pl.Series(kept)), facts


def run_condition(work: Work, seed: int, condition: str, reader: Path) -> dict[str, Any]:
    """Train further on what a condition keeps, and judge."""
    own = work.settings
    chosen, facts = choose(work, seed, condition, reader)
    out = work.folder / f"seed-{seed}" / condition
    squad = out.with_suffix(".parquet")
    one = {"answers": pl.concat_list("answer"), "answer_starts": pl.concat_list("answer_start")}
    _write_parquet(chosen.select("context", "question", **one), squad)
    n_steps = -(-own.n_examples // own.batch_size)
    epochs = epochs_for(
        len(chosen), n_examples=own.n_examples, batch_size=own.batch_size, n_steps=n_steps
    )
    work.train(
        out, base=reader, squad=squad, dev="dev-few.parquet", epochs=epochs,
        rate=own.learning_rate, seed=seed,
    )  # fmt: skip
    metrics = _read_json(out / "metrics.json")
    if metrics["n_steps"] != n_steps:  # A row of two windows would make more.
        raise RuntimeError(f"{out} took {metrics['n_steps']} steps, not {n_steps}")
    found = {**facts, "n_rows": len(chosen), "n_steps": n_steps, **judge(work, out / "model")}
    shutil.rmtree(out)  # 90 MB; the numbers are what is kept.
    return found


def judge(work: Work, model: Path) -> dict[str, Any]:
    """Return exact match and F1 of each question of C, by the rule of SQuAD."""
    rows = work.parts["c"]
    answers = read_answers(model, rows, max_tokens=work.settings.max_tokens)
    table = pl.DataFrame({"candidate": answers, "references": rows["answers"]})
    scores = Scorer(["exact_match", "f1"], n_threads=work.n_threads).score(table)
    exact, f1 = (scores[name].cast(pl.Float64).to_list() for name in ("exact_match", "f1"))
    return {"em": float(np.mean(exact)), "f1": float(np.mean(f1)), "rows": {"em": exact, "f1": f1}}


@torch.inference_mode()
def read_answers(folder: Path, rows: pl.DataFrame, *, max_tokens: int) -> list[str]:
    """Return a reader's best span for each question; "no answer" is none of them."""
    source = resolve_model(str(folder), role="encoder")
    tokenizer, model = load_tokenizer(source), load_task_model(source, "reader", seed=0)
    encoded = tokenizer(
        rows["question"].to_list(), rows["context"].to_list(), return_offsets_mapping=True
    )
    lengths = [len(ids) for ids in encoded["input_ids"]]
    if max(lengths) > max_tokens:
        raise ValueError(f"a question has {max(lengths)} tokens, more than {max_tokens}")
    contexts, found = rows["context"].to_list(), [""] * len(rows)
    names = [name for name in tokenizer.model_input_names if name in encoded]
    for batch in dev_batches(model, lengths):
        widest = max(lengths[row] for row in batch)
        inputs = {
            name: torch.tensor(
                [encoded[name][row] + [0] * (widest - lengths[row]) for row in batch]
            )
            for name in names
        }
        output = model(**inputs)
        for place, row in enumerate(batch):
            logits = torch.stack([output.start_logits[place], output.end_logits[place]], dim=1)
            inside = [i for i, side in enumerate(encoded.sequence_ids(row)) if side == 1]
            first, last, _ = best_span(logits, (inside[0], inside[-1] + 1))
            offsets = encoded["offset_mapping"][row]
            found[row] = contexts[row][offsets[first][0] : offsets[last][1]]
    return found


def run(work: Work, seeds: Sequence[int], conditions: Sequence[str]) -> dict[str, Any]:
    """Return every result; what is done already is read."""
    reader = work.reader()
    seen: dict[int, dict[str, Any]] = {seed: {} for seed in seeds}
    base = work.kept(work.folder / f"{BASE}.json", lambda: judge(work, reader))
    order = [(seed, own) for part in _ORDER for seed in seeds for own in part if own in conditions]
    for seed, condition in order:
        path = work.folder / f"seed-{seed}" / f"{condition}.json"
        make = partial(run_condition, work, seed, condition, reader)
        seen[seed][condition] = work.kept(path, make)
        gc.collect()
    return {BASE: base, "seeds": seen}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.downstream")
    add = parser.add_argument
    add("--squad", type=Path, default=SQUAD, help="Parquet of SQuAD 2.0 dev")
    add("--work", type=Path, default=Path("build/downstream"), help="default %(default)s")
    add("--seeds", default="0,1,2", help="default %(default)s")
    add("--conditions", default=",".join(CONDITIONS), help="default %(default)s")
    add("--n-a", type=int, default=2000, help="questions of A; default %(default)s")
    add("--n-b", type=int, default=1500, help="questions of B; default %(default)s")
    add("--n-c", type=int, default=1000, help="questions of C; default %(default)s")
    add("--n-dev", type=int, default=150, help="shown while training; default %(default)s")
    add("--n-examples", type=int, default=1500, help="of a further training; default %(default)s")
    add("--n-labels", type=int, default=200, help="default %(default)s")
    add("--a-epochs", type=int, default=4, help="default %(default)s")
    add("--a-learning-rate", type=float, default=1e-3, help="default %(default)s")
    add("--learning-rate", type=float, default=5e-4, help="default %(default)s")
    add("--batch-size", type=int, default=16, help="default %(default)s")
    add("--rank", type=int, default=16, help="of the adapters; default %(default)s")
    add("--passage-tokens", type=int, default=112, help="default %(default)s")
    add("--max-tokens", type=int, default=192, help="default %(default)s")
    add("--split-seed", type=int, default=0, help="default %(default)s")
    add("--threads", type=int, default=1, help="default %(default)s")
    add("--json", type=Path, help="write all numbers to this file")
    asked = parser.parse_args(arguments)
    conditions = asked.conditions.split(",")
    if unknown := set(conditions) - set(CONDITIONS):
        parser.error(f"no such condition: {', '.join(sorted(unknown))}")
    names = Settings.__dataclass_fields__
    settings = Settings(**{name: value for name, value in vars(asked).items() if name in names})
    torch.set_num_threads(asked.threads)
    work = Work(asked.work, settings, squad=asked.squad, n_threads=asked.threads)
    found = run(work, [int(seed) for seed in asked.seeds.split(",")], conditions)
    summary = summarize(found, contexts=work.parts["c"]["context"].to_numpy())
    print(json.dumps(environment(asked.threads)))
    print(table(summary, n_seeds=len(found["seeds"])))
    for condition in (name for name in RANKED if name in summary):
        own = {kind: value[0] for kind, value in summary[condition]["auc_by_kind"].items()}
        print(f"{condition}: AUC " + ", ".join(f"{kind} {area:.3f}" for kind, area in own.items()))
    if asked.json:
        write_json(
            asked.json,
            {"environment": environment(asked.threads), **asdict(settings), "summary": summary},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
