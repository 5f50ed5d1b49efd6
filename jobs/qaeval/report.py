"""report: the page of a finished run, written again.

Exit codes: 0 done, 1 the input or OUT cannot be read, 2 bad request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from qaeval import command as options
from qaeval_core.errors import ConfigError, QAEvalError, RunError
from qaeval_core.storage.path import as_path

EPILOG = """Examples:

  qaeval report out

  qaeval report out --by topic --by source --texts 10

  qaeval report out --no-texts

  qaeval report out --input s3://bucket/data/

  qaeval report s3://bucket/out
"""


def report(
    out: Annotated[str, typer.Argument(help="the --out folder of a finished qaeval score")],
    by: Annotated[
        list[str] | None, typer.Option(help="show means by this carried column, and by no other")
    ] = None,
    texts: Annotated[
        int | None, typer.Option(help="show the texts of N rows at each end of a metric")
    ] = None,
    no_texts: Annotated[bool, typer.Option("--no-texts", help="show no text of a row")] = False,
    source: Annotated[
        list[str] | None, typer.Option("--input", help="where the input lies now")
    ] = None,
) -> None:
    """Write OUT/report.html again: how scores lie, means by slice, lowest and highest rows."""
    # Imported here: other verbs need none of it.
    from qaeval_core.profile.run_profile import PAGE
    from qaeval_core.scoring.rewrite_page import page_again

    try:
        if no_texts and texts is not None:
            raise ConfigError("--texts and --no-texts: one of them")
        page = as_path(out) / PAGE
        shown = page_again(out, by=by or (), n_texts=0 if no_texts else texts, inputs=source or ())
        page.put(shown.encode())
    except (RunError, OSError) as error:
        options.fail(
            error if isinstance(error, QAEvalError) else RunError(str(error)),
            code=options.EXIT_INCOMPLETE,
        )
    except QAEvalError as error:
        options.fail(error)
    options.show(f"page: {page}")


def main() -> None:
    """Run ``python -m qaeval.report``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(report)
    app()


if __name__ == "__main__":
    main()
