"""A metric of a finished run that this install does not know: its columns say what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from pydantic import ConfigDict

from qaeval_core.errors import UnknownMetricError
from qaeval_core.metrics.base import FloatArray, Metric, Read, Scores, Settings
from qaeval_core.metrics.targets import Targets


class UnknownSettings(Settings):
    """Settings of a metric that nobody here can check."""

    model_config = ConfigDict(extra="allow", frozen=True)


class UnknownMetric(Metric[UnknownSettings]):
    """A name and a package; whatever would compute says which package is missing.

    Parameters
    ----------
    name : str
    package : str
        That brought it when its run was made.
    """

    title = "not installed here"
    source = "unknown"
    settings = UnknownSettings
    needs = ("package",)
    roles = ()
    columns = ()

    def __init__(self, name: str, package: str) -> None:
        self.name, self.package = name, package

    def missing(self) -> NoReturn:
        """Raise UnknownMetricError."""
        raise UnknownMetricError(
            f"the metric {self.name} is of {self.package}, which is not installed here [QA0205]",
            self.name,
        )

    def reads(self, settings: UnknownSettings) -> tuple[Read, ...]:
        """Raise UnknownMetricError."""
        self.missing()

    def score(self, settings: UnknownSettings, read: Mapping[str, Targets]) -> Scores:
        """Raise UnknownMetricError."""
        self.missing()

    def corpus(self, settings: UnknownSettings, sums: FloatArray) -> FloatArray:
        """Raise UnknownMetricError."""
        self.missing()


def is_known(settings: Settings) -> bool:
    """Return whether settings are of a metric that this install can compute."""
    return not isinstance(settings.own_metric, UnknownMetric)
