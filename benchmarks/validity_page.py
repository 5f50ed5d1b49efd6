"""Page of validity: the record of the benchmark -> docs/validity.md, whole.

But: nothing is measured here, and no text of a judged set comes this way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.training_texts import ADAPTERS, BASE_DATA
from qaeval_core.metrics.advice import figure
from qaeval_core.metrics.catalog import METRICS

_DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = _DOCS / "validity.md"
RECORD = _DOCS / "evidence" / "validity.json"

Record = Mapping[str, Any]

# Of a set's texts that coincide with training texts by chance, at most: names, titles.
_BY_CHANCE = 0.01
_SEEN, _NAMED, _FITTED = "\\*", "†", "‡"
# Metrics whose numbers people's ratings of such questions have made: set -> metrics.
_FITTED_ON = {"answerability": ("q_bleu",)}
# p below which a metric is shown worse than the best one.
_SHOWN = 0.05
_FAMILIES = {
    "all": "of all metrics",
    "reference": "of those with a reference",
    "no reference": "of those without a reference",
    "words": "of those without a model",
}
_NOT_MEASURED = {
    "endpoint": "asks a language model behind an endpoint; none was at hand",
    "columns": "reads spans of passages; no judged set has them",
}

_HEAD = """\
# Validity

How far each metric agrees with people, on public sets that people have judged. What to use for
which job is in [metrics](metrics.md#which-metric-for-which-job); your own rows are judged by
[qaeval correlate](correlation.md), and nothing here replaces that.

This page is written by `python -m benchmarks.validity`, and so is the record behind it,
`docs/evidence/validity.json`. Scores of each row, without texts, lie in `docs/evidence/scores`.
Commits named below that this history does not hold are of before it was written anew.
"""

_READING = """\
## How to read it

- Every score column of every metric of the catalog, with default settings and the embedded
  models, by `Scorer`; the figures are those of `qaeval correlate` with `--human`, `--auc` and
  `--cluster`. Columns stand in the order of their AUC.
- **Pearson** and **Spearman**: correlation with the human value. **AUC**: how often a good row
  scores above one that is not, ties counting half; .5 says nothing. In brackets 95 % of
  {n_resamples:,} resamples, which draw whole passages (or what the section names) with all their
  rows. Nothing corrects for there being many columns: the best of forty looks better than it is.
- **undefined**: rows without a score (an empty text, no words); they are left out of that line's
  figures alone.
- **not shown worse than the best**: Hsu's multiple comparisons with the best, at .05. Each metric's
  main column (its own name, its F1, or its first) is compared with all others on the same
  resamples. The lists stand below the tables, the best first; the guide is made of them.
- **rows/s**: a whole call of a `Scorer` whose model is loaded, one metric alone, on {n_threads}
  threads; the fastest of three (of two where it takes long) on as many rows as take 2 seconds, and
  no fewer than 20. Rows that share a passage or a pair share its work, so the rate is that of the
  set's first rows. It stands at a metric's first line.
- {seen}: the shipped model was trained on texts of the set; the counts are below the table.
  {named}: the card of MiniLM, the base of every model here but the causal one, names the set's
  source among its data.
  {fitted}: the formula's weights were chosen on ratings of this kind. No shipped model was trained
  on a human verdict of these sets.
"""

_LIMITS = """\
## What these figures do not say

- They are the figures of small embedded models (22M and 135M parameters). Larger models of the
  same metrics may agree more, or less.
- One set is one kind of text, in English: short answers of SQuAD, answers of two systems,
  questions about Wikipedia. An order of metrics that holds in one set need not hold in another.
- People disagree, too: a set's value is one label or the mean of a few raters, so no metric can
  reach 1.
- What the base models were trained on is known from their cards alone. MiniLM's names SQuAD (87,599
  pairs, as many as its training half has questions) and MS MARCO; nothing can be told of the causal
  model's web pages.
- quiz_design has 22 passages of 7 documents, so its intervals are rough. An interval such as
  [1.000, 1.000] says that no resample changes the figure, not that it is certain.
