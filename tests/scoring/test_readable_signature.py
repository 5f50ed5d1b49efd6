"""Readable signatures: they repeat the settings of every metric, and say what is another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import qaeval, write_parquet
from qaeval.work.config import Words
from qaeval_core.configure import RunConfig, load_config
from qaeval_core.errors import ConfigError, UnknownMetricError
from qaeval_core.metrics.base import AnyMetric
from qaeval_core.metrics.catalog import METRICS
from qaeval_core.readable_signature import (
    ReadableSignature,
    decoded,
    encoded,
    parse_readable,
    references_of,
)

# Texts that could be mistaken for parts, for other kinds of values, or for hashes.
AWKWARD = "a|b:c=%7C@0123abcd"
OF_KIND: dict[object, list[Any]] = {
    bool: [True, False],
    int: [3, 2, 256],
    float: [0.25, 1.5, 2.0],
    str: [AWKWARD, "json:score", "https://host.example:8000/v1"],
}
# Of kinds that are none of these.
OF_NAME: dict[str, list[Any]] = {
    "baseline": [{"lrm": 0.25, "grg": None}, "base|line.csv"],
    "body": [{"reasoning_effort": "low|high"}],
    "cut_decimals": [2],
    "document_frequencies": ["df:2.parquet"],
    "expected_complexity": [3.5, "complexity-a|b.json"],
    "layer": [2],
    "model": ["name/of:model"],
    "query": [{"api-version": "2024-10-21"}],
    "scale": [[0, 10]],
    "temperature": [None, 0.0],
    "top_p": [None, 0.5],
    "weights": [{"naturalness": 2.0, "answerability": 1.0, "complexity": 0.0}, "plain"],
}
# With what a setting is allowed at all.
BESIDE = {"aggregate": {"matching": "weighted"}}
# No other value than the default one.
FIXED = {("meteor", "stemming"), ("bertscore_free", "idf"), ("ref_qrelscore", "gain")}


def candidates(name: str, kind: Any) -> Iterator[Any]:
    """Yield values of a setting."""
    yield from OF_NAME.get(name, [])
    for own in (kind, *get_args(kind)):
        if get_origin(own) is Literal:
            yield from get_args(own)
        elif isinstance(own, type):
            yield from OF_KIND.get(own, [])


def changed(metric: AnyMetric, name: str) -> RunConfig:
    """Return a configuration in which one setting has not its default value."""
    field = metric.settings.model_fields[name]
    for value in candidates(name, field.annotation):
        overrides: dict[str, object] = {f"metrics.{metric.name}.metric": metric.name}
        for key, own in {**BESIDE.get(name, {}), name: value}.items():
            overrides[f"metrics.{metric.name}.{key}"] = own
        try:
            config = load_config(overrides=overrides)
        except ConfigError:
            continue
        if getattr(config.metrics[metric.name], name) != field.default:
            return config
    raise AssertionError(f"{metric.name}.{name} has no other value here")


def line_of(config: RunConfig, instance: str) -> str:
    """Return the line that a run would print."""
    own = ReadableSignature.of(config, instance)
    refs = references_of(METRICS[own.metric])
    return own.line(refs=refs, n=300, interval="sandwich/a|b")


def like(*lines: str, **words: Any) -> RunConfig:
    """Return the configuration of ``--like``."""
    given: dict[str, Any] = dict.fromkeys(
        ("inputs", "config", "settings", "metrics", "plugins", "columns")
    )
    return Words(**{**given, **words}, like=lines).checked({})


def settings_of(tmp_path: Path) -> Iterator[tuple[str, RunConfig]]:
    """Yield each metric as it is, and with each of its settings changed alone."""
    prompt = tmp_path / "a|prompt.txt"
    prompt.write_text("Rate {candidate}.")
    for name in METRICS:
        metric = METRICS[name]
        yield name, load_config(overrides={f"metrics.{name}.metric": name})
        for key in metric.settings.model_fields:
            if key == "metric" or key in metric.settings.without_effect or (name, key) in FIXED:
                continue
            if key == "prompt_file":
                yield name, load_config(overrides={f"metrics.{name}.{key}": str(prompt)})
            else:
                yield name, changed(metric, key)


def test_every_metric_is_repeated_with_any_setting(tmp_path: Path) -> None:
    """A signature that lost a setting would repeat another score, and nobody would know."""
    lines = set()
    for name, config in settings_of(tmp_path):
        line = line_of(config, name)
        found = like(line)
        assert found.metrics == config.metrics, line
        assert line_of(found, name) == line
        assert line not in lines, line
        lines.add(line)
    assert len(lines) > 120


def test_what_is_expected_is_shown_and_no_more() -> None:
    """People read it: what is usual and tells nothing is left out."""
    config = load_config(overrides={f"metrics.{name}.metric": name for name in METRICS})
    lines = {name: line_of(config, name).partition("|n:")[0] for name in METRICS}
    assert lines["f1"] == "f1|tok:squad|lang:en|refs:max"
    assert lines["bleu_4"] == "bleu_4|tok:13a|smooth:none|refs:clip"
    assert lines["rouge_l"] == "rouge_l|tok:rouge|refs:max_of_each_part"
    assert lines["sas"] == "sas|cross_encoder:sas-minilm|refs:max"
    assert lines["top_n_accuracy"] == "top_n_accuracy"
    many = load_config(overrides={"f1.lowercase": False, "f1.over_references": "max"})
    assert line_of(many, "f1").startswith("f1|tok:squad|lower:no|lang:en|over_references:max|n:")


def test_a_setting_that_is_called_as_another_part_is_told_apart() -> None:
    """The n of top_n_accuracy was read as the number of rows."""
    config = load_config(overrides={"top_n_accuracy.n": 10})
    line = line_of(config, "top_n_accuracy")
    assert line.startswith("top_n_accuracy|set.n:10|n:300|")
    assert like(line).metrics == config.metrics


def test_models_and_rows_are_read_as_they_were(tmp_path: Path) -> None:
    """Precision, ONNX files and empty references decide scores, too."""
    config = load_config(overrides={
        "sas.cross_encoder": AWKWARD, "models.cross_encoder.precision": "fp16",
        "models.cross_encoder.onnx_file": "onnx/m|q.onnx", "input.unanswerable": "empty",
        "models.exact_batches": True,
    })  # fmt: skip
    hashes = {"cross_encoder": "89abcdef"}
    own = ReadableSignature.of(config, "sas", hashes=hashes)
    line = own.line(refs="max", n=1, interval="none")
    assert parse_readable(line).hashes == hashes
    found = like(line)
    assert (found.metrics, found.input) == (config.metrics, config.input)
    assert found.models.cross_encoder == config.models.cross_encoder
    assert found.models.exact_batches and not like("sas|cross_encoder:m").models.exact_batches
    usual = ReadableSignature.of(config, "sas", precisions={"cross_encoder": "fp32"})
    assert "cross_encoder.precision" not in usual.settings
    assert like("sas|cross_encoder:m").models.cross_encoder.precision == "fp32"


def test_servers_and_keys_are_not_published() -> None:
    """A file of keys is nobody's business; a run like it takes those that it is given."""
    given = {"model": "m", "base_url": "http://127.0.0.1:1/v1", "expected_complexity": 3}
    of_server = {"api_key_file": "./my.key", "max_concurrent": 3, "journal_path": "/home/me/j"}
    config = load_config(
        overrides={f"naco.{key}": own for key, own in {**given, **of_server}.items()}
    )
    line = line_of(config, "naco")
    assert not any(word in line for word in ("my.key", "concurrent", "/home/me"))
    settings = [f"naco.{key}={own}" for key, own in of_server.items()]
    assert like(line, settings=settings).metrics == config.metrics


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text() | st.sampled_from(["yes", "no", "null", "1", "1e3", "[1]", "m@0123abcd", " a", ""]),
    lambda own: st.lists(own) | st.dictionaries(st.text(), own), max_leaves=5,
))  # fmt: skip
def test_any_value_survives(value: Any) -> None:
    """Values hold what separates parts, and texts that look like numbers."""
    text = encoded(value)
    assert "|" not in text and text.isprintable()
    found = decoded(text.replace("%7C", "|").replace("%25", "%"))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("f2|tok:13a", "unknown metric 'f2'; choose one of"),
        ("f1|tko:13a", "'tko:13a' is no part of it; did you mean 'tok'?"),
        ("f1|tok", "'tok' is no part"),
        ("f1|tok:13a|tok:13a", "stands twice"),
        ("f1|refs:clip", "f1 has refs:max, not refs:clip"),
        ("f1|tok:14a", "metrics.f1.tokenizer"),
        ("Not a name=f1", "Not a name"),
        ("", "unknown metric ''"),
        ("sas|n:3|encoder.precision:fp16", "is no part of it"),
    ],
)
def test_what_is_no_signature_is_refused(line: str, told: str) -> None:
    """A part that is passed over would be a setting that nobody set."""
    with pytest.raises(ConfigError) as error:
        like(line)
    assert told in str(error.value)
    assert isinstance(error.value, UnknownMetricError) == ("unknown metric" in told)


