"""Labels of several raters: what they agree on, and what counts as bad until they do."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from filter_corpora import filtered, scored
from helpers import qaeval
from qaeval_core.errors import SchemaError
from qaeval_core.filter.labels import differ_lines, labels_of
from qaeval_core.filter.request import FilterRequest
from qaeval_core.filter.table import filter_table


def request(*files: Path, **options: object) -> FilterRequest:
    labels = tuple(map(str, files))
    return FilterRequest(labels=labels, precision=0.8, **options)  # type: ignore[arg-type]


@pytest.fixture
def raters(tmp_path: Path) -> tuple[Path, Path]:
    """Two who agree on a and b, differ on c, and of whom one or none has labeled d, e and f."""
    (tmp_path / "a.csv").write_text('"id","good"\n"a","1"\n"b","0"\n"c","1"\n"d",""\n"f",""\n')
    (tmp_path / "b.csv").write_text('"id","good"\n"c","0"\n"b","0"\n"a","1"\n"d","1"\n"e","1"\n')
    return tmp_path / "a.csv", tmp_path / "b.csv"


def test_differing_labels_are_bad(raters: tuple[Path, Path]) -> None:
    for given in (raters, raters[::-1]):
        found = labels_of(request(*given))
        assert found.is_good == {"a": True, "b": False, "c": False, "d": True, "e": True}
        assert (found.blank, found.differ) == (("f",), ("c",))
        (line,) = differ_lines(found)
        assert "1 of 5 labels" in line and line.endswith(": c")
    alone = labels_of(request(raters[0]))
    assert alone.is_good == {"a": True, "b": False, "c": True} and alone.differ == ()
    assert not list(differ_lines(alone))


def test_many_that_differ_are_counted(tmp_path: Path) -> None:
    for good in (0, 1):
        ids = [f"q{i}" for i in range(60)]
        pl.DataFrame({"id": ids, "good": [good] * 60}).write_csv(tmp_path / f"{good}.csv")
    found = labels_of(request(tmp_path / "0.csv", tmp_path / "1.csv"))
    (line,) = differ_lines(found)
    assert "60 of 60 labels" in line and "q49 and 10 more" in line and "q50" not in line


def test_each_table_is_checked_by_its_name(raters: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text('"id","rating"\n"a","5"\n')
    with pytest.raises(SchemaError, match=r"c\.csv.*'good'.*QA0305"):
        labels_of(request(*raters, tmp_path / "c.csv"))


def test_a_certificate_of_two_raters(tmp_path: Path) -> None:
    """It is that of one who calls good what both do, and a change of either begins it anew."""
    out = scored(tmp_path / "corpus", 300, f1="f1")
    scores = pl.read_parquet(out / "scores").select("id", "f1")
    kinds = {"kind": pl.col("f1") > 0.2, "strict": pl.col("f1") > 0.5, "sure": pl.col("f1") > 0.5}
    for name, good in kinds.items():
        labels = scores.select("id", good=good.cast(pl.Int8))
        labels.write_csv(tmp_path / f"{name}.csv")
    paths = {name: str(tmp_path / f"{name}.csv") for name in kinds}
    asked = ["--rank-by", "f1", "--rules", "none", "--near-duplicates", "none", "--local"]
    asked += ["--precision", "0.6", "--labels", paths["kind"], "--labels", paths["strict"]]
    n_differ = scores.filter((pl.col("f1") > 0.2) & (pl.col("f1") <= 0.5)).height
    planned = qaeval("filter", out, "--to", tmp_path / "both", *asked, "--dry-run")
    said = qaeval("filter", out, "--to", tmp_path / "both", *asked)
    assert f"raters differ on {n_differ:,} of 300 labels" in planned and n_differ
    assert f"raters differ on {n_differ:,} of 300 labels" in said
    one, _ = filtered(
        out, tmp_path / "one", labels=paths["sure"], precision=0.6, rank_by="f1",
        near_duplicates="none",
    )  # fmt: skip
    kept = [sorted(pl.read_parquet(tmp_path / name / "kept")["id"]) for name in ("both", "one")]
    assert kept[0] == kept[1] and one.is_certified
    assert "nothing to do" in qaeval("filter", out, "--to", tmp_path / "both", *asked)
    Path(paths["kind"]).write_bytes(Path(paths["strict"]).read_bytes())
    assert "differ" not in qaeval("filter", out, "--to", tmp_path / "both", *asked, "--dry-run")


def test_tables_of_raters_from_python() -> None:
    rows = pl.DataFrame({"id": [f"q{i}" for i in range(200)], "s": range(200)})
    good = rows.select("id", good=(pl.col("s") > 60).cast(pl.Int8))
    found = filter_table(
        rows.with_columns(mine=(pl.col("s") > 20).cast(pl.Int8)),
        rank_by="s", rules="none", near_duplicates="none", precision=0.8, labels=["mine", good],
    )  # fmt: skip
    alone = filter_table(
        rows, rank_by="s", rules="none", near_duplicates="none", precision=0.8,
        labels=good.to_dicts(),
    )  # fmt: skip
    assert found.kept["id"].to_list() == alone.kept["id"].to_list() and alone.kept.height > 100
