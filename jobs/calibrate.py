"""calibrate: baselines of QRelScore for a corpus, its models and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs import options
from jobs.score import ColumnOption, ConfigOption, InputsArgument, MetricsOption, SetOption
from qaeval_core.errors import ConfigError, QAEvalError
from qaeval_core.scoring.baselines import write_baselines
from qaeval_core.scoring.calibrate import calibrate as calibrate_job
from qaeval_core.scoring.job import make_job, read_inputs

EPILOG = """Examples:

  qaeval calibrate data/ --corpus news --out baseline-news.json

  qaeval score data/ --out scores --set qrelscore.baseline=baseline-news.json
"""


def calibrate(
    inputs: InputsArgument = None,
    corpus: Annotated[str | None, typer.Option(help="name of the corpus")] = None,
    out: Annotated[Path | None, typer.Option(help="default: baseline-<corpus>.json")] = None,
    n_pairs: Annotated[int, typer.Option(min=2, help="random pairs to average over")] = 1000,
    seed: Annotated[int, typer.Option(help="of the pairing")] = 0,
    config: ConfigOption = None,
    setting: SetOption = None,
    metrics: MetricsOption = None,
    column: ColumnOption = None,
) -> None:
    """Find b_LRM and b_GRG: the mean raw scores of questions with contexts of other rows."""
    from jobs.cluster import local_device

    try:
        if not corpus:
            raise ConfigError("name the corpus: --corpus NAME")
        resolved = options.make_config(
            inputs=inputs or (),
            config_path=config,
            settings=setting or (),
            metrics=metrics,
            columns=column or (),
            extra={},
        )
        _check_no_baseline(resolved.metrics)
        found = read_inputs(resolved, needs_out=False)
        job = make_job(resolved, found, device=local_device(resolved.cluster))
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_BAD_REQUEST)
    try:
        content = calibrate_job(job, corpus=corpus, n_pairs=n_pairs, seed=seed)
    except QAEvalError as error:
        options.fail(error, code=options.EXIT_INCOMPLETE)
    path = out or Path(f"baseline-{corpus}.json")
    write_baselines(path, content)
    for record in content.baselines:
        low, high = record.interval_95
        print(
            f"b_{record.part} = {record.value:.4f} [{low:.4f}, {high:.4f}], {record.n_pairs:,} "
            f"pairs, {record.n_dropped:,} dropped for overlap, {record.n_undefined:,} undefined"
        )
    print(f"baselines: {path}")


def _check_no_baseline(metrics: object) -> None:
    for name, settings in dict(metrics).items():  # type: ignore[call-overload]
        if settings.baseline is not None:
            raise ConfigError(f"metrics.{name}.baseline is what calibrate finds: leave it out")
        if settings.profile == "authors":
            raise ConfigError(f"metrics.{name}: profile=authors never rescales")


def main() -> None:
    """Run ``python -m jobs.calibrate``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(calibrate)
    app()


if __name__ == "__main__":
    main()
