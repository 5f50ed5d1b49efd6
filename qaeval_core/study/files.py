"""Study files: what a study found, as Parquet, JSON and plots."""

from __future__ import annotations

from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from qaeval_core.errors import ConfigError
from qaeval_core.files import delete, write_json, writer
from qaeval_core.study.plots import plot_correlations, plot_distributions
from qaeval_core.study.records import RECORDS, Study, records_table

# Beside those of every report, what a correlation may depend on.
_PACKAGES = ("scipy", "polars", "scikit-learn", "matplotlib")


def write_study(study: Study, out: Path) -> list[Path]:
    """Write tables, plots and, last, report.json; return their paths.

    ``correlations.parquet`` and ``comparisons.parquet`` are always there; the other tables where
    they were asked for.
    """
    check_out(out)
    for old in _earlier(out):
        delete(old)
    paths = []
    for name in RECORDS:
        table = records_table(study, name)
        if table.height or name in ("correlations", "comparisons"):
            paths.append(out / f"{name}.parquet")
            with writer(paths[-1]) as file:
                table.write_parquet(file)
    paths += _write_plots(study, out)
    paths.append(out / "report.json")
    write_json(paths[-1], study_content(study))
    return paths


def check_out(out: Path) -> None:
    """Raise ConfigError if a study cannot be written there, or a run's files lie there."""
    if (out / "run.json").exists():
        raise ConfigError(
            f"--out {out} holds the scores of a run: its report.json would be replaced; choose "
            "another folder"
        )
    for folder in (out, *out.parents):
        if folder.exists():
            if not folder.is_dir():
                raise ConfigError(f"--out {out}: {folder} is a file, a folder is needed")
            return


def _earlier(out: Path) -> list[Path]:
    """Return what an earlier study wrote: beside a new report it would seem to be its own."""
    names = [*(f"{name}.parquet" for name in RECORDS), "correlations.png", "report.json"]
    plots = list(out.glob("distributions.png")) + list(out.glob("distributions_[0-9]*.png"))
    return [path for path in (out / name for name in names) if path.is_file()] + plots


def study_content(study: Study) -> dict[str, Any]:
    """Return a study as plain data: request, notes, all records, environment."""
    # Imported here: it brings all of scoring along, which nothing else in a study needs.
    from qaeval_core.report.report import environment

    content = environment()
    for package in _PACKAGES:
        try:
            content["packages"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "request": asdict(study.request),
        "rows": study.n_rows,
        "metrics": study.metrics,
        "notes": study.notes,
        **{name: [asdict(record) for record in getattr(study, name)] for name in RECORDS},
        "environment": content,
    }


def _write_plots(study: Study, out: Path) -> list[Path]:
    path = out / "correlations.png"
    plot_correlations(study.correlations, path)
    paths = [path]
    for i, (name, ratings) in enumerate(study.ratings.items()):
        # The first has the plain name: most studies have one.
        own = out / ("distributions.png" if i == 0 else f"distributions_{i + 1}.png")
        plot_distributions(study.scores, ratings, name=name, path=own)
        paths.append(own)
    return paths
