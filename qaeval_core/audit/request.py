"""Request: what is audited and what raises an alert, as a person says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from qaeval_core.audit.settings import AuditSettings
from qaeval_core.errors import ConfigError
from qaeval_core.metrics.base import Section
from qaeval_core.yaml_files import explained, read_yaml

REFERENCES = ("last", "pinned")
# Slices share the evidence: of more columns no test would ever be an alert.
MAX_BY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """One audit; the command line's words.

    Attributes
    ----------
    reference : str, optional
        ``last``, ``pinned``, an OUT or a profile; by default the pinned run, else the oldest. An
        OUT alone has rows: those that both runs have are compared in pairs, too.
    pin : bool
        Whether this run is the reference from now on.
    by : tuple of str
        Columns of slices; by default those of the reference.
    cluster : str, optional
        Role or column; by default that of the reference, else the context.
    watch : tuple of str
        Columns of numbers; by default all that are described as scores.
    kept : str, optional
        A condition: the share of rows that fulfill it is audited.
    inputs : tuple of str
        Where the input lies now.
    """

    reference: str | None = None
    pin: bool = False
    by: tuple[str, ...] = ()
    cluster: str | None = None
    watch: tuple[str, ...] = ()
    kept: str | None = None
    inputs: tuple[str, ...] = ()
    settings: AuditSettings = field(default_factory=AuditSettings)

    def __post_init__(self) -> None:
        if len(self.by) > MAX_BY:
            raise ConfigError(
                f"--by names {len(self.by)} columns; at most {MAX_BY} are allowed [QA0104]"
            )
        for option, names in (("--by", self.by), ("--watch", self.watch)):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ConfigError(f"{option} names {twice[0]!r} twice [QA0106]")


class AuditConfig(Section):
    """What a file of ``--config`` may hold."""

    alpha: float = Field(0.01, description="largest adjusted p-value of an alert")
    draws: int = Field(AuditSettings().n_draws, ge=99, le=99_999, description="bootstrap resamples")
    seed: int = Field(0, ge=0, description="random seed of the bootstrap")
    min_clusters: int = Field(
        AuditSettings().min_clusters, ge=2, description="fewest clusters for a verdict"
    )
    tolerances: dict[str, float] = Field(
        default_factory=dict, description="smallest effect of an alert, by statistic"
    )
    columns: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="tolerances of single columns"
    )


def load_settings(path: Path | None) -> AuditSettings:
    """Return the settings of a YAML file; the defaults without one.

    Raises
    ------
    ConfigError
        If a key or statistic is unknown (the nearest is named), or a value is not allowed.
    """
    if path is None:
        return AuditSettings()
    try:
        config = AuditConfig.model_validate(read_yaml(path))
    except ValidationError as error:
        lines = [f"{path}: {line}" for line in explained(error, AuditConfig)]
        raise ConfigError("\n".join(lines)) from None
    try:
        return AuditSettings(
            tolerances=config.tolerances,
            columns=config.columns,
            alpha=config.alpha,
            n_draws=config.draws,
            seed=config.seed,
            min_clusters=config.min_clusters,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
