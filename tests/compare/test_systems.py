"""compare: means, ranks and differences of systems, from OUTs and tables as people have them."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from scipy import stats

from helpers import qaeval, write_parquet
from qaeval_core.compare.output import content
from qaeval_core.compare.request import CompareRequest, named_paths
from qaeval_core.compare.run import compare_systems
from qaeval_core.compare.table import compare_tables
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.schema import COLUMNS_METADATA
from qaeval_core.text.column_hashes import column_hashes

N_CONTEXTS, N_ROWS = 40, 200
SYSTEMS = ("base", "large", "huge")


def rows(system: str, *, n: int = N_ROWS) -> pl.DataFrame:
    """Answers whose quality the context and the system decide."""
    rng = np.random.default_rng(SYSTEMS.index(system))
    words = np.array(["ann", "sold", "honey", "in", "oslo"])
    found = []
    for i in range(n):
        context = i % N_CONTEXTS
        chance = 0.2 + 0.2 * SYSTEMS.index(system) + 0.3 * (context % 7) / 6
        kept = np.where(rng.random(5) < chance, words, "x")
        found.append(
            {
                "id": f"q{i}", "context": f"Ann sold honey {context} times.",
                "candidate": " ".join(kept), "references": ["ann sold honey in oslo"],
                "topic": f"t{context % 3}", "system": system,
            }
        )  # fmt: skip
    return pl.DataFrame(found)


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OUT of each system, and one of all of them."""
    folder = tmp_path_factory.mktemp("outs")
    frames = {name: rows(name) for name in SYSTEMS}
    for name, frame in {**frames, "all": pl.concat(frames.values())}.items():
        path = write_parquet(folder / f"{name}.parquet", frame.to_arrow())
        qaeval(
            "score", path, "--out", folder / name, "--metrics", "f1,exact_match", "--local",
            "--carry", "topic,system",
        )  # fmt: skip
    return folder


def scores(out: Path, metric: str = "f1") -> dict[str, np.ndarray]:
    """Values by id, and the contexts of the rows, which are the same for every system."""
    return {
        name: pl.read_parquet(out / name / "scores" / f"{name}.parquet").sort("id")[metric]
        .to_numpy() for name in SYSTEMS
    }  # fmt: skip


def found_json(*words: object) -> dict:
    said = qaeval("compare", *map(str, words), "--format", "json")
    found: dict = json.loads(said[said.index("{") : said.rindex("}") + 1])
    return found["metrics"]


def sandwich(values: np.ndarray, contexts: list[str]) -> tuple[float, float]:
    """The interval of a mean of clusters, written anew: buckets of hashes, Student's t."""
    buckets = column_hashes(pa.chunked_array([contexts]))[0] % np.uint64(1024)
    _, codes = np.unique(buckets, return_inverse=True)
    n, sums = np.bincount(codes), np.bincount(codes, values)
    mean = values.mean()
    variance = len(n) / (len(n) - 1) * ((sums - mean * n) ** 2).sum() / n.sum() ** 2
    half = stats.t.ppf(0.975, n.sum() ** 2 / (n**2).sum() - 1) * math.sqrt(variance)
    return max(mean - half, 0.0), min(mean + half, 1.0)


