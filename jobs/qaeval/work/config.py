"""Config: the words of a command line to a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qaeval_core.configure import RunConfig, load_config, parse_setting
from qaeval_core.errors import ConfigError, UnknownMetricError, nearest
from qaeval_core.families.catalog import add_modules
from qaeval_core.metrics.catalog import METRICS, metric_name
from qaeval_core.readable_signature import ReadableSignature, parse_readable
from qaeval_core.schema import ROLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a command line says of what to compute; None where it says nothing.

    Attributes
    ----------
    plugins : sequence of str
        Modules that bring metrics; no file names one.
    like : sequence of str
        Readable signatures, whose metrics and settings these are.
    """

    inputs: Sequence[str] | None
    config: Path | None
    settings: Sequence[str] | None
    metrics: str | None
    plugins: Sequence[str] | None
    columns: Sequence[str] | None
    like: Sequence[str] = ()

    def checked(self, extra: Mapping[str, object]) -> RunConfig:
        """Return the configuration.

        Later words win: the file, then ``--metrics``, ``--set``, and the options of their own.

        Parameters
        ----------
        extra : mapping of dotted key to value
            Options of their own; None means not given.

        Raises
        ------
        ConfigError
            If a word is wrong.
        """
        add_modules(self.plugins or ())
        overrides: dict[str, object] = {}
        signatures = self.signatures()
        for name in self._metrics():
            overrides[f"metrics.{name}.metric"] = name
        for signature in signatures:
            overrides |= signature.overrides()
        overrides.update(parse_setting(text) for text in self.settings or ())
        for text in self.columns or ():
            role, separator, column = text.partition("=")
            if not separator or role not in ROLES:
                raise ConfigError(
                    f"--column takes ROLE=NAME, not {text!r}{nearest(role, ROLES)} [QA0105]"
                )
            overrides[f"input.columns.{role}"] = column
        if self.inputs:
            overrides["input.paths"] = list(self.inputs)
        overrides.update({key: value for key, value in extra.items() if value is not None})
        config = load_config(path=self.config, overrides=overrides)
        for signature in signatures:
            signature.check_kept(config)
        return config

    def signatures(self) -> list[ReadableSignature]:
        """Return the signatures that a run is to be like.

        Raises
        ------
        ConfigError
            If one is none, two are of one instance, or metrics are named besides.
        """
        if self.like and self.metrics:
            raise ConfigError("--like and --metrics exclude each other; give one of them [QA0102]")
        found = [parse_readable(text) for text in self.like]
        names = [own.instance for own in found]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"--like: two signatures are of {name}; call one NAME={name}|... [QA0106]"
                )
        return found

    def _metrics(self) -> list[str]:
        given = self.metrics.split(",") if self.metrics else []
        names = [metric_name(part.strip()) for part in given]
        for name in names:
            if name not in METRICS:
                hint = nearest(name, METRICS)
                raise UnknownMetricError(f"unknown metric {name!r}{hint} [QA0204]", name)
        return names