- The share of good rows decides what an AUC is worth to a filter: see the curves of your own rows.
"""

# Spread over lines where it is shown in a section of the page.
_REWORDED = """\
Nobody rated them: people wrote them, to be as good as the original, so a good metric takes nothing
off. The original, the new question and a wrong one (the original of another passage) are scored
against the same passage, answer and reference; the reference is the original.

- change: mean of new less original; a metric with a reference gives the original its best
- falls: share of new questions that score below the original
- cost: what a new question loses, as a share of what the wrong one loses; 0 is best, and there is
  none where the wrong one does not lose for sure
- beats wrong: share of new questions above the wrong one, ties counting half; 1 is best
"""


def load_record() -> dict[str, Any]:
    """Return what was measured so far; nothing before the first time."""
    if not RECORD.exists():
        return {}
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def write_record(record: Record) -> None:
    """Write the record, a column of a set a line."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    for inner in (r"\[[^\[\]{}]*\]", r"\{[^{}]*\}"):
        text = re.sub(inner, lambda found: re.sub(r"\s+", " ", found.group()), text)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(text + "\n", encoding="utf-8")


def page(record: Record) -> str:
    """Return the page of a record."""
    judged = {name: own for name, own in record["sets"].items() if "human" in own}
    reworded = {name: own for name, own in record["sets"].items() if "human" not in own}
    rates = record.get("speed", {})
    reading = _READING.format(
        n_resamples=record["n_resamples"],
        n_threads=record.get("timed_on", {}).get("threads", 2),
        seen=_SEEN,
        named=_NAMED,
        fitted=_FITTED,
    )
    parts = [_HEAD, "\n".join(_machine(record)) + "\n", reading]
    parts += [_judged(name, own, rates.get(name, {})) for name, own in judged.items()]
    parts += [_reworded(name, own, rates.get(name, {})) for name, own in reworded.items()]
    parts += ["\n".join(_not_measured(record)) + "\n", _LIMITS]
    return "\n".join(parts)


def _machine(record: Record) -> Iterator[str]:
    judged, timed = record["judged_on"], record.get("timed_on")
    versions = ", ".join(f"{name} {found}" for name, found in judged["versions"].items())
    yield "| | |"
    yield "| --- | --- |"
    yield f"| machine | {judged['cpu']}, {judged['cores']} cores |"
    sets: dict[str, list[str]] = {}
    for name, own in record["sets"].items():
        sets.setdefault(own["revision"], []).append(name)
    commits = "; ".join(f"{revision}: {', '.join(names)}" for revision, names in sets.items())
    changed = " (+: with changes that were not committed)" if "+" in commits else ""
    yield f"| commit | {commits}{changed} |"
    yield f"| versions | Python {judged['python']}, {versions} |"
    yield f"| resamples | {record['n_resamples']:,} |"
    if timed is not None:
        before, after = timed["load_before"], timed["load_average"]
        yield (
            f"| rows/s | commit {timed['revision']}, {timed['threads']} threads; load average "
            f"{before:.1f} before, {after:.1f} after: the machine was shared |"
        )


def _judged(name: str, own: Record, rates: Record) -> str:
    columns = own["columns"]
    order = sorted(columns, key=lambda column: -(columns[column]["auc"] or [-1.0])[0])
    rows = [
        " | ".join(
            [
                f"| `{column}`{mark(name, own, columns[column]['metric'])}",
                *(_shown(columns[column][key]) for key in ("auc", "pearson", "spearman")),
                f"{columns[column]['undefined'] or ''}",
                f"{rate} |",
            ]
        )
        for column, rate in _with_rates(order, columns, rates)
    ]
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{own['title']}: {own['n_rows']:,} rows; intervals draw "
            f"{own['n_clusters']:,} clusters: {own['cluster']}.",
            "",
            f"- human value: {own['human']}",
            f"- good: {own['good']}; {100 * own['share_good']:.1f} % of the rows",
            "",
            "| column | AUC | Pearson | Spearman | undefined | rows/s |",
            "| --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            *_best(own),
            *_footnotes(name, own),
        ]
    )


