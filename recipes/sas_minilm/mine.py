"""Mining: public datasets and a teacher -> pairs of texts with scores, to train a cross-encoder.

People's scores exist for sentences alone, and short answers are what the model will judge. So a
larger bi-encoder scores answer-like pairs mined from running text; its cosine is put on the scale
of people's scores first. Where a rule or a relation of WordNet knows better, it decides.

Source
------
Thakur, Reimers, Daxenberger, Gurevych. Augmented SBERT. NAACL 2021, arXiv:2010.08240, section 3
(labels by a teacher, pairs sampled by similarity; there the cross-encoder teaches).

But: no training here (``qaeval train cross-encoder``), and nothing is learned from what judges the
result. SAS pairs and gold answers of SQuAD are read for one purpose: to leave out what coincides
with them. A few pairs of a rule or of WordNet do, such as 3 and three.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from qaeval_core.errors import ConfigError, InputError, QAEvalError
from qaeval_core.models.registry import resolve_model
from qaeval_core.storage import files
from qaeval_core.terminal import say
from recipes.sas_minilm.candidates import N_PAIRS, Candidate, make_candidates
from recipes.sas_minilm.sources import sentence_pairs, wordnet_folder
from recipes.sas_minilm.teacher import Teacher, fit_scale, near_pairs

__all__ = ["final_scores", "is_dev", "main", "mine"]

# Neighbors that are nearest, near, and merely of the same kind.
_RANKS = (1, 2, 4, 8, 16, 40)
_DEV_SHARE = 0.05
# What a relation says of a score, where s is the teacher's. Encoders put opposites and siblings
# ("Monday", "Tuesday") near each other; readers do not take one for the other.
_KNOWN: Mapping[str, Callable[[float], float]] = {
    "synonym": lambda s: (s + 0.95) / 2,
    "lead": lambda s: max(s, 0.9),
    "antonym": lambda s: min(s, 0.2),
    "sibling": lambda s: min(s, 0.4),
    "number_changed": lambda s: min(s, 0.15),
}
_EPILOG = """\
example:
  python -m recipes.sas_minilm.mine --data data --teacher all-mpnet-base-v2 --out mined

