"""OUT/report.html: its numbers are those of the scores, its texts escaped, and it stands alone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from filter_corpora import questions
from helpers import REPOSITORY, qaeval, run_locally
from llm_server import LlmServer
from naco_jobs import TWO_STEPS, table
from naco_jobs import settings as naco_settings
from qaeval_core.errors import ConfigError, InputChangedError, InputError
from qaeval_core.pages.example_rows import MAX_BYTES
from qaeval_core.profile.run_profile import RunProfile
from qaeval_core.scoring.page import report_page
from qaeval_core.scoring.rewrite_page import page_again, run_examples

ATTACK = "</script><script>alert(1)</script>\u202e<img src=http://x onerror=y>\x07"
SECRET = "zebrafish"


class Page(HTMLParser):
    """Tags, attributes and table rows of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.titles: list[str] = []
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "title":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("td", "th"):
            self.rows[-1][-1] += data
        elif self._open == "title":
            self.titles[-1] += data

    def row(self, *names: str) -> list[str]:
        """Return the first table row that begins with some cells."""
        return next(own for own in self.rows if own[: len(names)] == list(names))


def scored(folder: Path, rows: pl.DataFrame, **given: Any) -> Path:
    """Score rows of two files by words; return OUT."""
    (folder / "source").mkdir(parents=True, exist_ok=True)
    cut = -(-rows.height // 2)
    for i, own in enumerate((rows[:cut], rows[cut:])):
        own.write_parquet(folder / "source" / f"part{i}.parquet", row_group_size=50)
    defaults = {
        "metrics.f1.metric": "f1",
        "metrics.cider.metric": "cider",
        "input.paths": [str(folder / "source")],
        "input.columns.references": "reference",
        "output.path": str(folder / "out"),
        "output.carry": ["topic"],
    }
    run_locally({**defaults, **given})
    return folder / "out"


def page_of(out: Path) -> str:
    return (out / "report.html").read_text()


def scores_of(out: Path) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(path) for path in sorted((out / "scores").glob("*.parquet")))


def assert_links_lead_nowhere_else(attributes: list[tuple[str, str | None]]) -> None:
    """Links lead to a part of the page, or to a page that lies beside it."""
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for name, value in attributes:
        if name == "href":
            assert value
            assert value[1:] in ids if value[0] == "#" else re.fullmatch(r"[^:?#]+\.html", value)