def test_numbers_are_those_of_an_independent_computation(outs: Path) -> None:
    """Means, intervals, ranks, differences, wins: written anew with numpy."""
    found = found_json(*(outs / name for name in SYSTEMS))["f1"]["systems"]
    known = scores(outs)
    contexts = rows("base").sort("id")["context"].to_list()
    assert [row["system"] for row in found] == ["huge", "large", "base"]
    assert [row["rank"] for row in found] == [1, 2, 3]
    said = qaeval("compare", *(outs / name for name in SYSTEMS))
    assert "\nf1|tok:squad|lang:en|refs:max|version:" in said
    for row in found:
        own = known[row["system"]]
        assert row["mean"] == pytest.approx(own.mean(), abs=1e-12)
        assert (row["low"], row["high"]) == pytest.approx(sandwich(own, contexts), abs=1e-9)
        apart = own - known["huge"]
        if row["system"] == "huge":
            assert row["difference"] is None and row["p"] is None
            continue
        assert row["difference"] == pytest.approx(apart.mean(), abs=1e-12)
        wins, ties, losses = (apart > 1e-9).sum(), (abs(apart) <= 1e-9).sum(), (apart < -1e-9).sum()
        assert (row["wins"], row["ties"], row["losses"]) == (wins, ties, losses)
        codes = np.unique(contexts, return_inverse=True)[1]
        of_contexts = np.bincount(codes, apart) / np.bincount(codes)
        half = stats.t.ppf(0.975, N_CONTEXTS - 1) * of_contexts.std(ddof=1) / N_CONTEXTS**0.5
        assert row["difference_high"] - row["difference_low"] == pytest.approx(2 * half, rel=0.15)


def test_one_out_of_several_systems_says_the_same(outs: Path) -> None:
    """Ids that several systems have are those of the same rows."""
    apart = found_json(*(outs / name for name in SYSTEMS))
    together = found_json(outs / "all", "--system", "system")
    for metric in ("f1", "exact_match"):
        assert together[metric]["systems"] == apart[metric]["systems"]


def test_a_baseline_has_fewer_comparisons(outs: Path) -> None:
    words = [outs / name for name in SYSTEMS]
    with_best, with_base = found_json(*words), found_json(*words, "--baseline", "base")
    assert "corrected for 6 comparisons" in qaeval("compare", *words)
    assert "corrected for 4 comparisons" in qaeval("compare", *words, "--baseline", "base")
    by_system = {row["system"]: row for row in with_base["f1"]["systems"]}
    assert by_system["base"]["difference"] is None
    best = {row["system"]: row for row in with_best["f1"]["systems"]}
    assert by_system["huge"]["difference"] == pytest.approx(-best["base"]["difference"])
    said = qaeval("compare", *words, "--baseline", "bas", expect=2)
    assert "did you mean 'base'" in said and "[QA0105]" in said


def test_rows_that_one_side_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    one = pl.DataFrame({"id": ["a", "b", "c", "c", None], "x": [1.0, 0.0, 1.0, 1.0, 0.0]})
    other = pl.DataFrame({"id": ["b", "a", "d", "e"], "x": [1.0, None, 0.5, 0.2]})
    for name, frame in (("one", one), ("other", other)):
        write_parquet(tmp_path / f"{name}.parquet", frame.to_arrow())
    said = qaeval(
        "compare", f"one={tmp_path / 'one.parquet'}", f"other={tmp_path / 'other.parquet'}",
        "--metrics", "x",
    )  # fmt: skip
    assert "2 systems, 2 rows that all of them have" in said
    assert "one: 3 of 5 rows are left out" in said and "other: 2 of 4 rows are left out" in said
    assert "one: left out for ids that are there twice: 2" in said
    assert "one: left out without an id: 1" in said
    assert "x, 1 rows with a value of every system" in said


def test_settings_that_differ_are_refused_unless_wanted(outs: Path, tmp_path: Path) -> None:
    qaeval(
        "score", outs / "large.parquet", "--out", tmp_path / "german", "--metrics", "f1",
        "--set", "f1.language=de", "--local",
    )  # fmt: skip
    said = qaeval("compare", outs / "base", tmp_path / "german", expect=2)
    assert "base has f1|" in said and "german has f1|" in said and "[QA0326]" in said
    said = qaeval("compare", outs / "base", tmp_path / "german", "--anyway")
    assert "note: f1 was scored in different ways by base and german" in said


def test_means_by_a_column(outs: Path) -> None:
    found = found_json(outs / "base", outs / "huge", "--by", "topic", "--metrics", "f1")
    known, topics = scores(outs), rows("base").sort("id")["topic"].to_numpy()
    groups = found["f1"]["by"]["topic"]
    assert [group["value"] for group in groups] == ["t0", "t1", "t2"]
    for group in groups:
        for row in group["systems"]:
            of_value = known[row["system"]][topics == group["value"]]
            assert row["mean"] == pytest.approx(of_value.mean())
    said = qaeval("compare", outs / "base", outs / "huge", "--by", "topics", expect=2)
    assert "did you mean 'topic'" in said and "[QA0305]" in said


