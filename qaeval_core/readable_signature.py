"""Readable signature: how a score was made, short enough to publish, and read back as settings.

Derived from settings, never hashed: commits are keyed by `Signature` alone. In it stand settings
that differ from their defaults, a few that people expect, models and files with the first 8 hex
digits of their hashes, then rows, interval and version, which repeat nothing.

Values are JSON, or bare where a text cannot be mistaken for it; ``%`` and ``|`` are ``%25`` and
``%7C``. Input columns, files of keys and limits of servers are not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from qaeval_core.configure import ModelSettings, RunConfig, load_config
from qaeval_core.distribution import NAME
from qaeval_core.errors import ConfigError, UnknownMetricError, nearest
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS, metric_of

N_HASH_CHARS = 8

_SHORT = {
    "tokenizer": "tok",
    "language": "lang",
    "lowercase": "lower",
    "stemming": "stem",
    "smoothing": "smooth",
}
_REFERENCES = "over_references"
# What it says of references where nothing is set, and what repeats nothing.
_TOLD = ("refs", "n", "ci", "version")
# What decides numbers besides the settings of metrics.
_OF_INPUT = ("unanswerable", "missing")
_OF_MODELS = ("precision", "allow_lossy", "onnx_file", "one_row_batches")
_EXACT = "exact_batches"  # Of all models.
_NO_MODELS = ("words", "endpoint")
_USUAL_PRECISION = "fp32"
# Before a setting whose name means something else here.
_PLAIN = "set."
_WORDS = {"yes": True, "no": False}
_HASH = re.compile(rf"@([0-9a-f]{{{N_HASH_CHARS}}})$")
_ESCAPES = (("%", "%25"), ("|", "%7C"))


def encoded(value: object) -> str:
    """Return a plain value as it stands in a signature.

    Examples
    --------
    >>> [encoded(own) for own in ("minilm", True, "no", 2.0, None, {"a": 1}, "a|b")]
    ['minilm', 'yes', '"no"', '2.0', 'null', '{"a":1}', 'a%7Cb']
    """
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, str) and _is_bare(value):
        text = value
    else:
        text = json.dumps(value, separators=(",", ":"))
    for sign, escape in _ESCAPES:
        text = text.replace(sign, escape)
    return text


def _is_bare(text: str) -> bool:
    is_one_word = text.isprintable() and text == text.strip() != "" and not _HASH.search(text)
    return is_one_word and decoded(text) == text


def decoded(text: str) -> Any:
    """Return the value that `encoded` made a text of; the escapes are gone already.

    Examples
    --------
    >>> [decoded(own) for own in ("minilm", "yes", '"no"', "2.0", "null")]
    ['minilm', True, 'no', 2.0, None]
    """
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def own_version() -> str:
    """Return the version of qaeval that is installed."""
    return metadata.version(NAME)


@dataclass(frozen=True, slots=True)
class ReadableSignature:
    """What a readable signature says of one metric.

    Attributes
    ----------
    settings : mapping of str to str
        Parts that repeat a run, as they stand there, less hashes.
    hashes : mapping of setting to hex digits
        Of the weights of a model, or of a file.
    version : str
        Of qaeval; "" where it says none.
    """

    instance: str
    metric: str
    settings: Mapping[str, str]
    hashes: Mapping[str, str]
    version: str = ""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        instance: str,
        *,
        hashes: Mapping[str, str] | None = None,
        precisions: Mapping[str, str] | None = None,
    ) -> ReadableSignature:
        """Return that of an instance of a configuration.

        Parameters
        ----------
        hashes : mapping of setting to hex digits, optional
        precisions : mapping of role to precision, optional
            That models run in, where that is known.
        """
        metric = metric_of(config.metrics[instance])
        settings = dict(_parts(config, instance, precisions or {}))
        return cls(instance, metric.name, settings, hashes or {}, own_version())

    def line(self, *, refs: str, n: int, interval: str) -> str:
        """Return the whole line.

        Parameters
        ----------
        refs : str
            How several references are combined by definition; "" where that is not said.
        n : int
            Rows with a score.
        interval : str
            Its method, and what it resamples.
        """
        parts = dict(self.settings)
        for key, digits in self.hashes.items():
            parts[_key(self.metric, key)] += f"@{digits}"
        if refs and _REFERENCES not in parts:
            parts["refs"] = refs
        parts |= {"n": str(n), "ci": encoded(interval), "version": self.version}
        head = self.metric if self.instance == self.metric else f"{self.instance}={self.metric}"
        return "|".join([head, *(f"{key}:{value}" for key, value in parts.items())])

    def overrides(self) -> dict[str, object]:
        """Return the dotted settings that make a run like it; those of servers stay as they are."""
        metric = METRICS[self.metric]
        found: dict[str, object] = {f"metrics.{self.instance}.metric": self.metric}
        given = {_name(metric, key): value for key, value in self.settings.items()}
        for key, own in _fields(metric).items():
            if key not in given and not own.is_required():
                value = own.get_default(call_default_factory=True)
                found[f"metrics.{self.instance}.{key}"] = value
        for role in _roles(metric):
            found[f"models.{role}.precision"] = _USUAL_PRECISION
            found[f"models.{_EXACT}"] = False
        for name, text in given.items():
            value = decoded(_unescaped(text))
            if name in _OF_INPUT:
                found[f"input.{name}"] = value
            elif "." in name or name == _EXACT:
                found[f"models.{name}"] = value
            else:
                found[f"metrics.{self.instance}.{name}"] = value
        return found

    def check_kept(self, config: RunConfig) -> None:
        """Raise ConfigError if a configuration would score otherwise."""
        wanted = load_config(overrides=self.overrides())
        both = [ReadableSignature.of(own, self.instance).settings for own in (wanted, config)]
        for key in dict.fromkeys([*both[0], *both[1]]):
            if both[0].get(key) != both[1].get(key):
                there, here = (f"{key}:{found.get(key, 'its default')}" for found in both)
                raise ConfigError(
                    f"--like: {self.instance} has {there}, and other options say {here}; leave "
                    "them out [QA0324]"
                )

    def check_hashes(self, found: Mapping[str, str]) -> None:
        """Raise ConfigError if a model or file is another one here."""
        for key, digits in self.hashes.items():
            if key in found and found[key] != digits:
                value = self.settings[_key(self.metric, key)]
                raise ConfigError(
                    f"--like: {self.instance} has {key}:{value}@{digits}, and here it is "
                    f"{value}@{found[key]}: another model or file of that name [QA0325]"
                )


def parse_readable(text: str) -> ReadableSignature:
    """Return what a readable signature says.

    Raises
    ------
    UnknownMetricError
        If its metric is not known.
    ConfigError
        If it is none.

    Examples
    --------
    >>> found = parse_readable("f1|tok:13a|refs:max|n:300|ci:sandwich/context|version:0.1.0")
    >>> found.metric, found.settings["tok"]
    ('f1', '13a')
    """
    head, *parts = text.strip().split("|")
    instance, _, name = head.rpartition("=")
    if name not in METRICS:
        hint = nearest(name, METRICS)
        raise UnknownMetricError(f"--like: unknown metric {name!r}{hint} [QA0204]", name)
    metric = METRICS[name]
    known = [*_keys(metric), *_TOLD]
    settings: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for part in parts:
        key, _, value = part.partition(":")
        if not value or key not in known or key in settings:
            why = "stands twice" if key in settings else f"is no part of it{nearest(key, known)}"
            raise ConfigError(
                f"--like takes the signature that qaeval score prints: {part!r} {why} [QA0324]"
            )
        if key in _hashed(metric) and (digits := _HASH.search(value)):
            hashes[key], value = digits[1], value[: digits.start()]
        settings[key] = value
    told = {key: settings.pop(key, "") for key in _TOLD}
    if told["refs"] not in ("", references_of(metric)):
        raise ConfigError(
            f"--like: {name} has refs:{references_of(metric)}, not refs:{told['refs']}; another "
            f"rule is {_REFERENCES} [QA0324]"
        )
    return ReadableSignature(instance or name, name, settings, hashes, told["version"])


def references_of(metric: AnyMetric) -> str:
    """Return how a metric combines several references by definition; "" where it reads none.

    Examples
    --------
    >>> references_of(METRICS["f1"]), references_of(METRICS["rouge_l"])
    ('max', 'max_of_each_part')
    """
    if "references" not in metric.roles or metric.over_references == "none":
        return ""
    return re.sub(r"\W+", "_", metric.over_references)


def _fields(metric: AnyMetric) -> dict[str, Any]:
    """Return the settings of a metric that may change a score."""
    kind = metric.settings
    given = kind.model_fields.items()
    return {key: own for key, own in given if key != "metric" and key not in kind.without_effect}


def _roles(metric: AnyMetric) -> tuple[str, ...]:
    """Return the roles of the models that it runs."""
    return tuple(need for need in metric.needs if need not in _NO_MODELS)


def _hashed(metric: AnyMetric) -> tuple[str, ...]:
    """Return the settings that name a model or a file."""
    return (*_roles(metric), *metric.settings.files)


def _shown_key(metric: AnyMetric, name: str) -> str:
    """Return what a setting is called in a signature."""
    fields = metric.settings.model_fields
    short = _SHORT.get(name, name)
    key = name if short in fields else short
    return f"{_PLAIN}{key}" if key in (*_TOLD, *_OF_INPUT) else key


def _key(metric: str, name: str) -> str:
    return _shown_key(METRICS[metric], name) if metric in METRICS else name


def _keys(metric: AnyMetric) -> dict[str, str]:
    """Return the parts that may stand in a signature, with the settings that they are of."""
    own = {_shown_key(metric, name): name for name in _fields(metric)}
    of_models = [f"{role}.{key}" for role in _roles(metric) for key in _OF_MODELS]
    of_models += [_EXACT] if of_models else []
    return {**own, **{key: key for key in (*_OF_INPUT, *of_models)}}


def _name(metric: AnyMetric, key: str) -> str:
    return _keys(metric)[key]


def _parts(
    config: RunConfig, instance: str, precisions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    settings = config.metrics[instance]
    metric = metric_of(settings)
    plain = settings.model_dump(mode="json")
    expected = (*settings.expected, *_roles(metric))
    for name, own in _fields(metric).items():
        is_usual = getattr(settings, name) == own.get_default(call_default_factory=True)
        if name in expected or not is_usual:
            yield _shown_key(metric, name), encoded(plain[name])
    for role in _roles(metric):
        usual, here = ModelSettings(), config.models.of(role)
        for key in _OF_MODELS:
            value = getattr(here, key)
            if key == "precision":
                value = precisions.get(role, value)
                value = usual.precision if value == _USUAL_PRECISION else value
            if value != getattr(usual, key):
                yield f"{role}.{key}", encoded(value)
    if _roles(metric) and config.models.exact_batches:
        yield _EXACT, encoded(True)
    usual_input = type(config.input)()
    for name in _OF_INPUT:
        reads = name == "missing" or "references" in metric.roles_of(settings)
        if reads and getattr(config.input, name) != getattr(usual_input, name):
            yield name, encoded(getattr(config.input, name))


def _unescaped(text: str) -> str:
    for sign, escape in reversed(_ESCAPES):
        text = text.replace(escape, sign)
    return text
