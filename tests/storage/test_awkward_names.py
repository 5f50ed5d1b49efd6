"""Names of input files that a URI must quote, or a store cannot hold: one contract for all verbs.

Scored into a bucket under a name with an umlaut, a bracket or a backslash, rows could be read by
every verb but one.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from helpers import write_parquet
from qaeval.cli import app
from qaeval_core.storage.path import as_path
from s3_server import S3Server
from word_jobs import rows

# Whatever a URI, a shell, a glob or a hive folder may mean by a sign; no two are alike.
NAMES = (
    "été", "größe", "cafe\u0301", "灯台", "😀", "<b>", "[z]", "{a}", "back\\slash", "a b",
    " lead", "50%", "%20", "%2e%2e", "what?", "#1", "a+b&c", "*", "~", "'q'", '"d"', "a;b,c",
    "a:b@c", "a=b", "$HOME", "`id`", "^", "|", "n" * 180,
)  # fmt: skip
N_ROWS = 6
runner = CliRunner()


def table(name: str) -> pa.Table:
    ids = [f"{name} {n}" for n in range(N_ROWS)]
    found = rows(N_ROWS).set_column(0, "id", pa.array(ids))
    return found.append_column("rating", pa.array([float(n % 3) for n in range(N_ROWS)]))


@pytest.fixture(scope="module", params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder or a prefix of a bucket, with a file of each name in ``in``."""
    folder = tmp_path_factory.mktemp("names")
    if request.param == "disk":
        for name in NAMES:
            write_parquet(folder / "in" / f"{name}.parquet", table(name))
        return str(folder)
    server: S3Server = request.getfixturevalue("store")
    server.make_bucket("names")
    for name in NAMES:
        server.put(table(name), f"names/in/{name}.parquet")
    return server.uri("names")


def below(place: str, name: str) -> str:
    return str(as_path(place) / name)


def said(*words: str, expect: int = 0) -> str:
    done = runner.invoke(app, words, catch_exceptions=False)
    assert done.exit_code == expect, done.output
    return done.output


@pytest.fixture(scope="module")
def out(place: str) -> str:
    """OUT of all the names; the first verb of the contract."""
    out = below(place, "out")
    said(
        *("score", below(place, "in"), "--out", out, "--metrics", "f1,rouge_l", "--local"),
        *("--column", "references=reference", "--carry", "rating"),
    )
    return out


def test_score(out: str) -> None:
    found = {own.name for own in (as_path(out) / "scores").list()}
    assert found == {f"{name}.parquet" for name in NAMES}


@pytest.mark.slow
def test_filter(place: str, out: str) -> None:
    to = below(place, "kept")
    given = ("--input", below(place, "in"))
    words = ("--rank-by", "f1", "--share", "1", "--rules", "none", "--local")
    said("filter", out, "--to", to, *words, *given)
    kept = {own.name for own in (as_path(to) / "kept").list(is_deep=True)}
    assert kept == {f"{name}.parquet" for name in NAMES}
    said("filter", str(as_path(to) / "kept"), "--to", below(place, "again"), *words)


@pytest.mark.slow
def test_audit(place: str, out: str) -> None:
    words = ("--history", below(place, "audits"), "--to", below(place, "audit"))
    words += ("--cluster", "id")
    said("audit", out, *words, expect=1)  # The first run.
    said("audit", out, *words, "--pin")
    assert "no alert" in said("audit", out, *words)


def test_report(place: str, out: str) -> None:
    words = ("--texts", "3", "--input", below(place, "in"))
    assert "report.html" in said("report", out, *words)


@pytest.mark.parametrize("name", ["été", "[z]", "back\\slash", "%20", "what?", "a=b"])
def test_explain(place: str, out: str, name: str) -> None:
    words = ("--row", f"{name}.parquet:2", "--input", below(place, "in"))
    assert repr(f"{name} 2") in said("explain", out, *words)


def test_correlate(place: str, out: str) -> None:
    words = ("--human", "rating", "--resamples", "20", "--out", below(place, "study"))
    assert "report.json" in said("correlate", out, *words)


@pytest.mark.parametrize("sign", ["\t", "\n", "\x01", "\x7f"])
def test_names_that_a_store_cannot_hold_are_refused_first(
    sign: str, store: S3Server, tmp_path: Path
) -> None:
    """They were refused at the join, after all was paid, each time."""
    store.make_bucket("held")
    source = write_parquet(tmp_path / "in" / f"a{sign}b.parquet", table("odd"))
    words = ("--metrics", "f1", "--column", "references=reference", "--local")
    output = said("score", str(source.parent), "--out", store.uri("held/out"), *words, expect=2)
    assert "cannot be a name in s3://held/out" in output and "OUT to a disk" in output
    assert not list(as_path(store.uri("held")).list(is_deep=True))
    said("score", str(source.parent), "--out", str(tmp_path / "out"), *words)
    assert [own.name for own in (tmp_path / "out" / "scores").iterdir()] == [source.name]
