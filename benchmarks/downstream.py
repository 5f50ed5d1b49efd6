"""Experiment: do generated questions that a filter kept make a better reader than a random half?

A small causal model (`benchmarks.question_writer`) and the reader of ``roundtrip`` are trained on
people's questions of A. The model writes questions on passages of B, noise as it comes. A reader is
trained from its base on them alone, with as many steps whatever was kept of them: all, a random
half, the half that ``qaeval filter`` keeps by ``roundtrip``, or as many of people's questions on
the same articles. It is judged on people's questions of C. No article is in two of A, B and C.

Decided before the first run: one test at .05, F1 of the half by ``roundtrip`` less the random half,
paired by seed, with seeds and C's passages in its error. The other differences are corrected by
Holm. ``python -m benchmarks.downstream`` takes two and a quarter hours on two cores; it keeps what
is done in ``--work`` and goes on from there. Prints numbers and never judges one.

But: one small model wrote the questions, and one split and one base were tried. Nobody has labeled
the questions, so no share of them is certified, and nothing is said of how many are right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from benchmarks.data import SQUAD
from benchmarks.downstream_table import CONDITIONS, summarize, table
from benchmarks.measure import environment
from benchmarks.question_writer import QuestionWriter, answer_spans, train_writer
from benchmarks.squad_parts import shorten, split_articles, stretches
from qaeval_core import Scorer, filter_table
from qaeval_core.configure import load_config
from qaeval_core.models.registry import resolve_model
from qaeval_core.storage.files import write_json
from qaeval_core.terminal import say
from qaeval_export.training.job import run_job
from qaeval_export.training.loop import dev_batches
from qaeval_export.training.model import load_task_model, load_tokenizer
from qaeval_export.training.options import ReaderOptions
from qaeval_export.training.reader import best_span

XQUAD = SQUAD.with_name("xquad_en.parquet")  # Has articles that the other lacks.
EVIDENCE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "downstream.json"
_N_PASSAGES_A_FILE = 150
_N_DEV = 32  # A training wants questions to be judged by; they decide nothing here.

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides the numbers; a work folder begun with others is refused.

    Attributes
    ----------
    n_a, n_c : int
        People's questions of A and C.
    n_writer : int
        Of A's questions, those that the writer is trained on.
    n_b : int
        Written questions of B; a half of them, and as many of people's, is a condition.
    n_a_passage : int
        Questions written on a stretch of a passage at most.
    writer : str
        The causal model to be trained.
    passage_tokens : int
        Of a stretch, at most.
    n_examples : int
        Seen by each training, whatever was kept.
    split_seed : int
        Of the split by article, the spans asked for, and the reader of A.
    """

    n_a: int
    n_writer: int
    n_b: int
    n_c: int
    n_a_passage: int
    writer: str
    writer_epochs: int
    passage_tokens: int
    max_tokens: int
    batch_size: int
    rank: int
    a_epochs: int
    n_examples: int
    learning_rate: float
    split_seed: int