def assert_stands_alone(text: str) -> None:
    """No script, no resource from elsewhere, small, and a policy that says so."""
    page = Page(text)
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    shown = ("http-equiv", "title", "aria-label")
    values = [value or "" for name, value in page.attributes if name not in shown]
    assert not [value for value in values if "http" in value.lower()]
    assert not {name for name, _ in page.attributes} & {"src", "srcset", "onerror"}
    assert_links_lead_nowhere_else(page.attributes)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert len(text.encode()) < MAX_BYTES
    assert "\u202e" not in text and "\x07" not in text


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of 600 questions: some undefined, some quarantined, two texts that attack."""
    table = questions(600)
    row = pl.int_range(pl.len())
    table = table.with_columns(
        pl.when(row % 50 == 1).then(None).otherwise(pl.col("question")).alias("question"),
        pl.when(row == 7).then(pl.lit(ATTACK)).otherwise(pl.col("reference")).alias("reference"),
        pl.when(row == 8).then(pl.lit(ATTACK)).otherwise(pl.col("topic")).alias("topic"),
        pl.when(row == 9).then(pl.lit(f"{SECRET} " * 200)).otherwise(pl.col("context"))
        .alias("context"),
    ).with_columns(
        pl.when(row % 40 == 3).then(pl.lit("?")).otherwise(pl.col("question")).alias("question"),
        pl.when(row % 40 == 3).then(pl.lit("")).otherwise(pl.col("reference")).alias("reference"),
    )  # fmt: skip
    return scored(tmp_path_factory.mktemp("page"), table)


def assert_rounded(cell: str, value: float) -> None:
    """A number of at least three decimals, rounded as floats are."""
    n = len(cell.partition(".")[2])
    assert n >= 3 and cell == f"{value:.{n}f}"


def test_numbers_are_those_of_the_scores(out: Path) -> None:
    """Counts, means and slices against polars on OUT/scores."""
    page, table = Page(page_of(out)), scores_of(out)
    for name in ("f1", "cider"):
        own = table[name].drop_nulls().cast(pl.Float64)
        quarantined = table["quarantine_reason"].is_not_null().sum()
        row = page.row(name)
        assert_rounded(row[1], own.mean())
        assert row[3] == f"{own.len():,}"
        assert row[4] == f"{table.height - own.len() - quarantined:,}"
        for cell, value in zip(row[5:8], (own.min(), own.median(), own.max()), strict=True):
            assert_rounded(cell, value)
    for topic, own in table.group_by("topic"):
        if topic[0] == ATTACK:
            continue
        cells = page.row(topic[0])
        assert cells[1] == f"{own.height:,}"
        values = own["f1"].drop_nulls().cast(pl.Float64)
        assert_rounded(cells[2].partition(" [")[0], values.mean())
        assert cells[2].endswith(f"of {values.len():,}")
    for reason, count in table["quarantine_reason"].drop_nulls().value_counts().rows():
        assert page.row(reason)[2] == str(count)
    for reason, count in table["f1_reason"].drop_nulls().value_counts().rows():
        assert page.row(reason, "undefined: f1")[2] == str(count)


def test_what_calls_cost_is_shown(tmp_path: Path) -> None:
    """Calls, tokens and money of a run that asks a language model, as report.json has them."""
    asked = [f"Who keeps bee number {i // 2}?" for i in range(12)]
    replies = {question: [TWO_STEPS] for question in asked}
    with LlmServer(replies=replies) as server:
        prices = {"naco.prices.prompt": 100.0, "naco.prices.completion": 2000.0}
        run_locally({**naco_settings(server, tmp_path, table(asked)), **prices})
    text = page_of(tmp_path / "out")
    assert_stands_alone(text)
    page, report = Page(text), json.loads((tmp_path / "out" / "report.json").read_text())
    ((key, own),) = report["families"].items()
    found, row = own["calls"], page.row(key)
    assert row[1:5] == [
        f"{n:,}"
        for n in (
            own["requests_avoided"],
            found["paid"],
            found["from_journal"],
            found["prompt_tokens"],
        )
    ]
    assert found["paid"] == own["requests_avoided"] == 6
    assert float(row[8].replace(",", "")) == pytest.approx(found["usd"], abs=1e-4) and found["usd"]


def test_what_models_did_is_shown(tiny_settings: dict[str, object], tmp_path: Path) -> None:
    """Padding, work that was shared, and speed, as report.json has them."""
    rows = questions(24)
    rows = pl.concat([rows, rows.with_columns(id=pl.format("again {}", "id"))])
    out = scored(tmp_path, rows, **tiny_settings, **{"metrics.qrelscore.metric": "qrelscore"})
    page, report = Page(page_of(out)), json.loads((out / "report.json").read_text())
    computed = {k: v for k, v in report["families"].items() if v.get("forward_sequences")}
    assert computed
    for key, own in computed.items():
        n_all = own["forward_sequences"] + own["forward_sequences_avoided"]
        row = page.row(key, f"{own['rows']:,}", f"{own['forward_sequences']:,}")
        assert row[3:6] == [
            f"{own['forward_sequences_avoided'] / n_all:.1%}",
            f"{own['tokens']:,}",
            f"{own['padding_share']:.1%}",
        ]
    assert any(own["forward_sequences_avoided"] for own in computed.values())
    last = [row for row in page.rows if len(row) == 5 and row[0] in computed]
    assert {row[1] for row in last} == {f"{rows.height:,}"}
    assert all(float(row[3].replace(",", "")) > 0 for row in last)


def test_the_bars_count_every_score_once(out: Path) -> None:
    """F1 lies in its range of 0 to 1, CIDEr in that of the data; each bar against polars."""
    page, table = Page(page_of(out)), scores_of(out)
    for name in ("f1", "cider"):
        bars = [re.fullmatch(rf"{name}, (\S+) to (\S+): ([\d,]+)", one) for one in page.titles]
        counts = [int(bar[3].replace(",", "")) for bar in bars if bar]
        assert sum(counts) == table[name].drop_nulls().len()
    values = table["f1"].drop_nulls().cast(pl.Float64).to_numpy()
    for low in (0.0, 0.25, 0.5):
        title = next((one for one in page.titles if one.startswith(f"f1, {low:g} to ")), "")
        expected = int(((values >= low) & (values < low + 1 / 32)).sum())
        assert title == (f"f1, {low:g} to {low + 1 / 32:.4g}: {expected:,}" if expected else "")


def test_texts_of_rows_are_shown_escaped_and_cut(out: Path) -> None:
    """A page is opened by people: no text of a row may be more than text."""
    text = page_of(out)
    assert_stands_alone(text)
    page = Page(text)
    lowest = json.loads((out / "report.json").read_text())["examples"]["f1"]["lowest"][:5]
    rows = {row["id"]: row for row in questions(600).to_dicts()}
    articles = re.findall(
        r'<article class="row card" id="row-\d+">(.*?)</article>', text, re.DOTALL
    )
    shown = {html.unescape(re.sub("<.*?>", "", own.partition("</b>")[0])): own for own in articles}
    for own in lowest:
        question = html.escape(rows[own["id"]]["question"])
        assert question in shown[own["id"]] or '<dd class="text" dir="auto">?' in shown[own["id"]]
    assert max(len(cell) for row in page.rows for cell in row[:-1]) <= 2000
    texts = re.findall(r'<dd class="text" dir="auto">(.*?)</dd>', text, re.DOTALL)
    assert max(len(html.unescape(re.sub("</?mark>", "", own))) for own in texts) <= 500
    assert ATTACK not in text and "\\u202e" in text


def test_a_page_of_thousands_of_notes_stays_small(out: Path) -> None:
    """With skip_unreadable there is one for each file of a damaged corpus."""
    report, run = (json.loads((out / f"{name}.json").read_text()) for name in ("report", "run"))
    notes = [f"part{i}.parquet cannot be read: {'x' * 300}" for i in range(5000)]
    run["config"]["input"]["paths"] = [f"week{i}" for i in range(3000)]
    text = report_page({**report, "notes": notes}, run, None)
    assert_stands_alone(text)
    assert Page(text).row("more inputs")[1] == "2,980, named in run.json"
    assert notes[0][:150] in text and "more notes (report.json has all) are left out" in text


def test_the_same_page_is_written_again(out: Path) -> None:
    """From what OUT holds, without its scores."""
    before = page_of(out)
    (out / "scores").rename(out / "away")
    try:
        assert "page: " in qaeval("report", out)
        assert page_of(out) == before
    finally:
        (out / "away").rename(out / "scores")
    assert page_again(out, by=["topic"]) == before
    assert len(page_again(out, n_texts=20)) > len(before)


def test_bad_requests_name_the_nearest(out: Path, tmp_path: Path) -> None:
    assert "did you mean 'topic'" in qaeval("report", out, "--by", "topics", expect=2)
    assert "--texts or --no-texts, not both" in qaeval(
        "report", out, "--texts", "3", "--no-texts", expect=2
    )
    with pytest.raises(ConfigError, match="20.*QA0104"):
        page_again(out, n_texts=21)
    for shows in (page_again, run_examples):
        with pytest.raises(ConfigError, match="--texts -1.*20.*QA0104"):
            shows(out, n_texts=-1)
    with pytest.raises(ConfigError, match="QA0513"):
        page_again(tmp_path)
    with pytest.raises(InputError, match="--input PATH.*QA0301"):
        page_again(out, inputs=[str(tmp_path / "nowhere")])


def test_without_texts_none_is_in_the_page(tmp_path: Path) -> None:
    """Neither of rows nor of ids; a context that is carried is no slice."""
    table = questions(40).with_columns(
        question=f"{SECRET} one " + pl.col("question"),
        reference=f"{SECRET} two " + pl.col("reference"),
        context=pl.lit(f"{SECRET} same"),
        id=SECRET + pl.col("id"),
    )
    given = {"output.carry": ["topic", "context"], "metrics.q_bleu_free.metric": "q_bleu_free"}
    out = scored(tmp_path, table, **given, **{"output.texts": False})
    assert SECRET not in page_of(out) and "part0.parquet:" in page_of(out)
    assert SECRET not in page_again(out)
    assert SECRET in page_again(out, n_texts=3)
    assert SECRET not in page_again(out, n_texts=0)


def test_who_asks_for_no_texts_later_gets_none(tmp_path: Path) -> None:
    """A run with nothing to do would leave the texts where they are."""
    table = questions(20).with_columns(question=f"{SECRET} " + pl.col("question"))
    assert SECRET in page_of(scored(tmp_path, table))
    assert SECRET not in page_of(scored(tmp_path, table, **{"output.texts": False}))
    assert SECRET in page_of(scored(tmp_path, table))


def test_an_input_that_changed_is_not_shown(tmp_path: Path) -> None:
    """Texts of other rows beside the scores would be lies."""
    out = scored(tmp_path, questions(20))
    questions(20, seed=1).write_parquet(tmp_path / "source" / "part0.parquet")
    with pytest.raises(InputChangedError):
        page_again(out)
    assert "rows scored by f1, cider" in page_again(out, n_texts=0)
    (tmp_path / "source").rename(tmp_path / "moved")
    assert "error" in qaeval("report", out, expect=2)


def test_an_input_elsewhere_is_shown_if_its_ids_are_those_that_were_scored(tmp_path: Path) -> None:
    """--input may name last week's file, or a part of it: row 7 of that is another one."""
    out, given = scored(tmp_path, questions(20)), [str(tmp_path / "moved")]
    shutil.copytree(tmp_path / "source", tmp_path / "moved")
    moved = tmp_path / "moved" / "part0.parquet"
    table = pl.read_parquet(moved)
    assert page_again(out, inputs=given) == page_again(out)
    for other in (table.reverse(), table[:5], table.drop("id")):
        other.write_parquet(moved)
        with pytest.raises(InputChangedError, match="'id'.*QA0309"):
            page_again(out, inputs=given)
        found = run_examples(out, inputs=given)
        assert found is not None and found.texts is None and "other ids" in found.why


