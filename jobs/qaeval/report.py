"""report: print the scores of a finished run, and rewrite its page.

Exit codes: 0 done, 1 the input or OUT cannot be read, 2 bad request.
"""

from __future__ import annotations

from typing import Annotated

from qaeval import arguments
from qaeval import command as options
from qaeval.arguments import (
    FormatOption,
    MovedInputOption,
    NoTextsOption,
    PercentOption,
    RunArgument,
    TextsOption,
    WidthOption,
    option,
)
from qaeval_core.errors import ConfigError, QAEvalError, RunError

EPILOG = """Examples:

  qaeval report out

  qaeval report out --by topic --by source --texts 10

  qaeval report out --no-texts

  qaeval report out --format markdown --percent --width 1

  qaeval report s3://bucket/out --input s3://bucket/data/

Exit codes: 0 done; 1 the input or OUT cannot be read; 2 bad request.
"""


def report(
    out: RunArgument,
    source: MovedInputOption = None,
    by: Annotated[
        list[str] | None,
        option(
            group=arguments.OUTPUT,
            metavar="COLUMN",
            text="Show means only by this carried column. Repeatable.",
            show_default="all carried columns",
        ),
    ] = None,
    texts: TextsOption = None,
    no_texts: NoTextsOption = False,
    form: FormatOption = "text",
    percent: PercentOption = False,
    width: WidthOption = None,
) -> None:
    """Print the scores of a finished run, and rewrite its report page.

    OUT/report.html shows distributions, means by slice, and the lowest and
    highest rows.
    """
    # Imported here: --help needs none of it.
    from qaeval_core.pages.printed import check_format
    from qaeval_core.profile.run_profile import PAGE
    from qaeval_core.scoring.result_table import result_text
    from qaeval_core.scoring.rewrite_page import page_again, read_report
    from qaeval_core.storage.path import as_path, check_lasting

    try:
        if no_texts and texts is not None:
            raise ConfigError("give --texts or --no-texts, not both [QA0102]")
        check_format(form)
        check_lasting(out, "OUT")
        page = as_path(out) / PAGE
        shown = page_again(out, by=by or (), n_texts=0 if no_texts else texts, inputs=source or ())
        page.put(shown.encode())
        table = result_text(read_report(as_path(out)), form, percent=percent, width=width)
    except (RunError, OSError) as error:
        options.fail(
            error if isinstance(error, QAEvalError) else RunError(f"{error} [QA0001]"),
            code=options.EXIT_INCOMPLETE,
        )
    except QAEvalError as error:
        options.fail(error)
    options.show_lines(table)
    (options.show if form == "text" else options.say)(f"page: {page}")
