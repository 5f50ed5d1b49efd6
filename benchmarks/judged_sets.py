"""Judged sets: public data with people's verdicts, as rows that a Scorer reads.

A set says what of it is the human value, which rows are good, what shares a context, and which
metrics apply: those whose roles it has, less those made for another kind of candidate. Texts stay
where they are: nothing of them leaves this process but numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS
from recipes.reader_minilm.passages import normalized
from recipes.sas_minilm.sources import pair_key

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_SQUAD = "squad/squad_v2_dev.parquet"
_RATED = ("answerability", "consistency", "answer_consistency")
# Made for one kind of candidate: on the other they are numbers without a meaning.
_OF_ANSWERS = ("kpqa",)
_OF_QUESTIONS = ("q_bleu",)
# What is asked of a language model, and what no set has the columns for.
_ENDPOINT = "endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSet:
    """Rows with a human value each.

    Attributes
    ----------
    title, human, good, cluster : str
        What the page says of it: whose texts; the value that correlations are with; which rows
        count as good; what intervals draw.
    candidates : str
        "questions" or "answers".
    rows : DataFrame
        Roles, and ``human``, ``is_good`` and ``cluster``.
    passages : frozenset of str
        Those that the rows are about, as far as they are known.
    data : str
        The dataset that the texts are of, as models' cards name it.
    """

    name: str
    title: str
    human: str
    good: str
    cluster: str
    candidates: str
    rows: pl.DataFrame
    passages: frozenset[str] = frozenset()
    data: str = ""

    def roles(self) -> list[str]:
        """Return the roles that the rows have."""
        return [name for name in self.rows.columns if name not in ("human", "is_good", "cluster")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewordedSet:
    """Questions in new words by people, beside the original and a wrong question of another row.

    ``rows`` holds them below each other: ``kind`` is "original", "new" or "wrong", and ``pair``
    the original's number, which all of a kind share.
    """

    name: str
    title: str
    rows: pl.DataFrame
    passages: frozenset[str]
    data: str
    candidates: str = "questions"

    def roles(self) -> list[str]:
        """Return the roles that the rows have."""
        return [name for name in self.rows.columns if name not in ("kind", "pair", "cluster")]


def applies(metric: AnyMetric, judged: JudgedSet | RewordedSet) -> bool:
    """Return whether a set has what a metric reads, and candidates of the kind it is for."""
    others = _OF_ANSWERS if judged.candidates == "questions" else _OF_QUESTIONS
    return (
        is_measurable(metric)
        and set(metric.roles) <= set(judged.roles())
        and metric.name not in others
    )


def is_measurable(metric: AnyMetric) -> bool:
    """Return whether a metric can be computed without a language model's endpoint."""
    return _ENDPOINT not in metric.needs


def metrics_of(judged: JudgedSet | RewordedSet) -> list[str]:
    """Return the metrics that apply, in the order of the catalog."""
    return [name for name, metric in METRICS.items() if applies(metric, judged)]


def qgeval() -> JudgedSet:
    """Return generated questions with passage, answer and reference."""
    table = pl.read_parquet(DATA / "qgeval/qgeval_squad.parquet")
    return JudgedSet(
        name="qgeval",
        title="QGEval, SQuAD half: questions of 15 systems about 100 passages",
        human="mean of the ratings (1 to 3) of answerability, consistency and answer consistency",
        good="each of the three rated 2.5 or more",
        cluster="passages",
        candidates="questions",
        rows=table.select(
            candidate="question",
            context="passage",
            answer="answer",
            references=pl.concat_list("reference"),
            human=pl.mean_horizontal(_RATED),
            is_good=pl.all_horizontal(pl.col(_RATED) >= 2.5),
            cluster="passage",
        ),
        passages=frozenset(table["passage"]),
        data="SQuAD",
    )


def quiz_design() -> JudgedSet:
    """Return generated questions that teachers took or refused."""
    table = pl.read_parquet(DATA / "quiz_design/quiz_design.parquet")
    return JudgedSet(
        name="quiz_design",
        title="quiz_design: questions of seven systems about 22 passages of 7 documents",
        human="1 where a teacher took the question, else 0",
        good="taken",
        cluster="passages",
        candidates="questions",
        rows=table.select(
            candidate="question",
            context="context",
            answer="answer",
            human=pl.col("label").cast(pl.Float64),
            is_good=pl.col("label") == 1,
            cluster="context",
        ),
        passages=frozenset(table["context"]),
        data="Wikipedia",
    )