def test_rows_that_differ_most_come_with_their_texts(outs: Path, tmp_path: Path) -> None:
    qaeval("compare", outs / "base", outs / "huge", "--out", tmp_path / "c", "--metrics", "f1")
    whole = json.loads((tmp_path / "c" / "compare.json").read_text())
    far = whole["metrics"]["f1"]["differ_most"]
    known = scores(outs)
    apart = np.sort(np.abs(known["base"] - known["huge"]))[::-1][:20]
    assert [abs(own["values"][0] - own["values"][1]) for own in far] == pytest.approx(apart)
    frames = {name: rows(name) for name in ("base", "huge")}
    for own in far:
        for name, texts in zip(("base", "huge"), own["texts"], strict=True):
            row = frames[name].row(by_predicate=pl.col("id") == own["key"], named=True)
            assert texts["candidate"] == row["candidate"] and texts["context"] == row["context"]
    page = (tmp_path / "c" / "compare.html").read_text()
    assert far[0]["texts"][0]["candidate"] in page and far[0]["key"] in page
    assert "<script" not in page
    said = qaeval("compare", outs / "base", outs / "huge", "--out", outs / "base", expect=2)
    assert "[QA0110]" in said


def test_without_the_input_rows_are_independent_and_that_is_said(
    outs: Path, tmp_path: Path
) -> None:
    for name in ("base", "large"):
        path = write_parquet(tmp_path / f"{name}.parquet", rows(name).to_arrow())
        qaeval("score", path, "--out", tmp_path / name, "--metrics", "f1", "--local")
        path.unlink()
    said = qaeval("compare", tmp_path / "base", tmp_path / "large")
    assert "base: its input is not read, so no texts are shown" in said
    assert "bootstrap draws of 200 rows" in said


def test_systems_without_common_ids_are_paired_by_context(tmp_path: Path) -> None:
    """Each system asked its own questions of the same passages."""
    frame = pl.DataFrame(
        {
            "system": ["a", "a", "a", "b", "b", "b"],
            "context": ["1", "1", "2", "1", "2", "3"],
            "x": [0.0, 1.0, 0.25, 1.0, 0.75, 0.1],
        }
    )
    path = write_parquet(tmp_path / "rows.parquet", frame.to_arrow())
    words = ("compare", path, "--system", "system", "--metrics", "x")
    said = qaeval(*words)
    assert "rows are paired by context" in said and "2 values of context" in said
    assert "b: 1 of 3 rows are left out" in said
    found = found_json(path, "--system", "system", "--metrics", "x")["x"]["systems"]
    assert [(row["system"], row["mean"]) for row in found] == [("b", 0.875), ("a", 0.375)]
    said = qaeval(*words, "--cluster", "none", expect=2)
    assert "share no row" in said and "[QA0317]" in said


def test_lower_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    told = {"x": {"metric": "x", "higher_is_better": False, "signature": "x|v:1"}}
    for name, shift in (("one", 0.0), ("other", 1.0)):
        frame = pl.DataFrame({"id": [str(i) for i in range(50)], "x": np.arange(50) + shift})
        table = frame.to_arrow().replace_schema_metadata({COLUMNS_METADATA: json.dumps(told)})
        write_parquet(tmp_path / f"{name}.parquet", table)
    paths = [f"{name}={tmp_path / name}.parquet" for name in ("one", "other")]
    found = found_json(*paths, "--metrics", "x")["x"]["systems"]
    assert [(row["system"], row["rank"]) for row in found] == [("one", 1), ("other", 2)]
    assert (found[1]["wins"], found[1]["ties"], found[1]["losses"]) == (0, 0, 50)
    assert "x (lower is better), 50 rows" in qaeval("compare", *paths, "--metrics", "x")


