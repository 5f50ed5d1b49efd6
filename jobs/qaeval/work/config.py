"""Config: the words of a command line to a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qaeval_core.configure import RunConfig, load_config, parse_setting
from qaeval_core.errors import ConfigError, UnknownMetricError, nearest
from qaeval_core.families.catalog import add_modules
from qaeval_core.metrics.catalog import METRICS, metric_name
from qaeval_core.schema import ROLES


def make_config(
    *,
    inputs: Sequence[str],
    config_path: Path | None,
    settings: Sequence[str],
    metrics: str | None,
    columns: Sequence[str],
    extra: Mapping[str, object],
    plugins: Sequence[str] = (),
) -> RunConfig:
    """Return the configuration of a command line.

    Later words win: the file, then ``--metrics``, ``--set``, and the options of their own.

    Parameters
    ----------
    plugins : sequence of str, default ()
        Modules that bring metrics; no file names one.
    extra : dict of dotted key to value
        Options of their own; None means not given.
    """
    add_modules(plugins)
    overrides: dict[str, object] = {}
    if metrics:
        for name in (metric_name(part.strip()) for part in metrics.split(",")):
            if name not in METRICS:
                raise UnknownMetricError(f"unknown metric {name!r}{nearest(name, METRICS)}", name)
            overrides[f"metrics.{name}.metric"] = name
    overrides.update(parse_setting(text) for text in settings)
    for text in columns:
        role, separator, column = text.partition("=")
        if not separator or role not in ROLES:
            raise ConfigError(f"--column takes role=name, not {text!r}{nearest(role, ROLES)}")
        overrides[f"input.columns.{role}"] = column
    if inputs:
        overrides["input.paths"] = list(inputs)
    overrides.update({key: value for key, value in extra.items() if value is not None})
    return load_config(path=config_path, overrides=overrides)
