"""Every verb over a bucket: what it does over a folder, file for file."""

from __future__ import annotations

import html
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from click.testing import Result
from typer.testing import CliRunner

from audit.test_profile_folder import a_profile
from filter_corpora import files_of, questions
from qaeval.cli import app
from qaeval_core.audit.profile_folder import ALERT, PINNED, Runs
from qaeval_core.storage.path import StoragePath, as_path
from qaeval_core.store.store import Store
from s3_proxy import CONDITIONS, S3Proxy
from s3_server import S3Server

N_ROWS = 240
N_FILES = 2
FILTER = ("--rules", "none", "--rank-by", "f1", "--near-duplicates", "rouge_l=0.6", "--top-k", "4")
FILTERS = {
    "share": (*FILTER, "--share", "0.5"),
    "sheet": (*FILTER, "--label-sheet", "60"),
    "labels": (
        *(*FILTER, "--precision", "0.3"),
        *("--labels", "{labels}", "--label", "good == 1"),
    ),
    "learn": (
        *("--rules", "none", "--learn", "f1,rouge_l", "--precision", "0.2", "--group", "id"),
        *("--labels", "{labels}", "--label", "good == 1"),
    ),
}


# Lines of progress come by the clock and hold the time.
PROGRESS = re.compile(r"[^:]+: [\d,]+/[\d,]+ rows \(\d+ %\), ")

# What is scored anew, and asked for once.
NEW = ("--out", "{root}/new", "--column", "candidate=question", "--set=scoring.retry_storage_s=0")


@dataclass(frozen=True)
class Place:
    """Where runs lie: two scored OUTs, labels, and all that verbs write."""

    root: StoragePath
    twin: StoragePath | None = None  # what it was copied from

    def __truediv__(self, name: str) -> StoragePath:
        return self.root / name

    def qaeval(self, *words: str, expect: int = 0) -> Result:
        """Run a verb in this process; ``{root}/name`` is a name here."""
        result = CliRunner().invoke(app, [self._named(word) for word in words])
        assert result.exit_code == expect, (result.output, result.exception)
        return result

    def _named(self, word: str) -> str:
        head, is_own, name = word.partition("{root}/")
        return f"{head}{self / name}" if is_own else word

    def said(self, *words: str, expect: int = 0) -> str:
        """Return what a verb says, places left out."""
        lines = self.qaeval(*words, expect=expect).output.splitlines(keepends=True)
        return self._alike("".join(line for line in lines if not PROGRESS.match(line)))

    def files(self, name: str) -> dict[str, bytes]:
        """Return all files below a name, places left out."""
        found = files_of(self / name)
        return {name: self._alike_bytes(own) for name, own in found.items()}

    def _alike(self, text: str) -> str:
        for root in filter(None, (self.root, self.twin)):
            folder, _, options = str(root).partition("?")
            text = text.replace(folder, "ROOT")
            for own in (options, html.escape(options)):
                text = text.replace(f"?{own}", "") if own else text
        # Pages have another style for what is long.
        return text.replace('<td class="long" dir="auto">ROOT', '<td dir="auto">ROOT')

    def _alike_bytes(self, content: bytes) -> bytes:
        return content if content[:4] == b"PAR1" else self._alike(content.decode()).encode()


def score(place: Place, source: Path, out: str) -> None:
    words = ("score", str(source), "--metrics", "f1,rouge_l", "--out", f"{{root}}/{out}", "--local")
    place.qaeval(*words, "--column", "references=reference", "--carry", "topic,rating")


