"""`qaeval metrics`: the catalog, for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qaeval.cli import app
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError
from qaeval_core.metrics.advice import GUIDE, advice_for
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.scoring.describe_metrics import NO_ADVICE


def shown(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["metrics", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_list_names_every_metric_with_its_paper_range_and_roles() -> None:
    """Protects from a metric that nobody finds."""
    output = shown()
    records = {record["metric"]: record for record in json.loads(shown("--json"))}
    assert list(records) == list(METRICS)
    for name, spec in METRICS.items():
        assert spec.source in output
        bounded = f"{spec.low:g} to {spec.high:g}"
        assert records[name]["range"] == (bounded if name != "judge" else "any number")
        assert all(role in records[name]["reads"] for role in (*spec.roles, *spec.optional_roles))


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_described_with_definition_options_and_signature(name: str) -> None:
    """Protects from an option, or a metric, that is only a name."""
    output, spec = shown(name), METRICS[name]
    assert spec.title in output
    assert "Source\n" in output
    assert "Signature" in output
    for key, field in spec.settings.model_fields.items():
        if key != "metric":
            assert f"{name}.{key}=" in output
            assert field.description
            assert field.description in output


def test_a_metric_says_what_it_is_worth_with_a_figure() -> None:
    """Protects from a choice by name: the line is that of docs/metrics.md."""
    for name in METRICS:
        worth = [row for row in shown(name).splitlines() if row.startswith("  worth ")]
        told = [row.removeprefix("  worth ").strip() for row in worth]
        lines = [line for line in GUIDE if name in (*line.use, *line.rather_than)]
        assert told == ([str(line) for line in advice_for(name)] or [NO_ADVICE])
        assert set(advice_for(name)) <= set(lines)
        assert bool(lines) == all(re.search(r"\[-?\d?\.\d{3}, ", row) for row in told)
    # What it is good for, and what it is not.
    used, instead = advice_for("f1")
    assert "f1" in used.use
    assert "sas" in instead.use
    for name in ("naco", "judge", "top_n_accuracy"):
        assert "worth       not judged" in shown(name)


def test_an_unknown_metric_names_the_nearest() -> None:
    """Protects from a dead end."""
    assert [record["metric"] for record in json.loads(shown("f1", "--json"))] == ["f1"]
    assert "did you mean 'rouge_l'" in shown("rougel", code=2)


@pytest.mark.parametrize(("given", "metric"), [("em", "exact_match"), ("Rouge", "rouge_l")])
def test_short_names_mean_metrics_everywhere(given: str, metric: str) -> None:
    """On the command line, in settings and in files; OUT knows the metric's own name alone."""
    assert shown(given) == shown(metric)
    lower = given.lower()
    for overrides in (
        {f"metrics.{given}": {}},
        {f"metrics.{lower}.metric": given},
        {f"{given}.lowercase": False},
        {"metrics.mine.metric": given},
    ):
        (name,) = found = load_config(overrides=overrides).metrics
        assert found[name].metric == metric
        assert name == ("mine" if "metrics.mine.metric" in overrides else metric)


def test_one_metric_under_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("metrics: {em: {lowercase: false}, exact_match: {}}\n")
    with pytest.raises(ConfigError, match="exact_match.*QA0208"):
        load_config(path=path)
    path.write_text("metrics: [EM, rouge]\n")
    assert list(load_config(path=path).metrics) == ["exact_match", "rouge_l"]