def test_other_contexts_of_one_id_are_told(tmp_path: Path) -> None:
    for name in ("one", "other"):
        frame = pl.DataFrame({"id": ["a", "b"], "context": ["x", name], "x": [0.1, 0.2]})
        write_parquet(tmp_path / f"{name}.parquet", frame.to_arrow())
    said = qaeval("compare", tmp_path / "one.parquet", tmp_path / "other.parquet", "--metrics", "x")
    assert "rows whose context is another one in another system: 1" in said


def test_csv_is_one_table_and_percent_is_of_shares(outs: Path) -> None:
    words = ("compare", outs / "base", outs / "huge", "--percent", "--format")
    said = qaeval(*words, "csv", "--by", "topic")
    every = list(csv.DictReader(io.StringIO(said[said.index("metric,by") :])))
    found = [row for row in every if not row["by"]]
    assert [row["value"] for row in every if row["by"]] == ["t0", "t0", "t1", "t1", "t2", "t2"] * 2
    precision = qaeval(*words, "json", "--metrics", "f1_precision")
    mean = scores(outs, "f1_precision")["huge"].mean() * 100
    assert json.loads(precision[precision.index("{") : precision.rindex("}") + 1])["metrics"][
        "f1_precision"
    ]["systems"][0]["mean"] == pytest.approx(mean)
    assert [(row["metric"], row["system"]) for row in found] == [
        ("f1", "huge"), ("f1", "base"), ("exact_match", "huge"), ("exact_match", "base"),
    ]  # fmt: skip
    assert float(found[0]["mean"]) == pytest.approx(scores(outs)["huge"].mean() * 100)
    said = qaeval("compare", outs / "base", outs / "huge", "--format", "cvs", expect=2)
    assert "did you mean 'csv'" in said and "[QA0105]" in said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("base",), "QA0103"),
        (("base", "large", "--system", "system"), "QA0102"),
        (("base", "base"), "QA0106"),
        (("base", "nowhere"), "QA0301"),
        (("base", "large", "--metrics", "f2"), "QA0305"),
        (("base", "large", "--metrics", "topic"), "QA0306"),
        (("base", "large", "--cluster", "contxt"), "QA0305"),
        (("base", "large", "--on", "idd"), "QA0305"),
        (("base", "large", "--resamples", "3"), "QA0104"),
        (("base", "--system", "topics"), "QA0305"),
        (("base", "large", "--metrics", "f1", "--by", "f1"), "QA0102"),
    ],
)
def test_wrong_words_are_one_line(outs: Path, words: tuple[str, ...], code: str) -> None:
    given = [outs / word if (outs / word).exists() or word == "nowhere" else word for word in words]
    said = qaeval("compare", *given, expect=2)
    assert f"[{code}]" in said and said.count("error:") == 1


def frame_of(values: object, **columns: object) -> pl.DataFrame:
    own = np.asarray(values, dtype=np.float64)
    return pl.DataFrame({"id": [str(i) for i in range(len(own))], "x": own, **columns})


def test_a_difference_that_all_rows_have_alike_is_none_of_chance() -> None:
    """Draws of it do not vary: how many clusters agree says how sure it is."""
    mixed = np.arange(30) % 2
    given = {"a": frame_of(np.zeros(30)), "b": frame_of(np.ones(30)), "c": frame_of(mixed)}
    found = compare_tables(given, metrics="x", n_resamples=200).systems
    by_system = {row["system"]: row for row in found.iter_rows(named=True)}
    assert by_system["a"]["holds"] and by_system["a"]["p"] == pytest.approx(3 * 2.0**-29)
    assert by_system["a"]["difference"] == -1 and by_system["a"]["difference_low"] is None
    few = {name: own[:3] for name, own in given.items() if name != "c"}
    (_, own) = compare_tables(few, metrics="x", n_resamples=200).systems.iter_rows(named=True)
    assert own["p"] == 0.25 and not own["holds"]
    same = compare_tables({"a": given["c"], "b": given["c"]}, metrics="x", n_resamples=200)
    assert same.systems["p"].drop_nulls().to_list() == [1.0] and "-0.0" not in same.to("json")
    alone = {name: own.with_columns(context=pl.lit("one")) for name, own in given.items()}
    found = compare_tables(alone, metrics="x", n_resamples=200).systems
    assert found["p"].null_count() == found["difference_low"].null_count() == 3