@dataclass(frozen=True, slots=True)
class Work:
    """The work folder: data, the reader of A, and what each training came to."""

    folder: Path
    settings: Settings

    def begin(self, squad: Sequence[Path]) -> None:
        """Write down what decides the numbers, and make base and parts where they are not there."""
        own = self.settings
        self.folder.mkdir(parents=True, exist_ok=True)
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in squad]
        decided = asdict(own) | {"squad": digests}
        path = self.folder / "settings.json"
        if not path.is_file():
            write_json(path, decided)
        elif (before := _read_json(path)) != decided:
            changed = sorted(name for name in decided if before.get(name) != decided[name])
            raise SystemExit(f"{self.folder} was begun with other settings ({', '.join(changed)})")
        _make_base(self.base)
        names = ("a", "writer", "dev", "c", "gold", "passages")
        if not all((self.folder / f"{name}.parquet").is_file() for name in names):
            for name, part in self._make_parts(squad).items():
                _write_parquet(part, self.folder / f"{name}.parquet")

    @property
    def base(self) -> Path:
        """The base that all readers begin with."""
        return self.folder / "base"

    @property
    def reader(self) -> Path:
        """The reader of A."""
        return self.folder / "reader-a" / "model"

    def part(self, name: str) -> pl.DataFrame:
        """Return a part of the data."""
        return pl.read_parquet(self.folder / f"{name}.parquet")

    def _make_parts(self, squad: Sequence[Path]) -> dict[str, pl.DataFrame]:
        own = self.settings
        tokenizer = load_tokenizer(resolve_model(str(self.base), role="encoder"))

        def count_tokens(text: str) -> int:
            return len(tokenizer.tokenize(text))

        columns = ["id", "title", "context", "question", "answers", "answer_starts"]
        read = [pl.read_parquet(path, columns=columns) for path in squad]
        # An article that two files have is the first one's: parts must not share a passage.
        for place in range(1, len(read)):
            known = pl.concat(read[:place])["title"].unique().to_list()
            read[place] = read[place].filter(~pl.col("title").is_in(known))
        rows = pl.concat(read)
        short = shorten(rows, count_tokens=count_tokens, max_tokens=own.passage_tokens)
        parts, left = split_articles(short, sizes={"a": own.n_a, "c": own.n_c}, seed=own.split_seed)
        texts = rows.filter(pl.col("title").is_in(left))["context"].unique(maintain_order=True)
        cut = [
            text[start:end]
            for text in texts
            for start, end in stretches(text, count_tokens, own.passage_tokens)
        ]
        gold = short.filter(pl.col("title").is_in(left)).sample(
            own.n_b // 2, seed=own.split_seed, shuffle=True
        )
        passages = pl.DataFrame({"context": cut}).with_row_index("passage")
        shuffled = parts["a"].sample(own.n_writer, seed=own.split_seed, shuffle=True)
        dev = parts["a"].head(_N_DEV)
        return {**parts, "dev": dev, "writer": shuffled, "gold": gold, "passages": passages}

    def options(self, out: Path, squad: Path, *, epochs: int, seed: int) -> ReaderOptions:
        """Return the options of a training; the last weights are kept, whatever dev says."""
        own = self.settings
        return ReaderOptions(
            out=out, base=str(self.base), squad=[squad], dev=self.folder / "dev.parquet",
            epochs=epochs, batch_size=own.batch_size, rank=own.rank, rate=own.learning_rate,
            max_tokens=own.max_tokens, threads=1, seed=seed, keep_last=True,
        )  # fmt: skip


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


def train_on_a(work: Work, what: str) -> None:
    """Train the writer, or the reader of ``roundtrip``, on people's questions."""
    own, out = work.settings, work.folder / what
    if what == "reader-a":
        squad, epochs = work.folder / "a.parquet", own.a_epochs
        run_job(work.options(out, squad, epochs=epochs, seed=own.split_seed))
        return
    squad, epochs = work.folder / "writer.parquet", own.writer_epochs
    options = work.options(out, squad, epochs=epochs, seed=own.split_seed)
    rows, dev = work.part("writer"), work.part("dev")
    train_writer(out, base=own.writer, rows=rows, dev=dev, options=options)


def write_questions(work: Work, number: int) -> None:
    """Write the questions of one file of passages."""
    own = work.settings
    path = work.folder / "written" / f"{number:04}.parquet"
    if path.is_file():
        return
    path.parent.mkdir(exist_ok=True)
    passages = work.part("passages").slice(number * _N_PASSAGES_A_FILE, _N_PASSAGES_A_FILE)
    asked = [
        (context, *span)
        for passage, context in passages.iter_rows()
        for span in answer_spans(context, most=own.n_a_passage, seed=[own.split_seed, passage])
    ]
    written = QuestionWriter(work.folder / "writer", base=own.writer).write(asked)
    rows = [
        {"context": context, "question": question, "answer": answer, "answer_start": start}
        for (context, answer, start), question in zip(asked, written, strict=True)
    ]
    _write_parquet(pl.DataFrame(rows), path)
    say(f"{path.relative_to(work.folder)}: {len(rows)} questions on {len(passages)} passages")


