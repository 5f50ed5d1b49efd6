"""qaeval filter as people run it: on Ray and in one process, from the sheet to the certificate."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import psutil
import pyarrow.parquet as pq
import pytest

from filter_corpora import files_of, filtered, scored
from helpers import REPOSITORY, processes, qaeval, start_qaeval, wait_until
from qaeval.on_ray.cluster import connected
from qaeval.on_ray.nodes import Nodes
from qaeval.on_ray.tasks import RayTasks
from qaeval_core.configure import ClusterSection
from qaeval_core.errors import UnreadableFileError


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("corpus"), n_rows=2000, n_files=3)


@pytest.mark.long
@pytest.mark.ray
def test_ray_and_one_process_write_the_same_bytes(out: Path, tmp_path: Path) -> None:
    words = ["--rank-by", "f1", "--rules", "none", "--top-k", "3", "--share", "0.5"]
    near = ["--near-duplicates", "rouge_l=0.7", "--keep", "f1 > 0.1", "--quota", "topic=200"]
    said = qaeval("filter", out, "--to", tmp_path / "ray", "--ray", *words, *near)
    assert "kept " in said and "rows/s" in said and "warning" not in said.lower()
    qaeval("filter", out, "--to", tmp_path / "local", "--local", *words, *near)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
    content = json.loads((tmp_path / "ray" / "filter.json").read_text())
    assert set(content["reasons"]) == {"keep", "duplicate", "top_k", "quota", "share"}
    assert content["kept"] + sum(content["reasons"].values()) == content["rows"] == 2000
    assert "nothing to do" in qaeval("filter", out, "--to", tmp_path / "ray", *words, *near)
    # Another seed is another filter.
    qaeval("filter", out, "--to", tmp_path / "ray", "--local", *words, *near, "--seed", "1")
    assert files_of(tmp_path / "ray") != files_of(tmp_path / "local")


@pytest.mark.ray
@pytest.mark.slow
def test_as_a_module_on_a_table_of_another_tool(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {"qid": [7, 8, 9], "q": ["a", "b", "A"], "p": ["x", "x", "x"], "s": [1, 2, 3]}
    )
    (tmp_path / "table").mkdir()
    table.write_parquet(tmp_path / "table" / "t.parquet")
    words = ["--column", "id=qid", "--column", "question=q", "--column", "context=p"]
    done = subprocess.run(
        [sys.executable, "-m", "qaeval.cli", "filter", tmp_path / "table",
         "--to", tmp_path / "kept", "--rank-by", "s", "--rules", "none", *words],
        capture_output=True, text=True, cwd=REPOSITORY, check=True,
    )  # fmt: skip
    assert "kept 2 of 3 rows (66.7%), of 1 groups" in done.stdout
    kept = pl.read_parquet(tmp_path / "kept" / "kept" / "t.parquet")
    assert kept.equals(table[1:])
    decisions = pl.read_parquet(tmp_path / "kept" / "decisions" / "t.parquet")
    assert decisions["duplicate_of"].to_list() == ["9", None, None]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of a million rows in row groups of 20,000, so that tasks can be met at work."""
    folder = tmp_path_factory.mktemp("large")
    n = 1_000_000
    number = pl.int_range(n, eager=True)
    table = pl.DataFrame(
        {
            "id": number.cast(pl.String),
            "question": "what is " + (number % 9_973).cast(pl.String) + "?",
            "context": "passage " + (number // 50).cast(pl.String),
            "s": (number * 7_919 % 1_000_003).cast(pl.Float64),
        }
    )
    table.write_parquet(folder / "table.parquet", row_group_size=20_000)
    return folder


def kills_one(process: subprocess.Popen[str]) -> bool:
    """Kill a worker at its work, and return whether there was one."""
    for worker in processes(process.pid, title="ray::qaeval"):
        with contextlib.suppress(psutil.NoSuchProcess):  # Its task has ended meanwhile.
            worker.kill()
            return True
    return False


@pytest.mark.ray
@pytest.mark.slow
# A driver that is killed is in tests/storage/test_cluster.py, over a bucket.
@pytest.mark.parametrize("victim", [pytest.param("driver", marks=pytest.mark.long), "worker"])
def test_whoever_is_killed_on_ray_the_bytes_are_the_same(
    large: Path, tmp_path: Path, victim: str
) -> None:
    words = ["--rank-by", "s", "--rules", "none", "--top-k", "20", "--share", "0.7"]
    qaeval("filter", large, "--to", tmp_path / "local", *words, "--local")
    kept = tmp_path / "ray"
    process = start_qaeval("filter", large, "--to", kept, "--ray", *words)
    wait_until(lambda: any(kept.glob(".work-*/ids/*.arrow")), process)
    if victim == "driver":
        process.kill()
        process.communicate()
        assert not (kept / "_SUCCESS").exists()
        qaeval("filter", large, "--to", kept, "--ray", *words)
    else:
        wait_until(lambda: kills_one(process), process)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert files_of(kept) == files_of(tmp_path / "local")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of four files; a page of the first is damaged, of a column that decides nothing."""
    folder = tmp_path_factory.mktemp("damaged")
    number = pl.int_range(300_000, eager=True)
    table = pl.DataFrame({"id": number.cast(pl.String), "s": number * 7_919 % 300_007})
    table = table.with_columns(text="no stage reads this " + pl.col("id"))
    for i in range(4):
        table.write_parquet(folder / f"part{i}.parquet", row_group_size=100_000)
    path = folder / "part0.parquet"
    first = pq.read_metadata(path).row_group(0).column(2).data_page_offset
    content = bytearray(path.read_bytes())
    content[first : first + 400] = bytes(own ^ 0xFF for own in content[first : first + 400])
    path.write_bytes(content)
    return folder


UNREADABLE = "part0.parquet: cannot decode rows 0-65535"


@pytest.mark.slow
def test_a_filter_that_fails_leaves_nothing_of_its_processes(damaged: Path, tmp_path: Path) -> None:
    """Others were still writing when one met what is damaged, and made their folder anew."""
    words = ["--rank-by", "s", "--rules", "none", "--local"]
    said = qaeval("filter", damaged, "--to", tmp_path / "kept", *words, expect=2, apart=True)
    assert UNREADABLE in said
    assert files_of(tmp_path / "kept") == {}


@pytest.mark.long
@pytest.mark.ray
def test_a_filter_that_fails_leaves_nothing_of_its_tasks(damaged: Path, tmp_path: Path) -> None:
    """On a cluster they go on after the command has ended."""
    with connected(ClusterSection()):
        tasks = RayTasks(lambda label, done, total: None, Nodes(lambda line: None))
        with pytest.raises(UnreadableFileError, match=UNREADABLE):
            filtered(damaged, tmp_path / "kept", executor=tasks, rank_by="s")
        # Between two tasks a worker has none.
        for _ in range(20):
            wait_until(lambda: not processes(os.getpid(), title="ray::qaeval"))
            time.sleep(0.1)
        assert files_of(tmp_path / "kept") == {}


@pytest.mark.slow
def test_from_the_sheet_to_the_certificate(out: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    ranked = ["--rank-by", "f1", "--rules", "none", "--local", "--to", kept]
    said = qaeval("filter", out, *ranked, "--label-sheet", "300", "--precision", "0.6")
    sheet = kept / "label_sheet.csv"
    assert str(sheet) in said and "even if all 300 labels turn out good" in said
    assert sorted(path.name for path in kept.iterdir()) == ["label.html", "label_sheet.csv"]
    table = pl.read_csv(sheet, infer_schema=False)
    assert table.columns == ["id", "good", "question", "context", "answer"]
    assert table.height == 300 == table["id"].n_unique()
    # The same command again finds its sheet; with labels in it, it is left alone.
    qaeval("filter", out, *ranked, "--label-sheet", "300")
    scores = (
        pl.read_parquet(out / "scores")
        .select("id", "f1")
        .with_columns(pl.col("id").cast(pl.String))
    )
    labels = table.drop("good").join(scores, on="id").with_columns(good=pl.col("f1") > 0.45)
    labels.select("id", pl.col("good").cast(pl.Int8)).write_csv(sheet)
    said = qaeval("filter", out, *ranked, "--label-sheet", "300", expect=2)
    assert "may hold labels" in said
    given = ["--labels", sheet, "--label", "good == 1"]
    said = qaeval("filter", out, *ranked, *given, "--precision", "0.8")
    assert "precision above 0.8 is certified at 95% confidence for the best" in said
    content = json.loads((kept / "filter.json").read_text())
    rows = pl.read_parquet(kept / "kept").join(scores.rename({"f1": "_"}), on="id")
    assert (rows["f1"] > 0.45).mean() > 0.8
    assert content["certificate"]["n_contexts"] is None  # All of a sheet: drawn row by row.
    yields = pl.read_parquet(kept / "yield.parquet")
    assert yields.filter("certified")["share"].max() == content["certificate"]["share"]
    # Of a part of them nobody knows why the others are blank: these count as bad.
    some = pl.read_csv(sheet).with_row_index()
    good = pl.when(pl.col("index") < 200).then("good")
    some.select("id", good=good).write_csv(tmp_path / "some.csv")
    part = ["--labels", tmp_path / "some.csv", "--label", "good", "--precision", "0.7"]
    said = qaeval("filter", out, *ranked, *part, "--blank", "ignore", expect=2)
    assert "was spent on earlier looks, at 300 labels" in said  # It would be another sample.
    said = qaeval("filter", out, *ranked, *part, expect=1)
    assert "100 rows without a label count as bad. Left out (--blank ignore), the best" in said
    elsewhere = [*ranked[:-1], tmp_path / "elsewhere"]
    said = qaeval("filter", out, *elsewhere, *part, "--blank", "ignore")
    assert "100 rows without a label are left out" in said and "Counted as bad, nothing" in said
    content = json.loads((tmp_path / "elsewhere" / "filter.json").read_text())
    certificate = content["certificate"]
    assert (certificate["n_contexts"], certificate["n_labels"]) == (None, 200)
    # Too much to ask: decisions and yields are there, and nothing is kept.
    said = qaeval("filter", out, *ranked, *given, "--precision", "0.999", expect=1)
    assert "is not certified with these 300 labels" in said and "Nothing is kept" in said
    assert not (kept / "_SUCCESS").exists() and not list((kept / "kept").glob("*"))
    decisions = pl.read_parquet(kept / "decisions")
    assert decisions.height == 2000 and not decisions["kept"].any()
    assert 15 < pl.read_parquet(kept / "yield.parquet").height <= 20
    assert "Not certified with these labels" in (kept / "filter.html").read_text()


def test_what_it_would_take(out: Path, tmp_path: Path) -> None:
    said = qaeval("filter", out, "--dry-run", "--near-duplicates", "rouge_l=0.7", "--top-k", "2")
    assert "2,000 rows of 3 files, in 3 tasks; two passes" in said
    assert "memory here: 0.1 MB, 40 bytes a row" in said
    assert "quadratic in a group's questions" in said
    assert qaeval("filter", out, "--share", "0.5", expect=2).count("give --to KEPT") == 1
    said = qaeval("filter", "--help")
    assert said.count("qaeval filter out --to kept") == 6
    counted = ["--quota", "topic=9", "--share", "0.5", "--share-per", "context"]
    said = qaeval("filter", out, "--dry-run", *counted)
    assert "share (0.5 of each context)" in said and "0.1 MB, 44 bytes a row" in said
    assert "values of topic and of context are counted: some 100 bytes each" in said


def test_exit_codes(out: Path, tmp_path: Path) -> None:
    assert "--share is 0; it must be a number above 0" in qaeval(
        "filter", out, "--to", tmp_path / "kept", "--share", "0", expect=2
    )
    assert "no such file or folder" in qaeval(
        "filter", tmp_path / "nowhere", "--to", tmp_path / "kept", expect=2
    )
    assert "--local uses no cluster" in qaeval(
        "filter", out, "--to", tmp_path / "kept", "--local", "--address", "auto", expect=2
    )
    said = qaeval("filter", out, "--to", tmp_path / "kept", "--column", "id", expect=2)
    assert "--column takes ROLE=NAME, not 'id'" in said and "did you mean" not in said
    (tmp_path / "empty").mkdir()
    assert "no data file below" in qaeval(
        "filter", tmp_path / "empty", "--to", tmp_path / "kept", expect=2
    )
    broken = scored(tmp_path)
    (broken / "_SUCCESS").unlink()
    assert "has no _SUCCESS" in qaeval("filter", broken, "--to", tmp_path / "kept", expect=1)
    assert not (tmp_path / "kept").exists()


def test_the_page_stands_alone(out: Path, tmp_path: Path) -> None:
    qaeval("filter", out, "--to", tmp_path, "--share", "0.5", "--rules", "none", "--local")
    page = (tmp_path / "filter.html").read_text()
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page and page.count("<svg") == 4, "each chart at both widths"
    for title in ("Yield", "Rows of each reason", "Kept and dropped", "At the margin"):
        assert f"<h2>{title}</h2>" in page
    assert 'href="' in page and f'<a href="{os.path.relpath(out, tmp_path)}/report.html"' in page
    content = json.loads((tmp_path / "filter.json").read_text())
    assert len(content["examples"]) == 20
    assert [own["kept"] for own in content["examples"]].count(True) == 10
    assert sum(content["histogram"]["kept"]) == content["kept"]