def test_other_options_do_not_change_a_signature(tmp_path: Path) -> None:
    """What is printed in the end is what was asked for."""
    path = tmp_path / "own.yaml"
    path.write_text("metrics: {f1: {language: de, lowercase: false}}\n")
    assert line_of(like("f1", config=path), "f1").startswith("f1|tok:squad|lang:en|refs:max|")
    for words in ({"settings": ["f1.language=de"]}, {"settings": ["input.unanswerable=empty"]}):
        with pytest.raises(ConfigError, match=r"f1 has .*other options say .*QA0324"):
            like("f1", **words)
    with pytest.raises(ConfigError, match=r"--metrics exclude each other.*QA0102"):
        like("f1", metrics="sas")
    with pytest.raises(ConfigError, match=r"two signatures are of f1.*QA0106"):
        like("f1|tok:13a", "f1")
    both = like("f1", "strict=f1|lower:no", "sas")
    assert list(both.metrics) == ["f1", "strict", "sas"]


def test_another_model_of_that_name_is_refused() -> None:
    """Names of models and files outlive what they name."""
    own = parse_readable("sas|cross_encoder:mine@0123abcd|refs:max")
    own.check_hashes({"cross_encoder": "0123abcd"})
    with pytest.raises(ConfigError, match="mine@0123abcd, and here it is mine@89abcdef.*QA0325"):
        own.check_hashes({"cross_encoder": "89abcdef"})


