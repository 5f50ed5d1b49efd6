"""Compile words: a metric of words to the statistics that it is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from qaeval_core.errors import ConfigError
from qaeval_core.metrics.catalogue import METRICS
from qaeval_core.metrics.settings import (
    Baseline,
    CiderSettings,
    MeteorSettings,
    Settings,
    WordSettings,
)
from qaeval_core.scoring.families.words import DOCUMENT_FREQUENCIES, ROWS_PER_SHARD, STATISTICS
from qaeval_core.scoring.families.words.frequencies import read_frequencies
from qaeval_core.scoring.plans import InstancePlan, WordsFamilyPlan
from qaeval_core.signature import Signature, hash_file

_NEEDS_LANGUAGE = ("squad", "spacy")
# Tokenisers by libraries: another version may split otherwise.
_LIBRARIES = {
    "13a": "sacrebleu",
    "treebank": "nltk",
    "coco": "nltk",
    "spacy": "spacy",
    "zh": "rjieba",
}


def compile_words(
    name: str, settings: Settings, *, columns: Mapping[str, str], corpus: str
) -> tuple[list[WordsFamilyPlan], InstancePlan]:
    """Return the statistics and the instance of a metric of words.

    Parameters
    ----------
    name : str
        Of the instance.
    columns : mapping of role to column
    corpus : str
        Hash of the rows, for document frequencies counted in them.

    Raises
    ------
    ConfigError
        If a given file of document frequencies does not fit, or a library is missing.
    """
    spec = METRICS[settings.metric]
    options = _word_options(settings) if isinstance(settings, WordSettings) else {}
    if spec.statistic in ("ngrams", "bonus_ngrams") and isinstance(settings, WordSettings):
        options["over_references"] = settings.over_references
    if isinstance(settings, MeteorSettings):
        options["synonyms"] = settings.synonyms
    own = {role: columns[role] for role in (*spec.roles, *spec.optional_roles) if role in columns}
    if isinstance(settings, CiderSettings):
        plans = _with_frequencies(settings, options, own, corpus)
    else:
        plans = [_plan(spec.statistic, options, own)]
    shown = settings.model_dump(mode="json", exclude={"metric"})
    shown["families"] = ",".join(plan.key for plan in plans)
    signature = Signature(settings.metric, shown, "1")
    families = {plan.statistic: plan for plan in plans}
    return plans, InstancePlan(name, settings, families, Baseline(), signature)


def _word_options(settings: WordSettings) -> dict[str, object]:
    """Return how texts become words; what does not matter is left out, so that more is shared."""
    options: dict[str, object] = {
        "tokeniser": settings.tokeniser,
        "lowercase": settings.lowercase,
        "stemming": settings.stemming,
    }
    if settings.tokeniser in _NEEDS_LANGUAGE:
        options["language"] = settings.language
    return options


def _plan(
    statistic: str,
    options: Mapping[str, object],
    columns: Mapping[str, str],
    *,
    corpus: str = "",
    after: str = "",
    frequencies_path: str = "",
) -> WordsFamilyPlan:
    shown: dict[str, object] = {**options, "statistic": statistic, "columns": dict(columns)}
    library = _LIBRARIES.get(str(options.get("tokeniser")))
    if library is not None:
        shown["library"] = f"{library} {_version(library)}"
    if corpus:
        shown["corpus"] = corpus
    return WordsFamilyPlan(
        name="words",
        options=dict(options),
        columns=dict(columns),
        signature=Signature("words", shown, STATISTICS[statistic].version),
        rows_per_shard=ROWS_PER_SHARD,
        statistic=statistic,
        after=after,
        frequencies_path=frequencies_path,
        words=words_line(options) if "tokeniser" in options else "",
    )


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"this tokeniser needs {library}: pip install 'qaeval[languages]'"
        ) from None


def _with_frequencies(
    settings: CiderSettings,
    options: Mapping[str, object],
    columns: Mapping[str, str],
    corpus: str,
) -> list[WordsFamilyPlan]:
    """Return CIDEr's statistic, and the count of documents it waits for unless a file is given."""
    given = settings.document_frequencies
    if given is not None:
        read_frequencies(given, words=words_line(options))
        plan = _plan("tf_idf", options, columns, corpus=hash_file(given), frequencies_path=given)
        return [plan]
    counted = _plan(DOCUMENT_FREQUENCIES, options, {"references": columns["references"]})
    path = f"corpus/{counted.key}-{corpus}.parquet"
    plan = _plan(
        "tf_idf", options, columns, corpus=corpus, after=counted.key, frequencies_path=path
    )
    return [counted, plan]


def words_line(options: Mapping[str, object]) -> str:
    """Return how texts become words, as one line.

    >>> words_line({"tokeniser": "13a", "lowercase": True, "stemming": "none", "x": 1})
    '13a, lowercase yes, stemming none'
    """
    lowercase = "yes" if options["lowercase"] else "no"
    language = f", language {options['language']}" if "language" in options else ""
    return (
        f"{options['tokeniser']}, lowercase {lowercase}, stemming {options['stemming']}{language}"
    )