def read_written(work: Work) -> pl.DataFrame:
    """Return all lines that were written; ``question`` is None where one is no question."""
    files = sorted((work.folder / "written").glob("*.parquet"))
    return pl.concat([pl.read_parquet(file) for file in files])


def score_questions(work: Work, *, n_threads: int) -> None:
    """Take as many written questions as asked for, by chance, and score them by ``roundtrip``."""
    own = work.settings
    path = work.folder / "b.parquet"
    if path.is_file():
        return
    written = read_written(work).drop_nulls("question")
    if len(written) < own.n_b:
        raise SystemExit(f"{len(written):,} questions were written, fewer than {own.n_b:,}")
    rows = written.sample(own.n_b, seed=own.split_seed, shuffle=True)
    rows = rows.select(
        pl.int_range(pl.len()).cast(pl.String).alias("id"),
        "context", "question", "answer", "answer_start",
    )  # fmt: skip
    config = load_config(overrides={"models.artifacts_path": str(work.folder / "artifacts")})
    scorer = Scorer({"roundtrip": {"reader": str(work.reader)}}, config=config, n_threads=n_threads)
    scores = scorer.score(rows.select("id", "question", "context", "answer"))
    _write_parquet(rows.with_columns(scores["roundtrip"].cast(pl.Float64)), path)


def choose(work: Work, seed: int, condition: str) -> pl.DataFrame:
    """Return what a reader is trained on."""
    if condition == "gold":
        return work.part("gold")
    rows = work.part("b")
    one = {"answers": pl.concat_list("answer"), "answer_starts": pl.concat_list("answer_start")}
    rows = rows.with_columns(**one)
    if condition == "all":
        return rows
    scores = rows["roundtrip"].to_numpy()
    if condition == "random":
        scores = np.random.default_rng([seed, 3]).random(len(rows))
    return rows.filter(pl.Series(keep_half(scores, rows["id"].to_list(), seed=seed)))


def run_condition(work: Work, seed: int, condition: str) -> None:
    """Train a reader on what a condition keeps, judge it, and keep what came of it."""
    own = work.settings
    path = work.folder / f"seed-{seed}" / f"{condition}.json"
    if path.is_file():
        return
    started = time.monotonic()
    path.parent.mkdir(exist_ok=True)
    chosen = choose(work, seed, condition)
    squad = path.with_suffix(".parquet")
    _write_parquet(chosen.select("context", "question", "answers", "answer_starts"), squad)
    n_steps = own.n_examples // own.batch_size
    epochs = epochs_for(
        len(chosen), n_examples=own.n_examples, batch_size=own.batch_size, n_steps=n_steps
    )
    out = path.with_suffix("")
    run_job(work.options(out, squad, epochs=epochs, seed=seed))
    trained = _read_json(out / "metrics.json")
    if trained["n_steps"] != n_steps:  # A row of two windows would make more.
        raise RuntimeError(f"{out} took {trained['n_steps']} steps, not {n_steps}")
    found = {"n_rows": len(chosen), "n_steps": n_steps, **judge(work, out / "model")}
    if "roundtrip" in chosen.columns:
        found["roundtrip"] = float(np.nan_to_num(chosen["roundtrip"].to_numpy()).mean())
    shutil.rmtree(out)  # 90 MB; the numbers are what is kept.
    seconds = time.monotonic() - started
    write_json(path, found | {"seconds": seconds})
    say(f"{path.relative_to(work.folder)}: F1 {100 * found['f1']:.1f}, {seconds:.0f} s")


def judge(work: Work, model: Path) -> dict[str, Any]:
    """Return exact match and F1 of each question of C, by the rule of SQuAD."""
    rows = work.part("c")
    answers = read_answers(model, rows, max_tokens=work.settings.max_tokens)
    answered = pl.DataFrame({"candidate": answers, "references": rows["answers"]})
    scores = Scorer(["exact_match", "f1"], n_threads=1).score(answered)
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