def answers(folder: Path) -> Path:
    return write_parquet(
        folder / "answers.parquet",
        pa.table({
            "candidate": ["a blue mill", "the Barn", "", "two dogs", "old"],
            "references": [["the blue mill stands"], ["a barn", "barns"], ["x"], [], ["An old"]],
            "context": ["c1", "c1", "c2", "c3", "c3"],
        }),
    )  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [(), ("f1.tokenizer=13a", "f1.lowercase=false"), ("input.unanswerable=empty",),
     ("metrics.mine.metric=f1", "mine.over_references=max")],
)  # fmt: skip
def test_a_run_like_another_has_its_signature_and_scores(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """The printed line is all that the other one needs."""
    source = answers(tmp_path)
    words = [f"--set={own}" for own in settings]
    first = qaeval("score", source, "--out", tmp_path / "a", "--metrics", "f1", *words, "--local")
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    lines = [own["readable"] for own in report["instances"].values()]
    assert all(f"\n  {line}\n" in first for line in lines)
    again = [word for line in lines for word in ("--like", line)]
    qaeval("score", source, "--out", tmp_path / "b", *again, "--local")
    found = json.loads((tmp_path / "b" / "report.json").read_text())
    assert found["instances"] == report["instances"]
    assert found["columns"] == report["columns"]


def test_a_signature_of_another_version_is_told_and_a_changed_file_refused(
    tmp_path: Path,
) -> None:
    """Both may be why numbers differ; only one is sure to be."""
    source = answers(tmp_path)
    words = ["score", source, "--out", tmp_path / "out", "--local", "--like"]
    assert "note: --like: the signature is of version 0.0.9, and this is" in qaeval(
        *words, "f1|version:0.0.9"
    )
    frequencies = tmp_path / "df.json"
    frequencies.write_text("{}")
    line = f"cider|tok:13a|document_frequencies:{frequencies}@00000000"
    assert qaeval(*words, line, expect=2).count("error: ") == 1
    assert "QA0324" in qaeval(*words, "f1|tok", expect=2)
    assert "QA0102" in qaeval(*words, "f1", "--metrics", "f1", expect=2)


@pytest.mark.slow
def test_a_model_is_named_with_its_weights(
    tiny_settings: dict[str, object], tmp_path: Path
) -> None:
    """A folder may hold other weights tomorrow."""
    source = write_parquet(
        tmp_path / "q.parquet",
        pa.table({"candidate": ["Who?"] * 3, "context": ["The mill is red."] * 3}),
    )
    settings = [f"--set={key}={value}" for key, value in tiny_settings.items()]
    where = [f"--set=models.artifacts_path={tiny_settings['models.artifacts_path']}", "--local"]
    qaeval("score", source, "--out", tmp_path / "a", *settings, "--local")
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    line = report["instances"]["qrelscore"]["readable"]
    hashes = parse_readable(line).hashes
    assert set(hashes) == {"encoder", "causal_lm"}
    qaeval("score", source, "--out", tmp_path / "b", "--like", line, *where)
    found = json.loads((tmp_path / "b" / "report.json").read_text())
    assert found["instances"] == report["instances"]
    other = line.replace(f"@{hashes['encoder']}", "@00000000")
    said = qaeval("score", source, "--out", tmp_path / "c", "--like", other, *where, expect=2)
    assert "@00000000, and here it is" in said and hashes["encoder"] in said and "QA0325" in said