OUT/pairs.parquet and OUT/dev.parquet are for `qaeval train cross-encoder --pairs ... --dev ...`.
Exit status: 0 done, 1 failed, 2 wrong request.
"""


def mine(
    *,
    data: Path,
    wordnet: Path,
    teacher: Path,
    out: Path,
    seed: int,
    n_pairs: Mapping[str, int] = N_PAIRS,
) -> None:
    """Write ``pairs.parquet`` and ``dev.parquet`` with text_a, text_b, score and source.

    Parameters
    ----------
    data : Path
        Folder of the datasets; the top of ``sources`` names the files.
    wordnet : Path
        Folder of WordNet's files.
    teacher : Path
        Folder of a sentence-transformers model.
    out : Path
        Made if it is not there; files of an earlier run are replaced.
    seed : int
        The same seed and files give the same pairs; scores may differ in the last digits.
    n_pairs : mapping of str to int, default N_PAIRS
        At most, of each source.

    Raises
    ------
    InputError, SchemaError
        If a file or column of the data is missing.
    ConfigError
        If the teacher is missing.
    """
    scorer = Teacher(teacher)
    # Near in the space of the model that will be trained: what it takes for alike at first.
    # In fp32: ranks decide which pairs there are, and should not hang on a machine's bfloat16.
    student = Teacher(resolve_model("minilm", role="encoder").folder, bf16=False)

    def near(texts: Sequence[str]) -> list[tuple[str, str]]:
        rows = near_pairs(student.vectors(texts), ranks=_RANKS)
        return [(texts[i], texts[j]) for i, j in rows]

    candidates = make_candidates(data=data, wordnet=wordnet, seed=seed, near=near, n_pairs=n_pairs)
    say_counts(candidates)
    cosine = scorer.cosines(
        [pair.text_a for pair in candidates], [pair.text_b for pair in candidates]
    )
    scored = final_scores(candidates, cosine)
    sentences = [Candidate(*pair, "stsb") for pair in sentence_pairs(data, split="dev")]
    out.mkdir(parents=True, exist_ok=True)
    write_pairs([pair for pair in scored if not is_dev(pair)], out / "pairs.parquet")
    write_pairs([*sentences, *filter(is_dev, scored)], out / "dev.parquet")


def final_scores(candidates: Sequence[Candidate], cosine: np.ndarray) -> list[Candidate]:
    """Return candidates with their scores in [0, 1].

    Parameters
    ----------
    candidates : sequence of Candidate
        Those of source ``stsb`` have people's scores and set the scale.
    cosine : float array of shape (n_pairs,)
        The teacher's.

    Examples
    --------
    >>> people = [Candidate("a", "b", score, "stsb") for score in (0.1, 0.5, 0.9)]
    >>> mined = [Candidate("wet", "dry", float("nan"), "antonym")]
    >>> scored = final_scores([*people, *mined], np.array([0.2, 0.5, 0.8, 0.8]))
    >>> [round(pair.score, 2) for pair in scored]
    [0.1, 0.5, 0.9, 0.2]
    """
    by_people = np.array([pair.source == "stsb" for pair in candidates])
    known = np.array([pair.score for pair in candidates])
    slope, offset = fit_scale(cosine[by_people], known[by_people])
    taught = 1 / (1 + np.exp(-(slope * cosine + offset)))
    return [
        pair if pair.score == pair.score else pair._replace(score=_mend(pair.source, float(score)))
        for pair, score in zip(candidates, taught, strict=True)
    ]


def _mend(source: str, taught: float) -> float:
    return _KNOWN[source](taught) if source in _KNOWN else taught


def is_dev(pair: Candidate) -> bool:
    """Return whether a mined pair is held out; both orders of it are, or neither.

    Examples
    --------
    >>> sum(is_dev(Candidate(str(i), "b", 0.5, "near")) for i in range(1000))
    55
    """
    if pair.source == "stsb":  # Has a dev part of its own.
        return False
    key = "\t".join(sorted((pair.text_a.lower(), pair.text_b.lower())))
    return crc32(key.encode()) % 1000 < 1000 * _DEV_SHARE


def write_pairs(pairs: Sequence[Candidate], path: Path) -> None:
    """Write a Parquet file, whole or not at all."""
    columns = zip(*pairs, strict=True)
    table = pa.table(dict(zip(Candidate._fields, map(list, columns), strict=True)))
    with files.writer(path) as file:
        pq.write_table(table, file)


def say_counts(candidates: Sequence[Candidate]) -> None:
    """Print how many pairs each source gave."""
    counts = Counter(pair.source for pair in candidates)
    shown = ", ".join(f"{source} {count:,}" for source, count in counts.items())
    say(f"{len(candidates):,} pairs: {shown}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Mine as the command line asks; returns the exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.seed < 0:
        parser.error(f"--seed {args.seed}: a whole number of at least 0 is needed")
    _be_quiet()
    try:
        wordnet = wordnet_folder()
        mine(data=args.data, wordnet=wordnet, teacher=args.teacher, out=args.out, seed=args.seed)
    except (ConfigError, InputError) as error:
        say(f"error: {error}")
        return 2
    except (QAEvalError, OSError) as error:
        say(f"error: {error}")
        return 1
    return 0


def _be_quiet() -> None:
    """Keep other programs' progress bars off the terminal."""
    from transformers.utils import logging

    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.disable_progress_bar()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.sas_minilm.mine",
        description="Mine pairs of texts with scores, to train a cross-encoder.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="folder of the public datasets")
    add("--teacher", type=Path, required=True, metavar="DIR", help="sentence-transformers model")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the pairs")
    add("--seed", type=int, default=0, help="default 0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