def _best(own: Record) -> Iterator[str]:
    """Yield which metrics are not shown worse than the best of their family."""
    found = own.get("behind_best", {}).get("auc", {})
    for family, columns in found.items():
        left = [name for name, (_, p) in columns.items() if p >= _SHOWN]
        left.sort(key=lambda name: -columns[name][0])
        named = ", ".join(f"`{name}`" for name in left)
        yield f"- not shown worse than the best, {_FAMILIES[family]}: {named}"
    if found:
        yield ""


def _reworded(name: str, own: Record, rates: Record) -> str:
    columns = own["columns"]
    order = sorted(columns, key=lambda column: -columns[column]["beats_wrong"][0])
    keys = ("beats_wrong", "cost", "change", "falls")
    rows = [
        " | ".join(
            [
                f"| `{column}`{mark(name, own, columns[column]['metric'])}",
                *(_shown(columns[column].get(key), otherwise="none") for key in keys),
                f"{columns[column]['undefined'] or ''}",
                f"{rate} |",
            ]
        )
        for column, rate in _with_rates(order, columns, rates)
    ]
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{own['title']}: {own['n_rows']:,} new questions; intervals draw "
            f"{own['n_clusters']:,} passages.",
            _REWORDED,
            "| column | beats wrong | cost | change | falls | undefined | rows/s |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            *_footnotes(name, own),
        ]
    )


def _with_rates(order: Sequence[str], columns: Record, rates: Record) -> Iterator[tuple[str, str]]:
    """Yield columns with the rate of their metric, at its first column."""
    told: set[str] = set()
    for column in order:
        metric = columns[column]["metric"]
        rate = rates[metric]["rows_per_s"] if metric in rates and metric not in told else None
        told.add(metric)
        yield column, "" if rate is None else f"{rate:,.{1 if rate < 100 else 0}f}"


def mark(name: str, own: Record, metric: str) -> str:
    """Return the marks of a metric's columns in a set."""
    marks = []
    adapter = ADAPTERS.get(metric)
    if adapter is not None and _is_seen(own["seen"][adapter]):
        marks.append(_SEEN)
    if "words" not in METRICS[metric].needs and own["data"] in BASE_DATA:
        marks.append(_NAMED)
    if metric in _FITTED_ON.get(name, ()):
        marks.append(_FITTED)
    return " ".join(["", *marks])


def _is_seen(counts: Record) -> bool:
    texts = counts["texts_seen"] > _BY_CHANCE * counts["texts"]
    return bool(counts["passages_seen"] or texts)


def _footnotes(name: str, own: Record) -> Iterator[str]:
    for model, counts in own["seen"].items():
        passages = f"{counts['passages_seen']:,} of {counts['passages']:,} passages and "
        yield (
            f"{_SEEN + ' ' if _is_seen(counts) else ''}`{model}` was trained on "
            f"{passages if counts['passages'] else ''}{counts['texts_seen']:,} of "
            f"{counts['texts']:,} questions and answers of three words or more."
            f"{_more(model, counts)}"
        )
        yield ""
    if own["data"] in BASE_DATA:
        yield f"{_NAMED} MiniLM's card names {own['data']}; what of it is in this set is not known."
        yield ""
    for metric in _FITTED_ON.get(name, ()):
        yield (
            f"{_FITTED} The authors of `{metric}` fitted weights to such ratings. Those used are "
            "of Wang et al. (2022); whether they come of these rows is not known."
        )
        yield ""


def _more(model: str, counts: Record) -> str:
    if model == "sas-minilm" and counts["passages_seen"]:
        return " Of passages, phrases outside gold answers, scored by a teacher and not by people."
    return ""


def _not_measured(record: Record) -> Iterator[str]:
    measured = {
        column["metric"] for own in record["sets"].values() for column in own["columns"].values()
    }
    yield "## Not measured"
    yield ""
    yield "| metric | why |"
    yield "| --- | --- |"
    for name, metric in METRICS.items():
        if name not in measured:
            why = _NOT_MEASURED["endpoint" if "endpoint" in metric.needs else "columns"]
            yield f"| `{name}` | {why} |"
    yield ""
    yield (
        "`adapted_bleu_4` and `adapted_rouge_l` are measured without opinions and entities, which "
        "no set has: that is without their adaptation."
    )


def _shown(values: Sequence[float] | None, *, otherwise: str = "constant") -> str:
    return otherwise if values is None else figure(*values)