def test_questions_that_systems_asked_themselves_are_no_clusters() -> None:
    """The order of systems decided what was drawn."""
    rng = np.random.default_rng(0)
    own = frame_of(rng.random(20), question=[f"Who {i}?" for i in range(20)])
    other = frame_of(rng.random(20), question=["What?"] * 20)
    one = compare_tables({"a": own, "b": other}, metrics="x", n_resamples=200)
    two = compare_tables({"b": other, "a": own}, metrics="x", n_resamples=200)
    assert one.content["clusters"] == two.content["clusters"] == "20 rows"
    assert one.systems["p"].drop_nulls().to_list() == two.systems["p"].drop_nulls().to_list()


def test_texts_that_a_run_does_not_show_are_no_names_of_rows(tmp_path: Path) -> None:
    """Where contexts pair rows, they are what is shown of a row."""
    for name in ("base", "large"):
        frame = rows(name).with_columns(id=pl.format("{}-{}", pl.lit(name), "id"))
        frame = frame.with_columns(context=pl.format("secret {}", "context"))
        path = write_parquet(tmp_path / f"{name}.parquet", frame.to_arrow())
        qaeval("score", path, "--out", tmp_path / name, "--metrics", "f1", "--local", "--no-texts")
    said = qaeval("compare", tmp_path / "base", tmp_path / "large", "--out", tmp_path / "c")
    assert "rows are paired by context" in said and "secret" not in said
    for name in ("compare.html", "compare.json"):
        assert "secret" not in (tmp_path / "c" / name).read_text()


def test_directions_that_differ_are_refused() -> None:
    told = {"x": {"metric": "x", "higher_is_better": False, "signature": "x|v:1"}}
    lower = frame_of(np.arange(20)).to_arrow()
    lower = lower.replace_schema_metadata({COLUMNS_METADATA: json.dumps(told)})
    plain = frame_of(np.arange(20) + 1)
    for given in ({"plain": plain, "told": lower}, {"told": lower, "plain": plain}):
        found = compare_tables(given, metrics="x", anyway=True, n_resamples=200)
        assert found.content["metrics"]["x"]["systems"][0]["system"] == "told"
    told["x"]["higher_is_better"] = True
    higher = lower.replace_schema_metadata({COLUMNS_METADATA: json.dumps(told)})
    with pytest.raises(ConfigError, match="QA0326"):
        compare_tables({"a": lower, "b": higher}, metrics="x", n_resamples=200)


def test_odd_names_and_tables(outs: Path) -> None:
    """Files of scores without their run, columns called as ours, decimals, and no rows."""
    files = [outs / name / "scores" / f"{name}.parquet" for name in ("base", "huge")]
    found = found_json(*files)
    assert [own["system"] for own in found["f1"]["systems"]] == ["huge.parquet", "base.parquet"]
    frames = {name: frame_of(np.arange(9) % k) for name, k in (("low", 2), ("high", 3))}
    odd = {name: own.rename({"x": "p"}) for name, own in frames.items()}
    own = compare_tables(odd, metrics="p", n_resamples=200)
    assert own.content["metrics"]["p"]["systems"][0]["mean"] == pytest.approx(1.0)
    decimal = {name: own.cast({"x": pl.Decimal(10, 3)}) for name, own in frames.items()}
    assert compare_tables(decimal, metrics="x", n_resamples=200).systems["mean"][0] == 1.0
    empty = {name: own.head(0) for name, own in frames.items()}
    with pytest.raises(QAEvalError, match="QA0317"):
        compare_tables(empty, metrics="x", n_resamples=200)
    assert "[QA" in qaeval("compare", "/", "/", expect=2)