def answerability() -> JudgedSet:
    """Return questions that lost words, beside the whole ones."""
    table = _lines("answerability/human_ratings.jsonl")
    squad = pl.read_parquet(DATA / _SQUAD, columns=["question", "context"])
    known = dict(zip(map(normalized, squad["question"]), squad["context"], strict=True))
    passages = [known.get(normalized(question)) for question in table["gold_question"]]
    return JudgedSet(
        name="answerability",
        title="answerability: questions of SQuAD with words left out",
        human="mean of two ratings (1 to 5)",
        good="mean of 4 or more",
        cluster="passages where the question is one of SQuAD dev, else whole questions",
        candidates="questions",
        rows=table.select(
            candidate="modified_question",
            references=pl.concat_list("gold_question"),
            human=pl.mean_horizontal("answerability_user1", "answerability_user2"),
            cluster=pl.coalesce(pl.Series(passages), "gold_question"),
        ).with_columns(is_good=pl.col("human") >= 4),
        passages=frozenset(passage for passage in passages if passage),
        data="SQuAD",
    )


def sas() -> JudgedSet:
    """Return pairs of answers to one question."""
    table = _lines("sas/squad_pairs.jsonl")
    squad = pl.read_parquet(DATA / _SQUAD, columns=["answers", "context"])
    known = {
        pair_key(*pair): context
        for answers, context in squad.iter_rows()
        for pair in combinations(answers, 2)
    }
    pairs = table.select("answer1", "answer2").iter_rows()
    passages = [known.get(pair_key(*pair)) for pair in pairs]
    return JudgedSet(
        name="sas",
        title="SAS: pairs of answers to questions of SQuAD dev",
        human="label (0 other, 1 about the same, 2 the same meaning)",
        good="label of 1 or 2",
        cluster="passages where the pair is one of SQuAD dev, else first answers",
        candidates="answers",
        rows=table.select(
            candidate="answer2",
            references=pl.concat_list("answer1"),
            human=pl.col("label").cast(pl.Float64),
            is_good=pl.col("label") >= 1,
            cluster=pl.coalesce(pl.Series(passages), "answer1"),
        ),
        passages=frozenset(passage for passage in passages if passage),
        data="SQuAD dev",
    )


def kpqa_marco() -> JudgedSet:
    """Return generated answers to questions of MS MARCO."""
    return _kpqa("kpqa_marco", "marco_unilm", "KPQA, MS MARCO: answers of UniLM", "MS MARCO")


def kpqa_narrative() -> JudgedSet:
    """Return generated answers to questions of NarrativeQA."""
    return _kpqa(
        "kpqa_narrative", "nrqa_mhpgm", "KPQA, NarrativeQA: answers of MHPGM", "NarrativeQA"
    )


def _kpqa(name: str, file: str, title: str, data: str) -> JudgedSet:
    table = _lines("kpqa/human_judgments.jsonl").filter(pl.col("file") == file)
    highest = pl.col("human_scale").list.last()
    return JudgedSet(
        name=name,
        title=title,
        human="mean rating of correctness, highest 1",
        good="0.6 or more, which is 3 of 5",
        cluster="rows, each a question of its own; the set names no passage",
        candidates="answers",
        rows=table.select(
            candidate="answer",
            question="question",
            references="references",
            human=pl.col("human_score") / highest,
            cluster="question",
        ).with_columns(is_good=pl.col("human") >= 0.6 - 1e-9),
        data=data,
    )


def naco() -> RewordedSet:
    """Return questions of SQuAD in new words, by people who saw the passage and the answer."""
    table = _lines("naco/squad_candidates.jsonl").with_row_index("pair")
    n_rows = table.height
    # Half the set away: another passage, whatever the order is.
    wrong = table["refq"].gather((np.arange(n_rows) + n_rows // 2) % n_rows)
    kinds = {
        "original": [table["refq"]],
        "new": [table["annoq"], table["annoq_clue_refq"]],
        "wrong": [wrong],
    }
    blocks = [
        table.select(
            "pair",
            "context",
            "answer",
            candidate=candidates,
            references=pl.concat_list("refq"),
            kind=pl.lit(kind),
            cluster="context",
        )
        for kind, sides in kinds.items()
        for candidates in sides
    ]
    return RewordedSet(
        name="naco",
        title="NACo: questions of SQuAD in new words, two by people for each",
        rows=pl.concat(blocks),
        passages=frozenset(table["context"]),
        data="SQuAD",
    )


JUDGED: dict[str, Callable[[], JudgedSet]] = {
    "qgeval": qgeval,
    "quiz_design": quiz_design,
    "answerability": answerability,
    "sas": sas,
    "kpqa_marco": kpqa_marco,
    "kpqa_narrative": kpqa_narrative,
}
REWORDED: dict[str, Callable[[], RewordedSet]] = {"naco": naco}
SETS = {**JUDGED, **REWORDED}


def _lines(name: str) -> pl.DataFrame:
    return pl.read_ndjson(DATA / name, infer_schema_length=None)