@pytest.mark.parametrize("kind", ["one row", "quarantined", "undefined", "empty"])
def test_awkward_runs_have_a_page(tmp_path: Path, kind: str) -> None:
    """Nothing to draw is no reason to fail at the end of a run."""
    table = questions(0 if kind == "empty" else 1 if kind == "one row" else 6)
    if kind == "quarantined":
        table = table.with_columns(pl.lit(None, pl.String).alias("question"))
    if kind == "undefined":
        table = table.with_columns(question=pl.lit(""), reference=pl.lit(""))
    out = scored(tmp_path, table, **{"metrics.q_bleu.metric": "q_bleu"})
    text = page_of(out)
    assert_stands_alone(text)
    assert f"{table.height:,} rows scored by" in text and (out / "_SUCCESS").exists()
    shown, _, _ = text.partition("How it was made")
    assert not re.search(r"\b(nan|inf|None)\b", shown)
    assert page_again(out) == text


def large_report(folder: Path) -> str:
    """Return the page of many metrics, fifty slices of nine columns, and long texts to escape."""
    table = questions(500).with_columns(
        *((pl.int_range(pl.len()) % 50).cast(pl.String).alias(f"by{i}") for i in range(8)),
        pl.lit('"<&>\u202e' * 200).alias("reference"),
    )
    names = ("f1", "rouge_l", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "exact_match")
    given = {f"metrics.{name}.metric": name for name in names}
    carry = ["topic", *(f"by{i}" for i in range(8))]
    return page_of(scored(folder, table, **given, **{"output.carry": carry}))


