"""Which metrics a run has where none is named: by its columns, or as OUT has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers import qaeval, read_scores, run_locally, write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.planning import default_metrics
from qaeval_core.planning.default_metrics import with_default_metrics
from qaeval_core.planning.job import find_files

TEXTS = pa.array(["the red mill", "a barn"])
LISTS = pa.array([["the mill"], ["the barn"]])


def table(*names: str) -> pa.Table:
    """Return a table of texts; references are lists of them."""
    return pa.table({name: LISTS if name == "references" else TEXTS for name in names})


def chosen(
    folder: Path, names: tuple[str, ...], mapping: dict[str, str] | None = None, **more: Any
) -> tuple[list[str], str]:
    """Return the metrics that columns choose, and what is said of it."""
    path = write_parquet(folder / "input.parquet", table(*names))
    config = load_config(
        overrides={"input.paths": [str(path)], "input.columns": mapping or {}, **more}
    )
    found = find_files(config, needs_out=False)
    config, line = with_default_metrics(config, found, device="cpu")
    return list(config.metrics), line


@pytest.mark.parametrize(
    ("names", "mapping", "metrics"),
    [
        (("candidate", "references"), {}, ["f1", "sas"]),
        (("candidate", "references", "context", "answer"), {}, ["f1", "sas"]),
        (("question", "references", "prediction"), {"candidate": "prediction"}, ["f1", "sas"]),
        (("question", "references", "context", "answer"), {}, ["f1", "sas"]),
        # Usual names of what a system answered.
        (("prediction", "question", "references"), {}, ["f1", "sas"]),
        (("response", "question", "answer", "references"), {}, ["f1", "sas"]),
        (("output", "query", "gold"), {}, ["f1", "sas"]),
        (("generated_question", "passage", "answer"), {}, ["roundtrip"]),
        (("question", "context", "answer"), {}, ["roundtrip"]),
        (("generated", "passage", "gold"),
         {"question": "generated", "context": "passage", "answer": "gold"}, ["roundtrip"]),
    ],
)  # fmt: skip
def test_columns_choose(
    tmp_path: Path, names: tuple[str, ...], mapping: dict[str, str], metrics: list[str]
) -> None:
    found, line = chosen(tmp_path, names, mapping)
    assert found == metrics
    # Who reads the line sees which column is taken for what.
    assert f"metrics: {' and '.join(metrics)}, because" in line
    assert f"candidate={mapping.get('candidate') or mapping.get('question') or names[0]}" in line


def test_sas_is_left_out_where_it_could_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_metrics, "missing_packages", lambda *_, **__: ("onnxruntime",))
    found, line = chosen(tmp_path, ("candidate", "references"))
    assert found == ["f1"] and "sas needs packages that are missing" in line


@pytest.mark.parametrize(
    ("names", "said"),
    [
        # The question is no answer, and these references may be answers to it.
        (("question", "references"), "--column candidate=NAME for answers"),
        (("question", "references", "response", "prediction"), "'response', 'prediction' all look"),
        (("candidate", "context"), "Metrics that fit: qrelscore, q_bleu_free, bertscore_free"),
        (("query", "passage"), "Metrics that fit: qrelscore, q_bleu_free, bertscore_free"),
        (("title", "story"), "none fits the columns title, story"),
    ],
)
def test_columns_that_do_not_decide_are_refused(
    tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(QAEvalError) as refused:
        chosen(tmp_path, names)
    assert said in str(refused.value)


def test_whoever_names_a_metric_or_its_setting_chooses(tmp_path: Path) -> None:
    columns = ("candidate", "references", "context")
    assert chosen(tmp_path, columns, **{"metrics.rouge_l": {}}) == (["rouge_l"], "")
    assert chosen(tmp_path, columns, **{"qrelscore.layers": "last"}) == (["qrelscore"], "")
    # An option of its own is no setting.
    assert chosen(tmp_path, columns, **{"scoring.rows_per_shard": 7})[0] == ["f1", "sas"]


def test_an_out_keeps_its_metrics_and_their_settings(tmp_path: Path) -> None:
    """The same folder would otherwise hold other scores each time a package is installed."""
    names = ("candidate", "references")
    path = write_parquet(tmp_path / "input.parquet", table(*names))
    own = {"input.paths": [str(path)], "output.path": str(tmp_path / "out")}
    run_locally({**own, "rouge_l.beta": 1.2, "metrics.em": {}})
    said = qaeval("score", path, "--out", own["output.path"])
    assert f"metrics: rouge_l and exact_match, as in {tmp_path / 'out'}" in said
    assert "nothing to do" in said

    run = json.loads((tmp_path / "out" / "run.json").read_text())
    run["config"]["metrics"]["sas"] = {"metric": "sas", "cross_encoder": "stranger/model"}
    (tmp_path / "out" / "run.json").write_text(json.dumps(run))
    with pytest.raises(ConfigError, match=r"sas\.cross_encoder.*QA0206"):
        chosen(tmp_path, names, **{"output.path": own["output.path"]})


def test_the_command_says_what_it_chose_or_ends_with_2(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "input.parquet", table("question", "references"))
    out = tmp_path / "out"
    said = qaeval("score", path, "--out", out, expect=2)
    assert "no metric is named" in said and not out.exists()
    as_candidate = ("--column", "candidate=question")
    tuned = ("--set", "scoring.progress_s=1")
    said = qaeval("score", path, "--out", out, *as_candidate, *tuned, expect=2)
    assert "with --set the columns choose none; add --metrics f1,sas, for the input has" in said
    assert not out.exists()
    said = qaeval("score", path, "--out", out, *as_candidate, "--metrics", "EM")
    assert "because" not in said
    assert read_scores(out).columns[:2] == ["id", "exact_match"]
    # What OUT has is no guess.
    assert "exact_match, as in" in qaeval("score", path, "--out", out, *as_candidate, *tuned)