@pytest.mark.parametrize("rows_per_part", [1, 37, 150])
def test_parts_change_nothing(outs: Path, rows_per_part: int) -> None:
    """However few rows are in hand at once."""
    request = CompareRequest(
        scores=named_paths([str(outs / name) for name in SYSTEMS]), by=("topic",)
    )
    whole = content(compare_systems(request))
    parts = content(compare_systems(request, rows_per_part=rows_per_part))
    assert _rounded(parts) == _rounded(whole)


def _rounded(value: object) -> object:
    """Sums in another order have other last digits."""
    if isinstance(value, dict):
        return {name: _rounded(own) for name, own in value.items()}
    if isinstance(value, list):
        return [_rounded(own) for own in value]
    return round(value, 9) if isinstance(value, float) else value


def test_tables_in_memory(outs: Path) -> None:
    """Of any kind, and the kind of the first comes back."""
    known = scores(outs)
    ids = rows("base").sort("id")["id"].to_list()
    frames = {name: pl.DataFrame({"id": ids, "f1": own}) for name, own in known.items()}
    given = {
        "base": frames["base"].to_pandas(),
        "large (v2) = new": frames["large"].lazy(),
        "huge": frames["huge"].to_dict(as_series=False),
    }
    found = compare_tables(given, metrics="f1", cluster="none", n_resamples=200)
    assert type(found.systems).__module__.startswith("pandas")
    assert found.systems["system"].tolist() == ["huge", "large (v2) = new", "base"]
    assert found.systems["mean"].tolist() == pytest.approx(
        [known[name].mean() for name in ("huge", "large", "base")]
    )
    assert r"\toprule" in found.to("latex") and "| rank |" in found.to("markdown").replace("  ", "")
    assert "huge" in repr(found) and found._repr_html_().startswith("<pre>")
    whole = pl.concat(own.with_columns(system=pl.lit(name)) for name, own in frames.items())
    again = compare_tables(whole, system="system", metrics="f1", cluster="none", n_resamples=200)
    assert again.systems["mean"].to_list() == pytest.approx(found.systems["mean"].tolist())
    with pytest.raises(ConfigError, match="QA0105"):
        compare_tables(given, metrics="f1", baselin="base")
    with pytest.raises(ConfigError, match="QA0103"):
        compare_tables({"base": given["base"]})
    with pytest.raises(QAEvalError, match="QA0305"):
        compare_tables(given, metrics="f2")


@pytest.mark.shared_data
def test_qgeval_has_fifteen_systems(shared_data: Path) -> None:
    """Means, intervals and ranks of real scores, by one command, as an independent computation."""
    path = shared_data / "qgeval" / "qgeval_squad.parquet"
    metrics = ("peer_METEOR", "peer_QRelScore")
    found = found_json(
        path, "--system", "system", "--metrics", ",".join(metrics), "--cluster", "passage"
    )
    frame = pl.read_parquet(path)
    for metric in metrics:
        own = found[metric]["systems"]
        means = frame.group_by("system").agg(pl.col(metric).mean()).sort(metric, descending=True)
        assert len(own) == 15
        assert [row["system"] for row in own] == means["system"].to_list()
        assert [row["rank"] for row in own] == list(range(1, 16))
        for row in own:
            rows_of = frame.filter(pl.col("system") == row["system"])
            values, passages = rows_of[metric].to_numpy(), rows_of["passage"].to_list()
            assert row["mean"] == pytest.approx(values.mean(), abs=1e-9)
            buckets = column_hashes(pa.chunked_array([passages]))[0] % np.uint64(1024)
            codes = np.unique(buckets, return_inverse=True)[1]
            n, sums = np.bincount(codes), np.bincount(codes, values)
            spread = ((sums - values.mean() * n) ** 2).sum() * len(n) / (len(n) - 1)
            free = n.sum() ** 2 / (n**2).sum() - 1
            half = stats.t.ppf(0.975, free) * math.sqrt(spread) / n.sum()
            assert row["high"] - row["mean"] == pytest.approx(half, rel=1e-6)