def run(work: Work, seeds: Sequence[int], *, n_processes: int) -> dict[str, Any]:
    """Return every result; what is done already is read."""
    n_files = -(-len(work.part("passages")) // _N_PASSAGES_A_FILE)
    # People's questions need no writer: they fill the second process while the first trains it.
    needs_no_writer = [(run_condition, work, seed, "gold") for seed in seeds]
    on_a = [(train_on_a, work, name) for name in ("writer", "reader-a")]
    _in_processes([*on_a, *needs_no_writer], n_processes)
    _in_processes([(write_questions, work, number) for number in range(n_files)], n_processes)
    score_questions(work, n_threads=n_processes)
    _in_processes(
        [(run_condition, work, seed, name) for seed in seeds for name in CONDITIONS], n_processes
    )
    return {
        str(seed): {
            name: _read_json(work.folder / f"seed-{seed}" / f"{name}.json") for name in CONDITIONS
        }
        for seed in seeds
    }


def _in_processes(calls: Iterable[tuple[Any, ...]], n_processes: int) -> None:
    """Make calls side by side, each on one thread; the first that fails ends all."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, torch.set_num_threads, (1,)) as pool:
        futures = [pool.submit(*call) for call in calls]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def facts(work: Work) -> dict[str, Any]:
    """Return what the data are, in numbers."""
    b = work.part("b")
    return {
        "n_passages": {
            name: work.part(name)["context"].n_unique() for name in ("a", "b", "c", "gold")
        },
        "n_passages_b": len(work.part("passages")),
        "n_written": len(written := read_written(work)),
        "n_no_question": written["question"].null_count(),
        "n_same_question": len(b) - b.select("context", "question").n_unique(),
        "roundtrip": {
            "undefined": b["roundtrip"].null_count(),
            "of_0": int((b["roundtrip"] == 0).sum()),
            "of_1": int((b["roundtrip"] == 1).sum()),
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not done yet and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.downstream")
    add = parser.add_argument
    add("--squad", type=Path, nargs="+", default=[SQUAD, XQUAD], help="Parquet of SQuAD's columns")
    add("--work", type=Path, default=Path("build/downstream"), help="default %(default)s")
    add("--seeds", type=int, default=8, help="how many; default %(default)s")
    add("--n-a", type=int, default=2000, help="questions of A; default %(default)s")
    add("--n-writer", type=int, default=1200, help="of A's, for it; default %(default)s")
    add("--n-b", type=int, default=2400, help="written questions; default %(default)s")
    add("--n-c", type=int, default=2000, help="questions of C; default %(default)s")
    add("--n-a-passage", type=int, default=4, help="written, at most; default %(default)s")
    add("--writer", default="smollm2-135m", help="causal model; default %(default)s")
    add("--writer-epochs", type=int, default=1, help="default %(default)s")
    add("--n-examples", type=int, default=2400, help="of a training; default %(default)s")
    add("--a-epochs", type=int, default=4, help="default %(default)s")
    add("--learning-rate", type=float, default=1e-3, help="default %(default)s")
    add("--batch-size", type=int, default=16, help="default %(default)s")
    add("--rank", type=int, default=16, help="of the adapters; default %(default)s")
    add("--passage-tokens", type=int, default=80, help="default %(default)s")
    add("--max-tokens", type=int, default=192, help="default %(default)s")
    add("--split-seed", type=int, default=0, help="default %(default)s")
    add("--processes", type=int, default=2, help="default %(default)s")
    add("--json", type=Path, help="write all numbers to this file")
    asked = parser.parse_args(arguments)
    names = Settings.__dataclass_fields__
    work = Work(asked.work, Settings(**{name: getattr(asked, name) for name in names}))
    work.begin(asked.squad)
    found = run(work, range(asked.seeds), n_processes=asked.processes)
    summary = summarize(found, contexts=work.part("c")["context"].to_numpy())
    about = environment(asked.processes)
    print(json.dumps(about))
    print(table(summary))
    if asked.json:
        record = {"environment": about, **asdict(work.settings), "facts": facts(work), **summary}
        write_json(asked.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