def test_a_page_of_much_stays_small(tmp_path: Path) -> None:
    text = large_report(tmp_path)
    assert_stands_alone(text)
    assert "the page would be too large" in text


def test_the_profile_of_a_run_is_that_of_an_audit(out: Path) -> None:
    """It can be read and added as audits do; quarantined rows are in none of its columns."""
    profile = RunProfile.from_table(pq.read_table(out / "profile.parquet"))
    table = scores_of(out).filter(pl.col("quarantine_reason").is_null())
    for name in ("f1", "cider"):
        own = profile.columns[name]
        assert own.counts.sum() == table.height
        assert own.counts[..., -1].sum() == table[name].null_count()
        reasons = {name: int(counts.sum()) for name, counts in own.reasons.items()}
        assert reasons == dict(table[f"{name}_reason"].drop_nulls().value_counts().rows())
    assert profile.cluster == "contexts"


def test_an_out_of_an_older_version_has_a_page(out: Path, tmp_path: Path) -> None:
    """Without a profile and without places of rows."""
    old = tmp_path / "old"
    shutil.copytree(out, old)
    (old / "profile.parquet").unlink()
    report = json.loads((old / "report.json").read_text())
    del report["slices"], report["examples"]
    (old / "report.json").write_text(json.dumps(report))
    text = page_again(old)
    assert "kept no profile" in text and Page(text).row("f1")[1]
    with pytest.raises(ConfigError, match="--carry.*QA0305"):
        page_again(old, by=["topic"])


@pytest.mark.parametrize("path", [["columns", "f1"], ["examples", "f1"], ["rows"], ["slices"]])
def test_a_damaged_report_is_named(out: Path, tmp_path: Path, path: list[str]) -> None:
    """It may come from anybody; a page is written or an error that says which file."""
    broken = tmp_path / "broken"
    shutil.copytree(out, broken)
    report = json.loads((broken / "report.json").read_text())
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = ["<b>"]
    (broken / "report.json").write_text(json.dumps(report))
    with pytest.raises(ConfigError, match="QA0514"):
        page_again(broken)


@pytest.mark.ray
@pytest.mark.long
def test_a_run_on_ray_has_a_page_and_no_texts_if_asked(tmp_path: Path) -> None:
    """As people run it; and what was left out stays out when the page is written again."""
    questions(60).write_parquet(tmp_path / "q.parquet")
    words = ["--metrics", "f1", "--column", "references=reference", "--carry", "topic"]
    said = qaeval(
        "score", tmp_path / "q.parquet", "--out", tmp_path / "out", *words, "--no-texts", "--ray"
    )
    assert f"report: {tmp_path / 'out' / 'report.html'}" in said
    before = page_of(tmp_path / "out")
    assert_stands_alone(before)
    assert "60 rows scored by f1" in before and questions(60)["question"][0] not in before
    done = subprocess.run(
        [sys.executable, "-m", "qaeval.cli", "report", tmp_path / "out"],
        capture_output=True, text=True, cwd=REPOSITORY, check=True,
    )  # fmt: skip
    assert "page: " in done.stdout and page_of(tmp_path / "out") == before