@pytest.fixture(scope="module")
def places(store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Place]:
    """A bucket that was scored into, and a copy of its runs on the disk."""
    store.make_bucket("bucket")
    folder = tmp_path_factory.mktemp("verbs")
    bucket = Place(as_path(store.uri("bucket/verbs")), as_path(folder))
    disk = Place(as_path(folder), bucket.root)
    for i, out in enumerate(("out", "moved")):
        source = folder / "source" / out
        source.mkdir(parents=True)
        table = questions(N_ROWS, seed=i).with_columns(rating=pl.int_range(pl.len()) * 7 % 5)
        # Of the second run most rows are the first one's, and some score better.
        if i:
            table = questions(N_ROWS).with_columns(rating=pl.lit(1))
            better = pl.col("id").str.slice(1).cast(pl.Int64) % 3 == 0
            text = pl.when(better).then(pl.col("question")).otherwise(pl.col("reference"))
            table = table.with_columns(reference=text)
        for n in range(N_FILES):
            own = table[n * N_ROWS // N_FILES : (n + 1) * N_ROWS // N_FILES]
            own.write_parquet(source / f"part{n}.parquet", row_group_size=50)
        if i:
            time.sleep(1.1)  # Runs of one second are in no order there.
        score(bucket, source, out)
        for found in list((bucket / out).list(is_deep=True)):
            path = disk / out / found.name
            path.put((bucket / out / found.name).read_bytes())
            # A look at an object knows whole seconds.
            time_s = (bucket / out / found.name).head().modified_s
            os.utime(path, (time_s, time_s))
    ids = [f"q{i}" for i in range(0, N_ROWS, 2)]
    labels = pl.DataFrame({"id": ids, "good": [i % 3 > 0 for i in range(len(ids))]})
    for place in (bucket, disk):
        content = labels.cast({"good": pl.Int8}).write_csv().encode()
        (place / "labels.csv").put(content)
    return bucket, disk


def same(places: tuple[Place, Place], *words: str, expect: int = 0) -> str:
    """Run a verb at both places; return what it says, which is the same."""
    bucket, disk = (place.said(*words, expect=expect) for place in places)
    assert bucket == disk
    return bucket


def same_files(places: tuple[Place, Place], name: str) -> dict[str, bytes]:
    """Return the files below a name, which are the same at both places."""
    bucket, disk = (place.files(name) for place in places)
    assert bucket.keys() == disk.keys()
    assert bucket == disk
    return bucket


def test_a_bucket_is_scored_into_as_a_folder_is(
    places: tuple[Place, Place], tmp_path: Path
) -> None:
    bucket, disk = places
    here = Place(as_path(tmp_path))
    score(here, Path(disk / "source" / "out"), "out")
    own, local = files_of(bucket / "out"), files_of(tmp_path / "out")
    assert own.keys() == local.keys()
    # Manifests hold tags, and each store gives its own.
    others = ("manifest", "profile")
    kept = [n for n in own if n.endswith(".parquet") and not any(word in n for word in others)]
    assert len(kept) > 6 and {name: own[name] for name in kept} == {n: local[n] for n in kept}


def test_report(places: tuple[Place, Place]) -> None:
    for words in ((), ("--by", "topic", "--texts", "3"), ("--no-texts",)):
        said = same(places, "report", "{root}/out", *words)
        assert said.startswith("metric ") and said.endswith("page: ROOT/out/report.html\n")
        own, other = (place.files("out")["report.html"] for place in places)
        assert own == other and len(own) > 10_000


def test_explain(places: tuple[Place, Place], tmp_path: Path) -> None:
    page = tmp_path / "row.html"
    pages = []
    for place in places:
        said = place.said("explain", "{root}/out", "--id", "q7", "--html", str(page))
        # From a page on the disk no link leads into a bucket.
        beside = '<nav aria-label="Other pages">'
        text, _, links = page.read_text().partition(beside)
        assert bool(links) == (place.twin is not None and "out/report.html" in links)
        after = links.partition("</nav>\n")[2]
        pages.append((said, place._alike(text + after)))
    assert pages[0] == pages[1] and "q7" in pages[0][0]
    assert "did you mean" not in same(places, "explain", "{root}/out", "--row", "part1.parquet:3")
    said = same(places, "explain", "{root}/out", "--id", "qq7", expect=2)
    assert "no row of ROOT/out has the id 'qq7'; the nearest are 'q7'" in said


@pytest.mark.parametrize(
    "tables",
    [
        ("{root}/out",),
        pytest.param(
            ("{root}/out/scores/part0.parquet", "{root}/out/scores/*1.parquet"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_correlate(places: tuple[Place, Place], tables: tuple[str, ...]) -> None:
    words = ("--human", "rating", "--resamples", "20", "--out", "{root}/study")
    said = same(places, "correlate", *tables, *words)
    assert "ROOT/study/report.json" in said
    assert {"correlate.html", "report.json", "correlations.parquet"} <= same_files(
        places, "study"
    ).keys()
    labels = ("--human", "good", "--labels", "{root}/labels.csv", "--resamples", "20")
    same(places, "correlate", *tables, *labels)


@pytest.mark.parametrize(
    "name", ["share", *(pytest.param(own, marks=pytest.mark.slow) for own in list(FILTERS)[1:])]
)
def test_filter(places: tuple[Place, Place], name: str) -> None:
    # What a filter was asked is in its fingerprint: one file for both.
    labels = str(places[1] / "labels.csv")
    words = [labels if word == "{labels}" else word for word in FILTERS[name]]
    run = ("filter", "{root}/out", "--to", f"{{root}}/{name}", "--local", *words)
    same(places, *run)
    files = same_files(places, name)
    # Neither work nor probes stay.
    assert not [own for own in files if own.startswith((".", "_probe"))]
    for sheet in ("label_sheet.csv", "label.html"):
        assert (sheet in files) == (name == "sheet")
    assert ("_SUCCESS" in files) == (name != "sheet")
    said = same(places, *run)
    assert name == "sheet" or "nothing to do: ROOT" in said


@pytest.mark.slow
def test_filter_with_what_lies_in_the_bucket(places: tuple[Place, Place]) -> None:
    """Labels, a learned rank, and a table of scores."""
    labels = ("--labels", "{root}/labels.csv", "--label", "good == 1")
    learn = ("--rules", "none", "--learn", "f1,rouge_l", "--precision", "0.3", "--group", "id")
    said = same(
        places, "filter", "{root}/out", "--to", "{root}/learned", "--local", *learn, *labels
    )
    assert "is certified" in said
    words = ("--rules", "none", "--rank-by", "{root}/learned/combine.json", "--share", "0.3")
    same(places, "filter", "{root}/out", "--to", "{root}/ranked", "--local", *words)
    table = ("filter", "{root}/ranked/kept", "--to", "{root}/again", "--local", "--rules", "none")
    same(places, *table, "--rank-by", "f1", "--share", "0.5")
    for name in ("learned", "ranked", "again"):
        bucket, disk = (place.files(name) for place in places)
        assert bucket.keys() == disk.keys() and len(bucket) >= 8
        own = [name for name in bucket if name.endswith(".parquet")]
        assert len(own) == 5 and [bucket[name] for name in own] == [disk[name] for name in own]


@pytest.mark.slow
def test_audit_from_its_first_run_to_an_alert(places: tuple[Place, Place]) -> None:
    def audit(run: str, *words: str, expect: int = 0) -> str:
        places_words = ("--history", "{root}/audits", "--to", "{root}/audit")
        return same(places, "audit", f"{{root}}/{run}", *places_words, *words, expect=expect)

    def outputs() -> dict[str, bytes]:
        own, other = (place.files("audit") for place in places)
        for files in (own, other):
            del files["audit.prom"]  # It holds the time.
        assert own == other and len(own) == 3
        return own

    by = ("--cluster", "id")
    assert "first_run" in audit("out", *by, expect=1)
    outputs()
    assert "first_run" in audit("out", *by, "--pin")
    assert "ok" in audit("out", *by)
    audit("moved", expect=3)
    assert b'"status": "alert"' in outputs()["audit.json"]
    history = same_files(places, "audits")
    marks = {name for name in history if name.endswith(ALERT)}
    assert len(history) == 4 and PINNED in history and len(marks) == 1
    for reference in ("last", "pinned", "{root}/out"):
        audit("moved", "--reference", reference, "--warn-only")
        outputs()
    profile = next(name for name in sorted(history) if name not in {PINNED, *marks})
    audit("moved", "--reference", f"{{root}}/audits/{profile}", "--warn-only")
    outputs()


def test_what_is_wrong_with_a_place_is_said(places: tuple[Place, Place]) -> None:
    bucket, _ = places
    for verb in (("explain", "--id", "q1"), ("report",), ("audit", "--history", "{root}/h")):
        to = ("--to", "{root}/r") if verb[0] == "audit" else ()
        said = bucket.said(verb[0], "{root}/outt", *verb[1:], *to, expect=2)
        assert "did you mean 'out'?" in said, said
    assert "did you mean 'out'?" in bucket.said(
        "filter", "{root}/outt", "--to", "{root}/x", "--local", expect=2
    )
    assert "did you mean 'out'?" in bucket.said(
        "correlate", "{root}/outt", "--human", "x", expect=2
    )
    nowhere = str(bucket.root).replace("//bucket/", "//nowhere/")
    for words in (
        ("explain", nowhere, "--id", "q1"),
        ("report", nowhere),
        ("correlate", nowhere, "--human", "x"),
        ("correlate", "{root}/out", "--human", "rating", "--out", nowhere),
        ("filter", "{root}/out", "--to", nowhere, "--local", "--rank-by", "f1"),
        ("audit", "{root}/out", "--history", "{root}/h", "--to", nowhere),
    ):
        assert "there is no bucket s3://nowhere" in bucket.said(*words, expect=2), words
    for to in ("s4://bucket/x", "s3://bucket/x?regoin=x", "memory://bucket/x"):
        said = bucket.said(
            "filter", "{root}/out", "--to", to, "--local", "--rank-by", "f1", expect=2
        )
        assert any(why in said for why in ("choose one of: az, gs", "'region'", "lost with this"))


def test_kept_is_no_part_of_what_is_filtered(places: tuple[Place, Place]) -> None:
    bucket, disk = places
    words = ("--local", "--rank-by", "f1", "--rules", "none")
    # By another way to the same bucket, too.
    around = f"{bucket / 'out' / 'kept'}&"
    for to in ("{root}/out", "{root}/out/kept", around):
        said = bucket.said("filter", "{root}/out", "--to", to, *words, expect=2)
        assert "[QA0109]" in said
    said = bucket.said("filter", "{root}/out", "--to", "{root}/audits/..", *words, expect=2)
    assert "a bucket cannot have a folder . or .." in said
    table = ("filter", "{root}/out/scores", "--to", "{root}/out", *words)
    assert "outside" in bucket.said(*table, expect=2)
    (bucket / "foreign" / "a.txt").put(b"of somebody else")
    said = bucket.said("filter", "{root}/out", "--to", "{root}/foreign", *words, expect=2)
    assert "holds other files, such as a.txt" in said
    # An input that lies in a bucket, and KEPT in its folder.
    source = as_path(disk / "source" / "out")
    for found in source.list():
        (bucket / "data" / found.name).put((source / found.name).read_bytes())
    given = ("--input", "{root}/data", *words)
    said = bucket.said("filter", "{root}/out", "--to", "{root}/data/kept", *given, expect=2)
    assert "lies inside the input folder ROOT/data" in said
    bucket.said("filter", "{root}/out", "--to", "{root}/elsewhere", *given)


def test_of_pins_at_once_the_newest_run_stays(places: tuple[Place, Place]) -> None:
    for place in places:
        runs = [Runs(Store(place / "pins")) for _ in range(6)]
        ids = [f"2026010{i}T000000.000000Z-{'0' * 12}" for i in range(1, 7)]
        assert runs[0].pinned_version() is None
        for run in ids:
            runs[0].add(run, a_profile())
        with ThreadPoolExecutor(6) as pool:
            told = list(pool.map(partial(Runs.pin, seen=None), runs, ids))
        pinned = (place / "pins" / PINNED).read_bytes()
        assert ids[-1].encode() in pinned and told[-1] == ""
        assert all(other == "" or other > own for own, other in zip(ids, told, strict=True))
        # Who saw that one may pin an older run.
        assert runs[0].pin(ids[0], seen=runs[0].pinned_version()) == ""
        assert ids[0].encode() in (place / "pins" / PINNED).read_bytes()


def test_a_store_without_conditions_keeps_no_history(
    places: tuple[Place, Place], store: S3Server
) -> None:
    with S3Proxy(store.port) as proxy:
        proxy.stripped = CONDITIONS
        history = proxy.uri("bucket/verbs/careless")
        words = ("--history", history, "--to", "{root}/r", "--cluster", "topic")
        said = places[0].said("audit", "{root}/out", *words, expect=2)
        assert "--history" in said and "ignores If-None-Match" in said
        kept = proxy.uri("bucket/verbs/careless-kept")
        said = places[0].said(
            "filter", "{root}/out", "--to", kept, "--local", "--rank-by", "f1", expect=2
        )
        assert "--to" in said and "ignores If-None-Match" in said


@pytest.fixture
def shut(store: S3Server) -> Iterator[None]:
    store.door.shut()
    yield
    store.door.open()


@pytest.mark.slow
@pytest.mark.usefixtures("shut")
def test_a_store_that_is_away_is_no_bad_request(places: tuple[Place, Place]) -> None:
    asked = [
        ("report",),
        ("explain", "--id", "q1"),
        ("correlate", "--human", "rating"),
        ("filter", "--share", "0.5", "--dry-run"),
        ("score", *NEW, "--metrics", "f1", "--local"),
        ("calibrate", *NEW, "--metrics", "qrelscore", "--corpus", "c"),
    ]
    for verb, *words in asked:
        result = places[0].qaeval(verb, "{root}/out", *words, expect=1)
        assert "Traceback" not in result.output and "error: " in result.output
